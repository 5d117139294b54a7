//! Per-process accounting, as NVML's calls see it.

use cgpu_shm::units::{Bytes, Nanos};

use super::Machine;
use super::utilisation::{REAP_INTERVAL, with_local_pids};
use crate::error::Error;
use crate::identity::Identity;

/// Accounting statistics of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountingStats {
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
    pub fn accounting_mode(&self, gpu: usize) -> Result<bool, Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| Ok(timeline.accounting_mode(gpu)))
    }

    /// Enables accounting mode, for processes that start to use the GPU from now on, or disables it
    /// and clears all statistics.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn set_accounting_mode(&self, gpu: usize, enabled: bool) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| {
            timeline.set_accounting_mode(gpu, enabled);
            Ok(())
        })
    }

    /// Clears the statistics of processes that have ended.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn clear_accounting(&self, gpu: usize) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.with(|timeline, _| {
            timeline.clear_accounting(gpu);
            Ok(())
        })
    }

    /// Returns the statistics of a GPU, oldest first, of processes that exist in this process's PID
    /// namespace, or did when they ended.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn accounting_stats(&self, gpu: usize) -> Result<Vec<AccountingStats>, Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), REAP_INTERVAL)?;
        let all: Vec<_> = self.core.with(|timeline, now| {
            timeline.account_up_to(gpu, now);
            let accounts = timeline.accounts(gpu).into_iter();
            Ok(accounts
                .map(|account| {
                    let [namespace, device, inode] = account.identity;
                    let identity =
                        Identity { pid: account.pid, namespace, anchor: (device, inode) };
                    let length = Nanos(account.ended.unwrap_or(now).0 - account.begun.0);
                    let stats = AccountingStats {
                        pid: account.pid,
                        begun: account.begun,
                        ended: account.ended,
                        length,
                        busy: account.busy,
                        highest: account.highest,
                    };
                    (identity, stats)
                })
                .collect())
        })?;
        Ok(with_local_pids(all, |stats, pid| AccountingStats { pid, ..stats }))
    }
}
