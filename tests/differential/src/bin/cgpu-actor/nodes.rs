//! Graphs that are built node by node or by stream capture.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use cgpu_differential::command::{Adder, Answer, GraphStep, Maker, Mode, PRIMARY, StreamKey};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{
    AllocationNode, AnyNode, CONDITIONAL, DEVICE, FREES_ON_LAUNCH, GRAPHS_RESERVED, Instantiation,
    MEMORY_FREED, MEMORY_NODE, NON_BLOCKING, PART, PINNED, UPLOADS,
};

/// A graph and its last node, which the next one depends on.
#[derive(Clone, Copy)]
struct Made {
    graph: usize,
    last: Option<usize>,
}

/// Graphs of an actor.
#[derive(Default)]
pub(crate) struct Nodes {
    graphs: BTreeMap<u32, Made>,
    executables: BTreeMap<u32, usize>,
    /// Addresses of nodes' allocations.
    memory: BTreeMap<u32, usize>,
    /// Context and handle of each stream.
    streams: BTreeMap<StreamKey, (usize, usize)>,
}

impl Actor {
    pub(crate) fn graph_step(&mut self, step: &GraphStep, answer: &mut Answer) -> Result<i32> {
        for lane in lanes(step).into_iter().flatten() {
            let code = self.come_to(lane)?;
            if code != 0 {
                return Ok(code);
            }
        }
        match *step {
            GraphStep::Make { graph } => self.make_graph(graph),
            GraphStep::Allocate { graph, key, bytes, adder } => {
                self.add_allocation(graph, key, bytes, adder)
            }
            GraphStep::Free { graph, key, adder } => self.add_free(graph, key, adder),
            GraphStep::Child { graph, child, adder, moves } => {
                self.add_child(graph, child, adder, moves)
            }
            GraphStep::Condition { context, graph, bodies, first } => {
                self.add_condition(context, graph, bodies, first)
            }
            GraphStep::Instantiate { context, graph, executable, maker } => {
                self.instantiate(context, graph, executable, maker)
            }
            GraphStep::Upload { executable, lane } => {
                let Some(&executable) = self.nodes.executables.get(&executable) else {
                    return Ok(NOT_OURS);
                };
                let stream = self.lane(lane)?;
                self.cuda.call(c"cuGraphUpload", [executable, stream])
            }
            GraphStep::Launch { executable, lane } => {
                let Some(&executable) = self.nodes.executables.get(&executable) else {
                    return Ok(NOT_OURS);
                };
                let stream = self.lane(lane)?;
                self.cuda.call(c"cuGraphLaunch", [executable, stream])
            }
            GraphStep::Update { executable, graph, second } => {
                self.update(executable, graph, second)
            }
            GraphStep::EndExecutable { executable } => {
                match self.nodes.executables.remove(&executable) {
                    Some(executable) => self.cuda.call(c"cuGraphExecDestroy", [executable]),
                    None => Ok(NOT_OURS),
                }
            }
            GraphStep::End { graph } => match self.nodes.graphs.remove(&graph) {
                Some(made) => self.cuda.call(c"cuGraphDestroy", [made.graph]),
                None => Ok(NOT_OURS),
            },
            GraphStep::FreeOutliving { key, lane, now } => {
                let Some(&address) = self.nodes.memory.get(&key) else { return Ok(NOT_OURS) };
                let stream = self.lane(lane)?;
                match now {
                    true => self.cuda.call(c"cuMemFree_v2", [address]),
                    false => self.cuda.call(c"cuMemFreeAsync", [address, stream]),
                }
            }
            GraphStep::Attributes { ref contexts, trim } => self.figures(contexts, trim, answer),
            GraphStep::Reset { used } => {
                let (mut zero, which) = (0_u64, if used { 1 } else { 3 });
                self.cuda
                    .call(c"cuDeviceSetGraphMemAttribute", [self.device, which, place(&mut zero)])
            }
            _ => self.capture_step(step),
        }
    }

