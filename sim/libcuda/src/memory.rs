//! Linear device memory and managed memory.

use cgpu_abi::types::*;
use cgpu_sim::Bytes;

use crate::answer::{Answer, INVALID_VALUE};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::{count, lock};
use crate::{external, graph, host};

/// Unit of the pitch, in bytes.
const PITCH: u64 = 512;

/// Allocates in the current context. Returns the address.
pub(crate) fn allocate(call: &Call, bytes: u64) -> Answer<u64> {
    let driver = call.driver()?;
    let context = driver.current()?;
    Ok(driver.machine.allocate(context.id, Bytes(bytes))?)
}

/// Allocates pitched memory. Returns address and pitch.
pub(crate) fn allocate_pitched(
    call: &Call,
    width: u64,
    height: u64,
    element: c_uint,
) -> Answer<(u64, u64)> {
    if !matches!(element, 4 | 8 | 16) {
        return Err(INVALID_VALUE);
    }
    let pitch = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
    let bytes = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
    Ok((allocate(call, bytes)?, pitch))
}

pub(crate) fn cuMemAlloc_v2(call: &Call, dptr: Out<CUdeviceptr>, bytesize: usize) -> Answer {
    // After a failure, the caller reads 0.
    dptr.put(0)?;
    dptr.put(allocate(call, bytesize as u64)?)?;
    Ok(())
}

pub(crate) fn cuMemAllocPitch_v2(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width_in_bytes: usize,
    height: usize,
    element_size_bytes: c_uint,
) -> Answer {
    let (dptr, pitch) = (dptr.required()?, pitch.required()?);
    let (address, row) =
        allocate_pitched(call, width_in_bytes as u64, height as u64, element_size_bytes)?;
    pitch.put(count(row)?)?;
    dptr.put(address)?;
    Ok(())
}

/// Allocates host memory: managed memory takes no GPU memory until it migrates, and migration is
/// not simulated.
pub(crate) fn cuMemAllocManaged(
    call: &Call,
    dptr: Out<CUdeviceptr>,
    bytesize: usize,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let dptr = dptr.required()?;
    if bytesize == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
        return Err(INVALID_VALUE);
    }
    let address = lock(&driver.host).map(bytesize, host::Kind::Managed, flags, &context)?;
    dptr.put(address as CUdeviceptr)?;
    Ok(())
}

pub(crate) fn cuMemFree_v2(call: &Call, dptr: CUdeviceptr) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    if dptr == 0 {
        return Ok(());
    }
    if driver.machine.allocation(dptr).is_some() {
        driver.machine.free(dptr)?;
        return Ok(());
    }
    if let Some(freeable) = graph::freeable(driver, dptr) {
        freeable?;
        // As for other memory: after all work that may use it.
        driver.machine.synchronize_context(driver.current()?.id)?;
        return graph::free(driver, dptr, None);
    }
    if let Some(freed) = external::free(driver, dptr) {
        return freed;
    }
    lock(&driver.host).unmap(count(dptr)?, host::Kind::Managed)
}

pub(crate) fn cuMemGetInfo_v2(call: &Call, free: Out<usize>, total: Out<usize>) -> Answer {
    let driver = call.driver()?;
    let memory = driver.machine.visible_memory(driver.current()?.gpu)?;
    free.put_if_not_null(count(memory.free.0)?);
    total.put_if_not_null(count(memory.usable().0)?);
    Ok(())
}
