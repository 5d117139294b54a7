//! Contexts, and the current context of each thread.

use core::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_shm::atomic::{AtomicU32, Ordering};
use cgpu_sim::Bytes;
use cgpu_sim::machine::ContextId;

use crate::answer::{
    Answer, CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED, UNSUPPORTED_LIMIT,
};
use crate::argument::{Out, Received, values};
use crate::assembly::Assembly;
use crate::call::Call;
use crate::capture;
use crate::driver::{Driver, lock};
use crate::handle;

values!(CUcontext);

/// All flags that are known up to CUDA 13.
pub(crate) const FLAGS: c_uint = 0xff;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    /// The machine's id, which a later context may reuse.
    pub(crate) id: ContextId,
    /// A number that no other context ever has; the next few numbers stay unused, too.
    pub(crate) number: u64,
    pub(crate) gpu: usize,
    device: CUdevice,
    pub(crate) flags: AtomicU32,
    /// The version of the function that created it, for `cuCtxGetApiVersion`.
    api_version: c_uint,
    primary: bool,
    /// Of a green context: its number of multiprocessors.
    pub(crate) multiprocessors: Option<c_uint>,
    pub(crate) assembly: Assembly,
    /// One, and one more for each attachment.
    uses: AtomicU32,
    limits: Mutex<HashMap<CUlimit, usize>>,
    cache: AtomicU32,
    banks: AtomicU32,
}

impl Context {
    /// Creates a context on a GPU, under a new handle or one that it had before.
    pub(crate) fn open(
        driver: &Driver,
        gpu: usize,
        flags: c_uint,
        api_version: c_uint,
        handle: Option<CUcontext>,
    ) -> Answer<Arc<Self>> {
        let context = Arc::new(Self {
            handle: handle.unwrap_or_else(|| CUcontext(handle::fresh())),
            id: driver.machine.create_context(gpu)?,
            number: handle::fresh() as u64,
            gpu,
            device: driver.device(gpu),
            flags: AtomicU32::new(flags),
            api_version,
            primary: handle.is_some(),
            multiprocessors: None,
            assembly: Assembly::default(),
            uses: AtomicU32::new(1),
            limits: Mutex::default(),
            cache: AtomicU32::new(CU_FUNC_CACHE_PREFER_NONE),
            banks: AtomicU32::new(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE),
        });
        driver.contexts.insert(context.handle.0, Arc::clone(&context));
        Ok(context)
    }

    /// Creates a green context: a view of a primary context.
    pub(crate) fn part_of(driver: &Driver, whole: &Self, multiprocessors: c_uint) -> Arc<Self> {
        let context = Arc::new(Self {
            handle: CUcontext(handle::fresh()),
            id: whole.id,
            number: handle::fresh() as u64,
            gpu: whole.gpu,
            device: whole.device,
            flags: AtomicU32::new(whole.flags.load(Ordering::Relaxed)),
            api_version: whole.api_version,
            primary: true,
            multiprocessors: Some(multiprocessors),
            assembly: Assembly::default(),
            uses: AtomicU32::new(1),
            limits: Mutex::default(),
            cache: AtomicU32::new(CU_FUNC_CACHE_PREFER_NONE),
            banks: AtomicU32::new(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE),
        });
        driver.contexts.insert(context.handle.0, Arc::clone(&context));
        context
    }

    /// Ends a green context, and the streams and events created in it. Memory and code belong to
    /// the primary context.
    pub(crate) fn close_part(&self, driver: &Driver) {
        driver.contexts.remove(self.handle.0);
        self.assembly.close(driver);
        let belongs = |context: &Arc<Self>| context.number == self.number;
        driver.streams.retain(|stream| {
            let ends = belongs(&stream.context);
            if ends {
                // Fails if the primary context was destroyed before, with its streams.
                let _ = driver.machine.destroy_stream(stream.id);
            }
            !ends
        });
        driver.events.retain(|event| !belongs(&event.context));
    }

