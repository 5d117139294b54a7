//! Memory pools: charged by what they hold of the GPU, not by what was allocated from them.
//!
//! ```text
//!   pre-charge ---> the driver allocates ---> reading ---> charged = reading + pending pre-charges
//!       |                                        |
//!       +-- does not fit: read again, trim,      +-- grew beyond pre-charge and limit:
//!           charge less, wait                        freed, trimmed, denied
//! ```
//!
//! A pool decides when it takes memory of the GPU and keeps what is freed, so its pointers say
//! nothing about the GPU: they are not in the table of allocations. The driver reports what a pool
//! holds ([`PoolDriver`]). A reading may be outdated when it is recorded, so each has a ticket that
//! was taken before it began. `docs/internals/memory.md` has the argument why nothing is missed.
//!
//! **A handle is never used after its pool may have been destroyed.** Readings are counted. A
//! thread that has the driver destroy a pool first bars new readings and waits for those in
//! progress. A pool that the program destroys while it holds memory is kept, and destroyed later by
//! the thread that reads that it is empty.

mod allocation;
mod driver;
mod exported;
mod growth;
pub(crate) mod table;

use std::mem::ManuallyDrop;

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::driver::PoolDriver;
use self::table::{Balance, Lookup, PoolRef, Released, Reservation};
use crate::exports::Exports;
use crate::handles::PoolId;
use crate::ledger::Denied;
use crate::tables::{Tables, part};

/// Why an allocation from a pool failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError<E> {
    /// The driver's result.
    Driver(E),
    /// It would have exceeded the limit, or did and was undone.
    Denied(Denied),
    /// The pool is unknown: see [`Pools::adopt`], then try again.
    Unknown,
    /// The program has destroyed the pool.
    Destroyed,
}

/// How to handle a pool that the program destroys.
#[derive(Debug)]
pub enum PoolDestroy<'a> {
    /// The driver must be called; the pool is not charged.
    Uncharged,
    /// The driver must be called; the pool is empty.
    Empty(PendingPoolDestroy<'a>),
    /// The pool holds memory: it is kept, and destroyed when it is empty. The driver must not be
    /// called.
    Outlives,
    /// It was destroyed before.
    Destroyed,
}

/// An empty pool that the driver is about to destroy. Unchanged if it is dropped without
/// [`PendingPoolDestroy::destroyed`].
#[derive(Debug)]
#[must_use = "an ended pool that is dropped stays"]
pub struct PendingPoolDestroy<'a> {
    tables: &'a Tables,
    at: PoolRef,
    outlives: bool,
}

impl PendingPoolDestroy<'_> {
    /// Refunds the destroyed pool.
    pub fn destroyed(self) {
        let Self { tables, at, .. } = *ManuallyDrop::new(self);
        Pools::new(tables).refund_released(tables.pools.destroyed(at));
    }
}

impl Drop for PendingPoolDestroy<'_> {
    fn drop(&mut self) {
        self.tables.pools.stay(self.at, self.outlives);
    }
}

part!(
    /// The pools of this process.
    Pools
);

impl<'a> Pools<'a> {
    /// Records a new pool of `gpu`'s memory. `None`: its memory is not charged here, because it is
    /// the host's, another process's, or of a GPU that is not accounted.
    pub fn made(self, id: PoolId, gpu: Option<DeviceIndex>, driver: &'static dyn PoolDriver) {
        // Without host memory, its first allocation will adopt it, or be refused.
        self.enter(id, gpu, driver, true);
    }

    /// Records a pool that may be known. Returns `false` without host memory for it: refuse the
    /// call.
    pub fn adopt(
        self,
        id: PoolId,
        gpu: Option<DeviceIndex>,
        driver: &'static dyn PoolDriver,
    ) -> bool {
        self.enter(id, gpu, driver, false)
    }

