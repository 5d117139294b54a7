//! Graphs that are built node by node or by stream capture.

use serde::{Deserialize, Serialize};

/// A stream of an actor: a context's default stream (`which` is 0), or one that the actor creates
/// at its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamKey {
    /// Context of the stream.
    pub context: u32,
    /// Number of the stream in the context.
    pub which: u8,
}

/// The call that adds a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adder {
    /// The call for this kind of node.
    Named,
    /// `cuGraphAddNode`.
    First,
    /// `cuGraphAddNode_v2`.
    Second,
    /// `cuGraphAddNode_v3`.
    Third,
}

/// The call that instantiates a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    /// `cuGraphInstantiate`.
    First,
    /// `cuGraphInstantiate_v2`.
    Second,
    /// `cuGraphInstantiateWithFlags`; true: with AUTO_FREE_ON_LAUNCH.
    Flags(bool),
    /// `cuGraphInstantiateWithParams`; the same flag, and the stream for an upload.
    Params(bool, Option<StreamKey>),
}

/// Capture mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
    Global,
    /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
    ThreadLocal,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    Relaxed,
}

/// One command. Graphs, executable graphs and allocations of nodes have names given by the harness.
/// Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type's comment describes the fields")]
pub enum GraphStep {
    /// `cuGraphCreate`.
    Make { graph: u32 },
    /// Adds a node that allocates `key`.
    Allocate { graph: u32, key: u32, bytes: u64, adder: Adder },
    /// Adds a node that frees `key`.
    Free { graph: u32, key: u32, adder: Adder },
    /// Adds a child node: a copy of a graph, or with `moves` the graph itself.
    Child { graph: u32, child: u32, adder: Adder, moves: bool },
    /// Adds an IF node with two bodies; launches run the first one if `first`, else the second.
    Condition { context: u32, graph: u32, bodies: [u32; 2], first: bool },
    /// Instantiates a graph.
    Instantiate { context: u32, graph: u32, executable: u32, maker: Maker },
    /// `cuGraphUpload`.
    Upload { executable: u32, lane: StreamKey },
    /// `cuGraphLaunch`.
    Launch { executable: u32, lane: StreamKey },
    /// `cuGraphExecUpdate`, or its second version.
    Update { executable: u32, graph: u32, second: bool },
    /// `cuGraphExecDestroy`.
    EndExecutable { executable: u32 },
    /// `cuGraphDestroy`.
    End { graph: u32 },
    /// Frees memory that outlives its graph: `cuMemFreeAsync` in a stream, or `cuMemFree` with
    /// `now`.
    FreeOutliving { key: u32, lane: StreamKey, now: bool },
    /// Waits for these contexts (all that exist), trims unused graph memory if `trim`, and reads
    /// the four `CUgraphMem_attribute`s.
    Attributes { contexts: Vec<u32>, trim: bool },
    /// `cuDeviceSetGraphMemAttribute`: resets a high-water mark, of used or of reserved memory.
    Reset { used: bool },
    /// `cuStreamBeginCapture_v2`, or `cuStreamBeginCaptureToGraph`.
    Begin { lane: StreamKey, mode: Mode, into: Option<u32> },
    /// `cuMemAllocAsync` in a capturing stream, or `cuMemAllocFromPoolAsync` with a pool: adds a
    /// node.
    Take { lane: StreamKey, key: u32, bytes: u64, pool: Option<u32> },
    /// `cuMemFreeAsync` of a graph's memory in a capturing stream.
    Drop { lane: StreamKey, key: u32 },
    /// The same for linear memory, which no graph can free.
    DropLinear { lane: StreamKey, key: u32 },
    /// Records an event in one stream and makes another one wait for it.
    Follow { from: StreamKey, to: StreamKey },
    /// Invalidates a capture: `cuStreamSynchronize` of its stream, or, with a size, `cuMemAlloc`.
    Break { lane: StreamKey, bytes: Option<u64> },
    /// `cuStreamEndCapture`, which returns `graph`.
    Finish { lane: StreamKey, graph: u32 },
    /// `cuStreamDestroy` during a capture.
    Abandon { lane: StreamKey },
}

/// Graph memory of a GPU, in bytes: the current value and the high-water mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Memory in use.
    pub used: [u64; 2],
    /// Memory reserved.
    pub reserved: [u64; 2],
}
