//! Arrays whose memory is mapped to them after they are made.

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Access, PhysicalPlace, Side};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::Out;
use crate::array::Memory;
use crate::call::Call;
use crate::driver::{Driver, count, lock};
use crate::physical::GRANULARITY;

/// Maps memory to arrays whose mapping is deferred, all of it at once, or takes it away. The driver does so when the stream comes to it;
/// here the stream is waited for.
pub(crate) fn cuMemMapArrayAsync(
    call: &Call,
    map_info_list: Out<CUarrayMapInfo>,
    number: c_uint,
    stream: CUstream,
) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(stream, call.per_thread)?;
    let infos = map_info_list.read_all(count(number)?)?;
    driver.machine.synchronize_stream(stream)?;
    infos.into_iter().try_for_each(|info| map_array(driver, &info))
}
pub(crate) use cuMemMapArrayAsync as cuMemMapArrayAsync_ptsz;

fn map_array(driver: &Driver, info: &CUarrayMapInfo) -> Answer {
    if !matches!(info.resource_type, CU_RESOURCE_TYPE_ARRAY | CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        return Err(INVALID_VALUE);
    }
    let array = driver.arrays.get(info.resource).ok_or(INVALID_HANDLE)?;
    let Memory::Deferred(mapped, bytes) = &array.memory else { return Err(INVALID_VALUE) };
    let mut mapped = lock(mapped);
    match info.mem_operation_type {
        CU_MEM_OPERATION_TYPE_UNMAP => unmap(driver, &mut mapped),
        CU_MEM_OPERATION_TYPE_MAP if info.offset == 0 && mapped.is_none() => {
            let bytes = bytes.next_multiple_of(GRANULARITY);
            let (id, about) = crate::physical::id_of(driver, info.mem_handle)?;
            let PhysicalPlace::Card(card) = about.place else { return Err(INVALID_VALUE) };
            if 1_u32.checked_shl(driver.device(card).cast_unsigned()) != Some(info.device_bit_mask)
                || info.flags != 0
                || card != array.context.card
            {
                return Err(INVALID_VALUE);
            }
            let address = driver.machine.reserve_addresses(Bytes(bytes), 0, 0)?;
            *mapped = Some((address, bytes));
            let access = [(Side::Card(card), Access::ReadWrite)];
            let done = driver
                .machine
                .map(address, Bytes(bytes), id)
                .and_then(|()| driver.machine.set_access(address, Bytes(bytes), &access));
            if let Err(error) = done {
                // Perhaps nothing is mapped yet.
                let _ = driver.machine.unmap(address, Bytes(bytes));
                driver.machine.free_addresses(address, Bytes(bytes))?;
                *mapped = None;
                return Err(error.into());
            }
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Ends what is mapped to an array.
pub(crate) fn unmap(driver: &Driver, mapped: &mut Option<(u64, u64)>) -> Answer {
    if let Some((address, bytes)) = *mapped {
        driver.machine.unmap(address, Bytes(bytes))?;
        driver.machine.free_addresses(address, Bytes(bytes))?;
        *mapped = None;
    }
    Ok(())
}
