//! The books: who computed for how long, in all and by windows.
//!
//! NVML's figures are of windows: the busy time of the last whole one, as an integer percentage. They are late by up to
//! a window and blind to anything shorter, as on a card.

use cgpu_proto::units::{Bytes, Nanos};

use super::process::ProcessState;
use super::records::{Card, ContextId, Holding, PROCESSES, Process, WINDOWS, Window};
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

/// NVML's utilisation of one process in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// The process.
    pub pid: u32,
    /// End of the window, in device time.
    pub at: Nanos,
    /// Percent of the window in which its kernels ran.
    pub percent: u32,
}

impl<W: Words> Timeline<'_, W> {
    pub(super) fn account_busy(&mut self, card: Card, context: ContextId, from: Nanos, to: Nanos) {
        let span = to.0 - from.0;
        let holding = self.holding_of(context);
        for at in [card.busy(), context.busy(), holding.busy()] {
            self.add(at, span);
        }
        self.fill_windows(from, to, |window| Window::of_card(card, window));
        self.fill_windows(from, to, |window| Window::of_holding(holding, window));
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

    /// Processes with contexts on a card, up to the last [`Timeline::settle`].
    #[must_use]
    pub fn processes(&self, card: usize) -> Vec<ProcessUse> {
        let uses = self.holders(card).map(|(process, holding)| ProcessUse {
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

    /// NVML's utilisation by processes: one sample for every window that ended after `since`, is whole at `now`, and in
    /// which the process computed; oldest first. The last 14 windows are remembered.
    #[must_use]
    pub fn process_samples(&self, card: usize, since: Nanos, now: Nanos) -> Vec<ProcessSample> {
        let length = self.figures.window.0;
        let whole = now.0 / length;
        let first = (since.0 / length).max(whole.saturating_sub(WINDOWS - 2));
        let mut samples = Vec::new();
        for window in first..whole {
            for (process, holding) in self.holders(card) {
                let percent = self.percent(Window::of_holding(holding, window), window);
                if percent > 0 {
                    let at = Nanos((window + 1) * length);
                    samples.push(ProcessSample { pid: self.pid(process), at, percent });
                }
            }
        }
        samples
    }

    fn holders(&self, card: usize) -> impl Iterator<Item = (Process, Holding)> {
        (0..PROCESSES)
            .map(Process)
            .map(move |process| (process, Holding::of(process, Card(card as u64))))
            .filter(|(_, holding)| self.get(holding.contexts()) != 0)
    }

    fn pid(&self, process: Process) -> u32 {
        u32::try_from(self.get(process.pid())).unwrap_or(0)
    }
}
