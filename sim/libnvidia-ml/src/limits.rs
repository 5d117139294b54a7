//! The vendor's own limits of control groups (13.4): stored per group and GPU, and returned. They
//! are neither enforced nor guaranteed here.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgpu_abi::nvml_types::*;
use cgpu_sim::timeline::GroupLimit;

use crate::answer::{Answer, INVALID_ARGUMENT, NOT_FOUND, OPERATING_SYSTEM};
use crate::argument::Out;
use crate::device::{Gpu, find};
use crate::permission::require_root;

/// Returns a control group's folder, and the machine's identifier of it.
fn group(name_space: *const c_char) -> Answer<(PathBuf, [u64; 2])> {
    if name_space.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so a C string that the program keeps for the duration of the call.
    let text = unsafe { CStr::from_ptr(name_space) };
    let path = Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())).to_owned();
    let metadata = std::fs::metadata(&path).map_err(|_| OPERATING_SYSTEM)?;
    Ok((path, [metadata.dev(), metadata.ino()]))
}

/// Returns the bytes that the processes of a group use on a GPU.
fn used(gpu: &Gpu, group: &Path) -> Answer<u64> {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let members: HashSet<u32> = list.lines().filter_map(|line| line.parse().ok()).collect();
    let processes = gpu.machine.processes(gpu.index)?.into_iter();
    Ok(processes
        .filter(|process| members.contains(&process.pid))
        .map(|process| process.memory.0)
        .sum())
}

pub(crate) fn nvmlDeviceSetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: Out<nvmlSetMemoryLimits_v1_t>,
) -> Answer {
    let gpu = find(device)?.whole()?;
    let requested = limits.read()?;
    let (soft, hard) = (requested.soft_limit, requested.hard_limit);
    let total = gpu.spec().total.0;
    let none = NVML_DEVICE_MEMORY_LIMIT_MAX;
    if soft > hard || soft > total || hard > total && hard != none {
        return Err(INVALID_ARGUMENT);
    }
    require_root()?;
    let (_, group) = group(requested.name_space)?;
    let to = (soft != 0 || hard != none).then_some(GroupLimit { soft, hard });
    gpu.machine.limit_group(gpu.index, group, to)?;
    Ok(())
}

pub(crate) fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: Out<nvmlGetMemoryLimits_v1_t>,
) -> Answer {
    let gpu = find(device)?.whole()?.query();
    let requested = limits.read()?;
    let (path, group) = group(requested.name_space)?;
    let GroupLimit { soft, hard } = gpu.machine.group_limit(gpu.index, group)?.ok_or(NOT_FOUND)?;
    let current_used = used(&gpu, &path)?;
    limits.put(nvmlGetMemoryLimits_v1_t {
        soft_limit: soft,
        hard_limit: hard,
        current_used,
        ..requested
    })?;
    Ok(())
}
