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

/// The first version: an unknown function is an error.
pub(crate) unsafe fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress(name, function, version, flags) };
    // SAFETY: these are the arguments and the result of the call.
    match unsafe { replace(answer, name, function, version, stream(flags, DefaultStream::Legacy)) }
    {
        Outcome::Done => answer,
        Outcome::Refused => CUresult::ERROR_NOT_FOUND,
    }
}

pub(crate) unsafe fn cuGetProcAddress_ptsz(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress_ptsz(name, function, version, flags) };
    // SAFETY: these are the arguments and the result of the call.
    match unsafe {
        replace(answer, name, function, version, stream(flags, DefaultStream::PerThread))
    } {
        Outcome::Done => answer,
        Outcome::Refused => CUresult::ERROR_NOT_FOUND,
    }
}

/// The second version: an unknown function is a status.
pub(crate) unsafe fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress_v2(name, function, version, flags, status) };
    // SAFETY: these are the arguments and the result of the call.
    let outcome =
        unsafe { replace(answer, name, function, version, stream(flags, DefaultStream::Legacy)) };
    // SAFETY: `status` is the program's: null or writable.
    unsafe { set_status(outcome, status) };
    answer
}

pub(crate) unsafe fn cuGetProcAddress_v2_ptsz(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer =
        unsafe { driver::cuGetProcAddress_v2_ptsz(name, function, version, flags, status) };
    // SAFETY: these are the arguments and the result of the call.
    let outcome = unsafe {
        replace(answer, name, function, version, stream(flags, DefaultStream::PerThread))
    };
    // SAFETY: `status` is the program's: null or writable.
    unsafe { set_status(outcome, status) };
    answer
}

enum Outcome {
    Done,
    Refused,
}

/// Replaces the pointer that the driver has written.
///
/// # Safety
///
/// The arguments are those of a call of the driver that has returned `answer`.
unsafe fn replace(
    answer: CUresult,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    stream: DefaultStream,
) -> Outcome {
    if answer != CUresult::SUCCESS || name.is_null() || function.is_null() {
        return Outcome::Done;
    }
    // SAFETY: the driver has just written there.
    let found = unsafe { function.read() };
    // SAFETY: not null, and the driver has read the name.
    let name = unsafe { CStr::from_ptr(name) };
    let request = Request { name, version: u32::try_from(version).unwrap_or(0), stream };
    let (given, outcome) = match routing::route(found, request) {
        Route::To(address) => (address.cast_mut(), Outcome::Done),
        Route::Refused => (ptr::null_mut(), Outcome::Refused),
    };
    // SAFETY: not null, and the driver has just written there.
    unsafe { function.write(given) };
    outcome
}

/// Sets the status if the function is refused.
///
/// # Safety
///
/// `status` is null or writable.
unsafe fn set_status(outcome: Outcome, status: *mut CUdriverProcAddressQueryResult) {
    if matches!(outcome, Outcome::Refused) && !status.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { status.write(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) };
    }
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
