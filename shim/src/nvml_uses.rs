//! The uses of NVML in this process: the program's, and one of our own.
//!
//! Starting NVML takes tens of milliseconds, one process after the other, and some drivers hang
//! when it is started repeatedly. So the shim starts it at most once in a process, in the thread
//! that needs it, and only if no monitor reports the values ([`cgpu_memory::MonitorInventory`]). It
//! *holds* that use instead of shutting NVML down, so that the program's own `nvmlInit` is no
//! second start.
//!
//! ```text
//!              nvmlInit of the program                   its last nvmlShutdown
//!   not started ----------------------> the program's ------------------------> not started
//!        |                                  ^                                      ^
//!        | needed here                      | nvmlInit         nvmlShutdown: ours  |
//!        v                                  v                  ends with its last  |
//!      held: to the program it is     held, and the program's ---------------------+
//!      not initialised
//! ```
//!
//! NVML counts its users per process; so does [`PROGRAM`], for the calls that our hooks see. While
//! only our use keeps NVML started, the program is answered as if it were not: by the hooks, and by
//! the functions that programs begin with (those that count or name devices, or read versions).
//! With the program's last use ours ends, too, for good; measured values stay known.
//!
//! A forked child inherits NVML as it is, and these variables with it. Only whether a start was
//! tried is reset.

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_shm::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::library::NVML;
use crate::{nvml, state};

static PROGRAM: AtomicUsize = AtomicUsize::new(0);
static HELD: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_started() -> bool {
    PROGRAM.load(Ordering::Relaxed) > 0 || HELD.load(Ordering::Relaxed)
}

/// Returns whether the program has not initialised NVML, though it is started.
pub(crate) fn is_hidden() -> bool {
    HELD.load(Ordering::Relaxed) && PROGRAM.load(Ordering::Relaxed) == 0
}

/// Starts NVML, unless it is started or that was tried before in this process. Returns whether it
/// is started. Takes as long as NVML does.
pub(crate) fn start() -> bool {
    if is_started() {
        return true;
    }
    if !state::try_nvml() {
        return false;
    }
    NVML.open_and_pin();
    // Before the call: meanwhile the program has not initialised it either.
    HELD.store(true, Ordering::Relaxed);
    // SAFETY: no obligations.
    let started = unsafe { nvml::nvmlInit_v2() } == nvmlReturn_t::SUCCESS;
    if !started {
        HELD.store(false, Ordering::Relaxed);
    }
    started
}

pub(crate) fn begin(call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    let answer = call();
    if answer == nvmlReturn_t::SUCCESS {
        PROGRAM.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

pub(crate) fn end(call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    if is_hidden() {
        return nvmlReturn_t::ERROR_UNINITIALIZED;
    }
    let answer = call();
    if answer == nvmlReturn_t::SUCCESS {
        let less = |uses: usize| uses.checked_sub(1);
        // None: it was initialised by a call that no hook saw.
        let before = PROGRAM.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if before == Ok(1) && HELD.swap(false, Ordering::Relaxed) {
            // SAFETY: no obligations; it ends our own use. The result does not matter.
            let _ = unsafe { nvml::nvmlShutdown() };
        }
    }
    answer
}
