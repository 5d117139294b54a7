//! The pools of a process: what is charged for each, its newest reading, and the calls in progress.
//!
//! Nothing in here calls the driver or the ledger; what must be refunded or charged is returned as
//! a [`Balance`].
//!
//! *Invariant* while the lock is free: the pre-charges of calls in progress are part of what is
//! charged. What is charged covers the newest reading, or a thread is charging the shortfall.

mod pool;
mod retention;

use cgpu_shm::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_shm::units::{Bytes, DeviceIndex};

pub(super) use self::pool::{Balance, Released, Ticket};
use self::pool::{Pool, Stage};
pub(crate) use self::pool::{PoolRef, Reservation};
pub(crate) use self::retention::{CallOutcome, PendingCall, Retention};
use cgpu_shm::spin::Spin;

use super::driver::PoolDriver;
use super::growth::Growth;
use crate::allocations::table::Exhausted;
use crate::handles::PoolId;
use crate::ordered::Ordered;

/// What a handle is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// A pool that is charged.
    Charged(PoolRef),
    /// A pool whose memory is not charged here.
    Elsewhere,
    /// The program has destroyed it.
    Outlives,
    /// The driver is destroying it.
    Leaving,
    Unknown,
}

#[derive(Debug)]
pub(crate) struct PoolTable {
    /// Number of charged pools: zero in most programs, and nothing is looked up.
    charged: AtomicUsize,
    /// Routes of the exported pointers.
    pointers: AtomicU64,
    table: Spin<Table>,
}

#[derive(Debug)]
struct Table {
    /// By handle. `None`: not charged here.
    pools: Ordered<Option<Pool>>,
    made: u64,
}

impl Table {
    fn get(&mut self, at: PoolRef) -> Option<&mut Pool> {
        let pool = self.pools.get(key(at.id))?.as_mut()?;
        (pool.at.number == at.number).then_some(pool)
    }
}

fn key(id: PoolId) -> u64 {
    id.0 as u64
}

impl PoolTable {
    pub(crate) fn new() -> Self {
        Self {
            charged: AtomicUsize::new(0),
            pointers: AtomicU64::new(0),
            table: Spin::new(Table { pools: Ordered::new(), made: 0 }),
        }
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.charged.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn find(&self, id: PoolId) -> Lookup {
        match self.table.lock().pools.get(key(id)) {
            None => Lookup::Unknown,
            Some(None) => Lookup::Elsewhere,
            Some(Some(pool)) => match pool.stage {
                Stage::Open => Lookup::Charged(pool.at),
                Stage::Outlives => Lookup::Outlives,
                Stage::Leaving => Lookup::Leaving,
            },
        }
    }

    /// Records a pool, charged if it has a `gpu`. Returns what the former one with its handle had;
    /// if not `replaces`, that stays instead.
    pub(super) fn enter(
        &self,
        id: PoolId,
        gpu: Option<DeviceIndex>,
        driver: &'static dyn PoolDriver,
        replaces: bool,
    ) -> Result<Option<Released>, Exhausted> {
        let mut table = self.table.lock();
        if !replaces && table.pools.get(key(id)).is_some() {
            return Ok(None);
        }
        table.made += 1;
        let number = table.made;
        let pool = gpu.map(|gpu| Pool {
            at: PoolRef { id, gpu, driver, number },
            stage: Stage::Open,
            charged: Bytes::ZERO,
            pending: Bytes::ZERO,
            kept: Bytes::ZERO,
            read: Bytes::ZERO,
            newest: 0,
            tickets: 0,
            calls: 0,
            started: 0,
            readings: 0,
            unpaid: false,
            exported: None,
            descriptor_bytes: Bytes::ZERO,
            growth: Growth::NEW,
            retention: 0,
        });
        let former = table.pools.insert(key(id), pool)?;
        if pool.is_some() {
            self.charged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(former.flatten().map(|pool| self.released(pool)))
    }

    /// Returns what a removed pool had, without the pre-charges of calls in progress, which refund
    /// their own.
    fn released(&self, pool: Pool) -> Released {
        self.charged.fetch_sub(1, Ordering::Relaxed);
        let exported = pool.exported.unwrap_or_default();
        Released { gpu: pool.at.gpu, charged: pool.charged - pool.pending, exported }
    }

    /// Marks a pool as exported: others may allocate from it, or hold memory of it.
    pub(super) fn export(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.exported.get_or_insert(Bytes::ZERO);
        }
    }

    /// Adds a descriptor of a piece. It holds the chunks that contain the piece.
    pub(super) fn export_descriptor(&self, at: PoolRef, piece: Bytes) {
        if let Some(pool) = self.table.lock().get(at) {
            let chunks = pool.growth.likely(piece).unwrap_or(Bytes::MAX);
            let most = pool.charged.max(pool.descriptor_bytes);
            pool.descriptor_bytes = (pool.descriptor_bytes + chunks).min(most);
        }
    }

    /// Returns how much of `less`, which the pool no longer holds, descriptors may hold.
    pub(super) fn held_by_descriptors(&self, at: PoolRef, less: Bytes) -> Bytes {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return Bytes::ZERO };
        let held = pool.descriptor_bytes.min(less);
        pool.descriptor_bytes = pool.descriptor_bytes - held;
        held
    }

    pub(super) fn point(&self, bit: u64) {
        self.pointers.fetch_or(bit, Ordering::Relaxed);
    }

    pub(super) fn pointers(&self) -> u64 {
        self.pointers.load(Ordering::Relaxed)
    }

