//! Places on a GPU: `max_inst` of them, and a container's weight is how many it takes.
//!
//! They go to the containers in the order in which these became known. Who comes when none is left gets no compute until some are, as
//! cGPU has it for a GPU whose `free_weight` is 0; who comes when there are fewer than it asks for gets those.

use std::collections::BTreeMap;

use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::TenantId;
use cgpu_scheduler::policy::Entitlement;
use cgpu_shm::uuid::Uuid;

use super::container::Container;

/// What each container of a GPU is promised there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacity {
    taken: BTreeMap<TenantId, Entitlement>,
    free: u32,
}

impl Capacity {
    /// Of a GPU with so many places, among those that are there; who left no process keeps none.
    pub(crate) fn on(gpu: Uuid, slots: u32, containers: &BTreeMap<TenantId, Container>) -> Self {
        let mut capacity = Self { taken: BTreeMap::new(), free: slots };
        for container in containers.values().filter(|container| container.gpus().contains(&gpu)) {
            let weight = container.weight().min(capacity.free);
            if container.presence(gpu).created {
                capacity.free -= weight;
            }
            let entitlement =
                Entitlement { weight, percent: container.percent(), high: container.is_high() };
            capacity.taken.insert(container.tenant, entitlement);
        }
        capacity
    }

    /// Places that are left.
    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// What a container is promised; as one that comes now, if it is not among those.
    pub(crate) fn of(&self, container: &Container) -> Entitlement {
        let newcomer = Entitlement {
            weight: container.weight().min(self.free),
            percent: container.percent(),
            high: container.is_high(),
        };
        self.taken.get(&container.tenant).copied().unwrap_or(newcomer)
    }

    /// What its starter should be told of a container's part of GPU `index`, if anything.
    pub(crate) fn shortfall(&self, index: DeviceId, container: &Container) -> Option<String> {
        match (self.of(container).weight, container.weight()) {
            (0, _) => Some(format!(
                "GPU {index} has no weight left for {}: it gets no compute there; raise {index}/max_inst or lower others' weights",
                container.id
            )),
            (has, wants) if has < wants => Some(format!(
                "GPU {index} has a weight of {has} left for {}, which asked for {wants}",
                container.id
            )),
            _ => None,
        }
    }
}
