//! Contexts: each takes implicit memory of its GPU, and everything in it is freed with it.

use cgpu_abi::types::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult, c_int, c_uint,
};
use cgpu_memory::{ContextId, Reason};
use tracing::debug;

use super::answer::{denied, recorded};
use super::memory::call_retrying;
use super::synchronise::refresh_pools;
use crate::current::{current_handle, known};
use crate::devices::DriverOrdinal;
use crate::free::Gauge;
use crate::process;
use crate::{driver, gate};

hooks! { call;
    // The second has 64-bit addresses.
    cuCtxCreate, cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) => {
        // SAFETY: if `call` succeeds, it has written to the program's handle.
        unsafe { create(context, DriverOrdinal(device), call) }
    };

    // With affinity.
    cuCtxCreate_v3(
        context: *mut CUcontext, affinities: *mut CUexecAffinityParam, count: c_int, flags: c_uint,
        device: CUdevice,
    ) => {
        // SAFETY: if `call` succeeds, it has written to the program's handle.
        unsafe { create(context, DriverOrdinal(device), call) }
    };

    // With a record of parameters.
    cuCtxCreate_v4(
        context: *mut CUcontext, parameters: *mut CUctxCreateParams, flags: c_uint,
        device: CUdevice,
    ) => {
        // SAFETY: if `call` succeeds, it has written to the program's handle.
        unsafe { create(context, DriverOrdinal(device), call) }
    };

    // Everything in the context is freed with it.
    cuCtxDestroy, cuCtxDestroy_v2(context: CUcontext) => end(context, call);
}

/// Takes one more reference, which `cuCtxDetach` releases. It is counted before the call: otherwise
/// another thread's detach in between would count as the context's end.
pub(crate) unsafe fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuCtxAttach(context, flags) };
    let Some(tenant) = process::tenant() else { return call() };
    // It is the current one. Only the driver counts a primary context's uses.
    let attached = current_handle().filter(|current| device_of_primary(*current).is_none());
    let Some(attached) = attached.filter(|current| known(tenant, *current).is_some()) else {
        return call();
    };
    tenant.contexts().attached(ContextId(attached.0));
    let answer = call();
    if answer != CUresult::SUCCESS {
        // If another thread has meanwhile detached the last use, there is nothing to undo, and the
        // context stays accounted: its handle may already be another context's.
        tenant.contexts().detaching(ContextId(attached.0));
    }
    answer
}

/// Releases a reference; the last one destroys the context.
pub(crate) unsafe fn cuCtxDetach(context: CUcontext) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuCtxDetach(context) };
    if let Some(device) = device_of_primary(context) {
        // Only the driver counts a primary context's uses.
        return release(device, call);
    }
    let Some(tenant) =
        process::tenant().filter(|tenant| tenant.contexts().detaching(ContextId(context.0)))
    else {
        return end(context, call);
    };
    let answer = call();
    if answer != CUresult::SUCCESS {
        // The use has not ended. Uncounted, the end of another use would count as the context's
        // end.
        tenant.contexts().attached(ContextId(context.0));
    }
    answer
}

/// Takes one more reference to a device's primary context; the first one creates it.
///
/// # Safety
///
/// If `call` succeeds, it has written a handle to `context`.
unsafe fn retain(
    context: *mut CUcontext,
    device: DriverOrdinal,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let answer = if primary_is_active(device) {
        // SAFETY: guaranteed by the caller.
        unsafe { keep(context, device, call) }
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { create(context, device, call) }
    };
    recorded(answer, |tenant| {
        // SAFETY: the call has succeeded, so the caller guarantees a handle there.
        process::devices(tenant).set_primary(device, unsafe { context.read() });
    })
}

hooks! { call;
    // The first reference creates the context.
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) => {
        // SAFETY: if `call` succeeds, it has written to the program's handle.
        unsafe { retain(context, DriverOrdinal(device), call) }
    };

    // The last release destroys the context and frees everything in it.
    cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2(device: CUdevice) =>
        release(DriverOrdinal(device), call);

    // Everything in the context is freed; its references stay.
    cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2(device: CUdevice) =>
        end(primary(DriverOrdinal(device)), call);
}

/// Charges the known size of contexts on this GPU, and creates one.
///
/// # Safety
///
/// If `call` succeeds, it has written a handle to `context`.
unsafe fn create(
    context: *mut CUcontext,
    device: DriverOrdinal,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call());
    let Some(gpu) = process::devices(tenant).gpu(device) else {
        tenant.count(Reason::NativeGpu);
        return call();
    };
    let gauge = Gauge::new(tenant, gpu, device);
    let starting = match tenant.contexts().begin_create(gpu, || gauge.before()) {
        Ok(starting) => starting,
        Err(over) => return denied(over),
    };
    let answer = call_retrying(tenant, gpu, call);
    if answer == CUresult::SUCCESS {
        // SAFETY: the call has succeeded, so the caller guarantees a handle there.
        let made = unsafe { context.read() };
        starting.created(ContextId(made.0), || gauge.after(made));
        debug!(gpu = gpu.get(), "context {:#x} created", made.0);
    }
    answer
}

/// Takes one more reference to an existing context, which costs nothing.
///
/// # Safety
///
/// If `call` succeeds, it has written a handle to `context`.
unsafe fn keep(
    context: *mut CUcontext,
    device: DriverOrdinal,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call());
    let answer = call();
    if answer == CUresult::SUCCESS
        && let Some(gpu) = process::devices(tenant).gpu(device)
    {
        // SAFETY: the call has succeeded, so the caller guarantees a handle there.
        let kept = ContextId(unsafe { context.read() }.0);
        if tenant.contexts().find(kept).is_none() {
            tenant.contexts().adopt(kept, gpu);
        }
    }
    answer
}

/// Destroys a context. Refunds it before the call, because the driver may give the handle to
/// another thread before the call returns here.
fn end(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let leaving =
        process::tenant().and_then(|tenant| tenant.contexts().begin_destroy(ContextId(context.0)));
    gate::forget_context(context);
    let answer = call();
    if let (CUresult::SUCCESS, Some(leaving)) = (answer, leaving) {
        leaving.destroyed();
    }
    refresh_pools(answer)
}

/// Releases a primary context. Only the last release ends it, which is known only afterwards; until
/// then other threads may allocate in it.
pub(super) fn release(device: DriverOrdinal, call: impl FnOnce() -> CUresult) -> CUresult {
    let context = primary(device);
    let answer = call();
    if answer == CUresult::SUCCESS && !primary_is_active(device) {
        end(context, || answer)
    } else {
        answer
    }
}

pub(super) fn primary(device: DriverOrdinal) -> CUcontext {
    process::tenant().map_or(CUcontext::NULL, |tenant| process::devices(tenant).primary(device))
}

fn device_of_primary(context: CUcontext) -> Option<DriverOrdinal> {
    let devices = process::devices(process::tenant()?);
    devices.all().find(|device| !context.is_null() && devices.primary(*device) == context)
}

fn primary_is_active(device: DriverOrdinal) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both are writable.
    let answer =
        unsafe { driver::cuDevicePrimaryCtxGetState(device.0, &raw mut flags, &raw mut active) };
    answer == CUresult::SUCCESS && active != 0
}
