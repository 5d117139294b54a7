//! Copies of three-dimensional boxes, and between arrays and other memory.

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::copy::{CopyMode, copy};
use crate::graph::Copying;

fn boxes(call: &Call, mode: CopyMode, stream: CUstream, what: &CUDA_MEMCPY3D) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    if what.depth == 0 {
        return Ok(());
    }
    copy(call, mode, stream, Copying::received(what, context).pitched(driver)?)
}

pub(crate) fn cuMemcpy3DAsync_v2(call: &Call, copy: In<CUDA_MEMCPY3D>, stream: CUstream) -> Answer {
    boxes(call, CopyMode::Asynchronous, stream, &copy.read()?)
}
pub(crate) use cuMemcpy3DAsync_v2 as cuMemcpy3DAsync_v2_ptsz;

pub(crate) fn cuMemcpy3D_v2(call: &Call, copy: In<CUDA_MEMCPY3D>) -> Answer {
    boxes(call, CopyMode::Synchronous, CUstream::NULL, &copy.read()?)
}
pub(crate) use cuMemcpy3D_v2 as cuMemcpy3D_v2_ptds;

enum Place {
    Array(CUarray, usize),
    Device(CUdeviceptr),
    Host(usize),
}

fn row(
    call: &Call,
    mode: CopyMode,
    stream: CUstream,
    to: Place,
    from: Place,
    bytes: usize,
) -> Answer {
    let ends = |place: &Place| match place {
        Place::Array(..) => CU_MEMORYTYPE_ARRAY,
        Place::Device(_) => CU_MEMORYTYPE_DEVICE,
        Place::Host(_) => CU_MEMORYTYPE_HOST,
    };
    let array = |place: &Place| {
        if let Place::Array(array, offset) = place { (*array, *offset) } else { (CUarray::NULL, 0) }
    };
    let device = |place: &Place| if let Place::Device(address) = place { *address } else { 0 };
    let host = |place: &Place| if let Place::Host(address) = place { *address } else { 0 };
    let ((dst_array, dst_x_in_bytes), (src_array, src_x_in_bytes)) = (array(&to), array(&from));
    if bytes == 0 {
        return Ok(());
    }
    let what = CUDA_MEMCPY3D {
        src_x_in_bytes,
        src_y: 0,
        src_z: 0,
        src_lod: 0,
        src_memory_type: ends(&from),
        src_host: core::ptr::with_exposed_provenance(host(&from)),
        src_device: device(&from),
        src_array,
        reserved0: core::ptr::null_mut(),
        src_pitch: 0,
        src_height: 0,
        dst_x_in_bytes,
        dst_y: 0,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: ends(&to),
        dst_host: core::ptr::with_exposed_provenance_mut(host(&to)),
        dst_device: device(&to),
        dst_array,
        reserved1: core::ptr::null_mut(),
        dst_pitch: 0,
        dst_height: 0,
        width_in_bytes: bytes,
        height: 1,
        depth: 1,
    };
    if matches!((&to, &from), (Place::Device(0), _) | (_, Place::Device(0))) {
        return Err(INVALID_VALUE);
    }
    boxes(call, mode, stream, &what)
}

pub(crate) fn cuMemcpyAtoH_v2(
    call: &Call,
    dst_host: Out<c_void>,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Answer {
    let (to, from) = (Place::Host(dst_host.address()), Place::Array(src_array, src_offset));
    row(call, CopyMode::Synchronous, CUstream::NULL, to, from, byte_count)
}
pub(crate) use cuMemcpyAtoH_v2 as cuMemcpyAtoH_v2_ptds;

pub(crate) fn cuMemcpyAtoHAsync_v2(
    call: &Call,
    dst_host: Out<c_void>,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    let (to, from) = (Place::Host(dst_host.address()), Place::Array(src_array, src_offset));
    row(call, CopyMode::Asynchronous, stream, to, from, byte_count)
}
pub(crate) use cuMemcpyAtoHAsync_v2 as cuMemcpyAtoHAsync_v2_ptsz;

pub(crate) fn cuMemcpyHtoA_v2(
    call: &Call,
    dst_array: CUarray,
    dst_offset: usize,
    src_host: In<c_void>,
    byte_count: usize,
) -> Answer {
    let (to, from) = (Place::Array(dst_array, dst_offset), Place::Host(src_host.address()));
    row(call, CopyMode::Synchronous, CUstream::NULL, to, from, byte_count)
}
pub(crate) use cuMemcpyHtoA_v2 as cuMemcpyHtoA_v2_ptds;

pub(crate) fn cuMemcpyHtoAAsync_v2(
    call: &Call,
    dst_array: CUarray,
    dst_offset: usize,
    src_host: In<c_void>,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    let (to, from) = (Place::Array(dst_array, dst_offset), Place::Host(src_host.address()));
    row(call, CopyMode::Asynchronous, stream, to, from, byte_count)
}
pub(crate) use cuMemcpyHtoAAsync_v2 as cuMemcpyHtoAAsync_v2_ptsz;

pub(crate) fn cuMemcpyAtoD_v2(
    call: &Call,
    dst_device: CUdeviceptr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Answer {
    let (to, from) = (Place::Device(dst_device), Place::Array(src_array, src_offset));
    row(call, CopyMode::Synchronous, CUstream::NULL, to, from, byte_count)
}
pub(crate) use cuMemcpyAtoD_v2 as cuMemcpyAtoD_v2_ptds;

pub(crate) fn cuMemcpyDtoA_v2(
    call: &Call,
    dst_array: CUarray,
    dst_offset: usize,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Answer {
    let (to, from) = (Place::Array(dst_array, dst_offset), Place::Device(src_device));
    row(call, CopyMode::Synchronous, CUstream::NULL, to, from, byte_count)
}
pub(crate) use cuMemcpyDtoA_v2 as cuMemcpyDtoA_v2_ptds;

pub(crate) fn cuMemcpyAtoA_v2(
    call: &Call,
    dst_array: CUarray,
    dst_offset: usize,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Answer {
    let (to, from) = (Place::Array(dst_array, dst_offset), Place::Array(src_array, src_offset));
    row(call, CopyMode::Synchronous, CUstream::NULL, to, from, byte_count)
}
pub(crate) use cuMemcpyAtoA_v2 as cuMemcpyAtoA_v2_ptds;
