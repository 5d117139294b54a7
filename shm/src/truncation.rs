//! Files that are cut short below their writer.
//!
//! A monitor writes each container's `grant` through a mapping: a store is what its readers can order, and costs nothing. But where a
//! container runs as the same user, it may cut that file short, and a store behind a mapped file's end is SIGBUS. (pwrite(2) could not be
//! killed so, but promises neither order nor whole words.) So a process that writes for others, whom it does not trust to live with, calls
//! [`outlive`] once. Where a store then meets a hole, memory of its own takes the mapping's place, and the store goes on into it. Nobody
//! else will ever read that; [`Watched::is_lost`] tells it, and the file itself says why when it is opened anew.
//!
//! Signal handlers have nothing but statics to go by: hence the only ones of this crate.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use std::io;

use crate::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Where somebody writes. Never freed, so that the handler may look at any time; used again when its mapping has gone.
#[derive(Debug)]
struct Entry {
    /// The mapping's first byte; 0: nobody's.
    begin: AtomicUsize,
    length: AtomicUsize,
    lost: AtomicBool,
    /// Set before the place can be seen, and never again.
    next: AtomicPtr<Entry>,
}

/// All places, newest first.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// What was done about SIGBUS before; null: nothing was asked of us yet.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: null, or a leaked box that was whole when it was published. HB places: Acquire meets the Release in `Watched::new`.
    let first = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    core::iter::successors(first, |place| {
        // SAFETY: as above; it was set before `place` was published.
        unsafe { place.next.load(Ordering::Relaxed).as_ref() }
    })
}

/// A mapping whose loss is to be outlived.
#[derive(Debug)]
pub(crate) struct Watched(&'static Entry);

impl Watched {
    /// Watches a mapping, until dropped: before the mapping is.
    pub(crate) fn new(begin: *const u8, length: usize) -> Self {
        let free = |place: &&Entry| {
            place
                .begin
                .compare_exchange(0, begin.addr(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(place) = entries().find(free) {
            place.lost.store(false, Ordering::Relaxed);
            place.length.store(length, Ordering::Relaxed);
            return Self(place);
        }
        let place = Box::leak(Box::new(Entry {
            begin: AtomicUsize::new(begin.addr()),
            length: AtomicUsize::new(length),
            lost: AtomicBool::new(false),
            next: AtomicPtr::new(ENTRIES.load(Ordering::Relaxed)),
        }));
        loop {
            let next = place.next.load(Ordering::Relaxed);
            // HB places: Release publishes the place.
            match ENTRIES.compare_exchange(next, place, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Self(place),
                Err(newer) => place.next.store(newer, Ordering::Relaxed),
            }
        }
    }

    /// Whether the file was cut short, and what is written since goes nowhere.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.begin.store(0, Ordering::Relaxed);
    }
}

/// From now on, a `grant` file that is cut short does not kill this process when it writes there.
///
/// # Errors
/// The kernel's, where the signal's handler cannot be set.
pub fn survive() -> io::Result<()> {
    if !PREVIOUS.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    let mut former = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the record is writable; no action is given.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), former.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    let former = Box::leak(Box::new(unsafe { former.assume_init() }));
    PREVIOUS.store(former, Ordering::Release);
    // SAFETY: all fields are numbers and sets of bits.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the action is whole, and its handler calls nothing but mmap and sigaction, which are asynchronous-signal-safe.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a record to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS it has an address.
    let address = unsafe { info.si_addr() }.addr();
    let hit = |place: &&Entry| {
        let begin = place.begin.load(Ordering::Relaxed);
        begin != 0 && (begin..begin + place.length.load(Ordering::Relaxed)).contains(&address)
    };
    let replaced = entries().find(hit).is_some_and(|place| {
        place.lost.store(true, Ordering::Relaxed);
        replace(place.begin.load(Ordering::Relaxed), place.length.load(Ordering::Relaxed))
    });
    if !replaced {
        // Somebody else's: as if we were not here. The instruction is tried again.
        let former = PREVIOUS.load(Ordering::Acquire);
        // SAFETY: the record was filled before we were called, and is never freed.
        unsafe { libc::sigaction(libc::SIGBUS, former, ptr::null_mut()) };
    }
}

/// Puts memory of our own in a mapping's place.
fn replace(begin: usize, length: usize) -> bool {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    // SAFETY: the pages are a watched mapping's, whose owner unmaps them only after it is no longer watched; whatever it holds are
    // atomics, for which any bytes will do.
    let mapped = unsafe {
        libc::mmap(ptr::with_exposed_provenance_mut(begin), length, protection, flags, -1, 0)
    };
    mapped != libc::MAP_FAILED
}