    /// Performs the commands of captures.
    fn capture_step(&mut self, step: &GraphStep) -> Result<i32> {
        match *step {
            GraphStep::Begin { lane, mode, into } => {
                self.graphing = true;
                let stream = self.lane(lane)?;
                let mode = match mode {
                    Mode::Global => 0,
                    Mode::ThreadLocal => 1,
                    Mode::Relaxed => 2,
                };
                let Some(graph) = into else {
                    return self.cuda.call(c"cuStreamBeginCapture_v2", [stream, mode]);
                };
                let Some(made) = self.nodes.graphs.get(&graph) else { return Ok(NOT_OURS) };
                // The new nodes do not depend on those that the graph already has.
                self.cuda.call(c"cuStreamBeginCaptureToGraph", [stream, made.graph, 0, 0, 0, mode])
            }
            GraphStep::Take { lane, key, bytes, pool } => {
                let (stream, mut address) = (self.lane(lane)?, 0_usize);
                let (to, bytes) = (place(&mut address), usize::try_from(bytes)?);
                let code = match pool.and_then(|pool| self.pools.get(&pool)) {
                    Some(&pool) => {
                        self.cuda.call(c"cuMemAllocFromPoolAsync", [to, bytes, pool, stream])?
                    }
                    None => self.cuda.call(c"cuMemAllocAsync", [to, bytes, stream])?,
                };
                if code == 0 {
                    self.nodes.memory.insert(key, address);
                }
                Ok(code)
            }
            GraphStep::Drop { lane, key } => {
                let Some(&address) = self.nodes.memory.get(&key) else { return Ok(NOT_OURS) };
                let stream = self.lane(lane)?;
                self.cuda.call(c"cuMemFreeAsync", [address, stream])
            }
            GraphStep::DropLinear { lane, key } => {
                let Some(&(_, address)) = self.allocations.get(&key) else { return Ok(NOT_OURS) };
                let stream = self.lane(lane)?;
                self.cuda.call(c"cuMemFreeAsync", [usize::try_from(address)?, stream])
            }
            GraphStep::Follow { from, to } => self.follow(from, to),
            GraphStep::Break { lane, bytes } => {
                let (stream, mut address) = (self.lane(lane)?, 0_usize);
                match bytes {
                    Some(bytes) => self
                        .cuda
                        .call(c"cuMemAlloc_v2", [place(&mut address), usize::try_from(bytes)?]),
                    None => self.cuda.call(c"cuStreamSynchronize", [stream]),
                }
            }
            GraphStep::Finish { lane, graph } => {
                let (stream, mut made) = (self.lane(lane)?, 0_usize);
                let code = self.cuda.call(c"cuStreamEndCapture", [stream, place(&mut made)])?;
                if code == 0 {
                    self.nodes.graphs.entry(graph).or_insert(Made { graph: made, last: None });
                }
                Ok(code)
            }
            GraphStep::Abandon { lane } => {
                let code = self.cuda.call(c"cuStreamDestroy_v2", [self.lane(lane)?])?;
                if code == 0 {
                    self.nodes.streams.remove(&lane);
                }
                Ok(code)
            }
            _ => bail!("no command of a capture: {step:?}"),
        }
    }

    /// Removes the streams of contexts that have ended by any call.
    pub(crate) fn forget_streams(&mut self) -> Result<()> {
        let is_primary = |lane: &StreamKey| lane.context == PRIMARY;
        let lost = self.nodes.streams.keys().any(is_primary) && !self.is_active()?;
        let contexts = &self.contexts;
        self.nodes.streams.retain(|lane, (context, _)| {
            contexts.get(&lane.context) == Some(&*context) && !(lost && is_primary(lane))
        });
        Ok(())
    }

    /// Returns the handle of a stream, which must exist.
    fn lane(&self, lane: StreamKey) -> Result<usize> {
        if lane.which == 0 {
            return Ok(0);
        }
        let its = self.nodes.streams.get(&lane).context("no such stream")?;
        Ok(its.1)
    }

    /// Makes a stream's context current, and creates the stream at its first use. It does not wait
    /// for the default stream.
    fn come_to(&mut self, lane: StreamKey) -> Result<i32> {
        let code = self.enter(lane.context)?;
        if code != 0 || lane.which == 0 || self.nodes.streams.contains_key(&lane) {
            return Ok(code);
        }
        let mut stream = 0_usize;
        let code = self.cuda.call(c"cuStreamCreate", [place(&mut stream), NON_BLOCKING])?;
        if let (0, Some(context)) = (code, self.contexts.get(&lane.context)) {
            self.nodes.streams.insert(lane, (*context, stream));
        }
        Ok(code)
    }

    fn make_graph(&mut self, name: u32) -> Result<i32> {
        self.graphing = true;
        let mut graph = 0_usize;
        let code = self.cuda.call(c"cuGraphCreate", [place(&mut graph), 0])?;
        if code == 0 {
            self.nodes.graphs.insert(name, Made { graph, last: None });
        }
        Ok(code)
    }

