//! The pools of a process: what is booked for each, what it was last seen to hold, which calls are under way.
//!
//! Nothing in here calls the driver or the ledger; what has to be refunded or is lacking comes back as a [`Balance`].
//!
//! *Invariant*, whenever the lock is free: what calls under way were charged in advance is part of what is booked, and what is
//! booked covers the newest reading, or the lack was handed to a thread that is charging it.

mod retention;

use cgpu_shm::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

pub(crate) use self::retention::{CallOutcome, PendingCall, Retention};
use cgpu_shm::spin::Spin;

use super::driver::PoolDriver;
use super::growth::Growth;
use crate::allocations::table::Exhausted;
use crate::handles::PoolId;
use crate::ordered::Ordered;

/// A pool that is charged: which, and how it is reached. Another one may have its handle later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolRef {
    pub(crate) id: PoolId,
    pub(crate) gpu: Gpu,
    pub(crate) driver: &'static dyn PoolDriver,
    number: u64,
}

/// What a handle is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// A pool that is charged.
    Charged(PoolRef),
    /// A pool whose memory is not counted here.
    Elsewhere,
    /// The program has destroyed it.
    Outlives,
    /// It is being destroyed at this moment.
    Leaving,
    /// Never seen.
    Unknown,
}

/// What a call was charged in advance, and for how much of the program's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reservation {
    pub(super) charged: Bytes,
    pub(super) size: Bytes,
    /// What the pool has for the call already, by an earlier one: not charged again, but not given back either while the call is
    /// under way.
    pub(super) kept: Bytes,
}

impl Reservation {
    pub(super) fn charged(charged: Bytes, size: Bytes) -> Self {
        Self { charged, size, kept: Bytes::ZERO }
    }
}

/// A look at what a pool holds, in the order in which looks begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket(u64);

/// What is to be done on the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Balance {
    /// To be given back.
    pub(super) surplus: Bytes,
    /// To be charged: the pool holds so much more than is booked for it.
    pub(super) shortfall: Bytes,
    /// It has grown by what could not be charged.
    pub(super) unpaid: bool,
    /// Others may hold some of it.
    pub(super) exported: bool,
}

/// What a pool had that is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    pub(super) gpu: Gpu,
    pub(super) charged: Bytes,
    pub(super) exported: Bytes,
}

/// Whether a pool is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// Destroyed, as the program sees it.
    Outlives,
    /// The driver is asked to destroy it: its handle must not be used any more.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Pool {
    at: PoolRef,
    stage: Stage,
    /// What is on the ledger for it.
    charged: Bytes,
    /// Of that: of calls under way.
    pending: Bytes,
    /// Of what is held: what calls under way count on.
    kept: Bytes,
    /// The newest reading of what it holds, and that one's ticket.
    read: Bytes,
    newest: u64,
    tickets: u64,
    /// Calls of the program under way, and how many there have been.
    calls: u32,
    started: u64,
    /// Calls of ours with its handle under way.
    readings: u32,
    unpaid: bool,
    /// What of it is entered as exported; none: it is this process's alone.
    exported: Option<Bytes>,
    /// What descriptors of pieces of it may hold when it does not any more: nobody sees their end.
    handed: Bytes,
    growth: Growth,
    /// Raised when the pool may have less, or may have passed on what an earlier call was given.
    retention: u64,
}

