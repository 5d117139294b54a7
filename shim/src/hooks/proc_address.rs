//! `cuGetProcAddress`: calls the driver, and replaces its answer ([`routing`]).

use core::ffi::CStr;
use core::ptr;

use cgpu_abi::driver::DefaultStream;
use cgpu_abi::types::{
    CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CUdriverProcAddressQueryResult, CUresult, c_char, c_int,
    c_void, cuuint64_t,
};

use crate::driver;
use crate::interpose::routing::{self, Request, Route};

hooks! { call;
    // The first version: an unknown function is an error.
    cuGetProcAddress(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: cuuint64_t,
    ) => {
        let stream = stream(flags, DefaultStream::Legacy);
        // SAFETY: these are the arguments of the call.
        unsafe { get(call, name, function, version, stream, None) }
    };
    cuGetProcAddress_ptsz(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: cuuint64_t,
    ) => {
        let stream = stream(flags, DefaultStream::PerThread);
        // SAFETY: these are the arguments of the call.
        unsafe { get(call, name, function, version, stream, None) }
    };

    // The second version: an unknown function is a status.
    cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: cuuint64_t,
        status: *mut CUdriverProcAddressQueryResult,
    ) => {
        let stream = stream(flags, DefaultStream::Legacy);
        // SAFETY: these are the arguments of the call.
        unsafe { get(call, name, function, version, stream, Some(status)) }
    };
    cuGetProcAddress_v2_ptsz(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: cuuint64_t,
        status: *mut CUdriverProcAddressQueryResult,
    ) => {
        let stream = stream(flags, DefaultStream::PerThread);
        // SAFETY: these are the arguments of the call.
        unsafe { get(call, name, function, version, stream, Some(status)) }
    };
}

/// Makes the call, and replaces the pointer that the driver writes. A refused function is an error,
/// or, with `status`, a status.
///
/// # Safety
///
/// `call` calls the driver with these arguments.
unsafe fn get(
    call: impl FnOnce() -> CUresult,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    stream: DefaultStream,
    status: Option<*mut CUdriverProcAddressQueryResult>,
) -> CUresult {
    let answer = call();
    if answer != CUresult::SUCCESS || name.is_null() || function.is_null() {
        return answer;
    }
    // SAFETY: the driver has just written there.
    let found = unsafe { function.read() };
    // SAFETY: not null, and the driver has read the name.
    let name = unsafe { CStr::from_ptr(name) };
    let request = Request { name, version: u32::try_from(version).unwrap_or(0), stream };
    let route = routing::route(found, request);
    let given = if let Route::To(address) = route { address.cast_mut() } else { ptr::null_mut() };
    // SAFETY: not null, and the driver has just written there.
    unsafe { function.write(given) };
    if route == Route::Refused {
        let Some(status) = status else { return CUresult::ERROR_NOT_FOUND };
        if !status.is_null() {
            // SAFETY: not null, so the program's status, which is writable.
            unsafe { status.write(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) };
        }
    }
    answer
}

/// Returns the default stream of a call: by its flags, or else by the called function.
fn stream(flags: cuuint64_t, otherwise: DefaultStream) -> DefaultStream {
    if flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 {
        DefaultStream::PerThread
    } else if flags & u64::from(CU_GET_PROC_ADDRESS_LEGACY_STREAM) != 0 {
        DefaultStream::Legacy
    } else {
        otherwise
    }
}
