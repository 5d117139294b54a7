//! Captures in progress in this process. A call that is unsafe during a global-mode capture breaks
//! it, from any thread, so the gate makes no driver queries meanwhile. A capture in another mode
//! forbids nothing that the gate does. It is recorded, too, so that it is not mistaken for an
//! unknown one.
//!
//! There is no lock: a forked child may find its parent's threads at any point.

use cgpu_abi::types::*;
use cgpu_memory::Lane;
use cgpu_shm::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::order::Order;

/// The streams where captures began ([`key`]), with [`GLOBAL`] for the global mode; 0: free. Of
/// further captures, only what the gate itself sees is known.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static COUNT_GLOBAL: AtomicUsize = AtomicUsize::new(0);

/// A capture began for which there was no place. Since then, an observed capture may be that one.
static UNPLACED: AtomicBool = AtomicBool::new(false);

/// The bit of a place that marks the global mode.
const GLOBAL: u64 = 1;

/// Returns whether a global-mode capture is in progress.
///
/// Relaxed: a thread that begins one counts it before it calls the driver.
#[inline]
pub(crate) fn any_global() -> bool {
    COUNT_GLOBAL.load(Relaxed) != 0
}

/// Returns whether a recorded capture is in progress.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Returns whether an observed capture must be a recorded one.
pub(crate) fn is_known() -> bool {
    any() && !UNPLACED.load(Relaxed)
}

pub(crate) fn begin(
    order: Order,
    mode: CUstreamCaptureMode,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    // Recorded before the driver's call: from then on another thread's call may break the capture.
    // One already in progress on the stream stays recorded.
    let key = key(order.lane());
    let word = key | if global { GLOBAL } else { 0 };
    let fresh = !KNOWN.iter().any(|place| place.load(Relaxed) & !GLOBAL == key);
    if fresh {
        if KNOWN.iter().any(|place| place.compare_exchange(0, word, Relaxed, Relaxed).is_ok()) {
            COUNT.fetch_add(1, Relaxed);
            COUNT_GLOBAL.fetch_add(global.into(), Relaxed);
        } else {
            UNPLACED.store(true, Relaxed);
        }
    }
    let answer = call();
    if answer != CUresult::SUCCESS && fresh {
        forget(|other| other == key);
    }
    answer
}

/// Ends a capture, if the driver does: another thread or stream cannot end it.
pub(crate) fn end(order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    let answer = call();
    if any() && (answer == CUresult::SUCCESS || !order.captures()) {
        let key = key(order.lane());
        forget(|other| other == key);
    }
    answer
}

pub(crate) fn stream_destroyed(stream: CUstream) {
    if any() {
        let key = key(Order::legacy(stream).lane());
        forget(|other| other == key);
    }
}

/// Forgets all captures when a context is destroyed. Which streams belonged to it is unknown, and a
/// capture that no stream can end any more must not silence the gate forever. Returns whether a
/// global-mode capture may be in progress that is unknown now.
pub(crate) fn context_destroyed() -> bool {
    let lost = any_global();
    if any() {
        forget(|_| true);
    }
    lost
}

fn forget(which: impl Fn(u64) -> bool) {
    for place in &KNOWN {
        let word = place.load(Relaxed);
        let (key, global) = (word & !GLOBAL, word & GLOBAL != 0);
        if word != 0 && which(key) && place.compare_exchange(word, 0, Relaxed, Relaxed).is_ok() {
            COUNT.fetch_sub(1, Relaxed);
            COUNT_GLOBAL.fetch_sub(global.into(), Relaxed);
        }
    }
}

/// Returns a key of a lane, without the bit [`GLOBAL`]. If two lanes have the same key by chance,
/// one of their captures is forgotten early.
fn key(lane: Lane) -> u64 {
    let mix = |word: u64, by: u64| word.wrapping_mul(by).rotate_left(23);
    let own =
        mix(lane.context as u64, 0x9E37_79B9_7F4A_7C15) ^ mix(lane.thread, 0xD6E8_FEB8_6659_FD93);
    ((lane.stream as u64 ^ own) & !GLOBAL).max(GLOBAL << 1)
}
