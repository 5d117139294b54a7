//! Instances of partitioned GPUs (MIG). `CGPU_SIM_GPUS` defines the partitions; these functions do
//! not change them.

use std::sync::Arc;

use cgpu_abi::nvml_types::*;
use cgpu_sim::instance::{Instance, Part, supports_mig};

use crate::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED};
use crate::argument::Out;
use crate::device::{Gpu, find};

/// Returns the ids of an instance's GPU instance and compute instance. GPU instance 0 is the whole
/// GPU, and each GPU instance has one compute instance.
pub(crate) fn ids(instance: Instance) -> (c_uint, c_uint) {
    (instance.number + 1, 0)
}

/// Returns a GPU that supports MIG, whether or not it is partitioned.
fn divisible(device: nvmlDevice_t) -> Answer<Gpu> {
    let gpu = find(device)?;
    let fits = supports_mig(gpu.spec().model) && gpu.instance().is_none();
    if fits { Ok(gpu) } else { Err(NOT_SUPPORTED) }
}

pub(crate) fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current_mode: Out<c_uint>,
    pending_mode: Out<c_uint>,
) -> Answer {
    let divided = divisible(device)?.spec().part == Part::Partitioned;
    let mode = if divided { NVML_FEATURE_ENABLED } else { NVML_FEATURE_DISABLED };
    current_mode.put(mode)?;
    pending_mode.put(mode)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: Out<c_uint>) -> Answer {
    find(device)?;
    let maximum = if divisible(device).is_ok() { 7 } else { 0 };
    count.put(maximum)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    mig_device: Out<nvmlDevice_t>,
) -> Answer {
    let instances = divisible(device)?.instances();
    let (instance, _) = instances.get(index as usize).ok_or(NOT_FOUND)?;
    mig_device.put(instance.handle())?;
    Ok(())
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(
    device: nvmlDevice_t,
    is_mig_device: Out<c_uint>,
) -> Answer {
    let is = find(device)?.instance().is_some();
    is_mig_device.put(is.into())?;
    Ok(())
}

/// Returns an instance's device; fails on whole GPUs.
fn instance(device: nvmlDevice_t) -> Answer<(Gpu, Instance)> {
    let gpu = find(device)?;
    let instance = gpu.instance().ok_or(INVALID_ARGUMENT)?;
    Ok((gpu, instance))
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    mig_device: nvmlDevice_t,
    device: Out<nvmlDevice_t>,
) -> Answer {
    let (gpu, instance) = instance(mig_device)?;
    device.put(Gpu { machine: Arc::clone(&gpu.machine), index: instance.gpu }.handle())?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: Out<c_uint>) -> Answer {
    let (_, instance) = instance(device)?;
    id.put(ids(instance).0)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: Out<c_uint>) -> Answer {
    let (_, instance) = instance(device)?;
    id.put(ids(instance).1)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    attributes: Out<nvmlDeviceAttributes_t>,
) -> Answer {
    let (gpu, instance) = instance(device)?;
    attributes.put(nvmlDeviceAttributes_t {
        multiprocessor_count: gpu.spec().multiprocessors(),
        shared_copy_engine_count: instance.slices,
        gpu_instance_slice_count: instance.slices,
        compute_instance_slice_count: instance.slices,
        memory_size_mb: gpu.spec().total.0 >> 20,
        ..Default::default()
    })?;
    Ok(())
}

pub(crate) use nvmlDeviceGetAttributes_v2 as nvmlDeviceGetAttributes;

pub(crate) fn nvmlDeviceGetVirtualizationMode(
    device: nvmlDevice_t,
    virtual_mode: Out<nvmlGpuVirtualizationMode_t>,
) -> Answer {
    find(device)?;
    virtual_mode.put(NVML_GPU_VIRTUALIZATION_MODE_NONE)?;
    Ok(())
}
