//! Checkpoints of processes: their memory leaves the GPUs, and is restored.
//!
//! ```text
//!   running --> locking --> locked --> checkpointed
//!      ^           |        |    ^          |
//!      +-----------+--------+    +----------+
//!        timeout     unlock        restore, if there is room
//! ```
//!
//! The bytes stay where they are, in the process: only accounting changes here. While it is
//! checkpointed, nothing of a process changes, but it may die; then its checkpointed memory is
//! dropped.

use super::exports::ExportKind;
use super::records::{GPUS, Gpu, Holding, PROCESSES, Process};
use super::{Ticket, Timeline, states};
use crate::error::Error;
use crate::words::{Words, index};

states! {
    /// The checkpoint state of a process.
    pub Progress {
        /// It may use its GPUs.
        Running,
        /// Another process waits for its calls to return; new ones do not begin.
        Locking,
        /// No call is in progress.
        Locked,
        /// Its memory is off the GPUs.
        Checkpointed,
    }
}

const WRONG_STATE: Error = Error::State("the process is not in the required state");

impl<W: Words> Timeline<'_, W> {
    /// Marks a process as one that uses CUDA and not only NVML: it can be checkpointed.
    pub fn mark_cuda_process(&mut self, process: usize) {
        self.set(Process(process as u64).uses_cuda(), 1);
    }

    /// Returns whether the process uses CUDA.
    #[must_use]
    pub fn uses_cuda(&self, process: usize) -> bool {
        self.get(Process(process as u64).uses_cuda()) != 0
    }

    /// Returns the state of a process.
    #[must_use]
    pub fn progress(&self, process: usize) -> Progress {
        Progress::of(self.get(Process(process as u64).progress()))
    }

    /// Changes the state of a process.
    ///
    /// # Errors
    /// [`Error::State`] if it is not in `from`.
    pub fn step_progress(
        &mut self,
        process: usize,
        from: Progress,
        to: Progress,
    ) -> Result<(), Error> {
        if self.progress(process) != from {
            return Err(WRONG_STATE);
        }
        self.set(Process(process as u64).progress(), to.word());
        Ok(())
    }

    /// Blocks new calls of a process; `by` waits for those in progress.
    ///
    /// # Errors
    /// [`Error::State`] unless it is running.
    pub fn begin_locking(&mut self, process: usize, by: usize) -> Result<(), Error> {
        self.step_progress(process, Progress::Running, Progress::Locking)?;
        self.set(Process(process as u64).locker(), by as u64 + 1);
        Ok(())
    }

    /// Unblocks the processes that an ending process was locking.
    pub(super) fn stop_locking(&mut self, by: Process) {
        for process in (0..PROCESSES).map(Process) {
            let locking = Progress::of(self.get(process.progress())) == Progress::Locking;
            if locking && self.get(process.locker()) == by.0 + 1 {
                self.set(process.progress(), Progress::Running.word());
            }
        }
    }

    /// Returns the tickets of all pending work of a process.
    #[must_use]
    pub fn unfinished(&self, process: usize) -> Vec<Ticket> {
        let now = self.now();
        self.contexts(process).into_iter().flat_map(|context| self.pending(context, now)).collect()
    }

    /// Moves the memory of a locked process off the GPUs.
    ///
    /// # Errors
    /// [`Error::State`] unless it is locked; [`Error::Unsupported`] if it shares anything with
    /// other processes.
    pub fn checkpoint(&mut self, process: usize) -> Result<(), Error> {
        if self.progress(process) != Progress::Locked {
            return Err(WRONG_STATE);
        }
        if self.shares(Process(process as u64)) {
            return Err(Error::Unsupported("a process that shares memory cannot be checkpointed"));
        }
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(Process(process as u64), gpu);
            let memory = self.get(holding.memory());
            self.subtract(gpu.used(), memory);
            self.set(holding.memory(), 0);
            self.set(holding.checkpointed(), memory);
            self.leave_domains(Process(process as u64), gpu);
        }
        self.step_progress(process, Progress::Locked, Progress::Checkpointed)
    }

    /// Returns whether others hold, or can import, anything that the process holds.
    fn shares(&self, process: Process) -> bool {
        self.held_by(process).into_iter().any(|export| {
            self.get(export.sent()) != 0
                || self.kind_of_export(export) != ExportKind::Memory
                || self.get(export.exporter()) != process.0 + 1
                || self.is_held_by_several(export)
        })
    }

    /// Returns the GPUs from which memory of the process was moved.
    #[must_use]
    pub fn checkpointed_gpus(&self, process: usize) -> Vec<usize> {
        let process = Process(process as u64);
        let checkpointed = |gpu: &Gpu| self.get(Holding::of(process, *gpu).checkpointed()) != 0;
        (0..GPUS).map(Gpu).filter(checkpointed).map(|gpu| index(gpu.0)).collect()
    }

    /// Restores the memory of a checkpointed process, all or nothing.
    ///
    /// # Errors
    /// [`Error::State`] unless it is checkpointed; [`Error::OutOfMemory`], and it stays
    /// checkpointed.
    pub fn restore(&mut self, process: usize) -> Result<(), Error> {
        if self.progress(process) != Progress::Checkpointed {
            return Err(WRONG_STATE);
        }
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(Process(process as u64), gpu);
            let checkpointed = self.get(holding.checkpointed());
            if checkpointed > self.get(gpu.usable()) - self.get(gpu.used()) {
                return Err(Error::OutOfMemory);
            }
            self.add(gpu.used(), checkpointed);
            self.set(holding.memory(), checkpointed);
            self.set(holding.checkpointed(), 0);
            self.enter_domains(Process(process as u64), gpu)?;
            self.check_restored(holding, gpu)?;
        }
        self.step_progress(process, Progress::Checkpointed, Progress::Locked)
    }

    /// Refunds memory of a process on a GPU, or of its checkpoint.
    pub(super) fn refund_memory(&mut self, holding: Holding, gpu: Gpu, size: u64) {
        if self.get(holding.checkpointed()) != 0 {
            self.subtract(holding.checkpointed(), size);
        } else {
            self.subtract(gpu.used(), size);
            self.subtract(holding.memory(), size);
        }
    }
}
