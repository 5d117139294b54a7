//! Invariants between two operations, for tests and for segments of unknown state.

use super::agenda::{self, Due};
use super::checkpoint::Progress;
use super::command::Kind;
use super::copier::Direction;
use super::engine::State;
use super::event::events_of;
use super::group::{FRONT_END, Turn, placed_of, ready_of, ring_of};
use super::head::Head;
use super::process::contexts_of;
use super::records::{ContextId, GPUS, Gpu, Group, Holding, LEVELS, PROCESSES, Process, StreamId};
use super::stream::streams_of;
use super::{Ticket, Timeline};
use crate::footprint::Footprint;
use crate::kernel::NEVER;
use crate::words::{Words, index};

macro_rules! ensure {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(format!($($what)*));
        }
    };
}

impl<W: Words> Timeline<'_, W> {
    /// Checks that the state is consistent.
    ///
    /// # Errors
    /// A message that names the first inconsistency.
    pub fn check(&self) -> Result<(), String> {
        ensure!(agenda::is_valid(self.words), "the agenda is not a heap");
        if let Some((at, due)) = agenda::first(self.words) {
            ensure!(at >= self.now(), "{due:?} is due at {at}, and it is {} already", self.now());
        }
        self.check_shared()?;
        for gpu in (0..GPUS).map(Gpu) {
            self.check_gpu(gpu)?;
            self.check_accounts(gpu)?;
            self.check_groups(gpu)?;
        }
        for process in (0..PROCESSES).map(Process) {
            self.check_process(process)?;
        }
        self.check_teams()
    }

    fn check_gpu(&self, gpu: Gpu) -> Result<(), String> {
        let held: u64 =
            (0..PROCESSES).map(|p| self.get(Holding::of(Process(p), gpu).memory())).sum();
        let (used, orphaned) = (self.get(gpu.used()), self.get(gpu.orphaned()));
        ensure!(
            used == held + orphaned,
            "{gpu:?}: {used} bytes used, processes hold {held}, orphaned are {orphaned}"
        );
        ensure!(used <= self.get(gpu.usable()), "{gpu:?}: more used than there is");
        self.check_domains(gpu)?;
        let spent = self.get(gpu.busy()) + self.get(gpu.switching());
        ensure!(spent <= self.now().0, "{gpu:?}: busy for {spent} of {}", self.now());
        for group in ring_of(gpu).members(self.words).into_iter().map(Group) {
            ensure!(
                self.turn(group) == Turn::Waiting,
                "{group:?} is in the ring and does not wait"
            );
            ensure!(!self.is_empty(group), "{group:?} waits and has no work");
        }
        let running = self.get(gpu.running());
        match self.engine_state(gpu) {
            State::Idle => {
                ensure!(ring_of(gpu).is_empty(self.words), "{gpu:?} is idle while groups wait");
                ensure!(running == 0, "{gpu:?} is idle and computes");
            }
            State::Switching => {
                let group = Group(self.get(gpu.target()));
                ensure!(
                    self.turn(group) == Turn::Current,
                    "{gpu:?} switches to {group:?}, not current"
                );
                ensure!(running == 0, "{gpu:?} switches and computes");
            }
            State::Running => {
                let group = Group(self.get(gpu.resident()));
                ensure!(self.turn(group) == Turn::Current, "{gpu:?} runs {group:?}, not current");
                let idles = self.get(gpu.idle_until()) != 0;
                ensure!(idles == self.is_empty(group), "{gpu:?} runs {group:?}, idle: {idles}");
                ensure!(
                    idles == (running == 0),
                    "{gpu:?} runs {group:?}, idle: {idles}, and {running} compute"
                );
                ensure!(
                    self.get(gpu.run_start()) <= self.now().0,
                    "{gpu:?} began to run in the future"
                );
                self.check_running(gpu, group)?;
            }
        }
        for direction in [Direction::Up, Direction::Down] {
            for stream in direction.queue(gpu).members(self.words).into_iter().map(StreamId) {
                ensure!(
                    self.head(stream) == Head::Copying,
                    "{stream:?} is in a copy queue and does not copy"
                );
            }
        }
        Ok(())
    }

    /// Checks a group that has the GPU.
    fn check_running(&self, gpu: Gpu, group: Group) -> Result<(), String> {
        let (mut running, mut kernels, mut taken) = (0, 0, 0);
        let placed = placed_of(group).members(self.words);
        let ready = (0..LEVELS).flat_map(|urgency| ready_of(group, urgency).members(self.words));
        for stream in placed.iter().copied().chain(ready).map(StreamId) {
            let (share, computes) = (self.get(stream.share()), self.get(stream.rate()) != 0);
            let takes = self.head_footprint(stream);
            let has_some = share != 0 || self.head(stream) == Head::Placed;
            ensure!(
                computes == has_some,
                "{stream:?} has {share} of the GPU, computes: {computes}"
            );
            ensure!(share <= takes.share, "{stream:?} has {share} of the GPU and takes {takes:?}");
            ensure!(
                !takes.cooperative || share == 0 || share == takes.share,
                "{stream:?} has a part of what it needs"
            );
            running += u64::from(computes);
            kernels += u64::from(share != 0);
            taken += share;
        }
        ensure!(
            ready_of(group, FRONT_END).is_empty(self.words),
            "{group:?} has the GPU, its front end waits"
        );
        ensure!(
            taken == self.get(group.taken()) && taken <= Footprint::GPU,
            "{group:?} has {taken} of {gpu:?}"
        );
        let kernels = if self.figures.corun == 0 { 0 } else { kernels };
        let counted = (self.get(gpu.running()), self.get(gpu.kernels()));
        ensure!(
            counted == (running, kernels),
            "{gpu:?} counts {counted:?}, {running}, {kernels} compute"
        );
        Ok(())
    }

    fn check_process(&self, process: Process) -> Result<(), String> {
        let mut memory = [0; index(GPUS)];
        let mut queued = 0;
        for context in contexts_of(process).members(self.words).into_iter().map(ContextId) {
            ensure!(self.get(context.alive()) == 1, "{context:?} is destroyed and listed");
            ensure!(self.process_of(context) == process, "{context:?} is listed with {process:?}");
            memory[index(self.get(context.gpu()))] += self.get(context.memory());
            for stream in streams_of(context).members(self.words).into_iter().map(StreamId) {
                self.check_stream(context, stream)?;
                let tokens = self.queued_tokens(stream).len() as u64;
                ensure!(
                    self.effects_of(stream) == tokens,
                    "{stream:?} holds {tokens} effects and counts otherwise"
                );
                queued += tokens;
            }
            for event in events_of(context).members(self.words).into_iter().map(super::EventId) {
                ensure!(
                    self.get(event.context()) == context.0,
                    "{event:?} is listed with {context:?}"
                );
            }
        }
        for gpu in (0..GPUS).map(Gpu) {
            let held = self.get(Holding::of(process, gpu).memory());
            let sum = memory[index(gpu.0)] + self.get(Holding::of(process, gpu).own());
            let checkpointed = self.get(Holding::of(process, gpu).checkpointed());
            let is_checkpointed = self.progress(index(process.0)) == Progress::Checkpointed;
            ensure!(
                checkpointed == 0 || is_checkpointed,
                "{process:?} has {checkpointed} bytes of {gpu:?} in a checkpoint that is not there"
            );
            ensure!(
                checkpointed == 0 || held == 0,
                "{process:?} holds {held} bytes of {gpu:?} with {checkpointed} checkpointed"
            );
            let held = held + checkpointed;
            ensure!(held == sum, "{process:?} holds {held} bytes of {gpu:?}, its contexts {sum}");
        }
        self.check_exports(process)?;
        self.check_bindings(process)?;
        let counted = self.get(process.effects_queued());
        ensure!(
            counted == queued,
            "{process:?} counts {counted} effects to come, its streams hold {queued}"
        );
        Ok(())
    }

    fn check_stream(&self, context: ContextId, stream: StreamId) -> Result<(), String> {
        ensure!(self.get(stream.context()) == context.0, "{stream:?} is listed with {context:?}");
        let (issued, completed) = (self.get(stream.issued()), self.get(stream.completed()));
        let head = self.head(stream);
        ensure!(
            (issued == completed) == (head == Head::Empty),
            "{stream:?}: {completed}/{issued}, {head:?}"
        );
        ensure!(self.get(stream.done_at()) <= self.now().0, "{stream:?} completed in the future");
        let group = self.group_of(context);
        let placed = placed_of(group).members(self.words).contains(&stream.0);
        ensure!(placed == (head == Head::Placed), "{stream:?} is {head:?}, placed: {placed}");
        let mut levels = (0..LEVELS).map(|urgency| ready_of(group, urgency).members(self.words));
        let ready = levels.any(|level| level.contains(&stream.0));
        ensure!(ready == (head == Head::Computing), "{stream:?} is {head:?}, ready: {ready}");
        let computes = self.get(stream.rate()) != 0;
        if matches!(head, Head::Computing | Head::Placed) {
            ensure!(
                self.turn(group) != Turn::Parked,
                "{group:?} is parked, {stream:?} wants to compute"
            );
            let gpu = Gpu(self.get(context.gpu()));
            let on_gpu =
                self.turn(group) == Turn::Current && self.engine_state(gpu) == State::Running;
            ensure!(on_gpu || !computes, "{stream:?} computes, {group:?} does not");
        } else {
            ensure!(
                !computes && self.get(stream.share()) == 0,
                "{stream:?} is {head:?} and on the GPU"
            );
        }
        let ends = computes && self.get(stream.remaining()) < NEVER.0;
        let timed =
            ends || matches!(head, Head::Arriving | Head::Timed | Head::Woken | Head::Stalled);
        ensure!(
            timed == agenda::runs(self.words, Due::Stream(stream)),
            "{stream:?}: {head:?} and its timer"
        );
        if head == Head::Blocked {
            let slot = self.head_slot(stream);
            let kind = self.kind(slot);
            ensure!(matches!(kind, Kind::Wait | Kind::Acquire), "{stream:?} is blocked by no wait");
            if kind == Kind::Wait {
                let ticket = Ticket {
                    stream: StreamId(self.get(slot.subject())),
                    number: self.get(slot.number()),
                };
                ensure!(!self.is_done(ticket), "{stream:?} is blocked by what is done");
            } else {
                ensure!(
                    self.is_listed(stream),
                    "{stream:?} waits for a semaphore that does not list it"
                );
            }
        }
        Ok(())
    }
}
