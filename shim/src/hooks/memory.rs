//! Linear memory: charged before the driver's call, committed after it, refunded if the driver
//! refuses.

use cgpu_abi::types::{CUdeviceptr, CUdeviceptr_v1, CUresult, c_uint};
use cgpu_memory::{Address, Bytes, DeviceIndex, MemoryInfo, Tenant, WaitBudget};
use tracing::debug;

use super::answer::denied;
use super::synchronise::refresh_pools;
use crate::current::current;
use crate::driver;
use crate::free::reported;
use crate::process;

/// First guess of the pitch's granularity; the driver returns the real one.
const PITCH: u64 = 512;

hooks! { call;
    // 32-bit sizes and addresses.
    cuMemAlloc(address: *mut CUdeviceptr_v1, size: c_uint) => {
        // SAFETY: read after the driver has succeeded, so it has written there.
        allocate(Bytes(size.into()), call, || u64::from(unsafe { address.read() }))
    };

    // Linear memory.
    cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) => {
        // SAFETY: read after the driver has succeeded, so it has written there.
        allocate(Bytes(size as u64), call, || unsafe { address.read() })
    };

    // 32-bit sizes and addresses.
    cuMemAllocPitch(
        address: *mut CUdeviceptr_v1, pitch: *mut c_uint, width: c_uint, height: c_uint,
        element: c_uint,
    ) => {
        // SAFETY: read after the driver has succeeded, so it has written there.
        let made = || (u64::from(unsafe { address.read() }), u64::from(unsafe { pitch.read() }));
        // SAFETY: the driver returned the address, and the program has not seen it.
        let unmake =
            |address| unsafe { driver::cuMemFree(CUdeviceptr_v1::try_from(address).unwrap_or(0)) };
        allocate_pitched(width.into(), height.into(), call, made, unmake)
    };

    // Allocates rows of equal pitch.
    cuMemAllocPitch_v2(
        address: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint,
    ) => {
        // SAFETY: read after the driver has succeeded, so it has written there.
        let made = || (unsafe { address.read() }, unsafe { pitch.read() } as u64);
        // SAFETY: the driver returned the address, and the program has not seen it.
        let unmake = |address| unsafe { driver::cuMemFree_v2(address) };
        allocate_pitched(width as u64, height as u64, call, made, unmake)
    };

    // 32-bit addresses.
    cuMemFree(address: CUdeviceptr_v1) => free(address.into(), call);

    // Refunds the memory at the address; an unknown one still goes to the driver.
    cuMemFree_v2(address: CUdeviceptr) => free(address, call);
}

/// 32-bit sizes.
pub(crate) unsafe fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuMemGetInfo(free, total) };
    // The GPU's free memory may exceed 32 bits.
    if let (CUresult::SUCCESS, Some(view)) = (answer, view(None)) {
        let clamp = |bytes: Bytes| c_uint::try_from(bytes.0).unwrap_or(c_uint::MAX);
        // SAFETY: null, or the driver has just written there.
        unsafe { write(free, clamp(view.free)) };
        // SAFETY: as above.
        unsafe { write(total, clamp(view.total)) };
    }
    answer
}

/// Total is the limit, free is what is left of it.
pub(crate) unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the program's own call; the driver handles null pointers.
    let answer = unsafe { driver::cuMemGetInfo_v2(free, total) };
    if answer != CUresult::SUCCESS {
        return answer;
    }
    // SAFETY: null, or the driver has just written there.
    let physical = unsafe { free.as_ref() }.map_or(Bytes::MAX, |free| Bytes(*free as u64));
    if let Some(view) = view(Some(physical)) {
        let clamp = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
        // SAFETY: null, or the driver has just written there.
        unsafe { write(free, clamp(view.free)) };
        // SAFETY: as above.
        unsafe { write(total, clamp(view.total)) };
    }
    answer
}

/// Charges `size`, makes the call, and commits the charge for the address that `made` returns.
fn allocate(size: Bytes, call: impl Fn() -> CUresult, made: impl FnOnce() -> u64) -> CUresult {
    let tenant = tenant_or_return!(call());
    let Some(context) = current(tenant) else {
        return call();
    };
    let charge = match tenant.charge(context.gpu(), size) {
        Ok(charge) => charge,
        Err(over) => return denied(over),
    };
    debug!(
        gpu = context.gpu().get(),
        requested = size.0,
        charged = charge.bytes().0,
        "memory charged"
    );
    let answer = call_retrying(tenant, context.gpu(), call);
    debug!(result = answer.0, "driver called for memory");
    if answer == CUresult::SUCCESS {
        let address = made();
        let recorded = charge.commit(Address(address), Some(context));
        debug!("memory at {address:#x}: {recorded:?}");
    }
    answer
}

