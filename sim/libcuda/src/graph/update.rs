//! Updates of executable graphs: taking over the parameters of a graph with the same dependencies.
//!
//! Nodes are paired in the order of their creation.

use std::collections::HashMap;
use std::sync::Arc;

use cgpu_abi::types::*;

use super::executable::{Executable, State};
use super::node::Body;
use super::{Graphs, Node, Nodes};
use crate::answer::{Answer, GRAPH_EXEC_UPDATE_FAILURE};
use crate::argument::Out;
use crate::call::Call;
use crate::driver::lock;
use crate::memops;

/// Why an update is refused, the node of the other graph that is the cause, and the dependency of
/// it.
pub(super) struct Refusal {
    result: CUgraphExecUpdateResult,
    node: CUgraphNode,
    from: CUgraphNode,
}

impl Refusal {
    fn at(result: CUgraphExecUpdateResult, node: CUgraphNode) -> Self {
        Self { result, node, from: CUgraphNode::NULL }
    }
}

/// Returns why an executable graph's node cannot change from `before` to `after`.
pub(super) fn refuse(before: &Body, after: &Body) -> Option<CUgraphExecUpdateResult> {
    match (before, after) {
        (Body::Kernel(before), Body::Kernel(after)) => {
            if before.context.number != after.context.number {
                Some(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE)
            } else if before.shape.cooperative != after.shape.cooperative {
                Some(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED)
            } else {
                None
            }
        }
        (Body::Copy(before), Body::Copy(after)) => {
            (!after.may_replace(before)).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Fill(before), Body::Fill(after)) => {
            // Two-dimensional fills may only change address and value.
            let (was, is) = (before.fill, after.fill);
            let flat = was.rows == 1 && is.rows == 1;
            let shape = was.size == is.size
                && (flat
                    || (was.elements, was.rows, was.pitch) == (is.elements, is.rows, is.pitch));
            let stays = shape && before.context.number == after.context.number;
            (!stays).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::MemOps(before), Body::MemOps(after)) => {
            let kinds = |node: &super::node::MemOpsNode| -> Vec<CUstreamBatchMemOpType> {
                node.operations.iter().map(memops::kind).collect()
            };
            (kinds(before) != kinds(after)).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Signal(before), Body::Signal(after)) => {
            let same = before.semaphores.len() == after.semaphores.len();
            (!same).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Acquire(before), Body::Acquire(after)) => {
            let same = before.semaphores.len() == after.semaphores.len();
            (!same).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Allocate(before), Body::Allocate(after)) => {
            (!Arc::ptr_eq(before, after)).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Free(before), Body::Free(after)) => {
            (before != after).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        (Body::Conditional(before), Body::Conditional(after)) => {
            let same = before.kind == after.kind && before.bodies.len() == after.bodies.len();
            (!same).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
        }
        _ => {
            (before.kind() != after.kind()).then_some(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED)
        }
    }
}

/// Returns the positions of a node's dependencies among all nodes.
fn places(node: &Node, all: &HashMap<CUgraphNode, usize>) -> Vec<(usize, CUgraphNode)> {
    let mut places: Vec<(usize, CUgraphNode)> = node
        .dependencies
        .iter()
        .filter_map(|edge| Some((*all.get(&edge.from)?, edge.from)))
        .collect();
    places.sort_unstable();
    places
}

/// Pairs the nodes of a graph with those of another, and those of their child graphs.
fn pair(
    shapes: &HashMap<CUgraph, Nodes>,
    part: CUgraph,
    others: &HashMap<CUgraph, Nodes>,
    other: CUgraph,
    pairs: &mut Vec<(CUgraph, CUgraphNode, Body)>,
) -> Result<(), Refusal> {
    let topology = |node| Refusal::at(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node);
    let (Some(mine), Some(its)) = (shapes.get(&part), others.get(&other)) else {
        return Err(Refusal::at(CU_GRAPH_EXEC_UPDATE_ERROR, CUgraphNode::NULL));
    };
    if mine.len() != its.len() {
        return Err(topology(CUgraphNode::NULL));
    }
    let index =
        |nodes: &Nodes| nodes.keys().enumerate().map(|(place, &node)| (node, place)).collect();
    let (my_places, its_places): (HashMap<_, _>, HashMap<_, _>) = (index(mine), index(its));
    for ((&handle, node), (&other_handle, other_node)) in mine.iter().zip(its) {
        let (was, is) = (places(node, &my_places), places(other_node, &its_places));
        if was.len() != is.len() {
            return Err(topology(other_handle));
        }
        if let Some((_, (_, from))) = was.iter().zip(&is).find(|(was, is)| was.0 != is.0) {
            return Err(Refusal { from: *from, ..topology(other_handle) });
        }
        if let Some(result) = refuse(&node.body, &other_node.body) {
            return Err(Refusal::at(result, other_handle));
        }
        for (mine, its) in node.body.parts().into_iter().zip(other_node.body.parts()) {
            pair(shapes, mine, others, its, pairs)?;
        }
        let keeps = matches!(node.body, Body::Child(_) | Body::Conditional(_));
        pairs.push((part, handle, if keeps { node.body.clone() } else { other_node.body.clone() }));
    }
    Ok(())
}

/// Gives the nodes of an executable graph the work of another graph's nodes.
pub(super) fn take_over(
    state: &mut State,
    part: CUgraph,
    others: &HashMap<CUgraph, Nodes>,
    other: CUgraph,
) -> Result<(), Refusal> {
    let mut pairs = Vec::new();
    pair(&state.shapes, part, others, other, &mut pairs)?;
    for (graph, handle, body) in pairs {
        if let Some(node) = state.shapes.get_mut(&graph).and_then(|nodes| nodes.get_mut(&handle)) {
            node.body = body;
        }
    }
    state.order = None;
    Ok(())
}

fn update(call: &Call, graph_exec: CUgraphExec, graph: CUgraph) -> Answer<Option<Refusal>> {
    let driver = call.driver()?;
    let executable = Executable::find(driver, graph_exec)?;
    let mut state = lock(&executable.state);
    let graphs = Graphs::of(driver);
    let shapes = graphs.shapes_within(graph)?;
    let values = graphs.values_within(&shapes, &state.shapes);
    drop(graphs);
    match take_over(&mut state, executable.source, &shapes, graph) {
        Ok(()) => {
            state.values.extend(values);
            Ok(None)
        }
        Err(refusal) => Ok(Some(refusal)),
    }
}

impl Graphs {
    /// Returns the values of another graph's conditional handles, by the handles of the nodes
    /// paired with theirs.
    fn values_within(
        &self,
        others: &HashMap<CUgraph, Nodes>,
        mine: &HashMap<CUgraph, Nodes>,
    ) -> HashMap<CUgraphConditionalHandle, c_uint> {
        let handles = |shapes: &HashMap<CUgraph, Nodes>| -> Vec<CUgraphConditionalHandle> {
            let mut all: Vec<(CUgraphNode, CUgraphConditionalHandle)> = shapes
                .values()
                .flatten()
                .filter_map(|(&node, there)| match &there.body {
                    Body::Conditional(conditional) => Some((node, conditional.handle)),
                    _ => None,
                })
                .collect();
            all.sort_unstable();
            all.into_iter().map(|(_, handle)| handle).collect()
        };
        handles(mine)
            .into_iter()
            .zip(handles(others))
            .map(|(mine, other)| (mine, self.condition(other)))
            .collect()
    }
}

pub(crate) fn cuGraphExecUpdate_v2(
    call: &Call,
    graph_exec: CUgraphExec,
    graph: CUgraph,
    result_info: Out<CUgraphExecUpdateResultInfo>,
) -> Answer {
    let result_info = result_info.required()?;
    let null = CUgraphNode::NULL;
    let reported = |result, error_node, error_from_node| CUgraphExecUpdateResultInfo {
        result,
        error_node,
        error_from_node,
    };
    match update(call, graph_exec, graph) {
        Ok(None) => result_info.put(reported(CU_GRAPH_EXEC_UPDATE_SUCCESS, null, null))?,
        Ok(Some(Refusal { result, node, from })) => {
            result_info.put(reported(result, node, from))?;
            return Err(GRAPH_EXEC_UPDATE_FAILURE);
        }
        Err(failure) => {
            result_info.put(reported(CU_GRAPH_EXEC_UPDATE_ERROR, null, null))?;
            return Err(failure);
        }
    }
    Ok(())
}

pub(crate) fn cuGraphExecUpdate(
    call: &Call,
    graph_exec: CUgraphExec,
    graph: CUgraph,
    error_node_out: Out<CUgraphNode>,
    update_result_out: Out<CUgraphExecUpdateResult>,
) -> Answer {
    let update_result_out = update_result_out.required()?;
    let refusal = update(call, graph_exec, graph).inspect_err(|_| {
        update_result_out.put_if_not_null(CU_GRAPH_EXEC_UPDATE_ERROR);
    })?;
    let (result, node) = refusal
        .map_or((CU_GRAPH_EXEC_UPDATE_SUCCESS, CUgraphNode::NULL), |it| (it.result, it.node));
    error_node_out.put_if_not_null(node);
    update_result_out.put(result)?;
    if result == CU_GRAPH_EXEC_UPDATE_SUCCESS { Ok(()) } else { Err(GRAPH_EXEC_UPDATE_FAILURE) }
}
