//! Functions of the interface before CUDA 3.2, whose device addresses have 32 bits.
//!
//! The machine's addresses have 64 bits. These functions return low addresses that stand for them;
//! only these functions accept low addresses, and they accept no others.

use std::collections::BTreeMap;

use cgpu_abi::types::*;
use cgpu_sim::machine::ContextId;

use crate::answer::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::lock;
use crate::memory;

/// Low addresses by their first byte.
#[derive(Debug, Default)]
pub(crate) struct LowAddresses(BTreeMap<CUdeviceptr_v1, Low>);

#[derive(Clone, Copy, Debug)]
struct Low {
    bytes: u32,
    /// The first byte of the allocation.
    address: CUdeviceptr,
    context: ContextId,
}

impl LowAddresses {
    /// The lowest address that is assigned.
    const FIRST: CUdeviceptr_v1 = 0x1_0000;
    /// Alignment of low addresses, as of the machine's.
    const STEP: u32 = 512;

    /// Assigns `bytes` low addresses to an allocation, in the first gap that is large enough.
    fn add(
        &mut self,
        address: CUdeviceptr,
        bytes: u32,
        context: ContextId,
    ) -> Option<CUdeviceptr_v1> {
        let capacity = bytes.checked_next_multiple_of(Self::STEP)?;
        let mut start = Self::FIRST;
        for (&first, low) in &self.0 {
            if first - start >= capacity {
                break;
            }
            start = first.checked_add(low.bytes)?;
        }
        start.checked_add(capacity)?;
        self.0.insert(start, Low { bytes: capacity, address, context });
        Some(start)
    }

    /// Returns the address that a low address stands for.
    fn high(&self, low: CUdeviceptr_v1) -> Option<CUdeviceptr> {
        let (first, found) = self.0.range(..=low).next_back()?;
        (low - first < found.bytes).then(|| found.address + u64::from(low - first))
    }

    fn low(&self, high: CUdeviceptr) -> Option<CUdeviceptr_v1> {
        self.0.iter().find(|(_, found)| found.address == high).map(|(&first, _)| first)
    }

    fn remove(&mut self, low: CUdeviceptr_v1) -> Option<CUdeviceptr> {
        self.0.remove(&low).map(|found| found.address)
    }

    pub(crate) fn forget(&mut self, context: ContextId) {
        self.0.retain(|_, low| low.context != context);
    }
}

/// Assigns a low address to a new allocation; frees the allocation if no low address is left.
fn put_low(call: &Call, dptr: Out<CUdeviceptr_v1>, address: CUdeviceptr, bytes: u32) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?.id;
    let low = lock(&driver.low).add(address, bytes, context);
    match low {
        Some(low) => dptr.put(low)?,
        None => {
            driver.machine.free(address)?;
            return Err(OUT_OF_MEMORY);
        }
    }
    Ok(())
}

pub(crate) fn cuMemAlloc(call: &Call, dptr: Out<CUdeviceptr_v1>, bytesize: c_uint) -> Answer {
    dptr.put(0)?;
    let address = memory::allocate(call, u64::from(bytesize))?;
    put_low(call, dptr, address, bytesize)
}

pub(crate) fn cuMemAllocPitch(
    call: &Call,
    dptr: Out<CUdeviceptr_v1>,
    pitch: Out<c_uint>,
    width_in_bytes: c_uint,
    height: c_uint,
    element_size_bytes: c_uint,
) -> Answer {
    let (dptr, pitch) = (dptr.required()?, pitch.required()?);
    let (address, row) = memory::allocate_pitched(
        call,
        u64::from(width_in_bytes),
        u64::from(height),
        element_size_bytes,
    )?;
    let sizes = (u32::try_from(row), u32::try_from(row * u64::from(height)));
    let (Ok(row), Ok(bytes)) = sizes else {
        call.driver()?.machine.free(address)?;
        return Err(OUT_OF_MEMORY);
    };
    put_low(call, dptr, address, bytes)?;
    pitch.put(row)?;
    Ok(())
}

pub(crate) fn cuMemFree(call: &Call, dptr: CUdeviceptr_v1) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    if dptr == 0 {
        return Ok(());
    }
    let address = lock(&driver.low).remove(dptr).ok_or(INVALID_VALUE)?;
    memory::cuMemFree_v2(call, address)
}

pub(crate) fn cuMemGetAddressRange(
    call: &Call,
    pbase: Out<CUdeviceptr_v1>,
    psize: Out<c_uint>,
    dptr: CUdeviceptr_v1,
) -> Answer {
    let driver = call.driver()?;
    let low = lock(&driver.low);
    let allocation =
        low.high(dptr).and_then(|high| driver.machine.allocation(high)).ok_or(INVALID_VALUE)?;
    pbase.put_if_not_null(low.low(allocation.address).ok_or(INVALID_VALUE)?);
    psize.put_if_not_null(clamp(allocation.size.0));
    Ok(())
}

/// Converts to 32 bits; larger sizes become `c_uint::MAX`.
fn clamp(bytes: u64) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

pub(crate) fn cuMemGetInfo(call: &Call, free: Out<c_uint>, total: Out<c_uint>) -> Answer {
    let driver = call.driver()?;
    let memory = driver.machine.visible_memory(driver.current()?.gpu)?;
    free.put_if_not_null(clamp(memory.free.0));
    total.put_if_not_null(clamp(memory.usable().0));
    Ok(())
}

pub(crate) fn cuDeviceTotalMem(call: &Call, bytes: Out<c_uint>, dev: CUdevice) -> Answer {
    let driver = call.driver()?;
    bytes.put(clamp(driver.machine.memory_info(driver.gpu(dev)?)?.usable().0))?;
    Ok(())
}
