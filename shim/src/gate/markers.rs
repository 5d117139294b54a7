//! What the gate puts on the program's streams, and how it asks the driver about it.
//!
//! Events are the calling thread's current context's. Calls that a capture of another thread may
//! forbid (making and asking events, registering memory) are made in the relaxed capture mode, and
//! not at all while a capture in the global mode goes on ([`captures`]) and for a second after one
//! was seen that we had not heard of: it may have gone on for as long, in any mode.

use cgpu_abi::driver_index;
use cgpu_abi::types::*;
use cgpu_launch::gate::{ContextKey, Driver, DriverError, Event, Stream};
use cgpu_memory::{Clock, Monotonic, Nanos, TimeScale};
use cgpu_shm::atomic::{AtomicU64, Ordering::Relaxed};

use super::progress;
use crate::library::DRIVER;
use crate::{captures, driver};

/// The driver is not queried for so long after a capture was seen whose beginning the shim missed.
const CAPTURE_COOLDOWN: Nanos = Nanos::from_millis(1000);

/// When such a capture was last seen; 0: never.
static LAST_UNKNOWN_CAPTURE_NANOS: AtomicU64 = AtomicU64::new(0);

/// The driver, as a thread with this current context sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Markers {
    pub(super) context: CUcontext,
    /// How slow the GPU's clock is.
    pub(super) time_scale: TimeScale,
}

impl Driver for Markers {
    fn is_capturing(&self, stream: Stream) -> bool {
        if DRIVER.known(driver_index::cuStreamIsCapturing).is_null() {
            // Before 10.0 there were no captures.
            return false;
        }
        let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
        let handle = CUstream(stream.handle);
        let answer = if stream.per_thread {
            // SAFETY: the stream is the program's, which is just launching into it; the status is
            // writable.
            unsafe { driver::cuStreamIsCapturing_ptsz(handle, &raw mut status) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuStreamIsCapturing(handle, &raw mut status) }
        };
        // A question that is refused (906: another stream's capture forbids it) is as good as a
        // yes.
        let capturing = answer != CUresult::SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
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
        let handle = CUstream(stream.handle);
        if stream.per_thread {
            // SAFETY: the stream is the program's, which is just launching into it.
            answered(|| unsafe { driver::cuStreamQuery_ptsz(handle) })
        } else {
            // SAFETY: as above.
            answered(|| unsafe { driver::cuStreamQuery(handle) })
        }
    }

    fn create_event(&self) -> Result<Event, DriverError> {
        let mut event = CUevent::NULL;
        // SAFETY: the handle is writable.
        relaxed(|| unsafe { driver::cuEventCreate(&raw mut event, CU_EVENT_DEFAULT) })?;
        Ok(Event(event.0))
    }

    fn record_event(&self, event: Event, stream: Stream) -> Result<(), DriverError> {
        let (event, handle) = (CUevent(event.0), CUstream(stream.handle));
        accepted(if stream.per_thread {
            // SAFETY: the event is ours, of this context; the stream is the program's, which is
            // just launching into it.
            unsafe { driver::cuEventRecord_ptsz(event, handle) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuEventRecord(event, handle) }
        })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u64) -> Result<(), DriverError> {
        if DRIVER.known(driver_index::cuStreamWriteValue64_v2).is_null() {
            return Err(DriverError);
        }
        let address = progress::address(self, word).ok_or(DriverError)?;
        let (handle, flags) = (CUstream(stream.handle), CU_STREAM_WRITE_VALUE_DEFAULT);
        accepted(if stream.per_thread {
            // SAFETY: the stream is the program's; the address is a word of a page of ours,
            // registered in this context.
            unsafe { driver::cuStreamWriteValue64_v2_ptsz(handle, address, value, flags) }
        } else {
            // SAFETY: as above.
            unsafe { driver::cuStreamWriteValue64_v2(handle, address, value, flags) }
        })
    }

    fn read_word(&self, context: ContextKey, word: usize) -> u64 {
        progress::written(context.0, word)
    }

    fn has_completed(&self, event: Event) -> Result<bool, DriverError> {
        // SAFETY: the event is ours, of this context.
        answered(|| unsafe { driver::cuEventQuery(CUevent(event.0)) })
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: the time is writable; both events are ours, of this context.
        relaxed(|| unsafe {
            driver::cuEventElapsedTime(&raw mut milliseconds, CUevent(from.0), CUevent(to.0))
        })?;
        // Not a number: zero.
        #[allow(clippy::cast_possible_truncation)]
        let nanoseconds = (f64::from(milliseconds) * 1e6) as i64;
        let host = self.time_scale.host(Nanos(nanoseconds.unsigned_abs()));
        let host = i64::try_from(host.0).unwrap_or(i64::MAX);
        Ok(if nanoseconds < 0 { -host } else { host })
    }
}

/// Notes that a capture may go on of which nothing is known.
pub(super) fn note_unknown_capture() {
    LAST_UNKNOWN_CAPTURE_NANOS.store(Monotonic.now().0, Relaxed);
}

/// Makes a call that a capture of another thread may forbid.
pub(super) fn relaxed(call: impl FnOnce() -> CUresult) -> Result<(), DriverError> {
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    let known = !DRIVER.known(driver_index::cuThreadExchangeStreamCaptureMode).is_null();
    // SAFETY: the mode is writable; the thread gets its own back below.
    let exchanged = known
        && unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) } == CUresult::SUCCESS;
    let answer = call();
    if exchanged {
        // SAFETY: as above; this is the thread's own mode.
        let _ = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    }
    accepted(answer)
}

/// Asks a question that a capture of another thread may forbid: whether something has ended.
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
