//! Initialisation, versions, names of errors, and the lookup of functions.

use core::ffi::CStr;
use core::ptr;

use cgpu_abi::driver::Lookup;
use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_VALUE, NOT_FOUND};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::driver::Driver;
use crate::exports::POINTERS;
use crate::version::CUDA;
use crate::{foreign, proc_address};

values!(CUresult);

pub(crate) fn cuInit(_call: &Call, flags: c_uint) -> Answer {
    if flags == 0 { Driver::start() } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuDriverGetVersion(_call: &Call, driver_version: Out<c_int>) -> Answer {
    driver_version.put(CUDA.cast_signed())?;
    Ok(())
}

fn put_text(to: Out<*const c_char>, text: Option<&'static CStr>) -> Answer {
    to.put(text.map_or(ptr::null(), CStr::as_ptr))?;
    if text.is_some() { Ok(()) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuGetErrorName(_call: &Call, error: CUresult, str: Out<*const c_char>) -> Answer {
    put_text(str, error.name())
}

pub(crate) fn cuGetErrorString(_call: &Call, error: CUresult, str: Out<*const c_char>) -> Answer {
    put_text(str, error.description())
}

/// Finds one table: this driver's own ([`crate::foreign`]). The vendor's private tables do not
/// exist here.
pub(crate) fn cuGetExportTable(
    _call: &Call,
    export_table: Out<*const c_void>,
    export_table_id: In<CUuuid>,
) -> Answer {
    let known = export_table_id.read()? == foreign::NAME;
    export_table.put(if known { foreign::table() } else { ptr::null() })?;
    if known { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Looks a name up. Real drivers crash on a NULL name; this one returns INVALID_VALUE.
fn look_up(symbol: In<c_char>, cuda_version: c_int, flags: cuuint64_t) -> Answer<Lookup> {
    let stream = proc_address::stream(flags).ok_or(INVALID_VALUE)?;
    Ok(proc_address::resolve(&symbol.text()?, cuda_version, stream, *CUDA))
}

pub(crate) fn cuGetProcAddress_v2(
    _call: &Call,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    cuda_version: c_int,
    flags: cuuint64_t,
    symbol_status: Out<CUdriverProcAddressQueryResult>,
) -> Answer {
    let answer = look_up(symbol, cuda_version, flags)?;
    pfn.put(match answer {
        Lookup::Symbol(position) => POINTERS[position].0.cast_mut(),
        Lookup::NotFound | Lookup::VersionTooLow => ptr::null_mut(),
    })?;
    symbol_status.put_if_not_null(proc_address::status(answer));
    Ok(())
}
pub(crate) use cuGetProcAddress_v2 as cuGetProcAddress_v2_ptsz;

/// The version before CUDA 12: an unknown name is an error, and leaves the pointer as it was.
pub(crate) fn cuGetProcAddress(
    _call: &Call,
    symbol: In<c_char>,
    pfn: Out<*mut c_void>,
    cuda_version: c_int,
    flags: cuuint64_t,
) -> Answer {
    let Lookup::Symbol(position) = look_up(symbol, cuda_version, flags)? else {
        return Err(NOT_FOUND);
    };
    pfn.put(POINTERS[position].0.cast_mut())?;
    Ok(())
}
pub(crate) use cuGetProcAddress as cuGetProcAddress_ptsz;
