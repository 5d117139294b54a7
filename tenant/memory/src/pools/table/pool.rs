//! A pool: what is charged for it, what it was last seen to hold, which calls are under way.

use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::handles::PoolId;
use crate::pools::driver::PoolDriver;
use crate::pools::growth::Growth;

/// A pool that is charged: which, and how it is reached. Another one may have its handle later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolRef {
    pub(crate) id: PoolId,
    pub(crate) gpu: DeviceIndex,
    pub(crate) driver: &'static dyn PoolDriver,
    pub(super) number: u64,
}

/// What a call was charged in advance, and for how much of the program's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reservation {
    pub(in crate::pools) charged: Bytes,
    pub(in crate::pools) size: Bytes,
    /// What the pool has for the call already, by an earlier one: not charged again, but not given
    /// back either while the call is under way.
    pub(in crate::pools) kept: Bytes,
}

impl Reservation {
    pub(in crate::pools) fn charged(charged: Bytes, size: Bytes) -> Self {
        Self { charged, size, kept: Bytes::ZERO }
    }
}

/// A look at what a pool holds, in the order in which looks begin.
#[derive(Clone, Copy, Debug)]
pub(in crate::pools) struct Ticket(u64);

/// What is to be done on the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pools) struct Balance {
    /// To be given back.
    pub(in crate::pools) surplus: Bytes,
    /// To be charged: the pool holds so much more than is booked for it.
    pub(in crate::pools) shortfall: Bytes,
    /// It has grown by what could not be charged.
    pub(in crate::pools) unpaid: bool,
    /// Others may hold some of it.
    pub(in crate::pools) exported: bool,
}

/// What a pool had that is gone.
#[derive(Clone, Copy, Debug)]
pub(in crate::pools) struct Released {
    pub(in crate::pools) gpu: DeviceIndex,
    pub(in crate::pools) charged: Bytes,
    pub(in crate::pools) exported: Bytes,
}

/// Whether a pool is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// Destroyed, as the program sees it.
    Outlives,
    /// The driver is asked to destroy it: its handle must not be used any more.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) at: PoolRef,
    pub(super) stage: Stage,
    /// What is on the ledger for it.
    pub(super) charged: Bytes,
    /// Of that: of calls under way.
    pub(super) pending: Bytes,
    /// Of what is held: what calls under way count on.
    pub(super) kept: Bytes,
    /// The newest reading of what it holds, and that one's ticket.
    pub(super) read: Bytes,
    pub(super) newest: u64,
    pub(super) tickets: u64,
    /// Calls of the program under way, and how many there have been.
    pub(super) calls: u32,
    pub(super) started: u64,
    /// Calls of ours with its handle under way.
    pub(super) readings: u32,
    pub(super) unpaid: bool,
    /// What of it is entered as exported; none: it is this process's alone.
    pub(super) exported: Option<Bytes>,
    /// What descriptors of pieces of it may hold when it does not any more: their end is not seen.
    pub(super) descriptor_bytes: Bytes,
    pub(super) growth: Growth,
    /// Raised when the pool may have less, or may have passed on what an earlier call was given.
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
    pub(super) fn balance(&mut self) -> Balance {
        let most = self.read + self.pending + self.kept;
        let surplus = self.charged - self.charged.min(most);
        self.charged = self.charged - surplus;
        let shortfall = self.read - self.read.min(self.charged);
        Balance { surplus, shortfall, unpaid: self.unpaid, exported: self.exported.is_some() }
    }
}
