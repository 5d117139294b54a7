//! The driver's devices in this process, and which of the container's GPUs each is.

use cgpu_abi::types::{CUcontext, CUdevice};
use cgpu_memory::{DeviceIndex, Tenant};
use cgpu_shm::atomic::{AtomicUsize, Ordering::Relaxed};

/// A device by the number that the driver gives it in this process (`CUdevice`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverOrdinal(pub(crate) CUdevice);

/// Which of the driver's devices are accounted, by ordinal.
pub(crate) struct Devices {
    devices: Vec<Device>,
}

struct Device {
    /// None: not sliced.
    gpu: Option<DeviceIndex>,
    /// Its primary context, as last retained.
    primary: AtomicUsize,
}

impl Devices {
    /// No devices.
    pub(crate) const NONE: &Devices = &Devices { devices: Vec::new() };

    /// The GPU of each device, in the order of their ordinals.
    pub(crate) fn new(gpus: impl Iterator<Item = Option<DeviceIndex>>) -> Devices {
        Devices { devices: gpus.map(|gpu| Device { gpu, primary: AtomicUsize::new(0) }).collect() }
    }

    /// The GPU of a device; none: not sliced, or no such device.
    #[inline]
    pub(crate) fn gpu(&self, device: DriverOrdinal) -> Option<DeviceIndex> {
        self.get(device)?.gpu
    }

    /// Whether there is a limit to keep on any of them.
    pub(crate) fn any_limited(&self, tenant: &Tenant) -> bool {
        self.devices
            .iter()
            .filter_map(|device| device.gpu)
            .any(|gpu| tenant.view().limit(gpu).is_some())
    }

    /// The primary context of a device, as last retained.
    pub(crate) fn primary(&self, device: DriverOrdinal) -> CUcontext {
        CUcontext(self.get(device).map_or(0, |device| device.primary.load(Relaxed)))
    }

    /// The program has retained the primary context of a device.
    pub(crate) fn set_primary(&self, device: DriverOrdinal, context: CUcontext) {
        if let Some(device) = self.get(device) {
            device.primary.store(context.0, Relaxed);
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = DriverOrdinal> {
        (0..self.devices.len())
            .filter_map(|place| CUdevice::try_from(place).ok().map(DriverOrdinal))
    }

    /// The only one there is.
    #[inline]
    pub(crate) fn only(&self) -> Option<DriverOrdinal> {
        (self.devices.len() == 1).then_some(DriverOrdinal(0))
    }

    /// The device that is a GPU.
    pub(crate) fn of_gpu(&self, gpu: DeviceIndex) -> Option<DriverOrdinal> {
        self.all().find(|device| self.gpu(*device) == Some(gpu))
    }

    fn get(&self, device: DriverOrdinal) -> Option<&Device> {
        self.devices.get(usize::try_from(device.0).ok()?)
    }
}
