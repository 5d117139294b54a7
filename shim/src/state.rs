//! State of this process, and how a forked child starts without it.
//!
//! All state is reached through one page that the kernel wipes in a forked child
//! (`MADV_WIPEONFORK`). The check costs a plain load. A `vfork` child, which shares its parent's
//! memory, sees the parent's state, as it must. A forked child starts anew when it first
//! initialises the driver; the parent's state is left alone.
//!
//! ```text
//!   PAGE -> state -> null        not started: in this process cuInit has not been called
//!                 -> Off         no limit: every hook is the driver's function
//!                 -> Refused     the limits cannot be understood or kept: nothing is allocated
//!                 -> On          memory is accounted
//! ```

use core::ffi::c_void;
use core::ptr;

use cgpu_memory::{Reason, Refusal, Tenant, Uuid};
use cgpu_shm::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use cgpu_shm::layout::{EXPORT_TABLES, NamedCount};
use cgpu_shm::named_count;
use once_cell::race::OnceBox;

use crate::devices::Devices;

#[allow(clippy::large_enum_variant, reason = "there is one in a process's life")]
pub(crate) enum State {
    Off,
    Refused(Refusal),
    On(Tenant),
}

/// What triggers a start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A call of the driver, which is initialised.
    Driver,
    /// A call of NVML, which is initialised; the driver may not even be loaded.
    Nvml,
}

/// The page. A wiped page is valid: all zero.
#[repr(C, align(4096))]
struct Page {
    state: AtomicPtr<State>,
    devices: AtomicPtr<Devices>,
    announced: AtomicBool,
    nvml_tried: AtomicBool,
    /// Counts before there was a slot.
    counts: [AtomicU32; Reason::ALL.len()],
    export_tables: [NamedCount; EXPORT_TABLES],
}

/// Null until the first use. A child inherits the address.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The state if there can be no such page.
static WITHOUT_WIPE: OnceBox<State> = OnceBox::new();

/// Whether this process or one of its parents has started.
static EVER_STARTED: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn tenant() -> Option<&'static Tenant> {
    match get() {
        Some(State::On(tenant)) => Some(tenant),
        _ => None,
    }
}

#[inline]
pub(crate) fn get() -> Option<&'static State> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return WITHOUT_WIPE.get();
    }
    // SAFETY: not null, zero-initialised by `map`, and never unmapped.
    let page = unsafe { &*page };
    let state = page.state.load(Ordering::Acquire);
    // SAFETY: null, or a box that `publish_in` leaked.
    unsafe { state.as_ref() }
}

pub(crate) fn ever_started() -> bool {
    EVER_STARTED.load(Ordering::Relaxed)
}

/// Publishes the state that `decide` makes. Returns the published state, and whether it is that
/// one: another thread may have been first.
pub(crate) fn publish(decide: impl FnOnce() -> State) -> (&'static State, bool) {
    EVER_STARTED.store(true, Ordering::Relaxed);
    let state = decide();
    let Some(page) = page() else {
        return (WITHOUT_WIPE.get_or_init(|| Box::new(refuse_without_wipe(state))), false);
    };
    let (state, is_new) = publish_in(&page.state, state);
    if let (State::On(tenant), true) = (state, is_new) {
        transfer_counts(page, tenant);
    }
    (state, is_new)
}

/// Puts a value into an empty place, for good. Returns the place's value, and whether it is this
/// one: another thread may have been first. Only this function writes to such a place.
fn publish_in<T>(place: &AtomicPtr<T>, value: T) -> (&'static T, bool) {
    let value = Box::into_raw(Box::new(value));
    // Release: the value is complete before it is seen.
    match place.compare_exchange(ptr::null_mut(), value, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just published, and never freed.
        Ok(_) => (unsafe { &*value }, true),
        Err(first) => {
            // SAFETY: the box was made above and not published.
            drop(unsafe { Box::from_raw(value) });
            // SAFETY: published by the other thread, and never freed.
            (unsafe { &*first }, false)
        }
    }
}