    /// Ends the context and everything created in it.
    pub(crate) fn close(&self, driver: &Driver) -> Answer {
        driver.contexts.remove(self.handle.0).ok_or(CONTEXT_IS_DESTROYED)?;
        capture::forget_context(driver, self);
        // Its green contexts end with it.
        driver.contexts.retain(|context| context.id != self.id);
        let belongs = |context: &Arc<Context>| context.id == self.id;
        driver.streams.retain(|stream| !belongs(&stream.context));
        driver.events.retain(|event| !belongs(&event.context));
        driver.functions.retain(|function| !belongs(&function.context));
        driver.modules.retain(|module| !belongs(&module.context));
        driver.arrays.retain(|array| !belongs(&array.context));
        driver.views.retain(|view| !belongs(&view.context));
        driver.externals.retain(|external| !external.is_in(self));
        driver.semaphores.retain(|semaphore| !semaphore.is_in(self));
        lock(&driver.buffers).forget(self);
        lock(&driver.low).forget(self.id);
        driver.machine.destroy_context(self.id)?;
        // Last, when no copy uses its host memory any more.
        lock(&driver.host).forget(self);
        Ok(())
    }

    /// Returns the device as the program numbers it.
    pub(crate) const fn device(&self) -> CUdevice {
        self.device
    }
}

thread_local! {
    /// The thread's contexts; the last one is current.
    static STACK: RefCell<Vec<CUcontext>> = const { RefCell::new(Vec::new()) };
}

fn top() -> Option<CUcontext> {
    STACK.with_borrow(|stack| stack.last().copied().filter(|context| !context.is_null()))
}

pub(crate) fn current(driver: &Driver) -> Answer<Arc<Context>> {
    let handle = top().ok_or(INVALID_CONTEXT)?;
    driver.contexts.get(handle.0).ok_or(CONTEXT_IS_DESTROYED)
}

/// Returns the context of a handle; fails if it was destroyed.
pub(crate) fn find(driver: &Driver, handle: CUcontext) -> Answer<Arc<Context>> {
    driver.contexts.get(handle.0).ok_or(INVALID_CONTEXT)
}

fn create(
    call: &Call,
    pctx: Out<CUcontext>,
    flags: c_uint,
    dev: CUdevice,
    api_version: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let pctx = pctx.required()?;
    let gpu = driver.gpu(dev)?;
    if flags & !FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let context = Context::open(driver, gpu, flags, api_version, None)?;
    STACK.with_borrow_mut(|stack| stack.push(context.handle));
    pctx.put(context.handle)?;
    Ok(())
}

pub(crate) fn cuCtxCreate(
    call: &Call,
    pctx: Out<CUcontext>,
    flags: c_uint,
    dev: CUdevice,
) -> Answer {
    create(call, pctx, flags, dev, 3010)
}

pub(crate) fn cuCtxCreate_v2(
    call: &Call,
    pctx: Out<CUcontext>,
    flags: c_uint,
    dev: CUdevice,
) -> Answer {
    create(call, pctx, flags, dev, 3020)
}

pub(crate) fn cuCtxCreate_v3(
    call: &Call,
    pctx: Out<CUcontext>,
    _params_array: Out<CUexecAffinityParam>,
    _num_params: c_int,
    flags: c_uint,
    dev: CUdevice,
) -> Answer {
    create(call, pctx, flags, dev, 3020)
}

pub(crate) fn cuCtxCreate_v4(
    call: &Call,
    pctx: Out<CUcontext>,
    _ctx_create_params: Out<CUctxCreateParams>,
    flags: c_uint,
    dev: CUdevice,
) -> Answer {
    create(call, pctx, flags, dev, 3020)
}

pub(crate) fn cuCtxDestroy_v2(call: &Call, ctx: CUcontext) -> Answer {
    let driver = call.driver()?;
    let context = find(driver, ctx)?;
    if context.primary {
        return Err(INVALID_CONTEXT);
    }
    context.close(driver)?;
    // It stays on other threads' stacks, where it is found to be destroyed.
    STACK.with_borrow_mut(|stack| stack.pop_if(|last| *last == ctx));
    Ok(())
}
pub(crate) use cuCtxDestroy_v2 as cuCtxDestroy;

