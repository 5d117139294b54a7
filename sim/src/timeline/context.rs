//! Contexts: they take turns on a GPU, and own memory, streams and events there.

use cgpu_shm::units::{Bytes, Nanos};

use super::Timeline;
use super::event::events_of;
use super::group::Turn;
use super::pool::Pool;
use super::process::contexts_of;
use super::records::{ContextId, EventId, Global, Gpu, Group, Holding, Process, StreamId};
use super::stream::streams_of;
use crate::error::Error;
use crate::words::Words;

const POOL: Pool = Pool {
    free: Global(0).free_context(),
    top: Global(0).top_context(),
    count: ContextId::COUNT,
    chain: |context| ContextId(context).next_in_process(),
};

/// A context allocates memory for code in steps of this size, that of large allocations.
const CODE_BLOCK: Bytes = Bytes::from_mib(2);

impl<W: Words> Timeline<'_, W> {
    /// Sets the memory of a GPU that contexts and programs can use. Called once, before anything
    /// else.
    pub fn install(&mut self, gpu: usize, usable: Bytes) {
        self.set(Gpu(gpu as u64).usable(), usable.0);
    }

    /// Creates a context with its legacy stream, and charges its memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Full`].
    pub fn create_context(&mut self, process: usize, gpu: usize) -> Result<ContextId, Error> {
        let (process, gpu) = (Process(process as u64), Gpu(gpu as u64));
        let cost = self.figures.context_memory;
        if self.get(gpu.used()) + cost.0 > self.get(gpu.usable()) {
            return Err(Error::OutOfMemory);
        }
        if !self.has_streams_left() {
            return Err(Error::Full("streams"));
        }
        let context = ContextId(POOL.take(self.words).ok_or(Error::Full("contexts"))?);
        contexts_of(process).push(self.words, context.0);
        let serial = self.get(Global(0).contexts()) + 1;
        self.set(Global(0).contexts(), serial);
        for (at, value) in [
            (context.alive(), 1),
            (context.gpu(), gpu.0),
            (context.process(), process.0),
            (context.memory(), 0),
            (context.serial(), serial),
            (Group::of_context(context).turn(), Turn::Parked.word()),
            (context.running(), 0),
            (context.busy(), 0),
            (context.code(), 0),
            (context.code_memory(), 0),
            (context.launches(), 0),
            (context.streams(), 0),
        ] {
            self.set(at, value);
        }
        // The lists are empty: the record's last user left them so.
        let holding = Holding::of(process, gpu);
        self.add(holding.contexts(), 1);
        self.reserve(context, cost)?;
        self.open_account(process, gpu);
        let legacy = self.create_legacy_stream(context)?;
        self.set(context.legacy_stream(), legacy.0);
        Ok(context)
    }

    /// Destroys a context at the instant `t`: stops what it computes, drops its queues, frees its
    /// memory.
    pub fn destroy_context(&mut self, context: ContextId, t: Nanos) {
        let gpu = Gpu(self.get(context.gpu()));
        self.remove_from_engine(gpu, context, t);
        self.words.seam();
        for event in events_of(context).members(self.words) {
            self.destroy_event(EventId(event));
            self.words.seam();
        }
        for stream in streams_of(context).members(self.words) {
            self.drop_stream(StreamId(stream), t);
            self.words.seam();
        }
        let process = self.process_of(context);
        let memory = Bytes(self.get(context.memory()));
        self.release(context, memory);
        let holding = Holding::of(process, gpu);
        self.subtract(holding.contexts(), 1);
        contexts_of(process).remove(self.words, context.0);
        self.set(context.alive(), 0);
        POOL.give(self.words, context.0);
    }

    /// Returns the GPU and process of a live context.
    #[must_use]
    pub fn place_of(&self, context: ContextId) -> Option<(usize, usize)> {
        let alive = POOL.reaches(self.words, context.0) && self.get(context.alive()) != 0;
        let number = |at| crate::words::index(self.get(at));
        alive.then(|| (number(context.gpu()), number(context.process())))
    }

    /// Returns the context's legacy default stream.
    #[must_use]
    pub fn legacy_stream(&self, context: ContextId) -> StreamId {
        StreamId(self.get(context.legacy_stream()))
    }

    /// Returns a seed for the context's next draw.
    pub fn draw(&mut self, context: ContextId) -> u64 {
        let launches = self.get(context.launches());
        self.set(context.launches(), launches + 1);
        let serial = self.get(context.serial());
        crate::kernel::mix(crate::kernel::mix(self.figures.seed ^ serial) ^ launches)
    }

    /// Charges memory of the GPU to a context.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], exactly if the GPU, or a control group of the process, has less than
    /// that left.
    pub fn reserve(&mut self, context: ContextId, size: Bytes) -> Result<(), Error> {
        let gpu = Gpu(self.get(context.gpu()));
        let left = self.get(gpu.usable()) - self.get(gpu.used());
        if size.0 > left {
            return Err(Error::OutOfMemory);
        }
        self.charge_group(self.process_of(context), gpu, size.0)?;
        let holding = self.holding_of(context);
        for at in [gpu.used(), holding.memory(), context.memory()] {
            self.add(at, size.0);
        }
        self.note_memory(holding, gpu);
        Ok(())
    }

    /// Loads code of so many bytes onto the GPU. The context keeps the memory, charged in blocks.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn load_code(&mut self, context: ContextId, size: Bytes) -> Result<(), Error> {
        let code = self.get(context.code()) + size.0;
        let has = self.get(context.code_memory());
        if code > has {
            let more = Bytes((code - has).next_multiple_of(CODE_BLOCK.0));
            self.reserve(context, more)?;
            self.set(context.code_memory(), has + more.0);
        }
        self.set(context.code(), code);
        Ok(())
    }

    /// Refunds memory of a context, at most what it has.
    pub fn release(&mut self, context: ContextId, size: Bytes) {
        let gpu = Gpu(self.get(context.gpu()));
        let holding = self.holding_of(context);
        self.refund_memory(holding, gpu, size.0);
        self.refund_groups(holding, size.0);
        self.subtract(context.memory(), size.0);
    }

    /// Returns the used and the usable memory of a GPU.
    #[must_use]
    pub fn memory(&self, gpu: usize) -> (Bytes, Bytes) {
        let gpu = Gpu(gpu as u64);
        (Bytes(self.get(gpu.used())), Bytes(self.get(gpu.usable())))
    }
}
