//! The page that the card writes.
//!
//! It is registered once, with the first context that wants to write it. Other contexts do without (their events are asked instead):
//! the registration goes with its context, and a write that came after it would be an error of the program's.

use core::ptr;

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_proto::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_proto::layout::Progress;
use cgpu_tenant::gate::Driver;

use super::markers::{Markers, relaxed};
use crate::library::DRIVER;
use crate::{driver, process};

/// Memory that the card can reach (`CU_MEMHOSTREGISTER_DEVICEMAP`).
const DEVICE_MAP: c_uint = 2;

/// Nobody has registered the page.
const NOBODY: usize = 0;
/// A thread is at it, or it cannot be done. No driver's handle is odd.
const BARRED: usize = 1;

/// The context with which the page is registered.
static CONTEXT: AtomicUsize = AtomicUsize::new(NOBODY);
/// The page's address as the card knows it, when `CONTEXT` is a context.
static ADDRESS: AtomicU64 = AtomicU64::new(0);

/// The address of a word, for streams of this context; none where they cannot write it.
pub(super) fn address(markers: &Markers, word: usize) -> Option<CUdeviceptr> {
    // HB registration: Acquire meets the Release below: the address is there.
    let known = CONTEXT.load(Ordering::Acquire);
    if known == NOBODY {
        register(markers);
    }
    // HB registration: as above.
    let mine = CONTEXT.load(Ordering::Acquire) == markers.context.0;
    mine.then(|| ADDRESS.load(Ordering::Relaxed) + word as u64 * 8)
}

/// A context is going.
pub(super) fn forget(context: CUcontext) {
    // Whoever finds it gone registers the page anew.
    let _ = CONTEXT.compare_exchange(context.0, NOBODY, Ordering::AcqRel, Ordering::Relaxed);
}

/// This process's page is another one from now on (in a forked child), or is registered for the first time.
pub(super) fn reset() {
    CONTEXT.store(NOBODY, Ordering::Release);
}

#[cold]
fn register(markers: &Markers) {
    if !markers.may_ask()
        || CONTEXT.compare_exchange(NOBODY, BARRED, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return;
    }
    if let Some(address) = find(markers) {
        ADDRESS.store(address, Ordering::Relaxed);
        // HB registration: Release publishes the address.
        CONTEXT.store(markers.context.0, Ordering::Release);
    }
}

fn find(markers: &Markers) -> Option<CUdeviceptr> {
    let tenant = process::tenant().filter(|_| markers.can_write())?;
    let page = tenant.region().shared().progress.get(tenant.name().slot().get())?;
    let page = ptr::from_ref(page).cast_mut().cast::<c_void>();
    // SAFETY: the page stays mapped as long as the process lives.
    relaxed(|| unsafe { driver::cuMemHostRegister_v2(page, size_of::<Progress>(), DEVICE_MAP) }).ok()?;
    let mut address = 0;
    // SAFETY: the address is writable, and the page was just registered.
    relaxed(|| unsafe { driver::cuMemHostGetDevicePointer_v2(&raw mut address, page, 0) }).ok()?;
    Some(address)
}

impl Markers {
    /// Whether the context's card can write to the host in stream order.
    fn can_write(&self) -> bool {
        let (mut device, mut can) = (0, 0);
        let known = !DRIVER.known(driver_index::cuStreamWriteValue64_v2).is_null();
        // SAFETY: the device is writable.
        known && unsafe { driver::cuCtxGetDevice(&raw mut device) } == CUresult::SUCCESS && {
            let attribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
            // SAFETY: the value is writable.
            let answer = unsafe { driver::cuDeviceGetAttribute(&raw mut can, attribute, device) };
            answer == CUresult::SUCCESS && can != 0
        }
    }
}
