//! `cuGetProcAddress`: the driver is asked, and its answer exchanged ([`routing`]).

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

/// The first version: what is not found is an error.
pub(crate) unsafe fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress(name, function, version, flags) };
    // SAFETY: the arguments are those of the call.
    match unsafe { exchange(answer, name, function, version, stream(flags, DefaultStream::Legacy)) }
    {
        Exchanged::Done => answer,
        Exchanged::Refused => CUresult::ERROR_NOT_FOUND,
    }
}

/// The same, for programs compiled for each thread's own default stream.
pub(crate) unsafe fn cuGetProcAddress_ptsz(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress_ptsz(name, function, version, flags) };
    // SAFETY: the arguments are those of the call.
    match unsafe {
        exchange(answer, name, function, version, stream(flags, DefaultStream::PerThread))
    } {
        Exchanged::Done => answer,
        Exchanged::Refused => CUresult::ERROR_NOT_FOUND,
    }
}

/// The second version: what is not found is a status.
pub(crate) unsafe fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuGetProcAddress_v2(name, function, version, flags, status) };
    // SAFETY: the arguments are those of the call.
    let exchanged =
        unsafe { exchange(answer, name, function, version, stream(flags, DefaultStream::Legacy)) };
    // SAFETY: `status` is that of the call.
    unsafe { tell(exchanged, status) };
    answer
}

/// The same, for programs compiled for each thread's own default stream.
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
    // SAFETY: the arguments are those of the call.
    let exchanged = unsafe {
        exchange(answer, name, function, version, stream(flags, DefaultStream::PerThread))
    };
    // SAFETY: `status` is that of the call.
    unsafe { tell(exchanged, status) };
    answer
}

enum Exchanged {
    Done,
    Refused,
}

/// Exchanges what the driver has written for what the program shall get.
///
/// # Safety
///
/// The arguments of a call that has answered `answer`.
unsafe fn exchange(
    answer: CUresult,
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    stream: DefaultStream,
) -> Exchanged {
    if answer != CUresult::SUCCESS || name.is_null() || function.is_null() {
        return Exchanged::Done;
    }
    // SAFETY: the driver has just written there.
    let found = unsafe { function.read() };
    // SAFETY: the driver has read the name.
    let name = unsafe { CStr::from_ptr(name) };
    let request = Request { name, version: u32::try_from(version).unwrap_or(0), stream };
    let (given, exchanged) = match routing::route(found, request) {
        Route::To(address) => (address.cast_mut(), Exchanged::Done),
        Route::Refused => (ptr::null_mut(), Exchanged::Refused),
    };
    // SAFETY: as above.
    unsafe { function.write(given) };
    exchanged
}

/// Says in the status that nothing was found, where that is so and the program wants to know.
///
/// # Safety
///
/// `status` is null or writable.
unsafe fn tell(exchanged: Exchanged, status: *mut CUdriverProcAddressQueryResult) {
    if matches!(exchanged, Exchanged::Refused) && !status.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { status.write(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) };
    }
}

/// Which default stream a call means; the flags decide, or where they say nothing, the function
/// that was called.
fn stream(flags: cuuint64_t, otherwise: DefaultStream) -> DefaultStream {
    if flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 {
        DefaultStream::PerThread
    } else if flags & u64::from(CU_GET_PROC_ADDRESS_LEGACY_STREAM) != 0 {
        DefaultStream::Legacy
    } else {
        otherwise
    }
}
