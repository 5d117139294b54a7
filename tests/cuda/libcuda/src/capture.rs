//! Stream capture: what is put into a stream becomes nodes of a graph instead.
//!
//! A capture is a *sequence*: the stream in which it began, the streams that have joined it since by waiting for events recorded in it,
//! and the graph that they make. Each of its streams has a position: the nodes that its next node will depend on. Every call that puts
//! something into a stream asks for its [`Lane`], which is the card or a graph; every other call that uses a stream is refused where
//! that stream captures, and what it broke is invalid from then on.
//!
//! | error | when |
//! |---|---|
//! | 900 UNSUPPORTED | a call that cannot be captured, or is not safe while a capture of a mode that says so goes on |
//! | 901 INVALIDATED | the capture was broken before |
//! | 902 MERGE | a wait for an event of another capture |
//! | 903 UNMATCHED | an end in another stream than the begin |
//! | 904 UNJOINED | an end while streams that joined have work that the first stream does not wait for |
//! | 905 ISOLATION | a wait for an event that was recorded outside of any capture |
//! | 906 IMPLICIT | a use of the legacy stream while a blocking stream of its context captures |
//! | 907 CAPTURED_EVENT | a question to an event that was last recorded in a capture |
//! | 908 WRONG_THREAD | an end in another thread than the begin, unless the mode is relaxed |

use core::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use cgpu_abi::driver_index as row;
use cgpu_abi::types::*;
use cgpu_proto::atomic::{AtomicUsize, Ordering};
use cgpu_sim::machine::{ContextId, StreamId};

use crate::answer::{
    Answer, CAPTURED_EVENT, ILLEGAL_STATE, INVALID_VALUE, LOSSY_QUERY, STREAM_CAPTURE_IMPLICIT,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNJOINED,
    STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_WRONG_THREAD,
};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::node::Body;
use crate::graph::{Edge, Graphs, Nodes, Reservation, edges};
use crate::stream;

/// A capture.
#[derive(Debug)]
struct Sequence {
    graph: CUgraph,
    /// The graph was there before, and stays whatever becomes of the capture.
    into_existing: bool,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    origin: StreamId,
    invalid: bool,
}

/// Dependencies, as a program wants to see them: nodes and the data of their edges.
type Dependencies = (Box<[CUgraphNode]>, Box<[CUgraphEdgeData]>);

/// Where a stream is in its capture.
#[derive(Debug)]
struct Position {
    sequence: u64,
    dependencies: Vec<Edge>,
    context: ContextId,
    blocking: bool,
    /// What the program was told last of the dependencies; it may look at it until the next call for this stream.
    told: Option<Dependencies>,
}

/// An event that was last recorded in a capture.
#[derive(Debug)]
struct Mark {
    sequence: u64,
    dependencies: Vec<Edge>,
}

/// All captures of the process.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    sequences: HashMap<u64, Sequence>,
    streams: HashMap<StreamId, Position>,
    marks: HashMap<CUevent, Mark>,
    made: u64,
}

/// Captures that go on: while there are none, no call has to look.
static SEQUENCES: AtomicUsize = AtomicUsize::new(0);
/// Events that were last recorded in a capture.
static MARKS: AtomicUsize = AtomicUsize::new(0);

/// Whether any stream captures.
///
/// Relaxed: whoever made one capture in another thread has told this one by means of the program's own.
fn is_capturing() -> bool {
    SEQUENCES.load(Ordering::Relaxed) != 0
}

/// Whether any event stands for work of a capture. Relaxed: as above.
fn is_marked() -> bool {
    MARKS.load(Ordering::Relaxed) != 0
}

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

impl Captures {
    fn count(&self) {
        SEQUENCES.store(self.sequences.len(), Ordering::Relaxed);
        MARKS.store(self.marks.len(), Ordering::Relaxed);
    }

