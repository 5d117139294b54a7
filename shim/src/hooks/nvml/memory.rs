//! Size and use of a GPU: the same as from the driver, to the byte.

use cgpu_abi::nvml_types::*;
use cgpu_memory::{Bytes, MemoryInfo};

use crate::process::{self, State, Trigger};
use crate::{gpus, nvml};

/// Defines functions that show what the third part returns, if anything, instead of NVML's answer.
macro_rules! shown {
    ($device:ident; $($symbol:ident($place:ident: $type:ty) => $shown:expr;)*) => {$(
        pub(crate) unsafe fn $symbol($device: nvmlDevice_t, $place: *mut $type) -> nvmlReturn_t {
            // SAFETY: the program's own call.
            let answer = unsafe { nvml::$symbol($device, $place) };
            // SAFETY: if the call has succeeded, NVML has just written there.
            unsafe { replace(answer, $place, $shown) }
        }
    )*};
}

shown! { device;
    // Total is the limit.
    nvmlDeviceGetMemoryInfo(memory: nvmlMemory_t) => |memory| first(device, memory);

    // Total is the limit; memory reserved by the driver is not the container's.
    nvmlDeviceGetMemoryInfo_v2(memory: nvmlMemory_v2_t) => |memory| second(device, memory);

    // With confidential computing all memory of a program is protected. A GPU without protected
    // memory is shown unchanged.
    nvmlDeviceGetConfComputeProtectedMemoryUsage(memory: nvmlMemory_t) =>
        |memory| first(device, memory).filter(|_| memory.total > 0);

    nvmlDeviceGetConfComputeMemSizeInfo(mem_info: nvmlConfComputeMemSizeInfo_t) =>
        |sizes| both(device, sizes);

    // A MIG instance's size is its limit; its other attributes are unchanged.
    nvmlDeviceGetAttributes(attributes: nvmlDeviceAttributes_t) =>
        |attributes| capped(device, attributes);
    nvmlDeviceGetAttributes_v2(attributes: nvmlDeviceAttributes_t) =>
        |attributes| capped(device, attributes);
}

/// The vendor's own limits per control group: ours applies as well, to every group that the
/// container can name. A driver without such limits returns its error.
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
    let Some(view) = gpus::nvml_memory(device).and_then(|now| view(device, Bytes(now.free))) else {
        return answer;
    };
    // SAFETY: not null, and NVML has accepted the program's record.
    let limits = unsafe { &mut *limits };
    if answer == nvmlReturn_t::ERROR_NOT_FOUND {
        // The driver has no limit for this group.
        (limits.soft_limit, limits.hard_limit) = (0, NVML_DEVICE_MEMORY_LIMIT_MAX);
    }
    limits.soft_limit = limits.soft_limit.min(view.total.0);
    limits.hard_limit = limits.hard_limit.min(view.total.0);
    limits.current_used = view.used.0;
    nvmlReturn_t::SUCCESS
}

fn first(device: nvmlDevice_t, memory: &nvmlMemory_t) -> Option<nvmlMemory_t> {
    let MemoryInfo { total, free, used } = view(device, Bytes(memory.free))?;
    Some(nvmlMemory_t { total: total.0, free: free.0, used: used.0 })
}

fn second(device: nvmlDevice_t, memory: &nvmlMemory_v2_t) -> Option<nvmlMemory_v2_t> {
    let MemoryInfo { total, free, used } = view(device, Bytes(memory.free))?;
    Some(nvmlMemory_v2_t {
        version: memory.version,
        total: total.0,
        reserved: 0,
        free: free.0,
        used: used.0,
    })
}

/// Both parts together are at most the limit.
fn both(
    device: nvmlDevice_t,
    sizes: &nvmlConfComputeMemSizeInfo_t,
) -> Option<nvmlConfComputeMemSizeInfo_t> {
    let limit = limit(device)?.0 >> 10;
    let protected_mem_size_kib = sizes.protected_mem_size_kib.min(limit);
    let unprotected_mem_size_kib =
        sizes.unprotected_mem_size_kib.min(limit - protected_mem_size_kib);
    Some(nvmlConfComputeMemSizeInfo_t { protected_mem_size_kib, unprotected_mem_size_kib })
}

fn capped(
    device: nvmlDevice_t,
    attributes: &nvmlDeviceAttributes_t,
) -> Option<nvmlDeviceAttributes_t> {
    let memory_size_mb = limit(device)?.0 >> 20;
    Some(nvmlDeviceAttributes_t { memory_size_mb, ..*attributes })
}

/// Replaces NVML's answer by what `shown` returns, if anything.
///
/// # Safety
///
/// If `answer` is success, `place` is readable and writable.
unsafe fn replace<T>(
    answer: nvmlReturn_t,
    place: *mut T,
    shown: impl FnOnce(&T) -> Option<T>,
) -> nvmlReturn_t {
    if answer == nvmlReturn_t::SUCCESS {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { &mut *place };
        if let Some(shown) = shown(place) {
            *place = shown;
        }
    }
    answer
}

/// Returns the device as the program sees it. A tool may use only NVML, so accounting may start
/// here.
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
