//! Per-process accounting and control-group limits, as NVML's calls see them.

use cgpu_shm::units::{Bytes, Nanos};

use super::Machine;
use super::utilisation::{REAP, as_seen};
use crate::error::Error;
use crate::identity::Identity;
use crate::timeline::GroupLimit;

/// Accounting statistics of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its process id, in this process's PID namespace.
    pub pid: u32,
    /// When it first used the GPU, in device time.
    pub begun: Nanos,
    /// When it ended; `None` while it runs.
    pub ended: Option<Nanos>,
    /// How long it has used the GPU so far.
    pub length: Nanos,
    /// How long its commands computed.
    pub busy: Nanos,
    /// The maximum of its memory use.
    pub highest: Bytes,
}

impl Machine {
    /// Returns whether a GPU has accounting mode enabled.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn keeps_accounts(&self, gpu: usize) -> Result<bool, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.keeps_accounts(gpu)))
    }

    /// Enables accounting mode, for processes that start to use the GPU from now on, or disables it
    /// and clears all statistics.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn keep_accounts(&self, gpu: usize, keeps: bool) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| {
            timeline.keep_accounts(gpu, keeps);
            Ok(())
        })
    }

    /// Clears the statistics of processes that have ended.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn clear_accounts(&self, gpu: usize) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| {
            timeline.clear_accounts(gpu);
            Ok(())
        })
    }

    /// Returns the statistics of a GPU, oldest first, of processes that exist in this process's PID
    /// namespace, or did when they ended.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn lives(&self, gpu: usize) -> Result<Vec<Life>, Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), REAP)?;
        let all: Vec<_> = self.core.with(|timeline, now| {
            timeline.settle(gpu, now);
            let accounts = timeline.accounts(gpu).into_iter();
            Ok(accounts
                .map(|account| {
                    let [namespace, device, inode] = account.who;
                    let who = Identity { pid: account.pid, namespace, anchor: (device, inode) };
                    let length = Nanos(account.ended.unwrap_or(now).0 - account.begun.0);
                    let life = Life {
                        pid: account.pid,
                        begun: account.begun,
                        ended: account.ended,
                        length,
                        busy: account.busy,
                        highest: account.highest,
                    };
                    (who, life)
                })
                .collect())
        })?;
        Ok(as_seen(all, |life, pid| Life { pid, ..life }))
    }

    /// Returns the limit of a control group, by its device and inode, on a GPU.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn group_limit(&self, gpu: usize, group: [u64; 2]) -> Result<Option<GroupLimit>, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.group_limit(gpu, group)))
    }

    /// Sets the limit of a control group on a GPU; `None` removes it. The limit is reported, not
    /// enforced.
    ///
    /// # Errors
    /// [`Error::NoGpu`], [`Error::Full`].
    pub fn limit_group(
        &self,
        gpu: usize,
        group: [u64; 2],
        to: Option<GroupLimit>,
    ) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| timeline.limit_group(gpu, group, to))
    }
}
