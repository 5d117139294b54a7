//! Captures: records when they begin and end, for the gate.

use cgpu_abi::types::*;

use crate::order::Order;
use crate::{captures, driver};

/// Before there were modes, every capture was global.
pub(crate) unsafe fn cuStreamBeginCapture(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuStreamBeginCapture(stream) };
    captures::begin(Order::legacy(stream), CU_STREAM_CAPTURE_MODE_GLOBAL, call)
}

pub(crate) unsafe fn cuStreamBeginCapture_ptsz(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuStreamBeginCapture_ptsz(stream) };
    captures::begin(Order::per_thread(stream), CU_STREAM_CAPTURE_MODE_GLOBAL, call)
}

/// With a capture mode.
pub(crate) unsafe fn cuStreamBeginCapture_v2(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call.
    captures::begin(Order::legacy(stream), mode, || unsafe {
        driver::cuStreamBeginCapture_v2(stream, mode)
    })
}

pub(crate) unsafe fn cuStreamBeginCapture_v2_ptsz(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuStreamBeginCapture_v2_ptsz(stream, mode) };
    captures::begin(Order::per_thread(stream), mode, call)
}

/// Into an existing graph.
pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    dependency_data: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call.
    captures::begin(Order::legacy(stream), mode, || unsafe {
        driver::cuStreamBeginCaptureToGraph(
            stream,
            graph,
            dependencies,
            dependency_data,
            count,
            mode,
        )
    })
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph_ptsz(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    dependency_data: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own call.
    captures::begin(Order::per_thread(stream), mode, || unsafe {
        driver::cuStreamBeginCaptureToGraph_ptsz(
            stream,
            graph,
            dependencies,
            dependency_data,
            count,
            mode,
        )
    })
}

/// Over an existing graph, node by node.
pub(crate) unsafe fn cuStreamBeginRecaptureToGraph(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    callback: CUgraphRecaptureCallback,
    data: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    captures::begin(Order::legacy(stream), mode, || unsafe {
        driver::cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, data)
    })
}

pub(crate) unsafe fn cuStreamBeginRecaptureToGraph_ptsz(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    callback: CUgraphRecaptureCallback,
    data: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    captures::begin(Order::per_thread(stream), mode, || unsafe {
        driver::cuStreamBeginRecaptureToGraph_ptsz(stream, mode, graph, callback, data)
    })
}

/// Ends the capture and returns the graph.
pub(crate) unsafe fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    // SAFETY: the program's own call.
    captures::end(Order::legacy(stream), || unsafe { driver::cuStreamEndCapture(stream, graph) })
}

pub(crate) unsafe fn cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph) -> CUresult {
    // SAFETY: the program's own call.
    captures::end(Order::per_thread(stream), || unsafe {
        driver::cuStreamEndCapture_ptsz(stream, graph)
    })
}

pub(crate) unsafe fn cuStreamDestroy(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    destroyed(stream, || unsafe { driver::cuStreamDestroy(stream) })
}

/// A capture in the stream ends with it.
pub(crate) unsafe fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    // SAFETY: the program's own call.
    destroyed(stream, || unsafe { driver::cuStreamDestroy_v2(stream) })
}

fn destroyed(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    let answer = call();
    if answer == CUresult::SUCCESS {
        captures::stream_destroyed(stream);
    }
    answer
}
