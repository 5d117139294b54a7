//! That no card is partitioned (MIG).

use cgpu_abi::nvml_types::*;

use crate::answer::{Answer, NOT_FOUND, NOT_SUPPORTED};
use crate::argument::Out;
use crate::device::find;

/// Whether a model can be partitioned at all.
fn can(device: nvmlDevice_t) -> Answer {
    let capable = matches!(find(device)?.spec().model.capability, (8, 0) | (9, _));
    if capable { Ok(()) } else { Err(NOT_SUPPORTED) }
}

pub(crate) fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current_mode: Out<c_uint>,
    pending_mode: Out<c_uint>,
) -> Answer {
    can(device)?;
    current_mode.put(NVML_FEATURE_DISABLED)?;
    pending_mode.put(NVML_FEATURE_DISABLED)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<c_uint>) -> Answer {
    let most = if can(device).is_ok() { 7 } else { 0 };
    count.put(most)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    _index: c_uint,
    _mig_device: Out<nvmlDevice_t>,
) -> Answer {
    can(device)?;
    Err(NOT_FOUND)
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig_device: Out<c_uint>) -> Answer {
    find(device)?;
    is_mig_device.put(0)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig_device: nvmlDevice_t,
    _device: Out<nvmlDevice_t>,
) -> Answer {
    find(mig_device)?;
    Err(crate::answer::INVALID_ARGUMENT)
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, _id: Out<c_uint>) -> Answer {
    find(device)?;
    Err(NOT_SUPPORTED)
}
pub(crate) use nvmlDeviceGetGpuInstanceId as nvmlDeviceGetComputeInstanceId;

pub(crate) fn nvmlDeviceGetVirtualizationMode(
    device: nvmlDevice_t,
    virtual_mode: Out<nvmlGpuVirtualizationMode_t>,
) -> Answer {
    find(device)?;
    virtual_mode.put(NVML_GPU_VIRTUALIZATION_MODE_NONE)?;
    Ok(())
}
