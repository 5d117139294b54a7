//! Green contexts: parts of a GPU's multiprocessors, with streams whose kernels run on these only.
//!
//! A green context is a view of the GPU's primary context, which it retains: it shares the memory,
//! the modules, the default stream and the turn. It takes some memory of its own. Its kernels use
//! at most its part of the GPU. Two parts are not kept on different multiprocessors.

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
use crate::split::{GroupOptions, Multiprocessors};
use crate::{primary, stream};

values!(CUdevResourceDesc);

const MEMORY: Bytes = Bytes::from_mib(8);

/// A description from which green contexts are created.
#[derive(Debug)]
pub(crate) struct Description {
    gpu: usize,
    multiprocessors: Multiprocessors,
    options: GroupOptions,
}

#[derive(Debug)]
pub(crate) struct Green {
    pub(crate) context: Arc<Context>,
    multiprocessors: Multiprocessors,
    options: GroupOptions,
    /// Address of its memory in the machine.
    memory: u64,
}

/// Returns a part's minimum and unit, in multiprocessors, by the driver's documentation.
fn grain(driver: &Driver, gpu: usize) -> (c_uint, c_uint) {
    match driver.machine.gpus()[gpu].model.capability.0 {
        ..=6 => (1, 1),
        7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

/// Describes multiprocessors of a GPU; an empty part becomes an invalid resource.
fn resource(
    driver: &Driver,
    gpu: usize,
    part: Multiprocessors,
    options: Option<GroupOptions>,
) -> CUdevResource {
    let (least, alignment) = grain(driver, gpu);
    let options = options.unwrap_or(GroupOptions { coscheduled: alignment, flags: 0, domain: 0 });
    let mut internal = [0; 92];
    let known = (gpu as u64).to_le_bytes().into_iter().chain(part.bytes());
    internal.iter_mut().zip(known).for_each(|(place, byte)| *place = byte);
    let sm_count = part.count();
    CUdevResource {
        kind: if sm_count == 0 { CU_DEV_RESOURCE_TYPE_INVALID } else { CU_DEV_RESOURCE_TYPE_SM },
        internal,
        sm: CUdevSmResource {
            sm_count,
            min_sm_partition_size: least,
            sm_coscheduled_alignment: options.coscheduled,
            flags: options.flags,
            locality_domain_id: options.domain,
        },
        oversize: [0; 20],
        next: 0,
    }
}

/// Returns the GPU and the multiprocessors of a resource.
fn described(driver: &Driver, resource: &CUdevResource) -> Answer<(usize, Multiprocessors)> {
    if resource.kind != CU_DEV_RESOURCE_TYPE_SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let mut gpu = [0; 8];
    gpu.copy_from_slice(&resource.internal[..8]);
    let gpu = count(u64::from_le_bytes(gpu))?;
    let part = Multiprocessors::read(&resource.internal[8..]);
    let spec = driver.machine.gpus().get(gpu).ok_or(INVALID_VALUE)?;
    if part.count() != resource.sm.sm_count || !Multiprocessors::of(spec).holds(&part) {
        return Err(INVALID_VALUE);
    }
    Ok((gpu, part))
}

fn put(
    driver: &Driver,
    to: Out<CUdevResource>,
    kind: CUdevResourceType,
    context: &Context,
) -> Answer {
    let owner = driver.greens.find(|green| green.context.number == context.number);
    put_part(
        driver,
        to,
        kind,
        context.gpu,
        owner.map(|(_, green)| (green.multiprocessors, green.options)),
    )
}

fn put_part(
    driver: &Driver,
    to: Out<CUdevResource>,
    kind: CUdevResourceType,
    gpu: usize,
    part: Option<(Multiprocessors, GroupOptions)>,
) -> Answer {
    to.required()?;
    if kind != CU_DEV_RESOURCE_TYPE_SM {
        return Err(INVALID_RESOURCE_TYPE);
    }
    let all = Multiprocessors::of(&driver.machine.gpus()[gpu]);
    let (part, options) = part.map_or((all, None), |(part, options)| (part, Some(options)));
    to.put(resource(driver, gpu, part, options))?;
    Ok(())
}

pub(crate) fn find(driver: &Driver, green: CUgreenCtx) -> Answer<Arc<Green>> {
    driver.greens.get(green.0).ok_or(INVALID_CONTEXT)
}

pub(crate) fn cuDeviceGetDevResource(
    call: &Call,
    device: CUdevice,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    put_part(driver, resource, kind, driver.gpu(device)?, None)
}

pub(crate) fn cuCtxGetDevResource(
    call: &Call,
    context: CUcontext,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    put(driver, resource, kind, &*driver.context(context)?)
}

pub(crate) fn cuGreenCtxGetDevResource(
    call: &Call,
    green: CUgreenCtx,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    put(driver, resource, kind, &find(driver, green)?.context)
}

pub(crate) fn cuStreamGetDevResource(
    call: &Call,
    handle: CUstream,
    resource: Out<CUdevResource>,
    kind: CUdevResourceType,
) -> Answer {
    let driver = call.driver()?;
    let (_, context) = stream::find(driver, handle, call.per_thread)?;
    put(driver, resource, kind, &context)
}
pub(crate) use cuStreamGetDevResource as cuStreamGetDevResource_ptsz;

/// Splits into equal parts, as many as fit or as are requested. Without an array for results,
/// returns only the number that fits.
pub(crate) fn cuDevSmResourceSplitByCount(
    call: &Call,
    result: Out<CUdevResource>,
    nb_groups: Out<c_uint>,
    input: In<CUdevResource>,
    remaining: Out<CUdevResource>,
    flags: c_uint,
    min_count: c_uint,
) -> Answer {
    const KNOWN: c_uint = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING
        | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    let driver = call.driver()?;
    nb_groups.required()?;
    let (gpu, mut left) = described(driver, &input.read()?)?;
    let available = left.count();
    if flags & !KNOWN != 0 {
        return Err(INVALID_VALUE);
    }
    let (least, alignment) = match flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING {
        0 => grain(driver, gpu),
        _ => (2.min(grain(driver, gpu).0), 2.min(grain(driver, gpu).1)),
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
    let parts: Vec<CUdevResource> =
        (0..groups).map(|_| resource(driver, gpu, left.take(part), None)).collect();
    result.put_all(parts, count(groups)?)?;
    remaining.put_if_not_null(resource(driver, gpu, left, None));
    nb_groups.put(groups)?;
    Ok(())
}

/// Splits into groups of different sizes. `result` may be NULL, to compute the sizes only.
pub(crate) fn cuDevSmResourceSplit(
    call: &Call,
    result: Out<CUdevResource>,
    nb_groups: c_uint,
    input: In<CUdevResource>,
    remainder: Out<CUdevResource>,
    flags: c_uint,
    group_params: Out<CU_DEV_SM_RESOURCE_GROUP_PARAMS>,
) -> Answer {
    let driver = call.driver()?;
    let number = count(nb_groups)?;
    let (gpu, mut left) = described(driver, &input.read()?)?;
    let (least, spec) = (left.count().min(2), &driver.machine.gpus()[gpu]);
    if flags != 0 || number == 0 || least < 2 {
        return Err(INVALID_VALUE);
    }
    let mut groups = group_params.read_all(number)?;
    let mut parts = Vec::new();
    for group in &mut groups {
        let (part, options) = left.split_off(group, spec)?;
        if part.count() == 0 && !result.is_null() {
            return Err(INVALID_RESOURCE_CONFIGURATION);
        }
        parts.push(resource(driver, gpu, part, Some(options)));
    }
    group_params.put_all(groups, number)?;
    if !result.is_null() {
        result.put_all(parts, number)?;
    }
    remainder.put_if_not_null(resource(driver, gpu, left, None));
    Ok(())
}

pub(crate) fn cuDevResourceGenerateDesc(
    call: &Call,
    ph_desc: Out<CUdevResourceDesc>,
    resources: Out<CUdevResource>,
    nb_resources: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let to = ph_desc.required()?;
    let parts = resources.read_all(count(nb_resources)?)?;
    let options = |part: &CUdevResource| GroupOptions {
        coscheduled: part.sm.sm_coscheduled_alignment,
        flags: part.sm.flags,
        domain: part.sm.locality_domain_id,
    };
    let first = options(parts.first().ok_or(INVALID_VALUE)?);
    let different = parts.iter().any(|part| options(part) != first);
    let parts = parts.iter().map(|part| described(driver, part)).collect::<Answer<Vec<_>>>()?;
    let (gpu, _) = *parts.first().ok_or(INVALID_VALUE)?;
    let none = Multiprocessors::default();
    let multiprocessors = parts.iter().fold(none, |sum, (_, part)| sum.plus(*part));
    let all = Multiprocessors::of(&driver.machine.gpus()[gpu]);
    if different || parts.iter().any(|(owner, _)| *owner != gpu) || !all.holds(&multiprocessors) {
        return Err(INVALID_RESOURCE_CONFIGURATION);
    }
    let description = Description { gpu, multiprocessors, options: first };
    to.put(CUdevResourceDesc(driver.descriptions.add(description)))?;
    Ok(())
}

/// Retains the GPU's primary context, which is created if necessary.
pub(crate) fn cuGreenCtxCreate(
    call: &Call,
    ph_ctx: Out<CUgreenCtx>,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let to = ph_ctx.required()?;
    let gpu = driver.gpu(dev)?;
    let description = driver.descriptions.get(desc.0).ok_or(INVALID_VALUE)?;
    if flags != CU_GREEN_CTX_DEFAULT_STREAM || description.gpu != gpu {
        return Err(INVALID_VALUE);
    }
    let whole = primary::retain(driver, gpu)?;
    let memory = match driver.machine.allocate(whole.id, MEMORY) {
        Ok(memory) => memory,
        Err(error) => {
            primary::release(driver, gpu)?;
            return Err(error.into());
        }
    };
    let Description { multiprocessors, options, .. } = *description;
    let context = Context::part_of(driver, &whole, multiprocessors.count());
    to.put(CUgreenCtx(driver.greens.add(Green { context, multiprocessors, options, memory })))?;
    Ok(())
}

/// Waits for its streams and destroys them.
pub(crate) fn cuGreenCtxDestroy(call: &Call, green: CUgreenCtx) -> Answer {
    let driver = call.driver()?;
    let found = find(driver, green)?;
    driver.machine.synchronize_context(found.context.id)?;
    driver.greens.remove(green.0);
    found.context.close_part(driver);
    // Fails if the primary context was reset: the memory is freed already.
    let _ = driver.machine.free(found.memory);
    primary::release(driver, found.context.gpu)
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

/// Returns NULL for a stream of a context that is not green.
pub(crate) fn cuStreamGetGreenCtx(call: &Call, handle: CUstream, green: Out<CUgreenCtx>) -> Answer {
    let driver = call.driver()?;
    let to = green.required()?;
    let (_, context) = stream::find(driver, handle, call.per_thread).map_err(|_| INVALID_HANDLE)?;
    let found = driver.greens.find(|green| green.context.number == context.number);
    to.put(found.map(|(handle, _)| CUgreenCtx(handle)).unwrap_or_default())?;
    Ok(())
}
