//! The order of streams, and captures, in which that order is recorded instead.

use cgpu_abi::types::*;
use cgpu_launch::gate::Stream;
use cgpu_memory::Lane;

use crate::current::current_handle;
use crate::driver;

/// Handles of default streams besides null: the context's, and the thread's own.
const CU_STREAM_LEGACY: usize = 1;
const CU_STREAM_PER_THREAD: usize = 2;

/// A stream in a call, and the default stream that null means.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    stream: CUstream,
    per_thread: bool,
}

impl Order {
    pub(crate) fn legacy(stream: CUstream) -> Order {
        Order { stream, per_thread: false }
    }

    pub(crate) fn per_thread(stream: CUstream) -> Order {
        Order { stream, per_thread: true }
    }

    pub(crate) fn stream(self) -> CUstream {
        self.stream
    }

    pub(crate) fn lane(self) -> Lane {
        let own = CUstream(CU_STREAM_PER_THREAD);
        match self.stream {
            stream if stream == own || (stream.is_null() && self.per_thread) => {
                // SAFETY: no obligations.
                let thread = unsafe { libc::pthread_self() };
                Lane { stream: CU_STREAM_PER_THREAD, context: current(), thread }
            }
            CUstream(0 | CU_STREAM_LEGACY) => {
                Lane { stream: CU_STREAM_LEGACY, context: current(), thread: 0 }
            }
            CUstream(stream) => Lane { stream, context: 0, thread: 0 },
        }
    }

    /// Returns whether calls are recorded instead of executed. They are refused if the capture was
    /// broken: then nothing is charged either, and lack of memory is not the error. If the driver
    /// cannot tell, returns its error: the stream depends on a capture, or is invalid.
    pub(crate) fn is_captured(self) -> Result<bool, CUresult> {
        Ok(self.capture_status()? != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Returns whether a capture is in progress there, even a broken one; unknown counts as no.
    pub(crate) fn captures(self) -> bool {
        self.capture_status().is_ok_and(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn capture_status(self) -> Result<CUstreamCaptureStatus, CUresult> {
        let query = if self.per_thread {
            driver::cuStreamIsCapturing_ptsz
        } else {
            driver::cuStreamIsCapturing
        };
        // SAFETY: the status is writable; the program is making a call with this stream.
        driver::get(|status| unsafe { query(self.stream, status) })
    }

    pub(crate) fn is_busy(self) -> bool {
        let _unbound = RelaxedCapture::begin();
        self.query() == CUresult::ERROR_NOT_READY
    }

    /// Returns the driver's answer to whether everything in the stream has ended.
    pub(crate) fn query(self) -> CUresult {
        let query =
            if self.per_thread { driver::cuStreamQuery_ptsz } else { driver::cuStreamQuery };
        // SAFETY: the program is making a call with this stream.
        unsafe { query(self.stream) }
    }

    /// Frees memory that the program has not seen. Tries again if the driver refuses, because no
    /// other call will free it.
    pub(crate) fn free(self, address: CUdeviceptr) {
        const TRIES: u32 = 3;
        let free =
            if self.per_thread { driver::cuMemFreeAsync_ptsz } else { driver::cuMemFreeAsync };
        for _ in 0..TRIES {
            // SAFETY: the driver returned the address, and the program has not seen it.
            if unsafe { free(address, self.stream) } == CUresult::SUCCESS {
                break;
            }
        }
    }

    /// Lets the driver call a host function when the stream comes to it.
    ///
    /// # Safety
    ///
    /// `function` may be called with `data` once, at any later time and in any thread.
    pub(crate) unsafe fn call(self, function: CUhostFn, data: *mut c_void) -> CUresult {
        let call =
            if self.per_thread { driver::cuLaunchHostFunc_ptsz } else { driver::cuLaunchHostFunc };
        // SAFETY: the caller guarantees the function and its data.
        unsafe { call(self.stream, function, data) }
    }
}

impl Order {
    /// Returns the context of a stream that is no default stream, if the driver tells.
    pub(crate) fn context_of(stream: CUstream) -> Option<CUcontext> {
        if stream.0 <= CU_STREAM_PER_THREAD {
            return None;
        }
        // SAFETY: the handle is writable; the program is making a call with this stream.
        let context = driver::get(|context| unsafe { driver::cuStreamGetCtx(stream, context) });
        context.ok().filter(|context| !context.is_null())
    }
}

impl From<Stream> for Order {
    fn from(stream: Stream) -> Order {
        Order { stream: CUstream(stream.handle), per_thread: stream.per_thread }
    }
}

impl From<Order> for Stream {
    fn from(order: Order) -> Stream {
        Stream { handle: order.stream.0, per_thread: order.per_thread }
    }
}

fn current() -> usize {
    // Without a context there is no default stream, and the program's call will fail.
    current_handle().unwrap_or_default().0
}

/// Relaxed capture mode of the calling thread: while this exists, the thread may make calls that
/// another thread's capture would forbid.
pub(crate) struct RelaxedCapture {
    before: Option<CUstreamCaptureMode>,
}

impl RelaxedCapture {
    pub(crate) fn begin() -> RelaxedCapture {
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the mode is writable; `drop` restores the thread's own.
        let exchanged = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        RelaxedCapture { before: (exchanged == CUresult::SUCCESS).then_some(mode) }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: the mode is writable; it is the thread's own.
            let _ = unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}
