//! What NVML reports, and exact figures for tests.

use cgpu_shm::units::Nanos;

use super::{ClockRate, ContextId, EngineTime, GpuSample, Machine, ProcessSample, ProcessUse, Xid};
use crate::error::Error;
use crate::identity::{Identity, PidResolver};

/// NVML's utilisation: integer percent of the last whole window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilisation {
    /// Percent of time in which the GPU computed or switched.
    pub gpu: u32,
    /// Percent of time in which memory was read or written; not modelled: a third of `gpu`.
    pub memory: u32,
}

/// Interval between two checks for exited processes by readers, if no client checks.
pub(super) const REAP_INTERVAL: Nanos = Nanos::from_millis(20);

impl Machine {
    /// Returns the processes with contexts on a GPU that exist in this process's PID namespace,
    /// with their ids there.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn processes(&self, gpu: usize) -> Result<Vec<ProcessUse>, Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), REAP_INTERVAL)?;
        self.core.end_unused_exports()?;
        let uses: Vec<_> = self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            let uses = timeline.processes(gpu).into_iter();
            Ok(uses
                .map(|each| (self.core.segment.identity(each.process, each.pid), each))
                .collect())
        })?;
        Ok(self.with_nvml_pids(uses, |each, pid| ProcessUse { pid, ..each }))
    }

    /// Returns a GPU's utilisation.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn utilisation(&self, gpu: usize) -> Result<Utilisation, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            let gpu = timeline.utilisation(gpu, now);
            Ok(Utilisation { gpu, memory: gpu / 3 })
        })
    }

    /// Returns a sample for each process that computed in the whole windows that ended after
    /// `since`: the mean over at most the last 14.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn process_utilisation(
        &self,
        gpu: usize,
        since: Nanos,
    ) -> Result<Vec<ProcessSample>, Error> {
        self.check_gpu(gpu)?;
        let samples: Vec<_> = self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            let samples = timeline.process_samples(gpu, since, now).into_iter();
            Ok(samples
                .map(|each| (self.core.segment.identity(each.process, each.pid), each))
                .collect())
        })?;
        Ok(self.with_nvml_pids(samples, |each, pid| ProcessSample { pid, ..each }))
    }

    /// Returns a GPU's utilisation in each whole window that ended after `since`, oldest first; at
    /// most the last 14 windows.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn gpu_utilisation(&self, gpu: usize, since: Nanos) -> Result<Vec<GpuSample>, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            Ok(timeline.gpu_samples(gpu, since, now))
        })
    }

    /// Makes a GPU report an error (an XID).
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn inject_xid(&self, gpu: usize, code: u64) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, now| {
            timeline.inject_xid(gpu, code, now);
            Ok(())
        })
    }

    /// Returns the rate of a GPU's clock, which stamps events.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn clock_rate(&self, gpu: usize) -> Result<ClockRate, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.clock_rate(gpu)))
    }

    /// Changes the rate of a GPU's clock from now on, and moves the clock by `step` nanoseconds.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn set_clock(&self, gpu: usize, rate: ClockRate, step: i64) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| {
            timeline.set_clock(gpu, rate, step);
            Ok(())
        })
    }

    /// Returns the errors that GPUs have reported after the `number`-th of all.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Stuck`], [`Error::System`].
    pub fn xids_after(&self, number: u64) -> Result<Vec<Xid>, Error> {
        self.core.with(|timeline, _| Ok(timeline.xids_after(number)))
    }

    /// Delays the caller by the time that a query of the kernel driver takes.
    pub fn spend(&self, span: Nanos) {
        self.core.clock.wait_until(self.now() + span);
    }

    /// Returns how a GPU's time was spent.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn engine_time(&self, gpu: usize) -> Result<EngineTime, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            Ok(timeline.engine_time(gpu))
        })
    }

    /// Returns the exact time that a context's commands ran.
    ///
    /// # Errors
    /// [`Error::NoContext`].
    pub fn context_busy(&self, context: ContextId) -> Result<Nanos, Error> {
        self.core.with(|timeline, now| {
            let gpu = self.core.own_context(timeline, context)?;
            timeline.account_up_to(gpu, now);
            Ok(timeline.context_busy(context))
        })
    }

    /// Returns how many processes died while they held the segment's lock. For tests.
    #[must_use]
    pub fn deaths_in_lock(&self) -> u64 {
        self.core.segment.takeovers()
    }

    /// Checks that the machine's state is consistent. For tests: it visits everything.
    ///
    /// # Errors
    /// [`Error::Segment`] with the first inconsistency.
    pub fn check(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| timeline.check().map_err(Error::Segment))
    }

    /// Names processes as NVML does: as [`with_local_pids`], or, on a GPU that reports host PIDs,
    /// by their ids on the host.
    fn with_nvml_pids<T>(&self, all: Vec<(Identity, T)>, with: impl Fn(T, u32) -> T) -> Vec<T> {
        let resolver =
            if self.figures().host_pids == 1 { PidResolver::host() } else { PidResolver::new() };
        with_pids(resolver, all, with)
    }
}

/// Keeps the processes that exist in this process's PID namespace, with their ids there.
pub(super) fn with_local_pids<T, U>(all: Vec<(Identity, T)>, with: impl Fn(T, u32) -> U) -> Vec<U> {
    with_pids(PidResolver::new(), all, with)
}

fn with_pids<T, U>(
    mut resolver: PidResolver,
    all: Vec<(Identity, T)>,
    with: impl Fn(T, u32) -> U,
) -> Vec<U> {
    all.into_iter()
        .filter_map(|(identity, each)| Some(with(each, resolver.pid_of(&identity)?)))
        .collect()
}
