//! Comparison of ledger and GPU with the model.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::Run;
use crate::model::{MIB, Process};

impl Run<'_> {
    /// Compares ledger and GPU with the model.
    pub(super) fn compare(&mut self, index: usize) -> Result<()> {
        let total = self.oracle.total()?;
        let (least, most) = (self.model.total(), self.model.most() + self.exited);
        ensure!(
            total.all >= least && total.all <= most,
            "the ledger has {} for {least} to {most} in use",
            total.all
        );
        // What exited processes left or exported is at most what the ledger has beside the live
        // ones.
        self.exited = self.exited.min(total.all.saturating_sub(self.model.own()));
        self.model.orphans = self.model.orphans.min(self.exited);
        if self.exited == 0 {
            self.exited_slack = 0;
        }
        let slack = self.model.slack() + self.exited_slack + self.foreign()?;
        let mut gpu_memory = self.oracle.gpu_memory()?;
        if gpu_memory > total.all + slack && !self.is_released()? {
            // Without a monitor the ledger forgets exited processes after a fixed time, even if the
            // GPU still has their memory.
            self.wait_for_release()?;
            gpu_memory = self.oracle.gpu_memory()?;
        }
        let total = self.oracle.total()?;
        ensure!(
            gpu_memory <= total.all + slack,
            "{gpu_memory} are on the GPU and {} in the ledger",
            total.all
        );
        self.compare_process(index)?;
        let overshoot = least.saturating_sub(self.model.limit + self.model.unrefused());
        self.outcome.overshoot = self.outcome.overshoot.max(overshoot);
        ensure!(overshoot == 0, "{overshoot} over the limit after the call");
        Ok(())
    }

    /// Compares ledger and GPU with the model for one process.
    pub(super) fn compare_process(&mut self, index: usize) -> Result<()> {
        let process = &self.model.processes[index];
        let Some(actor) = self.actors.get(index).filter(|_| process.started) else { return Ok(()) };
        let seen = self.oracle.process(actor.pid())?;
        let here = !process.is_checkpointed();
        let (used, implicit) =
            (process.used_now(), if here { self.model.implicit(process) } else { 0 });
        ensure!(
            (used..=used + process.stale()).contains(&seen.used) && seen.implicit == implicit,
            "the ledger has {} and {} implicit for {used} and {implicit}",
            seen.used,
            seen.implicit
        );
        let small = if here { process.small().0 } else { 0 };
        // The driver takes small allocations from blocks of 2 MiB. The unused part of these blocks
        // is slack.
        let unseen = if here { process.code.unseen() } else { 0 };
        let large = implicit + used - small + unseen;
        let agrees = |gpu_memory: u64| {
            let rest = gpu_memory.checked_sub(large);
            rest.is_some_and(
                |rest| if here { rest % (2 * MIB) == 0 && rest >= small } else { rest == 0 },
            )
        };
        ensure!(
            seen.on_gpu.iter().copied().any(agrees)
                || (large + small == 0 && seen.on_gpu.is_empty()),
            "the GPU has {:?} for {large} of contexts and large allocations and {small} of small \
             ones",
            seen.on_gpu
        );
        self.model.processes[index].charged_at_most(seen.used);
        Ok(())
    }

    /// Returns the bytes of other interfaces, which no ledger has: of live processes, of
    /// descriptors in transit, and of exited processes while the GPU may still have them.
    fn foreign(&mut self) -> Result<u64> {
        if self.model.foreign.is_empty() {
            return Ok(0);
        }
        if !self.exited_foreign.is_empty() && self.is_released()? {
            self.exited_foreign.clear();
        }
        let held: BTreeSet<u32> =
            self.model.processes.iter().flat_map(Process::holds_of_others).collect();
        let is_held = |name: &u32| {
            held.contains(name)
                || self.descriptors.contains_key(name)
                || self.exited_foreign.contains(name)
        };
        self.model.foreign.retain(|name, _| is_held(name));
        Ok(self.model.foreign.values().sum())
    }
}
