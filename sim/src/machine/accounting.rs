//! Accounts of processes and limits of control groups, as NVML's calls see them.

use cgpu_shm::units::{Bytes, Nanos};

use super::Machine;
use super::utilisation::{REAP, as_seen};
use crate::error::Error;
use crate::identity::Identity;
use crate::timeline::GroupLimit;

/// What a process did on a GPU in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its id here.
    pub pid: u32,
    /// When it came to the GPU, in device time.
    pub begun: Nanos,
    /// When it ended; `None`: it has not.
    pub ended: Option<Nanos>,
    /// How long it was there, so far.
    pub length: Nanos,
    /// For how long its commands computed.
    pub busy: Nanos,
    /// The most memory that it had at a time.
    pub highest: Bytes,
}

impl Machine {
    /// Whether a GPU keeps accounts.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn keeps_accounts(&self, gpu: usize) -> Result<bool, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.keeps_accounts(gpu)))
    }

    /// Lets a GPU keep accounts of the processes that come to it from now on, or forget all that it has.
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

    /// Forgets the accounts of processes that have ended.
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

    /// The accounts of a GPU, oldest first, of processes that exist in this process's PID namespace, or did in it until they ended.
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

    /// What a control group, by its device and inode, was given of a GPU.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn group_limit(&self, gpu: usize, group: [u64; 2]) -> Result<Option<GroupLimit>, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.group_limit(gpu, group)))
    }

    /// Gives a control group a limit on a GPU; `None` takes it away. It is remembered and told; nothing is refused for it.
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
