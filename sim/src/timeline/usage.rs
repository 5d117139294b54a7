//! The books: who computed for how long, in all and by windows.
//!
//! NVML's figures are of windows: the busy time of the last whole one, as an integer percentage. They are late by up to
//! a window and blind to anything shorter, as on a card.

use core::ops::Range;

use cgpu_shm::units::{Bytes, Nanos};

use super::checkpoint::Progress;
use super::process::{ProcessState, contexts_of};
use super::records::{Card, ContextId, Group, Holding, PROCESSES, Process, WINDOWS, Window};
use super::{Timeline, index};
use crate::words::Words;

/// How a card's time was spent since the segment was made: the simulator's own truth. The rest is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTime {
    /// Kernels and other commands computed.
    pub busy: Nanos,
    /// Contexts were changed.
    pub switching: Nanos,
    /// Changes begun.
    pub switches: u64,
}

/// What a process has done and has on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its number in the timeline.
    pub process: usize,
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// Its memory on the card, contexts included.
    pub memory: Bytes,
    /// Time its commands computed on the card, exact: the simulator's own truth.
    pub busy: Nanos,
    /// Kernels completed on the card.
    pub kernels: u64,
    /// Dead, its memory not yet gone.
    pub dying: bool,
}

/// NVML's utilisation of one process over some windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// Its number in the timeline.
    pub process: usize,
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// End of the last window, in device time.
    pub at: Nanos,
    /// Percent of the windows in which its kernels ran.
    pub percent: u32,
}

/// NVML's utilisation of a card in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardSample {
    /// End of the window, in device time.
    pub at: Nanos,
    /// Percent of the window in which it computed or switched.
    pub percent: u32,
}