impl Pool {
    fn begin_reading(&mut self) -> Ticket {
        self.readings = self.readings.saturating_add(1);
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn start(&mut self, reservation: Reservation) {
        self.started += 1;
        self.calls += 1;
        self.pending = self.pending + reservation.charged;
        self.kept = self.kept + reservation.kept;
        self.charged = self.charged + reservation.charged;
    }

    fn record(&mut self, ticket: Ticket, reading: Option<Bytes>, reservation: Option<Reservation>) {
        self.readings = self.readings.saturating_sub(1);
        let charged = reservation.map_or(Bytes::ZERO, |reservation| reservation.charged);
        match reading {
            Some(reading) if ticket.0 > self.newest => {
                if let Some(reservation) = reservation
                    && self.calls == 1
                    && reading > self.read
                {
                    self.growth.learn(reservation.size, reading - self.read);
                }
                if reading < self.read {
                    self.retention += 1;
                }
                self.newest = ticket.0;
                self.read = reading;
            }
            Some(_) => {}
            // What cannot be seen is taken to have grown as was thought.
            None => self.read = self.read + charged,
        }
        if let Some(reservation) = reservation {
            self.calls = self.calls.saturating_sub(1);
            self.pending = self.pending - charged;
            self.kept = self.kept - reservation.kept;
        }
    }

    /// Brings what is booked down to what can be needed, and says what is lacking.
    fn balance(&mut self) -> Balance {
        let most = self.read + self.pending + self.kept;
        let surplus = self.charged - self.charged.min(most);
        self.charged = self.charged - surplus;
        let shortfall = self.read - self.read.min(self.charged);
        Balance { surplus, shortfall, unpaid: self.unpaid, exported: self.exported.is_some() }
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct PoolTable {
    /// How many are charged, or were lately: none in most programs, and then nobody looks further.
    charged: AtomicUsize,
    /// The pointers that were given out, as bits.
    pointers: AtomicU64,
    table: Spin<Table>,
}

#[derive(Debug)]
struct Table {
    /// By handle. None: not counted here.
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

    /// Whether any pool is charged.
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

    /// Takes a pool in that the driver has just made, on `gpu` if it is charged; what stood under its handle is gone. Returns what
    /// that had.
    pub(super) fn made(
        &self,
        id: PoolId,
        gpu: Option<Gpu>,
        driver: &'static dyn PoolDriver,
    ) -> Result<Option<Released>, Exhausted> {
        let former = self.enter(&mut self.table.lock(), id, gpu, driver)?;
        Ok(former.map(|pool| self.released(pool)))
    }

    /// Takes a pool in that has been there for long, unless it is known.
    pub(super) fn seen(
        &self,
        id: PoolId,
        gpu: Option<Gpu>,
        driver: &'static dyn PoolDriver,
    ) -> Result<(), Exhausted> {
        let mut table = self.table.lock();
        if table.pools.get(key(id)).is_none() {
            self.enter(&mut table, id, gpu, driver)?;
        }
        Ok(())
    }

    fn enter(
        &self,
        table: &mut Table,
        id: PoolId,
        gpu: Option<Gpu>,
        driver: &'static dyn PoolDriver,
    ) -> Result<Option<Pool>, Exhausted> {
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
            handed: Bytes::ZERO,
            growth: Growth::NEW,
            retention: 0,
        });
        let former = table.pools.insert(key(id), pool)?;
        if pool.is_some() {
            self.charged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(former.flatten())
    }

    /// What a pool that is off the table had; calls under way give their own back.
    fn released(&self, pool: Pool) -> Released {
        self.charged.fetch_sub(1, Ordering::Relaxed);
        let exported = pool.exported.unwrap_or_default();
        Released { gpu: pool.at.gpu, charged: pool.charged - pool.pending, exported }
    }

    /// Other processes may allocate from it, or hold what came from it.
    pub(super) fn export(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.exported.get_or_insert(Bytes::ZERO);
        }
    }

    /// A descriptor of a piece was given out. It holds the chunks in which the piece lies, of what the pool has.
    pub(super) fn hand_out(&self, at: PoolRef, piece: Bytes) {
        if let Some(pool) = self.table.lock().get(at) {
            let chunks = pool.growth.likely(piece).unwrap_or(Bytes::MAX);
            let most = pool.charged.max(pool.handed);
            pool.handed = (pool.handed + chunks).min(most);
        }
    }

    /// The pool holds so much less: how much of that descriptors may hold.
    pub(super) fn held_by_descriptors(&self, at: PoolRef, less: Bytes) -> Bytes {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return Bytes::ZERO };
        let held = pool.handed.min(less);
        pool.handed = pool.handed - held;
        held
    }

    /// A pointer with this bit was given out.
    pub(super) fn point(&self, bit: u64) {
        self.pointers.fetch_or(bit, Ordering::Relaxed);
    }

    /// The bits of all pointers that were given out.
    pub(super) fn pointers(&self) -> u64 {
        self.pointers.load(Ordering::Relaxed)
    }

