//! Copies and fills. Within the GPU they occupy it like kernels, so they go through the gate.
//! Copies between host and GPU use other engines and are not gated.
//!
//! A batch is one call and one launch. It waits for the turn if any of its copies is within the
//! GPU, and its cost is estimated by the bytes of those.
//!
//! The open path has no guard against panics, as for launches.

use core::slice;

use cgpu_abi::types::*;

use super::array::shape;
use super::launch::launches;
use crate::gate::{self, Launch};
use crate::{boundary, driver};

#[inline(always)]
fn area(element: usize, width: usize, height: usize) -> usize {
    element.wrapping_mul(width).wrapping_mul(height)
}

/// Defines fills: the name in two flavours, the type of the value, and its size in bytes.
macro_rules! fills {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! { FLAVOUR; $(
            $symbol, $own(to: CUdeviceptr, value: $value, count: usize)
                => Launch::copy(area($size, count, 1), CUstream::NULL, FLAVOUR);
        )*}
    };
}

macro_rules! fills_in_order {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! { FLAVOUR; $(
            $symbol, $own(to: CUdeviceptr, value: $value, count: usize, stream: CUstream)
                => Launch::copy(area($size, count, 1), stream, FLAVOUR);
        )*}
    };
}

/// Defines fills of rectangles.
macro_rules! rectangles {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! { FLAVOUR; $(
            $symbol, $own(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize)
                => Launch::copy(area($size, width, height), CUstream::NULL, FLAVOUR);
        )*}
    };
}

macro_rules! rectangles_in_order {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! { FLAVOUR; $(
            $symbol, $own(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize,
                stream: CUstream)
                => Launch::copy(area($size, width, height), stream, FLAVOUR);
        )*}
    };
}

fills! {
    cuMemsetD8_v2 cuMemsetD8_v2_ptds u8, 1;
    cuMemsetD16_v2 cuMemsetD16_v2_ptds u16, 2;
    cuMemsetD32_v2 cuMemsetD32_v2_ptds c_uint, 4;
}

fills_in_order! {
    cuMemsetD8Async cuMemsetD8Async_ptsz u8, 1;
    cuMemsetD16Async cuMemsetD16Async_ptsz u16, 2;
    cuMemsetD32Async cuMemsetD32Async_ptsz c_uint, 4;
}

rectangles! {
    cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds u8, 1;
    cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds u16, 2;
    cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds c_uint, 4;
}

rectangles_in_order! {
    cuMemsetD2D8Async cuMemsetD2D8Async_ptsz u8, 1;
    cuMemsetD2D16Async cuMemsetD2D16Async_ptsz u16, 2;
    cuMemsetD2D32Async cuMemsetD2D32Async_ptsz c_uint, 4;
}

launches! { FLAVOUR;
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
        => Launch::copy(bytes, CUstream::NULL, FLAVOUR);
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    ) => Launch::copy(bytes, stream, FLAVOUR);
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds(
        to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize,
    ) => Launch::copy(bytes, CUstream::NULL, FLAVOUR);
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds(
        to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize,
    ) => Launch::copy(bytes, CUstream::NULL, FLAVOUR);
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds(
        to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize,
    ) => Launch::copy(bytes, CUstream::NULL, FLAVOUR);
}

/// Defines copies whose arguments determine source and destination: the names in two flavours,
/// arguments, stream, and the function that computes the bytes within the GPU.
macro_rules! copies {
    ($($legacy:ident, $per_thread:ident ($($arg:ident: $type:ty),* $(,)?)
        $stream:expr, $what:expr;)*) => {$(
        copy! { LEGACY $legacy ($($arg: $type),*) $stream, $what }
        copy! { PER_THREAD $per_thread ($($arg: $type),*) $stream, $what }
    )*};
}