    fn enter(
        self,
        id: PoolId,
        gpu: Option<DeviceIndex>,
        driver: &'static dyn PoolDriver,
        replaces: bool,
    ) -> bool {
        let former = self.tables.pools.enter(id, gpu, driver, replaces);
        if former.is_err() {
            self.tables.ledger.count(Reason::Unrecorded);
        }
        former.map(|former| self.refund_released(former)).is_ok()
    }

    /// Reads again what a pool holds, which may have changed.
    pub fn changed(self, id: PoolId) {
        if self.tables.pools.any()
            && let Lookup::Charged(at) = self.tables.pools.find(id)
        {
            self.read_pool(at, false);
        }
    }

    /// Reads again what all pools hold, or those of one GPU, and destroys those that have become
    /// empty after the program destroyed them.
    #[inline]
    pub fn all_changed(self, gpu: Option<DeviceIndex>) {
        if self.tables.pools.any() {
            self.each_pool(gpu, false);
        }
    }

    /// Returns the GPU whose memory a pool is charged for.
    #[must_use]
    pub fn gpu(self, id: PoolId) -> Option<DeviceIndex> {
        match self.tables.pools.find(id) {
            Lookup::Charged(at) => Some(at.gpu),
            _ => None,
        }
    }

    /// Returns whether this process has charged pools.
    #[inline]
    #[must_use]
    pub fn any(self) -> bool {
        self.tables.pools.any()
    }

