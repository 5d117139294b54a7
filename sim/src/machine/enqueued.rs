//! The commands that a call enqueued: they connect a journal's calls with the GPU's spans.

use core::cell::{Cell, RefCell};

use super::{Machine, Ticket};
use crate::error::Error;
use crate::timeline::Span;

thread_local! {
    static RECORDING: Cell<bool> = const { Cell::new(false) };
    /// Commands that the calling thread has enqueued since recording began.
    static ENQUEUED: RefCell<Vec<Ticket>> = const { RefCell::new(Vec::new()) };
}

/// Runs `call`, and returns the commands that this thread enqueued in it, in order; none in a
/// thread that is ending.
pub fn record_enqueued<R>(call: impl FnOnce() -> R) -> (R, Vec<Ticket>) {
    let take = || ENQUEUED.try_with(RefCell::take).unwrap_or_default();
    take();
    RECORDING.set(true);
    let result = call();
    RECORDING.set(false);
    (result, take())
}

#[inline]
pub(super) fn note(ticket: Ticket) {
    if RECORDING.get() {
        let _ = ENQUEUED.try_with(|enqueued| enqueued.borrow_mut().push(ticket));
    }
}

impl Machine {
    /// Starts recording spans of the GPUs, for [`Machine::take_spans`].
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn trace(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.trace();
            Ok(())
        })
    }

    /// Takes the spans since they were last taken by any process. Returns how many were overwritten
    /// before that.
    ///
    /// # Errors
    /// As [`Machine::trace`].
    pub fn take_spans(&self, into: &mut Vec<Span>) -> Result<u64, Error> {
        let before = into.len();
        self.core.with(|timeline, now| {
            // The operation may run more than once.
            into.truncate(before);
            Ok(timeline.take_spans(now, into))
        })
    }
}
