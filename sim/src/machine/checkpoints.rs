//! Checkpoints, as their calls see them: processes by the caller's process ids, and delayed calls.
//!
//! Each process counts the calls that are in progress where a locking process can see the count. A
//! call that finds its process locked waits before it enters. So no thread of the locked process
//! takes part, and it may even be stopped.

use cgpu_shm::units::Nanos;

use super::{Machine, REAP_INTERVAL};
use crate::error::Error;
use crate::timeline::{ProcessState, Progress};

/// Poll interval of calls that wait to enter, and of a locking process until all calls have left.
const ENTER_POLL_INTERVAL: core::time::Duration = core::time::Duration::from_micros(200);

/// A call in progress; it leaves when this is dropped.
#[derive(Debug)]
pub struct Entered<'a>(&'a Machine);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.core.segment.leave();
    }
}

impl Machine {
    /// Marks this process as one that uses GPUs, so that it can be checkpointed.
    ///
    /// # Errors
    /// [`Error::Stuck`], [`Error::System`].
    pub fn mark_cuda_process(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.mark_cuda_process(self.core.segment.process());
            Ok(())
        })
    }

    /// Begins a call; waits while this process is locked. `None` in a forked child.
    #[must_use]
    pub fn enter(&self) -> Option<Entered<'_>> {
        while !self.is_inherited() {
            if self.core.segment.enter() {
                return Some(Entered(self));
            }
            std::thread::sleep(ENTER_POLL_INTERVAL);
        }
        None
    }

    /// Returns the timeline's number of the GPU-using process with that process id.
    fn cuda_process(&self, pid: u32) -> Result<usize, Error> {
        self.check_not_forked()?;
        self.core.segment.reap(self.now(), REAP_INTERVAL)?;
        let drivers: Vec<_> = self.core.with(|timeline, _| {
            let live = |&process: &usize| {
                timeline.process_state(process) == ProcessState::Live && timeline.uses_cuda(process)
            };
            let all = (0..timeline.process_count()).filter(live);
            Ok(all
                .map(|process| {
                    (self.core.segment.identity(process, timeline.pid_of(process)), process)
                })
                .collect())
        })?;
        let found = super::utilisation::with_local_pids(drivers, |process, id| (id, process));
        let its = found.into_iter().find(|(id, _)| *id == pid);
        its.map(|(_, process)| process).ok_or(Error::Invalid("no such process uses the GPU"))
    }

    /// Returns the checkpoint state of a process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process.
    pub fn progress(&self, pid: u32) -> Result<Progress, Error> {
        let process = self.cuda_process(pid)?;
        self.core.with(|timeline, _| Ok(timeline.progress(process)))
    }

    /// Locks a process: blocks its new calls and waits until those in progress have returned.
    /// Returns `false` on timeout, and the process goes on. A process that locks itself must not do
    /// so within a call that has entered.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is running.
    pub fn lock_process(&self, pid: u32, timeout: Option<Nanos>) -> Result<bool, Error> {
        let process = self.cuda_process(pid)?;
        let by = self.core.segment.process();
        self.core.with(|timeline, _| timeline.begin_locking(process, by))?;
        let begun = std::time::Instant::now();
        let timeout = timeout.map(|timeout| core::time::Duration::from_nanos(timeout.0));
        let late = || timeout.is_some_and(|timeout| begun.elapsed() >= timeout);
        let quiet = loop {
            if self.core.segment.is_quiet(process) {
                break true;
            }
            if late()
                || self.core.with(|timeline, _| Ok(timeline.progress(process)))?
                    != Progress::Locking
            {
                break false;
            }
            std::thread::sleep(ENTER_POLL_INTERVAL);
        };
        let to = if quiet { Progress::Locked } else { Progress::Running };
        self.core.with(|timeline, _| timeline.step_progress(process, Progress::Locking, to))?;
        Ok(quiet)
    }

    /// Unlocks a locked process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is locked.
    pub fn unlock_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.cuda_process(pid)?;
        self.core.with(|timeline, _| {
            timeline.step_progress(process, Progress::Locked, Progress::Running)
        })
    }

    /// Moves the memory of a locked process off the GPUs, once its work there is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is locked;
    /// [`Error::Unsupported`] if it shares memory with other processes.
    pub fn checkpoint_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.cuda_process(pid)?;
        self.core.with(|timeline, _| match timeline.progress(process) {
            Progress::Locked => Ok(()),
            _ => Err(Error::State("the process must be locked")),
        })?;
        loop {
            let unfinished = self.core.with(|timeline, _| Ok(timeline.unfinished(process)))?;
            if unfinished.is_empty() {
                break;
            }
            self.core.wait_for(&unfinished)?;
        }
        self.core.with(|timeline, _| timeline.checkpoint(process))
    }

    /// Returns the GPUs from which memory of a checkpointed process was moved.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process.
    pub fn checkpointed_gpus(&self, pid: u32) -> Result<Vec<usize>, Error> {
        let process = self.cuda_process(pid)?;
        self.core.with(|timeline, _| Ok(timeline.checkpointed_gpus(process)))
    }

    /// Moves the memory of a checkpointed process back; the process is then locked.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is checkpointed;
    /// [`Error::OutOfMemory`], and it stays checkpointed.
    pub fn restore_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.cuda_process(pid)?;
        self.core.end_unused_exports()?;
        self.core.with(|timeline, _| timeline.restore(process))
    }
}
