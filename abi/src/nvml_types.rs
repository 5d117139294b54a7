//! NVML's types, laid out as in its header.

pub use core::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong};

pub use crate::nvml_constants::*;
pub use crate::results::nvmlReturn_t;
use crate::types::{handles, layouts};

handles! {
    /// A GPU, or an instance of a partitioned one.
    nvmlDevice_t,
    /// A set of events to wait for.
    nvmlEventSet_t,
}

/// A size that is not available.
pub const NVML_VALUE_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// Value of `nvmlMemory_v2_t::version`: the size, with the version in the top byte.
pub const NVML_MEMORY_V2: c_uint = 0x0200_0028;

/// Memory of a GPU, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlMemory_t {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    /// Includes the driver's reserve.
    pub used: c_ulonglong,
}

/// Memory of a GPU, in bytes, with the driver's reserve apart.
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

/// The PCIe window for the host's access to a GPU's memory, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlBAR1Memory_t {
    pub bar1_total: c_ulonglong,
    pub bar1_free: c_ulonglong,
    pub bar1_used: c_ulonglong,
}

/// Part of the last window in which the GPU ran kernels, and moved memory; percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlUtilization_t {
    pub gpu: c_uint,
    pub memory: c_uint,
}

/// A process on a GPU, for functions without a version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessInfo_v1_t {
    pub pid: c_uint,
    /// Bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub used_gpu_memory: c_ulonglong,
}

/// A process on a GPU, for functions of versions 2 and 3.
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

/// A process's utilisation in a window; percent.
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

/// A process's utilisation since the last query; percent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessUtilizationInfo_v1_t {
    /// Microseconds since the epoch.
    pub time_stamp: c_ulonglong,
    pub pid: c_uint,
    pub sm_util: c_uint,
    pub mem_util: c_uint,
    pub enc_util: c_uint,
    pub dec_util: c_uint,
    pub jpg_util: c_uint,
    pub ofa_util: c_uint,
}

/// Value of `nvmlProcessesUtilizationInfo_v1_t::version`.
pub const NVML_PROCESSES_UTILIZATION_INFO_V1: c_uint = 0x0100_0018;

/// Utilisation of processes since the last query.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessesUtilizationInfo_v1_t {
    /// Set by the caller: [`NVML_PROCESSES_UTILIZATION_INFO_V1`].
    pub version: c_uint,
    /// In: room for so many; out: their number.
    pub process_samples_count: c_uint,
    /// Microseconds since the epoch.
    pub last_seen_time_stamp: c_ulonglong,
    pub proc_util_array: *mut nvmlProcessUtilizationInfo_v1_t,
}

/// The newest layout of it.
pub type nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;

/// A process on a GPU, with its memory under confidential computing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessDetail_v1_t {
    pub pid: c_uint,
    /// Bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub used_gpu_memory: c_ulonglong,
    /// `c_uint::MAX` outside MIG.
    pub gpu_instance_id: c_uint,
    /// `c_uint::MAX` outside MIG.
    pub compute_instance_id: c_uint,
    /// Bytes.
    pub used_gpu_cc_protected_memory: c_ulonglong,
}

/// Value of `nvmlProcessDetailList_v1_t::version`.
pub const NVML_PROCESS_DETAIL_LIST_V1: c_uint = 0x0100_0018;

/// Processes on a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessDetailList_v1_t {
    /// Set by the caller: [`NVML_PROCESS_DETAIL_LIST_V1`].
    pub version: c_uint,
    /// Set by the caller: [`nvmlProcessMode_t`].
    pub mode: c_uint,
    /// In: room for so many; out: their number.
    pub num_proc_array_entries: c_uint,
    pub proc_array: *mut nvmlProcessDetail_v1_t,
}

/// The newest layout of it.
pub type nvmlProcessDetailList_t = nvmlProcessDetailList_v1_t;

/// Accounting of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlAccountingStats_t {
    /// Percent of its lifetime in which it computed.
    pub gpu_utilization: c_uint,
    /// Percent of its lifetime in which it moved memory.
    pub memory_utilization: c_uint,
    /// Maximum, in bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub max_memory_usage: c_ulonglong,
    /// Milliseconds with a context; 0 while the process runs.
    pub time: c_ulonglong,
    /// Microseconds since the epoch.
    pub start_time: c_ulonglong,
    /// 1: the process runs.
    pub is_running: c_uint,
    pub reserved: [c_uint; 5],
}

/// Accounting of a process, with the sums behind the percentages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlAccountingStats_v2_t {
    /// Set by the caller: the process.
    pub pid: c_uint,
    /// 1: the process runs.
    pub is_running: c_uint,
    /// Percent of its lifetime in which it computed.
    pub gpu_utilization: c_uint,
    /// Percent of its lifetime in which it moved memory.
    pub memory_utilization: c_uint,
    /// Maximum, in bytes, or [`NVML_VALUE_NOT_AVAILABLE`].
    pub max_memory_usage: c_ulonglong,
    pub sample_count: c_uint,
    /// In hundredths of a percent.
    pub sum_gpu_util: c_ulonglong,
    /// In hundredths of a percent.
    pub sum_fb_util: c_ulonglong,
    /// Milliseconds with a context; 0 while the process runs.
    pub time: c_ulonglong,
    /// Microseconds since the epoch.
    pub start_time: c_ulonglong,
}

