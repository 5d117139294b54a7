//! The vendor's own limits of control groups (13.4), as the simulated back end (`CGPU_SIM_WALL`)
//! has them.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cgpu_abi::nvml_types::*;
use cgpu_sim::Error;
use cgpu_sim::control_group::of_folder;
use cgpu_sim::timeline::{GroupLimit, Wall};

use crate::answer::{
    Answer, Failure, IN_USE, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, OPERATING_SYSTEM,
};
use crate::argument::Out;
use crate::device::{Gpu, find};
use crate::permission::require_root;

/// Finds a GPU whose memory can be limited, or fails as a driver without a back end.
fn limitable(device: nvmlDevice_t) -> Answer<Gpu> {
    let gpu = find(device)?.whole()?;
    if gpu.machine.figures().wall == Wall::Missing { Err(NOT_SUPPORTED) } else { Ok(gpu) }
}

/// Returns the folder of a control group, and the ids of the group and its ancestors.
fn group<'a>(name_space: *const c_char) -> Answer<(&'a Path, Vec<u64>)> {
    if name_space.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so a C string that the program keeps for the duration of the call.
    let text = unsafe { CStr::from_ptr(name_space) };
    let folder = Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()));
    let ids = of_folder(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => INVALID_ARGUMENT,
        _ => OPERATING_SYSTEM,
    })?;
    Ok((folder, ids))
}

fn refusal(error: Error) -> Failure {
    match error {
        Error::Unsupported(_) => NOT_SUPPORTED,
        Error::State(_) => IN_USE,
        Error::Invalid(_) => NOT_FOUND,
        Error::System(_) => OPERATING_SYSTEM,
        error => error.into(),
    }
}

pub(crate) fn nvmlDeviceSetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: Out<nvmlSetMemoryLimits_v1_t>,
) -> Answer {
    let gpu = limitable(device)?.query();
    let requested = limits.read()?;
    let (soft, hard) = (requested.soft_limit, requested.hard_limit);
    let total = gpu.spec().total.0;
    let none = NVML_DEVICE_MEMORY_LIMIT_MAX;
    if soft > hard || soft > total || hard > total && hard != none {
        return Err(INVALID_ARGUMENT);
    }
    require_root()?;
    let (folder, ids) = group(requested.name_space)?;
    if ids.is_empty() {
        // The root group.
        return Err(INVALID_ARGUMENT);
    }
    gpu.machine.limit_group(gpu.index, folder, GroupLimit { soft, hard }).map_err(refusal)
}

pub(crate) fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: Out<nvmlGetMemoryLimits_v1_t>,
) -> Answer {
    let gpu = limitable(device)?.query();
    let requested = limits.read()?;
    let (_, ids) = group(requested.name_space)?;
    let (limit, used) = gpu.machine.group_limit(gpu.index, &ids).map_err(refusal)?;
    limits.put(nvmlGetMemoryLimits_v1_t {
        soft_limit: limit.soft,
        hard_limit: limit.hard,
        current_used: used.0,
        ..requested
    })?;
    Ok(())
}