macro_rules! copy {
    ($flavour:ident $symbol:ident ($($arg:ident: $type:ty),*) $stream:expr, $what:expr) => {
        /// Waits for the container's turn if it copies within the GPU.
        #[inline(always)]
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn slow($($arg: $type),*) -> CUresult {
                // SAFETY: the program's own call.
                let call = || unsafe { driver::$symbol($($arg),*) };
                // SAFETY: the arguments are those of the program's call, whose pointers the driver
                // would read.
                let within = boundary::or(None, || unsafe { $what });
                match within {
                    Some(bytes) => {
                        gate::enter(Launch::copy(bytes, $stream, Launch::$flavour), call)
                    }
                    None => call(),
                }
            }

            let function = if gate::is_open() { driver::address::$symbol() } else { slow };
            // SAFETY: the program's own call.
            unsafe { function($($arg),*) }
        }
    };
}

copies! {
    cuMemcpy, cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
        CUstream::NULL, line(to, from, bytes);
    cuMemcpyAsync, cuMemcpyAsync_ptsz(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream,
    ) stream, line(to, from, bytes);
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D) CUstream::NULL, rectangle(copy);
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D)
        CUstream::NULL, rectangle(copy);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream)
        stream, rectangle(copy);
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D) CUstream::NULL, solid(copy);
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D, stream: CUstream)
        stream, solid(copy);
    cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut CUmemcpyAttributes,
        stream: CUstream,
    ) stream, line(to, from, bytes);
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
        attributes: *mut CUmemcpyAttributes, starts: *mut usize, attribute_count: usize,
        failed: *mut usize, stream: CUstream,
    ) stream, lines(to, from, bytes, count);
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz(
        to: *mut CUdeviceptr, from: *mut CUdeviceptr, bytes: *mut usize, count: usize,
        attributes: *mut CUmemcpyAttributes, starts: *mut usize, attribute_count: usize,
        stream: CUstream,
    ) stream, lines(to, from, bytes, count);
    cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz(
        copy: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) stream, boxes(copy, 1);
    cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz(
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong,
        stream: CUstream,
    ) stream, boxes(copies, count);
    cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz(
        count: usize, copies: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream,
    ) stream, boxes(copies, count);
}

