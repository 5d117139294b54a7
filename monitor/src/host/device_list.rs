//! The devices of the host, as containers' processes are told of them in their grant pages: these need not start NVML then.

use std::os::unix::fs::MetadataExt;

use cgpu_client::inventory::HostDevice;
use cgpu_shm::devices::Device;
use cgpu_shm::units::{Bytes, Nanos};

use super::Host;
use crate::probe::Sample;

/// What is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceList {
    /// Empty: not known.
    pub(crate) list: Vec<Device>,
    /// What of each was free at `sampled`, as far as NVML told.
    pub(crate) free: Vec<Option<Bytes>>,
    pub(crate) sampled: Nanos,
    /// Inode of the PID namespace of this monitor; 0: not known.
    pub(crate) pid_namespace: u64,
}

impl DeviceList {
    /// As a sample tells; none: a GPU has not answered.
    fn of(sample: &Sample) -> Option<Self> {
        let all = sample.all.as_ref()?;
        let whole = sample.partitioned.iter().map(|&(index, uuid)| Device {
            uuid,
            index,
            is_partitioned: true,
            ..Device::default()
        });
        let whole = whole.filter(|whole| all.iter().all(|found| found.uuid != whole.uuid));
        let list: Vec<Device> = all.iter().map(device).chain(whole).collect();
        let free = |device: &Device| {
            let gpu = sample.gpus.iter().find(|gpu| gpu.uuid == device.uuid)?;
            gpu.free.map(Bytes)
        };
        let free = list.iter().map(free).collect();
        let pid_namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino());
        Some(Self { list, free, sampled: sample.at, pid_namespace })
    }
}

fn device(found: &HostDevice) -> Device {
    Device {
        uuid: found.uuid,
        total: found.total,
        index: found.number.gpu(),
        instance: found.number.instance().map_or(0, |instance| instance + 1),
        is_partitioned: found.is_partitioned,
    }
}

impl Host {
    /// Tells all containers of the host's devices, if the sample does.
    pub(super) fn take_devices(&mut self, sample: &Sample) {
        let Some(device_list) = DeviceList::of(sample) else { return };
        self.device_list = device_list;
        let regions =
            self.containers.values_mut().filter_map(|container| container.region.as_mut());
        regions.for_each(|region| region.publish_devices(&self.device_list));
    }
}
