//! The physical GPUs, as NVML and the driver list them.

use core::ffi::{CStr, c_int, c_uint};
use std::path::Path;

use cgpu_abi::nvml_types::{nvmlDevice_t, nvmlMemory_t, nvmlPciInfo_t, nvmlReturn_t};
use cgpu_abi::types::{CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUdevice_attribute, CUresult};
use cgpu_memory::{Bytes, Found, GpuInfo, MonitorInventory, System, Tenant, Uuid};
use cgpu_shm::host_memory::Nodes;
use tracing::info;

use crate::devices::{Devices, DriverOrdinal};
use crate::state::Trigger;
use crate::{driver, nvml, nvml_uses};

pub(crate) fn devices_of(tenant: &Tenant) -> Devices {
    let host = Nodes::with_processors(Path::new("/")).unwrap_or_else(|error| {
        info!("the host's NUMA nodes are unknown, so memory of any node is refused: {error}");
        Nodes::NONE
    });
    Devices::new(devices().map(|device| tenant.gpu(driver_uuid(device)?)), host)
}

/// Returns all GPUs: as the monitor or an earlier process of the container has reported; else from
/// NVML, which ignores the program's `CUDA_VISIBLE_DEVICES`; without NVML, from the driver. A GPU
/// partitioned into MIG instances is replaced by these, since no program computes on the GPU
/// itself.
pub(crate) fn inventory(trigger: Trigger) -> Found {
    // SAFETY: the name is NUL-terminated, and only the result's being null is used. As with any
    // `getenv`, the program must not change its environment in another thread meanwhile.
    let hides = !unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) }.is_null();
    if trigger == Trigger::Driver
        && let Some(inventory) = MonitorInventory::read(&System)
        && let Some(seen) = devices().map(driver_gpu).collect::<Option<Vec<_>>>()
        && let Some(found) = inventory.found(&seen, hides)
    {
        return found;
    }
    // If the trigger is a call of NVML, the program has started NVML itself.
    let is_started = trigger == Trigger::Nvml || nvml_uses::start();
    let (mut gpus, partitioned) = is_started.then(nvml_gpus).unwrap_or_default();
    let listed = !gpus.is_empty();
    if trigger == Trigger::Driver {
        for device in devices() {
            if let Some(gpu) = driver_gpu(device)
                && gpus.iter().all(|other| other.uuid != gpu.uuid)
            {
                gpus.push(gpu);
            }
        }
    }
    Found { complete: listed || !hides, gpus, partitioned }
}

pub(crate) fn driver_is_initialised() -> bool {
    driver_count().is_ok()
}

fn driver_count() -> Result<c_int, CUresult> {
    // SAFETY: the count is writable.
    driver::get(|count| unsafe { driver::cuDeviceGetCount(count) })
}

pub(crate) fn driver_has_gpus() -> bool {
    devices().next().is_some()
}

/// Returns whether this process computes through MPS on a GPU.
pub(crate) fn driver_has_mps() -> bool {
    devices().any(|device| driver_attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == Ok(1))
}

/// Returns the device's free memory by NVML, which is started; none if it cannot tell.
pub(crate) fn nvml_free(device: DriverOrdinal) -> Option<Bytes> {
    let uuid = driver_uuid(device)?;
    let part = parts().find(|part| nvml_uuid(part.handle) == Some(uuid))?;
    nvml_memory(part.handle).map(|memory| Bytes(memory.free))
}

pub(crate) fn nvml_uuid(device: nvmlDevice_t) -> Option<Uuid> {
    /// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
    const LENGTH: c_uint = 96;
    let mut text = [0_u8; LENGTH as usize];
    // SAFETY: the buffer has the given length.
    let answer = unsafe { nvml::nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), LENGTH) };
    if answer != nvmlReturn_t::SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    text.parse().ok()
}

pub(crate) fn instances_of(gpu: nvmlDevice_t) -> impl Iterator<Item = nvmlDevice_t> {
    let partitioned = is_partitioned(gpu);
    partitioned.then(|| instances(gpu)).into_iter().flatten().map(|(instance, _)| instance)
}

fn devices() -> impl Iterator<Item = DriverOrdinal> {
    (0..driver_count().unwrap_or(0)).filter_map(|place| {
        // SAFETY: the device is writable.
        let device = driver::get(|device| unsafe { driver::cuDeviceGet(device, place) });
        device.ok().map(DriverOrdinal)
    })
}

/// Returns the device's UUID; a MIG instance's own if the driver is new enough.
fn driver_uuid(device: DriverOrdinal) -> Option<Uuid> {
    // SAFETY: the UUID is writable.
    let mut uuid = driver::get(|uuid| unsafe { driver::cuDeviceGetUuid_v2(uuid, device.0) });
    if uuid == Err(CUresult::ERROR_NOT_SUPPORTED) {
        // SAFETY: the UUID is writable.
        uuid = driver::get(|uuid| unsafe { driver::cuDeviceGetUuid(uuid, device.0) });
    }
    uuid.ok().map(|uuid| Uuid(uuid.bytes))
}

fn driver_gpu(device: DriverOrdinal) -> Option<GpuInfo> {
    let uuid = driver_uuid(device)?;
    let order = driver_order(device) << INSTANCE_BITS;
    Some(GpuInfo { uuid, total: driver_total(device)?, order })
}

