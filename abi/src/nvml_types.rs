//! NVML's types, laid out as its header has them.

pub use core::ffi::{c_char, c_int, c_uint, c_ulonglong};

pub use crate::nvml_constants::*;
pub use crate::results::nvmlReturn_t;
use crate::types::{handles, layouts};

handles! {
    /// A card, or an instance of a partitioned one.
    nvmlDevice_t,
}

/// A value that NVML does not have, where a size is expected.
pub const NVML_VALUE_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// What `nvmlMemory_v2_t::version` has to be: the size, and the version in the top byte.
pub const NVML_MEMORY_V2: c_uint = 0x0200_0028;

/// Memory of a card, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlMemory_t {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    /// Includes what the driver has reserved.
    pub used: c_ulonglong,
}

/// Memory of a card, in bytes, with what the driver has reserved counted apart.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlMemory_v2_t {
    /// Set by the caller: [`NVML_MEMORY_V2`].
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

/// The window through which the host sees a card's memory, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlBAR1Memory_t {
    pub bar1_total: c_ulonglong,
    pub bar1_free: c_ulonglong,
    pub bar1_used: c_ulonglong,
}

/// Percent of the last sampling window in which the card ran kernels, and moved memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlUtilization_t {
    pub gpu: c_uint,
    pub memory: c_uint,
}

/// A process on a card, as the functions without a version give it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessInfo_v1_t {
    pub pid: c_uint,
    /// Bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub used_gpu_memory: c_ulonglong,
}

/// A process on a card, as the functions of versions 2 and 3 give it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessInfo_v2_t {
    pub pid: c_uint,
    /// Bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub used_gpu_memory: c_ulonglong,
    /// `c_uint::MAX` outside MIG.
    pub gpu_instance_id: c_uint,
    /// `c_uint::MAX` outside MIG.
    pub compute_instance_id: c_uint,
}

/// The newest layout of a process.
pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_t;

/// What a process did in a sampling window; percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessUtilizationSample_t {
    pub pid: c_uint,
    /// Microseconds since the epoch.
    pub time_stamp: c_ulonglong,
    pub sm_util: c_uint,
    pub mem_util: c_uint,
    pub enc_util: c_uint,
    pub dec_util: c_uint,
}

/// Where a card sits. `nvmlDeviceGetPciInfo` (no version) and `_v2` have the same arguments but are older than
/// `bus_id`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlPciInfo_t {
    /// `0000:00:00.0` and NUL.
    pub bus_id_legacy: [c_char; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub pci_device_id: c_uint,
    pub pci_sub_system_id: c_uint,
    /// `00000000:00:00.0` and NUL.
    pub bus_id: [c_char; 32],
}

layouts! {
    nvmlDevice_t 8 8,
    nvmlReturn_t 4 4,
    nvmlEnableState_t 4 4,
    nvmlMemory_t 24 8,
    nvmlMemory_v2_t 40 8,
    nvmlBAR1Memory_t 24 8,
    nvmlUtilization_t 8 4,
    nvmlProcessInfo_v1_t 16 8,
    nvmlProcessInfo_v2_t 24 8,
    nvmlProcessUtilizationSample_t 32 8,
    nvmlPciInfo_t 68 4,
}
