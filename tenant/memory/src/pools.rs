//! Memory pools: charged by what they hold of the GPU, not by what was allocated from them.
//!
//! ```text
//!   pre-charge ---> the driver allocates ---> ticket, reading ---> settled: booked = reading + pre-charges of others
//!       |                                          |
//!       +-- does not fit: read again, trim,        +-- grown past that and the limit: freed, trimmed, denied
//!           less, wait for exited processes
//! ```
//!
//! A pool takes memory of the GPU at its own will and keeps what is freed, so that its pointers say
//! nothing about the GPU: they are not in the table of addresses. What it holds can be asked of the
//! driver ([`PoolDriver`]); a reading may be out of date before it is written down, so each carries
//! a ticket that was taken before it began. `docs/internals/memory.md` tells why nothing falls between.
//!
//! **A handle is never used after its pool may be gone.** Looks are counted, and who has the driver
//! destroy a pool first bars new ones and waits for those under way. A pool that is destroyed while
//! it holds something is kept, and ended by the thread that later sees that it is empty.

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
use crate::tables::Tables;

/// Why an allocation from a pool was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolError<E> {
    /// The driver's answer.
    Driver(E),
    /// It would have gone over the limit, or did and went back.
    Denied(Denied),
    /// The pool is not known: see [`Pools::adopt`], then try again.
    Unknown,
    /// The program has destroyed the pool.
    Destroyed,
}

/// What is to be done about a pool that the program destroys.
#[derive(Debug)]
pub enum PoolDestroy<'a> {
    /// The driver is to destroy it; it is not charged.
    Uncharged,
    /// The driver is to destroy it; it holds nothing.
    Empty(PendingPoolDestroy<'a>),
    /// It holds something: it is kept, and ended when it does not. The driver is not to be asked.
    Outlives,
    /// It was destroyed before.
    Destroyed,
}

/// An empty pool whose destruction the driver is being asked for. Dropped without
/// [`PendingPoolDestroy::destroyed`]: it stays.
#[derive(Debug)]
#[must_use = "an ended pool that is dropped stays"]
pub struct PendingPoolDestroy<'a> {
    tables: &'a Tables,
    at: PoolRef,
    outlives: bool,
}

impl PendingPoolDestroy<'_> {
    /// The driver destroyed it.
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

/// The pools of this process.
#[derive(Clone, Copy, Debug)]
pub struct Pools<'a> {
    tables: &'a Tables,
}

impl<'a> Pools<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// The driver has made a pool of `gpu`'s memory; none: its memory is not counted here, because
    /// it is the host's, another process's or of a GPU that is not sliced.
    pub fn made(self, id: PoolId, gpu: Option<DeviceIndex>, driver: &'static dyn PoolDriver) {
        match self.tables.pools.made(id, gpu, driver) {
            Ok(former) => self.refund_released(former),
            // It will be taken up with its first allocation, or that be refused.
            Err(_) => self.tables.ledger.count(Reason::Unrecorded),
        }
    }

    /// As [`Pools::made`], for a pool that may be known. `false`: no host memory for it, refuse.
    pub fn adopt(
        self,
        id: PoolId,
        gpu: Option<DeviceIndex>,
        driver: &'static dyn PoolDriver,
    ) -> bool {
        let seen = self.tables.pools.seen(id, gpu, driver);
        if seen.is_err() {
            self.tables.ledger.count(Reason::Unrecorded);
        }
        seen.is_ok()
    }

    /// What a pool holds may have changed: reads it again.
    pub fn changed(self, id: PoolId) {
        if self.tables.pools.any()
            && let Lookup::Charged(at) = self.tables.pools.find(id)
        {
            self.read_pool(at, false);
        }
    }

    /// What pools hold may have changed, of all GPUs or of one: reads them again, and ends those
    /// that were waiting for that.
    #[inline]
    pub fn all_changed(self, gpu: Option<DeviceIndex>) {
        if self.tables.pools.any() {
            self.each_pool(gpu, false);
        }
    }

    /// The GPU that pays for a pool.
    #[must_use]
    pub fn gpu(self, id: PoolId) -> Option<DeviceIndex> {
        match self.tables.pools.find(id) {
            Lookup::Charged(at) => Some(at.gpu),
            _ => None,
        }
    }

    /// Whether this process has pools accounted.
    #[inline]
    #[must_use]
    pub fn any(self) -> bool {
        self.tables.pools.any()
    }

    /// The program destroys a pool; not a default one, which the driver refuses to destroy.
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

    /// What pools hold beyond their use is given back, so that a charge on `gpu` may fit.
    #[cold]
    pub(crate) fn trim_for(self, gpu: DeviceIndex) {
        Exports::new(self.tables).refund_unheld();
        if self.tables.pools.any() {
            self.each_pool(Some(gpu), true);
        }
    }

    /// Looks at what came of a call. `false`: the pool has grown by what does not fit.
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

    /// Does on the ledger what a look has shown. `false`: the pool has grown by what does not fit.
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
        // A reading may be older than its ticket says, if what it saw has gone meanwhile: a lack is
        // believed when seen twice.
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
                // Another thread may have charged it meanwhile, or a later look shown less.
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

    /// Reads what a pool holds, after a trim if that is wanted.
    fn read_pool(self, at: PoolRef, trim: bool) -> Option<Bytes> {
        if trim {
            self.tables.pools.begin_reading(at)?;
            at.driver.trim(at.id);
            self.tables.pools.end_reading(at);
        }
        // Begun after the trim: what others read meanwhile may be from before.
        let ticket = self.tables.pools.begin_reading(at)?;
        let reading = at.driver.reserved(at.id);
        self.apply(at, self.tables.pools.record_reading(at, ticket, reading, None));
        reading
    }

    /// Bars a pool that holds nothing, so that the driver can be asked to destroy it.
    fn end_if_empty(self, at: PoolRef, outlives: bool) -> Option<PendingPoolDestroy<'a>> {
        self.read_pool(at, true);
        let ticket = self.tables.pools.begin_reading(at)?;
        let (reserved, used) = (at.driver.reserved(at.id), at.driver.used(at.id));
        self.apply(at, self.tables.pools.record_reading(at, ticket, reserved, None));
        // Where the driver does not say, nothing could be waited for.
        let empty =
            reserved.unwrap_or_default() == Bytes::ZERO && used.unwrap_or_default() == Bytes::ZERO;
        if !empty || !self.tables.pools.leave(at) {
            return None;
        }
        // Calls of the driver that only read or trim: they end.
        while self.tables.pools.is_being_read(at) {
            self.tables.ledger.sleep_briefly();
        }
        Some(PendingPoolDestroy { tables: self.tables, at, outlives })
    }

    fn refund_released(self, released: Option<Released>) {
        if let Some(Released { gpu, charged, exported }) = released {
            self.tables.ledger.exported().withdraw_kept(gpu, exported);
            self.tables.ledger.refund(gpu, Column::Used, charged);
        }
    }
}

#[cfg(test)]
mod tests;