pub(crate) fn driver_total(device: DriverOrdinal) -> Option<Bytes> {
    // SAFETY: the total is writable.
    let total = driver::get(|total| unsafe { driver::cuDeviceTotalMem_v2(total, device.0) });
    total.ok().map(|total| Bytes(total as u64))
}

fn driver_order(device: DriverOrdinal) -> u64 {
    let mut text = [0_u8; 32];
    // SAFETY: the buffer has the given length.
    let answer = unsafe { driver::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device.0) };
    if answer != CUresult::SUCCESS {
        return 0;
    }
    bus_order(&text)
}

pub(crate) fn driver_attribute(
    device: DriverOrdinal,
    attribute: CUdevice_attribute,
) -> Result<c_int, CUresult> {
    // SAFETY: the value is writable.
    driver::get(|value| unsafe { driver::cuDeviceGetAttribute(value, attribute, device.0) })
}

/// Converts `domain:bus:device.function`, in hexadecimal, to a number of the same order.
fn bus_order(text: &[u8]) -> u64 {
    let digits = text.iter().copied().take_while(|byte| *byte != 0);
    let fields =
        digits.fold((0_u64, 0_u64), |(order, field), byte| match char::from(byte).to_digit(16) {
            Some(digit) => (order, field << 4 | u64::from(digit)),
            // A separator: a bus and a device have at most eight bits each.
            None => (order << 8 | field, 0),
        });
    fields.0 << 8 | fields.1
}

/// A device of NVML that programs can use: a whole GPU, or an instance of a partitioned one.
struct Part {
    handle: nvmlDevice_t,
    /// The GPU itself.
    gpu: nvmlDevice_t,
    /// Its place among the GPU's instances, from 1; 0: a whole GPU.
    instance: u64,
}

/// The bits of an order that hold the instance.
const INSTANCE_BITS: u32 = GpuInfo::INSTANCE.count_ones();

fn nvml_gpus() -> (Vec<GpuInfo>, Vec<Uuid>) {
    let mut gpus: Vec<GpuInfo> = Vec::new();
    for gpu in parts().filter_map(|part| nvml_gpu(&part)) {
        // Drivers before R470 give all instances the UUID of the GPU.
        if gpus.iter().all(|other| other.uuid != gpu.uuid) {
            gpus.push(gpu);
        }
    }
    (gpus, handles().filter(|gpu| is_partitioned(*gpu)).filter_map(nvml_uuid).collect())
}

fn nvml_gpu(part: &Part) -> Option<GpuInfo> {
    let uuid = nvml_uuid(part.handle)?;
    let total = Bytes(nvml_memory(part.handle)?.total);
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut pci: nvmlPciInfo_t = unsafe { core::mem::zeroed() };
    // SAFETY: the record is writable.
    let answer = unsafe { nvml::nvmlDeviceGetPciInfo_v3(part.gpu, &raw mut pci) };
    let order = if answer == nvmlReturn_t::SUCCESS {
        bus_order(&pci.bus_id.map(|byte| byte.to_ne_bytes()[0]))
    } else {
        0
    };
    Some(GpuInfo { uuid, total, order: order << INSTANCE_BITS | part.instance })
}

fn parts() -> impl Iterator<Item = Part> {
    handles().flat_map(|gpu| {
        let partitioned = is_partitioned(gpu);
        let whole = (!partitioned).then_some(Part { handle: gpu, gpu, instance: 0 });
        let instances = partitioned.then(|| instances(gpu)).into_iter().flatten();
        whole.into_iter().chain(instances.map(move |(handle, instance)| Part {
            handle,
            gpu,
            instance,
        }))
    })
}

fn is_partitioned(gpu: nvmlDevice_t) -> bool {
    /// `NVML_DEVICE_MIG_ENABLE`.
    const ENABLED: c_uint = 1;
    let (mut current, mut pending) = (0, 0);
    // SAFETY: both modes are writable.
    let answer = unsafe { nvml::nvmlDeviceGetMigMode(gpu, &raw mut current, &raw mut pending) };
    answer == nvmlReturn_t::SUCCESS && current == ENABLED
}

/// Returns the MIG instances of a partitioned GPU, with their places from 1.
fn instances(gpu: nvmlDevice_t) -> impl Iterator<Item = (nvmlDevice_t, u64)> {
    // SAFETY: the count is writable.
    let most = nvml::get(|most| unsafe { nvml::nvmlDeviceGetMaxMigDeviceCount(gpu, most) });
    // An order has no room for more; a GPU has at most 7.
    let places = (0..most.unwrap_or(0)).zip(1..=GpuInfo::INSTANCE);
    places.filter_map(move |(index, place)| {
        // SAFETY: the handle is writable.
        nvml::get(|handle| unsafe { nvml::nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, handle) })
            .ok()
            .map(|handle| (handle, place))
    })
}

pub(crate) fn nvml_memory(handle: nvmlDevice_t) -> Option<nvmlMemory_t> {
    // SAFETY: the record is writable.
    nvml::get(|memory| unsafe { nvml::nvmlDeviceGetMemoryInfo(handle, memory) }).ok()
}

fn handles() -> impl Iterator<Item = nvmlDevice_t> {
    // SAFETY: the count is writable.
    let count = nvml::get(|count| unsafe { nvml::nvmlDeviceGetCount_v2(count) });
    (0..count.unwrap_or(0)).filter_map(|index| {
        // SAFETY: the handle is writable.
        nvml::get(|handle| unsafe { nvml::nvmlDeviceGetHandleByIndex_v2(index, handle) }).ok()
    })
}
