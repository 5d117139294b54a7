//! Linear memory shared between processes by opaque handles: the allocating process is charged as
//! long as any process has it open.

use cgpu_abi::types::{CUdeviceptr, CUipcMemHandle, CUresult, c_uint};
use cgpu_memory::{Address, Bytes, Context, Reason, Route, Tenant};

use super::answer::recorded;
use crate::current::current;
use crate::driver;
use crate::process;

hooks! { call;
    // Records that other processes may open the memory.
    cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) =>
        recorded(call(), |tenant| {
            // SAFETY: the driver has just written there.
            export(tenant, address, route(&unsafe { handle.read() }));
        });

    // Cost nothing. That the memory is open is published, so that its owner stays charged. With the
    // second it may be on another GPU.
    cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2(
        address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint,
    ) => {
        // SAFETY: read after the driver has succeeded, so it has written there.
        let opened = || (unsafe { address.read() }, process::tenant().and_then(current));
        open(route(&handle), call, opened)
    };
}

/// Memory that was closed as often as it was opened is no longer open.
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

/// Makes a call that opens memory of another process. `opened` returns the address, and the context
/// if the mapping ends with one.
pub(super) fn open(
    route: Route,
    call: impl FnOnce() -> CUresult,
    opened: impl FnOnce() -> (CUdeviceptr, Option<Context>),
) -> CUresult {
    let tenant = tenant_or_return!(call());
    tenant.count(Reason::Imported);
    // Before the call: the owner, if it frees the memory and then checks, sees that it is open
    // here.
    let opening = tenant.exports().begin_import(route);
    let answer = call();
    if answer == CUresult::SUCCESS {
        let (address, context) = opened();
        opening.opened(Address(address), context);
    }
    answer
}

/// Records that other processes may hold the allocation that contains an address.
pub(super) fn export(tenant: &Tenant, address: CUdeviceptr, route: Route) {
    let (base, _) = extent(address);
    tenant.exports().export(base, route);
}

/// Records that a descriptor holds the allocation that contains an address, owned or opened here.
/// Returns its size, if the driver reports it.
pub(super) fn export_descriptor(tenant: &Tenant, address: CUdeviceptr) -> Bytes {
    let (base, size) = extent(address);
    tenant.exports().export(base, Route::UNTRACKED);
    tenant.exports().pin(base);
    size
}

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