/// Allocates memory whose size only the driver's answer shows. If the first guess was too small,
/// frees the memory and repeats the call with the right charge, so no excess is left when the call
/// returns.
fn allocate_pitched(
    width: u64,
    height: u64,
    call: impl Fn() -> CUresult,
    made: impl Fn() -> (u64, u64),
    unmake: impl Fn(u64) -> CUresult,
) -> CUresult {
    let tenant = tenant_or_return!(call());
    let Some(context) = current(tenant) else {
        return call();
    };
    let mut pitch = width.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX);
    loop {
        let charge = match tenant.charge(context.gpu(), Bytes(pitch.saturating_mul(height))) {
            Ok(charge) => charge,
            Err(over) => return denied(over),
        };
        let answer = call_retrying(tenant, context.gpu(), &call);
        if answer != CUresult::SUCCESS {
            return answer;
        }
        let (address, chosen) = made();
        if chosen.saturating_mul(height) <= charge.bytes().0 {
            charge.commit(Address(address), Some(context));
            return answer;
        }
        // It grows each time, so the loop ends.
        let _ = unmake(address);
        pitch = chosen;
    }
}

/// Makes the call, and repeats it while memory of a process that has just exited is not yet free.
pub(super) fn call_retrying(
    tenant: &Tenant,
    gpu: DeviceIndex,
    call: impl Fn() -> CUresult,
) -> CUresult {
    call_retrying_on(tenant, || Some(gpu), call)
}

/// Does the same on a GPU that may only be known after the call; none: the call is not repeated.
pub(super) fn call_retrying_on(
    tenant: &Tenant,
    gpu: impl Fn() -> Option<DeviceIndex>,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let mut budget = WaitBudget::default();
    loop {
        let answer = call();
        if answer != CUresult::ERROR_OUT_OF_MEMORY
            || !gpu().is_some_and(|gpu| tenant.should_retry(gpu, &mut budget))
        {
            return answer;
        }
    }
}

pub(super) fn free(address: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(tenant) = process::tenant().filter(|_| address != 0) else { return call() };
    // It may be a pool's allocation if there are pools; those are not in the table.
    let pooled = tenant.pools().any();
    let taken = if pooled {
        tenant.allocations().begin_free_if_known(Address(address))
    } else {
        tenant.allocations().begin_free(Address(address))
    };
    let Some(taken) = taken else { return free_unrecorded(tenant, address, pooled, call) };
    let answer = call();
    // A refused free is put back into the table first: meanwhile its address is unknown.
    if answer == CUresult::SUCCESS {
        taken.freed()
    } else {
        drop(taken)
    }
    debug!(result = answer.0, "driver called to free {address:#x}");
    trimmed_after(answer, pooled)
}

/// Frees what is not in the table of addresses. An allocation imported from another process's pool
/// is freed like one's own.
#[inline(never)]
fn free_unrecorded(
    tenant: &Tenant,
    address: u64,
    pooled: bool,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let closing = tenant.exports().begin_close(Address(address));
    let answer = call();
    if let (CUresult::SUCCESS, Some(closing)) = (answer, closing) {
        closing.closed();
    }
    trimmed_after(answer, pooled)
}

/// Updates the pools after a free: it has waited for the GPU, and pools are trimmed then. A refused
/// one may have waited, too.
#[inline]
fn trimmed_after(answer: CUresult, pooled: bool) -> CUresult {
    if pooled { refresh_pools(answer) } else { answer }
}

/// Returns the current GPU as the program sees it. `physical` is the free memory that the driver
/// has just reported, if known; otherwise the driver is queried.
fn view(physical: Option<Bytes>) -> Option<MemoryInfo> {
    let tenant = process::tenant()?;
    let gpu = current(tenant)?.gpu();
    tenant.view().memory(gpu, physical.or_else(reported)?)
}

/// Writes a value for the program.
///
/// # Safety
///
/// `place` is null or writable.
unsafe fn write<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(value) };
    }
}
