//! Executable graphs: created, changed, queried, destroyed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use cgpu_abi::types::*;
use cgpu_sim::machine::Flight;

use super::node::Body;
use super::order::{self, Order, Shapes};
use super::{Graphs, Nodes, object};
use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::Out;
use crate::call::Call;
use crate::context::Context;
use crate::driver::{Driver, lock};
use crate::handle;

const FLAGS: u64 = (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
    | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
    | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) as u64;

#[derive(Debug)]
pub(crate) struct Executable {
    handle: CUgraphExec,
    id: u32,
    pub(super) flags: u64,
    /// The graph that it was instantiated from.
    pub(super) source: CUgraph,
    /// Context of nodes that have none of their own.
    pub(super) home: Arc<Context>,
    pub(super) state: Mutex<State>,
}

/// The part that may change.
#[derive(Debug)]
pub(super) struct State {
    /// The nodes of the graph and of its child graphs, by their handles there.
    pub(super) shapes: HashMap<CUgraph, Nodes>,
    pub(super) values: HashMap<CUgraphConditionalHandle, c_uint>,
    pub(super) disabled: HashSet<CUgraphNode>,
    /// Computed when first needed after a change of the work or of the dependencies.
    pub(super) order: Option<Arc<Order>>,
    pub(super) flight: Flight,
}

impl State {
    fn body_mut(&mut self, node: CUgraphNode) -> Answer<&mut Body> {
        let found = self.shapes.values_mut().find_map(|nodes| nodes.get_mut(&node));
        Ok(&mut found.ok_or(INVALID_VALUE)?.body)
    }

    fn body(&self, node: CUgraphNode) -> Answer<&Body> {
        let found = self.shapes.values().find_map(|nodes| nodes.get(&node));
        Ok(&found.ok_or(INVALID_VALUE)?.body)
    }
}

impl Executable {
    pub(super) fn find(driver: &Driver, handle: CUgraphExec) -> Answer<Arc<Self>> {
        driver.executables.get(handle.0).ok_or(INVALID_VALUE)
    }

    /// Returns the nodes of the graph and its child graphs as they are now, for a capture of a
    /// launch.
    pub(super) fn shapes(&self) -> HashMap<CUgraph, Nodes> {
        lock(&self.state).shapes.clone()
    }

    pub(super) fn order(&self, state: &mut State) -> Answer<Arc<Order>> {
        if let Some(order) = &state.order {
            return Ok(Arc::clone(order));
        }
        let values = &state.values;
        let value = |handle| values.get(&handle).copied().unwrap_or(0);
        let order = Order::of(
            self.source,
            &Shapes { nodes: &state.shapes, value: &value, home: self.home.id },
        )?;
        let order = Arc::new(order);
        state.order = Some(Arc::clone(&order));
        Ok(order)
    }

    /// Changes what a node does, if `apply` allows it.
    pub(super) fn change(
        &self,
        node: CUgraphNode,
        apply: impl FnOnce(&Body) -> Answer<Body>,
    ) -> Answer {
        let mut state = lock(&self.state);
        let body = state.body_mut(node)?;
        let changed = apply(body)?;
        // Only a change to a batch changes the number of steps.
        let reorder = changed.steps() != body.steps();
        *body = changed;
        if reorder {
            state.order = None;
        }
        Ok(())
    }

    /// Replaces the nodes of a child graph; their dependencies must be the same.
    pub(super) fn change_child(
        &self,
        driver: &Driver,
        node: CUgraphNode,
        child: CUgraph,
    ) -> Answer {
        let mut state = lock(&self.state);
        let Body::Child(part) = *state.body(node)? else { return Err(INVALID_VALUE) };
        let shapes = Graphs::of(driver).shapes_within(child)?;
        super::update::take_over(&mut state, part, &shapes, child).map_err(|_| INVALID_VALUE)
    }
}

impl Graphs {
    /// Returns the nodes of a graph and of all its child graphs.
    pub(super) fn shapes_within(&self, graph: CUgraph) -> Answer<HashMap<CUgraph, Nodes>> {
        let mut shapes = HashMap::new();
        let mut open = vec![graph];
        while let Some(next) = open.pop() {
            let nodes = self.graph(next)?.nodes.clone();
            open.extend(nodes.values().flat_map(|node| node.body.parts()));
            shapes.insert(next, nodes);
        }
        Ok(shapes)
    }