/// Returns the bytes copied within the GPU, or none if an end is elsewhere.
///
/// # Safety
///
/// No obligations; `unsafe` only because [`copies!`] also takes functions that have some.
unsafe fn line(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Option<usize> {
    (is_on_a_gpu(to) && is_on_a_gpu(from)).then_some(bytes)
}

/// Returns the bytes copied within the GPU, or none if an end is elsewhere.
///
/// # Safety
///
/// `copy` is null or readable.
unsafe fn rectangle(copy: *const CUDA_MEMCPY2D) -> Option<usize> {
    // SAFETY: guaranteed by the caller.
    let copy = unsafe { copy.as_ref() }?;
    let within =
        side(copy.src_memory_type, copy.src_device) && side(copy.dst_memory_type, copy.dst_device);
    within.then(|| area(1, copy.width_in_bytes, copy.height))
}

/// Returns the bytes copied within the GPU, or none if an end is elsewhere.
///
/// # Safety
///
/// `copy` is null or readable.
unsafe fn solid(copy: *const CUDA_MEMCPY3D) -> Option<usize> {
    // SAFETY: guaranteed by the caller.
    let copy = unsafe { copy.as_ref() }?;
    let within =
        side(copy.src_memory_type, copy.src_device) && side(copy.dst_memory_type, copy.dst_device);
    within.then(|| area(copy.depth, copy.width_in_bytes, copy.height))
}

/// Returns the bytes that a batch copies within the GPU.
///
/// # Safety
///
/// Each pointer is null, or `count` values can be read there.
unsafe fn lines(
    to: *const CUdeviceptr,
    from: *const CUdeviceptr,
    bytes: *const usize,
    count: usize,
) -> Option<usize> {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { all(to, count) }?;
    // SAFETY: guaranteed by the caller.
    let from = unsafe { all(from, count) }?;
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { all(bytes, count) }?;
    // SAFETY: `line` has no obligations.
    sum(to
        .iter()
        .zip(from)
        .zip(bytes)
        .map(|((to, from), bytes)| unsafe { line(*to, *from, *bytes) }))
}

/// Returns the bytes that a batch of boxes copies within the GPU.
///
/// # Safety
///
/// `copies` is null, or `count` of them can be read there.
unsafe fn boxes(copies: *const CUDA_MEMCPY3D_BATCH_OP, count: usize) -> Option<usize> {
    // SAFETY: guaranteed by the caller.
    sum(unsafe { all(copies, count) }?.iter().map(volume))
}

/// Returns the values of a program's array. `None` for a null one, which the driver refuses, and
/// for one larger than memory.
///
/// # Safety
///
/// `first` is null, or `count` values can be read there, which do not change during the call.
unsafe fn all<'a, T>(first: *const T, count: usize) -> Option<&'a [T]> {
    let bytes = count.checked_mul(size_of::<T>()).and_then(|bytes| isize::try_from(bytes).ok());
    // SAFETY: neither null nor larger than memory; the rest is guaranteed by the caller.
    (!first.is_null() && bytes.is_some()).then(|| unsafe { slice::from_raw_parts(first, count) })
}

/// Adds the copies within the GPU; `None` if there are none.
fn sum(copies: impl Iterator<Item = Option<usize>>) -> Option<usize> {
    copies.flatten().reduce(usize::saturating_add)
}

/// Returns the bytes that one copy of boxes moves within the GPU. An extent counts elements of the
/// array that takes part, or else bytes.
fn volume(copy: &CUDA_MEMCPY3D_BATCH_OP) -> Option<usize> {
    let sides = [copy.dst.get()?, copy.src.get()?];
    let within = sides.iter().all(|side| match side {
        CopyOperand::Pointer { address, .. } => is_on_a_gpu(*address),
        CopyOperand::Array(..) => true,
    });
    let element = sides.iter().find_map(|side| match side {
        CopyOperand::Pointer { .. } => None,
        CopyOperand::Array(array, _) => element(*array),
    });
    let CUextent3D { width, height, depth } = copy.extent;
    within.then(|| area(element.unwrap_or(1), width, area(1, height, depth)))
}

/// Returns the bytes of an array's element; `None` for an array that the driver does not know.
fn element(array: CUarray) -> Option<usize> {
    // SAFETY: the descriptor is writable; the driver refuses an invalid handle.
    let descriptor = driver::get(|to| unsafe { driver::cuArray3DGetDescriptor_v2(to, array) });
    usize::try_from(shape(&descriptor.ok()?, 0).element()).ok()
}

fn side(kind: CUmemorytype, address: CUdeviceptr) -> bool {
    match kind {
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_ARRAY => true,
        CU_MEMORYTYPE_UNIFIED => is_on_a_gpu(address),
        _ => false,
    }
}

/// Returns whether an address is GPU memory according to the driver. Unknown addresses are pageable
/// host memory.
fn is_on_a_gpu(address: CUdeviceptr) -> bool {
    let read = |kind: *mut CUmemorytype| {
        // SAFETY: the value of this attribute is a number of that size.
        unsafe {
            driver::cuPointerGetAttribute(kind.cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        }
    };
    driver::get(read) == Ok(CU_MEMORYTYPE_DEVICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_costs_the_sum_of_its_copies_within_the_gpu() {
        assert_eq!(sum([Some(1 << 20), None, Some(5)].into_iter()), Some((1 << 20) + 5));
        assert_eq!(sum([Some(usize::MAX), Some(1)].into_iter()), Some(usize::MAX));
    }

    #[test]
    fn batch_without_a_copy_within_the_gpu_is_no_launch() {
        assert_eq!(sum([None, None].into_iter()), None);
        assert_eq!(sum([].into_iter()), None);
    }
}
