//! The words that the GPU writes when it reaches a marker: a page for each context.
//!
//! A page is registered in the context whose streams write it, and the registration ends with that
//! context. With one page for several contexts, writes of the others would fault when one is
//! destroyed. Pages are never unmapped and are reused for other contexts: numbers in them only
//! grow.

use core::ptr;

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_launch::gate::Driver;
use cgpu_shm::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::markers::{Markers, relaxed};
use crate::current::current_device;
use crate::library::DRIVER;
use crate::state::map_zeros;
use crate::{driver, gpus};

#[repr(C)]
struct Progress {
    word: [AtomicU64; 512],
}

/// Makes host memory accessible to the GPU (`CU_MEMHOSTREGISTER_DEVICEMAP`).
const DEVICE_MAP: c_uint = 2;

/// The page belongs to no context.
const FREE: usize = 0;
/// A thread is registering the page. No handle of the driver is odd.
const BUSY: usize = 1;

struct Page {
    context: AtomicUsize,
    /// The words; null: not allocated yet.
    words: AtomicPtr<Progress>,
    /// Address at which the context's streams write; 0: they cannot.
    address: AtomicU64,
}

/// Contexts beyond this number have no page: their events are queried.
static PAGES: [Page; 16] = [const {
    Page {
        context: AtomicUsize::new(FREE),
        words: AtomicPtr::new(ptr::null_mut()),
        address: AtomicU64::new(0),
    }
}; 16];

/// Returns the device address of a word for streams of this context, or none if they cannot write
/// it.
pub(super) fn address(markers: &Markers, word: usize) -> Option<CUdeviceptr> {
    let page = find(markers.context.0).or_else(|| register(markers))?;
    let address = page.address.load(Ordering::Relaxed);
    (address != 0).then(|| address + word as u64 * 8)
}

/// Returns the value last written to a word of this context's page.
pub(super) fn written(context: usize, word: usize) -> u64 {
    let Some(page) = find(context) else { return 0 };
    // SAFETY: null, or a page from `map_zeros`, which is never unmapped.
    let words = unsafe { page.words.load(Ordering::Relaxed).as_ref() };
    // Acquire: later reads are not older than the write.
    words.and_then(|page| page.word.get(word)).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Frees the page of a context that is being destroyed.
pub(super) fn forget(context: CUcontext) {
    if let Some(page) = find(context.0) {
        // HB page: Release; the thread that takes it next sees what was written before.
        page.context.store(FREE, Ordering::Release);
    }
}

/// Forgets all pages: at the start, and in a forked child, where none is registered.
pub(super) fn reset() {
    for page in &PAGES {
        page.words.store(ptr::null_mut(), Ordering::Relaxed);
        page.address.store(0, Ordering::Relaxed);
        page.context.store(FREE, Ordering::Release);
    }
}

fn find(context: usize) -> Option<&'static Page> {
    // HB page: Acquire meets the Release of `register`: the address is visible.
    PAGES.iter().find(|page| page.context.load(Ordering::Acquire) == context)
}

#[cold]
fn register(markers: &Markers) -> Option<&'static Page> {
    if !markers.may_query() {
        return None;
    }
    let take = |page: &&Page| {
        page.context.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let page = PAGES.iter().find(take)?;
    // Another thread may have registered a page for the same context meanwhile. One of the two is
    // found; the other is unused until the context is destroyed.
    page.address.store(map(markers, page).unwrap_or(0), Ordering::Relaxed);
    // HB page: Release publishes the address.
    page.context.store(markers.context.0, Ordering::Release);
    Some(page)
}

fn map(markers: &Markers, page: &Page) -> Option<CUdeviceptr> {
    if !markers.can_write() {
        return None;
    }
    let mut words = page.words.load(Ordering::Relaxed);
    if words.is_null() {
        words = map_zeros(size_of::<Progress>())?.cast();
        page.words.store(words, Ordering::Relaxed);
    }
    let place = words.cast::<c_void>();
    // SAFETY: the range is one page from `map_zeros`, which is never unmapped.
    relaxed(|| unsafe { driver::cuMemHostRegister_v2(place, size_of::<Progress>(), DEVICE_MAP) })
        .ok()?;
    let mut address = 0;
    // SAFETY: the address is writable, and the page was just registered.
    relaxed(|| unsafe { driver::cuMemHostGetDevicePointer_v2(&raw mut address, place, 0) }).ok()?;
    Some(address)
}

impl Markers {
    /// Returns whether the context's GPU can write to the host in stream order.
    fn can_write(&self) -> bool {
        const CAN: CUdevice_attribute = CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        !DRIVER.address(driver_index::cuStreamWriteValue64_v2).is_null()
            && current_device()
                .and_then(|device| gpus::driver_attribute(device, CAN))
                .is_ok_and(|can| can != 0)
    }
}
