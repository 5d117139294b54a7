//! Words that streams write and wait for.

use cgpu_abi::types::*;
use cgpu_sim::machine::{StreamId, WaitCondition, Width};

use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::{Driver, count};
use crate::range;

/// The most operations of a batch.
const BATCH: c_uint = 256;

/// Where the machine has the word; only what the card can reach.
fn word(driver: &Driver, address: CUdeviceptr) -> Answer<u64> {
    let place = range::resolve(driver, address)?;
    if place.side.is_reachable() { Ok(place.address) } else { Err(INVALID_VALUE) }
}

fn write(
    driver: &Driver,
    stream: StreamId,
    address: CUdeviceptr,
    width: Width,
    value: u64,
    flags: c_uint,
) -> Answer {
    if flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER != 0 {
        return Err(INVALID_VALUE);
    }
    let address = word(driver, address)?;
    // SAFETY: the word is the card's, or pinned host memory that the program must keep until the stream has come by.
    unsafe { driver.machine.write_value(stream, address, width, value) }?;
    Ok(())
}

fn wait(
    driver: &Driver,
    stream: StreamId,
    address: CUdeviceptr,
    width: Width,
    value: u64,
    flags: c_uint,
) -> Answer {
    let condition = match flags & !CU_STREAM_WAIT_VALUE_FLUSH {
        CU_STREAM_WAIT_VALUE_GEQ => WaitCondition::AtLeast,
        CU_STREAM_WAIT_VALUE_EQ => WaitCondition::Equal,
        CU_STREAM_WAIT_VALUE_AND => WaitCondition::And,
        CU_STREAM_WAIT_VALUE_NOR => WaitCondition::Nor,
        _ => return Err(INVALID_VALUE),
    };
    let address = word(driver, address)?;
    // SAFETY: as for a write.
    unsafe { driver.machine.wait_value(stream, address, width, condition, value) }?;
    Ok(())
}

/// Makes the functions for one operation and width, in both versions and both families.
macro_rules! operations {
    ($($act:ident $width:ident $type:ident: $first:ident, $first_ptsz:ident, $second:ident, $second_ptsz:ident;)*) => {$(
        pub(crate) fn $second(call: &Call, stream: CUstream, addr: CUdeviceptr, value: $type, flags: c_uint) -> Answer {
            let driver = call.driver()?;
            let (stream, _) = driver.stream(stream, call.per_thread)?;
            $act(driver, stream, addr, Width::$width, u64::from(value), flags)
        }
        pub(crate) use $second as $second_ptsz;
        pub(crate) use $second as $first;
        pub(crate) use $second as $first_ptsz;
    )*};
}

operations! {
    write Four u32: cuStreamWriteValue32, cuStreamWriteValue32_ptsz, cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz;
    write Eight u64: cuStreamWriteValue64, cuStreamWriteValue64_ptsz, cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz;
    wait Four u32: cuStreamWaitValue32, cuStreamWaitValue32_ptsz, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz;
    wait Eight u64: cuStreamWaitValue64, cuStreamWaitValue64_ptsz, cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz;
}

pub(crate) fn cuStreamBatchMemOp_v2(
    call: &Call,
    stream: CUstream,
    operations: c_uint,
    param_array: Out<CUstreamBatchMemOpParams>,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = driver.stream(stream, call.per_thread)?;
    if operations > BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    for operation in param_array.read_all(count(operations)?)? {
        // SAFETY: every member begins with the operation, and every byte of the union may be read as numbers.
        let operation = unsafe { operation.value };
        let CUstreamMemOpValueParams { operation: kind, address, value, flags, .. } = operation;
        let low = value & u64::from(u32::MAX);
        match kind {
            CU_STREAM_MEM_OP_WRITE_VALUE_32 => write(driver, stream, address, Width::Four, low, flags)?,
            CU_STREAM_MEM_OP_WRITE_VALUE_64 => write(driver, stream, address, Width::Eight, value, flags)?,
            CU_STREAM_MEM_OP_WAIT_VALUE_32 => wait(driver, stream, address, Width::Four, low, flags)?,
            CU_STREAM_MEM_OP_WAIT_VALUE_64 => wait(driver, stream, address, Width::Eight, value, flags)?,
            // One processor's order is everybody's here.
            CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => {}
            _ => return Err(NOT_SUPPORTED),
        }
    }
    Ok(())
}
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp;
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp_ptsz;
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp_v2_ptsz;
