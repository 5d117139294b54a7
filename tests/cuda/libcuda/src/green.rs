//! Green contexts: parts of a card's multiprocessors, with streams whose kernels run on these only.
//!
//! A green context is a view of the card's primary context, which it holds on to: memory and modules are that one's, and so is its turn. It
//! takes some memory of its own. What its kernels take of the card is bounded by its part; that two such parts are
//! apart in space is not played. Its default stream is the primary context's.

use core::iter;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::Bytes;

use crate::answer::{
    Answer, INVALID_CONTEXT, INVALID_HANDLE, INVALID_RESOURCE_CONFIGURATION, INVALID_RESOURCE_TYPE,
    INVALID_VALUE,
};
use crate::argument::{In, Out, Received, values};
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, count};
use crate::{primary, stream};

values!(CUdevResourceDesc);

/// What a green context takes.
const MEMORY: Bytes = Bytes::from_mib(8);

/// What a green context is to be made of.
#[derive(Debug)]
pub(crate) struct Description {
    card: usize,
    multiprocessors: c_uint,
}

/// A green context.
#[derive(Debug)]
pub(crate) struct Green {
    pub(crate) context: Arc<Context>,
    multiprocessors: c_uint,
    /// Where the machine has what it takes.
    memory: u64,
}

/// The fewest multiprocessors of a part, and of what parts are multiples (the driver's documentation).
fn grain(driver: &Driver, card: usize) -> (c_uint, c_uint) {
    match driver.machine.cards()[card].model.capability.0 {
        ..=6 => (1, 1),
        7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Describes multiprocessors of a card; none is a resource of no kind.
fn resource(driver: &Driver, card: usize, sm_count: c_uint) -> CUdevResource {
    let (least, alignment) = grain(driver, card);
    let mut internal = [0; 92];
    internal[..8].copy_from_slice(&(card as u64).to_le_bytes());
    CUdevResource {
        kind: if sm_count == 0 { CU_DEV_RESOURCE_TYPE_INVALID } else { CU_DEV_RESOURCE_TYPE_SM },
        internal,
        sm: CUdevSmResource {
            sm_count,
            min_sm_partition_size: least,
            sm_coscheduled_alignment: alignment,
            flags: 0,
        },
        oversize: [0; 24],
        next: 0,
    }
}

/// Card and number of multiprocessors that a resource describes.
fn described(driver: &Driver, resource: &CUdevResource) -> Answer<(usize, c_uint)> {
    if resource.kind != CU_DEV_RESOURCE_TYPE_SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let mut card = [0; 8];
    card.copy_from_slice(&resource.internal[..8]);
    let card = count(u64::from_le_bytes(card))?;
    let all = driver.machine.cards().get(card).ok_or(INVALID_VALUE)?.model.multiprocessors;
    if resource.sm.sm_count > all { Err(INVALID_VALUE) } else { Ok((card, resource.sm.sm_count)) }
}

fn put(
    driver: &Driver,
    to: Out<CUdevResource>,
    kind: CUdevResourceType,
    card: usize,
    part: Option<c_uint>,
) -> Answer {
    to.required()?;
    if kind != CU_DEV_RESOURCE_TYPE_SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let all = driver.machine.cards()[card].model.multiprocessors;
    to.put(resource(driver, card, part.unwrap_or(all)))?;
    Ok(())
}

fn find(driver: &Driver, green: CUgreenCtx) -> Answer<Arc<Green>> {
    driver.greens.get(green.0).ok_or(INVALID_CONTEXT)
}

pub(crate) fn cuDeviceGetDevResource(
    call: &Call,
    device: CUdevice,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    put(driver, resource, kind, driver.card(device)?, None)
}

pub(crate) fn cuCtxGetDevResource(
    call: &Call,
    context: CUcontext,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.context(context)?;
    put(driver, resource, kind, context.card, context.multiprocessors)
}

pub(crate) fn cuGreenCtxGetDevResource(
    call: &Call,
    green: CUgreenCtx,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    let green = find(driver, green)?;
    put(driver, resource, kind, green.context.card, Some(green.multiprocessors))
}

pub(crate) fn cuStreamGetDevResource(
    call: &Call,
    handle: CUstream,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    let (_, context) = stream::find(driver, handle, call.per_thread)?;
    put(driver, resource, kind, context.card, context.multiprocessors)
}
pub(crate) use cuStreamGetDevResource as cuStreamGetDevResource_ptsz;

/// Splits into as many equal parts as fit, or as are asked for. Without room for results it only tells how many fit.
pub(crate) fn cuDevSmResourceSplitByCount(
    call: &Call,
    result: Out<CUdevResource>,
    nb_groups: Out<c_uint>,
    input: In<CUdevResource>,
    remaining: Out<CUdevResource>,
    flags: c_uint,
    min_count: c_uint,
) -> Answer {
    const KNOWN: c_uint =
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    let driver = call.driver()?;
    nb_groups.required()?;
    let (card, available) = described(driver, &input.read()?)?;
    if flags & !KNOWN != 0 {
        return Err(INVALID_VALUE);
    }
    let (least, alignment) = match flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING {
        0 => grain(driver, card),
        _ => (2.min(grain(driver, card).0), 2.min(grain(driver, card).1)),
    };
    if min_count > available {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let part = min_count.max(least).next_multiple_of(alignment);
    let fitting = available / part;
    if fitting == 0 {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    if result.is_null() {
        nb_groups.put(fitting)?;
        return Ok(());
    }
    let groups = nb_groups.read()?.min(fitting);
    result.put_all(iter::repeat_with(|| resource(driver, card, part)), count(groups)?)?;
    remaining.put_if_asked(resource(driver, card, available - groups * part));
    nb_groups.put(groups)?;
    Ok(())
}

pub(crate) fn cuDevResourceGenerateDesc(
    call: &Call,
    ph_desc: Out<CUdevResourceDesc>,
    resources: In<CUdevResource>,
    nb_resources: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let to = ph_desc.required()?;
    let parts = resources.read_all(count(nb_resources)?)?;
    let parts = parts.iter().map(|part| described(driver, part)).collect::<Answer<Vec<_>>>()?;
    let (card, _) = *parts.first().ok_or(INVALID_VALUE)?;
    let multiprocessors = parts.iter().map(|(_, part)| part).sum();
    let all = driver.machine.cards()[card].model.multiprocessors;
    if parts.iter().any(|(its, _)| *its != card) || multiprocessors > all {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    to.put(CUdevResourceDesc(driver.descriptions.add(Description { card, multiprocessors })))?;
    Ok(())
}

/// Holds on to the card's primary context, and makes it if there is none.
pub(crate) fn cuGreenCtxCreate(
    call: &Call,
    ph_ctx: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let to = ph_ctx.required()?;
    let card = driver.card(dev)?;
    let description = driver.descriptions.get(desc.0).ok_or(INVALID_VALUE)?;
    if flags != CU_GREEN_CTX_DEFAULT_STREAM || description.card != card {
        return Err(INVALID_VALUE);
    }
    let whole = primary::retain(driver, card)?;
    let memory = match driver.machine.allocate(whole.id, MEMORY) {
        Ok(memory) => memory,
        Err(error) => {
            primary::release(driver, card)?;
            return Err(error.into());
        }
    };
    let multiprocessors = description.multiprocessors;
    let context = Context::part_of(driver, &whole, multiprocessors);
    to.put(CUgreenCtx(driver.greens.add(Green { context, multiprocessors, memory })))?;
    Ok(())
}

/// Its streams are waited for, and gone.
pub(crate) fn cuGreenCtxDestroy(call: &Call, green: CUgreenCtx) -> Answer {
    let driver = call.driver()?;
    let found = find(driver, green)?;
    driver.machine.synchronize_context(found.context.id)?;
    driver.greens.remove(green.0);
    found.context.close_part(driver);
    // Gone with the primary context if that was reset.
    let _ = driver.machine.free(found.memory);
    primary::release(driver, found.context.card)
}

pub(crate) fn cuCtxFromGreenCtx(call: &Call, context: Out<CUcontext>, green: CUgreenCtx) -> Answer {
    let driver = call.driver()?;
    context.put(find(driver, green)?.context.handle)?;
    Ok(())
}

pub(crate) fn cuGreenCtxGetId(call: &Call, green: CUgreenCtx, id: Out<c_ulonglong>) -> Answer {
    let driver = call.driver()?;
    id.put(find(driver, green)?.context.number)?;
    Ok(())
}

pub(crate) fn cuGreenCtxStreamCreate(
    call: &Call,
    ph_stream: Out<CUstream>,
    green: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> Answer {
    let driver = call.driver()?;
    let to = ph_stream.required()?;
    let green = find(driver, green)?;
    if flags != CU_STREAM_NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    to.put(stream::create(driver, &green.context, flags, priority)?)?;
    Ok(())
}

/// NULL for a stream of a context that is not green.
pub(crate) fn cuStreamGetGreenCtx(call: &Call, handle: CUstream, green: Out<CUgreenCtx>) -> Answer {
    let driver = call.driver()?;
    let to = green.required()?;
    let (_, context) = stream::find(driver, handle, call.per_thread).map_err(|_| INVALID_HANDLE)?;
    let found = driver.greens.find(|green| green.context.number == context.number);
    to.put(found.map(|(handle, _)| CUgreenCtx(handle)).unwrap_or_default())?;
    Ok(())
}
