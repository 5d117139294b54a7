//! Synchronization: the driver lets pools release memory above their thresholds, and the gate may
//! have to report that work has run.

use cgpu_abi::types::{CUcontext, CUevent, CUresult, CUstream};

use crate::gate::{self, Synchronized};
use crate::{driver, process};

hooks! { call;
    cuCtxSynchronize() => report(Synchronized::Current, call());
    cuCtxSynchronize_v2(context: CUcontext) => report(Synchronized::Context(context), call());
    cuEventSynchronize(event: CUevent) => refresh_pools(call());
}

hooks! { call, order;
    cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: CUstream) =>
        report(Synchronized::Stream(order(stream)), call());
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
