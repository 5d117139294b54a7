//! Captures: records when they begin and end, for the gate.

use cgpu_abi::types::*;

use crate::{captures, driver};

hooks! { call, order;
    // Before there were modes, every capture was global.
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz(stream: CUstream) =>
        captures::begin(order(stream), CU_STREAM_CAPTURE_MODE_GLOBAL, call);

    // With a capture mode.
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz(
        stream: CUstream, mode: CUstreamCaptureMode,
    ) => captures::begin(order(stream), mode, call);

    // Into an existing graph.
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz(
        stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode,
    ) => captures::begin(order(stream), mode, call);

    // Over an existing graph, node by node.
    cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz(
        stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph,
        callback: CUgraphRecaptureCallback, data: *mut c_void,
    ) => captures::begin(order(stream), mode, call);

    // Ends the capture and returns the graph.
    cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: CUstream, graph: *mut CUgraph) =>
        captures::end(order(stream), call);
}

hooks! { call;
    // A capture in the stream ends with it.
    cuStreamDestroy, cuStreamDestroy_v2(stream: CUstream) => destroyed(stream, call);
}

fn destroyed(stream: CUstream, call: impl FnOnce() -> CUresult) -> CUresult {
    let answer = call();
    if answer == CUresult::SUCCESS {
        captures::stream_destroyed(stream);
    }
    answer
}
