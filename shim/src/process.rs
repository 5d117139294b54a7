//! What this process knows of itself, and how a forked child comes to know nothing.
//!
//! All of it hangs off one page that the kernel wipes in a forked child (`MADV_WIPEONFORK`): finding out costs a plain load, and
//! a `vfork` child, which shares its parent's memory, finds the parent's state, as it must. The child starts anew when it first
//! initialises the driver; what its parent had is left alone.
//!
//! ```text
//!   PAGE -> state -> null        not started: in this process cuInit has not been called
//!                 -> Off         no limit: every hook is the driver's function
//!                 -> Refused     the limits cannot be understood or kept: nothing is allocated
//!                 -> On          books are kept
//! ```
//!
//! Starting never blocks: threads that race start twice, one state is published, the other's slot is given back.

use core::ptr;

use cgpu_memory::{Found, Monotonic, Reason, Refusal, Start, System, Tenant, is_called_for};
use cgpu_shm::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use once_cell::race::OnceBox;

use crate::gpus::{self, Devices};
use crate::{driver, gate};

/// How this process stands.
#[allow(clippy::large_enum_variant, reason = "there is one in a process's life")]
pub(crate) enum State {
    /// Nothing is limited.
    Off,
    /// The start was refused.
    Refused(Refusal),
    /// Books are kept.
    On(Tenant),
}

/// What an allocating hook has to know.
#[derive(Clone, Copy)]
pub(crate) enum Accounting {
    /// Books are kept: charge.
    On(&'static Tenant),
    /// The call goes to the driver as it is.
    Pass,
    /// Nothing may be allocated.
    Refused,
}

/// Who starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A call of the driver, which is initialised.
    Driver,
    /// A call of NVML, which is initialised; the driver may not even be loaded.
    Nvml,
}

/// The page. A wiped one is a valid one: all zero.
#[repr(C, align(4096))]
struct Page {
    state: AtomicPtr<State>,
    devices: AtomicPtr<Devices>,
    announced: AtomicBool,
    /// Whether a start of NVML was tried in this process.
    nvml_tried: AtomicBool,
    /// What was counted before there was a slot to count in.
    counts: [AtomicU32; Reason::ALL.len()],
}

/// Null until the first use. A child inherits the address.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The state, where there can be no page.
static WITHOUT_WIPE: OnceBox<State> = OnceBox::new();

/// Whether this process or one of its parents has started.
static EVER_STARTED: AtomicBool = AtomicBool::new(false);

/// The books of this process, if they are kept.
#[inline]
pub(crate) fn tenant() -> Option<&'static Tenant> {
    match state() {
        Some(State::On(tenant)) => Some(tenant),
        _ => None,
    }
}

/// How this process stands, for a hook that allocates.
#[inline]
pub(crate) fn accounting() -> Accounting {
    match state() {
        Some(State::On(tenant)) => Accounting::On(tenant),
        Some(State::Off) => Accounting::Pass,
        Some(State::Refused(_)) => Accounting::Refused,
        None => accounting_before_init(),
    }
}

/// Starts, if that has not happened in this process, and says how it stands.
pub(crate) fn start(trigger: Trigger) -> &'static State {
    state().unwrap_or_else(|| start_once(trigger))
}

/// Says the sentence of a refusal, once in this process.
pub(crate) fn announce(refusal: &Refusal) {
    static WITHOUT_A_PAGE: AtomicBool = AtomicBool::new(false);

    let announced = page().map_or(&WITHOUT_A_PAGE, |page| &page.announced);
    if !announced.swap(true, Ordering::Relaxed) {
        refusal.announce();
    }
}

/// Whether NVML may be started here: once in a process.
pub(crate) fn try_nvml() -> bool {
    page().is_some_and(|page| !page.nvml_tried.swap(true, Ordering::Relaxed))
}

/// Which of the driver's devices are on the books; none before the driver is initialised.
#[inline]
pub(crate) fn devices(tenant: &Tenant) -> &'static Devices {
    let devices = page().map_or(ptr::null_mut(), |page| page.devices.load(Ordering::Acquire));
    // SAFETY: null, or a leaked box.
    unsafe { devices.as_ref() }.unwrap_or_else(|| learn_devices(tenant))
}

/// Counts a reason: in the process's slot, or until there is one, in its page.
pub(crate) fn count(reason: Reason) {
    if let Some(tenant) = tenant() {
        tenant.count(reason);
    } else if let Some(page) = page()
        && let Some(count) = page.counts.get(reason as usize)
    {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline]
fn state() -> Option<&'static State> {
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return WITHOUT_WIPE.get();
    }
    // SAFETY: the page is never unmapped.
    let page = unsafe { &*page };
    let state = page.state.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box.
    unsafe { state.as_ref() }
}

