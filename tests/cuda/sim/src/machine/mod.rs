//! The machine that a process sees: what the CUDA and NVML calls are made of.
//!
//! One [`Machine`] per loaded library; it attaches the process to the segment with a slot of its own. All methods take `&self` and may
//! be called from any thread. None of them is meant to be called from a signal handler or an at-fork handler.
//!
//! * A forked child finds its parent's machine unusable: every method answers [`Error::Forked`], touches nothing shared, and the
//!   child opens one of its own if it wants one ([`Machine::is_inherited`]).
//! * Enqueuing calls give a [`Ticket`]; [`Machine::wait`] blocks until it is done and its host-visible effects are performed.
//! * A call that finds the stream's queue full blocks, as the driver's does.
//! * Host-visible effects (copies, fills, memory writes, host functions) are performed in order by a thread of the process when they are
//!   due; whoever waits performs those that are due by then.

mod allocations;
mod books;
mod contexts;
mod events;
mod streams;
mod work;

use std::sync::Arc;

use cgpu_proto::units::Nanos;

pub use allocations::{Allocation, MemoryInfo};
pub use books::{EngineTime, ProcessSample, ProcessUse, Utilisation};
pub use streams::{StreamKind, Ticket};
pub use work::{CopyKind, Fill, Launch, Pitched, WaitCondition, Width};

use crate::card::CardSpec;
use crate::clock::Clock;
use crate::error::Error;
use crate::settings::{Figures, Settings};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// As a number which is unique among the living of its kind on this machine.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }
    };
}

id! {
    /// A context. Made by [`Machine::create_context`].
    ContextId
}
id! {
    /// A stream. Made by [`Machine::create_stream`], or a context's own legacy stream.
    StreamId
}
id! {
    /// An event. Made by [`Machine::create_event`].
    EventId
}

/// An attached process. Dropping it detaches: contexts go at once.
#[derive(Debug)]
pub struct Machine {
    inner: Arc<()>,
}

impl Machine {
    /// Opens the machine that the environment names, making it if need be.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Segment`], [`Error::Full`] when all slots are taken.
    pub fn from_environment() -> Result<Self, Error> {
        Self::open(&Settings::from_environment()?)
    }

    /// Opens the machine with the given settings on the real clock. If the segment is there already its cards and figures count.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        Self::open_with(settings, Clock::Real { dilation_milli: settings.dilation_milli })
    }

    /// Opens the machine with a clock of the caller's choice. On a virtual clock there is no thread: effects are performed by calls.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open_with(settings: &Settings, clock: Clock) -> Result<Self, Error> {
        let _ = (settings, clock);
        Ok(Self { inner: Arc::new(()) })
    }

    /// Whether this machine is the parent's and this process a forked child.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        let _ = &self.inner;
        false
    }

    /// The cards, in order.
    #[must_use]
    pub fn cards(&self) -> &[CardSpec] {
        &[]
    }

    /// The model's figures.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        unimplemented!()
    }

    /// Device time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        unimplemented!()
    }
}
