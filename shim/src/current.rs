//! The context in which the calling thread works.

use cgpu_abi::types::{CUcontext, CUresult};
use cgpu_memory::{Context, ContextId, Reason, Tenant};

use crate::devices::DriverOrdinal;
use crate::{driver, process};

/// The context in which the calling thread works, if it is of an accounted GPU. The driver is
/// asked: a runtime may have made it current by a way of its own.
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

/// What the current context's handle stands for.
#[inline]
pub(crate) fn known(tenant: &Tenant, current: CUcontext) -> Option<Context> {
    tenant.contexts().find(ContextId(current.0)).or_else(|| take_up(tenant, current))
}

/// A context whose making we have not seen.
#[cold]
fn take_up(tenant: &Tenant, context: CUcontext) -> Option<Context> {
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