    fn invalidate(&mut self, sequence: u64) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.invalid = true;
        }
    }

    /// The sequence that a stream is in.
    fn of(&self, stream: StreamId) -> Option<(&Position, &Sequence)> {
        let position = self.streams.get(&stream)?;
        Some((position, self.sequences.get(&position.sequence)?))
    }

    /// Sequences with a blocking stream in a context.
    fn blocking_in(&self, context: &Context) -> Vec<u64> {
        let its = |position: &&Position| position.blocking && position.context == context.id;
        self.streams.values().filter(its).map(|position| position.sequence).collect()
    }

    /// What a call that is not safe beside a capture breaks, from a thread in its own mode.
    fn broken_by_unsafe_call(&self) -> Vec<u64> {
        let (mode, thread) = (MODE.get(), std::thread::current().id());
        let breaks = |sequence: &Sequence| match mode {
            CU_STREAM_CAPTURE_MODE_RELAXED => false,
            _ if sequence.thread == thread => sequence.mode != CU_STREAM_CAPTURE_MODE_RELAXED,
            CU_STREAM_CAPTURE_MODE_GLOBAL => sequence.mode == CU_STREAM_CAPTURE_MODE_GLOBAL,
            _ => false,
        };
        self.sequences.iter().filter(|(_, sequence)| breaks(sequence)).map(|(&id, _)| id).collect()
    }

    /// A node is gone: nothing will depend on it.
    pub(crate) fn forget_node(&mut self, node: CUgraphNode) {
        for position in self.streams.values_mut() {
            position.dependencies.retain(|edge| edge.from != node);
        }
    }

    /// A stream is gone; the capture that began there, which nobody can end any more. One that it has joined is broken.
    fn forget_stream(&mut self, stream: StreamId) -> Option<u64> {
        let id = self.streams.remove(&stream)?.sequence;
        if self.sequences.get(&id).is_some_and(|sequence| sequence.origin == stream) {
            return Some(id);
        }
        self.invalidate(id);
        None
    }

    /// Ends a sequence; the graph that was made for it.
    fn end(&mut self, id: u64) -> Option<CUgraph> {
        let sequence = self.sequences.remove(&id)?;
        self.streams.retain(|_, position| position.sequence != id);
        self.count();
        (!sequence.into_existing).then_some(sequence.graph)
    }
}

/// Where what is put into a stream goes.
pub(crate) enum Lane {
    /// To the card.
    Card(StreamId, Arc<Context>),
    /// Into a graph.
    Graph(Recorder),
}

/// A stream that captures.
pub(crate) struct Recorder {
    stream: StreamId,
    pub(crate) context: Arc<Context>,
}

impl Recorder {
    /// Adds a node after what the stream has come to.
    pub(crate) fn add(&self, driver: &Driver, body: Body) -> Answer {
        self.append(driver, |graphs, graph, dependencies| graphs.add(graph, dependencies, body))
    }

    /// Adds an executable graph's nodes, as a child.
    pub(crate) fn add_graph(
        &self,
        driver: &Driver,
        root: CUgraph,
        shapes: &HashMap<CUgraph, Nodes>,
    ) -> Answer {
        self.append(driver, |graphs, graph, dependencies| graphs.add_nodes(graph, dependencies, root, shapes))
    }

    fn append(
        &self,
        driver: &Driver,
        add: impl FnOnce(&mut Graphs, CUgraph, Vec<Edge>) -> Answer<CUgraphNode>,
    ) -> Answer {
        let mut graphs = Graphs::of(driver);
        let (position, sequence) = graphs.captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?;
        let (graph, dependencies) = (sequence.graph, position.dependencies.clone());
        let node = add(&mut graphs, graph, dependencies)?;
        if let Some(position) = graphs.captures.streams.get_mut(&self.stream) {
            position.dependencies = vec![Edge::plain(node)];
        }
        Ok(())
    }

    /// The graph that the capture makes.
    fn graph(&self, driver: &Driver) -> Answer<CUgraph> {
        let graphs = Graphs::of(driver);
        Ok(graphs.captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?.1.graph)
    }

