//! Arrays: memory whose layout is the card's own. Here they are rows in linear memory; textures and surfaces are not played.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::Bytes;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, count};

values!(CUarray, CUmipmappedArray);

/// Rows begin at multiples of this.
const PITCH: u64 = 512;

/// An array, or a chain of them, each half the one before.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) context: Arc<Context>,
    pub(crate) address: u64,
    /// From row to row.
    pub(crate) pitch: u64,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
}

/// Bytes of a channel.
fn channel(format: CUarray_format) -> Answer<u64> {
    match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => Ok(1),
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => Ok(2),
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => Ok(4),
        _ => Err(INVALID_VALUE),
    }
}

/// Pitch and bytes of one array.
fn layout(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer<(u64, u64)> {
    if descriptor.width == 0 || !matches!(descriptor.num_channels, 1 | 2 | 4) {
        return Err(INVALID_VALUE);
    }
    let element = channel(descriptor.format)? * u64::from(descriptor.num_channels);
    let row = (descriptor.width as u64).checked_mul(element);
    let pitch = row.and_then(|row| row.checked_next_multiple_of(PITCH)).ok_or(INVALID_VALUE)?;
    let rows = (descriptor.height.max(1) as u64).checked_mul(descriptor.depth.max(1) as u64);
    let bytes = rows.and_then(|rows| rows.checked_mul(pitch)).ok_or(INVALID_VALUE)?;
    Ok((pitch, bytes))
}

fn create(call: &Call, descriptor: CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Answer<usize> {
    let driver = call.driver()?;
    let context = driver.current()?;
    let (pitch, mut bytes) = layout(&descriptor)?;
    let mut level = descriptor;
    for _ in 1..levels {
        level.width = (level.width / 2).max(1);
        level.height /= 2;
        level.depth /= 2;
        bytes += layout(&level)?.1;
    }
    let address = driver.machine.allocate(context.id, Bytes(bytes))?;
    Ok(driver.arrays.add(Array { context, address, pitch, descriptor }))
}

fn destroy(call: &Call, handle: usize) -> Answer {
    let driver = call.driver()?;
    let array = driver.arrays.get(handle).ok_or(INVALID_HANDLE)?;
    driver.machine.free(array.address)?;
    driver.arrays.remove(handle);
    Ok(())
}

fn find(driver: &Driver, array: CUarray) -> Answer<Arc<Array>> {
    driver.arrays.get(array.0).ok_or(INVALID_HANDLE)
}

pub(crate) fn cuArray3DCreate_v2(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR>,
) -> Answer {
    let handle = handle.required()?;
    handle.put(CUarray(create(call, allocate_array.read()?, 1)?))?;
    Ok(())
}

pub(crate) fn cuArray3DCreate(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR_v1>,
) -> Answer {
    let (handle, old) = (handle.required()?, allocate_array.read()?);
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        width: count(old.width)?,
        height: count(old.height)?,
        depth: count(old.depth)?,
        format: old.format,
        num_channels: old.num_channels,
        flags: old.flags,
    };
    handle.put(CUarray(create(call, descriptor, 1)?))?;
    Ok(())
}

pub(crate) fn cuArrayCreate_v2(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY_DESCRIPTOR>,
) -> Answer {
    let (handle, flat) = (handle.required()?, allocate_array.read()?);
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = flat;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 };
    handle.put(CUarray(create(call, descriptor, 1)?))?;
    Ok(())
}

pub(crate) fn cuArrayCreate(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY_DESCRIPTOR_v1>,
) -> Answer {
    let (handle, old) = (handle.required()?, allocate_array.read()?);
    let (width, height) = (count(old.width)?, count(old.height)?);
    let (format, num_channels) = (old.format, old.num_channels);
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 };
    handle.put(CUarray(create(call, descriptor, 1)?))?;
    Ok(())
}

pub(crate) fn cuMipmappedArrayCreate(
    call: &Call,
    handle: Out<CUmipmappedArray>,
    mipmapped_array_desc: In<CUDA_ARRAY3D_DESCRIPTOR>,
    num_mipmap_levels: c_uint,
) -> Answer {
    let (handle, descriptor) = (handle.required()?, mipmapped_array_desc.read()?);
    let most = descriptor.width.max(descriptor.height).max(descriptor.depth).max(1).ilog2() + 1;
    if num_mipmap_levels == 0 {
        return Err(INVALID_VALUE);
    }
    handle.put(CUmipmappedArray(create(call, descriptor, num_mipmap_levels.min(most))?))?;
    Ok(())
}

pub(crate) fn cuArrayDestroy(call: &Call, array: CUarray) -> Answer {
    destroy(call, array.0)
}

pub(crate) fn cuMipmappedArrayDestroy(call: &Call, mipmapped_array: CUmipmappedArray) -> Answer {
    destroy(call, mipmapped_array.0)
}

pub(crate) fn cuArray3DGetDescriptor_v2(
    call: &Call,
    array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>,
    array: CUarray,
) -> Answer {
    array_descriptor.put(find(call.driver()?, array)?.descriptor)?;
    Ok(())
}

/// What does not fit into 32 bits reads as their greatest number.
fn narrow(size: usize) -> c_uint {
    c_uint::try_from(size).unwrap_or(c_uint::MAX)
}

pub(crate) fn cuArray3DGetDescriptor(
    call: &Call,
    array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR_v1>,
    array: CUarray,
) -> Answer {
    let new = find(call.driver()?, array)?.descriptor;
    array_descriptor.put(CUDA_ARRAY3D_DESCRIPTOR_v1 {
        width: narrow(new.width),
        height: narrow(new.height),
        depth: narrow(new.depth),
        format: new.format,
        num_channels: new.num_channels,
        flags: new.flags,
    })?;
    Ok(())
}

pub(crate) fn cuArrayGetDescriptor_v2(
    call: &Call,
    array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR>,
    array: CUarray,
) -> Answer {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } =
        find(call.driver()?, array)?.descriptor;
    array_descriptor.put(CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels })?;
    Ok(())
}

pub(crate) fn cuArrayGetDescriptor(
    call: &Call,
    array_descriptor: Out<CUDA_ARRAY_DESCRIPTOR_v1>,
    array: CUarray,
) -> Answer {
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, format, num_channels, .. } =
        find(call.driver()?, array)?.descriptor;
    let (width, height) = (narrow(width), narrow(height));
    array_descriptor.put(CUDA_ARRAY_DESCRIPTOR_v1 { width, height, format, num_channels })?;
    Ok(())
}
