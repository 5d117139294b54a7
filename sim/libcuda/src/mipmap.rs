//! Mipmapped arrays: chains of arrays in one allocation, each half the size of the one before.

use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::{In, Out};
use crate::array::{Array, Memory, create, destroy, put_requirements};
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::layout;

fn find_chain(driver: &Driver, array: CUmipmappedArray) -> Answer<Arc<Array>> {
    driver.arrays.get(array.0).ok_or(INVALID_HANDLE)
}

pub(crate) fn cuMipmappedArrayCreate(
    call: &Call,
    handle: Out<CUmipmappedArray>,
    mipmapped_array_desc: In<CUDA_ARRAY3D_DESCRIPTOR>,
    num_mipmap_levels: c_uint,
) -> Answer {
    let (handle, descriptor) = (handle.required()?, mipmapped_array_desc.read()?);
    let maximum = layout::max_levels(&descriptor);
    handle.put(CUmipmappedArray(create(
        call,
        descriptor,
        Some(num_mipmap_levels.clamp(1, maximum)),
    )?))?;
    Ok(())
}

pub(crate) fn cuMipmappedArrayDestroy(call: &Call, mipmapped_array: CUmipmappedArray) -> Answer {
    destroy(call, mipmapped_array.0)
}

/// Returns the same handle each time; it is valid as long as the chain.
pub(crate) fn cuMipmappedArrayGetLevel(
    call: &Call,
    level_array: Out<CUarray>,
    mipmapped_array: CUmipmappedArray,
    level: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let to = level_array.required()?;
    let whole = find_chain(driver, mipmapped_array)?;
    let number = count(level)?;
    let laid_out = *whole.levels.get(number).ok_or(INVALID_VALUE)?;
    let mut handles = lock(&whole.handles);
    if let Some((_, handle)) = handles.iter().find(|(number, _)| *number == level) {
        to.put(*handle)?;
        return Ok(());
    }
    let at = |extent: usize| if extent == 0 { 0 } else { (extent >> level).max(1) };
    let layered = whole.descriptor.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, .. } = whole.descriptor;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        width: at(width),
        height: at(height),
        depth: if layered { depth } else { at(depth) },
        ..whole.descriptor
    };
    let handle = CUarray(driver.arrays.add(Array {
        context: Arc::clone(&whole.context),
        descriptor,
        levels: vec![laid_out],
        memory: Memory::LevelOf(Arc::clone(&whole), number),
        handles: Mutex::default(),
    }));
    handles.push((level, handle));
    to.put(handle)?;
    Ok(())
}

pub(crate) fn cuMipmappedArrayGetMemoryRequirements(
    call: &Call,
    memory_requirements: Out<CUDA_ARRAY_MEMORY_REQUIREMENTS>,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> Answer {
    let driver = call.driver()?;
    put_requirements(driver, memory_requirements.required()?, &*find_chain(driver, mipmap)?, device)
}
