//! Results that callers use: the GPU, its names, its memory, its empty lists.

use core::ffi::CStr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use cgpu_abi::nvml_types::*;

use crate::exports::Nvml;

/// The null driver's NVML.
pub(crate) struct Null;

/// The CUDA version of the null driver.
const CUDA_VERSION: c_int = 13050;
/// Size of the GPU's memory in bytes, all of which is always free: 80 GiB, or `CGPU_NULL_GIB`.
static MEMORY: LazyLock<c_ulonglong> = LazyLock::new(|| {
    let requested = std::env::var("CGPU_NULL_GIB").ok().and_then(|text| text.parse().ok());
    requested.filter(|gib| (1..=1 << 13).contains(gib)).unwrap_or(80) << 30
});
/// The UUID of the null `libcuda.so.1`, as text.
const UUID: &CStr = c"GPU-6e756c6c-2d64-7269-7665-722d67707530";
/// Host time of a start, that is, of an `nvmlInit` while the library has no users:
/// `CGPU_SIM_NVML_INIT_MS` in milliseconds.
static START: LazyLock<Duration> = LazyLock::new(|| {
    let requested = std::env::var("CGPU_SIM_NVML_INIT_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(requested.filter(|millis| *millis <= 60_000).unwrap_or(0))
});
/// Number of the library's users. Locked for the duration of a start, as in a real NVML.
static USERS: Mutex<usize> = Mutex::new(0);
const GPU: nvmlDevice_t = nvmlDevice_t(0x6e75_6c6c);

/// Writes a value, unless the pointer is NULL.
///
/// # Safety
///
/// `to` is NULL, or aligned and valid for writes.
unsafe fn put<T>(to: *mut T, value: T) -> nvmlReturn_t {
    if to.is_null() {
        return nvmlReturn_t::ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: not NULL, so aligned and valid for writes, by the contract.
    unsafe { to.write(value) };
    nvmlReturn_t::SUCCESS
}

/// Writes a text and its NUL, if they fit.
///
/// # Safety
///
/// `to` is NULL or valid for writes of `length` bytes.
unsafe fn put_text(to: *mut c_char, length: c_uint, text: &CStr) -> nvmlReturn_t {
    let bytes = text.to_bytes_with_nul();
    if to.is_null() {
        return nvmlReturn_t::ERROR_INVALID_ARGUMENT;
    }
    if (length as usize) < bytes.len() {
        return nvmlReturn_t::ERROR_INSUFFICIENT_SIZE;
    }
    // SAFETY: the text fits, as was checked above. A static text does not overlap with memory that
    // a caller may write.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len()) };
    nvmlReturn_t::SUCCESS
}

/// Implements functions that return one value through an argument.
macro_rules! values {
    ($($symbol:ident(
        $($before:ident: $early:ty,)*
        => $to:ident: $type:ty = $value:expr
        $(, $after:ident: $late:ty)*
    );)*) => {$(
        unsafe fn $symbol(
            $($before: $early,)*
            $to: *mut $type
            $(, $after: $late)*
        ) -> nvmlReturn_t {
            $(let _ = $before;)*
            $(let _ = $after;)*
            // SAFETY: the caller's out-pointer.
            unsafe { put($to, $value) }
        }
    )*};
}

/// Implements functions that return a text.
macro_rules! texts {
    ($($symbol:ident($($argument:ident: $kind:ty),*) = $text:expr;)*) => {$(
        unsafe fn $symbol($($argument: $kind,)* to: *mut c_char, length: c_uint) -> nvmlReturn_t {
            $(let _ = $argument;)*
            // SAFETY: the caller's buffer.
            unsafe { put_text(to, length, $text) }
        }
    )*};
}

/// Implements functions that list processes: there are none.
macro_rules! no_processes {
    ($($symbol:ident: $type:ty;)*) => {$(
        unsafe fn $symbol(
            _device: nvmlDevice_t,
            info_count: *mut c_uint,
            _infos: *mut $type,
        ) -> nvmlReturn_t {
            // SAFETY: the caller's out-pointer.
            unsafe { put(info_count, 0) }
        }
    )*};
}

fn init() -> nvmlReturn_t {
    let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    if *users == 0 && !START.is_zero() {
        std::thread::sleep(*START);
    }
    *users += 1;
    nvmlReturn_t::SUCCESS
}

impl Nvml for Null {
    unsafe fn nvmlInit() -> nvmlReturn_t {
        init()
    }

    unsafe fn nvmlInit_v2() -> nvmlReturn_t {
        init()
    }

    unsafe fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
        init()
    }

    unsafe fn nvmlShutdown() -> nvmlReturn_t {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = users.checked_sub(1) else { return nvmlReturn_t::ERROR_UNINITIALIZED };
        *users = left;
        nvmlReturn_t::SUCCESS
    }

    unsafe fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
        result.description().unwrap_or(c"Unknown Error").as_ptr()
    }

    unsafe fn nvmlDeviceGetMemoryInfo_v2(
        _device: nvmlDevice_t,
        memory: *mut nvmlMemory_v2_t,
    ) -> nvmlReturn_t {
        let version = NVML_MEMORY_V2;
        // SAFETY: the caller's out-pointer.
        unsafe {
            put(
                memory,
                nvmlMemory_v2_t { version, total: *MEMORY, reserved: 0, free: *MEMORY, used: 0 },
            )
        }
    }

    values! {
        nvmlDeviceGetMemoryInfo(
            device: nvmlDevice_t,
            => memory: nvmlMemory_t = nvmlMemory_t { total: *MEMORY, free: *MEMORY, used: 0 }
        );
        nvmlDeviceGetCount(=> device_count: c_uint = 1);
        nvmlDeviceGetCount_v2(=> device_count: c_uint = 1);
        nvmlDeviceGetHandleByIndex(index: c_uint, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetHandleByIndex_v2(index: c_uint, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetHandleByPciBusId(pci_bus_id: *const c_char, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id: *const c_char, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetHandleBySerial(serial: *const c_char, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetHandleByUUID(uuid: *const c_char, => device: nvmlDevice_t = GPU);
        nvmlDeviceGetIndex(device: nvmlDevice_t, => index: c_uint = 0);
        nvmlDeviceGetMinorNumber(device: nvmlDevice_t, => minor_number: c_uint = 0);
        nvmlDeviceGetUtilizationRates(
            device: nvmlDevice_t,
            => utilization: nvmlUtilization_t = nvmlUtilization_t::default()
        );
        nvmlSystemGetCudaDriverVersion(=> cuda_driver_version: c_int = CUDA_VERSION);
        nvmlSystemGetCudaDriverVersion_v2(=> cuda_driver_version: c_int = CUDA_VERSION);
    }

    texts! {
        nvmlDeviceGetName(_device: nvmlDevice_t) = c"Null";
        nvmlDeviceGetUUID(_device: nvmlDevice_t) = UUID;
        nvmlSystemGetDriverVersion() = c"595.00";
        nvmlSystemGetNVMLVersion() = c"13.595.00";
        nvmlSystemGetProcessName(_pid: c_uint) = c"";
    }

    no_processes! {
        nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t;
        nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_v2_t;
        nvmlDeviceGetComputeRunningProcesses_v3: nvmlProcessInfo_t;
        nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t;
        nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t;
        nvmlDeviceGetGraphicsRunningProcesses_v3: nvmlProcessInfo_t;
        nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t;
        nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t;
        nvmlDeviceGetMPSComputeRunningProcesses_v3: nvmlProcessInfo_t;
    }
}
