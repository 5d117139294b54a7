//! What the gate puts on the program's streams, and its driver queries.
//!
//! Events belong to the thread's current context. Calls that another thread's capture may forbid
//! (creating and querying events, registering memory) are made in the relaxed capture mode. They
//! are not made at all during a global-mode capture ([`captures`]), nor for a second after a
//! capture was seen whose beginning the shim missed: it may last that long, in any mode.

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_launch::gate::{ContextKey, Driver, DriverError, Event, Stream};
use cgpu_memory::{Clock, Monotonic, Nanos, TimeScale};
use cgpu_shm::atomic::{AtomicU64, Ordering::Relaxed};

use super::progress;
use crate::library::DRIVER;
use crate::order::{Order, RelaxedCapture};
use crate::{captures, driver};

/// How long the driver is not queried after such a capture was seen.
const CAPTURE_COOLDOWN: Nanos = Nanos::from_millis(1000);

/// When such a capture was last seen; 0: never.
static LAST_UNKNOWN_CAPTURE_NANOS: AtomicU64 = AtomicU64::new(0);

/// The driver for a thread with this current context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Markers {
    pub(super) context: CUcontext,
    /// How slow the GPU's clock is.
    pub(super) time_scale: TimeScale,
}

impl Driver for Markers {
    fn is_capturing(&self, stream: Stream) -> bool {
        if DRIVER.address(driver_index::cuStreamIsCapturing).is_null() {
            // Drivers before 10.0 have no captures.
            return false;
        }
        // A refused query (906: another stream's capture forbids it) counts as capturing.
        let capturing = Order::from(stream).is_captured() != Ok(false);
        if capturing && !captures::is_known() {
            note_unknown_capture();
        }
        capturing
    }

    fn may_query(&self) -> bool {
        let captured = LAST_UNKNOWN_CAPTURE_NANOS.load(Relaxed);
        !captures::any_global()
            && (captured == 0 || Monotonic.now() > Nanos(captured) + CAPTURE_COOLDOWN)
    }

    fn is_idle(&self, stream: Stream) -> Result<bool, DriverError> {
        answered(|| Order::from(stream).query())
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        let mut event = CUevent::NULL;
        // SAFETY: the handle is writable.
        relaxed(|| unsafe { driver::cuEventCreate(&raw mut event, CU_EVENT_DEFAULT) })?;
        Ok(Event(event.0))
    }

    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let record =
            if stream.per_thread { driver::cuEventRecord_ptsz } else { driver::cuEventRecord };
        // SAFETY: we created the event in this context; the program launches into the stream now.
        accepted(unsafe { record(CUevent(event.0), CUstream(stream.handle)) })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError> {
        if DRIVER.address(driver_index::cuStreamWriteValue64_v2).is_null() {
            return Err(DriverError);
        }
        let address = progress::address(self, word).ok_or(DriverError)?;
        let (handle, flags) = (CUstream(stream.handle), CU_STREAM_WRITE_VALUE_DEFAULT);
        let write = if stream.per_thread {
            driver::cuStreamWriteValue64_v2_ptsz
        } else {
            driver::cuStreamWriteValue64_v2
        };
        // SAFETY: the program launches into the stream now; the address is a word of our page,
        // which is registered in this context and never unmapped.
        accepted(unsafe { write(handle, address, value, flags) })
    }

    fn read_word(&self, context: ContextKey, word: usize) -> u64 {
        progress::written(context.0, word)
    }

    fn has_completed(&self, event: Event) -> Result<bool, DriverError> {
        // SAFETY: we created the event in this context.
        answered(|| unsafe { driver::cuEventQuery(CUevent(event.0)) })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: the time is writable; we created both events in this context.
        relaxed(|| unsafe {
            driver::cuEventElapsedTime(&raw mut milliseconds, CUevent(from.0), CUevent(to.0))
        })?;
        // Not a number becomes zero.
        #[allow(clippy::cast_possible_truncation)]
        let nanoseconds = (f64::from(milliseconds) * 1e6) as i64;
        let host = self.time_scale.host(Nanos(nanoseconds.unsigned_abs()));
        let host = i64::try_from(host.0).unwrap_or(i64::MAX);
        Ok(if nanoseconds < 0 { -host } else { host })
    }
}

/// Records that an unknown capture may be in progress.
pub(super) fn note_unknown_capture() {
    LAST_UNKNOWN_CAPTURE_NANOS.store(Monotonic.now().0, Relaxed);
}

/// Makes a call that another thread's capture may forbid.
pub(super) fn relaxed(call: impl FnOnce() -> CUresult) -> Result<(), DriverError> {
    let known = !DRIVER.address(driver_index::cuThreadExchangeStreamCaptureMode).is_null();
    let _unbound = known.then(RelaxedCapture::begin);
    accepted(call())
}

/// Queries whether something has ended, which another thread's capture may forbid.
fn answered(question: impl FnOnce() -> CUresult) -> Result<bool, DriverError> {
    let mut over = false;
    relaxed(|| {
        let answer = question();
        over = answer == CUresult::SUCCESS;
        if answer == CUresult::ERROR_NOT_READY { CUresult::SUCCESS } else { answer }
    })?;
    Ok(over)
}

pub(super) fn accepted(answer: CUresult) -> Result<(), DriverError> {
    if answer == CUresult::SUCCESS { Ok(()) } else { Err(DriverError) }
}
