//! Graphs that are made node by node, or by captures of streams.

use serde::{Deserialize, Serialize};

/// A stream of an actor: the default one of a context (`which` is 0), or one that the actor makes when it is first named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Strand {
    /// Whose.
    pub context: u32,
    /// Which of them.
    pub which: u8,
}

/// By which call a node is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Adder {
    /// The one for nodes of its kind.
    Named,
    /// `cuGraphAddNode`.
    First,
    /// `cuGraphAddNode_v2`.
    Second,
    /// `cuGraphAddNode_v3`.
    Third,
}

/// By which call a graph is made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    /// `cuGraphInstantiate`.
    First,
    /// `cuGraphInstantiate_v2`.
    Second,
    /// `cuGraphInstantiateWithFlags`; whether what it has allocated is freed with its next launch.
    Flags(bool),
    /// `cuGraphInstantiateWithParams`; the same, and where it is uploaded to, if it is.
    Params(bool, Option<Strand>),
}

/// How strict a capture is with its thread's other calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
    Global,
    /// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
    ThreadLocal,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    Relaxed,
}

/// One step. Graphs, executable graphs and what nodes allocate have the names that the player gave them; sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum GraphStep {
    /// `cuGraphCreate`, to be called `graph`.
    Make { graph: u32 },
    /// A node that allocates, to be called `key`.
    Allocate { graph: u32, key: u32, bytes: u64, adder: Adder },
    /// A node that frees it.
    Free { graph: u32, key: u32, adder: Adder },
    /// A child: a copy of a graph, or the graph itself, which it then is part of.
    Child { graph: u32, child: u32, adder: Adder, moves: bool },
    /// An IF with two bodies; with `first` launches do the first of them, else the second one.
    Condition { context: u32, graph: u32, bodies: [u32; 2], first: bool },
    /// Makes a graph ready, to be called `executable`.
    Instantiate { context: u32, graph: u32, executable: u32, maker: Maker },
    /// `cuGraphUpload`.
    Upload { executable: u32, lane: Strand },
    /// `cuGraphLaunch`.
    Launch { executable: u32, lane: Strand },
    /// `cuGraphExecUpdate`, or its second version.
    Update { executable: u32, graph: u32, second: bool },
    /// `cuGraphExecDestroy`.
    EndExecutable { executable: u32 },
    /// `cuGraphDestroy`.
    End { graph: u32 },
    /// What outlives its graph is freed: by `cuMemFreeAsync` in a stream, or, in a context, by `cuMemFree`.
    GiveBack { key: u32, lane: Strand, now: bool },
    /// Waits for these contexts, all that there are, trims what graphs do not use if so told, and reads the four `CUgraphMem_attribute`s.
    Attributes { contexts: Vec<u32>, trim: bool },
    /// `cuDeviceSetGraphMemAttribute`: a high-water mark begins anew, that of what is used or that of what is reserved.
    Reset { used: bool },
    /// `cuStreamBeginCapture_v2`; or `cuStreamBeginCaptureToGraph`.
    Begin { lane: Strand, mode: Mode, into: Option<u32> },
    /// `cuMemAllocAsync` in a stream that captures, or, with a pool, `cuMemAllocFromPoolAsync`: a node, to be called `key`.
    Take { lane: Strand, key: u32, bytes: u64, pool: Option<u32> },
    /// `cuMemFreeAsync` there of what a graph allocates.
    Drop { lane: Strand, key: u32 },
    /// The same of linear memory, which no graph can free.
    DropLinear { lane: Strand, key: u32 },
    /// An event is recorded in one stream, and another one waits for it.
    Follow { from: Strand, to: Strand },
    /// A call that breaks a capture: `cuStreamSynchronize` of its stream, or, with a size, `cuMemAlloc`.
    Break { lane: Strand, bytes: Option<u64> },
    /// `cuStreamEndCapture`: the graph is to be called `graph`.
    Finish { lane: Strand, graph: u32 },
    /// `cuStreamDestroy` in the middle of a capture.
    Abandon { lane: Strand },
}

/// The four figures of a GPU about its graphs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Now, and at most.
    pub used: [u64; 2],
    /// Now, and at most.
    pub reserved: [u64; 2],
}
