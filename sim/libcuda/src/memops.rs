//! Memory words that streams write and wait on.

use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{StreamId, WaitCondition, Width, Work};

use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::driver::{Driver, count};
use crate::graph::node::{Body, MemOpsNode};
use crate::range;

/// Maximum number of operations in a batch.
const BATCH: c_uint = 256;

/// An operation, as bytes of the program's union.
pub(crate) type Operation = [cuuint64_t; 6];

/// Returns the machine's address of a word; fails unless the GPU can reach it.
fn word(driver: &Driver, address: CUdeviceptr) -> Answer<u64> {
    let place = range::resolve(driver, address)?;
    if place.side.is_reachable() { Ok(place.address) } else { Err(INVALID_VALUE) }
}

pub(crate) fn kind(operation: &Operation) -> CUstreamBatchMemOpType {
    let params = CUstreamBatchMemOpParams { pad: *operation };
    // SAFETY: every member begins with this field, and every bit pattern of the union is a valid
    // integer.
    unsafe { params.operation }
}

/// Returns the machine's work for an operation, resolving its address now.
pub(crate) fn work(driver: &Driver, operation: &Operation) -> Answer<Work> {
    let params = CUstreamBatchMemOpParams { pad: *operation };
    // SAFETY: every member begins with the operation, and every bit pattern of the union is a valid
    // integer.
    let CUstreamMemOpValueParams { operation: kind, address, value, flags, .. } =
        unsafe { params.value };
    let low = value & u64::from(u32::MAX);
    let (width, value) = match kind {
        CU_STREAM_MEM_OP_WRITE_VALUE_32 | CU_STREAM_MEM_OP_WAIT_VALUE_32 => (Width::Four, low),
        CU_STREAM_MEM_OP_WRITE_VALUE_64 | CU_STREAM_MEM_OP_WAIT_VALUE_64 => (Width::Eight, value),
        // All writes are performed by one processor, so they are ordered for every reader.
        CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => {
            return Ok(Work::Nothing);
        }
        _ => return Err(NOT_SUPPORTED),
    };
    if matches!(kind, CU_STREAM_MEM_OP_WRITE_VALUE_32 | CU_STREAM_MEM_OP_WRITE_VALUE_64) {
        if flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER != 0 {
            return Err(INVALID_VALUE);
        }
        return Ok(Work::Write(word(driver, address)?, width, value));
    }
    let condition = match flags & !CU_STREAM_WAIT_VALUE_FLUSH {
        CU_STREAM_WAIT_VALUE_GEQ => WaitCondition::AtLeast,
        CU_STREAM_WAIT_VALUE_EQ => WaitCondition::Equal,
        CU_STREAM_WAIT_VALUE_AND => WaitCondition::And,
        CU_STREAM_WAIT_VALUE_NOR => WaitCondition::Nor,
        _ => return Err(INVALID_VALUE),
    };
    Ok(Work::Watch(word(driver, address)?, width, condition, value))
}

fn perform(driver: &Driver, stream: StreamId, work: &Work) -> Answer {
    match *work {
        Work::Write(address, width, value) => {
            // SAFETY: the word is the GPU's, or pinned host memory that the program must keep until
            // the stream has reached the operation.
            unsafe { driver.machine.write_value(stream, address, width, value) }?;
        }
        Work::Watch(address, width, condition, value) => {
            // SAFETY: as for a write.
            unsafe { driver.machine.wait_value(stream, address, width, condition, value) }?;
        }
        _ => {}
    }
    Ok(())
}

/// Enqueues operations, or adds them to a capture.
fn put(call: &Call, stream: CUstream, operations: Vec<Operation>, flags: c_uint) -> Answer {
    let driver = call.driver()?;
    let lane = capture::lane(driver, stream, call.per_thread)?;
    let works = operations
        .iter()
        .map(|operation| work(driver, operation))
        .collect::<Answer<Vec<Work>>>()?;
    match lane {
        Lane::Gpu(stream, _) => works.iter().try_for_each(|work| perform(driver, stream, work)),
        Lane::Graph(recorder) => {
            let context = Arc::clone(&recorder.context);
            recorder.add(
                driver,
                Body::MemOps(MemOpsNode { operations: operations.into(), flags, context }),
            )
        }
    }
}

fn value(
    operation: CUstreamBatchMemOpType,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
) -> Operation {
    let mut params = CUstreamBatchMemOpParams { pad: [0; 6] };
    params.value = CUstreamMemOpValueParams { operation, address, value, flags, alias: 0 };
    // SAFETY: the whole union was initialised before the member was set, and the member's padding
    // is never read as a number.
    unsafe { params.pad }
}

/// Defines the functions for one operation and width, in both versions and for both default
/// streams.
macro_rules! operations {
    ($($operation:ident $type:ident:
        $first:ident, $first_ptsz:ident, $second:ident, $second_ptsz:ident;
    )*) => {$(
        pub(crate) fn $second(
            call: &Call,
            stream: CUstream,
            addr: CUdeviceptr,
            word: $type,
            flags: c_uint,
        ) -> Answer {
            put(call, stream, vec![value($operation, addr, u64::from(word), flags)], 0)
        }
        pub(crate) use $second as $second_ptsz;
        pub(crate) use $second as $first;
        pub(crate) use $second as $first_ptsz;
    )*};
}

operations! {
    CU_STREAM_MEM_OP_WRITE_VALUE_32 u32:
        cuStreamWriteValue32, cuStreamWriteValue32_ptsz,
        cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz;
    CU_STREAM_MEM_OP_WRITE_VALUE_64 u64:
        cuStreamWriteValue64, cuStreamWriteValue64_ptsz,
        cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz;
    CU_STREAM_MEM_OP_WAIT_VALUE_32 u32:
        cuStreamWaitValue32, cuStreamWaitValue32_ptsz,
        cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz;
    CU_STREAM_MEM_OP_WAIT_VALUE_64 u64:
        cuStreamWaitValue64, cuStreamWaitValue64_ptsz,
        cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz;
}

pub(crate) fn batch(
    operations: In<CUstreamBatchMemOpParams>,
    number: c_uint,
    flags: c_uint,
) -> Answer<Vec<Operation>> {
    if number > BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program passes whole operations of any kind, and every bit pattern is a valid
    // integer.
    let raw = |params: CUstreamBatchMemOpParams| unsafe { params.pad };
    Ok(operations.read_all(count(number)?)?.into_iter().map(raw).collect())
}

pub(crate) fn cuStreamBatchMemOp_v2(
    call: &Call,
    stream: CUstream,
    operations: c_uint,
    param_array: Out<CUstreamBatchMemOpParams>,
    flags: c_uint,
) -> Answer {
    put(call, stream, batch(param_array.as_in(), operations, flags)?, flags)
}
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp;
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp_ptsz;
pub(crate) use cuStreamBatchMemOp_v2 as cuStreamBatchMemOp_v2_ptsz;
