//! Surviving the truncation of a mapped file.
//!
//! A container that runs as the monitor's user may truncate its `grant` file; a store beyond a
//! mapped file's end raises SIGBUS. (pwrite(2) would not, but promises neither order nor whole
//! words.) After [`survive`], the signal's handler replaces the mapping with private memory, and
//! the store continues there. No other process reads it, which
//! [`crate::grant::GrantWriter::is_lost`] reports.
//!
//! A signal handler can only use statics; these are the only ones of this crate.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use std::io;

use crate::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A watched mapping. Never freed, so that the handler may read it at any time; reused when its
/// mapping is gone.
#[derive(Debug)]
struct Entry {
    /// Address of the mapping's first byte; 0: unused.
    begin: AtomicUsize,
    length: AtomicUsize,
    lost: AtomicBool,
    /// Set before the entry is published, and never again.
    next: AtomicPtr<Entry>,
}

/// All entries, newest first.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// The previous action of SIGBUS; null: [`survive`] was not called yet.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: null, or a leaked box that was complete when it was published. HB watched: Acquire
    // meets the Release in `Watched::new`.
    let first = unsafe { ENTRIES.load(Ordering::Acquire).as_ref() };
    core::iter::successors(first, |entry| {
        // SAFETY: null, or a leaked box, which was set before `entry` was published.
        unsafe { entry.next.load(Ordering::Relaxed).as_ref() }
    })
}

/// A mapping whose loss is to be survived.
#[derive(Debug)]
pub(crate) struct Watched(&'static Entry);

impl Watched {
    /// Watches a mapping until dropped. Must be dropped before the mapping.
    pub(crate) fn new(begin: *const u8, length: usize) -> Self {
        let free = |entry: &&Entry| {
            entry
                .begin
                .compare_exchange(0, begin.addr(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if let Some(entry) = entries().find(free) {
            entry.lost.store(false, Ordering::Relaxed);
            entry.length.store(length, Ordering::Relaxed);
            return Self(entry);
        }
        let entry = Box::leak(Box::new(Entry {
            begin: AtomicUsize::new(begin.addr()),
            length: AtomicUsize::new(length),
            lost: AtomicBool::new(false),
            next: AtomicPtr::new(ENTRIES.load(Ordering::Relaxed)),
        }));
        loop {
            let next = entry.next.load(Ordering::Relaxed);
            // HB watched: Release publishes the entry.
            match ENTRIES.compare_exchange(next, entry, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Self(entry),
                Err(newer) => entry.next.store(newer, Ordering::Relaxed),
            }
        }
    }

    /// Whether the file was truncated, so that later stores reach no reader.
    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.begin.store(0, Ordering::Relaxed);
    }
}

/// Installs the SIGBUS handler: from now on, storing to a truncated `grant` file does not kill this
/// process.
///
/// # Errors
/// The kernel's, if the handler cannot be set.
pub fn survive() -> io::Result<()> {
    if !PREVIOUS.load(Ordering::Relaxed).is_null() {
        return Ok(());
    }
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the pointer to the previous action is valid for writes; a null action changes
    // nothing.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), previous.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it.
    let previous = Box::leak(Box::new(unsafe { previous.assume_init() }));
    PREVIOUS.store(previous, Ordering::Release);
    // SAFETY: all fields are integers or sets of bits, for which zero is valid.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the action is initialized, and its handler calls only mmap and sigaction, which on
    // Linux are plain system calls and safe in a signal handler.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: for SIGBUS the record has an address.
    let address = unsafe { info.si_addr() }.addr();
    let hit = |entry: &&Entry| {
        let begin = entry.begin.load(Ordering::Relaxed);
        begin != 0 && (begin..begin + entry.length.load(Ordering::Relaxed)).contains(&address)
    };
    let replaced = entries().find(hit).is_some_and(|entry| {
        entry.lost.store(true, Ordering::Relaxed);
        replace(entry.begin.load(Ordering::Relaxed), entry.length.load(Ordering::Relaxed))
    });
    if !replaced {
        // Not one of ours: restore the previous action. The instruction is then tried again.
        let previous = PREVIOUS.load(Ordering::Acquire);
        // SAFETY: the record was filled before the handler was installed, and is never freed.
        unsafe { libc::sigaction(libc::SIGBUS, previous, ptr::null_mut()) };
    }
}

/// Replaces a mapping with private memory.
fn replace(begin: usize, length: usize) -> bool {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    // SAFETY: the pages belong to a watched mapping, whose owner unmaps them only after it has
    // stopped watching. They hold only atomics, for which any bytes are valid.
    let mapped = unsafe {
        libc::mmap(ptr::with_exposed_provenance_mut(begin), length, protection, flags, -1, 0)
    };
    mapped != libc::MAP_FAILED
}
