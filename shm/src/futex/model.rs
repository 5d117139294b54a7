//! Replaces the kernel in a model run: a waiter lets the other threads run, then times out.
//!
//! So a model covers every interleaving in which a wake-up is late or lost. That wake-ups arrive is
//! tested with real processes.

use crate::atomic::AtomicU32;
use crate::units::Nanos;

/// Why [`wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Never in a model.
    Woken,
    /// Never in a model.
    Interrupted,
    /// Never in a model.
    Changed,
    /// Always.
    TimedOut,
}

/// Lets the other threads of the model run.
pub fn wait(_word: &AtomicU32, _expected: u32, _timeout: Nanos) -> Waited {
    loom::thread::yield_now();
    Waited::TimedOut
}

/// Does nothing: waiters wake by themselves.
pub fn wake(_word: &AtomicU32, _count: u32) {}
