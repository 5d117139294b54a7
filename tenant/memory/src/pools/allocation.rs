//! Allocation from a pool: at once, or after room was made.

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

use super::growth::least;
use super::table::{Lookup, PoolRef, Reservation};
use super::{PoolError, Pools};
use crate::handles::PoolId;
use crate::ledger::{Denied, WaitBudget};

impl Pools<'_> {
    /// Allocates `size` bytes of a pool: charges, makes the `call`, and reads what the pool holds
    /// then. `undo` frees what the call has allocated, in the same stream; `is_busy` says whether
    /// the stream has unfinished work.
    ///
    /// # Errors
    /// [`PoolError`]. What the pool holds is within the limit again. If the stream does not execute
    /// the free within a second, the rest stays charged above the limit and blocks new allocations.
    pub fn allocate<E>(
        self,
        id: PoolId,
        size: Bytes,
        call: impl Fn() -> Result<(), E>,
        undo: impl Fn(),
        is_busy: impl Fn() -> bool,
    ) -> Result<(), PoolError<E>> {
        let at = match self.tables.pools.find(id) {
            Lookup::Charged(at) => at,
            Lookup::Elsewhere => return call().map_err(PoolError::Driver),
            Lookup::Unknown => return Err(PoolError::Unknown),
            Lookup::Outlives => return Err(PoolError::Destroyed),
            Lookup::Leaving => {
                self.tables.ledger.sleep_briefly();
                return Err(PoolError::Unknown);
            }
        };
        let _call = self.tables.ledger.call();
        let Some(charged) = self.tables.pools.likely(at, size) else {
            return Err(PoolError::Denied(self.tables.ledger.deny(at.gpu, Reason::TooLarge, size)));
        };
        let likely = Reservation::charged(charged, size);
        let reservation = match self.tables.ledger.try_charge(at.gpu, Column::Used, charged) {
            Ok(()) => likely,
            Err(_) => match self.reserve_after_reading(at, likely) {
                Some(reservation) => reservation,
                None => return self.allocate_waiting(at, likely, &call, &undo, &is_busy),
            },
        };
        match self.try_allocate(at, reservation, &call, &undo) {
            Err(PoolError::Denied(_)) => self.allocate_waiting(at, likely, &call, &undo, &is_busy),
            other => other,
        }
    }

    /// Charges after reading all pools again, or nothing if the pool may have enough unused bytes.
    #[cold]
    #[inline(never)]
    fn reserve_after_reading(self, at: PoolRef, likely: Reservation) -> Option<Reservation> {
        self.each_pool(Some(at.gpu), false);
        if self.tables.ledger.try_charge(at.gpu, Column::Used, likely.charged).is_ok() {
            return Some(likely);
        }
        // If what it holds is fragmented, or of other streams, the pool grows all the same.
        let (reserved, used) = self.read_use(at)?;
        let suffices = reserved? >= used? + likely.size;
        suffices.then_some(Reservation::charged(Bytes::ZERO, likely.size))
    }

    /// Allocates after trimming pools, and waiting for streams or exited processes.
    #[cold]
    #[inline(never)]
    fn allocate_waiting<E>(
        self,
        at: PoolRef,
        likely: Reservation,
        call: &impl Fn() -> Result<(), E>,
        undo: &impl Fn(),
        is_busy: &impl Fn() -> bool,
    ) -> Result<(), PoolError<E>> {
        let exact = Reservation::charged(least(likely.size), likely.size);
        let mut budget = WaitBudget::default();
        loop {
            // Before the trim, which frees what the stream has finished with.
            let is_idle = !is_busy();
            self.each_pool(Some(at.gpu), true);
            let mut wait = || !is_idle && self.tables.ledger.sleep_backoff(&mut budget);
            // Waits for exited processes if only they leave no room for a chunk: under a smaller
            // charge the pool would grow by a chunk all the same.
            let (ledger, column) = (&self.tables.ledger, Column::Used);
            let reservation = if ledger.charge_waiting(at.gpu, column, likely.charged).is_ok() {
                likely
            } else if ledger.try_charge(at.gpu, column, exact.charged).is_ok() {
                exact
            } else if wait() {
                continue;
            } else {
                let charged = ledger.charge(at.gpu, column, exact.charged, Reason::OverLimit);
                charged.map_err(PoolError::Denied)?;
                exact
            };
            match self.try_allocate(at, reservation, call, undo) {
                // It grew by more than fits. There may be room later.
                Err(PoolError::Denied(_)) if wait() => {}
                other => return other,
            }
        }
    }

    /// Makes the call under a charge, and reads what the pool holds then.
    fn try_allocate<E>(
        self,
        at: PoolRef,
        reservation: Reservation,
        call: &impl Fn() -> Result<(), E>,
        undo: &impl Fn(),
    ) -> Result<(), PoolError<E>> {
        if !self.tables.pools.start(at, reservation) {
            self.tables.ledger.refund(at.gpu, Column::Used, reservation.charged);
            return Err(PoolError::Unknown);
        }
        let answer = call();
        let within = self.call_ended(at, reservation);
        match answer {
            Ok(()) if within => Ok(()),
            Ok(()) => {
                undo();
                Err(PoolError::Denied(self.evict_excess(at, reservation.size)))
            }
            Err(answer) => Err(PoolError::Driver(answer)),
        }
    }

    /// Trims until an excess, whose cause has been freed in its stream, has left the GPU.
    #[cold]
    pub(crate) fn evict_excess(self, at: PoolRef, size: Bytes) -> Denied {
        let denied = self.tables.ledger.deny(at.gpu, Reason::PoolGrew, size);
        let mut budget = WaitBudget::default();
        loop {
            self.each_pool(Some(at.gpu), true);
            let over = self.tables.ledger.total(at.gpu) > self.tables.ledger.limit(at.gpu);
            if !over || !self.tables.ledger.sleep_backoff(&mut budget) {
                self.tables.pools.paid(at);
                return denied;
            }
        }
    }
}
