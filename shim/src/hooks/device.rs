//! Attributes of a GPU.

use cgpu_abi::types::{CUdevice, CUdevice_attribute, CUresult, c_int, c_uint};
use cgpu_memory::Bytes;

use super::refused::announces_refused;
use crate::devices::DriverOrdinal;
use crate::{driver, process};

/// 32-bit sizes, as in the first version of the call.
pub(crate) unsafe fn cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuDeviceTotalMem(bytes, device) };
    if let (CUresult::SUCCESS, Some(limit)) = (answer, limit(DriverOrdinal(device))) {
        // SAFETY: the driver has just written there.
        unsafe { bytes.write(c_uint::try_from(limit.0).unwrap_or(c_uint::MAX)) };
    }
    answer
}

/// The limit is the GPU's size.
pub(crate) unsafe fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuDeviceTotalMem_v2(bytes, device) };
    if let (CUresult::SUCCESS, Some(limit)) = (answer, limit(DriverOrdinal(device))) {
        // SAFETY: the driver has just written there.
        unsafe { bytes.write(usize::try_from(limit.0).unwrap_or(usize::MAX)) };
    }
    answer
}

/// Attributes of refused features are 0; all others are the GPU's own.
pub(crate) unsafe fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuDeviceGetAttribute(value, attribute, device) };
    if answer == CUresult::SUCCESS
        && announces_refused(attribute)
        && limit(DriverOrdinal(device)).is_some()
    {
        // SAFETY: the driver has just written there.
        unsafe { value.write(0) };
    }
    answer
}

fn limit(device: DriverOrdinal) -> Option<Bytes> {
    let tenant = process::tenant()?;
    tenant.view().limit(process::devices(tenant).gpu(device)?)
}