    /// How what is booked for an exported pool differs from what is entered as exported: to be entered more, less.
    pub(super) fn exported(&self, at: PoolRef) -> (Bytes, Bytes) {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return (Bytes::ZERO, Bytes::ZERO) };
        let Some(entered) = pool.exported else { return (Bytes::ZERO, Bytes::ZERO) };
        pool.exported = Some(pool.charged);
        (pool.charged - entered, entered - pool.charged)
    }

    /// A pool that is not charged is gone.
    pub(super) fn forget(&self, id: PoolId) {
        let mut table = self.table.lock();
        if let Some(None) = table.pools.get(key(id)) {
            table.pools.remove(key(id));
        }
    }

    /// What the pool is likely to grow by for `size`. None: no GPU has so much.
    pub(super) fn likely(&self, at: PoolRef, size: Bytes) -> Option<Bytes> {
        self.table.lock().get(at).map_or(Growth::NEW, |pool| pool.growth).likely(size)
    }

    /// A call that was charged goes to the driver. `false`: the pool is gone, or goes.
    pub(super) fn start(&self, at: PoolRef, reservation: Reservation) -> bool {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at).filter(|pool| pool.stage == Stage::Open) else { return false };
        pool.start(reservation);
        true
    }

    /// Begins a look at what a pool holds. None: it is gone, or goes.
    pub(super) fn begin_reading(&self, at: PoolRef) -> Option<Ticket> {
        let mut table = self.table.lock();
        table.get(at).filter(|pool| pool.stage != Stage::Leaving).map(Pool::begin_reading)
    }

    /// Ends a look at which nothing was seen.
    pub(super) fn end_reading(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.readings = pool.readings.saturating_sub(1);
        }
    }

    /// Ends a look: what was seen, and the call for which it was done, if for one.
    pub(super) fn record_reading(
        &self,
        at: PoolRef,
        ticket: Ticket,
        reading: Option<Bytes>,
        reservation: Option<Reservation>,
    ) -> Balance {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return gone(reservation) };
        pool.record(ticket, reading, reservation);
        pool.balance()
    }

    /// `bytes` are on the ledger for it, charged or else unpaid.
    pub(super) fn add(&self, at: PoolRef, bytes: Bytes, unpaid: bool) -> Balance {
        let mut table = self.table.lock();
        let Some(pool) = table.get(at) else { return Balance { surplus: bytes, ..Balance::default() } };
        pool.charged = pool.charged + bytes;
        pool.unpaid |= unpaid;
        pool.balance()
    }

    /// What is lacking now.
    pub(super) fn shortfall(&self, at: PoolRef) -> Bytes {
        self.table.lock().get(at).map_or(Bytes::ZERO, |pool| pool.read - pool.read.min(pool.charged))
    }

    /// What could not be charged has been seen to.
    pub(crate) fn paid(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.unpaid = false;
        }
    }

    /// The next charged pool after a handle, of a GPU if one is given; and whether it outlives its destruction.
    pub(super) fn after(&self, last: Option<PoolId>, gpu: Option<Gpu>) -> Option<(PoolRef, bool)> {
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

    /// The program has destroyed it, and it holds something.
    pub(super) fn outlive(&self, at: PoolRef) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.stage = Stage::Outlives;
        }
    }

    /// From here on nobody of us uses the handle. `false`: a call of the program does at this moment, or another thread was here first.
    pub(super) fn leave(&self, at: PoolRef) -> bool {
        let mut table = self.table.lock();
        let free = |pool: &&mut Pool| pool.stage != Stage::Leaving && pool.calls == 0;
        let Some(pool) = table.get(at).filter(free) else { return false };
        pool.stage = Stage::Leaving;
        true
    }

    /// Whether calls of ours with the handle are still under way.
    pub(super) fn is_being_read(&self, at: PoolRef) -> bool {
        self.table.lock().get(at).is_some_and(|pool| pool.readings != 0)
    }

    /// The driver did not destroy it.
    pub(super) fn stay(&self, at: PoolRef, outlives: bool) {
        if let Some(pool) = self.table.lock().get(at) {
            pool.stage = if outlives { Stage::Outlives } else { Stage::Open };
        }
    }

    /// The driver destroyed it; what it had.
    pub(super) fn gone(&self, at: PoolRef) -> Option<Released> {
        let mut table = self.table.lock();
        table.get(at)?;
        let pool = table.pools.remove(key(at.id))??;
        Some(self.released(pool))
    }

    /// Booked and under way, of all: for tests.
    #[cfg(test)]
    pub(crate) fn sums(&self) -> (Bytes, Bytes) {
        let (mut charged, mut pending, mut from) = (Bytes::ZERO, Bytes::ZERO, 0);
        let table = self.table.lock();
        while let Some((key, pool)) = table.pools.from(from) {
            if let Some(pool) = pool {
                assert!(
                    pool.charged >= pool.pending && pool.charged <= pool.read + pool.pending + pool.kept,
                    "{pool:?}"
                );
                (charged, pending) = (charged + pool.charged, pending + pool.pending);
            }
            from = key + 1;
        }
        (charged, pending)
    }
}

/// The pool went while a call for it was under way.
fn gone(reservation: Option<Reservation>) -> Balance {
    Balance {
        surplus: reservation.map_or(Bytes::ZERO, |reservation| reservation.charged),
        ..Balance::default()
    }
}