/// Adds a use of the current context.
pub(crate) fn cuCtxAttach(call: &Call, pctx: Out<CUcontext>, flags: c_uint) -> Answer {
    let context = call.driver()?.current()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    pctx.put(context.handle)?;
    context.uses.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Ends a use; the last one destroys the context.
pub(crate) fn cuCtxDetach(call: &Call, ctx: CUcontext) -> Answer {
    let context = find(call.driver()?, ctx)?;
    if context.primary {
        return Err(INVALID_CONTEXT);
    }
    // Relaxed: each use is ended once, so only the call that ends the last one reads 1.
    if context.uses.fetch_sub(1, Ordering::Relaxed) == 1 {
        cuCtxDestroy_v2(call, ctx)
    } else {
        Ok(())
    }
}

pub(crate) fn cuCtxGetCurrent(call: &Call, pctx: Out<CUcontext>) -> Answer {
    call.driver()?;
    pctx.put(top().unwrap_or_default())?;
    Ok(())
}

pub(crate) fn cuCtxSetCurrent(call: &Call, ctx: CUcontext) -> Answer {
    let driver = call.driver()?;
    if ctx.is_null() {
        STACK.with_borrow_mut(Vec::pop);
        return Ok(());
    }
    find(driver, ctx)?;
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(ctx);
    });
    Ok(())
}

pub(crate) fn cuCtxPushCurrent_v2(call: &Call, ctx: CUcontext) -> Answer {
    find(call.driver()?, ctx)?;
    STACK.with_borrow_mut(|stack| stack.push(ctx));
    Ok(())
}
pub(crate) use cuCtxPushCurrent_v2 as cuCtxPushCurrent;

pub(crate) fn cuCtxPopCurrent_v2(call: &Call, pctx: Out<CUcontext>) -> Answer {
    call.driver()?;
    let context = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
    pctx.put_if_not_null(context);
    Ok(())
}
pub(crate) use cuCtxPopCurrent_v2 as cuCtxPopCurrent;

pub(crate) fn cuCtxGetDevice(call: &Call, device: Out<CUdevice>) -> Answer {
    device.put(call.driver()?.current()?.device())?;
    Ok(())
}

pub(crate) fn cuCtxGetDevice_v2(call: &Call, device: Out<CUdevice>, ctx: CUcontext) -> Answer {
    device.put(call.driver()?.context(ctx)?.device())?;
    Ok(())
}

pub(crate) fn cuCtxGetId(call: &Call, ctx: CUcontext, ctx_id: Out<c_ulonglong>) -> Answer {
    ctx_id.put(call.driver()?.context(ctx)?.number)?;
    Ok(())
}

pub(crate) fn cuCtxGetApiVersion(call: &Call, ctx: CUcontext, version: Out<c_uint>) -> Answer {
    version.put(call.driver()?.context(ctx)?.api_version)?;
    Ok(())
}

pub(crate) fn cuCtxGetFlags(call: &Call, flags: Out<c_uint>) -> Answer {
    flags.put(call.driver()?.current()?.flags.load(Ordering::Relaxed))?;
    Ok(())
}

