//! The context of the calling thread.

use cgpu_abi::types::{CUcontext, CUresult};
use cgpu_memory::{Context, ContextId, Reason, Tenant};

use crate::devices::DriverOrdinal;
use crate::{driver, process};

/// Returns the thread's context if its GPU is accounted. Queries the driver, because a runtime may
/// have made a context current by internal calls.
#[inline]
pub(crate) fn current(tenant: &Tenant) -> Option<Context> {
    let Some(context) = current_handle() else {
        tenant.count(Reason::ForeignContext);
        return None;
    };
    known(tenant, context)
}

#[inline]
pub(crate) fn current_handle() -> Option<CUcontext> {
    // SAFETY: the handle is writable.
    let context = driver::get(|context| unsafe { driver::cuCtxGetCurrent(context) });
    context.ok().filter(|context| !context.is_null())
}

/// Returns the current context's device, or the driver's error.
pub(crate) fn current_device() -> Result<DriverOrdinal, CUresult> {
    // SAFETY: the device is writable.
    driver::get(|device| unsafe { driver::cuCtxGetDevice(device) }).map(DriverOrdinal)
}

/// Makes the context current that was so before the last push.
pub(crate) fn pop() {
    // SAFETY: the handle is writable. The result does not matter.
    let _ = driver::get(|popped| unsafe { driver::cuCtxPopCurrent_v2(popped) });
}

#[inline]
pub(crate) fn known(tenant: &Tenant, current: CUcontext) -> Option<Context> {
    tenant.contexts().find(ContextId(current.0)).or_else(|| adopt(tenant, current))
}

/// Registers a context whose creation was not seen.
#[cold]
fn adopt(tenant: &Tenant, context: CUcontext) -> Option<Context> {
    let Ok(device) = current_device() else {
        tenant.count(Reason::ForeignContext);
        return None;
    };
    let Some(gpu) = process::devices(tenant).gpu(device) else {
        tenant.count(Reason::NativeGpu);
        return None;
    };
    Some(tenant.contexts().adopt(ContextId(context.0), gpu))
}
