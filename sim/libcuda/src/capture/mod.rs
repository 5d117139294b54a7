//! Stream capture: work enqueued to a stream becomes nodes of a graph instead.
//!
//! A capture is a *sequence*: the stream in which it began, the streams that have joined it since
//! by waiting for events recorded in it, and the graph that they build. Each of its streams has a
//! position: the nodes that its next node will depend on. Every call that enqueues work requests
//! the stream's [`Lane`], which is the GPU or a graph. Every other call that uses a capturing
//! stream is refused, and invalidates the capture where the driver does.
//!
//! | error | when |
//! |---|---|
//! | 900 UNSUPPORTED | a call that cannot be captured, or is unsafe during a capture whose mode forbids such calls |
//! | 901 INVALIDATED | the capture was invalidated before |
//! | 902 MERGE | a wait for an event of another capture |
//! | 903 UNMATCHED | an end in another stream than the begin |
//! | 904 UNJOINED | an end while streams that joined have work that the first stream does not wait for |
//! | 905 ISOLATION | a wait for an event that was recorded outside of any capture |
//! | 906 IMPLICIT | a use of the legacy stream while a blocking stream of its context captures |
//! | 907 CAPTURED_EVENT | a query of an event that was last recorded in a capture |
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

#[derive(Debug)]
struct Sequence {
    graph: CUgraph,
    /// Whether the graph existed before the capture, and outlives it.
    into_existing: bool,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    origin: StreamId,
    invalid: bool,
}

/// Dependencies as a program receives them: nodes, and the data of their edges.
type Dependencies = (Box<[CUgraphNode]>, Box<[CUgraphEdgeData]>);

/// A stream's position in its capture.
#[derive(Debug)]
struct Position {
    sequence: u64,
    dependencies: Vec<Edge>,
    context: ContextId,
    blocking: bool,
    /// The arrays that were last returned to the program, valid until the next call for this
    /// stream.
    reported: Option<Dependencies>,
}

/// An event that was last recorded in a capture.
#[derive(Debug)]
struct Mark {
    sequence: u64,
    dependencies: Vec<Edge>,
}

#[derive(Debug, Default)]
pub(crate) struct Captures {
    sequences: HashMap<u64, Sequence>,
    streams: HashMap<StreamId, Position>,
    marks: HashMap<CUevent, Mark>,
    made: u64,
}

/// Number of active captures; calls need no check while it is 0.
static SEQUENCES: AtomicUsize = AtomicUsize::new(0);
/// Number of events that were last recorded in a capture.
static MARKS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether any stream captures.
///
/// Relaxed: a program that begins a capture in one thread and relies on it in another has
/// synchronised the two itself.
fn is_capturing() -> bool {
    SEQUENCES.load(Ordering::Relaxed) != 0
}

/// Returns whether any event marks work of a capture. Relaxed: as above.
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

    /// Returns the stream's position and sequence, if it captures.
    fn of(&self, stream: StreamId) -> Option<(&Position, &Sequence)> {
        let position = self.streams.get(&stream)?;
        Some((position, self.sequences.get(&position.sequence)?))
    }

    /// Returns the sequences that have a blocking stream in the context.
    fn blocking_in(&self, context: &Context) -> Vec<u64> {
        let in_context = |position: &&Position| position.blocking && position.context == context.id;
        self.streams.values().filter(in_context).map(|position| position.sequence).collect()
    }

    /// Returns the sequences that an unsafe call of this thread invalidates, by its capture mode.
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

    /// Removes a destroyed node from all dependencies.
    pub(crate) fn forget_node(&mut self, node: CUgraphNode) {
        for position in self.streams.values_mut() {
            position.dependencies.retain(|edge| edge.from != node);
        }
    }

    /// Removes a destroyed stream. Returns the capture that began in it, which can no longer be
    /// ended. A capture that it had joined is invalidated.
    fn forget_stream(&mut self, stream: StreamId) -> Option<u64> {
        let id = self.streams.remove(&stream)?.sequence;
        if self.sequences.get(&id).is_some_and(|sequence| sequence.origin == stream) {
            return Some(id);
        }
        self.invalidate(id);
        None
    }

    /// Ends a sequence. Returns the graph that was created for it.
    fn end(&mut self, id: u64) -> Option<CUgraph> {
        let sequence = self.sequences.remove(&id)?;
        self.streams.retain(|_, position| position.sequence != id);
        self.count();
        (!sequence.into_existing).then_some(sequence.graph)
    }
}

