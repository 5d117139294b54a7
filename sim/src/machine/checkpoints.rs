//! Checkpoints, as their calls see them: processes by the ids that the caller knows, calls that are kept waiting.
//!
//! A process's calls *enter* and leave, which is counted where whoever locks it can see; one that finds the process locked waits
//! outside. So no thread of the locked process has a part in it, and it may as well be stopped.

use cgpu_shm::units::Nanos;

use super::{Machine, REAP};
use crate::error::Error;
use crate::timeline::{ProcessState, Progress};

/// How often a call looks whether it may enter, and whoever locks whether all have left.
const LOOK: core::time::Duration = core::time::Duration::from_micros(200);

/// A call that has entered. Dropped, it has left.
#[derive(Debug)]
pub struct Entered<'a>(&'a Machine);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.core.segment.leave();
    }
}

impl Machine {
    /// From now on this process can be checkpointed: it drives GPUs, and does not only look at them.
    ///
    /// # Errors
    /// [`Error::Stuck`], [`Error::System`].
    pub fn drive(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.begin_driving(self.core.segment.process());
            Ok(())
        })
    }

    /// Begins a call; waits while this process is locked. `None` in a forked child, which has no part in it.
    #[must_use]
    pub fn enter(&self) -> Option<Entered<'_>> {
        while !self.is_inherited() {
            if self.core.segment.enter() {
                return Some(Entered(self));
            }
            std::thread::sleep(LOOK);
        }
        None
    }

    /// The number in the timeline of the process of that id here which drives GPUs.
    fn driver_of(&self, pid: u32) -> Result<usize, Error> {
        self.check_lineage()?;
        self.core.segment.reap(self.now(), REAP)?;
        let drivers: Vec<_> = self.core.with(|timeline, _| {
            let live = |&process: &usize| {
                timeline.process_state(process) == ProcessState::Live && timeline.drives(process)
            };
            let all = (0..timeline.process_count()).filter(live);
            Ok(all
                .map(|process| {
                    (self.core.segment.identity(process, timeline.pid_of(process)), process)
                })
                .collect())
        })?;
        let found = super::utilisation::as_seen(drivers, |process, id| (id, process));
        let its = found.into_iter().find(|(id, _)| *id == pid);
        its.map(|(_, process)| process).ok_or(Error::Invalid("no such process uses the GPU"))
    }

    /// How far a process is with a checkpoint.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process.
    pub fn progress(&self, pid: u32) -> Result<Progress, Error> {
        let process = self.driver_of(pid)?;
        self.core.with(|timeline, _| Ok(timeline.progress(process)))
    }

    /// Locks a process: waits for its calls to return, and keeps new ones waiting. `false`: they have not returned in that time, and
    /// it goes on. Not from within a call of this process that has entered, if it is to lock itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is running.
    pub fn lock_process(&self, pid: u32, timeout: Option<Nanos>) -> Result<bool, Error> {
        let process = self.driver_of(pid)?;
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
            std::thread::sleep(LOOK);
        };
        let to = if quiet { Progress::Locked } else { Progress::Running };
        self.core.with(|timeline, _| timeline.step_progress(process, Progress::Locking, to))?;
        Ok(quiet)
    }

    /// Lets a locked process go on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is locked.
    pub fn unlock_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.driver_of(pid)?;
        self.core.with(|timeline, _| {
            timeline.step_progress(process, Progress::Locked, Progress::Running)
        })
    }

    /// Takes the memory of a locked process off the GPUs, when all that it has given them to do is done.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is locked; [`Error::Unsupported`] if it shares
    /// memory with other processes.
    pub fn checkpoint_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.driver_of(pid)?;
        self.core.with(|timeline, _| match timeline.progress(process) {
            Progress::Locked => Ok(()),
            _ => Err(Error::State("only a locked process is checkpointed")),
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

    /// GPUs from which memory of a checkpointed process is away.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process.
    pub fn checkpointed_gpus(&self, pid: u32) -> Result<Vec<usize>, Error> {
        let process = self.driver_of(pid)?;
        self.core.with(|timeline, _| Ok(timeline.away_from(process)))
    }

    /// Brings the memory of a checkpointed process back; it is locked then.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such process; [`Error::State`] unless it is checkpointed; [`Error::OutOfMemory`], when it
    /// stays so.
    pub fn restore_process(&self, pid: u32) -> Result<(), Error> {
        let process = self.driver_of(pid)?;
        self.core.bury_exports()?;
        self.core.with(|timeline, _| timeline.restore(process))
    }
}
