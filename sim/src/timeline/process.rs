//! Processes: live, dying, gone; and the effects that they still have to perform.

use cgpu_shm::units::Nanos;

use super::agenda::{self, Due};
use super::list::List;
use super::records::{
    ContextId, EFFECTS, Effect, GPUS, Global, Gpu, Holding, PROCESSES, Process, Slot, StreamId,
};
use super::{Timeline, states};
use crate::words::{At, Words, index};

states! {
    /// The state of a process's record.
    pub ProcessState {
        /// Unused.
        Free,
        /// Of an attached process.
        Live,
        /// Of an exited process whose contexts still exist.
        Dying,
    }
}

/// An effect that the process must now perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectDue {
    /// When it was due.
    pub at: Nanos,
    /// The process's own number for it.
    pub token: u64,
}

/// Returns the word of a process's checkpoint state, for reads without the lock.
pub(crate) const fn progress_at(process: usize) -> At {
    Process(process as u64).progress()
}

/// Returns the word of a process's state, for reads without the lock.
pub(crate) const fn process_state_at(process: usize) -> At {
    Process(process as u64).state()
}

pub(super) const fn contexts_of(process: Process) -> List {
    List {
        first: process.first_context(),
        last: process.last_context(),
        next: |context| ContextId(context).next_in_process(),
        previous: |context| ContextId(context).previous_in_process(),
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Assigns a free record to a process.
    pub fn attach(&mut self, process: usize, pid: u32) {
        let process = Process(process as u64);
        self.set(process.state(), ProcessState::Live.word());
        self.set(process.pid(), u64::from(pid));
        let due = self.get(process.effects_due());
        self.set(process.effects_taken(), due);
        self.set(process.effects_queued(), 0);
        self.set(process.uses_cuda(), 0);
        self.set(process.progress(), 0);
        self.set(process.group(), 0);
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(process, gpu);
            self.set(holding.busy(), 0);
            self.set(holding.kernels(), 0);
            self.set(holding.account(), 0);
            self.forget_windows(holding);
        }
    }

    /// Notes that a process has exited: its contexts end after the delay of a driver.
    pub fn die(&mut self, process: usize, now: Nanos) {
        let process = Process(process as u64);
        self.set(process.state(), ProcessState::Dying.word());
        agenda::schedule(self.words, Due::Process(process), now + self.figures.death_delay);
    }

    /// Detaches a process: its contexts end at once.
    pub fn detach(&mut self, process: usize, now: Nanos) {
        self.process_due(Process(process as u64), now);
    }

    /// Ends everything of a process, piece by piece. If the caller dies meanwhile, the timer is
    /// still there for the next.
    pub(super) fn process_due(&mut self, process: Process, t: Nanos) {
        for context in contexts_of(process).members(self.words) {
            self.destroy_context(ContextId(context), t);
            self.words.seam();
        }
        self.drop_all_holds(process);
        self.close_accounts(process, t);
        self.stop_locking(process);
        agenda::cancel(self.words, Due::Process(process));
        self.set(process.state(), ProcessState::Free.word());
    }

    /// Returns the state of a record.
    #[must_use]
    pub fn process_state(&self, process: usize) -> ProcessState {
        ProcessState::of(self.get(process_state_at(process)))
    }

    /// Returns the number of process records.
    #[must_use]
    pub const fn process_count(&self) -> usize {
        index(PROCESSES)
    }

    /// Returns the id of a process in its own PID namespace.
    #[must_use]
    pub fn pid_of(&self, process: usize) -> u32 {
        u32::try_from(self.get(Process(process as u64).pid())).unwrap_or(0)
    }

    /// Returns whether the last check for exited processes was at least `interval` ago. If so, the
    /// caller must check now.
    pub fn may_reap(&mut self, now: Nanos, interval: Nanos) -> bool {
        let due = now.0 >= self.get(Global(0).reaped()) + interval.0;
        if due {
            self.set(Global(0).reaped(), now.0);
        }
        due
    }

    /// Returns the contexts of a process.
    #[must_use]
    pub fn contexts(&self, process: usize) -> Vec<ContextId> {
        contexts_of(Process(process as u64))
            .members(self.words)
            .into_iter()
            .map(ContextId)
            .collect()
    }

    /// Returns on how many GPUs the context's process has contexts.
    #[must_use]
    pub fn gpus_of_process(&self, context: ContextId) -> u64 {
        let process = self.process_of(context);
        let has = |gpu| self.get(Holding::of(process, Gpu(gpu)).contexts()) != 0;
        (0..GPUS).map(|gpu| u64::from(has(gpu))).sum()
    }

    /// Makes the command's effect due. Returns `false` if the process has too many due effects.
    pub(super) fn effect(&mut self, stream: StreamId, slot: Slot, t: Nanos) -> bool {
        let token = self.get(slot.token());
        if token == 0 {
            return true;
        }
        let process = self.process_of(ContextId(self.get(stream.context())));
        let due = self.get(process.effects_due());
        if due - self.get(process.effects_taken()) >= EFFECTS {
            return false;
        }
        let effect = Effect::of(process, due);
        self.set(effect.at(), t.0);
        self.set(effect.token(), token);
        self.set(process.effects_due(), due + 1);
        self.subtract(process.effects_queued(), 1);
        self.subtract(stream.effects(), 1);
        true
    }

    /// Takes the due effects of a process, in order.
    pub fn take_effects(&mut self, process: usize, into: &mut Vec<EffectDue>) {
        let process = Process(process as u64);
        let due = self.get(process.effects_due());
        for number in self.get(process.effects_taken())..due {
            let effect = Effect::of(process, number);
            into.push(EffectDue {
                at: Nanos(self.get(effect.at())),
                token: self.get(effect.token()),
            });
        }
        self.set(process.effects_taken(), due);
    }

    /// Returns how many effects of a process were ever due.
    #[must_use]
    pub fn effects_due(&self, process: usize) -> u64 {
        self.get(Process(process as u64).effects_due())
    }

    /// Returns whether the process has effects to perform, now or when queued commands are done.
    #[must_use]
    pub fn has_pending_effects(&self, process: usize) -> bool {
        let process = Process(process as u64);
        self.get(process.effects_queued()) != 0
            || self.get(process.effects_due()) != self.get(process.effects_taken())
    }

    /// Returns whether queued commands of the process will have effects.
    #[must_use]
    pub fn has_queued_effects(&self, process: usize) -> bool {
        self.get(Process(process as u64).effects_queued()) != 0
    }
}