pub(crate) fn announce(refusal: &Refusal) {
    static WITHOUT_A_PAGE: AtomicBool = AtomicBool::new(false);

    let announced = page().map_or(&WITHOUT_A_PAGE, |page| &page.announced);
    if !announced.swap(true, Ordering::Relaxed) {
        refusal.announce();
    }
}

/// Returns whether NVML may be started here: once in a process.
pub(crate) fn try_nvml() -> bool {
    page().is_some_and(|page| !page.nvml_tried.swap(true, Ordering::Relaxed))
}

#[inline]
pub(crate) fn devices() -> Option<&'static Devices> {
    let devices = page().map_or(ptr::null_mut(), |page| page.devices.load(Ordering::Acquire));
    // SAFETY: null, or a box that `publish_in` leaked.
    unsafe { devices.as_ref() }
}

pub(crate) fn publish_devices(learn: impl FnOnce() -> Option<Devices>) -> &'static Devices {
    let Some(page) = page() else { return Devices::NONE };
    let Some(devices) = learn() else { return Devices::NONE };
    publish_in(&page.devices, devices).0
}

/// Counts a reason in the process's slot, or in its page until there is a slot.
pub(crate) fn count(reason: Reason) {
    if let Some(tenant) = tenant() {
        tenant.count(reason);
    } else if let Some(page) = page()
        && let Some(count) = page.counts.get(reason as usize)
    {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a private table of the driver in the container's region, or in the process's page until
/// it has one.
pub(crate) fn count_export_table(uuid: Uuid) {
    let tables = match (tenant(), page()) {
        (Some(tenant), _) => &tenant.region().shared().header.export_table,
        (None, Some(page)) => &page.export_tables,
        (None, None) => return,
    };
    named_count::count(tables, &uuid.digits());
}

/// Returns the state of a process whose kernel cannot wipe a page. Its children could not be told
/// from it, so no memory can be accounted.
fn refuse_without_wipe(state: State) -> State {
    match state {
        State::On(_) => State::Refused(Refusal::new(
            "expected a kernel that wipes memory on fork (MADV_WIPEONFORK, Linux 4.14); this one \
             does not: use a newer one",
        )),
        State::Off | State::Refused(_) => state,
    }
}

fn transfer_counts(page: &Page, tenant: &Tenant) {
    for (reason, count) in Reason::ALL.iter().zip(&page.counts) {
        for _ in 0..count.swap(0, Ordering::Relaxed) {
            tenant.count(*reason);
        }
    }
    let region = tenant.region().shared();
    named_count::transfer(&page.export_tables, &region.header.export_table);
}

/// Returns the page, mapped at first use. `None`: there is no memory, or the kernel cannot wipe it.
fn page() -> Option<&'static Page> {
    let known = PAGE.load(Ordering::Acquire);
    let page = if known.is_null() { map()? } else { known };
    // SAFETY: not null, zero-initialised by `map`, and never unmapped once it is published.
    Some(unsafe { &*page })
}

/// Maps zeros that no other process sees.
pub(crate) fn map_zeros(length: usize) -> Option<*mut c_void> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
    let mapping = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    (mapping != libc::MAP_FAILED).then_some(mapping)
}

#[cold]
fn map() -> Option<*mut Page> {
    let length = size_of::<Page>();
    let mapping = map_zeros(length)?;
    // SAFETY: the range is the mapping made above, which holds no data yet.
    let wiped = unsafe { libc::madvise(mapping, length, libc::MADV_WIPEONFORK) } == 0;
    let page = mapping.cast::<Page>();
    let published = if wiped {
        PAGE.compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire)
    } else {
        Err(ptr::null_mut())
    };
    published
        .map(|_| page)
        .or_else(|first| {
            // SAFETY: the mapping was made above and not published.
            unsafe { libc::munmap(mapping, length) };
            (!first.is_null()).then_some(first).ok_or(())
        })
        .ok()
}
