//! The uses of NVML in this process: the program's, and one of our own.
//!
//! A start of NVML takes tens of milliseconds, one process after the other, and some drivers hang
//! when they are started again and again. So the shim starts it at most once in a process, in the
//! thread whose call needs it, and only where no monitor tells the same ([`cgpu_memory::Told`]);
//! and it *holds* that use instead of shutting NVML down, so that the program's own `nvmlInit` is
//! no second start.
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
//! NVML counts its users itself, per process; so does [`PROGRAM`], of the calls that our hooks see.
//! While only our use keeps it started, the program is answered as if it were not: by the hooks,
//! and by the functions through which everything else begins (those that count or name devices,
//! those that read versions). With the program's last use ours ends too, for good: what has been
//! measured by then stays known.
//!
//! A forked child inherits NVML as it is, so these words are its own as well; only whether a start
//! was tried is not.

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_shm::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::library::NVML;
use crate::{nvml, state};

/// Uses of the program.
static PROGRAM: AtomicUsize = AtomicUsize::new(0);
/// Whether there is one of our own.
static HELD: AtomicBool = AtomicBool::new(false);

/// Whether NVML can be asked.
pub(crate) fn is_started() -> bool {
    PROGRAM.load(Ordering::Relaxed) > 0 || HELD.load(Ordering::Relaxed)
}

/// Whether the program has not initialised NVML, though it is started.
pub(crate) fn is_hidden() -> bool {
    HELD.load(Ordering::Relaxed) && PROGRAM.load(Ordering::Relaxed) == 0
}

/// Starts NVML, unless it is started or that was tried before in this process; whether it can be
/// asked. Takes as long as NVML does.
pub(crate) fn start() -> bool {
    if is_started() {
        return true;
    }
    if !state::try_nvml() {
        return false;
    }
    NVML.hold();
    // Before the call: meanwhile the program has not initialised it either.
    HELD.store(true, Ordering::Relaxed);
    // SAFETY: no obligations.
    let started = unsafe { nvml::nvmlInit_v2() } == nvmlReturn_t::SUCCESS;
    if !started {
        HELD.store(false, Ordering::Relaxed);
    }
    started
}

/// Makes the program's call that initialises NVML.
pub(crate) fn begin(call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    let answer = call();
    if answer == nvmlReturn_t::SUCCESS {
        PROGRAM.fetch_add(1, Ordering::Relaxed);
    }
    answer
}

/// Makes the program's call that ends one of its uses.
pub(crate) fn end(call: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    if is_hidden() {
        return nvmlReturn_t::ERROR_UNINITIALIZED;
    }
    let answer = call();
    if answer == nvmlReturn_t::SUCCESS {
        let less = |uses: usize| uses.checked_sub(1);
        // None: it was begun by a way that no hook saw.
        let before = PROGRAM.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if before == Ok(1) && HELD.swap(false, Ordering::Relaxed) {
            // SAFETY: no obligations: our own use. What it answers changes nothing.
            let _ = unsafe { nvml::nvmlShutdown() };
        }
    }
    answer
}
