//! Contexts: they cost memory and take turns on the GPU.

use cgpu_shm::units::Bytes;

use super::{ContextId, Machine, StreamId, lock};
use crate::error::Error;
use crate::memory::Accounting;

impl Machine {
    /// Creates a context on a GPU, with its legacy default stream.
    ///
    /// # Errors
    /// [`Error::NoGpu`], [`Error::OutOfMemory`], [`Error::Full`].
    pub fn create_context(&self, gpu: usize) -> Result<ContextId, Error> {
        self.check_gpu(gpu)?;
        self.start_helper()?;
        let process = self.core.segment.process();
        let context = self.core.in_group(|timeline, _| timeline.create_context(process, gpu))?;
        lock(&self.core.memory).adopt(context, gpu);
        Ok(context)
    }

    /// Destroys a context: drops its queue, stops its kernels, and ends its memory, streams and
    /// events.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn destroy_context(&self, context: ContextId) -> Result<(), Error> {
        self.check_not_forked()?;
        self.core.destroy_context(context)
    }

    /// Loads the code of a function onto the context's GPU: takes host time, and memory that the
    /// context keeps.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::OutOfMemory`].
    pub fn load_code(&self, context: ContextId) -> Result<(), Error> {
        let figures = *self.figures();
        let begun = self.now();
        self.core.in_group(|timeline, _| {
            self.core.own_context(timeline, context)?;
            timeline.load_code(context, figures.code_size)
        })?;
        self.core.clock.wait_until(begun + figures.load_cost);
        Ok(())
    }

    /// Reserves more memory for the context itself: a larger heap, stack or printf buffer.
    ///
    /// # Errors
    /// [`Error::NoContext`], [`Error::OutOfMemory`].
    pub fn enlarge_context(&self, context: ContextId, size: Bytes) -> Result<(), Error> {
        self.core.reserve(context, size)
    }

    /// Releases some of that memory.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn shrink_context(&self, context: ContextId, size: Bytes) -> Result<(), Error> {
        self.core.release(context, size)
    }

    /// Returns the GPU of a context.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn gpu_of(&self, context: ContextId) -> Result<usize, Error> {
        self.core.with(|timeline, _| self.core.own_context(timeline, context))
    }

    /// Returns the context's legacy default stream (handle 0 or 1 without per-thread default
    /// streams).
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn legacy_stream(&self, context: ContextId) -> Result<StreamId, Error> {
        self.core.with(|timeline, _| {
            self.core.own_context(timeline, context)?;
            Ok(timeline.legacy_stream(context))
        })
    }

    /// Returns whether the host can see that all work on the context's streams is done.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn is_context_done(&self, context: ContextId) -> Result<bool, Error> {
        let done = self.core.with(|timeline, now| {
            self.core.own_context(timeline, context)?;
            Ok(timeline.pending(context, now).is_empty())
        })?;
        self.core.perform_due()?;
        Ok(done)
    }

    /// Waits for all work that the context's streams hold now.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn synchronize_context(&self, context: ContextId) -> Result<(), Error> {
        let pending = self.core.with(|timeline, now| {
            self.core.own_context(timeline, context)?;
            Ok(timeline.pending(context, now))
        })?;
        self.core.wait_for(&pending)?;
        self.core.trim_to_thresholds()
    }
}