    fn values_of(
        &self,
        shapes: &HashMap<CUgraph, Nodes>,
    ) -> HashMap<CUgraphConditionalHandle, c_uint> {
        let bodies = shapes.values().flat_map(|nodes| nodes.values()).map(|node| &node.body);
        let handle =
            |body: &Body| if let Body::Conditional(node) = body { Some(node.handle) } else { None };
        bodies.filter_map(handle).map(|handle| (handle, self.condition(handle))).collect()
    }
}

/// Why a graph cannot be instantiated, and the node that is the cause.
struct Refusal {
    result: CUgraphInstantiateResult,
    node: CUgraphNode,
}

/// Checks whether a graph can be launched, and from the GPU if the flags request it.
fn check_instantiable(shapes: &HashMap<CUgraph, Nodes>, flags: u64) -> Result<(), Refusal> {
    for nodes in shapes.values() {
        order::sorted(nodes)
            .map_err(|node| Refusal { result: CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, node })?;
    }
    if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0 {
        return Ok(());
    }
    let all = || shapes.values().flatten();
    let unsuited = all()
        .find(|(_, node)| !node.body.can_be_disabled() && !matches!(node.body, Body::Child(_)));
    if let Some((&node, _)) = unsuited {
        return Err(Refusal { result: CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED, node });
    }
    let first = all().find_map(|(_, node)| node.body.context());
    let Some(first) = first else {
        return Err(Refusal {
            result: CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE,
            node: CUgraphNode::NULL,
        });
    };
    let elsewhere = |node: &super::Node| {
        node.body.context().is_some_and(|context| context.number != first.number)
    };
    match all().find(|(_, node)| elsewhere(node)) {
        Some((&node, _)) => {
            Err(Refusal { result: CUDA_GRAPH_INSTANTIATE_MULTIPLE_CTXS_NOT_SUPPORTED, node })
        }
        None => Ok(()),
    }
}

/// Creates an executable graph. Calls `refused` if the graph itself is the cause of a failure.
fn instantiate(
    driver: &Driver,
    graph: CUgraph,
    flags: u64,
    refused: impl FnOnce(CUgraphInstantiateResult, CUgraphNode),
) -> Answer<CUgraphExec> {
    let device = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
    let frees = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    if flags & !FLAGS != 0 || flags & device != 0 && flags & frees != 0 {
        return Err(INVALID_VALUE);
    }
    let current = driver.current();
    let mut graphs = Graphs::of(driver);
    let found = graphs.graph(graph)?;
    if found.capturing || found.parent.is_some() {
        return Err(INVALID_VALUE);
    }
    // Two of them would allocate at the same addresses.
    if found.executable.is_some() {
        return Err(INVALID_VALUE);
    }
    let shapes = graphs.shapes_within(graph)?;
    if let Err(Refusal { result, node }) = check_instantiable(&shapes, flags) {
        refused(result, node);
        return Err(if result == CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE {
            INVALID_VALUE
        } else {
            NOT_SUPPORTED
        });
    }
    if graphs.has_unused_condition(graph) {
        refused(CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, CUgraphNode::NULL);
        return Err(INVALID_VALUE);
    }
    let own = shapes.values().flat_map(|nodes| nodes.values()).find_map(|node| node.body.context());
    let home = match current {
        Ok(context) => context,
        Err(failure) => Arc::clone(own.ok_or(failure)?),
    };
    let handle = CUgraphExec(handle::fresh());
    let id = graphs.number();
    let has_memory = shapes
        .values()
        .flat_map(|nodes| nodes.values())
        .any(|node| matches!(node.body, Body::Allocate(_) | Body::Free(_)));
    if has_memory {
        graphs.graph_mut(graph)?.executable = Some(handle);
    }
    graphs.share_references(graph, handle);
    let values = graphs.values_of(&shapes);
    drop(graphs);
    let state =
        State { shapes, values, disabled: HashSet::new(), order: None, flight: Flight::default() };
    let executable =
        Executable { handle, id, flags, source: graph, home, state: Mutex::new(state) };
    driver.executables.insert(handle.0, Arc::new(executable));
    Ok(handle)
}

