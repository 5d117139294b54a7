//! What NVML tells, and the simulator's own truth.

use cgpu_proto::units::{Bytes, Nanos};

use super::{ContextId, Machine};
use crate::error::Error;

/// A process with a context on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// Its memory on the card, contexts included.
    pub memory: Bytes,
    /// Time its kernels ran on the card, exact: the simulator's own truth.
    pub busy: Nanos,
    /// Kernels completed on the card.
    pub kernels: u64,
    /// Dead, its memory not yet gone.
    pub dying: bool,
}

/// NVML's utilisation: integer percent of the last whole window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilisation {
    /// Percent of time in which kernels ran.
    pub gpu: u32,
    /// Percent of time in which memory was read or written: follows `gpu` at a third.
    pub memory: u32,
}

/// NVML's utilisation of one process in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// The process.
    pub pid: u32,
    /// End of the window, in device time.
    pub at: Nanos,
    /// Percent.
    pub gpu: u32,
}

/// How a card's time was spent since the segment was made: the simulator's own truth. The rest is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineTime {
    /// Kernels and other commands computed.
    pub busy: Nanos,
    /// Contexts were changed.
    pub switching: Nanos,
    /// Changes.
    pub switches: u64,
}

impl Machine {
    /// Processes with contexts on a card.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn processes(&self, card: usize) -> Result<Vec<ProcessUse>, Error> {
        let _ = card;
        unimplemented!()
    }

    /// A card's utilisation.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn utilisation(&self, card: usize) -> Result<Utilisation, Error> {
        let _ = card;
        unimplemented!()
    }

    /// Samples of whole windows that ended after `since`, oldest first; at most the last 14 windows.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn process_utilisation(&self, card: usize, since: Nanos) -> Result<Vec<ProcessSample>, Error> {
        let _ = (card, since);
        unimplemented!()
    }

    /// How a card's time was spent.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn engine_time(&self, card: usize) -> Result<EngineTime, Error> {
        let _ = card;
        unimplemented!()
    }

    /// Time that one context's commands ran, exact.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn context_busy(&self, context: ContextId) -> Result<Nanos, Error> {
        let _ = context;
        unimplemented!()
    }
}