    /// Returns by how much what is charged for an exported pool is above and below what is
    /// accounted as exported.
    pub(super) fn exported(&self, at: PoolRef) -> (Bytes, Bytes) {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return (Bytes::ZERO, Bytes::ZERO) };
        let Some(entered) = pool.exported else { return (Bytes::ZERO, Bytes::ZERO) };
        pool.exported = Some(pool.charged);
        (pool.charged - entered, entered - pool.charged)
    }

    pub(super) fn forget(&self, id: PoolId) {
        let mut table = self.table.lock();
        if let Some(None) = table.pools.get(key(id)) {
            table.pools.remove(key(id));
        }
    }

    /// Returns the estimated growth for `size`. `None` if no GPU has so much.
    pub(super) fn likely(&self, at: PoolRef, size: Bytes) -> Option<Bytes> {
        self.table.lock().get(at).map_or(Growth::NEW, |pool| pool.growth).likely(size)
    }

    /// Begins a call that was charged. Returns `false` if the pool is not open.
    pub(super) fn start(&self, at: PoolRef, reservation: Reservation) -> bool {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at).filter(|pool| pool.stage == Stage::Open) else {
            return false;
        };
        pool.start(reservation);
        true
    }

    /// Begins a reading. `None` if the pool is being destroyed or is gone.
    pub(super) fn begin_reading(&self, at: PoolRef) -> Option<Ticket> {
        let mut table = self.table.lock();
        table.get(at).filter(|pool| pool.stage != Stage::Leaving).map(Pool::begin_reading)
    }

    /// Ends a reading without a result.
    pub(super) fn end_reading(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.readings = pool.readings.saturating_sub(1);
        }
    }

    /// Ends a reading, and the call that it belongs to, if any.
    pub(super) fn record_reading(
        &self,
        at: PoolRef,
        ticket: Ticket,
        reading: Option<Bytes>,
        reservation: Option<Reservation>,
    ) -> Balance {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return refund_all(reservation) };
        pool.record(ticket, reading, reservation);
        pool.balance()
    }

    /// Adds `bytes` that are on the ledger for the pool; `unpaid` says that they exceed the limit.
    pub(super) fn add(&self, at: PoolRef, bytes: Bytes, unpaid: bool) -> Balance {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else {
            return Balance { surplus: bytes, ..Balance::default() };
        };
        pool.charged = pool.charged + bytes;
        pool.unpaid |= unpaid;
        pool.balance()
    }

    /// Returns the shortfall now.
    pub(super) fn shortfall(&self, at: PoolRef) -> Bytes {
        self.table
            .lock()
            .get(at)
            .map_or(Bytes::ZERO, |pool| pool.read - pool.read.min(pool.charged))
    }

    /// Notes that a charge above the limit has been dealt with.
    pub(crate) fn paid(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.unpaid = false;
        }
    }

    /// Returns the next charged pool after a handle, of one GPU if given, and whether it outlives
    /// its destruction.
    pub(super) fn after(
        &self,
        last: Option<PoolId>,
        gpu: Option<DeviceIndex>,
    ) -> Option<(PoolRef, bool)> {
        let mut from = match last {
            Some(last) => key(last).checked_add(1)?,
            None => 0,
        };
        let table = self.table.lock();
        loop {
            let (at, pool) = table.pools.from(from)?;
            if let Some(pool) = pool
                && gpu.is_none_or(|gpu| pool.at.gpu == gpu)
            {
                return Some((pool.at, pool.stage == Stage::Outlives));
            }
            from = at.checked_add(1)?;
        }
    }

    /// Notes that the program has destroyed a pool that holds memory.
    pub(super) fn outlive(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.stage = Stage::Outlives;
        }
    }

    /// Bars the handle. Returns `false` during a call of the program, or if another thread has
    /// barred it.
    pub(super) fn leave(&self, at: PoolRef) -> bool {
        let mut table = self.table.lock();
        let free = |pool: &&mut Pool| pool.stage != Stage::Leaving && pool.calls == 0;
        let Some(pool) = table.get(at).filter(free) else { return false };
        pool.stage = Stage::Leaving;
        true
    }

    pub(super) fn is_being_read(&self, at: PoolRef) -> bool {
        self.table.lock().get(at).is_some_and(|pool| pool.readings != 0)
    }

    pub(super) fn stay(&self, at: PoolRef, outlives: bool) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.stage = if outlives { Stage::Outlives } else { Stage::Open };
        }
    }

    pub(super) fn destroyed(&self, at: PoolRef) -> Option<Released> {
        let mut table = self.table.lock();
        table.get(at)?;
        let pool = table.pools.remove(key(at.id))??;
        Some(self.released(pool))
    }

    /// Returns what is charged and what is pending for all pools.
    #[cfg(test)]
    pub(crate) fn sums(&self) -> (Bytes, Bytes) {
        let (mut charged, mut pending, mut from) = (Bytes::ZERO, Bytes::ZERO, 0);
        let table = self.table.lock();
        while let Some((key, pool)) = table.pools.from(from) {
            if let Some(pool) = pool {
                assert!(
                    pool.charged >= pool.pending
                        && pool.charged <= pool.read + pool.pending + pool.kept,
                    "{pool:?}"
                );
                (charged, pending) = (charged + pool.charged, pending + pool.pending);
            }
            from = key + 1;
        }
        (charged, pending)
    }
}

/// Returns the balance of a call whose pool was removed meanwhile.
fn refund_all(reservation: Option<Reservation>) -> Balance {
    Balance {
        surplus: reservation.map_or(Bytes::ZERO, |reservation| reservation.charged),
        ..Balance::default()
    }
}
