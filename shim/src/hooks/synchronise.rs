//! Synchronization: the driver lets pools release memory above their thresholds, and the gate may
//! have to report that work has run.

use cgpu_abi::driver::DefaultStream;
use cgpu_abi::types::{CUcontext, CUevent, CUresult, CUstream};

use crate::gate::{self, Synchronized};
use crate::{driver, process};

pub(crate) unsafe fn cuCtxSynchronize() -> CUresult {
    // SAFETY: the program's own call.
    report(Synchronized::Current, unsafe { driver::cuCtxSynchronize() })
}

pub(crate) unsafe fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    // SAFETY: the program's own call.
    report(Synchronized::Context(context), unsafe { driver::cuCtxSynchronize_v2(context) })
}

pub(crate) unsafe fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    report(Synchronized::Stream(stream, DefaultStream::Legacy), unsafe {
        driver::cuStreamSynchronize(stream)
    })
}

/// One stream; null is the thread's own.
pub(crate) unsafe fn cuStreamSynchronize_ptsz(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    report(Synchronized::Stream(stream, DefaultStream::PerThread), unsafe {
        driver::cuStreamSynchronize_ptsz(stream)
    })
}

pub(crate) unsafe fn cuEventSynchronize(event: CUevent) -> CUresult {
    // SAFETY: the program's own call.
    refresh_pools(unsafe { driver::cuEventSynchronize(event) })
}

/// Updates the pools, and reports that the synchronized work has run.
#[inline]
fn report(synchronized: Synchronized, answer: CUresult) -> CUresult {
    if answer == CUresult::SUCCESS {
        gate::after_synchronize(synchronized);
    }
    refresh_pools(answer)
}

/// Marks all pools to be read again, if there are any.
#[inline]
pub(crate) fn refresh_pools(answer: CUresult) -> CUresult {
    if let Some(tenant) = process::tenant() {
        tenant.pools().all_changed(None);
    }
    answer
}
