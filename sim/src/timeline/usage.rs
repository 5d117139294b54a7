//! Usage: how long each process computed, in total and by windows.
//!
//! NVML's figures are of windows: the busy time of the last whole one, as an integer percentage. As
//! on a GPU, they are late by up to a window, and do not show anything shorter.

use core::ops::Range;

use cgpu_shm::units::{Bytes, Nanos};

use super::checkpoint::Progress;
use super::process::{ProcessState, contexts_of};
use super::records::{ContextId, Gpu, Group, Holding, PROCESSES, Process, WINDOWS, Window};
use super::{Timeline, index};
use crate::words::Words;

/// How a GPU's time was spent since the segment was created, exactly. The rest is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTime {
    /// Time in which commands computed.
    pub busy: Nanos,
    /// Time of context switches.
    pub switching: Nanos,
    /// Switches begun.
    pub switches: u64,
}

/// A process's use of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUse {
    /// Its number in the timeline.
    pub process: usize,
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// Its memory on the GPU, contexts included.
    pub memory: Bytes,
    /// Exact time that its commands computed on the GPU.
    pub busy: Nanos,
    /// Kernels completed on the GPU.
    pub kernels: u64,
    /// Whether it has exited and its memory still exists.
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

/// NVML's utilisation of a GPU in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSample {
    /// End of the window, in device time.
    pub at: Nanos,
    /// Percent of the window in which it computed or switched.
    pub percent: u32,
}

