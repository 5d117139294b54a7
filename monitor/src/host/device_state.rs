//! A GPU of the host: its number in the control tree, its settings, its scheduler.

use std::collections::BTreeSet;

use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::policy::Policy;
use cgpu_scheduler::{Gpu, TenantId};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use super::unattributed::Unattributed;
use crate::config::Start;
use crate::probe::GpuSample;
use crate::settings::GpuSettings;

#[derive(Debug)]
pub(crate) struct DeviceState {
    /// N, or N.M, of the control tree.
    pub(crate) index: DeviceId,
    pub(crate) uuid: Uuid,
    /// Whether NVML lists it.
    pub(crate) known: bool,
    /// NVML's last sample of it; else what containers report.
    pub(crate) sample: GpuSample,
    /// The least memory that was used by no process: the driver's own.
    pub(crate) driver_memory: Option<u64>,
    /// Why containers' memory on it cannot be compared with their limits; none: it can be.
    pub(crate) unverified: Option<&'static str>,
    /// Whether the last sample did not allow it: one alone says nothing, because processes start
    /// and exit.
    is_doubtful: bool,
    /// Containers of which NVML lists no process on it, though they hold memory by their ledgers.
    pub(crate) unlisted: BTreeSet<TenantId>,
    /// Those for which the last sample said so.
    doubtful: BTreeSet<TenantId>,
    /// The largest context that NVML has shown on it.
    pub(crate) context: Bytes,
    /// Memory that no process has and no container is charged for.
    pub(crate) unattributed: Unattributed,
    /// Why its containers have no turns, whatever policy is set: MPS. None: they can have turns.
    pub(crate) mps: Option<String>,
    /// Settings made at run time.
    pub(crate) settings: GpuSettings,
    /// Configured settings.
    pub(crate) start: GpuSettings,
    pub(crate) scheduler: Gpu,
    pub(crate) next_step: Nanos,
    /// Whether the next step observes all containers.
    pub(crate) stale: bool,
}

impl DeviceState {
    pub(crate) fn new(index: DeviceId, uuid: Uuid, settings: GpuSettings, start: &Start) -> Self {
        let sample = GpuSample { uuid, ..GpuSample::default() };
        let scheduler = Gpu::new(start.tuning(index, uuid), Policy::default());
        Self {
            index,
            uuid,
            known: false,
            sample,
            driver_memory: None,
            unverified: None,
            is_doubtful: false,
            unlisted: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            context: Bytes::ZERO,
            unattributed: Unattributed::default(),
            mps: None,
            settings,
            start: start.gpu(index, uuid),
            scheduler,
            next_step: Nanos::MAX,
            stale: true,
        }
    }

    /// Takes from a sample why containers' memory cannot be compared with their limits; none: it
    /// can be. `unlisted`: the containers for which it says so.
    pub(crate) fn take_verification(
        &mut self,
        unverified: Option<&'static str>,
        unlisted: BTreeSet<TenantId>,
    ) {
        self.unverified = unverified.filter(|_| self.is_doubtful);
        self.is_doubtful = unverified.is_some();
        self.unlisted = &unlisted & &self.doubtful;
        self.doubtful = unlisted;
    }

    /// Returns its UUID as NVML writes it. The bytes do not tell a GPU from an instance.
    pub(crate) fn name(&self) -> String {
        let name = self.uuid.to_string();
        if self.index.is_instance() { name.replacen("GPU", "MIG", 1) } else { name }
    }

    /// Returns the memory that no process has by a sample, without the driver's own. None: NVML
    /// does not report it.
    pub(crate) fn unowned(&mut self, sample: &GpuSample) -> Option<Bytes> {
        let rest = sample.unowned?.0;
        let own = *self.driver_memory.insert(self.driver_memory.map_or(rest, |own| own.min(rest)));
        Some(Bytes(rest - own))
    }

    /// Returns the settings in force: those made at run time, else the configured ones.
    pub(crate) fn in_force(&self) -> GpuSettings {
        self.settings.over(self.start)
    }

    /// Applies another configuration from the next step on. If it has fewer capacity units than are
    /// taken, keeps `max_inst` and returns a message.
    pub(crate) fn reconfigure(&mut self, now: Nanos, start: &Start, taken: u32) -> Option<String> {
        let before = self.start;
        self.start = start.gpu(self.index, self.uuid);
        self.scheduler.set_tuning(now, start.tuning(self.index, self.uuid));
        self.stale = true;
        let wanted = self.in_force().max_inst();
        if wanted >= taken {
            return None;
        }
        self.start.max_inst = before.max_inst;
        let index = self.index;
        Some(format!(
            "GPU {index} keeps its max_inst: its containers have a weight of {taken} together, \
             expected at least that, found {wanted}"
        ))
    }

    /// Returns the policy in force: as set, else weighted if a container has a weight above 1, else
    /// preemptive. Under MPS there are no turns, whatever is set.
    pub(crate) fn policy(&self, weighted: bool) -> Policy {
        if self.mps.is_some() {
            return Policy::Mps;
        }
        let set = self.in_force();
        let number = set.policy.unwrap_or(if weighted { 2 } else { 1 });
        Policy::numbered(number, set.max_inst(), set.work_conserving()).unwrap_or_default()
    }

    pub(crate) fn apply_settings(&mut self, now: Nanos, weighted: bool) {
        let policy = self.policy(weighted);
        if policy != self.scheduler.policy() {
            self.scheduler.set_policy(now, policy);
            self.stale = true;
        }
        self.scheduler.set_priority_ratio(self.in_force().prio_ratio());
    }

    /// Gives the driver's figures to the scheduler.
    pub(super) fn audit(&mut self, now: Nanos) {
        let sample = &self.sample;
        let span = sample.busy.as_ref().and_then(|busy| busy.span);
        self.scheduler.audit(now, span, |id: TenantId| sample.measured(id.0));
    }
}