pub(crate) fn cuGraphInstantiateWithFlags(
    call: &Call,
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Answer {
    let driver = call.driver()?;
    let graph_exec = graph_exec.required()?;
    graph_exec.put(instantiate(driver, graph, flags, |_, _| ())?)?;
    Ok(())
}

pub(crate) fn cuGraphInstantiate_v2(
    call: &Call,
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    error_node: Out<CUgraphNode>,
    log_buffer: Out<c_char>,
    buffer_size: usize,
) -> Answer {
    let driver = call.driver()?;
    let graph_exec = graph_exec.required()?;
    let handle = instantiate(driver, graph, 0, |result, node| {
        error_node.put_if_not_null(node);
        // The buffer is optional.
        let _ = log_buffer
            .put_text(&format!("the graph cannot be instantiated: result {result}"), buffer_size);
    })?;
    if !log_buffer.is_null() {
        log_buffer.put_text("", buffer_size)?;
    }
    graph_exec.put(handle)?;
    Ok(())
}
pub(crate) use cuGraphInstantiate_v2 as cuGraphInstantiate;

pub(crate) fn cuGraphInstantiateWithParams(
    call: &Call,
    graph_exec: Out<CUgraphExec>,
    graph: CUgraph,
    instantiate_params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Answer {
    let driver = call.driver()?;
    let graph_exec = graph_exec.required()?;
    let mut params = instantiate_params.read()?;
    params.err_node_out = CUgraphNode::NULL;
    params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    let made = instantiate(driver, graph, params.flags, |result, node| {
        params.result_out = result;
        params.err_node_out = node;
    });
    if made.is_ok() {
        params.result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    }
    instantiate_params.put(params)?;
    let handle = made?;
    if params.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0 {
        super::launch::cuGraphUpload(call, handle, params.upload_stream).inspect_err(|_| {
            // Undone: the program never gets the handle, which cannot be missing.
            let _ = cuGraphExecDestroy(call, handle);
            params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
            let _ = instantiate_params.put(params);
        })?;
    }
    graph_exec.put(handle)?;
    Ok(())
}
pub(crate) use cuGraphInstantiateWithParams as cuGraphInstantiateWithParams_ptsz;

/// Its allocations live until they are freed; its last launch continues.
pub(crate) fn cuGraphExecDestroy(call: &Call, graph_exec: CUgraphExec) -> Answer {
    let driver = call.driver()?;
    let executable = driver.executables.remove(graph_exec.0).ok_or(INVALID_VALUE)?;
    let last = lock(&executable.state).flight.last();
    {
        let mut graphs = Graphs::of(driver);
        if let Ok(graph) = graphs.graph_mut(executable.source)
            && graph.executable == Some(executable.handle)
        {
            graph.executable = None;
        }
        graphs.end_references(executable.handle, last);
    }
    drop(executable);
    super::memory::sweep(driver);
    object::run_destructors(driver);
    Ok(())
}

pub(crate) fn cuGraphExecGetFlags(
    call: &Call,
    graph_exec: CUgraphExec,
    flags: Out<cuuint64_t>,
) -> Answer {
    // Uploading is done once and is not a property.
    let upload = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    flags.put(Executable::find(call.driver()?, graph_exec)?.flags & !upload)?;
    Ok(())
}

pub(crate) fn cuGraphExecGetId(
    call: &Call,
    graph_exec: CUgraphExec,
    graph_id: Out<c_uint>,
) -> Answer {
    graph_id.put(Executable::find(call.driver()?, graph_exec)?.id)?;
    Ok(())
}

pub(crate) fn cuGraphNodeSetEnabled(
    call: &Call,
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: c_uint,
) -> Answer {
    let executable = Executable::find(call.driver()?, graph_exec)?;
    let mut state = lock(&executable.state);
    if !state.body(node)?.can_be_disabled() {
        return Err(INVALID_VALUE);
    }
    match is_enabled {
        0 => state.disabled.insert(node),
        _ => state.disabled.remove(&node),
    };
    Ok(())
}

pub(crate) fn cuGraphNodeGetEnabled(
    call: &Call,
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    is_enabled: Out<c_uint>,
) -> Answer {
    let executable = Executable::find(call.driver()?, graph_exec)?;
    let state = lock(&executable.state);
    if !state.body(node)?.can_be_disabled() {
        return Err(INVALID_VALUE);
    }
    is_enabled.put(c_uint::from(!state.disabled.contains(&node)))?;
    Ok(())
}

/// Changes a node of an executable graph, as the functions of its kind do.
pub(super) fn set(
    driver: &Driver,
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    body: impl FnOnce(&Body) -> Answer<Body>,
) -> Answer {
    Executable::find(driver, graph_exec)?.change(node, |before| {
        let after = body(before)?;
        if super::update::refuse(before, &after).is_some() { Err(INVALID_VALUE) } else { Ok(after) }
    })
}
