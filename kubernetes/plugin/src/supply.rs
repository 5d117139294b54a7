//! What is offered to the kubelet: resources, and how many of each.

use cgpu_kubelet_api::{Device, HEALTHY, ListAndWatchResponse, UNHEALTHY};
use cgpu_kubernetes_core::devices::{Devices, id};
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{CORE, Dialect, HAMI_GPUS, MEMORY};
use cgpu_kubernetes_core::refusal::Refusal;

/// A resource, each with a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Units of memory.
    Memory,
    /// Percent of compute.
    Percent,
    /// GPUs, as HAMi counts them: each as often as containers can share it.
    Gpus,
}

impl Resource {
    /// As it stands in pods' limits.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => MEMORY,
            Self::Percent => CORE,
            Self::Gpus => HAMI_GPUS,
        }
    }

    /// The name of its socket in the kubelet's folder.
    pub(crate) fn socket(self) -> &'static str {
        match self {
            Self::Memory => "cgpu-mem.sock",
            Self::Percent => "cgpu-core.sock",
            Self::Gpus => "cgpu-hami.sock",
        }
    }

    /// Whose slices are named by its ids; none: it only counts.
    pub(crate) fn names_slices(self) -> Option<Dialect> {
        match self {
            Self::Memory => Some(Dialect::Aliyun),
            Self::Percent => None,
            Self::Gpus => Some(Dialect::Hami),
        }
    }

    /// How many the node has.
    ///
    /// # Errors
    /// More than the kubelet can be told.
    pub(crate) fn devices(self, node: &NodeGpus) -> Result<Devices, Refusal> {
        match self {
            Self::Memory => Devices::of(node),
            Self::Percent => Ok(Devices::percent(node)),
            Self::Gpus => Ok(Devices::containers(node)),
        }
    }
}

/// What the kubelet is told.
pub(crate) fn message(devices: Devices) -> ListAndWatchResponse {
    let device = |number: u64| Device {
        id: id(number),
        health: if number < devices.healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
    };
    ListAndWatchResponse { devices: (0..devices.all).map(device).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn message_length_equals_that_of_the_core() {
        for (healthy, all) in [(0, 0), (36, 36), (5, 1300), (163_840, 163_840), (0, 163_840)] {
            let devices = Devices { healthy, all };
            assert_eq!(message(devices).encoded_len() as u64, devices.message(), "{devices:?}");
        }
    }
}
