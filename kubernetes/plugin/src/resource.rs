//! Resources that are offered to the kubelet, and the number of each.

use cgpu_kubelet_api::device_plugin::{Device, HEALTHY, ListAndWatchResponse, UNHEALTHY};
use cgpu_kubernetes_core::devices::{Devices, id};
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{CORE, Dialect, HAMI_GPUS, MEMORY};
use cgpu_kubernetes_core::refusal::Refusal;

/// A resource. Each has its own socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Memory,
    Percent,
    /// GPUs, as HAMi counts them: each counts once for every container that fits.
    Gpus,
}

impl Resource {
    /// Returns its name in the limits of pods.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => MEMORY,
            Self::Percent => CORE,
            Self::Gpus => HAMI_GPUS,
        }
    }

    /// Returns the name of its socket in the kubelet's folder.
    pub(crate) fn socket(self) -> &'static str {
        match self {
            Self::Memory => "cgpu-mem.sock",
            Self::Percent => "cgpu-core.sock",
            Self::Gpus => "cgpu-hami.sock",
        }
    }

    /// Returns the dialect of slices that its ids identify, or `None` if it is only counted.
    pub(crate) fn slice_dialect(self) -> Option<Dialect> {
        match self {
            Self::Memory => Some(Dialect::Aliyun),
            Self::Percent => None,
            Self::Gpus => Some(Dialect::Hami),
        }
    }

    /// Returns the devices of the node.
    ///
    /// # Errors
    /// There are more than the kubelet's message limit allows.
    pub(crate) fn devices(self, node: &NodeGpus) -> Result<Devices, Refusal> {
        match self {
            Self::Memory => Devices::of(node),
            Self::Percent => Ok(Devices::percent(node)),
            Self::Gpus => Ok(Devices::containers(node)),
        }
    }
}

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