pub(crate) fn cuCtxSetFlags(call: &Call, flags: c_uint) -> Answer {
    call.driver()?.current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxSynchronize(call: &Call) -> Answer {
    cuCtxSynchronize_v2(call, CUcontext::NULL)
}

pub(crate) fn cuCtxSynchronize_v2(call: &Call, ctx: CUcontext) -> Answer {
    let driver = call.driver()?;
    driver.machine.synchronize_context(driver.context(ctx)?.id)?;
    Ok(())
}

/// Returns a limit's default; `None` if the GPU has no such limit.
fn default_limit(limit: CUlimit) -> Option<usize> {
    Some(match limit {
        CU_LIMIT_STACK_SIZE => 1024,
        CU_LIMIT_PRINTF_FIFO_SIZE => 7 << 20,
        CU_LIMIT_MALLOC_HEAP_SIZE => 8 << 20,
        CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => 2,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => 2048,
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY => 64,
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE => 0,
        _ => return None,
    })
}

/// Returns the GPU memory that a limit takes, in bytes: a stack for each thread that can be
/// resident, a buffer once.
fn footprint(driver: &Driver, context: &Context, limit: CUlimit, value: usize) -> u64 {
    let model = &driver.machine.gpus()[context.gpu].model;
    let value = value as u64;
    let bytes = match limit {
        CU_LIMIT_STACK_SIZE => {
            let threads = model.multiprocessors.saturating_mul(model.threads_per_multiprocessor);
            value.saturating_mul(threads.into())
        }
        CU_LIMIT_PRINTF_FIFO_SIZE | CU_LIMIT_MALLOC_HEAP_SIZE => value,
        _ => 0,
    };
    bytes.checked_next_multiple_of(2 << 20).unwrap_or(u64::MAX)
}

pub(crate) fn cuCtxGetLimit(call: &Call, pvalue: Out<usize>, limit: CUlimit) -> Answer {
    let context = call.driver()?.current()?;
    let default = default_limit(limit).ok_or(UNSUPPORTED_LIMIT)?;
    pvalue.put(lock(&context.limits).get(&limit).copied().unwrap_or(default))?;
    Ok(())
}

pub(crate) fn cuCtxSetLimit(call: &Call, limit: CUlimit, value: usize) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let default = default_limit(limit).ok_or(UNSUPPORTED_LIMIT)?;
    let mut limits = lock(&context.limits);
    let former = limits.get(&limit).copied().unwrap_or(default);
    // The memory of the defaults is part of the context's own.
    let size = |value: usize| footprint(driver, &context, limit, value.max(default));
    let (before, after) = (size(former), size(value));
    if after > before {
        driver.machine.enlarge_context(context.id, Bytes(after - before))?;
    } else {
        driver.machine.shrink_context(context.id, Bytes(before - after))?;
    }
    limits.insert(limit, value);
    Ok(())
}

pub(crate) fn cuCtxGetCacheConfig(call: &Call, pconfig: Out<CUfunc_cache>) -> Answer {
    pconfig.put(call.driver()?.current()?.cache.load(Ordering::Relaxed))?;
    Ok(())
}

pub(crate) fn cuCtxSetCacheConfig(call: &Call, config: CUfunc_cache) -> Answer {
    call.driver()?.current()?.cache.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetSharedMemConfig(call: &Call, config: Out<CUsharedconfig>) -> Answer {
    config.put(call.driver()?.current()?.banks.load(Ordering::Relaxed))?;
    Ok(())
}

pub(crate) fn cuCtxSetSharedMemConfig(call: &Call, config: CUsharedconfig) -> Answer {
    call.driver()?.current()?.banks.store(config, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn cuCtxGetStreamPriorityRange(
    call: &Call,
    least_priority: Out<c_int>,
    greatest_priority: Out<c_int>,
) -> Answer {
    call.driver()?.current()?;
    least_priority.put_if_not_null(0);
    greatest_priority.put_if_not_null(cgpu_sim::machine::GREATEST_PRIORITY);
    Ok(())
}

pub(crate) fn cuCtxGetExecAffinity(
    call: &Call,
    exec_affinity: Out<CUexecAffinityParam>,
    kind: CUexecAffinityType,
) -> Answer {
    let driver = call.driver()?;
    let context = driver.current()?;
    let sm_count = driver.machine.gpus()[context.gpu].multiprocessors();
    exec_affinity.put(CUexecAffinityParam { kind, sm_count })?;
    Ok(())
}

pub(crate) fn cuCtxResetPersistingL2Cache(call: &Call) -> Answer {
    call.driver()?.current()?;
    Ok(())
}

pub(crate) fn cuCtxEnablePeerAccess(
    call: &Call,
    peer_context: CUcontext,
    _flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    find(driver, peer_context)?;
    Err(PEER_ACCESS_UNSUPPORTED)
}

pub(crate) fn cuCtxDisablePeerAccess(call: &Call, peer_context: CUcontext) -> Answer {
    let driver = call.driver()?;
    driver.current()?;
    find(driver, peer_context)?;
    Err(PEER_ACCESS_NOT_ENABLED)
}
