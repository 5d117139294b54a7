//! Waiting for the card: the driver lets pools give back what is above their thresholds then.

use cgpu_abi::types::{CUcontext, CUevent, CUresult, CUstream};

use crate::{driver, process};

/// All streams of the current context.
pub(crate) unsafe fn cuCtxSynchronize() -> CUresult {
    // SAFETY: the program's own call.
    waited(unsafe { driver::cuCtxSynchronize() })
}

/// All streams of a context.
pub(crate) unsafe fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    // SAFETY: the program's own call.
    waited(unsafe { driver::cuCtxSynchronize_v2(context) })
}

/// One stream.
pub(crate) unsafe fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    waited(unsafe { driver::cuStreamSynchronize(stream) })
}

/// One stream; none is the thread's own.
pub(crate) unsafe fn cuStreamSynchronize_ptsz(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    waited(unsafe { driver::cuStreamSynchronize_ptsz(stream) })
}

/// A place in a stream.
pub(crate) unsafe fn cuEventSynchronize(event: CUevent) -> CUresult {
    // SAFETY: the program's own call.
    waited(unsafe { driver::cuEventSynchronize(event) })
}

/// What pools hold is read again; nothing, where there are none.
#[inline]
pub(crate) fn waited(answer: CUresult) -> CUresult {
    if let Some(tenant) = process::tenant() {
        tenant.pools_changed(None);
    }
    answer
}
