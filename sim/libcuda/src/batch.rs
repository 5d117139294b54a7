//! Copies with attributes, singly and in batches.
//!
//! A batch is checked as a whole before any of it is enqueued, so a refused batch copies nothing.
//! Version 1 returns the index of the copy that was refused, or `SIZE_MAX` if none in particular
//! was.
//!
//! | what | answer | source |
//! |---|---|---|
//! | the legacy stream | INVALID_VALUE | the header, for batches; NVIDIA's cuda.core 1.2, for single copies |
//! | a capturing stream | STREAM_CAPTURE_UNSUPPORTED; the capture goes on | rmm's issue 2518, measured on CUDA 13 |
//! | an empty batch, a null pointer in one | INVALID_VALUE | assumed: the documentation does not say |
//! | no bytes between two pointers | success | assumed, as of `cuMemcpyAsync` |
//!
//! Location hints are ignored, as documented for memory with a fixed location, which all memory
//! here is.

use cgpu_abi::types::*;
use cgpu_sim::machine::{Pitched, StreamId, Ticket};

use crate::answer::{Answer, Failure, INVALID_VALUE, STREAM_CAPTURE_UNSUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::capture::{self, Lane};
use crate::copy::{self, STAGED};
use crate::driver::Driver;
use crate::graph::Copying;
use crate::range::{self, Place, Side};
use crate::stream;

/// When a copy may read its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceAccess {
    /// When the stream reaches the copy.
    InStreamOrder,
    /// Before the call returns.
    DuringCall,
    /// At any time, before the stream reaches the copy or later.
    AnyTime,
}