impl<W: Words> Timeline<'_, W> {
    /// Books what has been computed up to `t`, so that everything readable is exact at `t`.
    pub(super) fn settle_engine(&mut self, card: Card, t: Nanos) {
        if self.get(card.running()) == 0 {
            return;
        }
        self.account_card(card, t);
        let group = Group(self.get(card.resident()));
        if group.context().is_none() {
            for process in (0..PROCESSES).map(Process) {
                for context in contexts_of(process).members(self.words).into_iter().map(ContextId) {
                    if self.get(context.card()) == card.0 && self.get(context.running()) != 0 {
                        self.account_merged(card, context, t);
                    }
                }
            }
        }
        if self.traces() {
            self.each_on_card(card, group, t, Self::settle_command);
        }
    }

    /// The group that has the card has computed up to `t`.
    pub(super) fn account_card(&mut self, card: Card, t: Nanos) {
        let from = Nanos(self.get(card.run_start()));
        self.add(card.busy(), t.0 - from.0);
        self.fill_windows(from, t, |window| Window::of_card(card, window));
        if let Some(context) = Group(self.get(card.resident())).context() {
            self.account_context(card, context, from, t);
        }
        self.set(card.run_start(), t.0);
    }

    /// A context of a card's group has computed up to `t`.
    pub(super) fn account_merged(&mut self, card: Card, context: ContextId, t: Nanos) {
        let from = Nanos(self.get(context.run_start()));
        self.account_context(card, context, from, t);
        self.set(context.run_start(), t.0);
    }

    fn account_context(&mut self, card: Card, context: ContextId, from: Nanos, t: Nanos) {
        let holding = Holding::of(self.process_of(context), card);
        for at in [context.busy(), holding.busy()] {
            self.add(at, t.0 - from.0);
        }
        self.fill_windows(from, t, |window| Window::of_holding(holding, window));
    }

    pub(super) fn account_switching(&mut self, card: Card, t: Nanos) {
        let start = Nanos(self.get(card.switch_start()));
        self.add(card.switching(), t.0 - start.0);
        self.fill_windows(start, t, |window| Window::of_card(card, window));
        self.trace_switched(card, start, t);
    }

    fn fill_windows(&mut self, from: Nanos, to: Nanos, record: impl Fn(u64) -> Window) {
        let length = self.figures.window.0;
        let last = to.0 / length;
        let first = (from.0 / length).max(last.saturating_sub(WINDOWS - 1));
        for window in first..=last {
            let start = from.0.max(window * length);
            let end = to.0.min((window + 1) * length);
            let record = record(window);
            if self.get(record.index()) == window {
                self.add(record.busy(), end - start);
            } else {
                self.set(record.index(), window);
                self.set(record.busy(), end - start);
            }
        }
    }

    pub(super) fn forget_windows(&mut self, holding: Holding) {
        for window in 0..WINDOWS {
            self.set(Window::of_holding(holding, window).busy(), 0);
        }
    }

    /// Percent of a window, rounded down; 0 where nothing was booked.
    fn percent(&self, record: Window, window: u64) -> u32 {
        if self.get(record.index()) != window {
            return 0;
        }
        u32::try_from(self.get(record.busy()) * 100 / self.figures.window.0).unwrap_or(100).min(100)
    }

    /// Books what computes on the card up to `now`, so that all that follows is exact.
    pub fn settle(&mut self, card: usize, now: Nanos) {
        self.settle_engine(Card(card as u64), now);
    }

    /// How a card's time was spent, up to the last [`Timeline::settle`].
    #[must_use]
    pub fn engine_time(&self, card: usize) -> EngineTime {
        let card = Card(card as u64);
        EngineTime {
            busy: Nanos(self.get(card.busy())),
            switching: Nanos(self.get(card.switching())),
            switches: self.get(card.switches()),
        }
    }

    /// Time that a context's commands computed, up to the last [`Timeline::settle`].
    #[must_use]
    pub fn context_busy(&self, context: ContextId) -> Nanos {
        Nanos(self.get(context.busy()))
    }

    /// Processes with contexts or memory on a card, up to the last [`Timeline::settle`].
    #[must_use]
    pub fn processes(&self, card: usize) -> Vec<ProcessUse> {
        let uses = self.holders(card).map(|(process, holding)| ProcessUse {
            process: index(process.0),
            pid: self.pid(process),
            memory: Bytes(self.get(holding.memory())),
            busy: Nanos(self.get(holding.busy())),
            kernels: self.get(holding.kernels()),
            dying: self.process_state(index(process.0)) == ProcessState::Dying,
        });
        uses.collect()
    }

    /// NVML's utilisation of a card: percent of the last window that is whole at `now` in which it computed or
    /// switched.
    #[must_use]
    pub fn utilisation(&self, card: usize, now: Nanos) -> u32 {
        match (now.0 / self.figures.window.0).checked_sub(1) {
            Some(window) => self.percent(Window::of_card(Card(card as u64), window), window),
            None => 0,
        }
    }

    /// The whole windows at `now` that ended after `since`, as far as they are remembered: the last 14.
    fn whole_windows(&self, since: Nanos, now: Nanos) -> Range<u64> {
        let length = self.figures.window.0;
        let whole = now.0 / length;
        (since.0 / length).max(whole.saturating_sub(WINDOWS - 2))..whole
    }

    /// NVML's utilisation of a card, window by window, oldest first.
    #[must_use]
    pub fn card_samples(&self, card: usize, since: Nanos, now: Nanos) -> Vec<CardSample> {
        let card = Card(card as u64);
        let sample = |window| CardSample {
            at: Nanos((window + 1) * self.figures.window.0),
            percent: self.percent(Window::of_card(card, window), window),
        };
        self.whole_windows(since, now).map(sample).collect()
    }

    /// NVML's utilisation by processes: one sample for each that computed in the whole windows that ended after `since`, their mean
    /// as an integer.
    #[must_use]
    pub fn process_samples(&self, card: usize, since: Nanos, now: Nanos) -> Vec<ProcessSample> {
        let windows = self.whole_windows(since, now);
        let at = Nanos(windows.end * self.figures.window.0);
        let span = (windows.end - windows.start) * self.figures.window.0;
        let sample = |(process, holding): (Process, Holding)| {
            let busy: u64 = windows
                .clone()
                .map(|window| (Window::of_holding(holding, window), window))
                .filter(|&(record, window)| self.get(record.index()) == window)
                .map(|(record, _)| self.get(record.busy()))
                .sum();
            let percent = u32::try_from((busy * 100).checked_div(span).unwrap_or(0)).unwrap_or(100).min(100);
            let (process, pid) = (index(process.0), self.pid(process));
            (percent > 0).then_some(ProcessSample { process, pid, at, percent })
        };
        self.holders(card).filter_map(sample).collect()
    }

    /// Whoever has something on a card; not who is checkpointed.
    fn holders(&self, card: usize) -> impl Iterator<Item = (Process, Holding)> {
        (0..PROCESSES)
            .map(Process)
            .filter(|process| self.progress(index(process.0)) != Progress::Checkpointed)
            .map(move |process| (process, Holding::of(process, Card(card as u64))))
            .filter(|(_, holding)| self.get(holding.contexts()) != 0 || self.get(holding.memory()) != 0)
    }

    fn pid(&self, process: Process) -> u32 {
        u32::try_from(self.get(process.pid())).unwrap_or(0)
    }
}
