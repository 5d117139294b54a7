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
    let mut context = CUcontext::NULL;
    // SAFETY: the handle is writable.
    let answer = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    (answer == CUresult::SUCCESS && !context.is_null()).then_some(context)
}

#[inline]
pub(crate) fn known(tenant: &Tenant, current: CUcontext) -> Option<Context> {
    tenant.contexts().find(ContextId(current.0)).or_else(|| adopt(tenant, current))
}

/// Registers a context whose creation was not seen.
#[cold]
fn adopt(tenant: &Tenant, context: CUcontext) -> Option<Context> {
    let mut device = DriverOrdinal::default();
    // SAFETY: the device is writable.
    if unsafe { driver::cuCtxGetDevice(&raw mut device.0) } != CUresult::SUCCESS {
        tenant.count(Reason::ForeignContext);
        return None;
    }
    let Some(gpu) = process::devices(tenant).gpu(device) else {
        tenant.count(Reason::NativeGpu);
        return None;
    };
    Some(tenant.contexts().adopt(ContextId(context.0), gpu))
}