/// A call before `cuInit`, as far as we saw. The driver knows better: it may have been initialised by a way of its own.
#[cold]
fn accounting_before_init() -> Accounting {
    if !gpus::driver_is_initialised() {
        let reason =
            if EVER_STARTED.load(Ordering::Relaxed) { Reason::AfterFork } else { Reason::BeforeInit };
        count(reason);
        return Accounting::Pass;
    }
    match start(Trigger::Driver) {
        State::On(tenant) => Accounting::On(tenant),
        State::Off => Accounting::Pass,
        State::Refused(_) => Accounting::Refused,
    }
}

#[cold]
fn start_once(trigger: Trigger) -> &'static State {
    EVER_STARTED.store(true, Ordering::Relaxed);
    let state = decide(trigger);
    let Some(page) = page() else {
        return WITHOUT_WIPE.get_or_init(|| Box::new(refuse_without_wipe(state)));
    };
    let state = Box::into_raw(Box::new(state));
    // Release: the state is whole before it is seen.
    match page.state.compare_exchange(ptr::null_mut(), state, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: just published, and never freed.
            let state = unsafe { &*state };
            if let State::On(tenant) = state {
                hand_over_counts(page, tenant);
                gate::watch(tenant);
            }
            state
        }
        Err(first) => {
            // SAFETY: the box is ours alone: it was not published.
            drop(unsafe { Box::from_raw(state) });
            // SAFETY: published by the other thread, and never freed.
            unsafe { &*first }
        }
    }
}

/// Asks the settings, and whether they can be kept.
fn decide(trigger: Trigger) -> State {
    // Where no monitor has told of the GPUs, NVML is started for them, which takes longer than all else together.
    let found = if is_called_for(&System) { gpus::inventory(trigger) } else { Found::NOTHING };
    let by_driver = trigger == Trigger::Driver;
    match Tenant::start(&System, found.as_given(), &Monotonic) {
        Ok(Start::On(_)) if by_driver && let Some(name) = driver::missing() => {
            State::Refused(Refusal::new(format!(
                "expected a driver with {name}, without which no limit can be kept; this one lacks it: use a newer driver"
            )))
        }
        Ok(Start::On(tenant)) => State::On(tenant),
        Ok(Start::Off(Reason::NoGpus)) if by_driver && found.is_empty() && gpus::driver_has_gpus() => {
            State::Refused(Refusal::new(
                "expected GPUs with a UUID, by which limits are kept; the driver gives none: use a newer driver",
            ))
        }
        Ok(Start::Off(reason)) => {
            count(reason);
            State::Off
        }
        Err(refusal) => State::Refused(refusal),
    }
}

/// The state of a process whose kernel cannot wipe a page. It could not be told from its children's, so no books can be kept.
fn refuse_without_wipe(state: State) -> State {
    match state {
        State::On(_) => State::Refused(Refusal::new(
            "expected a kernel that wipes memory on fork (MADV_WIPEONFORK, Linux 4.14); this one does not: use a newer one",
        )),
        State::Off | State::Refused(_) => state,
    }
}

#[cold]
fn learn_devices(tenant: &Tenant) -> &'static Devices {
    let Some(page) = page().filter(|_| gpus::driver_is_initialised()) else {
        return Devices::NONE;
    };
    let devices = Box::into_raw(Box::new(Devices::of(tenant)));
    match page.devices.compare_exchange(ptr::null_mut(), devices, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just published, and never freed.
        Ok(_) => unsafe { &*devices },
        Err(first) => {
            // SAFETY: the box is ours alone: it was not published.
            drop(unsafe { Box::from_raw(devices) });
            // SAFETY: published by the other thread, and never freed.
            unsafe { &*first }
        }
    }
}

fn hand_over_counts(page: &Page, tenant: &Tenant) {
    for (reason, count) in Reason::ALL.iter().zip(&page.counts) {
        for _ in 0..count.swap(0, Ordering::Relaxed) {
            tenant.count(*reason);
        }
    }
}

/// The page, mapped at its first use. `None`: there is no memory, or the kernel cannot wipe it.
fn page() -> Option<&'static Page> {
    let known = PAGE.load(Ordering::Acquire);
    let page = if known.is_null() { map()? } else { known };
    // SAFETY: the page is never unmapped.
    Some(unsafe { &*page })
}

#[cold]
fn map() -> Option<*mut Page> {
    let length = size_of::<Page>();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapping = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is ours.
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
            // SAFETY: the mapping is ours alone: it was not published.
            unsafe { libc::munmap(mapping, length) };
            (!first.is_null()).then_some(first).ok_or(())
        })
        .ok()
}
