//! Copies and fills. Within the card they compute, beside kernels and in their place, so they go through the gate as kernels do. Between host
//! and card other engines copy: those are not gated.
//!
//! No border against panics on the open path, as for launches.

use core::ptr;

use cgpu_abi::types::*;

use super::launch::launches;
use crate::gate::{self, Launch};
use crate::{boundary, driver};

/// Bytes of a rectangle.
#[inline(always)]
fn area(element: usize, width: usize, height: usize) -> usize {
    element.wrapping_mul(width).wrapping_mul(height)
}

/// Each fill: its name in two flavours, what it fills with, and how many bytes each of that has.
macro_rules! fills {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! {$(
            $symbol(to: CUdeviceptr, value: $value, count: usize)
                => Launch::moving(area($size, count, 1), CUstream::NULL, Launch::LEGACY);
            $own(to: CUdeviceptr, value: $value, count: usize)
                => Launch::moving(area($size, count, 1), CUstream::NULL, Launch::PER_THREAD);
        )*}
    };
}

/// The same in a stream.
macro_rules! fills_in_order {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! {$(
            $symbol(to: CUdeviceptr, value: $value, count: usize, stream: CUstream)
                => Launch::moving(area($size, count, 1), stream, Launch::LEGACY);
            $own(to: CUdeviceptr, value: $value, count: usize, stream: CUstream)
                => Launch::moving(area($size, count, 1), stream, Launch::PER_THREAD);
        )*}
    };
}

/// Fills of rectangles.
macro_rules! rectangles {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! {$(
            $symbol(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize)
                => Launch::moving(area($size, width, height), CUstream::NULL, Launch::LEGACY);
            $own(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize)
                => Launch::moving(area($size, width, height), CUstream::NULL, Launch::PER_THREAD);
        )*}
    };
}

/// The same in a stream.
macro_rules! rectangles_in_order {
    ($($symbol:ident $own:ident $value:ty, $size:literal;)*) => {
        launches! {$(
            $symbol(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize, stream: CUstream)
                => Launch::moving(area($size, width, height), stream, Launch::LEGACY);
            $own(to: CUdeviceptr, pitch: usize, value: $value, width: usize, height: usize, stream: CUstream)
                => Launch::moving(area($size, width, height), stream, Launch::PER_THREAD);
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

launches! {
    cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::LEGACY);
    cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::PER_THREAD);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => Launch::moving(bytes, stream, Launch::LEGACY);
    cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => Launch::moving(bytes, stream, Launch::PER_THREAD);
    cuMemcpyAtoA_v2(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::LEGACY);
    cuMemcpyAtoA_v2_ptds(to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::PER_THREAD);
    cuMemcpyAtoD_v2(to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::LEGACY);
    cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, from_offset: usize, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::PER_THREAD);
    cuMemcpyDtoA_v2(to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::LEGACY);
    cuMemcpyDtoA_v2_ptds(to: CUarray, to_offset: usize, from: CUdeviceptr, bytes: usize)
        => Launch::moving(bytes, CUstream::NULL, Launch::PER_THREAD);
}

/// Each copy whose arguments say where from and where to: its name, its arguments, which of them is the stream, and what is copied.
macro_rules! copies {
    ($($symbol:ident ($($arg:ident: $type:ty),*) $flavour:ident $stream:expr, $what:expr;)*) => {$(
        /// Waits for the container's turn, if it copies within the card.
        #[inline(always)]
        pub(crate) unsafe fn $symbol($($arg: $type),*) -> CUresult {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn slow($($arg: $type),*) -> CUresult {
                // SAFETY: the program's own call.
                let call = || unsafe { driver::$symbol($($arg),*) };
                // SAFETY: the arguments are those of the call.
                let within = boundary::or(None, || unsafe { $what });
                match within {
                    Some(bytes) => gate::enter(Launch::moving(bytes, $stream, Launch::$flavour), call),
                    None => call(),
                }
            }

            let function = if gate::is_open() { driver::address::$symbol() } else { slow };
            // SAFETY: the program's own call.
            unsafe { function($($arg),*) }
        }
    )*};
}

copies! {
    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) LEGACY CUstream::NULL, line(to, from, bytes);
    cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) PER_THREAD CUstream::NULL, line(to, from, bytes);
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) LEGACY stream, line(to, from, bytes);
    cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) PER_THREAD stream, line(to, from, bytes);
    cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) LEGACY CUstream::NULL, rectangle(copy);
    cuMemcpy2D_v2_ptds(copy: *const CUDA_MEMCPY2D) PER_THREAD CUstream::NULL, rectangle(copy);
    cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) LEGACY CUstream::NULL, rectangle(copy);
    cuMemcpy2DUnaligned_v2_ptds(copy: *const CUDA_MEMCPY2D) PER_THREAD CUstream::NULL, rectangle(copy);
    cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) LEGACY stream, rectangle(copy);
    cuMemcpy2DAsync_v2_ptsz(copy: *const CUDA_MEMCPY2D, stream: CUstream) PER_THREAD stream, rectangle(copy);
    cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) LEGACY CUstream::NULL, solid(copy);
    cuMemcpy3D_v2_ptds(copy: *const CUDA_MEMCPY3D) PER_THREAD CUstream::NULL, solid(copy);
    cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) LEGACY stream, solid(copy);
    cuMemcpy3DAsync_v2_ptsz(copy: *const CUDA_MEMCPY3D, stream: CUstream) PER_THREAD stream, solid(copy);
}

/// Bytes that are copied within the card; none: not all of it is there.
///
/// # Safety
///
/// None; it is one of several of which others have obligations.
unsafe fn line(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Option<usize> {
    (is_on_a_card(to) && is_on_a_card(from)).then_some(bytes)
}

/// # Safety
///
/// `copy` is null or readable.
unsafe fn rectangle(copy: *const CUDA_MEMCPY2D) -> Option<usize> {
    // SAFETY: the caller vouches for it.
    let copy = unsafe { copy.as_ref() }?;
    let within = side(copy.src_memory_type, copy.src_device) && side(copy.dst_memory_type, copy.dst_device);
    within.then(|| area(1, copy.width_in_bytes, copy.height))
}

/// # Safety
///
/// `copy` is null or readable.
unsafe fn solid(copy: *const CUDA_MEMCPY3D) -> Option<usize> {
    // SAFETY: the caller vouches for it.
    let copy = unsafe { copy.as_ref() }?;
    let within = side(copy.src_memory_type, copy.src_device) && side(copy.dst_memory_type, copy.dst_device);
    within.then(|| area(copy.depth, copy.width_in_bytes, copy.height))
}

fn side(kind: CUmemorytype, address: CUdeviceptr) -> bool {
    match kind {
        CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_ARRAY => true,
        CU_MEMORYTYPE_UNIFIED => is_on_a_card(address),
        _ => false,
    }
}

/// Whether an address is a card's, by the driver's word. What it does not know is pageable memory of the host.
fn is_on_a_card(address: CUdeviceptr) -> bool {
    let mut kind: CUmemorytype = 0;
    let value = ptr::from_mut(&mut kind).cast::<c_void>();
    // SAFETY: the attribute is a number of that size.
    let answer = unsafe { driver::cuPointerGetAttribute(value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) };
    answer == CUresult::SUCCESS && kind == CU_MEMORYTYPE_DEVICE
}
