//! Results that callers use: counts, handles, addresses, texts.
//!
//! A caller never dereferences handles, so one number stands for all of them. Addresses of device
//! memory only grow, and no memory is behind them. They are in a range that Linux never maps, so
//! that host memory can be recognised in writes by streams.

use core::ffi::CStr;
use core::ptr;
use std::sync::LazyLock;

use cgpu_abi::driver::Lookup;
use cgpu_abi::types::*;
use cgpu_shm::atomic::{AtomicU64, Ordering};

use crate::exports::{Driver, POINTERS};
use crate::proc_address;

/// The null driver.
pub(crate) struct Null;

/// The CUDA version, 13.5, which has every function of the table.
const VERSION: u32 = 13050;
/// Size of the GPU's memory in bytes, all of which is always free: 80 GiB, or `CGPU_NULL_GIB`.
static MEMORY: LazyLock<usize> = LazyLock::new(|| {
    let requested = std::env::var("CGPU_NULL_GIB").ok().and_then(|text| text.parse().ok());
    requested.filter(|gib| (1..=1 << 13).contains(gib)).unwrap_or(80) << 30
});
const NAME: &CStr = c"Null";
const PCI_BUS_ID: &CStr = c"0000:01:00.0";
/// The GPU's UUID, the same as in the null NVML.
const UUID: CUuuid = CUuuid { bytes: *b"null-driver-gpu0" };
/// The value of every handle.
const HANDLE: usize = 0x6e75_6c6c;

/// Range of device addresses, wider than everything that can be live at once; addresses wrap around
/// in it.
const WINDOW: u64 = 0x1000_0000_0000;
const WINDOW_LENGTH: u64 = 0x4000_0000_0000;
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Returns an address for `bytes` bytes of device memory, aligned to 512 as the driver's.
fn address(bytes: usize) -> CUdeviceptr {
    // Relaxed: only the sum matters.
    let offset = NEXT.fetch_add((bytes as u64).next_multiple_of(512), Ordering::Relaxed);
    WINDOW + offset % WINDOW_LENGTH
}

/// Returns the address as host memory; `None` for one that [`address`] returned.
fn host_address(addr: CUdeviceptr) -> Option<usize> {
    if (WINDOW..WINDOW + WINDOW_LENGTH).contains(&addr) { None } else { usize::try_from(addr).ok() }
}

/// Writes a value, unless the pointer is NULL.
///
/// # Safety
///
/// `to` is NULL or valid for writes.
unsafe fn put<T>(to: *mut T, value: T) -> CUresult {
    if !to.is_null() {
        // SAFETY: not NULL, so valid for writes. It need not be aligned, as a C caller's `void *`
        // need not be.
        unsafe { to.write_unaligned(value) };
    }
    CUresult::SUCCESS
}

/// Writes a text and its NUL, truncated to fit.
///
/// # Safety
///
/// `to` is NULL or valid for writes of `length` bytes.
unsafe fn put_text(to: *mut c_char, length: c_int, text: &CStr) -> CUresult {
    let bytes = text.to_bytes_with_nul();
    let length = usize::try_from(length).unwrap_or(0).min(bytes.len());
    if !to.is_null() {
        // SAFETY: both are valid for `length` bytes. A static text does not overlap with memory
        // that a caller may write.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, length) };
    }
    CUresult::SUCCESS
}

/// Finds a function as the driver does.
///
/// # Safety
///
/// `symbol` is a C string.
unsafe fn look_up(symbol: *const c_char, version: c_int, flags: cuuint64_t) -> Option<Lookup> {
    let stream = proc_address::stream(flags)?;
    // SAFETY: a C string, which the caller does not modify during the call.
    let name = unsafe { CStr::from_ptr(symbol) };
    Some(proc_address::resolve(name.to_str().unwrap_or(""), version, stream, VERSION))
}

/// Returns an attribute that callers depend on; 0 for all others.
fn attribute(attribute: CUdevice_attribute) -> c_int {
    match attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => 1024,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => c_int::MAX,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65535,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 72,
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => 1,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 8,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 6,
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR => 1,
        _ => 0,
    }
}

