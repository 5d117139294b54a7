//! What NVML says of a card's memory: the same as the driver does, to the byte.

use cgpu_abi::nvml_types::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use cgpu_tenant::{Bytes, View};

use crate::process::{self, Starter, State};
use crate::{cards, nvml};

/// Total is the limit.
pub(crate) unsafe fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo(device, memory) };
    if answer == nvmlReturn_t::SUCCESS {
        // SAFETY: NVML has just written there.
        let memory = unsafe { &mut *memory };
        if let Some(view) = view(device, Bytes(memory.free)) {
            *memory = nvmlMemory_t { total: view.total.0, free: view.free.0, used: view.used.0 };
        }
    }
    answer
}

/// Total is the limit; what the driver has reserved of the card is not the container's.
pub(crate) unsafe fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the program's own call.
    let answer = unsafe { nvml::nvmlDeviceGetMemoryInfo_v2(device, memory) };
    if answer == nvmlReturn_t::SUCCESS {
        // SAFETY: NVML has just written there.
        let memory = unsafe { &mut *memory };
        if let Some(view) = view(device, Bytes(memory.free)) {
            let version = memory.version;
            *memory = nvmlMemory_v2_t {
                version,
                total: view.total.0,
                reserved: 0,
                free: view.free.0,
                used: view.used.0,
            };
        }
    }
    answer
}

/// A tool may use NVML and never the driver, so the books may have to be opened from here.
fn view(device: nvmlDevice_t, physical_free: Bytes) -> Option<View> {
    let State::On(tenant) = process::start(Starter::Nvml) else {
        return None;
    };
    tenant.view(tenant.card(cards::nvml_uuid(device)?)?, physical_free)
}
