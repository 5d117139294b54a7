//! Allocating from a pool: at once, or after room was made.

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

use super::growth::least;
use super::table::{Lookup, PoolRef, Reservation};
use super::{PoolError, Pools};
use crate::handles::PoolId;
use crate::ledger::{Denied, WaitBudget};

impl Pools<'_> {
    /// Allocates `size` bytes of a pool: charges, makes the `call`, looks at what the pool holds
    /// then. `undo` frees what the call has allocated, in the same stream; `is_busy` says whether
    /// the stream still has something to do.
    ///
    /// # Errors
    /// [`PoolError`]. What the pool holds is then within the limit again; where the stream does not
    /// come to the free within a second, what remains is shown and blocks new allocations.
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
        let Some(charged) = self.tables.pools.likely(at, size) else {
            return Err(PoolError::Denied(self.tables.ledger.too_large(at.gpu, size)));
        };
        match self.tables.ledger.try_charge(at.gpu, Column::Used, charged) {
            Ok(()) => {
                match self.try_allocate(at, Reservation::charged(charged, size), &call, &undo) {
                    Err(PoolError::Denied(_)) => self.allocate_waiting(
                        at,
                        Reservation::charged(charged, size),
                        &call,
                        &undo,
                        &is_busy,
                    ),
                    other => other,
                }
            }
            Err(_) => self.allocate_after_reading(
                at,
                Reservation::charged(charged, size),
                &call,
                &undo,
                &is_busy,
            ),
        }
    }

    /// The way of an allocation whose pre-charge does not fit.
    #[cold]
    #[inline(never)]
    fn allocate_after_reading<E>(
        self,
        at: PoolRef,
        likely: Reservation,
        call: &impl Fn() -> Result<(), E>,
        undo: &impl Fn(),
        is_busy: &impl Fn() -> bool,
    ) -> Result<(), PoolError<E>> {
        self.each_pool(Some(at.gpu), false);
        let now = if self.tables.ledger.try_charge(at.gpu, Column::Used, likely.charged).is_ok() {
            Some(likely)
        } else {
            // It may do with what it holds; if that is in too many pieces, or of other streams, it
            // grows.
            self.may_hold(at, likely.size).then_some(Reservation::charged(Bytes::ZERO, likely.size))
        };
        match now.map(|reservation| self.try_allocate(at, reservation, call, undo)) {
            None | Some(Err(PoolError::Denied(_))) => {
                self.allocate_waiting(at, likely, call, undo, is_busy)
            }
            Some(other) => other,
        }
    }

    /// The way of an allocation for which pools must be trimmed, and streams or exited processes be
    /// waited for.
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
            // What was freed in the stream can be had when the stream has come to that; asked
            // before the trim that is to see it.
            let is_idle = !is_busy();
            self.each_pool(Some(at.gpu), true);
            let mut wait = || !is_idle && self.tables.ledger.sleep_backoff(&mut budget);
            // Where only exited processes are in the way of a chunk they are waited for: under a
            // lesser charge the pool would grow by one all the same.
            let reservation = if self
                .tables
                .ledger
                .charge_waiting(at.gpu, Column::Used, likely.charged)
                .is_ok()
            {
                likely
            } else if self.tables.ledger.try_charge(at.gpu, Column::Used, exact.charged).is_ok() {
                exact
            } else if wait() {
                continue;
            } else {
                let denied = self.tables.ledger.charge(
                    at.gpu,
                    Column::Used,
                    exact.charged,
                    Reason::OverLimit,
                );
                denied.map_err(PoolError::Denied)?;
                exact
            };
            match self.try_allocate(at, reservation, call, undo) {
                // It grew by more than there was room for. There may be some in a moment.
                Err(PoolError::Denied(_)) if wait() => {}
                other => return other,
            }
        }
    }

    /// Whether a pool has `size` bytes that are not in use.
    fn may_hold(self, at: PoolRef, size: Bytes) -> bool {
        let Some(ticket) = self.tables.pools.begin_reading(at) else { return false };
        let (reserved, used) = (at.driver.reserved(at.id), at.driver.used(at.id));
        self.apply(at, self.tables.pools.record_reading(at, ticket, reserved, None));
        reserved.zip(used).is_some_and(|(reserved, used)| reserved >= used + size)
    }

    /// Makes the call under a charge that is on the ledger, and looks at what came of it.
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

    /// Gets rid of an excess whose cause was freed in its stream just now: when the stream has come
    /// to that, a trim gives it back.
    #[cold]
    pub(crate) fn evict_excess(self, at: PoolRef, size: Bytes) -> Denied {
        let (reason, limit) = (Reason::PoolGrew, self.tables.ledger.limit(at.gpu));
        self.tables.ledger.count(reason);
        let denied = Denied { reason, wanted: size, used: self.tables.ledger.total(at.gpu), limit };
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