/// Implements functions that create an object: they write a handle through the first argument.
macro_rules! handles {
    ($($symbol:ident($to:ident: $type:ident $(, $argument:ident: $kind:ty)*);)*) => {$(
        unsafe fn $symbol($to: *mut $type $(, $argument: $kind)*) -> CUresult {
            $(let _ = $argument;)*
            // SAFETY: the caller's out-pointer.
            unsafe { put($to, $type(HANDLE)) }
        }
    )*};
}

/// Implements functions that return one value through an argument.
macro_rules! values {
    ($($symbol:ident(
        $($before:ident: $early:ty,)*
        => $to:ident: $type:ty = $value:expr
        $(, $after:ident: $late:ty)*
    );)*) => {$(
        unsafe fn $symbol($($before: $early,)* $to: *mut $type $(, $after: $late)*) -> CUresult {
            $(let _ = $before;)*
            $(let _ = $after;)*
            // SAFETY: the caller's out-pointer.
            unsafe { put($to, $value) }
        }
    )*};
}

/// Implements the memory writes of streams. They are performed at once, because streams are always
/// idle.
macro_rules! writes {
    ($($symbol:ident: $type:ty;)*) => {$(
        unsafe fn $symbol(
            _stream: CUstream,
            addr: CUdeviceptr,
            value: $type,
            _flags: c_uint,
        ) -> CUresult {
            if let Some(word) = host_address(addr) {
                // SAFETY: host memory that the caller gave as writable. Other threads poll it, so
                // the store is volatile: a single store of the word's width.
                unsafe { ptr::with_exposed_provenance_mut::<$type>(word).write_volatile(value) };
            }
            CUresult::SUCCESS
        }
    )*};
}

impl Driver for Null {
    unsafe fn cuGetProcAddress(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        cuda_version: c_int,
        flags: cuuint64_t,
    ) -> CUresult {
        // SAFETY: the caller's string.
        match unsafe { look_up(symbol, cuda_version, flags) } {
            None => CUresult::ERROR_INVALID_VALUE,
            Some(Lookup::Symbol(position)) => {
                // SAFETY: the caller's out-pointer.
                unsafe { put(pfn, POINTERS[position].0.cast_mut()) }
            }
            Some(_) => CUresult::ERROR_NOT_FOUND,
        }
    }

