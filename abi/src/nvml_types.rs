//! NVML's types, laid out as its header has them.

pub use core::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong};

pub use crate::nvml_constants::*;
pub use crate::results::nvmlReturn_t;
use crate::types::{handles, layouts};

handles! {
    /// A card, or an instance of a partitioned one.
    nvmlDevice_t,
    /// A set of events to wait for.
    nvmlEventSet_t,
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

/// What a process did since it was last asked for; percent.
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

/// What `nvmlProcessesUtilizationInfo_v1_t::version` has to be.
pub const NVML_PROCESSES_UTILIZATION_INFO_V1: c_uint = 0x0100_0018;

/// What processes did since they were last asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlProcessesUtilizationInfo_v1_t {
    /// Set by the caller: [`NVML_PROCESSES_UTILIZATION_INFO_V1`].
    pub version: c_uint,
    /// In: for how many there is room; out: how many there are.
    pub process_samples_count: c_uint,
    /// Microseconds since the epoch.
    pub last_seen_time_stamp: c_ulonglong,
    pub proc_util_array: *mut nvmlProcessUtilizationInfo_v1_t,
}

/// The newest layout of it.
pub type nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;

/// A value of one of several types: NVML's union, as the 64 bits that it takes.
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

/// A property asked for by number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct nvmlFieldValue_t {
    /// Which: `NVML_FI_...`.
    pub field_id: c_uint,
    pub scope_id: c_uint,
    /// Microseconds since the epoch.
    pub timestamp: c_longlong,
    pub latency_usec: c_longlong,
    pub value_type: nvmlValueType_t,
    pub nvml_return: nvmlReturn_t,
    pub value: nvmlValue_t,
}

/// What happened to a card.
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

/// How much of its card an instance is.
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

/// What `nvmlTemperature_v1_t::version` has to be.
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
    nvmlEventSet_t 8 8,
    nvmlTemperature_v1_t 12 4,
    nvmlProcessUtilizationInfo_v1_t 40 8,
    nvmlProcessesUtilizationInfo_v1_t 24 8,
    nvmlValue_t 8 8,
    nvmlSample_t 16 8,
    nvmlFieldValue_t 40 8,
    nvmlEventData_t 32 8,
    nvmlDeviceAttributes_t 40 8,
}
