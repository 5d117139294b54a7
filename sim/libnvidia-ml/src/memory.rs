//! The GPUs' memory.

use cgpu_abi::nvml_types::*;

use crate::answer::{ARGUMENT_VERSION_MISMATCH, Answer};
use crate::argument::Out;
use crate::device::find;

/// Counts the driver's reserved memory as used, as the first version does.
pub(crate) fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>) -> Answer {
    let gpu = find(device)?.query();
    let info = gpu.machine.memory_info(gpu.index)?;
    memory.put(nvmlMemory_t {
        total: info.total.0,
        free: info.free.0,
        used: (info.used + info.reserved).0,
    })?;
    Ok(())
}

/// Shows a process in a control group with a limit that limit as the GPU's size.
pub(crate) fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: Out<nvmlMemory_v2_t>,
) -> Answer {
    let gpu = find(device)?.query();
    let version = memory.start_as::<c_uint>().read()?;
    if version != NVML_MEMORY_V2 {
        return Err(ARGUMENT_VERSION_MISMATCH);
    }
    let info = gpu.machine.visible_memory(gpu.index)?;
    memory.put(nvmlMemory_v2_t {
        version,
        total: info.total.0,
        reserved: info.reserved.0,
        free: info.free.0,
        used: info.used.0,
    })?;
    Ok(())
}

/// Describes the BAR1 window of a GPU without large windows; one page of it is always in use.
pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    bar1_memory: Out<nvmlBAR1Memory_t>,
) -> Answer {
    find(device)?;
    let (bar1_total, bar1_used) = (256 << 20, 2 << 20);
    bar1_memory.put(nvmlBAR1Memory_t {
        bar1_total,
        bar1_free: bar1_total - bar1_used,
        bar1_used,
    })?;
    Ok(())
}

/// Returns 0: memory errors are not simulated.
pub(crate) fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    _error_type: nvmlMemoryErrorType_t,
    _counter_type: nvmlEccCounterType_t,
    ecc_counts: Out<c_ulonglong>,
) -> Answer {
    find(device)?;
    ecc_counts.put(0)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMemoryErrorCounter(
    device: nvmlDevice_t,
    _error_type: nvmlMemoryErrorType_t,
    _counter_type: nvmlEccCounterType_t,
    _location_type: nvmlMemoryLocation_t,
    count: Out<c_ulonglong>,
) -> Answer {
    find(device)?;
    count.put(0)?;
    Ok(())
}
