//! Linear memory between processes by handles that are bytes: its maker pays as long as any process
//! has it open.

use cgpu_abi::types::{CUdeviceptr, CUipcMemHandle, CUresult, c_uint};
use cgpu_memory::{Address, Bytes, Context, Reason, Route, Tenant};

use crate::current::current;
use crate::driver;
use crate::process;

/// From now on others may open it.
pub(crate) unsafe fn cuIpcGetMemHandle(
    handle: *mut CUipcMemHandle,
    address: CUdeviceptr,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuIpcGetMemHandle(handle, address) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
        // SAFETY: the driver has just written there.
        export(tenant, address, route(&unsafe { handle.read() }));
    }
    answer
}

/// Costs nothing; that it is open is said, so that its maker pays on.
pub(crate) unsafe fn cuIpcOpenMemHandle(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuIpcOpenMemHandle(address, handle, flags) };
    // SAFETY: read after the driver has succeeded, so it has written there.
    open(route(&handle), call, || (unsafe { address.read() }, process::tenant().and_then(current)))
}

/// The same, where it may be memory of another GPU.
pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuIpcOpenMemHandle_v2(address, handle, flags) };
    // SAFETY: read after the driver has succeeded, so it has written there.
    open(route(&handle), call, || (unsafe { address.read() }, process::tenant().and_then(current)))
}

/// What was opened as often as this is closed, is no longer open.
pub(crate) unsafe fn cuIpcCloseMemHandle(address: CUdeviceptr) -> CUresult {
    let closing =
        process::tenant().and_then(|tenant| tenant.exports().begin_close(Address(address)));
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuIpcCloseMemHandle(address) };
    if let (CUresult::SUCCESS, Some(closing)) = (answer, closing) {
        closing.closed();
    }
    answer
}

/// Makes a call that opens memory of another process. `opened` tells where, and in which context if
/// it goes with that.
pub(super) fn open(
    route: Route,
    call: impl FnOnce() -> CUresult,
    opened: impl FnOnce() -> (CUdeviceptr, Option<Context>),
) -> CUresult {
    let tenant = tenant_or_return!(call());
    tenant.count(Reason::Imported);
    // Before the call: a process that asks after it has let the memory go sees that it is held
    // here.
    let opening = tenant.exports().begin_import(route);
    let answer = call();
    if answer == CUresult::SUCCESS {
        let (address, context) = opened();
        opening.opened(Address(address), context);
    }
    answer
}

/// The allocation in which an address lies may be held by others.
pub(super) fn export(tenant: &Tenant, address: CUdeviceptr, route: Route) {
    let (base, _) = extent(address);
    tenant.exports().export(base, route);
}

/// A descriptor holds the allocation in which an address lies, be it ours or open here. How large
/// that is, if the driver says.
pub(super) fn export_descriptor(tenant: &Tenant, address: CUdeviceptr) -> Bytes {
    let (base, size) = extent(address);
    tenant.exports().export(base, Route::UNTRACKED);
    tenant.exports().pin(base);
    size
}

/// Where the allocation begins in which an address lies, and its size.
fn extent(address: CUdeviceptr) -> (Address, Bytes) {
    let (mut base, mut size) = (0, 0);
    // SAFETY: both are writable.
    let answer = unsafe { driver::cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address) };
    if answer == CUresult::SUCCESS {
        (Address(base), Bytes(size as u64))
    } else {
        (Address(address), Bytes::ZERO)
    }
}

fn route(handle: &CUipcMemHandle) -> Route {
    Route::of_bytes(&handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
}