    /// Allocates in the graph; where.
    pub(crate) fn allocate(&self, driver: &Driver, bytes: u64) -> Answer<CUdeviceptr> {
        let device = self.context.device();
        let access = CUmemAccessDesc {
            location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let reservation = Reservation::new(driver, bytes, device, vec![access])?;
        reservation.set_owner(self.graph(driver)?);
        let first = reservation.first;
        self.add(driver, Body::Allocate(reservation))?;
        Ok(first)
    }

    /// Frees in the graph what a graph has allocated.
    pub(crate) fn free(&self, driver: &Driver, address: CUdeviceptr) -> Answer {
        let reservation = Reservation::find(driver, address).ok_or(INVALID_VALUE)?;
        reservation.freed_in(self.graph(driver)?)?;
        self.add(driver, Body::Free(address))
    }

    /// Lets an event stand for what the stream has come to.
    pub(crate) fn mark(&self, driver: &Driver, event: CUevent) -> Answer {
        let mut graphs = Graphs::of(driver);
        let captures = &mut graphs.captures;
        let (position, _) = captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?;
        let mark = Mark { sequence: position.sequence, dependencies: position.dependencies.clone() };
        captures.marks.insert(event, mark);
        captures.count();
        Ok(())
    }

    /// Lets what comes next wait for an event as well.
    pub(crate) fn wait(&self, driver: &Driver, event: CUevent) -> Answer {
        let mut graphs = Graphs::of(driver);
        let captures = &mut graphs.captures;
        let own = captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?.0.sequence;
        let Some(mark) = captures.marks.get(&event) else {
            captures.invalidate(own);
            return Err(STREAM_CAPTURE_ISOLATION);
        };
        let (other, dependencies) = (mark.sequence, mark.dependencies.clone());
        if other != own {
            let goes_on = captures.sequences.contains_key(&other);
            captures.invalidate(own);
            captures.invalidate(other);
            return Err(if goes_on { STREAM_CAPTURE_MERGE } else { STREAM_CAPTURE_ISOLATION });
        }
        if let Some(position) = captures.streams.get_mut(&self.stream) {
            join(&mut position.dependencies, dependencies);
        }
        Ok(())
    }
}

fn join(to: &mut Vec<Edge>, more: Vec<Edge>) {
    for edge in more {
        if !to.iter().any(|other| other.from == edge.from) {
            to.push(edge);
        }
    }
}

/// Where what a call puts into a stream goes.
pub(crate) fn lane(driver: &Driver, handle: CUstream, per_thread: bool) -> Answer<Lane> {
    let (stream, context) = stream::find(driver, handle, per_thread)?;
    if !is_capturing() {
        return Ok(Lane::Card(stream, context));
    }
    let mut graphs = Graphs::of(driver);
    let captures = &mut graphs.captures;
    refuse_legacy(driver, captures, handle, per_thread, &context, true)?;
    match captures.of(stream) {
        None => Ok(Lane::Card(stream, context)),
        Some((_, sequence)) if sequence.invalid => Err(STREAM_CAPTURE_INVALIDATED),
        Some(_) => Ok(Lane::Graph(Recorder { stream, context })),
    }
}

/// Refuses the legacy stream while a blocking stream of its context captures.
fn refuse_legacy(
    driver: &Driver,
    captures: &mut Captures,
    handle: CUstream,
    per_thread: bool,
    context: &Context,
    breaks: bool,
) -> Answer {
    if !stream::is_legacy(driver, handle, per_thread) {
        return Ok(());
    }
    let broken = captures.blocking_in(context);
    if broken.is_empty() {
        return Ok(());
    }
    if breaks {
        broken.into_iter().for_each(|sequence| captures.invalidate(sequence));
    }
    Err(STREAM_CAPTURE_IMPLICIT)
}

/// The stream of a call that cannot be captured.
pub(crate) fn refuse(
    driver: &Driver,
    handle: CUstream,
    per_thread: bool,
) -> Answer<(StreamId, Arc<Context>)> {
    match lane(driver, handle, per_thread)? {
        Lane::Card(stream, context) => Ok((stream, context)),
        Lane::Graph(Recorder { stream, .. }) => {
            let mut graphs = Graphs::of(driver);
            if let Some(sequence) = graphs.captures.of(stream).map(|(position, _)| position.sequence) {
                graphs.captures.invalidate(sequence);
            }
            Err(STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Refuses a call that is not safe beside the captures that go on, and breaks those.
pub(crate) fn refuse_unsafe(driver: &Driver) -> Answer {
    if !is_capturing() {
        return Ok(());
    }
    let mut graphs = Graphs::of(driver);
    let broken = graphs.captures.broken_by_unsafe_call();
    if broken.is_empty() {
        return Ok(());
    }
    broken.into_iter().for_each(|sequence| graphs.captures.invalidate(sequence));
    Err(STREAM_CAPTURE_UNSUPPORTED)
}

/// Calls that may wait for the card, or for what a capture holds back, wherever they are made.
const UNSAFE: [usize; 26] = [
    row::cuCtxCreate,
    row::cuCtxCreate_v2,
    row::cuCtxCreate_v3,
    row::cuCtxCreate_v4,
    row::cuCtxDestroy,
    row::cuCtxDestroy_v2,
    row::cuCtxSynchronize,
    row::cuDevicePrimaryCtxReset,
    row::cuDevicePrimaryCtxReset_v2,
    row::cuMemAlloc,
    row::cuMemAlloc_v2,
    row::cuMemAllocPitch,
    row::cuMemAllocPitch_v2,
    row::cuMemAllocManaged,
    row::cuMemAllocHost,
    row::cuMemAllocHost_v2,
    row::cuMemHostAlloc,
    row::cuMemHostRegister,
    row::cuMemHostRegister_v2,
    row::cuMemHostUnregister,
    row::cuMemFree,
    row::cuMemFree_v2,
    row::cuMemFreeHost,
    row::cuArrayCreate_v2,
    row::cuArray3DCreate_v2,
    row::cuArrayDestroy,
];

/// Looks at a call before it does anything.
pub(crate) fn admit(position: usize) -> Answer {
    if !is_capturing() || !UNSAFE.contains(&position) {
        return Ok(());
    }
    // A forked child finds its parent's locks as they were.
    Driver::get().filter(|driver| !driver.machine.is_inherited()).map_or(Ok(()), refuse_unsafe)
}

/// Refuses a question to an event that was last recorded in a capture, and breaks that.
pub(crate) fn refuse_captured(driver: &Driver, event: CUevent) -> Answer {
    if !is_marked() {
        return Ok(());
    }
    let mut graphs = Graphs::of(driver);
    match graphs.captures.marks.get(&event).map(|mark| mark.sequence) {
        Some(sequence) => {
            graphs.captures.invalidate(sequence);
            Err(CAPTURED_EVENT)
        }
        None => Ok(()),
    }
}

/// An event is recorded on the card, or gone: what it stood for in a capture is forgotten.
pub(crate) fn unmark(driver: &Driver, event: CUevent) {
    if is_marked() {
        let mut graphs = Graphs::of(driver);
        graphs.captures.marks.remove(&event);
        graphs.captures.count();
    }
}

/// A stream that does not capture waits for an event: if that stands for work of a capture, the stream joins it.
pub(crate) fn join_by(
    driver: &Driver,
    handle: CUstream,
    per_thread: bool,
    (stream, context): (StreamId, &Context),
    event: CUevent,
) -> Answer<bool> {
    if !is_marked() {
        return Ok(false);
    }
    let mut graphs = Graphs::of(driver);
    let captures = &mut graphs.captures;
    let Some(mark) = captures.marks.get(&event) else { return Ok(false) };
    let (sequence, dependencies) = (mark.sequence, mark.dependencies.clone());
    match captures.sequences.get(&sequence) {
        None => return Err(CAPTURED_EVENT),
        Some(there) if there.invalid => return Err(STREAM_CAPTURE_INVALIDATED),
        Some(_) => {}
    }
    if stream::is_legacy(driver, handle, per_thread) {
        captures.invalidate(sequence);
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let blocking = stream::is_blocking(driver, handle);
    let position = Position { sequence, dependencies, context: context.id, blocking, told: None };
    captures.streams.insert(stream, position);
    Ok(true)
}

impl Graphs {
    /// Ends a capture that nobody will end.
    fn abandon(&mut self, sequence: u64) {
        let Some(graph) = self.captures.sequences.get(&sequence).map(|sequence| sequence.graph) else {
            return;
        };
        if self.captures.end(sequence).is_some() {
            // It is there: only the end of a capture makes such a graph the program's.
            let _ = self.destroy(graph);
        } else if let Ok(graph) = self.graph_mut(graph) {
            graph.capturing = false;
        }
    }
}

/// A stream is gone.
pub(crate) fn forget_stream(driver: &Driver, stream: StreamId) {
    if is_capturing() && !driver.machine.is_inherited() {
        let mut graphs = Graphs::of(driver);
        if let Some(sequence) = graphs.captures.forget_stream(stream) {
            graphs.abandon(sequence);
        }
    }
}

/// A context is gone, with its streams: whatever they captured has come to its end.
pub(crate) fn forget_context(driver: &Driver, context: &Context) {
    if is_capturing() {
        let mut graphs = Graphs::of(driver);
        let its = |position: &&Position| position.context == context.id;
        let ended: Vec<u64> =
            graphs.captures.streams.values().filter(its).map(|position| position.sequence).collect();
        ended.into_iter().for_each(|sequence| graphs.abandon(sequence));
    }
}

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
            let there = graphs.graph(graph)?;
            let known = dependencies.iter().all(|edge| there.nodes.contains_key(&edge.from));
            if there.capturing || !known {
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
    captures
        .sequences
        .insert(sequence, Sequence { graph, into_existing, mode, thread, origin: stream, invalid: false });
    let blocking = stream::is_blocking(driver, handle);
    let position = Position { sequence, dependencies, context: context.id, blocking, told: None };
    captures.streams.insert(stream, position);
    captures.count();
    Ok(())
}

pub(crate) fn cuStreamBeginCapture_v2(call: &Call, stream: CUstream, mode: CUstreamCaptureMode) -> Answer {
    begin(call, stream, mode, None)
}
pub(crate) use cuStreamBeginCapture_v2 as cuStreamBeginCapture_v2_ptsz;

/// Before there were modes, every capture was global.
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

/// All that nodes depend on, themselves included.
fn ancestors(nodes: &Nodes, of: &[Edge]) -> std::collections::HashSet<CUgraphNode> {
    let mut found = std::collections::HashSet::new();
    let mut open: Vec<CUgraphNode> = of.iter().map(|edge| edge.from).collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(
                nodes.get(&next).into_iter().flat_map(|node| &node.dependencies).map(|edge| edge.from),
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
    if sequence.mode != CU_STREAM_CAPTURE_MODE_RELAXED && sequence.thread != std::thread::current().id() {
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

/// What the program is told of a stream's capture.
struct Told {
    status: CUstreamCaptureStatus,
    id: u64,
    graph: CUgraph,
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    plain: bool,
}

fn tell(call: &Call, handle: CUstream) -> Answer<Told> {
    let driver = call.driver()?;
    let (stream, context) = stream::find(driver, handle, call.per_thread)?;
    let none = Told {
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
        return Ok(Told { status: CU_STREAM_CAPTURE_STATUS_INVALIDATED, ..none });
    }
    let Some(position) = captures.streams.get_mut(&stream) else { return Ok(none) };
    let nodes: Box<[CUgraphNode]> = position.dependencies.iter().map(|edge| edge.from).collect();
    let data: Box<[CUgraphEdgeData]> = position.dependencies.iter().map(|edge| edge.data).collect();
    let told = Told {
        status: CU_STREAM_CAPTURE_STATUS_ACTIVE,
        id,
        graph,
        nodes: nodes.as_ptr(),
        data: data.as_ptr(),
        count: nodes.len(),
        plain: position.dependencies.iter().all(Edge::is_plain),
    };
    position.told = Some((nodes, data));
    Ok(told)
}

pub(crate) fn cuStreamIsCapturing(
    call: &Call,
    stream: CUstream,
    capture_status: Out<CUstreamCaptureStatus>,
) -> Answer {
    capture_status.put(tell(call, stream)?.status)?;
    Ok(())
}
pub(crate) use cuStreamIsCapturing as cuStreamIsCapturing_ptsz;

pub(crate) fn cuStreamGetCaptureInfo(
    call: &Call,
    stream: CUstream,
    capture_status_out: Out<CUstreamCaptureStatus>,
    id_out: Out<cuuint64_t>,
) -> Answer {
    let told = tell(call, stream)?;
    capture_status_out.put(told.status)?;
    if told.status == CU_STREAM_CAPTURE_STATUS_ACTIVE {
        id_out.put_if_asked(told.id);
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
    let told = tell(call, stream)?;
    capture_status_out.put(told.status)?;
    if told.status != CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    // Who asks for nodes must be told of edges that are more than an order.
    if !told.plain && !dependencies_out.is_null() && edge_data_out.is_null() {
        return Err(LOSSY_QUERY);
    }
    id_out.put_if_asked(told.id);
    graph_out.put_if_asked(told.graph);
    dependencies_out.put_if_asked(told.nodes);
    edge_data_out.put_if_asked(told.data);
    num_dependencies_out.put_if_asked(told.count);
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
    let told = tell(call, stream)?;
    capture_status_out.put(told.status)?;
    if told.status != CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    if !told.plain && !dependencies_out.is_null() {
        return Err(LOSSY_QUERY);
    }
    id_out.put_if_asked(told.id);
    graph_out.put_if_asked(told.graph);
    dependencies_out.put_if_asked(told.nodes);
    num_dependencies_out.put_if_asked(told.count);
    Ok(())
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

pub(crate) fn cuThreadExchangeStreamCaptureMode(call: &Call, mode: Out<CUstreamCaptureMode>) -> Answer {
    call.driver()?;
    let wanted = mode.read()?;
    if wanted > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(INVALID_VALUE);
    }
    mode.put(MODE.replace(wanted))?;
    Ok(())
}
