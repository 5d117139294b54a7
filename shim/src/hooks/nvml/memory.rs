//! How large a GPU is and how full: the same as the driver says, to the byte.

use cgpu_abi::nvml_types::*;
use cgpu_memory::{Bytes, MemoryInfo};

use crate::process::{self, State, Trigger};
use crate::{gpus, nvml};

/// Total is the limit.
pub(crate) unsafe fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo(device, memory) };
    // SAFETY: where it has succeeded, NVML has just written there.
    unsafe { exchange(answer, memory, |memory| first(device, memory)) }
}

/// Total is the limit; what the driver has reserved of the GPU is not the container's.
pub(crate) unsafe fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo_v2(device, memory) };
    let second = |memory: &nvmlMemory_v2_t| {
        let MemoryInfo { total, free, used } = view(device, Bytes(memory.free))?;
        Some(nvmlMemory_v2_t {
            version: memory.version,
            total: total.0,
            reserved: 0,
            free: free.0,
            used: used.0,
        })
    };
    // SAFETY: where it has succeeded, NVML has just written there.
    unsafe { exchange(answer, memory, second) }
}

/// Under confidential computing all that a program has is protected.
pub(crate) unsafe fn nvmlDeviceGetConfComputeProtectedMemoryUsage(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetConfComputeProtectedMemoryUsage(device, memory) };
    // SAFETY: where it has succeeded, NVML has just written there. A GPU without protected memory
    // stays one.
    unsafe { exchange(answer, memory, |memory| first(device, memory).filter(|_| memory.total > 0)) }
}

/// Both parts together are no more than the limit.
pub(crate) unsafe fn nvmlDeviceGetConfComputeMemSizeInfo(
    device: nvmlDevice_t,
    mem_info: *mut nvmlConfComputeMemSizeInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetConfComputeMemSizeInfo(device, mem_info) };
    let capped = |sizes: &nvmlConfComputeMemSizeInfo_t| {
        let limit = limit(device)?.0 >> 10;
        let protected_mem_size_kib = sizes.protected_mem_size_kib.min(limit);
        let unprotected_mem_size_kib =
            sizes.unprotected_mem_size_kib.min(limit - protected_mem_size_kib);
        Some(nvmlConfComputeMemSizeInfo_t { protected_mem_size_kib, unprotected_mem_size_kib })
    };
    // SAFETY: where it has succeeded, NVML has just written there.
    unsafe { exchange(answer, mem_info, capped) }
}

/// The vendor's own limits, per control group: ours is one more, for every group that the container
/// can name. Where the driver has no such limits, it says so.
pub(crate) unsafe fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: *mut nvmlGetMemoryLimits_v1_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryLimits_v1(device, limits) };
    if limits.is_null() || !matches!(answer, nvmlReturn_t::SUCCESS | nvmlReturn_t::ERROR_NOT_FOUND)
    {
        return answer;
    }
    let mut memory = nvmlMemory_t::default();
    // SAFETY: the record is writable.
    if unsafe { nvml::nvmlDeviceGetMemoryInfo(device, &raw mut memory) } != nvmlReturn_t::SUCCESS {
        return answer;
    }
    let Some(view) = view(device, Bytes(memory.free)) else { return answer };
    // SAFETY: not null, and the program's: NVML took it.
    let limits = unsafe { &mut *limits };
    if answer == nvmlReturn_t::ERROR_NOT_FOUND {
        // It knows none of this group.
        (limits.soft_limit, limits.hard_limit) = (0, NVML_DEVICE_MEMORY_LIMIT_MAX);
    }
    limits.soft_limit = limits.soft_limit.min(view.total.0);
    limits.hard_limit = limits.hard_limit.min(view.total.0);
    limits.current_used = view.used.0;
    nvmlReturn_t::SUCCESS
}

/// A MIG instance is as large as its limit; all else of it is its own.
pub(crate) unsafe fn nvmlDeviceGetAttributes(
    device: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetAttributes(device, attributes) };
    // SAFETY: where it has succeeded, NVML has just written there.
    unsafe { exchange(answer, attributes, |attributes| capped(device, attributes)) }
}

/// The same.
pub(crate) unsafe fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    attributes: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetAttributes_v2(device, attributes) };
    // SAFETY: where it has succeeded, NVML has just written there.
    unsafe { exchange(answer, attributes, |attributes| capped(device, attributes)) }
}

fn first(device: nvmlDevice_t, memory: &nvmlMemory_t) -> Option<nvmlMemory_t> {
    let MemoryInfo { total, free, used } = view(device, Bytes(memory.free))?;
    Some(nvmlMemory_t { total: total.0, free: free.0, used: used.0 })
}

fn capped(
    device: nvmlDevice_t,
    attributes: &nvmlDeviceAttributes_t,
) -> Option<nvmlDeviceAttributes_t> {
    let memory_size_mb = limit(device)?.0 >> 20;
    Some(nvmlDeviceAttributes_t { memory_size_mb, ..*attributes })
}

/// Puts in the place of what NVML has answered what is `shown` instead, if anything is.
///
/// # Safety
///
/// Where `answer` is success, `place` is readable and writable.
unsafe fn exchange<T>(
    answer: nvmlReturn_t,
    place: *mut T,
    shown: impl FnOnce(&T) -> Option<T>,
) -> nvmlReturn_t {
    if answer == nvmlReturn_t::SUCCESS {
        // SAFETY: the caller vouches for it.
        let place = unsafe { &mut *place };
        if let Some(shown) = shown(place) {
            *place = shown;
        }
    }
    answer
}

/// A tool may use NVML and never the driver, so accounting may have to start here.
fn view(device: nvmlDevice_t, physical_free: Bytes) -> Option<MemoryInfo> {
    let State::On(tenant) = process::start(Trigger::Nvml) else {
        return None;
    };
    tenant.view().memory(tenant.gpu(gpus::nvml_uuid(device)?)?, physical_free)
}

fn limit(device: nvmlDevice_t) -> Option<Bytes> {
    let State::On(tenant) = process::start(Trigger::Nvml) else {
        return None;
    };
    tenant.view().limit(tenant.gpu(gpus::nvml_uuid(device)?)?)
}
