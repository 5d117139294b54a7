//! Captures that go on in this process. A call that is not safe beside one in the global mode
//! breaks it, whichever thread makes it, so meanwhile the gate asks the driver nothing. One in
//! another mode forbids nothing that the gate does; it is known all the same, so that it is not
//! taken for one that is unknown.
//!
//! Without a lock: a forked child may find its parent's threads in the middle of anything.

use cgpu_abi::types::*;
use cgpu_memory::Lane;
use cgpu_shm::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::order::Order;

/// The streams in which they began ([`key`]), and whether in the global mode ([`GLOBAL`]); 0: free.
/// Who begins more than so many at once is left with what the gate sees of captures itself.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many of them are in the global mode.
static COUNT_GLOBAL: AtomicUsize = AtomicUsize::new(0);

/// One began for which there was no place. Since then it is unknown whether one that is seen is one
/// of those.
static UNPLACED: AtomicBool = AtomicBool::new(false);

/// The bit of a place that says so.
const GLOBAL: u64 = 1;

/// Whether one goes on in the global mode.
///
/// Relaxed: who begins one in another thread has counted it before the driver was asked.
#[inline]
pub(crate) fn any_global() -> bool {
    COUNT_GLOBAL.load(Relaxed) != 0
}

/// Whether any goes on that began here.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Whether one that is seen now began here.
pub(crate) fn is_known() -> bool {
    any() && !UNPLACED.load(Relaxed)
}

/// Begins a capture.
pub(crate) fn begin(
    order: Order,
    mode: CUstreamCaptureMode,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    // Before the driver is asked: from then on another thread's call may break it. Where one goes
    // on already, it stays.
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

/// Ends one, if the driver says so: from another thread, or in another stream, it cannot be ended.
pub(crate) fn end(order: Order, call: impl FnOnce() -> CUresult) -> CUresult {
    let answer = call();
    if any() && (answer == CUresult::SUCCESS || !order.captures()) {
        let key = key(order.lane());
        forget(|other| other == key);
    }
    answer
}

/// A stream is gone.
pub(crate) fn stream_gone(stream: CUstream) {
    if any() {
        let key = key(Order::legacy(stream).lane());
        forget(|other| other == key);
    }
}

/// A context is going, and with it its streams. It is not known whose they are, and a capture that
/// no stream can end any more must not silence the gate for good. Whether one in the global mode
/// may go on, of which nothing is known now.
pub(crate) fn context_gone() -> bool {
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

/// Different for different streams, but for what is left to chance: then one of two captures is
/// forgotten early. Without the bit [`GLOBAL`].
fn key(lane: Lane) -> u64 {
    let mix = |word: u64, by: u64| word.wrapping_mul(by).rotate_left(23);
    let own =
        mix(lane.context as u64, 0x9E37_79B9_7F4A_7C15) ^ mix(lane.thread, 0xD6E8_FEB8_6659_FD93);
    ((lane.stream as u64 ^ own) & !GLOBAL).max(GLOBAL << 1)
}
