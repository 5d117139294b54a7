//! Copies.
//!
//! The addresses of a copy decide its direction. As the driver documents, an asynchronous copy
//! returns at once only if both sides are device or pinned memory. Small copies from pageable
//! memory are staged in a buffer; all others are waited for. Copies within the GPU are never waited
//! for.

use std::collections::VecDeque;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{CopyKind, Pitched, StreamId, Ticket};

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::{In, Out};
use crate::array;
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::driver::{Driver, lock};
use crate::graph::Copying;
use crate::graph::node::Body;
use crate::range::{self, Side};

/// Largest copy from pageable memory that is staged in a buffer, in bytes.
pub(crate) const STAGED: u64 = 64 << 10;

/// Whether the call waits for the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMode {
    /// The call returns when the copy is done.
    Synchronous,
    /// The call returns as soon as the host memory allows it.
    Asynchronous,
}

/// Buffers of staged copies that may not be done yet.
#[derive(Debug, Default)]
pub(crate) struct Staging(VecDeque<(Ticket, Box<[u8]>)>);

impl Staging {
    /// Drops the buffers of finished copies, oldest first.
    fn reap(&mut self, driver: &Driver) {
        while let Some((ticket, _)) = self.0.front() {
            if driver.machine.is_done(*ticket) == Ok(false) {
                break;
            }
            self.0.pop_front();
        }
    }
}

/// Copies, or adds the copy to a capture.
pub(crate) fn copy(call: &Call, mode: CopyMode, stream: CUstream, what: Pitched) -> Answer {
    let driver = call.driver()?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    if mode == CopyMode::Synchronous {
        capture::refuse_unsafe(driver)?;
    }
    if what.width == 0 || what.rows == 0 {
        return Ok(());
    }
    let (to, from) = (range::resolve(driver, what.to)?, range::resolve(driver, what.from)?);
    let stream = match lane {
        Lane::Gpu(stream, _) => stream,
        Lane::Graph(recorder) => {
            let copying = Copying::of(&what, (to.side, from.side), Arc::clone(&recorder.context));
            return recorder.add(driver, Body::Copy(copying));
        }
    };
    let kind = kind(to.side, from.side);
    let what = Pitched { to: to.address, from: from.address, ..what };
    if mode == CopyMode::Asynchronous
        && from.side == Side::Pageable
        && what.rows == 1
        && what.width <= STAGED
    {
        return setup(driver, stream, kind, what);
    }
    // SAFETY: host ranges stay valid until the copy is done: either we wait for it below, or the
    // program guarantees it by calling an asynchronous function with pinned memory.
    let ticket = unsafe { driver.machine.copy(stream, kind, what) }?;
    let pageable = !to.side.is_reachable() || !from.side.is_reachable();
    if pageable || mode == CopyMode::Synchronous && kind != CopyKind::DeviceToDevice {
        driver.machine.wait(ticket)?;
    }
    Ok(())
}

pub(crate) fn kind(to: Side, from: Side) -> CopyKind {
    match (to, from) {
        (Side::Device, Side::Device) => CopyKind::DeviceToDevice,
        (Side::Device, _) => CopyKind::HostToDevice,
        (_, Side::Device) => CopyKind::DeviceToHost,
        _ => CopyKind::HostToHost,
    }
}

/// Reads a copy's source at once, and enqueues a copy from the buffer.
pub(crate) fn setup(driver: &Driver, stream: StreamId, kind: CopyKind, what: Pitched) -> Answer {
    let bytes = usize::try_from(what.width).map_err(|_| INVALID_VALUE)?;
    let source = usize::try_from(what.from).map_err(|_| INVALID_VALUE)?;
    // SAFETY: the program guarantees that the source is readable, and that it is not modified
    // during the call.
    let source = unsafe {
        core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(source), bytes)
    };
    let buffer: Box<[u8]> = source.into();
    let what = Pitched { from: buffer.as_ptr().expose_provenance() as u64, ..what };
    let mut staging = lock(&driver.staging);
    staging.reap(driver);
    // SAFETY: the buffer lives in `staging` until the copy is done; the program guarantees the
    // destination.
    let ticket = unsafe { driver.machine.copy(stream, kind, what) }?;
    staging.0.push_back((ticket, buffer));
    Ok(())
}

/// Refuses a device address that the GPU cannot reach.
fn device(call: &Call, address: CUdeviceptr) -> Answer<CUdeviceptr> {
    let driver = call.driver()?;
    let reachable = range::resolve(driver, address)?.side.is_reachable();
    if reachable { Ok(address) } else { Err(INVALID_VALUE) }
}

pub(crate) fn cuMemcpyAsync(
    call: &Call,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    copy(call, CopyMode::Asynchronous, stream, Pitched::line(dst, src, byte_count as u64))
}
pub(crate) use cuMemcpyAsync as cuMemcpyAsync_ptsz;

pub(crate) fn cuMemcpy(
    call: &Call,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
) -> Answer {
    copy(call, CopyMode::Synchronous, CUstream::NULL, Pitched::line(dst, src, byte_count as u64))
}
pub(crate) use cuMemcpy as cuMemcpy_ptds;

pub(crate) fn cuMemcpyHtoDAsync_v2(
    call: &Call,
    dst_device: CUdeviceptr,
    src_host: In<c_void>,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    let what =
        Pitched::line(device(call, dst_device)?, src_host.address() as u64, byte_count as u64);
    copy(call, CopyMode::Asynchronous, stream, what)
}
pub(crate) use cuMemcpyHtoDAsync_v2 as cuMemcpyHtoDAsync_v2_ptsz;

