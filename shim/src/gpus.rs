//! The GPUs, as NVML and the driver show them before anything is virtual.

use core::ffi::{CStr, c_int, c_uint};

use cgpu_abi::nvml_types::{nvmlDevice_t, nvmlMemory_t, nvmlPciInfo_t, nvmlReturn_t};
use cgpu_abi::types::{CUresult, CUuuid};
use cgpu_memory::{Bytes, Found, GpuInfo, MonitorInventory, System, Tenant, Uuid};

use crate::devices::{Devices, DriverOrdinal};
use crate::state::Trigger;
use crate::{driver, nvml, nvml_uses};

/// The devices of the initialised driver.
pub(crate) fn devices_of(tenant: &Tenant) -> Devices {
    Devices::new(devices().map(|device| tenant.gpu(driver_uuid(device)?)))
}

/// All GPUs, as the monitor has told, or a process of the container before this one; else NVML's
/// list, which no variable of the program hides from; where there is no NVML, the driver's. A GPU
/// that is partitioned into MIG instances is these instead: no program computes on the GPU itself.
pub(crate) fn inventory(trigger: Trigger) -> Found {
    // SAFETY: the name is NUL-ended.
    let hides = !unsafe { libc::getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) }.is_null();
    if trigger == Trigger::Driver
        && let Some(inventory) = MonitorInventory::read(&System)
        && let Some(seen) = devices().map(driver_gpu).collect::<Option<Vec<_>>>()
        && let Some(found) = inventory.found(&seen, hides)
    {
        return found;
    }
    // The program has started NVML itself, if it is that which asks.
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

/// Whether the driver answers.
pub(crate) fn driver_is_initialised() -> bool {
    let mut count = 0;
    // SAFETY: the count is writable.
    unsafe { driver::cuDeviceGetCount(&raw mut count) == CUresult::SUCCESS }
}

/// Whether the driver shows any GPU.
pub(crate) fn driver_has_gpus() -> bool {
    devices().next().is_some()
}

/// The device's free memory by NVML, which is started; none where it cannot tell.
pub(crate) fn nvml_free(device: DriverOrdinal) -> Option<Bytes> {
    let uuid = driver_uuid(device)?;
    let part = parts().find(|part| nvml_uuid(part.handle) == Some(uuid))?;
    nvml_memory(part.handle).map(|memory| Bytes(memory.free))
}

/// The UUID of NVML's device.
pub(crate) fn nvml_uuid(device: nvmlDevice_t) -> Option<Uuid> {
    /// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
    const LENGTH: c_uint = 96;
    let mut text = [0_u8; LENGTH as usize];
    // SAFETY: the buffer is as long as said.
    let answer = unsafe { nvml::nvmlDeviceGetUUID(device, text.as_mut_ptr().cast(), LENGTH) };
    if answer != nvmlReturn_t::SUCCESS {
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?;
    text.parse().ok()
}

/// The instances of a GPU of NVML's that is cut.
pub(crate) fn instances_of(gpu: nvmlDevice_t) -> impl Iterator<Item = nvmlDevice_t> {
    let partitioned = is_partitioned(gpu);
    partitioned.then(|| instances(gpu)).into_iter().flatten().map(|(instance, _)| instance)
}

fn devices() -> impl Iterator<Item = DriverOrdinal> {
    let mut count: c_int = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { driver::cuDeviceGetCount(&raw mut count) };
    let count = if answer == CUresult::SUCCESS { count } else { 0 };
    (0..count).filter_map(|place| {
        let mut device = DriverOrdinal::default();
        // SAFETY: the device is writable.
        (unsafe { driver::cuDeviceGet(&raw mut device.0, place) } == CUresult::SUCCESS)
            .then_some(device)
    })
}

/// The GPU's UUID; a MIG instance's own where the driver is new enough to tell.
fn driver_uuid(device: DriverOrdinal) -> Option<Uuid> {
    let mut uuid = CUuuid::default();
    // SAFETY: the UUID is writable.
    let mut answer = unsafe { driver::cuDeviceGetUuid_v2(&raw mut uuid, device.0) };
    if answer == CUresult::ERROR_NOT_SUPPORTED {
        // SAFETY: as above.
        answer = unsafe { driver::cuDeviceGetUuid(&raw mut uuid, device.0) };
    }
    (answer == CUresult::SUCCESS).then_some(Uuid(uuid.bytes))
}

fn driver_gpu(device: DriverOrdinal) -> Option<GpuInfo> {
    let uuid = driver_uuid(device)?;
    let mut total = 0_usize;
    // SAFETY: the total is writable.
    if unsafe { driver::cuDeviceTotalMem_v2(&raw mut total, device.0) } != CUresult::SUCCESS {
        return None;
    }
    Some(GpuInfo { uuid, total: Bytes(total as u64), order: driver_order(device) << INSTANCE_BITS })
}

/// The GPU's place on the bus, as a number.
fn driver_order(device: DriverOrdinal) -> u64 {
    let mut text = [0_u8; 32];
    // SAFETY: the buffer is as long as said.
    let answer = unsafe { driver::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 32, device.0) };
    if answer != CUresult::SUCCESS {
        return 0;
    }
    bus_order(&text)
}

