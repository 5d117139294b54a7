//! Semaphores between processes and interfaces: made by another interface, imported by a descriptor, signalled and waited for by streams.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::effects::Effect;
use super::{Machine, StreamId, Ticket};
use crate::error::Error;
use crate::memory::Accounting;
use crate::timeline::{Command, ExportKind, SemaphoreId};

impl Machine {
    /// Makes a semaphore that is not signalled, or of value 0, and which this process holds until it says
    /// [`Machine::close_semaphore`]: the part of another interface.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::System`].
    pub fn create_semaphore(&self, counts: bool) -> Result<SemaphoreId, Error> {
        self.check_lineage()?;
        let core = &self.core;
        let export =
            core.with(|timeline, _| timeline.create_semaphore(core.segment.process(), counts))?;
        // A byte, for the lock by which its descriptors are known.
        let exported = core.place_or_let_go(export, 1)?;
        Ok(SemaphoreId::new(export, exported.serial))
    }

    /// A descriptor by which others can import a semaphore that this process holds.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is gone; [`Error::System`].
    pub fn export_semaphore(&self, semaphore: SemaphoreId) -> Result<OwnedFd, Error> {
        self.semaphore_value(semaphore)?;
        self.core.send(semaphore.export(), semaphore.serial())
    }

    /// Holds the semaphore that a descriptor keeps, once more each time.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it keeps none of that kind; [`Error::System`].
    pub fn import_semaphore(
        &self,
        descriptor: BorrowedFd<'_>,
        counts: bool,
    ) -> Result<SemaphoreId, Error> {
        self.check_lineage()?;
        let kind = if counts { ExportKind::Counting } else { ExportKind::Binary };
        let received = self.core.receive(descriptor, &[kind])?;
        Ok(SemaphoreId::new(received.export, received.serial))
    }

    /// Holds a semaphore once less.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if this process does not hold it.
    pub fn close_semaphore(&self, semaphore: SemaphoreId) -> Result<(), Error> {
        self.semaphore_value(semaphore)?;
        self.core.let_go(semaphore.export())
    }

    /// A semaphore's value; of a binary one, 1 if it is signalled.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is gone.
    pub fn semaphore_value(&self, semaphore: SemaphoreId) -> Result<u64, Error> {
        self.check_lineage()?;
        self.core.with(|timeline, _| timeline.semaphore_value(semaphore).ok_or(Error::NoAllocation))
    }

    /// Signals a semaphore now, from outside of any stream: the part of another interface.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is gone.
    pub fn signal_now(&self, semaphore: SemaphoreId, value: u64) -> Result<(), Error> {
        self.semaphore_value(semaphore)?;
        self.core.with(|timeline, now| {
            timeline.signal(semaphore, value, now);
            Ok(())
        })
    }

    /// Signals a semaphore when the stream comes to it: at that very instant, unless this process has bytes to move or functions to
    /// call before, for those are to be seen by whoever the signal lets go on.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] if the semaphore is gone.
    pub fn signal_semaphore(
        &self,
        stream: StreamId,
        semaphore: SemaphoreId,
        value: u64,
    ) -> Result<Ticket, Error> {
        self.semaphore_value(semaphore)?;
        if self.core.owes_effects()? {
            self.enqueue_effect(stream, Command::Outside, Effect::Signal(semaphore, value))
        } else {
            self.enqueue(stream, Command::Signal(semaphore, value))
        }
    }

    /// Lets a stream wait for a semaphore: for the signal of a binary one, which is used up by that, or until a counting one has a value
    /// no less than this.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] if the semaphore is gone.
    pub fn await_semaphore(
        &self,
        stream: StreamId,
        semaphore: SemaphoreId,
        value: u64,
    ) -> Result<Ticket, Error> {
        self.semaphore_value(semaphore)?;
        self.enqueue(stream, Command::Acquire(semaphore, value))
    }
}