pub(crate) fn cuMemcpyHtoD_v2(
    call: &Call,
    dst_device: CUdeviceptr,
    src_host: In<c_void>,
    byte_count: usize,
) -> Answer {
    let what =
        Pitched::line(device(call, dst_device)?, src_host.address() as u64, byte_count as u64);
    copy(call, CopyMode::Synchronous, CUstream::NULL, what)
}
pub(crate) use cuMemcpyHtoD_v2 as cuMemcpyHtoD_v2_ptds;

pub(crate) fn cuMemcpyDtoHAsync_v2(
    call: &Call,
    dst_host: Out<c_void>,
    src_device: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    let what =
        Pitched::line(dst_host.address() as u64, device(call, src_device)?, byte_count as u64);
    copy(call, CopyMode::Asynchronous, stream, what)
}
pub(crate) use cuMemcpyDtoHAsync_v2 as cuMemcpyDtoHAsync_v2_ptsz;

pub(crate) fn cuMemcpyDtoH_v2(
    call: &Call,
    dst_host: Out<c_void>,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Answer {
    let what =
        Pitched::line(dst_host.address() as u64, device(call, src_device)?, byte_count as u64);
    copy(call, CopyMode::Synchronous, CUstream::NULL, what)
}
pub(crate) use cuMemcpyDtoH_v2 as cuMemcpyDtoH_v2_ptds;

pub(crate) fn cuMemcpyDtoDAsync_v2(
    call: &Call,
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Answer {
    let what =
        Pitched::line(device(call, dst_device)?, device(call, src_device)?, byte_count as u64);
    copy(call, CopyMode::Asynchronous, stream, what)
}
pub(crate) use cuMemcpyDtoDAsync_v2 as cuMemcpyDtoDAsync_v2_ptsz;

pub(crate) fn cuMemcpyDtoD_v2(
    call: &Call,
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Answer {
    let what =
        Pitched::line(device(call, dst_device)?, device(call, src_device)?, byte_count as u64);
    copy(call, CopyMode::Synchronous, CUstream::NULL, what)
}
pub(crate) use cuMemcpyDtoD_v2 as cuMemcpyDtoD_v2_ptds;

/// Returns one side of a two-dimensional copy: first byte and pitch.
fn side(
    driver: &Driver,
    kind: CUmemorytype,
    (host, device, array): (u64, CUdeviceptr, CUarray),
    (x, y, pitch, width, height): (usize, usize, usize, usize, usize),
) -> Answer<(u64, u64)> {
    let (base, pitch) = match kind {
        CU_MEMORYTYPE_HOST => (host, pitch as u64),
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => (device, pitch as u64),
        CU_MEMORYTYPE_ARRAY => {
            let extent = [width as u64, height as u64, 1];
            let (first, level) =
                array::find(driver, array)?.base([x as u64, y as u64, 0], extent)?;
            (first, level.pitch)
        }
        _ => return Err(INVALID_VALUE),
    };
    let pitch = if pitch == 0 { (x + width) as u64 } else { pitch };
    if pitch < (x + width) as u64 {
        return Err(INVALID_VALUE);
    }
    Ok((base + y as u64 * pitch + x as u64, pitch))
}

fn rectangle(call: &Call, mode: CopyMode, stream: CUstream, what: In<CUDA_MEMCPY2D>) -> Answer {
    let driver = call.driver()?;
    let what = what.read()?;
    let (to, to_pitch) = side(
        driver,
        what.dst_memory_type,
        (what.dst_host.expose_provenance() as u64, what.dst_device, what.dst_array),
        (what.dst_x_in_bytes, what.dst_y, what.dst_pitch, what.width_in_bytes, what.height),
    )?;
    let (from, from_pitch) = side(
        driver,
        what.src_memory_type,
        (what.src_host.expose_provenance() as u64, what.src_device, what.src_array),
        (what.src_x_in_bytes, what.src_y, what.src_pitch, what.width_in_bytes, what.height),
    )?;
    let rows = what.height as u64;
    let pitched = Pitched {
        to,
        from,
        width: what.width_in_bytes as u64,
        rows,
        slices: 1,
        to_pitch: (to_pitch, to_pitch * rows),
        from_pitch: (from_pitch, from_pitch * rows),
    };
    copy(call, mode, stream, pitched)
}

pub(crate) fn cuMemcpy2DAsync_v2(call: &Call, copy: In<CUDA_MEMCPY2D>, stream: CUstream) -> Answer {
    rectangle(call, CopyMode::Asynchronous, stream, copy)
}
pub(crate) use cuMemcpy2DAsync_v2 as cuMemcpy2DAsync_v2_ptsz;

pub(crate) fn cuMemcpy2D_v2(call: &Call, copy: In<CUDA_MEMCPY2D>) -> Answer {
    rectangle(call, CopyMode::Synchronous, CUstream::NULL, copy)
}
pub(crate) use cuMemcpy2D_v2 as cuMemcpy2D_v2_ptds;
pub(crate) use cuMemcpy2D_v2 as cuMemcpy2DUnaligned_v2;
pub(crate) use cuMemcpy2D_v2 as cuMemcpy2DUnaligned_v2_ptds;
