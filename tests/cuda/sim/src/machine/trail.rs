//! Which commands a call put into streams: what ties a journal's calls to the card's spans.

use std::cell::RefCell;

use super::{Machine, Ticket};
use crate::error::Error;
use crate::timeline::Span;

thread_local! {
    /// What the calling thread has enqueued, while somebody asks.
    static TRAIL: RefCell<Option<Vec<Ticket>>> = const { RefCell::new(None) };
}

/// Runs `call`, and says what this thread enqueued in it, in order.
pub fn trail<R>(call: impl FnOnce() -> R) -> (R, Vec<Ticket>) {
    TRAIL.replace(Some(Vec::new()));
    let result = call();
    (result, TRAIL.take().unwrap_or_default())
}

#[inline]
pub(super) fn note(ticket: Ticket) {
    TRAIL.with_borrow_mut(|trail| {
        if let Some(trail) = trail {
            trail.push(ticket);
        }
    });
}

impl Machine {
    /// Keeps what the cards do from here on, for [`Machine::take_spans`].
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn trace(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.trace();
            Ok(())
        })
    }

    /// Takes what the cards did since anybody last took it; says how many spans nobody took in time.
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
