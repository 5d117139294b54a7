//! Capacity units of a GPU: it has `max_inst`, and a container takes as many as its weight.
//!
//! They go to the containers in the order of their arrival. A container that arrives when none is
//! free gets no compute until one is, as in cGPU on a GPU whose `free_weight` is 0. One that
//! arrives when fewer are free than it requests gets those.

use std::collections::BTreeMap;

use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::TenantId;
use cgpu_scheduler::policy::Entitlement;

use super::container::Container;
use super::device_state::DeviceState;

/// Entitlements of a GPU's containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacity {
    taken: BTreeMap<TenantId, Entitlement>,
    free: u32,
}

impl Capacity {
    /// Distributes a GPU's units among its containers. A container without a process or a living
    /// registrant takes none.
    pub(crate) fn on(device: &DeviceState, containers: &BTreeMap<TenantId, Container>) -> Self {
        let gpu = device.uuid;
        let mut capacity = Self { taken: BTreeMap::new(), free: device.in_force().max_inst() };
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

    pub(crate) const fn free(&self) -> u32 {
        self.free
    }

    /// Returns a container's entitlement. One that is not among the GPU's containers counts as a
    /// new one.
    pub(crate) fn of(&self, container: &Container) -> Entitlement {
        let newcomer = Entitlement {
            weight: container.weight().min(self.free),
            percent: container.percent(),
            high: container.is_high(),
        };
        self.taken.get(&container.tenant).copied().unwrap_or(newcomer)
    }

    /// Returns a warning for the container's starter if GPU `index` has fewer units than it
    /// requested.
    pub(crate) fn shortfall(&self, index: DeviceId, container: &Container) -> Option<String> {
        match (self.of(container).weight, container.weight()) {
            (0, _) => Some(format!(
                "GPU {index} has no weight left for {}: it gets no compute there; raise \
                 {index}/max_inst or lower others' weights",
                container.id
            )),
            (has, wants) if has < wants => Some(format!(
                "GPU {index} has a weight of {has} left for {}, which requested {wants}",
                container.id
            )),
            _ => None,
        }
    }
}
