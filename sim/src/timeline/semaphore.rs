//! External semaphores, which order work of several processes and other interfaces.
//!
//! A semaphore is an export without memory: it exists while a process holds it or a descriptor
//! keeps it. A *binary* one is signalled or not, and each signal ends one wait. A *counting* one
//! has a value, and a wait ends once that is large enough. Waiting streams are in its list in order
//! of arrival; a signal wakes them in that order, at its own instant.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::command::Kind;
use super::domains::Site;
use super::exports::ExportKind;
use super::head::Head;
use super::list::List;
use super::records::{ExportId, Process, Slot, StreamId};
use crate::error::Error;
use crate::words::Words;

/// A semaphore: its export, with the serial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SemaphoreId {
    pub(super) export: ExportId,
    pub(super) serial: u64,
}

/// Bits of an export's number in a command's word, below the serial.
const NUMBER: u32 = 16;
const _: () = assert!(ExportId::COUNT <= 1 << NUMBER);

impl SemaphoreId {
    /// Creates the id of an export that is a semaphore.
    #[must_use]
    pub const fn new(export: ExportId, serial: u64) -> Self {
        Self { export, serial }
    }

    /// Returns its export.
    #[must_use]
    pub const fn export(self) -> ExportId {
        self.export
    }

    /// Returns its export's serial.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.serial
    }

    pub(super) const fn word(self) -> u64 {
        self.serial << NUMBER | self.export.0
    }

    const fn of(word: u64) -> Self {
        Self { export: ExportId(word & ((1 << NUMBER) - 1)), serial: word >> NUMBER }
    }
}

const fn waiters_of(semaphore: ExportId) -> List {
    List {
        first: semaphore.first_waiter(),
        last: semaphore.last_waiter(),
        next: |stream| StreamId(stream).next_queued(),
        previous: |stream| StreamId(stream).previous_queued(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Creates a semaphore with a reference of its creator; not signalled, or of value 0.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_semaphore(&mut self, process: usize, counts: bool) -> Result<ExportId, Error> {
        let kind = if counts { ExportKind::Counting } else { ExportKind::Binary };
        self.new_export(Process(process as u64), Site::from(0), kind, 0)
    }

    fn is_semaphore(&self, semaphore: SemaphoreId) -> bool {
        self.serial_of_export(semaphore.export) == semaphore.serial
            && matches!(
                self.kind_of_export(semaphore.export),
                ExportKind::Binary | ExportKind::Counting
            )
    }

    /// Returns its value; of a binary one, 1 if it is signalled. `None` if it has ended.
    #[must_use]
    pub fn semaphore_value(&self, semaphore: SemaphoreId) -> Option<u64> {
        self.is_semaphore(semaphore).then(|| self.get(semaphore.export.value()))
    }

    /// Signals a semaphore at `t`: sets a counting one's value, and wakes the streams that it
    /// satisfies. Does nothing if the semaphore has ended.
    pub fn signal(&mut self, semaphore: SemaphoreId, value: u64, t: Nanos) {
        if !self.is_semaphore(semaphore) {
            return;
        }
        let export = semaphore.export;
        let waiters = waiters_of(export);
        if self.kind_of_export(export) == ExportKind::Binary {
            match waiters.pop(self.words) {
                Some(stream) => self.wake(StreamId(stream), t),
                None => self.set(export.value(), 1),
            }
            return;
        }
        self.set(export.value(), value);
        let mut waiter = StreamId(waiters.first(self.words));
        while waiter.0 != 0 {
            let next = StreamId(waiters.next(self.words, waiter.0));
            if self.get(self.head_slot(waiter).number()) <= value {
                waiters.remove(self.words, waiter.0);
                self.wake(waiter, t);
            }
            waiter = next;
        }
    }

    /// Performs a signal in a stream's ring.
    pub(super) fn signal_command(&mut self, slot: Slot, t: Nanos) {
        let (semaphore, value) = (SemaphoreId::of(self.get(slot.subject())), self.get(slot.cost()));
        self.signal(semaphore, value, t);
    }

    /// Begins a wait that is a stream's head. Returns `false` if the stream is now in the
    /// semaphore's list.
    pub(super) fn acquire(&mut self, stream: StreamId, slot: Slot) -> bool {
        let semaphore = SemaphoreId::of(self.get(slot.subject()));
        if !self.is_semaphore(semaphore) {
            return true;
        }
        let export = semaphore.export;
        let value = self.get(export.value());
        let binary = self.kind_of_export(export) == ExportKind::Binary;
        let reached = if binary { value != 0 } else { value >= self.get(slot.number()) };
        if !reached {
            waiters_of(export).push(self.words, stream.0);
        } else if binary {
            self.set(export.value(), 0);
        }
        reached
    }

    /// Removes a stream whose wait is dropped from its semaphore's list.
    pub(super) fn cancel_wait(&mut self, stream: StreamId) {
        let semaphore = SemaphoreId::of(self.get(self.head_slot(stream).subject()));
        waiters_of(semaphore.export).remove(self.words, stream.0);
    }

    /// Returns whether any stream waits for it.
    pub(super) fn is_awaited(&self, export: ExportId) -> bool {
        !waiters_of(export).is_empty(self.words)
    }

    /// Returns whether a stream that waits for a semaphore is in its list.
    pub(super) fn is_listed(&self, stream: StreamId) -> bool {
        let semaphore = SemaphoreId::of(self.get(self.head_slot(stream).subject()));
        waiters_of(semaphore.export).members(self.words).contains(&stream.0)
    }

    pub(super) fn check_semaphore(&self, export: ExportId) -> Result<(), String> {
        let binary = self.kind_of_export(export) == ExportKind::Binary;
        let value = self.get(export.value());
        if binary && value > 1 {
            return Err(format!("{export:?} is signalled {value} times"));
        }
        for stream in waiters_of(export).members(self.words).into_iter().map(StreamId) {
            let slot = self.head_slot(stream);
            let about = SemaphoreId::of(self.get(slot.subject()));
            if self.head(stream) != Head::Blocked
                || self.kind(slot) != Kind::Acquire
                || about != SemaphoreId::new(export, self.serial_of_export(export))
            {
                return Err(format!("{export:?} lists {stream:?}, which does not wait for it"));
            }
            if if binary { value != 0 } else { self.get(slot.number()) <= value } {
                return Err(format!("{stream:?} waits for {export:?}, which satisfies it"));
            }
        }
        Ok(())
    }
}
