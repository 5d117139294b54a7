//! The host's devices as published in the containers' grant pages, so that processes need not start
//! NVML.

use std::os::unix::fs::MetadataExt;

use cgpu_client::inventory::HostDevice;
use cgpu_shm::devices::Device;
use cgpu_shm::units::{Bytes, Nanos};

use super::Host;
use crate::probe::Sample;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceList {
    /// Empty: unknown.
    pub(crate) list: Vec<Device>,
    /// Free memory of each at `sampled`, as far as NVML reports it.
    pub(crate) free: Vec<Option<Bytes>>,
    pub(crate) sampled: Nanos,
    /// Inode of this monitor's PID namespace; 0: unknown.
    pub(crate) pid_namespace: u64,
}

impl DeviceList {
    /// Builds the list from a sample. None: a GPU has not answered.
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
        index: found.id.gpu(),
        instance: found.id.instance().map_or(0, |instance| instance + 1),
        is_partitioned: found.is_partitioned,
    }
}

impl Host {
    /// Publishes the devices of a sample to all containers, if it has them.
    pub(super) fn take_devices(&mut self, sample: &Sample) {
        let Some(device_list) = DeviceList::of(sample) else { return };
        self.device_list = device_list;
        let regions =
            self.containers.values_mut().filter_map(|container| container.region.as_mut());
        regions.for_each(|region| region.publish_devices(&self.device_list));
    }
}