impl SourceAccess {
    fn of(order: CUmemcpySrcAccessOrder, flags: c_uint) -> Answer<Self> {
        if flags & !CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE != 0 {
            return Err(INVALID_VALUE);
        }
        match order {
            CU_MEMCPY_SRC_ACCESS_ORDER_STREAM => Ok(Self::InStreamOrder),
            CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL => Ok(Self::DuringCall),
            CU_MEMCPY_SRC_ACCESS_ORDER_ANY => Ok(Self::AnyTime),
            _ => Err(INVALID_VALUE),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    failure: Failure,
    /// Index of the copy that caused it; `usize::MAX` if none did.
    index: usize,
}

impl Refused {
    /// Returns a refusal that no single copy caused.
    fn batch(failure: impl Into<Failure>) -> Self {
        Self { failure: failure.into(), index: usize::MAX }
    }

    fn copy(index: usize) -> impl Fn(Failure) -> Self {
        move |failure| Self { failure, index }
    }
}

/// A copy that passed its checks.
struct Checked {
    what: Pitched,
    to: Place,
    from: Place,
    access: SourceAccess,
}

impl Checked {
    fn new(driver: &Driver, what: Pitched, access: SourceAccess) -> Answer<Self> {
        if what.to == 0 || what.from == 0 {
            return Err(INVALID_VALUE);
        }
        let (to, from) = (range::resolve(driver, what.to)?, range::resolve(driver, what.from)?);
        let what = Pitched { to: to.address, from: from.address, ..what };
        driver.machine.check_copy(copy::kind(to.side, from.side), &what)?;
        Ok(Self { what, to, from, access })
    }

    /// Enqueues the copy. Returns its ticket if the call has to wait for it.
    fn enqueue(&self, driver: &Driver, stream: StreamId) -> Answer<Option<Ticket>> {
        let Self { what, to, from, access } = *self;
        let kind = copy::kind(to.side, from.side);
        let is_staged = access == SourceAccess::DuringCall
            && from.side != Side::Device
            && to.side.is_reachable()
            && what.rows * what.slices == 1
            && what.width <= STAGED;
        if is_staged {
            return copy::setup(driver, stream, kind, what).map(|()| None);
        }
        // SAFETY: host ranges stay valid until the copy is done: either the call waits for it, or
        // the program guarantees it by pinning them or by the access that it chose.
        let ticket = unsafe { driver.machine.copy(stream, kind, what) }?;
        let waits = match access {
            SourceAccess::InStreamOrder => !from.side.is_reachable(),
            SourceAccess::DuringCall => true,
            SourceAccess::AnyTime => false,
        };
        Ok((waits || !to.side.is_reachable()).then_some(ticket))
    }
}

/// Returns the driver, and the GPU stream for a batch.
fn target(call: &Call, handle: CUstream) -> Answer<(&'static Driver, StreamId)> {
    let driver = call.driver()?;
    if stream::is_legacy(driver, handle, call.per_thread) {
        return Err(INVALID_VALUE);
    }
    match capture::lane(driver, handle, call.per_thread)? {
        Lane::Gpu(stream, _) => Ok((driver, stream)),
        Lane::Graph(_) => Err(STREAM_CAPTURE_UNSUPPORTED),
    }
}

fn enqueue(
    (driver, stream): (&Driver, StreamId),
    copies: impl IntoIterator<Item = Answer<(Pitched, SourceAccess)>>,
) -> Result<(), Refused> {
    let check = |(index, copy): (usize, Answer<(Pitched, SourceAccess)>)| {
        let checked = copy.and_then(|(what, access)| Checked::new(driver, what, access));
        checked.map_err(Refused::copy(index))
    };
    let checked = copies.into_iter().enumerate().map(check).collect::<Result<Vec<_>, _>>()?;
    if checked.is_empty() {
        return Err(Refused::batch(INVALID_VALUE));
    }
    let mut last = None;
    for (index, copy) in checked.iter().enumerate() {
        last = copy.enqueue(driver, stream).map_err(Refused::copy(index))?.or(last);
    }
    // The tickets are in stream order, so the last one completes after all others.
    last.map_or(Ok(()), |ticket| driver.machine.wait(ticket)).map_err(Refused::batch)
}

struct Attributes {
    /// The index of the first copy to which each of `accesses` applies.
    starts: Vec<usize>,
    accesses: Vec<SourceAccess>,
}

impl Attributes {
    fn read(
        copies: usize,
        attributes: Out<CUmemcpyAttributes>,
        starts: Out<usize>,
        count: usize,
    ) -> Result<Self, Refused> {
        if count > copies {
            return Err(Refused::batch(INVALID_VALUE));
        }
        let starts = starts.read_all(count).map_err(Refused::batch)?;
        let attributes = attributes.read_all(count).map_err(Refused::batch)?;
        let rises = starts.is_sorted_by(|before, after| before < after);
        if starts.first() != Some(&0) || !rises || starts.last().is_some_and(|&last| last >= copies)
        {
            return Err(Refused::batch(INVALID_VALUE));
        }
        let access = |(of, start): (&CUmemcpyAttributes, &usize)| {
            SourceAccess::of(of.src_access_order, of.flags).map_err(Refused::copy(*start))
        };
        let accesses = attributes.iter().zip(&starts).map(access).collect::<Result<_, _>>()?;
        Ok(Self { starts, accesses })
    }

    fn of(&self, copy: usize) -> SourceAccess {
        // The first start is 0, so at least one is not after the copy.
        self.accesses[self.starts.partition_point(|&start| start <= copy) - 1]
    }
}

/// A batch of linear copies: destinations, sources, sizes.
type Lines = (Out<CUdeviceptr>, Out<CUdeviceptr>, Out<usize>);

fn lines(
    call: &Call,
    (dsts, srcs, sizes): Lines,
    count: usize,
    (attrs, attrs_idxs, num_attrs): (Out<CUmemcpyAttributes>, Out<usize>, usize),
    stream: CUstream,
) -> Result<(), Refused> {
    let target = target(call, stream).map_err(Refused::batch)?;
    let attributes = Attributes::read(count, attrs, attrs_idxs, num_attrs)?;
    let to = dsts.read_all(count).map_err(Refused::batch)?;
    let from = srcs.read_all(count).map_err(Refused::batch)?;
    let bytes = sizes.read_all(count).map_err(Refused::batch)?;
    let line = |index| {
        Ok((Pitched::line(to[index], from[index], bytes[index] as u64), attributes.of(index)))
    };
    enqueue(target, (0..count).map(line))
}

fn boxes(
    call: &Call,
    ops: Out<CUDA_MEMCPY3D_BATCH_OP>,
    count: usize,
    flags: c_ulonglong,
    stream: CUstream,
) -> Result<(), Refused> {
    let (driver, stream) = target(call, stream).map_err(Refused::batch)?;
    if flags != 0 {
        return Err(Refused::batch(INVALID_VALUE));
    }
    let ops = ops.read_all(count).map_err(Refused::batch)?;
    let copy = |op: &CUDA_MEMCPY3D_BATCH_OP| {
        let access = SourceAccess::of(op.src_access_order, op.flags)?;
        Ok((Copying::with_attributes(driver, op)?.pitched(driver)?, access))
    };
    enqueue((driver, stream), ops.iter().map(copy))
}

/// Converts the result; in version 1, also writes the index of the refused copy.
fn answer(done: Result<(), Refused>, fail_idx: Out<usize>) -> Answer {
    done.map_err(|refused| {
        fail_idx.put_if_not_null(refused.index);
        refused.failure
    })
}

pub(crate) fn cuMemcpyBatchAsync(
    call: &Call,
    dsts: Out<CUdeviceptr>,
    srcs: Out<CUdeviceptr>,
    sizes: Out<usize>,
    count: usize,
    attrs: Out<CUmemcpyAttributes>,
    attrs_idxs: Out<usize>,
    num_attrs: usize,
    fail_idx: Out<usize>,
    stream: CUstream,
) -> Answer {
    answer(
        lines(call, (dsts, srcs, sizes), count, (attrs, attrs_idxs, num_attrs), stream),
        fail_idx,
    )
}
pub(crate) use cuMemcpyBatchAsync as cuMemcpyBatchAsync_ptsz;

pub(crate) fn cuMemcpyBatchAsync_v2(
    call: &Call,
    dsts: Out<CUdeviceptr>,
    srcs: Out<CUdeviceptr>,
    sizes: Out<usize>,
    count: usize,
    attrs: Out<CUmemcpyAttributes>,
    attrs_idxs: Out<usize>,
    num_attrs: usize,
    stream: CUstream,
) -> Answer {
    answer(
        lines(call, (dsts, srcs, sizes), count, (attrs, attrs_idxs, num_attrs), stream),
        Out::NONE,
    )
}
pub(crate) use cuMemcpyBatchAsync_v2 as cuMemcpyBatchAsync_v2_ptsz;

pub(crate) fn cuMemcpy3DBatchAsync(
    call: &Call,
    num_ops: usize,
    op_list: Out<CUDA_MEMCPY3D_BATCH_OP>,
    fail_idx: Out<usize>,
    flags: c_ulonglong,
    stream: CUstream,
) -> Answer {
    answer(boxes(call, op_list, num_ops, flags, stream), fail_idx)
}
pub(crate) use cuMemcpy3DBatchAsync as cuMemcpy3DBatchAsync_ptsz;

pub(crate) fn cuMemcpy3DBatchAsync_v2(
    call: &Call,
    num_ops: usize,
    op_list: Out<CUDA_MEMCPY3D_BATCH_OP>,
    flags: c_ulonglong,
    stream: CUstream,
) -> Answer {
    answer(boxes(call, op_list, num_ops, flags, stream), Out::NONE)
}
pub(crate) use cuMemcpy3DBatchAsync_v2 as cuMemcpy3DBatchAsync_v2_ptsz;

pub(crate) fn cuMemcpyWithAttributesAsync(
    call: &Call,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    size: usize,
    attr: Out<CUmemcpyAttributes>,
    stream: CUstream,
) -> Answer {
    let target = target(call, stream)?;
    let attributes = attr.read()?;
    let access = SourceAccess::of(attributes.src_access_order, attributes.flags)?;
    answer(enqueue(target, [Ok((Pitched::line(dst, src, size as u64), access))]), Out::NONE)
}
pub(crate) use cuMemcpyWithAttributesAsync as cuMemcpyWithAttributesAsync_ptsz;

pub(crate) fn cuMemcpy3DWithAttributesAsync(
    call: &Call,
    op: Out<CUDA_MEMCPY3D_BATCH_OP>,
    flags: c_ulonglong,
    stream: CUstream,
) -> Answer {
    answer(boxes(call, op, 1, flags, stream), Out::NONE)
}
pub(crate) use cuMemcpy3DWithAttributesAsync as cuMemcpy3DWithAttributesAsync_ptsz;
