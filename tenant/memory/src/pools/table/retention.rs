//! Whether a pool still has the memory of an earlier call.
//!
//! A graph's launch reuses the memory of the launch before it, if the pool still has it: nothing is
//! charged then. The pool begins a new *retention period* whenever it may not: when a reading shows
//! less than the former one, and when a call may have been given another one's memory. That is so
//! if the pool grew by less than the call can need, or if other calls ran meanwhile, so that it
//! cannot be told.
//!
//! A call in progress when that happens loses nothing: the memory that it relies on (*kept*) is not
//! refunded before it has ended. The pool still has it for the call, or the call takes again what a
//! trim has freed, or what another call was charged for and took.

use cgpu_shm::units::Bytes;

use super::PoolTable;
use super::pool::{Pool, PoolRef, Reservation, Stage};

/// A period during which the pool keeps what it has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention(u64);

/// A call in progress that may find the memory of an earlier one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCall {
    pub(crate) at: PoolRef,
    pub(crate) reservation: Reservation,
    /// At its begin: the retention period, the reading, the number of calls, and whether no other
    /// call was in progress.
    retention: u64,
    read: Bytes,
    started: u64,
    alone: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CallOutcome {
    /// While this period lasts, the pool keeps what the call was given.
    pub(crate) retention: Retention,
    /// Whether the call was given all that it needs, whatever kind it was: it had it before, or the
    /// pool was read to grow by it.
    pub(crate) seen: bool,
}

impl Pool {
    fn begin_call(&mut self, reservation: Reservation) -> PendingCall {
        let alone = self.calls == 0;
        self.start(reservation);
        PendingCall {
            at: self.at,
            reservation,
            retention: self.retention,
            read: self.read,
            started: self.started,
            alone,
        }
    }
}

impl PoolTable {
    /// Begins a call that may need `size` more and was charged `charged`. `None` if the pool is not
    /// open.
    pub(crate) fn begin_call(
        &self,
        at: PoolRef,
        size: Bytes,
        charged: Bytes,
    ) -> Option<PendingCall> {
        let mut table = self.table.lock();
        let pool = table.get(at).filter(|pool| pool.stage == Stage::Open)?;
        Some(pool.begin_call(Reservation::charged(charged, size)))
    }

    /// Begins a call that was given `size` in an earlier retention period. `None` if the pool may
    /// no longer have it: charge the call.
    pub(crate) fn begin_retained_call(
        &self,
        at: PoolRef,
        size: Bytes,
        retention: Retention,
    ) -> Option<PendingCall> {
        let mut table = self.table.lock();
        let same = |pool: &&mut Pool| pool.stage == Stage::Open && pool.retention == retention.0;
        let pool = table.get(at).filter(same)?;
        Some(pool.begin_call(Reservation { charged: Bytes::ZERO, size, kept: size }))
    }

    /// Ends a call, after its reading ([`crate::pools::Pools::call_ended`]). `None` if its memory
    /// may be another call's by now.
    pub(crate) fn end_call(&self, pending_call: &PendingCall) -> Option<CallOutcome> {
        let PendingCall { at, reservation, .. } = *pending_call;
        let mut table = self.table.lock();
        let pool = table.get(at)?;
        let stays = pool.retention == pending_call.retention;
        if reservation.kept > Bytes::ZERO {
            return stays
                .then_some(CallOutcome { retention: Retention(pool.retention), seen: true });
        }
        let alone = pending_call.alone && pool.started == pending_call.started;
        let seen = alone && pool.read >= pending_call.read + reservation.size;
        if !seen {
            pool.retention += 1;
        }
        (alone && stays).then_some(CallOutcome { retention: Retention(pool.retention), seen })
    }
}
