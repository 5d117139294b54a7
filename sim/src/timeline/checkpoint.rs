//! Checkpoints of processes: their memory leaves the GPUs, and comes back.
//!
//! ```text
//!   running --> locking --> locked --> checkpointed        memory: on the GPUs ... | away
//!      ^           |        |    ^          |
//!      +-----------+--------+    +----------+
//!       gives up     unlock        restore, if there is room
//! ```
//!
//! The bytes are the process's own business, and stay where they are: only the books change here. Nothing of a process changes while
//! its memory is away, but that it may die, and then what is away goes without a GPU having it.

use cgpu_shm::units::Bytes;

use super::exports::ExportKind;
use super::records::{GPUS, Gpu, Holding, PROCESSES, Process};
use super::{Ticket, Timeline, states};
use crate::error::Error;
use crate::words::{Words, index};

states! {
    /// How far a process is with a checkpoint.
    pub Progress {
        /// It may use its GPUs.
        Running,
        /// Somebody waits for its calls to return; no new one begins.
        Locking,
        /// None of its calls goes on.
        Locked,
        /// Its memory is away.
        Checkpointed,
    }
}

const WRONG_STATE: Error = Error::State("the process is not in the state that this needs");

impl<W: Words> Timeline<'_, W> {
    /// The process drives GPUs from now on: it can be checkpointed, other than those that only look.
    pub fn begin_driving(&mut self, process: usize) {
        self.set(Process(process as u64).drives(), 1);
    }

    /// Whether the process drives GPUs.
    #[must_use]
    pub fn drives(&self, process: usize) -> bool {
        self.get(Process(process as u64).drives()) != 0
    }

    /// How far a process is.
    #[must_use]
    pub fn progress(&self, process: usize) -> Progress {
        Progress::of(self.get(Process(process as u64).progress()))
    }

    /// Changes how far a process is.
    ///
    /// # Errors
    /// [`Error::State`] if it is elsewhere.
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

    /// Keeps a process from new calls, for `by` to wait for those under way.
    ///
    /// # Errors
    /// [`Error::State`] unless it is running.
    pub fn begin_locking(&mut self, process: usize, by: usize) -> Result<(), Error> {
        self.step_progress(process, Progress::Running, Progress::Locking)?;
        self.set(Process(process as u64).locker(), by as u64 + 1);
        Ok(())
    }

    /// A process ends: whom it was locking goes on.
    pub(super) fn stop_locking(&mut self, by: Process) {
        for process in (0..PROCESSES).map(Process) {
            let locking = Progress::of(self.get(process.progress())) == Progress::Locking;
            if locking && self.get(process.locker()) == by.0 + 1 {
                self.set(process.progress(), Progress::Running.word());
            }
        }
    }

    /// Tickets of all that a process's streams still hold.
    #[must_use]
    pub fn unfinished(&self, process: usize) -> Vec<Ticket> {
        let now = self.now();
        self.contexts(process).into_iter().flat_map(|context| self.pending(context, now)).collect()
    }

    /// Takes the memory of a locked process off the GPUs.
    ///
    /// # Errors
    /// [`Error::State`] unless it is locked; [`Error::Unsupported`] for one that shares anything with other processes.
    pub fn checkpoint(&mut self, process: usize) -> Result<(), Error> {
        if self.progress(process) != Progress::Locked {
            return Err(WRONG_STATE);
        }
        if self.shares(Process(process as u64)) {
            return Err(Error::Unsupported("memory between processes cannot be checkpointed"));
        }
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(Process(process as u64), gpu);
            let memory = self.get(holding.memory());
            self.subtract(gpu.used(), memory);
            self.set(holding.memory(), 0);
            self.set(holding.away(), memory);
            self.leave_domains(Process(process as u64), gpu);
        }
        self.step_progress(process, Progress::Locked, Progress::Checkpointed)
    }

    /// Whether others have, or can ask for, anything that the process holds.
    fn shares(&self, process: Process) -> bool {
        self.held_by(process).into_iter().any(|export| {
            self.get(export.sent()) != 0
                || self.kind_of_export(export) != ExportKind::Memory
                || self.get(export.exporter()) != process.0 + 1
                || self.is_held_by_several(export)
        })
    }

    /// GPUs from which memory of the process is away.
    #[must_use]
    pub fn away_from(&self, process: usize) -> Vec<usize> {
        let process = Process(process as u64);
        let away = |gpu: &Gpu| self.get(Holding::of(process, *gpu).away()) != 0;
        (0..GPUS).map(Gpu).filter(away).map(|gpu| index(gpu.0)).collect()
    }

    /// Brings the memory of a checkpointed process back, all or nothing.
    ///
    /// # Errors
    /// [`Error::State`] unless it is checkpointed; [`Error::OutOfMemory`], when it stays so.
    pub fn restore(&mut self, process: usize) -> Result<(), Error> {
        if self.progress(process) != Progress::Checkpointed {
            return Err(WRONG_STATE);
        }
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(Process(process as u64), gpu);
            let away = self.get(holding.away());
            if away > self.get(gpu.usable()) - self.get(gpu.used()) {
                return Err(Error::OutOfMemory);
            }
            self.add(gpu.used(), away);
            self.set(holding.memory(), away);
            self.set(holding.away(), 0);
            self.enter_domains(Process(process as u64), gpu)?;
        }
        self.step_progress(process, Progress::Checkpointed, Progress::Locked)
    }

    /// Takes memory off what a process has on a GPU, or has away from it.
    pub(super) fn lighten(&mut self, holding: Holding, gpu: Gpu, size: u64) {
        if self.get(holding.away()) != 0 {
            self.subtract(holding.away(), size);
        } else {
            self.subtract(gpu.used(), size);
            self.subtract(holding.memory(), size);
        }
    }

    /// Memory of a process that is away from a GPU.
    #[must_use]
    pub fn away(&self, process: usize, gpu: usize) -> Bytes {
        Bytes(self.get(Holding::of(Process(process as u64), Gpu(gpu as u64)).away()))
    }
}
