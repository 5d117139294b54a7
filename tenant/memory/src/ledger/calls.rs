//! Driver calls of this process that allocate or free: between the charge and the driver's return,
//! or between the driver's free and the refund, the GPU's free memory and the accounting differ.

use std::thread;

use cgpu_shm::atomic::{AtomicU64, Ordering, fence};

use super::Ledger;

/// Attempts to read while no call is in flight. Each failed one lets another thread run.
const MAX_ATTEMPTS: u32 = 20;

/// What a call adds at its begin: one call begun, in the upper half, and one in flight.
const BEGUN: u64 = (1 << 32) + 1;
/// What it subtracts at its end.
const ENDED: u64 = 1;

/// The calls begun and those in flight, in one word. On cache lines of its own: every allocation
/// changes it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Calls(AtomicU64);

impl Calls {
    #[inline]
    fn end(&self) {
        // HB calls: Release, so that a reading that finds no call in flight sees all its changes.
        self.0.fetch_sub(ENDED, Ordering::Release);
    }
}

/// A call in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Call<'a>(&'a Calls);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Ledger {
    /// Begins a call, before its charge, or before the driver frees.
    #[inline]
    pub(crate) fn begin_call(&self) {
        self.calls.0.fetch_add(BEGUN, Ordering::Relaxed);
        // HB calls: Release, so that a reading that sees what the call changes sees the call.
        fence(Ordering::Release);
    }

    /// Ends a call, after the driver has allocated, or after the refund.
    #[inline]
    pub(crate) fn end_call(&self) {
        self.calls.end();
    }

    /// Begins a call that ends with the returned value.
    pub(crate) fn call(&self) -> Call<'_> {
        self.begin_call();
        Call(&self.calls)
    }

    /// Reads the accounting together with the GPU while no call of this process is in flight.
    /// `None` if there always is one.
    pub(crate) fn read_between_calls<T>(&self, read: impl Fn() -> T) -> Option<T> {
        for _ in 0..MAX_ATTEMPTS {
            // HB calls: meets the Release in `Calls::end`.
            let before = self.calls.0.load(Ordering::Acquire);
            if before.is_multiple_of(BEGUN - ENDED) {
                let value = read();
                // HB calls: meets the Release in `begin_call`.
                fence(Ordering::Acquire);
                if self.calls.0.load(Ordering::Relaxed) == before {
                    return Some(value);
                }
            }
            thread::yield_now();
        }
        None
    }
}