    /// Adds a node after the last one of its graph, by the call for its kind or by one for all
    /// kinds.
    fn add(
        &mut self,
        name: u32,
        adder: Adder,
        named: impl FnOnce(&Self, [usize; 4]) -> Result<i32>,
        node: &mut AnyNode,
    ) -> Result<i32> {
        let Some(&Made { graph, last }) = self.nodes.graphs.get(&name) else { return Ok(NOT_OURS) };
        let (mut made, after): (usize, Vec<usize>) = (0, last.into_iter().collect());
        let (to, from, count) = (place(&mut made), after.as_ptr().expose_provenance(), after.len());
        let code = match adder {
            Adder::Named => named(self, [to, graph, from, count])?,
            Adder::First => {
                self.cuda.call(c"cuGraphAddNode", [to, graph, from, count, place(node)])?
            }
            Adder::Second => {
                self.cuda.call(c"cuGraphAddNode_v2", [to, graph, from, 0, count, place(node)])?
            }
            Adder::Third => {
                self.cuda.call(c"cuGraphAddNode_v3", [to, graph, from, 0, count, place(node)])?
            }
        };
        if code == 0 {
            self.nodes.graphs.insert(name, Made { graph, last: Some(made) });
        }
        Ok(code)
    }

    fn add_allocation(&mut self, graph: u32, key: u32, bytes: u64, adder: Adder) -> Result<i32> {
        let (kind, location, id) = (PINNED, DEVICE, self.id()?);
        let bytes = usize::try_from(bytes)?;
        let mut wanted = AllocationNode { kind, location, id, bytes, ..AllocationNode::default() };
        let mut node = AnyNode { kind: MEMORY_NODE, ..AnyNode::default() };
        node.words[0] = u64::from(kind);
        node.words[1] = (self.device as u64) << 32 | u64::from(location);
        node.words[13] = bytes as u64;
        let named = |this: &Self, [to, graph, from, count]: [usize; 4]| {
            this.cuda.call(c"cuGraphAddMemAllocNode", [to, graph, from, count, place(&mut wanted)])
        };
        let code = self.add(graph, adder, named, &mut node)?;
        if code == 0 {
            let address = if adder == Adder::Named { wanted.address } else { node.words[14] };
            self.nodes.memory.insert(key, usize::try_from(address)?);
        }
        Ok(code)
    }

    fn add_free(&mut self, graph: u32, key: u32, adder: Adder) -> Result<i32> {
        let Some(&address) = self.nodes.memory.get(&key) else { return Ok(NOT_OURS) };
        let mut node = AnyNode { kind: MEMORY_FREED, ..AnyNode::default() };
        node.words[0] = address as u64;
        let named = |this: &Self, [to, graph, from, count]: [usize; 4]| {
            this.cuda.call(c"cuGraphAddMemFreeNode", [to, graph, from, count, address])
        };
        self.add(graph, adder, named, &mut node)
    }

    fn add_child(&mut self, graph: u32, child: u32, adder: Adder, moves: bool) -> Result<i32> {
        let Some(&Made { graph: child, .. }) = self.nodes.graphs.get(&child) else {
            return Ok(NOT_OURS);
        };
        let mut node = AnyNode { kind: PART, ..AnyNode::default() };
        node.words[0] = child as u64;
        node.words[1] = u64::from(moves);
        let named = |this: &Self, [to, graph, from, count]: [usize; 4]| {
            this.cuda.call(c"cuGraphAddChildGraphNode", [to, graph, from, count, child])
        };
        self.add(graph, adder, named, &mut node)
    }