/// The vendor's limits on a control group's memory on a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlGetMemoryLimits_v1_t {
    /// Set by the caller: the path of the control group.
    pub name_space: *const c_char,
    /// Guaranteed bytes; 0: none.
    pub soft_limit: c_ulonglong,
    /// Hard limit in bytes; [`NVML_DEVICE_MEMORY_LIMIT_MAX`]: none.
    pub hard_limit: c_ulonglong,
    /// Bytes in use.
    pub current_used: c_ulonglong,
}

/// New limits of a control group on a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlSetMemoryLimits_v1_t {
    /// The path of the control group.
    pub name_space: *const c_char,
    /// Guaranteed bytes; 0: none.
    pub soft_limit: c_ulonglong,
    /// Hard limit in bytes; [`NVML_DEVICE_MEMORY_LIMIT_MAX`]: none.
    pub hard_limit: c_ulonglong,
}

/// No hard limit.
pub const NVML_DEVICE_MEMORY_LIMIT_MAX: c_ulonglong = c_ulonglong::MAX;

/// Memory of a GPU under confidential computing, in KiB.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlConfComputeMemSizeInfo_t {
    pub protected_mem_size_kib: c_ulonglong,
    pub unprotected_mem_size_kib: c_ulonglong,
}

/// A session of the video encoder.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlEncoderSessionInfo_t {
    pub session_id: c_uint,
    pub pid: c_uint,
    /// 0 except on hosts of virtual machines.
    pub vgpu_instance: c_uint,
    pub codec_type: c_uint,
    pub h_resolution: c_uint,
    pub v_resolution: c_uint,
    pub average_fps: c_uint,
    /// Microseconds.
    pub average_latency: c_uint,
}

/// A session that captures frames.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlFBCSessionInfo_t {
    pub session_id: c_uint,
    pub pid: c_uint,
    /// 0 except on hosts of virtual machines.
    pub vgpu_instance: c_uint,
    pub display_ordinal: c_uint,
    pub session_type: c_uint,
    pub session_flags: c_uint,
    pub h_max_resolution: c_uint,
    pub v_max_resolution: c_uint,
    pub h_resolution: c_uint,
    pub v_resolution: c_uint,
    pub average_fps: c_uint,
    /// Microseconds.
    pub average_latency: c_uint,
}

/// A value of one of several types: NVML's union, as its 64 bits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct nvmlValue_t(pub c_ulonglong);

/// A reading of a counter.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlSample_t {
    /// Microseconds since the epoch.
    pub time_stamp: c_ulonglong,
    pub sample_value: nvmlValue_t,
}

/// A property, queried by number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlFieldValue_t {
    /// `NVML_FI_...`.
    pub field_id: c_uint,
    pub scope_id: c_uint,
    /// Microseconds since the epoch.
    pub timestamp: c_longlong,
    pub latency_usec: c_longlong,
    pub value_type: nvmlValueType_t,
    pub nvml_return: nvmlReturn_t,
    pub value: nvmlValue_t,
}

/// An event of a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlEventData_t {
    pub device: nvmlDevice_t,
    pub event_type: c_ulonglong,
    /// The XID of a critical error; else 0.
    pub event_data: c_ulonglong,
    /// `c_uint::MAX` outside MIG.
    pub gpu_instance_id: c_uint,
    /// `c_uint::MAX` outside MIG.
    pub compute_instance_id: c_uint,
}

/// An instance's part of its GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlDeviceAttributes_t {
    pub multiprocessor_count: c_uint,
    pub shared_copy_engine_count: c_uint,
    pub shared_decoder_count: c_uint,
    pub shared_encoder_count: c_uint,
    pub shared_jpeg_count: c_uint,
    pub shared_ofa_count: c_uint,
    pub gpu_instance_slice_count: c_uint,
    pub compute_instance_slice_count: c_uint,
    pub memory_size_mb: c_ulonglong,
}

/// Value of `nvmlTemperature_v1_t::version`.
pub const NVML_TEMPERATURE_V1: c_uint = 0x0100_000c;

/// A temperature, in degrees Celsius.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlTemperature_v1_t {
    /// Set by the caller: [`NVML_TEMPERATURE_V1`].
    pub version: c_uint,
    /// Set by the caller.
    pub sensor_type: nvmlTemperatureSensors_t,
    pub temperature: c_int,
}

/// The newest layout of a temperature.
pub type nvmlTemperature_t = nvmlTemperature_v1_t;

/// PCI address of a GPU. `nvmlDeviceGetPciInfo` (no version) and `_v2` have the same arguments but
/// are older than `bus_id`.
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
    nvmlEventSet_t 8 8,
    nvmlTemperature_v1_t 12 4,
    nvmlProcessUtilizationInfo_v1_t 40 8,
    nvmlProcessesUtilizationInfo_v1_t 24 8,
    nvmlValue_t 8 8,
    nvmlSample_t 16 8,
    nvmlFieldValue_t 40 8,
    nvmlEventData_t 32 8,
    nvmlDeviceAttributes_t 40 8,
    nvmlProcessDetail_v1_t 32 8,
    nvmlProcessDetailList_v1_t 24 8,
    nvmlAccountingStats_t 56 8,
    nvmlAccountingStats_v2_t 64 8,
    nvmlGetMemoryLimits_v1_t 32 8,
    nvmlSetMemoryLimits_v1_t 24 8,
    nvmlConfComputeMemSizeInfo_t 16 8,
    nvmlEncoderSessionInfo_t 32 4,
    nvmlFBCSessionInfo_t 48 4,
}
