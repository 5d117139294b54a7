//! The driver's memory limits for control groups, from driver r615 (CUDA 13.4) on.
//!
//! Unconfirmed: written by public documents, and run on simulated GPUs only.

#![allow(unsafe_code, reason = "nvml-wrapper does not have these functions")]

use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cgpu_abi::nvml::fns::{nvmlDeviceGetMemoryLimits_v1, nvmlDeviceSetMemoryLimits_v1};
use cgpu_abi::nvml_types::{
    NVML_DEVICE_MEMORY_LIMIT_MAX, nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlReturn_t,
    nvmlSetMemoryLimits_v1_t,
};
use cgpu_shm::units::Bytes;
use libloading::Library;
use nvml_wrapper::Device;

const GET: &[u8] = b"nvmlDeviceGetMemoryLimits_v1\0";
const SET: &[u8] = b"nvmlDeviceSetMemoryLimits_v1\0";

/// A control group's limits on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Under MPS the driver may end clients of a group that holds more.
    pub soft: Bytes,
    /// The group cannot take more. None: no limit.
    pub hard: Option<Bytes>,
}

/// What the driver reports of a control group on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupMemory {
    /// Its limits.
    pub limits: Limits,
    /// What is charged to it.
    pub used: Bytes,
}

/// Why the driver does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The library has no such function.
    OldDriver,
    /// The driver does not do that, or there is no limit.
    NotSupported,
    /// The driver does not know the group.
    NotFound,
    /// Another error, as text.
    Other(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OldDriver => "the driver has no such function",
            Self::NotSupported => "Not Supported",
            Self::NotFound => "Not Found",
            Self::Other(error) => error,
        })
    }
}

impl std::error::Error for Refused {}

/// The library's functions for memory limits.
#[derive(Debug)]
pub struct MemoryLimits {
    get: nvmlDeviceGetMemoryLimits_v1,
    set: nvmlDeviceSetMemoryLimits_v1,
    /// Keeps the functions loaded.
    _library: Library,
}

impl MemoryLimits {
    /// Finds the functions in the library of this name. None: it cannot be loaded, or is that of an
    /// older driver.
    #[must_use]
    pub fn load(library: &Path) -> Option<Self> {
        // SAFETY: the library's initialisers run when a library is first loaded. NVML's only
        // prepare its own data, and nvml-wrapper has loaded the same library before.
        let library = unsafe { Library::new(library) }.ok()?;
        // SAFETY: the type is that of NVML's header for this symbol, by the table of the ABI. The
        // pointer is copied out and used only while `_library` is loaded.
        let get = unsafe { library.get::<nvmlDeviceGetMemoryLimits_v1>(GET) };
        let get = *get.ok()?;
        // SAFETY: as above.
        let set = unsafe { library.get::<nvmlDeviceSetMemoryLimits_v1>(SET) };
        let set = *set.ok()?;
        Some(Self { get, set, _library: library })
    }

    /// Returns the limits of the control group with this folder.
    ///
    /// # Errors
    /// [`Refused`]; one back end of the driver also refuses where there is no limit.
    pub fn get(&self, device: &Device<'_>, group: &Path) -> Result<GroupMemory, Refused> {
        let folder = folder(group)?;
        let mut limits = nvmlGetMemoryLimits_v1_t {
            name_space: folder.as_ptr(),
            soft_limit: 0,
            hard_limit: NVML_DEVICE_MEMORY_LIMIT_MAX,
            current_used: 0,
        };
        // SAFETY: the handle is of a device that nvml-wrapper holds, so NVML is initialised. The
        // structure and the string in it live until the call returns, and NVML keeps neither.
        let result = unsafe { (self.get)(handle(device), &raw mut limits) };
        checked(result)?;
        let hard = limits.hard_limit;
        Ok(GroupMemory {
            limits: Limits {
                soft: Bytes(limits.soft_limit),
                hard: (hard != NVML_DEVICE_MEMORY_LIMIT_MAX).then_some(Bytes(hard)),
            },
            used: Bytes(limits.current_used),
        })
    }

    /// Sets the limits of the control group with this folder; requires root.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn set(&self, device: &Device<'_>, group: &Path, to: Limits) -> Result<(), Refused> {
        let folder = folder(group)?;
        let mut limits = nvmlSetMemoryLimits_v1_t {
            name_space: folder.as_ptr(),
            soft_limit: to.soft.0,
            hard_limit: to.hard.map_or(NVML_DEVICE_MEMORY_LIMIT_MAX, |hard| hard.0),
        };
        // SAFETY: as in `get`.
        checked(unsafe { (self.set)(handle(device), &raw mut limits) })
    }
}

fn folder(group: &Path) -> Result<CString, Refused> {
    let bytes = group.as_os_str().as_bytes();
    CString::new(bytes).map_err(|_| Refused::Other(format!("{group:?} has a zero byte")))
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: reads a pointer. The callers pass it to NVML while they have the device borrowed.
    nvmlDevice_t(unsafe { device.handle() }.expose_provenance())
}

fn checked(result: nvmlReturn_t) -> Result<(), Refused> {
    match result {
        nvmlReturn_t::SUCCESS => Ok(()),
        nvmlReturn_t::ERROR_NOT_SUPPORTED => Err(Refused::NotSupported),
        nvmlReturn_t::ERROR_NOT_FOUND => Err(Refused::NotFound),
        nvmlReturn_t::ERROR_FUNCTION_NOT_FOUND => Err(Refused::OldDriver),
        other => Err(Refused::Other(other.to_string())),
    }
}

/// Returns the first ancestor of a control group that does not pass `dmem` to its children, where
/// the driver needs that; none: all do, or the kernel has no such controller.
#[must_use]
pub fn gap(mount: &Path, group: &Path) -> Option<PathBuf> {
    let has = |folder: &Path, file: &str| {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        text.split_whitespace().any(|controller| controller == "dmem")
    };
    if !has(mount, "cgroup.controllers") {
        return None;
    }
    let mut ancestors: Vec<&Path> =
        group.ancestors().skip(1).take_while(|folder| folder.starts_with(mount)).collect();
    ancestors.reverse();
    let gap = ancestors.into_iter().find(|folder| !has(folder, "cgroup.subtree_control"));
    gap.map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn library_without_the_functions_has_none() {
        assert!(MemoryLimits::load(Path::new("libno-such-nvml.so")).is_none());
        assert!(MemoryLimits::load(Path::new("libc.so.6")).is_none());
    }

    #[test]
    fn first_ancestor_without_dmem_is_the_gap() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        let group = mount.join("system.slice/docker-a.scope");
        fs::create_dir_all(&group).unwrap();
        let write = |folder: &Path, file: &str, text: &str| {
            fs::write(folder.join(file), text).unwrap();
        };
        assert_eq!(gap(mount, &group), None, "an older kernel");
        write(mount, "cgroup.controllers", "cpu dmem pids\n");
        assert_eq!(gap(mount, &group).as_deref(), Some(mount));
        write(mount, "cgroup.subtree_control", "cpu dmem\n");
        assert_eq!(gap(mount, &group), Some(mount.join("system.slice")));
        write(&mount.join("system.slice"), "cgroup.subtree_control", "cpu dmem2\n");
        assert_eq!(gap(mount, &group), Some(mount.join("system.slice")));
        write(&mount.join("system.slice"), "cgroup.subtree_control", "dmem\n");
        assert_eq!(gap(mount, &group), None);
    }
}
