//! Processes: alive, dying, gone; and the effects that they owe their own memory.

use cgpu_shm::units::Nanos;

use super::agenda::{self, Due};
use super::list::List;
use super::records::{
    ContextId, EFFECTS, Effect, GPUS, Global, Gpu, Holding, PROCESSES, Process, Slot, StreamId,
};
use super::{Timeline, states};
use crate::words::{At, Words, index};

states! {
    /// What is known of a process's record.
    pub ProcessState {
        /// Nobody's.
        Free,
        /// Somebody's.
        Live,
        /// Somebody's who is dead, and whose contexts are not gone yet.
        Dying,
    }
}

/// An effect that the process is to perform now: what `token` names happened on the GPU at the instant `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectDue {
    /// When.
    pub at: Nanos,
    /// What, in the process's own terms.
    pub token: u64,
}

/// Where it lies how far a process is with a checkpoint, for whoever looks without the lock.
pub(crate) const fn progress_at(process: usize) -> At {
    Process(process as u64).progress()
}

/// Where a process's state lies, for whoever looks without the lock.
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
    /// Gives a free record to a process.
    pub fn attach(&mut self, process: usize, pid: u32) {
        let process = Process(process as u64);
        self.set(process.state(), ProcessState::Live.word());
        self.set(process.pid(), u64::from(pid));
        let due = self.get(process.effects_due());
        self.set(process.effects_taken(), due);
        self.set(process.effects_queued(), 0);
        self.set(process.drives(), 0);
        self.set(process.progress(), 0);
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(process, gpu);
            self.set(holding.busy(), 0);
            self.set(holding.kernels(), 0);
            self.set(holding.account(), 0);
            self.forget_windows(holding);
        }
    }

    /// The process is dead: its contexts go after the delay that a driver takes.
    pub fn die(&mut self, process: usize, now: Nanos) {
        let process = Process(process as u64);
        self.set(process.state(), ProcessState::Dying.word());
        agenda::schedule(self.words, Due::Process(process), now + self.figures.death_delay);
    }

    /// The process leaves in good order: its contexts go at once.
    pub fn detach(&mut self, process: usize, now: Nanos) {
        self.process_due(Process(process as u64), now);
    }

    /// Ends all that a process had. Done piece by piece: should whoever does it die, the timer is still there for the
    /// next.
    pub(super) fn process_due(&mut self, process: Process, t: Nanos) {
        for context in contexts_of(process).members(self.words) {
            self.destroy_context(ContextId(context), t);
            self.words.seam();
        }
        self.let_all_go(process);
        self.close_accounts(process, t);
        self.stop_locking(process);
        agenda::cancel(self.words, Due::Process(process));
        self.set(process.state(), ProcessState::Free.word());
    }

    /// What is known of a record.
    #[must_use]
    pub fn process_state(&self, process: usize) -> ProcessState {
        ProcessState::of(self.get(process_state_at(process)))
    }

    /// Records of processes.
    #[must_use]
    pub const fn process_count(&self) -> usize {
        index(PROCESSES)
    }

    /// The id that a process has in its own PID namespace.
    #[must_use]
    pub fn pid_of(&self, process: usize) -> u32 {
        u32::try_from(self.get(Process(process as u64).pid())).unwrap_or(0)
    }

    /// Whether dead processes were last looked for so long ago; if so they are looked for now, by the caller.
    pub fn may_reap(&mut self, now: Nanos, interval: Nanos) -> bool {
        let due = now.0 >= self.get(Global(0).reaped()) + interval.0;
        if due {
            self.set(Global(0).reaped(), now.0);
        }
        due
    }

    /// The contexts of a process.
    #[must_use]
    pub fn contexts(&self, process: usize) -> Vec<ContextId> {
        contexts_of(Process(process as u64))
            .members(self.words)
            .into_iter()
            .map(ContextId)
            .collect()
    }

    /// On how many GPUs the context's process has contexts.
    #[must_use]
    pub fn gpus_of_process(&self, context: ContextId) -> u64 {
        let process = self.process_of(context);
        let has = |gpu| self.get(Holding::of(process, Gpu(gpu)).contexts()) != 0;
        (0..GPUS).map(|gpu| u64::from(has(gpu))).sum()
    }

    /// Lets the command's effect come due. `false`: the process is too far behind.
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

    /// Takes the effects of a process that came due, in their order.
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

    /// Effects of a process that came due, ever.
    #[must_use]
    pub fn effects_due(&self, process: usize) -> u64 {
        self.get(Process(process as u64).effects_due())
    }

    /// Whether the process has effects to perform, now or when commands that are queued are done.
    #[must_use]
    pub fn owes_effects(&self, process: usize) -> bool {
        let process = Process(process as u64);
        self.get(process.effects_queued()) != 0
            || self.get(process.effects_due()) != self.get(process.effects_taken())
    }

    /// Whether commands of the process are queued that will have effects.
    #[must_use]
    pub fn awaits_effects(&self, process: usize) -> bool {
        self.get(Process(process as u64).effects_queued()) != 0
    }
}
