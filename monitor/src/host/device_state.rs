//! A GPU of the host: its place in the control tree, what is set for it, its controller.

use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::Gpu;
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use crate::config::Start;
use crate::probe::GpuSample;
use crate::settings::GpuSettings;

/// A GPU of the host.
#[derive(Debug)]
pub(crate) struct DeviceState {
    /// N, or N.M, of the control tree.
    pub(crate) index: DeviceId,
    pub(crate) uuid: Uuid,
    /// NVML knows it.
    pub(crate) known: bool,
    /// What NVML last told of it; else what containers say.
    pub(crate) sample: GpuSample,
    /// The least that was on it and no process's: the driver's own.
    pub(crate) own: Option<u64>,
    /// What people have set.
    pub(crate) settings: GpuSettings,
    /// What it starts with.
    pub(crate) start: GpuSettings,
    pub(crate) scheduler: Gpu,
    /// When it is to be looked at.
    pub(crate) next_step: Nanos,
    /// All containers are to be observed in the next step.
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
            own: None,
            settings,
            start: start.gpu(index, uuid),
            scheduler,
            next_step: Nanos::MAX,
            stale: true,
        }
    }

    /// Its UUID as NVML writes it: an instance's kind is not in the bytes.
    pub(crate) fn name(&self) -> String {
        let name = self.uuid.to_string();
        if self.index.is_instance() { name.replacen("GPU", "MIG", 1) } else { name }
    }

    /// The memory of the GPU that no process has, by a sample, without the driver's own. None: NVML
    /// does not tell.
    pub(crate) fn unowned(&mut self, sample: &GpuSample) -> Option<Bytes> {
        let rest = sample.unowned?.0;
        let own = *self.own.insert(self.own.map_or(rest, |own| own.min(rest)));
        Some(Bytes(rest - own))
    }

    /// What is in force: what people have set, else what it starts with.
    pub(crate) fn in_force(&self) -> GpuSettings {
        self.settings.over(self.start)
    }

    /// Starts with something else, from the next step on. Fewer places than are taken are refused, with a sentence.
    pub(crate) fn restart(&mut self, now: Nanos, start: &Start, taken: u32) -> Option<String> {
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
            "GPU {index} keeps its max_inst: containers with a weight of {taken} together are there, expected at least that, found {wanted}"
        ))
    }

    /// The policy in force: as set; never set, weighted if a container has a weight above 1, else
    /// preemptive.
    pub(crate) fn policy(&self, weighted: bool) -> Policy {
        let set = self.in_force();
        let number = set.policy.unwrap_or(if weighted { 2 } else { 1 });
        Policy::numbered(number, set.max_inst(), set.work_conserving()).unwrap_or_default()
    }

    /// Takes over the policy in force.
    pub(crate) fn apply_settings(&mut self, now: Nanos, weighted: bool) {
        let policy = self.policy(weighted);
        if policy != self.scheduler.policy() {
            self.scheduler.set_policy(now, policy);
            self.stale = true;
        }
        self.scheduler.set_priority_ratio(self.in_force().prio_ratio());
    }
}
