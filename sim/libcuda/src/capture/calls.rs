//! The functions that begin, end, query and change captures.

use std::collections::HashSet;

use cgpu_abi::types::*;

use super::{MODE, Position, Sequence, is_capturing, join, refuse_legacy};
use crate::answer::{
    Answer, ILLEGAL_STATE, INVALID_VALUE, LOSSY_QUERY, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD,
};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::graph::{Edge, Graphs, Nodes, edges};
use crate::stream;

fn begin(
    call: &Call,
    handle: CUstream,
    mode: CUstreamCaptureMode,
    into: Option<(CUgraph, Vec<Edge>)>,
) -> Answer {
    let driver = call.driver()?;
    let (stream, context) = stream::find(driver, handle, call.per_thread)?;
    if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(INVALID_VALUE);
    }
    if stream::is_legacy(driver, handle, call.per_thread) {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut graphs = Graphs::of(driver);
    if graphs.captures.streams.contains_key(&stream) {
        return Err(ILLEGAL_STATE);
    }
    let into_existing = into.is_some();
    let (graph, dependencies) = match into {
        None => (graphs.create(), Vec::new()),
        Some((graph, dependencies)) => {
            let found = graphs.graph(graph)?;
            let known = dependencies.iter().all(|edge| found.nodes.contains_key(&edge.from));
            if found.capturing || !known {
                return Err(INVALID_VALUE);
            }
            (graph, dependencies)
        }
    };
    graphs.graph_mut(graph)?.capturing = true;
    let captures = &mut graphs.captures;
    captures.made += 1;
    let sequence = captures.made;
    let thread = std::thread::current().id();
    captures.sequences.insert(
        sequence,
        Sequence { graph, into_existing, mode, thread, origin: stream, invalid: false },
    );
    let blocking = stream::is_blocking(driver, handle);
    let position =
        Position { sequence, dependencies, context: context.id, blocking, reported: None };
    captures.streams.insert(stream, position);
    captures.count();
    Ok(())
}

pub(crate) fn cuStreamBeginCapture_v2(
    call: &Call,
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> Answer {
    begin(call, stream, mode, None)
}
pub(crate) use cuStreamBeginCapture_v2 as cuStreamBeginCapture_v2_ptsz;

/// The first version had no modes: every capture was global.
pub(crate) fn cuStreamBeginCapture(call: &Call, stream: CUstream) -> Answer {
    begin(call, stream, CU_STREAM_CAPTURE_MODE_GLOBAL, None)
}
pub(crate) use cuStreamBeginCapture as cuStreamBeginCapture_ptsz;

pub(crate) fn cuStreamBeginCaptureToGraph(
    call: &Call,
    stream: CUstream,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    mode: CUstreamCaptureMode,
) -> Answer {
    let dependencies = edges(dependencies, Some(dependency_data), num_dependencies)?;
    begin(call, stream, mode, Some((graph, dependencies)))
}
pub(crate) use cuStreamBeginCaptureToGraph as cuStreamBeginCaptureToGraph_ptsz;

/// Returns all nodes that the given edges depend on, their own nodes included.
fn ancestors(nodes: &Nodes, of: &[Edge]) -> HashSet<CUgraphNode> {
    let mut found = HashSet::new();
    let mut open: Vec<CUgraphNode> = of.iter().map(|edge| edge.from).collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(
                nodes
                    .get(&next)
                    .into_iter()
                    .flat_map(|node| &node.dependencies)
                    .map(|edge| edge.from),
            );
        }
    }
    found
}