impl<W: Words> Timeline<'_, W> {
    /// Accounts for everything computed up to `t`, so that all figures are exact at `t`.
    pub(super) fn account_engine(&mut self, gpu: Gpu, t: Nanos) {
        if self.get(gpu.running()) == 0 {
            return;
        }
        self.account_gpu(gpu, t);
        let group = Group(self.get(gpu.resident()));
        if group.context().is_none() {
            for process in (0..PROCESSES).map(Process) {
                for context in contexts_of(process).members(self.words).into_iter().map(ContextId) {
                    if self.get(context.gpu()) == gpu.0 && self.get(context.running()) != 0 {
                        self.account_merged(gpu, context, t);
                    }
                }
            }
        }
        if self.traces() {
            self.each_on_gpu(gpu, group, t, Self::account_command);
        }
    }

    /// Accounts for what the current group has computed up to `t`.
    pub(super) fn account_gpu(&mut self, gpu: Gpu, t: Nanos) {
        let from = Nanos(self.get(gpu.run_start()));
        self.add(gpu.busy(), t.0 - from.0);
        self.fill_windows(from, t, |window| Window::of_gpu(gpu, window));
        if let Some(context) = Group(self.get(gpu.resident())).context() {
            self.account_context(gpu, context, from, t);
        }
        self.set(gpu.run_start(), t.0);
    }

    /// Accounts for what a context of a GPU's group has computed up to `t`.
    pub(super) fn account_merged(&mut self, gpu: Gpu, context: ContextId, t: Nanos) {
        let from = Nanos(self.get(context.run_start()));
        self.account_context(gpu, context, from, t);
        self.set(context.run_start(), t.0);
    }

    fn account_context(&mut self, gpu: Gpu, context: ContextId, from: Nanos, t: Nanos) {
        let holding = Holding::of(self.process_of(context), gpu);
        for at in [context.busy(), holding.busy()] {
            self.add(at, t.0 - from.0);
        }
        self.fill_windows(from, t, |window| Window::of_holding(holding, window));
    }

    pub(super) fn account_switching(&mut self, gpu: Gpu, t: Nanos) {
        let start = Nanos(self.get(gpu.switch_start()));
        self.add(gpu.switching(), t.0 - start.0);
        self.fill_windows(start, t, |window| Window::of_gpu(gpu, window));
        self.trace_switched(gpu, start, t);
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

    /// Returns the percentage of a window, rounded down; 0 if it has no record.
    fn percent(&self, record: Window, window: u64) -> u32 {
        if self.get(record.index()) != window {
            return 0;
        }
        u32::try_from(self.get(record.busy()) * 100 / self.figures.window.0).unwrap_or(100).min(100)
    }

    /// Accounts for what computes on the GPU up to `now`, so that later reads are exact.
    pub fn account_up_to(&mut self, gpu: usize, now: Nanos) {
        self.account_engine(Gpu(gpu as u64), now);
    }

    /// Returns how a GPU's time was spent, up to the last [`Timeline::account_up_to`].
    #[must_use]
    pub fn engine_time(&self, gpu: usize) -> EngineTime {
        let gpu = Gpu(gpu as u64);
        EngineTime {
            busy: Nanos(self.get(gpu.busy())),
            switching: Nanos(self.get(gpu.switching())),
            switches: self.get(gpu.switches()),
        }
    }

    /// Returns how long a context's commands computed, up to the last [`Timeline::account_up_to`].
    #[must_use]
    pub fn context_busy(&self, context: ContextId) -> Nanos {
        Nanos(self.get(context.busy()))
    }

    /// Returns the processes with contexts or memory on a GPU, up to the last
    /// [`Timeline::account_up_to`].
    #[must_use]
    pub fn processes(&self, gpu: usize) -> Vec<ProcessUse> {
        let uses = self.holders(gpu).map(|(process, holding)| ProcessUse {
            process: index(process.0),
            pid: self.pid(process),
            memory: Bytes(self.get(holding.memory())),
            busy: Nanos(self.get(holding.busy())),
            kernels: self.get(holding.kernels()),
            dying: self.process_state(index(process.0)) == ProcessState::Dying,
        });
        uses.collect()
    }

    /// Returns NVML's utilisation of a GPU: the percentage of the last whole window in which it
    /// computed or switched.
    #[must_use]
    pub fn utilisation(&self, gpu: usize, now: Nanos) -> u32 {
        match (now.0 / self.figures.window.0).checked_sub(1) {
            Some(window) => self.percent(Window::of_gpu(Gpu(gpu as u64), window), window),
            None => 0,
        }
    }

    /// Returns the whole windows at `now` that ended after `since`, at most the last 14, which are
    /// kept.
    fn whole_windows(&self, since: Nanos, now: Nanos) -> Range<u64> {
        let length = self.figures.window.0;
        let whole = now.0 / length;
        (since.0 / length).max(whole.saturating_sub(WINDOWS - 2))..whole
    }

    /// Returns NVML's utilisation of a GPU, window by window, oldest first.
    #[must_use]
    pub fn gpu_samples(&self, gpu: usize, since: Nanos, now: Nanos) -> Vec<GpuSample> {
        let gpu = Gpu(gpu as u64);
        let sample = |window| GpuSample {
            at: Nanos((window + 1) * self.figures.window.0),
            percent: self.percent(Window::of_gpu(gpu, window), window),
        };
        self.whole_windows(since, now).map(sample).collect()
    }

    /// Returns NVML's utilisation by process: a sample for each that computed in the whole windows
    /// that ended after `since`, their mean as an integer.
    #[must_use]
    pub fn process_samples(&self, gpu: usize, since: Nanos, now: Nanos) -> Vec<ProcessSample> {
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
            let percent =
                u32::try_from((busy * 100).checked_div(span).unwrap_or(0)).unwrap_or(100).min(100);
            let (process, pid) = (index(process.0), self.pid(process));
            (percent > 0).then_some(ProcessSample { process, pid, at, percent })
        };
        self.holders(gpu).filter_map(sample).collect()
    }

    /// Returns the processes that use a GPU, without checkpointed ones.
    fn holders(&self, gpu: usize) -> impl Iterator<Item = (Process, Holding)> {
        (0..PROCESSES)
            .map(Process)
            .filter(|process| self.progress(index(process.0)) != Progress::Checkpointed)
            .map(move |process| (process, Holding::of(process, Gpu(gpu as u64))))
            .filter(|(_, holding)| {
                self.get(holding.contexts()) != 0 || self.get(holding.memory()) != 0
            })
    }

    fn pid(&self, process: Process) -> u32 {
        u32::try_from(self.get(process.pid())).unwrap_or(0)
    }
}
