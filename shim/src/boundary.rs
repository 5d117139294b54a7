//! No panic leaves the shim: not into the program, and not onto its terminal.
//!
//! A panic is a defect of ours. The call in which it happened is answered as failed and counted;
//! the program goes on.

use std::panic::{self, AssertUnwindSafe};

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_abi::types::CUresult;
use cgpu_memory::Reason;
use cgpu_shm::atomic::{AtomicBool, Ordering::Relaxed};

use crate::state;

/// A result that says: something went wrong which should not have.
pub(crate) trait Failed {
    /// That result.
    const FAILED: Self;
}

impl Failed for CUresult {
    const FAILED: CUresult = CUresult::ERROR_UNKNOWN;
}

impl Failed for nvmlReturn_t {
    const FAILED: nvmlReturn_t = nvmlReturn_t::ERROR_UNKNOWN;
}

/// What `body` answers; where it panics, [`Failed::FAILED`].
#[inline]
pub(crate) fn guard<T: Failed>(body: impl FnOnce() -> T) -> T {
    or(T::FAILED, body)
}

/// What `body` answers; where it panics, `fallback`.
///
/// Unwind safety: the shim's state is atomics, and accounting that its own crate keeps whole.
#[inline]
pub(crate) fn or<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    if !SILENT.load(Relaxed) {
        silence();
    }
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        state::count(Reason::Panicked);
        fallback
    })
}

/// Whether our panic hook is in place.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Puts a hook in place that prints nothing. The hook is this library's own: every cdylib has its
/// own copy of std, so a Rust program's hook stays as it is.
#[cold]
fn silence() {
    panic::set_hook(Box::new(|_| {}));
    SILENT.store(true, Relaxed);
}
