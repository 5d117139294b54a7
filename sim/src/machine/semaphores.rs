//! External semaphores: created by another interface, imported by a descriptor, signalled and
//! waited for by streams.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::effects::Effect;
use super::{Machine, StreamId, Ticket};
use crate::error::Error;
use crate::memory::Accounting;
use crate::timeline::{Command, ExportKind, SemaphoreId};

impl Machine {
    /// Creates a semaphore, not signalled or of value 0, which this process holds until
    /// [`Machine::close_semaphore`]. This simulates the other interface.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::System`].
    pub fn create_semaphore(&self, counts: bool) -> Result<SemaphoreId, Error> {
        self.check_not_forked()?;
        let core = &self.core;
        let export =
            core.with(|timeline, _| timeline.create_semaphore(core.segment.process(), counts))?;
        // One byte, for the lock that identifies its descriptors.
        let exported = core.create_file_or_drop(export, 1)?;
        Ok(SemaphoreId::new(export, exported.serial))
    }

    /// Exports a semaphore of this process as a descriptor, which others can import.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is destroyed; [`Error::System`].
    pub fn export_semaphore(&self, semaphore: SemaphoreId) -> Result<OwnedFd, Error> {
        self.semaphore_value(semaphore)?;
        self.core.send(semaphore.export(), semaphore.serial())
    }

    /// Imports the semaphore of a descriptor. Repeated imports are counted.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it keeps none of that kind; [`Error::System`].
    pub fn import_semaphore(
        &self,
        descriptor: BorrowedFd<'_>,
        counts: bool,
    ) -> Result<SemaphoreId, Error> {
        self.check_not_forked()?;
        let kind = if counts { ExportKind::Counting } else { ExportKind::Binary };
        let received = self.core.receive(descriptor, &[kind])?;
        Ok(SemaphoreId::new(received.export, received.serial))
    }

    /// Closes a semaphore once.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if this process does not hold it.
    pub fn close_semaphore(&self, semaphore: SemaphoreId) -> Result<(), Error> {
        self.semaphore_value(semaphore)?;
        self.core.drop_hold(semaphore.export())
    }

    /// Returns a semaphore's value; of a binary one, 1 if it is signalled.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is destroyed.
    pub fn semaphore_value(&self, semaphore: SemaphoreId) -> Result<u64, Error> {
        self.check_not_forked()?;
        self.core.with(|timeline, _| timeline.semaphore_value(semaphore).ok_or(Error::NoAllocation))
    }

    /// Signals a semaphore now, outside any stream. This simulates the other interface.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is destroyed.
    pub fn signal_now(&self, semaphore: SemaphoreId, value: u64) -> Result<(), Error> {
        self.semaphore_value(semaphore)?;
        self.core.with(|timeline, now| {
            timeline.signal(semaphore, value, now);
            Ok(())
        })
    }

    /// Signals a semaphore when the stream gets there: at that instant, unless this process has
    /// effects to perform before. A waiter must see those.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] if the semaphore is destroyed.
    pub fn signal_semaphore(
        &self,
        stream: StreamId,
        semaphore: SemaphoreId,
        value: u64,
    ) -> Result<Ticket, Error> {
        self.semaphore_value(semaphore)?;
        if self.core.has_pending_effects()? {
            self.enqueue_effect(stream, Command::Outside, Effect::Signal(semaphore, value))
        } else {
            self.enqueue(stream, Command::Signal(semaphore, value))
        }
    }

    /// Makes a stream wait for a semaphore: until a binary one is signalled, which resets it, or a
    /// counting one has at least this value.
    ///
    /// # Errors
    /// [`Error::NoStream`]; [`Error::NoAllocation`] if the semaphore is destroyed.
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
