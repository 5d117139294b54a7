//! Arrays whose memory is mapped after their creation, as a whole.

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Access, PhysicalPlace, Side};

use crate::answer::{Answer, INVALID_VALUE};
use crate::array::Array;
use crate::driver::Driver;
use crate::physical::GRANULARITY;

/// Memory mapped to an array. It is unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) first: u64,
    bytes: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if let Some(driver) = Driver::get() {
            // Nothing is mapped if mapping failed.
            let _ = driver.machine.unmap(self.first, Bytes(self.bytes));
            let _ = driver.machine.free_addresses(self.first, Bytes(self.bytes));
        }
    }
}

/// Maps memory to an array of `bytes` bytes, or takes it away. Memory taken away is returned, to be
/// dropped when the stream reaches the operation.
pub(crate) fn map(
    driver: &Driver,
    array: &Array,
    info: &CUarrayMapInfo,
    (mapped, bytes): (&mut Option<Mapped>, u64),
) -> Answer<Option<Mapped>> {
    if info.mem_operation_type == CU_MEM_OPERATION_TYPE_UNMAP {
        return Ok(mapped.take());
    }
    let (id, memory) = crate::physical::id_of(driver, info.mem_handle)?;
    let on_gpu = matches!(memory.place, PhysicalPlace::On(site) if site.gpu == array.context.gpu);
    if info.offset != 0 || mapped.is_some() || !on_gpu {
        return Err(INVALID_VALUE);
    }
    let bytes = bytes.next_multiple_of(GRANULARITY);
    let first = driver.machine.reserve_addresses(Bytes(bytes), 0, 0)?;
    let mapping = Mapped { first, bytes };
    driver.machine.map(first, Bytes(bytes), id)?;
    let access = [(Side::Gpu(array.context.gpu), Access::ReadWrite)];
    driver.machine.set_access(first, Bytes(bytes), &access)?;
    *mapped = Some(mapping);
    Ok(None)
}
