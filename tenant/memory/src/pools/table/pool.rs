//! A pool: what is charged for it, its newest reading, and the calls in progress.

use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::handles::PoolId;
use crate::pools::driver::PoolDriver;
use crate::pools::growth::Growth;

/// A charged pool. Its handle may be reused, its number is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolRef {
    pub(crate) id: PoolId,
    pub(crate) gpu: DeviceIndex,
    pub(crate) driver: &'static dyn PoolDriver,
    pub(super) number: u64,
}

/// The pre-charge of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reservation {
    pub(in crate::pools) charged: Bytes,
    pub(in crate::pools) size: Bytes,
    /// What the pool has for the call from an earlier one: not charged again, but not refunded
    /// either while the call is in progress.
    pub(in crate::pools) kept: Bytes,
}

impl Reservation {
    pub(in crate::pools) fn charged(charged: Bytes, size: Bytes) -> Self {
        Self { charged, size, kept: Bytes::ZERO }
    }
}

/// The order in which readings began.
#[derive(Clone, Copy, Debug)]
pub(in crate::pools) struct Ticket(u64);

/// What must be done on the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pools) struct Balance {
    /// To be refunded.
    pub(in crate::pools) surplus: Bytes,
    /// To be charged: the pool holds so much more than is charged for it.
    pub(in crate::pools) shortfall: Bytes,
    /// It has grown by what could not be charged.
    pub(in crate::pools) unpaid: bool,
    /// Others may hold some of it.
    pub(in crate::pools) exported: bool,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::pools) struct Released {
    pub(in crate::pools) gpu: DeviceIndex,
    pub(in crate::pools) charged: Bytes,
    pub(in crate::pools) exported: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Destroyed by the program, kept here.
    Outlives,
    /// The driver is destroying it: its handle must not be used.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) at: PoolRef,
    pub(super) stage: Stage,
    /// Bytes on the ledger for it.
    pub(super) charged: Bytes,
    /// The part of `charged` that belongs to calls in progress.
    pub(super) pending: Bytes,
    /// The part of `read` that calls in progress rely on.
    pub(super) kept: Bytes,
    pub(super) read: Bytes,
    pub(super) newest: u64,
    pub(super) tickets: u64,
    /// Calls of the program in progress, and how many have begun.
    pub(super) calls: u32,
    pub(super) started: u64,
    pub(super) readings: u32,
    pub(super) unpaid: bool,
    /// Bytes accounted as exported; `None`: the pool is not exported.
    pub(super) exported: Option<Bytes>,
    /// Bytes that descriptors may hold when the pool no longer does: their end is not seen.
    pub(super) descriptor_bytes: Bytes,
    pub(super) growth: Growth,
    /// Incremented when the pool may hold less, or may have given an earlier call's memory to
    /// another one.
    pub(super) retention: u64,
}

impl Pool {
    pub(super) fn begin_reading(&mut self) -> Ticket {
        self.readings = self.readings.saturating_add(1);
        self.tickets += 1;
        Ticket(self.tickets)
    }

    pub(super) fn start(&mut self, reservation: Reservation) {
        self.started += 1;
        self.calls += 1;
        self.pending = self.pending + reservation.charged;
        self.kept = self.kept + reservation.kept;
        self.charged = self.charged + reservation.charged;
    }

    pub(super) fn record(
        &mut self,
        ticket: Ticket,
        reading: Option<Bytes>,
        reservation: Option<Reservation>,
    ) {
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
            // Without a reading, the estimate is taken for the growth.
            None => self.read = self.read + charged,
        }
        if let Some(reservation) = reservation {
            self.calls = self.calls.saturating_sub(1);
            self.pending = self.pending - charged;
            self.kept = self.kept - reservation.kept;
        }
    }

    /// Reduces what is charged to what can be needed, and returns the difference.
    pub(super) fn balance(&mut self) -> Balance {
        let most = self.read + self.pending + self.kept;
        let surplus = self.charged - self.charged.min(most);
        self.charged = self.charged - surplus;
        let shortfall = self.read - self.read.min(self.charged);
        Balance { surplus, shortfall, unpaid: self.unpaid, exported: self.exported.is_some() }
    }
}