/// Destination of the work that is enqueued to a stream.
pub(crate) enum Lane {
    Gpu(StreamId, Arc<Context>),
    Graph(Recorder),
}

/// A stream that captures.
pub(crate) struct Recorder {
    stream: StreamId,
    pub(crate) context: Arc<Context>,
}

impl Recorder {
    /// Adds a node that depends on the stream's position.
    pub(crate) fn add(&self, driver: &Driver, body: Body) -> Answer {
        self.append(driver, |graphs, graph, dependencies| graphs.add(graph, dependencies, body))
    }

    /// Adds the nodes of an executable graph, as a child graph.
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

    fn graph(&self, driver: &Driver) -> Answer<CUgraph> {
        let graphs = Graphs::of(driver);
        Ok(graphs.captures.of(self.stream).ok_or(STREAM_CAPTURE_INVALIDATED)?.1.graph)
    }

    /// Adds an allocation node. Returns its address.
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

    /// Adds a node that frees an allocation of a graph.
    pub(crate) fn free(&self, driver: &Driver, address: CUdeviceptr) -> Answer {
        let reservation = Reservation::find(driver, address).ok_or(INVALID_VALUE)?;
        reservation.freed_in(self.graph(driver)?)?;
        self.add(driver, Body::Free(address))
    }

    /// Records an event at the stream's position.
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

    /// Makes the next node depend on an event's position, too.
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

/// Returns where work enqueued to a stream goes.
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

/// Returns the stream of a call that cannot be captured.
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

/// Refuses a call that is unsafe during a capture, and invalidates the captures that forbid it.
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

/// Functions that may wait for the GPU, or for work that a capture holds back, whatever their
/// stream.
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

/// Checks a call before it does anything.
pub(crate) fn admit(position: usize) -> Answer {
    if !is_capturing() || !UNSAFE.contains(&position) {
        return Ok(());
    }
    // A forked child inherits the locks in whatever state they were.
    Driver::get().filter(|driver| !driver.machine.is_inherited()).map_or(Ok(()), refuse_unsafe)
}

/// Refuses a query of an event that was last recorded in a capture, and invalidates the capture.
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

/// Forgets an event's position in a capture: the event was recorded on the GPU, or destroyed.
pub(crate) fn unmark(driver: &Driver, event: CUevent) {
    if is_marked() {
        let mut graphs = Graphs::of(driver);
        graphs.captures.marks.remove(&event);
        graphs.captures.count();
    }
}

/// Lets a stream that does not capture join the capture of an event that it waits for.
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
    let position =
        Position { sequence, dependencies, context: context.id, blocking, reported: None };
    captures.streams.insert(stream, position);
    Ok(true)
}

impl Graphs {
    /// Ends a capture that can no longer be ended by the program.
    fn abandon(&mut self, sequence: u64) {
        let Some(graph) = self.captures.sequences.get(&sequence).map(|sequence| sequence.graph)
        else {
            return;
        };
        if self.captures.end(sequence).is_some() {
            // It exists: such a graph becomes the program's only at the end of a capture.
            let _ = self.destroy(graph);
        } else if let Ok(graph) = self.graph_mut(graph) {
            graph.capturing = false;
        }
    }
}

pub(crate) fn forget_stream(driver: &Driver, stream: StreamId) {
    if is_capturing() && !driver.machine.is_inherited() {
        let mut graphs = Graphs::of(driver);
        if let Some(sequence) = graphs.captures.forget_stream(stream) {
            graphs.abandon(sequence);
        }
    }
}

/// Handles the end of a context: captures of its streams end.
pub(crate) fn forget_context(driver: &Driver, context: &Context) {
    if is_capturing() {
        let mut graphs = Graphs::of(driver);
        let in_context = |position: &&Position| position.context == context.id;
        let ended: Vec<u64> = graphs
            .captures
            .streams
            .values()
            .filter(in_context)
            .map(|position| position.sequence)
            .collect();
        ended.into_iter().for_each(|sequence| graphs.abandon(sequence));
    }
}
