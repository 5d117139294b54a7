//! Which commands a call put into streams: what ties a journal's calls to the GPU's spans.

use core::cell::{Cell, RefCell};

use super::{Machine, Ticket};
use crate::error::Error;
use crate::timeline::Span;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
    /// What the calling thread has enqueued since it was asked.
    static TRAIL: RefCell<Vec<Ticket>> = const { RefCell::new(Vec::new()) };
}

/// Runs `call`, and says what this thread enqueued in it, in order. A thread that is about to end says nothing.
pub fn trail<R>(call: impl FnOnce() -> R) -> (R, Vec<Ticket>) {
    let trail = || TRAIL.try_with(RefCell::take).unwrap_or_default();
    trail();
    ASKED.set(true);
    let result = call();
    ASKED.set(false);
    (result, trail())
}

#[inline]
pub(super) fn note(ticket: Ticket) {
    if ASKED.get() {
        let _ = TRAIL.try_with(|trail| trail.borrow_mut().push(ticket));
    }
}

impl Machine {
    /// Keeps what the GPUs do from here on, for [`Machine::take_spans`].
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn trace(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.trace();
            Ok(())
        })
    }

    /// Takes what the GPUs did since anybody last took it; says how many spans nobody took in time.
    ///
    /// # Errors
    /// As [`Machine::trace`].
    pub fn take_spans(&self, into: &mut Vec<Span>) -> Result<u64, Error> {
        let before = into.len();
        self.core.with(|timeline, now| {
            // Done again, it gives the same again.
            into.truncate(before);
            Ok(timeline.take_spans(now, into))
        })
    }
}
