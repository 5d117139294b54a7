//! Each thread's pointer to its own state of the gate.
//!
//! A Rust thread-local costs a call in a shared library (`__tls_get_addr`, 2.5 ns), and one with a
//! destructor allocates at first use. Instead this is one word of static TLS (the "initial exec"
//! model, 1 ns), and a destructor that the C library runs when the thread ends. The loader always
//! has room for static TLS of libraries present at program start, as a preload is, and a little for
//! later ones.
//!
//! On architectures other than x86-64 and AArch64 it is a Rust thread-local.

use core::ffi::c_void;
use core::ptr;

use cgpu_launch::gate::Thread;
use cgpu_shm::atomic::{AtomicU32, Ordering::Relaxed};

use crate::boundary;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection .tbss.cgpu_thread,\"awT\",%nobits",
    ".hidden cgpu_thread",
    ".globl cgpu_thread",
    ".type cgpu_thread, %object",
    ".size cgpu_thread, 8",
    ".p2align 3",
    "cgpu_thread:",
    ".zero 8",
    ".popsection",
);

/// Returns the thread's state; null before its first slow path.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn current() -> *const Thread {
    let thread: *const Thread;
    // SAFETY: reads the word defined above, of which every thread has its own. Its offset from the
    // thread pointer is in this object's GOT.
    unsafe {
        core::arch::asm!(
            "mov {thread}, qword ptr [rip + cgpu_thread@GOTTPOFF]",
            "mov {thread}, qword ptr fs:[{thread}]",
            thread = out(reg) thread,
            options(readonly, nostack, preserves_flags)
        );
    }
    thread
}

#[cfg(target_arch = "x86_64")]
fn set(thread: *const Thread) {
    // SAFETY: writes the word defined above, of which every thread has its own and to which there
    // is no reference.
    unsafe {
        core::arch::asm!(
            "mov {offset}, qword ptr [rip + cgpu_thread@GOTTPOFF]",
            "mov qword ptr fs:[{offset}], {thread}",
            offset = out(reg) _,
            thread = in(reg) thread,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(super) fn current() -> *const Thread {
    let thread: *const Thread;
    // SAFETY: reads the word defined above, of which every thread has its own. Its offset from the
    // thread pointer is in this object's GOT.
    unsafe {
        core::arch::asm!(
            "mrs {base}, tpidr_el0",
            "adrp {thread}, :gottprel:cgpu_thread",
            "ldr {thread}, [{thread}, :gottprel_lo12:cgpu_thread]",
            "ldr {thread}, [{base}, {thread}]",
            base = out(reg) _,
            thread = out(reg) thread,
            options(readonly, nostack, preserves_flags)
        );
    }
    thread
}

#[cfg(target_arch = "aarch64")]
fn set(thread: *const Thread) {
    // SAFETY: writes the word above, to which there is no reference.
    unsafe {
        core::arch::asm!(
            "mrs {base}, tpidr_el0",
            "adrp {offset}, :gottprel:cgpu_thread",
            "ldr {offset}, [{offset}, :gottprel_lo12:cgpu_thread]",
            "str {thread}, [{base}, {offset}]",
            base = out(reg) _,
            offset = out(reg) _,
            thread = in(reg) thread,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod word {
    use super::Thread;
    use core::cell::Cell;
    use core::ptr;

    std::thread_local! {
        static THREAD: Cell<*const Thread> = const { Cell::new(ptr::null()) };
    }

    pub(in super::super) fn current() -> *const Thread {
        THREAD.get()
    }

    pub(super) fn set(thread: *const Thread) {
        THREAD.set(thread);
    }
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) use word::current;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use word::set;

/// The C library's key for the destructor, plus one; 0: not created yet; [`NO_KEY`]: there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
const NO_KEY: u32 = u32::MAX;

/// Creates the key. Without one, an ending thread leaks its state.
pub(super) fn create_key() {
    if KEY.load(Relaxed) != 0 {
        return;
    }
    let mut key = 0;
    // SAFETY: the key is writable, and `thread_ended` stays mapped: the library is never unloaded.
    let answer = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ended)) };
    let word = if answer == 0 { key.saturating_add(1) } else { NO_KEY };
    if KEY.compare_exchange(0, word, Relaxed, Relaxed).is_err() && answer == 0 {
        // SAFETY: the key was created above, and no thread has used it.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// Returns the thread's state, creating it if needed. It stays in place until the thread ends.
pub(super) fn get_or_create() -> *const Thread {
    let known = current();
    if !known.is_null() {
        return known;
    }
    let thread: *const Thread = Box::into_raw(Box::default());
    set(thread);
    let key = KEY.load(Relaxed);
    if key != 0 && key != NO_KEY {
        // SAFETY: `KEY` holds a key that was created and is never deleted.
        unsafe { libc::pthread_setspecific(key - 1, thread.cast()) };
    }
    thread
}

/// Frees the state of an ending thread. If another destructor launches afterwards, the thread gets
/// a new one.
///
/// # Safety
///
/// `thread` is the pointer that `own` gave to `pthread_setspecific` in this thread. The C library
/// calls this once for it.
unsafe extern "C" fn thread_ended(thread: *mut c_void) {
    set(ptr::null());
    boundary::or((), || {
        // SAFETY: `own` made the box for this thread, and `set` has just removed the thread's only
        // reference.
        let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
        if let Some(gate) = super::gate() {
            gate.thread_exited(&thread);
        }
    });
}
