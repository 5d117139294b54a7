//! Whether a pool still has what it once gave.
//!
//! A graph's launch takes what the launch before it took, if that is still there: then nothing is
//! charged for it. The pool raises its *retention period* whenever it might not be: when a reading
//! shows less than the one before, and when a call may have been given what others had, because the
//! pool grew by less than that call can need, or because calls ran beside it and it cannot be told.
//!
//! Who counts on the pool while that happens loses nothing: what a call under way is *kept* is not
//! refunded before it has landed. Either it still has it, or it takes again what a
//! trim has just freed, or what another call has been charged for and then taken from it.

use cgpu_shm::units::Bytes;

use super::PoolTable;
use super::pool::{Pool, PoolRef, Reservation, Stage};

/// A time during which the pool keeps what it has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention(u64);

/// A call under way that may find what an earlier one left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingCall {
    pub(crate) at: PoolRef,
    pub(crate) reservation: Reservation,
    /// When it began: the retention period, what the pool held, which call this is, and whether
    /// there was no other.
    retention: u64,
    read: Bytes,
    started: u64,
    alone: bool,
}

/// What a call that has landed leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallOutcome {
    /// While this lasts the pool keeps what the call was given.
    pub(crate) retention: Retention,
    /// Whether it was given all that it needs, whatever kind of call it was: it had it before, or
    /// the pool was seen to grow by it.
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
    /// A call that may need `size` more was charged `charged`, and goes to the driver. None: the
    /// pool is gone.
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

    /// The same for a call that was given `size` in an earlier retention period. None: it may not
    /// be there any more, charge it.
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

    /// The call has landed ([`crate::pools::Pools::call_ended`]): whether the pool has what it
    /// needs. None: others may have that by now.
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
