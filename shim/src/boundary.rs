//! Keeps panics inside the shim: out of the program, and off its terminal.
//!
//! A panic is a bug of ours. The call in which it happened fails and is counted; the program goes
//! on.

use std::panic::{self, AssertUnwindSafe};

use cgpu_abi::nvml_types::nvmlReturn_t;
use cgpu_abi::types::CUresult;
use cgpu_memory::Reason;
use cgpu_shm::atomic::{AtomicBool, Ordering::Relaxed};

use crate::state;

pub(crate) trait Failed {
    const FAILED: Self;
}

impl Failed for CUresult {
    const FAILED: CUresult = CUresult::ERROR_UNKNOWN;
}

impl Failed for nvmlReturn_t {
    const FAILED: nvmlReturn_t = nvmlReturn_t::ERROR_UNKNOWN;
}

/// Returns the result of `body`, or [`Failed::FAILED`] if it panics.
#[inline]
pub(crate) fn guard<T: Failed>(body: impl FnOnce() -> T) -> T {
    or(T::FAILED, body)
}

/// Returns the result of `body`, or `fallback` if it panics.
///
/// Unwind safety: the shim's state is atomics, and accounting that its own crate keeps consistent.
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

/// Whether our panic hook is installed.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Installs a panic hook that prints nothing. Every cdylib has its own copy of std, so a Rust
/// program's own hook is unaffected.
#[cold]
fn silence() {
    panic::set_hook(Box::new(|_| {}));
    SILENT.store(true, Relaxed);
}
