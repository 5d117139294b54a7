//! Arrays: memory whose layout the GPU chooses ([`crate::layout`]). Textures are not read here, so
//! tiles are never visible: rows are stored one after the other, in as much memory as the tiles
//! would take.
//!
//! An array belongs to the context that it was created in. An array with *deferred* mapping has no
//! memory until some is mapped to it.

use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::context::Context;
use crate::deferred::Mapped;
use crate::driver::{Driver, count, lock};
use crate::external::Window;
use crate::layout::{self, Level};
use crate::sparse::Sparse;

values!(CUarray, CUmipmappedArray);

/// An array, or a mipmapped array: a chain of levels, each half the size of the one before.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) context: Arc<Context>,
    pub(crate) descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    pub(crate) levels: Vec<Level>,
    pub(crate) memory: Memory,
    /// Handles of its levels that the program has requested.
    pub(crate) handles: Mutex<Vec<(c_uint, CUarray)>>,
}

#[derive(Debug)]
pub(crate) enum Memory {
    /// Its own allocation, by address.
    Own(u64),
    /// The mapping, if any, and the bytes that the array needs.
    Deferred(Mutex<Option<Mapped>>, u64),
    Sparse(Sparse),
    /// Imported external memory, and the offset in it.
    External(Window, u64),
    LevelOf(Arc<Array>, usize),
}

impl Array {
    /// Returns the address of the first byte; `INVALID_VALUE` while nothing is mapped.
    pub(crate) fn address(&self) -> Answer<u64> {
        match &self.memory {
            Memory::Own(address) => Ok(*address),
            Memory::External(window, offset) => Ok(window.at(*offset)),
            Memory::Deferred(mapped, _) => {
                lock(mapped).as_ref().map(|mapped| mapped.first).ok_or(INVALID_VALUE)
            }
            Memory::Sparse(sparse) => Ok(sparse.first()),
            Memory::LevelOf(whole, _) => whole.address(),
        }
    }

    /// Returns the first level and the address of its first byte, for an access to a box in it.
    /// `position` and `extent` are in bytes, rows and slices. Fails if the box exceeds the array or
    /// includes tiles without memory.
    pub(crate) fn base(&self, position: [u64; 3], extent: [u64; 3]) -> Answer<(u64, Level)> {
        let level = *self.levels.first().ok_or(INVALID_VALUE)?;
        let ends = [0, 1, 2].map(|axis| position[axis].saturating_add(extent[axis]));
        if ends[0] > level.extent.0 || ends[1] > level.extent.1 || ends[2] > level.extent.2 {
            return Err(INVALID_VALUE);
        }
        let sparse = match &self.memory {
            Memory::Sparse(sparse) => Some((sparse, 0)),
            Memory::LevelOf(whole, number) => match &whole.memory {
                Memory::Sparse(sparse) => Some((sparse, *number)),
                _ => None,
            },
            _ => None,
        };
        if let Some((sparse, number)) = sparse
            && !extent.contains(&0)
        {
            sparse.check_mapped(number, position, extent)?;
        }
        Ok((self.address()? + level.offset, level))
    }
}

/// Creates an array; a mipmapped one if `chain` gives the number of its levels.
pub(crate) fn create(
    call: &Call,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    chain: Option<c_uint>,
) -> Answer<usize> {
    let driver = call.driver()?;
    let context = driver.current()?;
    layout::check(&descriptor)?;
    let (levels, bytes) = layout::levels(&descriptor, chain.unwrap_or(1))?;
    let memory = if descriptor.flags & CUDA_ARRAY3D_SPARSE != 0 {
        let capacity = (&levels[..], bytes);
        Memory::Sparse(Sparse::new(driver, &context, &descriptor, capacity, chain.is_some())?)
    } else if descriptor.flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0 {
        Memory::Own(driver.machine.allocate(context.id, Bytes(bytes))?)
    } else {
        Memory::Deferred(Mutex::default(), bytes)
    };
    Ok(driver.arrays.add(Array { context, descriptor, levels, memory, handles: Mutex::default() }))
}

pub(crate) fn destroy(call: &Call, handle: usize) -> Answer {
    let driver = call.driver()?;
    let array = driver.arrays.get(handle).ok_or(INVALID_HANDLE)?;
    match &array.memory {
        Memory::Own(address) => driver.machine.free(*address)?,
        // Work of the context may still use what is mapped or imported.
        Memory::Deferred(..) | Memory::Sparse(_) | Memory::External(..) => {
            driver.machine.synchronize_context(array.context.id)?;
        }
        // A level ends with its array.
        Memory::LevelOf(..) => return Err(INVALID_HANDLE),
    }
    for (_, level) in lock(&array.handles).drain(..) {
        driver.arrays.remove(level.0);
    }
    driver.arrays.remove(handle);
    Ok(())
}

pub(crate) fn find(driver: &Driver, array: CUarray) -> Answer<Arc<Array>> {
    driver.arrays.get(array.0).ok_or(INVALID_HANDLE)
}

pub(crate) fn put_requirements(
    driver: &Driver,
    to: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: &Array,
    device: CUdevice,
) -> Answer {
    driver.gpu(device)?;
    let Memory::Deferred(_, bytes) = &array.memory else { return Err(INVALID_VALUE) };
    let (size, alignment) = (count(*bytes)?, count(layout::PAGE)?);
    to.put(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment, reserved: [0; 4] })?;
    Ok(())
}

/// Fails unless the array's mapping is deferred.
pub(crate) fn cuArrayGetMemoryRequirements(
    call: &Call,
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    array: CUarray,
    device: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    put_requirements(driver, memory_requirements.required()?, &*find(driver, array)?, device)
}

/// Always fails: arrays with several planes are not simulated.
pub(crate) fn cuArrayGetPlane(
    call: &Call,
    plane_array: Out<CUarray>,
    array: CUarray,
    _plane_idx: c_uint,
) -> Answer {
    plane_array.required()?;
    find(call.driver()?, array)?;
    Err(INVALID_VALUE)
}

pub(crate) fn cuArray3DCreate_v2(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY3D_DESCRIPTOR>,
) -> Answer {
    let handle = handle.required()?;
    handle.put(CUarray(create(call, allocate_array.read()?, None)?))?;
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
    handle.put(CUarray(create(call, descriptor, None)?))?;
    Ok(())
}

pub(crate) fn cuArrayCreate_v2(
    call: &Call,
    handle: Out<CUarray>,
    allocate_array: In<CUDA_ARRAY_DESCRIPTOR>,
) -> Answer {
    let (handle, flat) = (handle.required()?, allocate_array.read()?);
    let CUDA_ARRAY_DESCRIPTOR { width, height, format, num_channels } = flat;
    let descriptor =
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 };
    handle.put(CUarray(create(call, descriptor, None)?))?;
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
    let descriptor =
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth: 0, format, num_channels, flags: 0 };
    handle.put(CUarray(create(call, descriptor, None)?))?;
    Ok(())
}

pub(crate) fn cuArrayDestroy(call: &Call, array: CUarray) -> Answer {
    destroy(call, array.0)
}

pub(crate) fn cuArray3DGetDescriptor_v2(
    call: &Call,
    array_descriptor: Out<CUDA_ARRAY3D_DESCRIPTOR>,
    array: CUarray,
) -> Answer {
    array_descriptor.put(find(call.driver()?, array)?.descriptor)?;
    Ok(())
}

/// Converts to 32 bits; larger sizes become `c_uint::MAX`.
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