pub(crate) fn cuStreamEndCapture(call: &Call, handle: CUstream, graph: Out<CUgraph>) -> Answer {
    let driver = call.driver()?;
    let graph = graph.required()?;
    let (stream, _) = stream::find(driver, handle, call.per_thread)?;
    let mut graphs = Graphs::of(driver);
    let (position, sequence) = graphs.captures.of(stream).ok_or(ILLEGAL_STATE)?;
    if sequence.origin != stream {
        return Err(STREAM_CAPTURE_UNMATCHED);
    }
    if sequence.mode != CU_STREAM_CAPTURE_MODE_RELAXED
        && sequence.thread != std::thread::current().id()
    {
        return Err(STREAM_CAPTURE_WRONG_THREAD);
    }
    let (id, made, invalid) = (position.sequence, sequence.graph, sequence.invalid);
    let joined = {
        let nodes = &graphs.graph(made)?.nodes;
        let behind = ancestors(nodes, &position.dependencies);
        let mut others = graphs.captures.streams.values().filter(|other| other.sequence == id);
        others.all(|other| other.dependencies.iter().all(|edge| behind.contains(&edge.from)))
    };
    let temporary = graphs.captures.end(id);
    graphs.graph_mut(made)?.capturing = false;
    let failure = match (invalid, joined) {
        (true, _) => Some(STREAM_CAPTURE_INVALIDATED),
        (false, false) => Some(STREAM_CAPTURE_UNJOINED),
        (false, true) => None,
    };
    if let Some(failure) = failure {
        if let Some(temporary) = temporary {
            graphs.destroy(temporary)?;
        }
        graph.put(CUgraph::NULL)?;
        return Err(failure);
    }
    graph.put(made)?;
    Ok(())
}
pub(crate) use cuStreamEndCapture as cuStreamEndCapture_ptsz;

/// A stream's capture, as reported to the program.
struct CaptureInfo {
    status: CUstreamCaptureStatus,
    id: u64,
    graph: CUgraph,
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    plain: bool,
}

fn capture_info(call: &Call, handle: CUstream) -> Answer<CaptureInfo> {
    let driver = call.driver()?;
    let (stream, context) = stream::find(driver, handle, call.per_thread)?;
    let none = CaptureInfo {
        status: CU_STREAM_CAPTURE_STATUS_NONE,
        id: 0,
        graph: CUgraph::NULL,
        nodes: core::ptr::null(),
        data: core::ptr::null(),
        count: 0,
        plain: true,
    };
    if !is_capturing() {
        return Ok(none);
    }
    let mut graphs = Graphs::of(driver);
    let captures = &mut graphs.captures;
    refuse_legacy(driver, captures, handle, call.per_thread, &context, false)?;
    let Some((position, sequence)) = captures.of(stream) else { return Ok(none) };
    let (id, graph) = (position.sequence, sequence.graph);
    if sequence.invalid {
        return Ok(CaptureInfo { status: CU_STREAM_CAPTURE_STATUS_INVALIDATED, ..none });
    }
    let Some(position) = captures.streams.get_mut(&stream) else { return Ok(none) };
    let nodes: Box<[CUgraphNode]> = position.dependencies.iter().map(|edge| edge.from).collect();
    let data: Box<[CUgraphEdgeData]> = position.dependencies.iter().map(|edge| edge.data).collect();
    let info = CaptureInfo {
        status: CU_STREAM_CAPTURE_STATUS_ACTIVE,
        id,
        graph,
        nodes: nodes.as_ptr(),
        data: data.as_ptr(),
        count: nodes.len(),
        plain: position.dependencies.iter().all(Edge::is_plain),
    };
    position.reported = Some((nodes, data));
    Ok(info)
}

pub(crate) fn cuStreamIsCapturing(
    call: &Call,
    stream: CUstream,
    capture_status: Out<CUstreamCaptureStatus>,
) -> Answer {
    capture_status.put(capture_info(call, stream)?.status)?;
    Ok(())
}
pub(crate) use cuStreamIsCapturing as cuStreamIsCapturing_ptsz;

pub(crate) fn cuStreamGetCaptureInfo(
    call: &Call,
    stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<cuuint64_t>,
) -> Answer {
    let info = capture_info(call, stream)?;
    capture_status_out.put(info.status)?;
    if info.status == CU_STREAM_CAPTURE_STATUS_ACTIVE {
        id_out.put_if_not_null(info.id);
    }
    Ok(())
}
pub(crate) use cuStreamGetCaptureInfo as cuStreamGetCaptureInfo_ptsz;

