//! Green contexts: views of the primary context, to which they hold a reference. Allocations in one
//! are the primary context's. What they take themselves is implicit memory of it, measured at
//! creation.

use cgpu_abi::types::*;
use cgpu_memory::{Bytes, Cause, Context, ContextId, GreenId, Tenant};

use super::answer::recorded;
use super::{context, module};
use crate::process;
use crate::{driver, free};

/// The first one creates the primary context if there is none. That is done here before, so that
/// each is measured and refused separately.
pub(crate) unsafe fn cuGreenCtxCreate(
    green: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuGreenCtxCreate(green, description, device, flags) };
    let tenant = tenant_or_return!(call());
    let mut whole = CUcontext::NULL;
    // SAFETY: the handle is writable; the device is the program's argument.
    let retained = unsafe { context::cuDevicePrimaryCtxRetain(&raw mut whole, device) };
    if retained != CUresult::SUCCESS {
        return retained;
    }
    let answer = match tenant.contexts().find(ContextId(whole.0)) {
        // SAFETY: called after the driver has succeeded, so it has written there.
        Some(context) => make(tenant, (whole, context), call, || unsafe { green.read() }),
        None => call(),
    };
    // SAFETY: no obligations. Releases the reference taken above: a green context holds its own.
    let _ = unsafe { context::cuDevicePrimaryCtxRelease_v2(device) };
    answer
}

fn make(
    tenant: &Tenant,
    (whole, context): (CUcontext, Context),
    call: impl Fn() -> CUresult,
    made: impl Fn() -> CUgreenCtx,
) -> CUresult {
    // SAFETY: the driver returned the handle, and the program has not seen it.
    let undo = || unsafe { driver::cuGreenCtxDestroy(made()) };
    let free = || free::of_context(whole);
    let answer =
        module::make(tenant, context, Bytes::ZERO, free, call, undo, || Cause::Green(made().0));
    if answer == CUresult::SUCCESS {
        tenant.green_contexts().made(GreenId(made().0), context);
    }
    answer
}

/// The last one destroys the primary context if nothing else holds that.
pub(crate) unsafe fn cuGreenCtxDestroy(green: CUgreenCtx) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuGreenCtxDestroy(green) };
    let Some(tenant) = process::tenant() else { return call() };
    let gpu = tenant.green_contexts().gpu(GreenId(green.0));
    let Some(device) = gpu.and_then(|gpu| process::devices(tenant).of_gpu(gpu)) else {
        return call();
    };
    context::release(device, || {
        let _going = tenant.implicit().begin_unload(Cause::Green(green.0));
        let answer = call();
        if answer == CUresult::SUCCESS {
            tenant.green_contexts().destroyed(GreenId(green.0));
            tenant.implicit().unloaded(Cause::Green(green.0), None, Bytes::MAX);
        }
        answer
    })
}

/// Returns a green context as a context.
pub(crate) unsafe fn cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) -> CUresult {
    // SAFETY: the program's own call.
    recorded(unsafe { driver::cuCtxFromGreenCtx(context, green) }, |tenant| {
        // SAFETY: the driver has just written there.
        tenant.green_contexts().seen(GreenId(green.0), ContextId(unsafe { context.read() }.0));
    })
}