    unsafe fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        cuda_version: c_int,
        flags: cuuint64_t,
        symbol_status: *mut CUdriverProcAddressQueryResult,
    ) -> CUresult {
        // SAFETY: the caller's string.
        let Some(answer) = (unsafe { look_up(symbol, cuda_version, flags) }) else {
            return CUresult::ERROR_INVALID_VALUE;
        };
        let pointer = match answer {
            Lookup::Symbol(position) => POINTERS[position].0.cast_mut(),
            _ => ptr::null_mut(),
        };
        // SAFETY: the caller's out-pointer.
        let _ = unsafe { put(pfn, pointer) };
        // SAFETY: the caller's out-pointer.
        unsafe { put(symbol_status, proc_address::status(answer)) }
    }

    unsafe fn cuGetExportTable(_table: *mut *const c_void, _id: *const CUuuid) -> CUresult {
        CUresult::ERROR_INVALID_VALUE
    }

    unsafe fn cuGetErrorName(error: CUresult, str: *mut *const c_char) -> CUresult {
        // SAFETY: the caller's out-pointer.
        unsafe { put(str, error.name().map_or(ptr::null(), CStr::as_ptr)) }
    }

    unsafe fn cuGetErrorString(error: CUresult, str: *mut *const c_char) -> CUresult {
        // SAFETY: the caller's out-pointer.
        unsafe { put(str, error.description().map_or(ptr::null(), CStr::as_ptr)) }
    }

    unsafe fn cuMemAllocPitch_v2(
        dptr: *mut CUdeviceptr,
        pitch: *mut usize,
        width_in_bytes: usize,
        height: usize,
        _element_size_bytes: c_uint,
    ) -> CUresult {
        let row = width_in_bytes.next_multiple_of(512);
        // SAFETY: the caller's out-pointer.
        let _ = unsafe { put(pitch, row) };
        // SAFETY: the caller's out-pointer.
        unsafe { put(dptr, address(row * height)) }
    }

    unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
        // SAFETY: the caller's out-pointer.
        let _ = unsafe { put(free, *MEMORY) };
        // SAFETY: the caller's out-pointer.
        unsafe { put(total, *MEMORY) }
    }

    unsafe fn cuDeviceGetAttribute(
        pi: *mut c_int,
        attrib: CUdevice_attribute,
        _dev: CUdevice,
    ) -> CUresult {
        // SAFETY: the caller's out-pointer.
        unsafe { put(pi, attribute(attrib)) }
    }

    unsafe fn cuDeviceGetName(name: *mut c_char, len: c_int, _dev: CUdevice) -> CUresult {
        // SAFETY: the caller's buffer.
        unsafe { put_text(name, len, NAME) }
    }

    unsafe fn cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: c_int, _dev: CUdevice) -> CUresult {
        // SAFETY: the caller's buffer.
        unsafe { put_text(pci_bus_id, len, PCI_BUS_ID) }
    }

    unsafe fn cuDeviceComputeCapability(
        major: *mut c_int,
        minor: *mut c_int,
        _dev: CUdevice,
    ) -> CUresult {
        // SAFETY: the caller's out-pointer.
        let _ = unsafe { put(major, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)) };
        // SAFETY: the caller's out-pointer.
        unsafe { put(minor, attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)) }
    }

    unsafe fn cuDevicePrimaryCtxGetState(
        _dev: CUdevice,
        flags: *mut c_uint,
        active: *mut c_int,
    ) -> CUresult {
        // SAFETY: the caller's out-pointer.
        let _ = unsafe { put(flags, 0) };
        // SAFETY: the caller's out-pointer.
        unsafe { put(active, 1) }
    }

    unsafe fn cuMemHostGetDevicePointer_v2(
        pdptr: *mut CUdeviceptr,
        p: *mut c_void,
        _flags: c_uint,
    ) -> CUresult {
        // SAFETY: the caller's out-pointer.
        unsafe { put(pdptr, p.expose_provenance() as CUdeviceptr) }
    }

    writes! {
        cuStreamWriteValue32: cuuint32_t;
        cuStreamWriteValue32_ptsz: cuuint32_t;
        cuStreamWriteValue32_v2: cuuint32_t;
        cuStreamWriteValue32_v2_ptsz: cuuint32_t;
        cuStreamWriteValue64: cuuint64_t;
        cuStreamWriteValue64_ptsz: cuuint64_t;
        cuStreamWriteValue64_v2: cuuint64_t;
        cuStreamWriteValue64_v2_ptsz: cuuint64_t;
    }

    values! {
        cuDriverGetVersion(=> driver_version: c_int = VERSION.cast_signed());
        cuDeviceGetCount(=> count: c_int = 1);
        cuDeviceGet(=> device: CUdevice = 0, ordinal: c_int);
        cuDeviceTotalMem_v2(=> bytes: usize = *MEMORY, dev: CUdevice);
        cuDeviceGetUuid(=> uuid: CUuuid = UUID, dev: CUdevice);
        cuDeviceGetUuid_v2(=> uuid: CUuuid = UUID, dev: CUdevice);
        cuMemAlloc_v2(=> dptr: CUdeviceptr = address(bytesize), bytesize: usize);
        cuMemAllocManaged(=> dptr: CUdeviceptr = address(bytesize), bytesize: usize, flags: c_uint);
        cuMemAllocAsync(
            => dptr: CUdeviceptr = address(bytesize), bytesize: usize, stream: CUstream
        );
        cuMemAllocAsync_ptsz(
            => dptr: CUdeviceptr = address(bytesize), bytesize: usize, stream: CUstream
        );
        cuCtxGetDevice(=> device: CUdevice = 0);
        cuCtxGetApiVersion(ctx: CUcontext, => version: c_uint = VERSION);
        cuCtxGetId(ctx: CUcontext, => ctx_id: c_ulonglong = 1);
        cuStreamIsCapturing(
            stream: CUstream,
            => capture_status: CUstreamCaptureStatus = CU_STREAM_CAPTURE_STATUS_NONE
        );
        cuStreamIsCapturing_ptsz(
            stream: CUstream,
            => capture_status: CUstreamCaptureStatus = CU_STREAM_CAPTURE_STATUS_NONE
        );
        cuStreamGetFlags(stream: CUstream, => flags: c_uint = CU_STREAM_NON_BLOCKING);
        cuStreamGetFlags_ptsz(stream: CUstream, => flags: c_uint = CU_STREAM_NON_BLOCKING);
        cuStreamGetId(stream: CUstream, => stream_id: c_ulonglong = 1);
        cuStreamGetId_ptsz(stream: CUstream, => stream_id: c_ulonglong = 1);
        cuStreamGetCtx(stream: CUstream, => pctx: CUcontext = CUcontext(HANDLE));
        cuStreamGetCtx_ptsz(stream: CUstream, => pctx: CUcontext = CUcontext(HANDLE));
        cuEventElapsedTime(=> milliseconds: f32 = 0.0, start: CUevent, end: CUevent);
        cuEventElapsedTime_v2(=> milliseconds: f32 = 0.0, start: CUevent, end: CUevent);
        cuFuncGetName(=> name: *const c_char = NAME.as_ptr(), hfunc: CUfunction);
    }

    handles! {
        cuCtxCreate_v2(pctx: CUcontext, flags: c_uint, dev: CUdevice);
        cuCtxCreate_v3(
            pctx: CUcontext,
            params: *mut CUexecAffinityParam,
            count: c_int,
            flags: c_uint,
            dev: CUdevice
        );
        cuCtxCreate_v4(
            pctx: CUcontext, params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice
        );
        cuDevicePrimaryCtxRetain(pctx: CUcontext, dev: CUdevice);
        cuCtxGetCurrent(pctx: CUcontext);
        cuCtxPopCurrent_v2(pctx: CUcontext);
        cuModuleLoad(module: CUmodule, fname: *const c_char);
        cuModuleLoadData(module: CUmodule, image: *const c_void);
        cuModuleLoadDataEx(
            module: CUmodule,
            image: *const c_void,
            count: c_uint,
            options: *mut CUjit_option,
            values: *mut *mut c_void
        );
        cuModuleLoadFatBinary(module: CUmodule, image: *const c_void);
        cuModuleGetFunction(hfunc: CUfunction, hmod: CUmodule, name: *const c_char);
        cuLibraryLoadData(
            library: CUlibrary,
            code: *const c_void,
            jit_options: *mut CUjit_option,
            jit_values: *mut *mut c_void,
            jit_count: c_uint,
            options: *mut CUlibraryOption,
            values: *mut *mut c_void,
            count: c_uint
        );
        cuLibraryGetKernel(kernel: CUkernel, library: CUlibrary, name: *const c_char);
        cuLibraryGetModule(module: CUmodule, library: CUlibrary);
        cuKernelGetFunction(function: CUfunction, kernel: CUkernel);
        cuFuncGetModule(hmod: CUmodule, hfunc: CUfunction);
        cuStreamCreate(stream: CUstream, flags: c_uint);
        cuStreamCreateWithPriority(stream: CUstream, flags: c_uint, priority: c_int);
        cuEventCreate(event: CUevent, flags: c_uint);
        cuDeviceGetDefaultMemPool(pool: CUmemoryPool, dev: CUdevice);
        cuDeviceGetMemPool(pool: CUmemoryPool, dev: CUdevice);
        cuMemPoolCreate(pool: CUmemoryPool, props: *const CUmemPoolProps);
    }
}
