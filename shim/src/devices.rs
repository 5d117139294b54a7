//! The driver's devices in this process, and the container's GPU of each.

use core::ffi::c_int;

use cgpu_abi::types::{CUcontext, CUdevice};
use cgpu_memory::{DeviceIndex, Tenant};
use cgpu_shm::atomic::{AtomicUsize, Ordering::Relaxed};
use cgpu_shm::host_memory::Nodes;

/// The driver's ordinal of a device in this process (`CUdevice`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverOrdinal(pub(crate) CUdevice);

/// The accounted GPU of each of the driver's devices, by ordinal.
pub(crate) struct Devices {
    devices: Vec<Device>,
    host: Nodes,
}

struct Device {
    /// None: not shared.
    gpu: Option<DeviceIndex>,
    primary: AtomicUsize,
}

impl Devices {
    pub(crate) const NONE: &Devices = &Devices { devices: Vec::new(), host: Nodes::NONE };

    /// `host`: the NUMA nodes whose memory is certainly the host's.
    pub(crate) fn new(gpus: impl Iterator<Item = Option<DeviceIndex>>, host: Nodes) -> Devices {
        let devices = gpus.map(|gpu| Device { gpu, primary: AtomicUsize::new(0) }).collect();
        Devices { devices, host }
    }

    /// Returns whether a NUMA node's memory is the host's, and not perhaps a GPU's.
    pub(crate) fn is_host(&self, node: c_int) -> bool {
        u32::try_from(node).is_ok_and(|node| self.host.contains(node))
    }

    /// Returns the GPU of a device; none: not shared, or no such device.
    #[inline]
    pub(crate) fn gpu(&self, device: DriverOrdinal) -> Option<DeviceIndex> {
        self.get(device)?.gpu
    }

    pub(crate) fn any_limited(&self, tenant: &Tenant) -> bool {
        self.devices
            .iter()
            .filter_map(|device| device.gpu)
            .any(|gpu| tenant.view().limit(gpu).is_some())
    }

    pub(crate) fn primary(&self, device: DriverOrdinal) -> CUcontext {
        CUcontext(self.get(device).map_or(0, |device| device.primary.load(Relaxed)))
    }

    pub(crate) fn set_primary(&self, device: DriverOrdinal, context: CUcontext) {
        if let Some(device) = self.get(device) {
            device.primary.store(context.0, Relaxed);
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = DriverOrdinal> {
        (0..self.devices.len())
            .filter_map(|place| CUdevice::try_from(place).ok().map(DriverOrdinal))
    }

    #[inline]
    pub(crate) fn only(&self) -> Option<DriverOrdinal> {
        (self.devices.len() == 1).then_some(DriverOrdinal(0))
    }

    pub(crate) fn of_gpu(&self, gpu: DeviceIndex) -> Option<DriverOrdinal> {
        self.all().find(|device| self.gpu(*device) == Some(gpu))
    }

    fn get(&self, device: DriverOrdinal) -> Option<&Device> {
        self.devices.get(usize::try_from(device.0).ok()?)
    }
}
