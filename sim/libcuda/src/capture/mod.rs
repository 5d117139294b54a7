//! Stream capture: what is put into a stream becomes nodes of a graph instead.
//!
//! A capture is a *sequence*: the stream in which it began, the streams that have joined it since by waiting for events recorded in it,
//! and the graph that they make. Each of its streams has a position: the nodes that its next node will depend on. Every call that puts
//! something into a stream asks for its [`Lane`], which is the GPU or a graph; every other call that uses a stream is refused where
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

mod calls;

use core::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use cgpu_abi::driver_index as row;
use cgpu_abi::types::*;
use cgpu_shm::atomic::{AtomicUsize, Ordering};
use cgpu_sim::machine::{ContextId, StreamId};

pub(crate) use calls::*;

use crate::answer::{
    Answer, CAPTURED_EVENT, INVALID_VALUE, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_INVALIDATED,
    STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE, STREAM_CAPTURE_UNSUPPORTED,
};
use crate::context::Context;
use crate::driver::Driver;
use crate::graph::node::Body;
use crate::graph::{Edge, Graphs, Nodes, Reservation};
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
    /// To the GPU.
    Gpu(StreamId, Arc<Context>),
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
        self.append(driver, |graphs, graph, dependencies| {
            graphs.add_nodes(graph, dependencies, root, shapes)
        })
    }

    fn append(
        &self,
        driver: &Driver,
        add: impl FnOnce(&mut Graphs, CUgraph, Vec<Edge>) -> Answer<CUgraphNode>,
    ) -> Answer {
        let mut graphs = Graphs::of(driver);
        let (position, sequence) =
            graphs.captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?;
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
        let mark =
            Mark { sequence: position.sequence, dependencies: position.dependencies.clone() };
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
        return Ok(Lane::Gpu(stream, context));
    }
    let mut graphs = Graphs::of(driver);
    let captures = &mut graphs.captures;
    refuse_legacy(driver, captures, handle, per_thread, &context, true)?;
    match captures.of(stream) {
        None => Ok(Lane::Gpu(stream, context)),
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
        Lane::Gpu(stream, context) => Ok((stream, context)),
        Lane::Graph(Recorder { stream, .. }) => {
            let mut graphs = Graphs::of(driver);
            if let Some(sequence) =
                graphs.captures.of(stream).map(|(position, _)| position.sequence)
            {
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

/// Calls that may wait for the GPU, or for what a capture holds back, wherever they are made.
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

/// An event is recorded on the GPU, or gone: what it stood for in a capture is forgotten.
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
        let Some(graph) = self.captures.sequences.get(&sequence).map(|sequence| sequence.graph)
        else {
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
        let ended: Vec<u64> = graphs
            .captures
            .streams
            .values()
            .filter(its)
            .map(|position| position.sequence)
            .collect();
        ended.into_iter().for_each(|sequence| graphs.abandon(sequence));
    }
}
