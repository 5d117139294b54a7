//! What stands for the kernel in a model run: a sleeper lets the others run, then finds that its time has passed.
//!
//! So a model covers every interleaving in which a wake-up is late or lost; that wake-ups come at all is shown by processes.

use crate::atomic::AtomicU32;
use crate::units::Nanos;

/// Why [`wait`] came back.
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

/// Nothing to do: sleepers wake by themselves.
pub fn wake(_word: &AtomicU32, _count: u32) {}
