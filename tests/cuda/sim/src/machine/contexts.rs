//! Contexts: what costs memory and takes turns on the card.

use super::{ContextId, Machine, StreamId};
use crate::error::Error;

impl Machine {
    /// Makes a context on a card, with its legacy default stream.
    ///
    /// # Errors
    /// [`Error::NoCard`], [`Error::OutOfMemory`], [`Error::Full`].
    pub fn create_context(&self, card: usize) -> Result<ContextId, Error> {
        let _ = card;
        unimplemented!()
    }

    /// Ends a context: its queue is dropped, its kernels stop, its memory, streams and events are gone.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn destroy_context(&self, context: ContextId) -> Result<(), Error> {
        let _ = context;
        unimplemented!()
    }

    /// The card of a context.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn card_of(&self, context: ContextId) -> Result<usize, Error> {
        let _ = context;
        unimplemented!()
    }

    /// The context's legacy default stream (handle 0 or 1 without per-thread default streams).
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn legacy_stream(&self, context: ContextId) -> Result<StreamId, Error> {
        let _ = context;
        unimplemented!()
    }

    /// Waits for all that the context's streams hold now.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn synchronize_context(&self, context: ContextId) -> Result<(), Error> {
        let _ = context;
        unimplemented!()
    }
}