/// `domain:bus:device.function`, in hexadecimal, as a number that orders as they do.
fn bus_order(text: &[u8]) -> u64 {
    let digits = text.iter().copied().take_while(|byte| *byte != 0);
    let fields =
        digits.fold((0_u64, 0_u64), |(order, field), byte| match char::from(byte).to_digit(16) {
            Some(digit) => (order, field << 4 | u64::from(digit)),
            // A separator: a bus and a device have eight bits each at most.
            None => (order << 8 | field, 0),
        });
    fields.0 << 8 | fields.1
}

/// What NVML lists, as programs can use it: a whole GPU, or an instance of one that is cut.
struct Part {
    handle: nvmlDevice_t,
    /// The GPU itself.
    gpu: nvmlDevice_t,
    /// Its place among the GPU's instances, from 1; 0: the GPU itself.
    instance: u64,
}

/// The bits of an order that are the instance's.
const INSTANCE_BITS: u32 = GpuInfo::INSTANCE.count_ones();

/// What programs can use, and the GPUs that are cut, by their own names.
fn nvml_gpus() -> (Vec<GpuInfo>, Vec<Uuid>) {
    let mut gpus: Vec<GpuInfo> = Vec::new();
    for gpu in parts().filter_map(|part| nvml_gpu(&part)) {
        // Drivers before R470 name all instances of a GPU after it.
        if gpus.iter().all(|other| other.uuid != gpu.uuid) {
            gpus.push(gpu);
        }
    }
    (gpus, handles().filter(|gpu| is_partitioned(*gpu)).filter_map(nvml_uuid).collect())
}

fn nvml_gpu(part: &Part) -> Option<GpuInfo> {
    let uuid = nvml_uuid(part.handle)?;
    let total = Bytes(nvml_memory(part.handle)?.total);
    // SAFETY: all fields are numbers.
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

/// Whether a GPU is cut into MIG instances.
fn is_partitioned(gpu: nvmlDevice_t) -> bool {
    /// `NVML_DEVICE_MIG_ENABLE`.
    const ENABLED: c_uint = 1;
    let (mut current, mut pending) = (0, 0);
    // SAFETY: both modes are writable.
    let answer = unsafe { nvml::nvmlDeviceGetMigMode(gpu, &raw mut current, &raw mut pending) };
    answer == nvmlReturn_t::SUCCESS && current == ENABLED
}

/// The MIG instances of a GPU that is cut, with their places from 1.
fn instances(gpu: nvmlDevice_t) -> impl Iterator<Item = (nvmlDevice_t, u64)> {
    let mut most: c_uint = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { nvml::nvmlDeviceGetMaxMigDeviceCount(gpu, &raw mut most) };
    let most = if answer == nvmlReturn_t::SUCCESS { most } else { 0 };
    // More than the order has room for have no place; there are 7 at most.
    let places = (0..most).zip(1..=GpuInfo::INSTANCE);
    places.filter_map(move |(index, place)| {
        let mut handle = nvmlDevice_t::NULL;
        // SAFETY: the handle is writable.
        let answer =
            unsafe { nvml::nvmlDeviceGetMigDeviceHandleByIndex(gpu, index, &raw mut handle) };
        (answer == nvmlReturn_t::SUCCESS).then_some((handle, place))
    })
}

fn nvml_memory(handle: nvmlDevice_t) -> Option<nvmlMemory_t> {
    let mut memory = nvmlMemory_t::default();
    // SAFETY: the record is writable.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo(handle, &raw mut memory) };
    (answer == nvmlReturn_t::SUCCESS).then_some(memory)
}

fn handles() -> impl Iterator<Item = nvmlDevice_t> {
    let mut count: c_uint = 0;
    // SAFETY: the count is writable.
    let answer = unsafe { nvml::nvmlDeviceGetCount_v2(&raw mut count) };
    let count = if answer == nvmlReturn_t::SUCCESS { count } else { 0 };
    (0..count).filter_map(|index| {
        let mut handle = nvmlDevice_t::NULL;
        // SAFETY: the handle is writable.
        let answer = unsafe { nvml::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle) };
        (answer == nvmlReturn_t::SUCCESS).then_some(handle)
    })
}