    /// Begins to destroy a pool that is not a default pool, which the driver refuses to destroy.
    pub fn begin_destroy(self, id: PoolId) -> PoolDestroy<'a> {
        if id.is_of_graphs() {
            return PoolDestroy::Uncharged;
        }
        let at = match self.tables.pools.find(id) {
            Lookup::Charged(at) => at,
            Lookup::Unknown => return PoolDestroy::Uncharged,
            Lookup::Elsewhere => {
                self.tables.pools.forget(id);
                return PoolDestroy::Uncharged;
            }
            Lookup::Outlives | Lookup::Leaving => return PoolDestroy::Destroyed,
        };
        if let Some(ended) = self.end_if_empty(at, false) {
            return PoolDestroy::Empty(ended);
        }
        self.tables.ledger.count(Reason::PoolOutlived);
        self.tables.pools.outlive(at);
        PoolDestroy::Outlives
    }

    /// Trims pools, so that a charge on `gpu` may fit.
    #[cold]
    pub(crate) fn trim_for(self, gpu: DeviceIndex) {
        Exports::new(self.tables).refund_unheld();
        if self.tables.pools.any() {
            self.each_pool(Some(gpu), true);
        }
    }

    /// Reads what a pool holds after a call. Returns `false` if it has grown by what does not fit.
    #[inline]
    pub(crate) fn call_ended(self, at: PoolRef, reservation: Reservation) -> bool {
        let balance = match self.tables.pools.begin_reading(at) {
            Some(ticket) => {
                let reading = at.driver.reserved(at.id);
                if reading.is_none() {
                    self.tables.ledger.count(Reason::PoolUnread);
                }
                self.tables.pools.record_reading(at, ticket, reading, Some(reservation))
            }
            None => Balance { surplus: reservation.charged, ..Balance::default() },
        };
        self.apply(at, balance)
    }

    /// Applies a balance to the ledger. Returns `false` if the pool has grown by what does not fit.
    #[inline]
    fn apply(self, at: PoolRef, balance: Balance) -> bool {
        let kept = if balance.exported { self.enter_export(at) } else { Bytes::ZERO };
        if balance.surplus > kept {
            self.tables.ledger.refund(at.gpu, Column::Used, balance.surplus - kept);
        }
        let within = balance.shortfall == Bytes::ZERO && !balance.unpaid
            || self.charge_shortfall(at, balance);
        if balance.exported && balance.shortfall > Bytes::ZERO {
            self.enter_export(at);
        }
        within
    }

    #[cold]
    fn charge_shortfall(self, at: PoolRef, balance: Balance) -> bool {
        let mut balance = balance;
        // A reading may be older than its ticket says if what it saw is gone: a shortfall counts
        // when it is read twice.
        if balance.shortfall > Bytes::ZERO
            && let Some(ticket) = self.tables.pools.begin_reading(at)
        {
            balance = self.tables.pools.record_reading(at, ticket, at.driver.reserved(at.id), None);
            self.tables.ledger.refund(at.gpu, Column::Used, balance.surplus);
        }
        while balance.shortfall > Bytes::ZERO {
            let paid =
                self.tables.ledger.try_charge(at.gpu, Column::Used, balance.shortfall).is_ok();
            if !paid {
                // Another thread may have charged it meanwhile, or a later reading shown less.
                let shortfall = self.tables.pools.shortfall(at);
                if shortfall != balance.shortfall {
                    balance.shortfall = shortfall;
                    continue;
                }
                self.tables.ledger.force_charge(at.gpu, Column::Used, shortfall);
            }
            balance = self.tables.pools.add(at, balance.shortfall, !paid);
            self.tables.ledger.refund(at.gpu, Column::Used, balance.surplus);
        }
        let within = self.tables.ledger.total(at.gpu) <= self.tables.ledger.limit(at.gpu);
        if within {
            self.tables.pools.paid(at);
        }
        within || !balance.unpaid
    }

    pub(crate) fn each_pool(self, gpu: Option<DeviceIndex>, trim: bool) {
        let mut last = None;
        while let Some((at, outlives)) = self.tables.pools.after(last, gpu) {
            last = Some(at.id);
            let held = self.read_pool(at, trim || outlives);
            if outlives
                && held == Some(Bytes::ZERO)
                && let Some(ended) = self.end_if_empty(at, true)
                && at.driver.destroy(at.id)
            {
                ended.destroyed();
            }
        }
    }

    /// Reads what a pool holds, after a trim if `trim`.
    fn read_pool(self, at: PoolRef, trim: bool) -> Option<Bytes> {
        let _call = trim.then(|| self.tables.ledger.call());
        if trim {
            self.tables.pools.begin_reading(at)?;
            at.driver.trim(at.id);
            self.tables.pools.end_reading(at);
        }
        // Begun after the trim: another thread's reading may be from before it.
        let ticket = self.tables.pools.begin_reading(at)?;
        let reading = at.driver.reserved(at.id);
        self.apply(at, self.tables.pools.record_reading(at, ticket, reading, None));
        reading
    }

    /// Reads how much a pool holds, and how much of that is in use.
    fn read_use(self, at: PoolRef) -> Option<(Option<Bytes>, Option<Bytes>)> {
        let ticket = self.tables.pools.begin_reading(at)?;
        let (reserved, used) = (at.driver.reserved(at.id), at.driver.used(at.id));
        self.apply(at, self.tables.pools.record_reading(at, ticket, reserved, None));
        Some((reserved, used))
    }

    /// Bars a pool that is empty, so that the driver can be called to destroy it.
    fn end_if_empty(self, at: PoolRef, outlives: bool) -> Option<PendingPoolDestroy<'a>> {
        self.read_pool(at, true);
        let (reserved, used) = self.read_use(at)?;
        // Where the driver does not report it, waiting would not end.
        let empty =
            reserved.unwrap_or_default() == Bytes::ZERO && used.unwrap_or_default() == Bytes::ZERO;
        if !empty || !self.tables.pools.leave(at) {
            return None;
        }
        // These only read or trim, so they end.
        while self.tables.pools.is_being_read(at) {
            self.tables.ledger.sleep_briefly();
        }
        Some(PendingPoolDestroy { tables: self.tables, at, outlives })
    }

    fn refund_released(self, released: Option<Released>) {
        if let Some(Released { gpu, charged, exported }) = released {
            self.tables.ledger.withdraw_kept(gpu, exported);
            self.tables.ledger.refund(gpu, Column::Used, charged);
        }
    }
}

#[cfg(test)]
mod tests;