    /// Adds an IF node with two bodies, whose condition has the same value at each launch.
    fn add_condition(
        &mut self,
        context: u32,
        name: u32,
        bodies: [u32; 2],
        first: bool,
    ) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let Some(&Made { graph, .. }) = self.nodes.graphs.get(&name) else { return Ok(NOT_OURS) };
        let mut handle = 0_u64;
        let to = [place(&mut handle), graph, 0, usize::from(first), 1];
        match self.cuda.call(c"cuGraphConditionalHandleCreate", to)? {
            0 => {}
            code => bail!("cuGraphConditionalHandleCreate answered {code}"),
        }
        let mut node = AnyNode { kind: CONDITIONAL, ..AnyNode::default() };
        node.words[0] = handle;
        // The kind is 0; the number of bodies is in the upper half.
        node.words[1] = 2 << 32;
        let code = self.add(name, Adder::First, |_, _| Ok(NOT_OURS), &mut node)?;
        if code == 0 {
            let list =
                std::ptr::with_exposed_provenance::<[usize; 2]>(usize::try_from(node.words[2])?);
            // SAFETY: the driver has just written the address of an array of two graph handles,
            // which lives as long as the node. A null address gives `None`.
            let made = unsafe { list.as_ref() }.context("no bodies")?;
            for (name, graph) in bodies.into_iter().zip(*made) {
                self.nodes.graphs.insert(name, Made { graph, last: None });
            }
        }
        Ok(code)
    }

    fn instantiate(&mut self, context: u32, graph: u32, name: u32, maker: Maker) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let Some(&Made { graph, .. }) = self.nodes.graphs.get(&graph) else { return Ok(NOT_OURS) };
        let mut executable = 0_usize;
        let to = place(&mut executable);
        let code = match maker {
            Maker::First => self.cuda.call(c"cuGraphInstantiate", [to, graph, 0, 0, 0])?,
            Maker::Second => self.cuda.call(c"cuGraphInstantiate_v2", [to, graph, 0, 0, 0])?,
            Maker::Flags(frees) => {
                let flags = if frees { FREES_ON_LAUNCH } else { 0 };
                self.cuda.call(c"cuGraphInstantiateWithFlags", [to, graph, flags])?
            }
            Maker::Params(frees, upload) => {
                let flags = if frees { FREES_ON_LAUNCH } else { 0 }
                    | if upload.is_some() { UPLOADS } else { 0 };
                let stream = upload.map_or(Ok(0), |lane| self.lane(lane))?;
                let mut params = Instantiation {
                    flags: flags as u64,
                    upload_stream: stream,
                    ..Instantiation::default()
                };
                self.cuda.call(c"cuGraphInstantiateWithParams", [to, graph, place(&mut params)])?
            }
        };
        if code == 0 {
            self.nodes.executables.insert(name, executable);
        }
        Ok(code)
    }

    fn update(&self, executable: u32, graph: u32, second: bool) -> Result<i32> {
        let (Some(&executable), Some(&Made { graph, .. })) =
            (self.nodes.executables.get(&executable), self.nodes.graphs.get(&graph))
        else {
            return Ok(NOT_OURS);
        };
        // The result and two nodes; for the first version, a node and the result.
        let mut result_info = [0_usize; 3];
        if second {
            return self
                .cuda
                .call(c"cuGraphExecUpdate_v2", [executable, graph, place(&mut result_info)]);
        }
        let [result, node, _] = &mut result_info;
        self.cuda.call(c"cuGraphExecUpdate", [executable, graph, place(node), place(result)])
    }

    /// Records an event in one stream and makes another one wait for it.
    fn follow(&self, from: StreamKey, to: StreamKey) -> Result<i32> {
        let (to, from) = (self.lane(to)?, self.lane(from)?);
        let mut event = 0_usize;
        let code = self.cuda.call(c"cuEventCreate", [place(&mut event), 0])?;
        if code != 0 {
            return Ok(code);
        }
        let mut code = self.cuda.call(c"cuEventRecord", [event, from])?;
        if code == 0 {
            code = self.cuda.call(c"cuStreamWaitEvent", [to, event, 0])?;
        }
        match self.cuda.call(c"cuEventDestroy_v2", [event])? {
            0 => Ok(code),
            code => bail!("cuEventDestroy answered {code}"),
        }
    }

    /// Reads the graph memory attributes after all work is done.
    fn figures(&self, contexts: &[u32], trim: bool, answer: &mut Answer) -> Result<i32> {
        for &context in contexts {
            let mut code = self.enter(context)?;
            if code == 0 {
                code = self.cuda.call(c"cuCtxSynchronize", [])?;
            }
            if code != 0 {
                return Ok(code);
            }
        }
        if trim {
            let code = self.trim_graphs()?;
            if code != 0 {
                return Ok(code);
            }
        }
        let mut figures = [0_u64; 4];
        for (which, figure) in figures.iter_mut().enumerate() {
            match self
                .cuda
                .call(c"cuDeviceGetGraphMemAttribute", [self.device, which, place(figure)])?
            {
                0 => {}
                code => bail!("cuDeviceGetGraphMemAttribute answered {code}"),
            }
        }
        const { assert!(GRAPHS_RESERVED == 2) };
        let [used, used_high, reserved, reserved_high] = figures;
        (answer.figures.used, answer.figures.reserved) =
            ([used, used_high], [reserved, reserved_high]);
        Ok(0)
    }
}

/// Returns the streams of a command. The last one is the first to be used, so that its context
/// stays current.
fn lanes(step: &GraphStep) -> [Option<StreamKey>; 2] {
    match *step {
        GraphStep::Instantiate { maker: Maker::Params(_, upload), .. } => [upload, None],
        GraphStep::Follow { from, to } => [Some(to), Some(from)],
        GraphStep::Upload { lane, .. }
        | GraphStep::Launch { lane, .. }
        | GraphStep::FreeOutliving { lane, .. }
        | GraphStep::Begin { lane, .. }
        | GraphStep::Take { lane, .. }
        | GraphStep::Drop { lane, .. }
        | GraphStep::DropLinear { lane, .. }
        | GraphStep::Break { lane, .. }
        | GraphStep::Finish { lane, .. }
        | GraphStep::Abandon { lane } => [Some(lane), None],
        _ => [None; 2],
    }
}