pub(crate) fn cuStreamGetCaptureInfo_v3(
    call: &Call,
    stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<cuuint64_t>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<*const CUgraphNode>,
    edge_data_out: Out<*const CUgraphEdgeData>,
    num_dependencies_out: Out<usize>,
) -> Answer {
    let info = capture_info(call, stream)?;
    capture_status_out.put(info.status)?;
    if info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    // A caller that requests the nodes must also request the data of edges that are more than an
    // order.
    if !info.plain && !dependencies_out.is_null() && edge_data_out.is_null() {
        return Err(LOSSY_QUERY);
    }
    id_out.put_if_not_null(info.id);
    graph_out.put_if_not_null(info.graph);
    dependencies_out.put_if_not_null(info.nodes);
    edge_data_out.put_if_not_null(info.data);
    num_dependencies_out.put_if_not_null(info.count);
    Ok(())
}
pub(crate) use cuStreamGetCaptureInfo_v3 as cuStreamGetCaptureInfo_v3_ptsz;

pub(crate) fn cuStreamGetCaptureInfo_v2(
    call: &Call,
    stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<cuuint64_t>,
    graph_out: Out<CUgraph>,
    dependencies_out: Out<*const CUgraphNode>,
    num_dependencies_out: Out<usize>,
) -> Answer {
    let (status, nodes, count) = (capture_status_out, dependencies_out, num_dependencies_out);
    cuStreamGetCaptureInfo_v3(call, stream, status, id_out, graph_out, nodes, Out::NONE, count)
}
pub(crate) use cuStreamGetCaptureInfo_v2 as cuStreamGetCaptureInfo_v2_ptsz;

fn update(call: &Call, handle: CUstream, dependencies: Vec<Edge>, flags: c_uint) -> Answer {
    let driver = call.driver()?;
    let (stream, _) = stream::find(driver, handle, call.per_thread)?;
    if flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES {
        return Err(INVALID_VALUE);
    }
    let mut graphs = Graphs::of(driver);
    let (_, sequence) = graphs.captures.of(stream).ok_or(ILLEGAL_STATE)?;
    if sequence.invalid {
        return Err(STREAM_CAPTURE_INVALIDATED);
    }
    let nodes = &graphs.graph(sequence.graph)?.nodes;
    if !dependencies.iter().all(|edge| nodes.contains_key(&edge.from)) {
        return Err(INVALID_VALUE);
    }
    if let Some(position) = graphs.captures.streams.get_mut(&stream) {
        if flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES {
            position.dependencies.clear();
        }
        join(&mut position.dependencies, dependencies);
    }
    Ok(())
}

pub(crate) fn cuStreamUpdateCaptureDependencies(
    call: &Call,
    stream: CUstream,
    dependencies: Out<CUgraphNode>,
    num_dependencies: usize,
    flags: c_uint,
) -> Answer {
    let nodes = dependencies.read_all(num_dependencies)?;
    update(call, stream, nodes.into_iter().map(Edge::plain).collect(), flags)
}
pub(crate) use cuStreamUpdateCaptureDependencies as cuStreamUpdateCaptureDependencies_ptsz;

pub(crate) fn cuStreamUpdateCaptureDependencies_v2(
    call: &Call,
    stream: CUstream,
    dependencies: Out<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    flags: c_uint,
) -> Answer {
    let nodes = dependencies.read_all(num_dependencies)?;
    let data = match dependency_data.required() {
        Ok(data) => data.read_all(num_dependencies)?,
        Err(_) => vec![CUgraphEdgeData::default(); num_dependencies],
    };
    let edges = nodes.into_iter().zip(data).map(|(from, data)| Edge { from, data }).collect();
    update(call, stream, edges, flags)
}
pub(crate) use cuStreamUpdateCaptureDependencies_v2 as cuStreamUpdateCaptureDependencies_v2_ptsz;

pub(crate) fn cuThreadExchangeStreamCaptureMode(
    call: &Call,
    mode: Out<CUstreamCaptureMode>,
) -> Answer {
    call.driver()?;
    let requested = mode.read()?;
    if requested > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(INVALID_VALUE);
    }
    mode.put(MODE.replace(requested))?;
    Ok(())
}
