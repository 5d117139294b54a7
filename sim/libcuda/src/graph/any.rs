//! The functions that add, change and read nodes of any kind.

use cgpu_abi::types::*;

use super::build::{
    acquire, add, allocation, context_of, copying, edges, event, filling, host, kernel, mem_ops,
    signal,
};
use super::node::Body;
use super::typed::{
    acquire_params, copy_params, fill_params, host_params, inheriting, kernel_params,
    mem_op_params, signal_params,
};
use super::{Edge, Graphs, executable};
use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::Driver;

/// Reads the member of the parameters that belongs to their kind.
macro_rules! member {
    ($params:expr, $member:ident) => {{
        // SAFETY: the kind names the member that the program has set, and every bit pattern of the
        // union is valid for its integers and addresses.
        unsafe { $params.node.$member }
    }};
}

/// Describes a node that is neither a child graph, memory nor conditional.
fn simple(driver: &Driver, params: &CUgraphNodeParams) -> Answer<Body> {
    Ok(match params.kind {
        CU_GRAPH_NODE_TYPE_KERNEL => kernel(driver, &member!(params, kernel))?,
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            let given = member!(params, memcpy);
            copying(driver, &given.copy_params, given.copy_ctx)?
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            let given = member!(params, memset);
            filling(driver, &given.v1, given.ctx)?
        }
        CU_GRAPH_NODE_TYPE_HOST => host(&member!(params, host))?,
        CU_GRAPH_NODE_TYPE_EMPTY => Body::Empty,
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => Body::Await(event(driver, member!(params, event).event)?),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            Body::Record(event(driver, member!(params, event).event)?)
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => Body::Free(member!(params, free).dptr),
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => mem_ops(driver, &member!(params, mem_op))?,
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL => {
            let given = member!(params, ext_sem_signal);
            signal(driver, &given.v1, given.ctx)?
        }
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => {
            let given = member!(params, ext_sem_wait);
            acquire(driver, &given.v1, given.ctx)?
        }
        // A newer kind.
        _ => return Err(INVALID_VALUE),
    })
}

fn add_any(
    driver: &Driver,
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: Vec<Edge>,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let graph_node = graph_node.required()?;
    let mut params = node_params.read()?;
    match params.kind {
        CU_GRAPH_NODE_TYPE_GRAPH => {
            let given = member!(params, graph);
            let moves = match given.ownership {
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => false,
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => true,
                _ => return Err(INVALID_VALUE),
            };
            graph_node.put(Graphs::of(driver).add_child(
                graph,
                dependencies,
                given.graph,
                moves,
            )?)?;
        }
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let mut given = member!(params, alloc);
            let reservation = allocation(driver, &given)?;
            given.dptr = reservation.first;
            params.node.alloc = given;
            add(driver, graph_node, graph, dependencies, Body::Allocate(reservation))?;
            node_params.put(params)?;
        }
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            let mut given = member!(params, conditional);
            let context = context_of(driver, given.ctx)?;
            let (node, bodies) =
                Graphs::of(driver).add_conditional(graph, dependencies, &given, context)?;
            graph_node.put(node)?;
            // The list belongs to the node and lives as long.
            given.graph_out = bodies.as_ptr().cast_mut();
            params.node.conditional = given;
            node_params.put(params)?;
        }
        _ => add(driver, graph_node, graph, dependencies, simple(driver, &params)?)?,
    }
    Ok(())
}

pub(crate) fn cuGraphAddNode(
    call: &Call,
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let dependencies = edges(dependencies, None, num_dependencies)?;
    add_any(call.driver()?, graph_node, graph, dependencies, node_params)
}

pub(crate) fn cuGraphAddNode_v2(
    call: &Call,
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    dependency_data: In<CUgraphEdgeData>,
    num_dependencies: usize,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let dependencies = edges(dependencies, Some(dependency_data), num_dependencies)?;
    add_any(call.driver()?, graph_node, graph, dependencies, node_params)
}
pub(crate) use cuGraphAddNode_v2 as cuGraphAddNode_v3;

pub(crate) fn cuGraphNodeSetParams(
    call: &Call,
    node: CUgraphNode,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let driver = call.driver()?;
    let body = changeable(driver, &node_params.read()?)?;
    Graphs::of(driver).change(node, body)
}
pub(crate) use cuGraphNodeSetParams as cuGraphNodeSetParams_v2;

pub(crate) fn cuGraphExecNodeSetParams(
    call: &Call,
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let driver = call.driver()?;
    let params = node_params.read()?;
    if params.kind == CU_GRAPH_NODE_TYPE_GRAPH {
        let child = member!(params, graph).graph;
        return executable::Executable::find(driver, graph_exec)?.change_child(driver, node, child);
    }
    let body = changeable(driver, &params)?;
    executable::set(driver, graph_exec, node, |before| Ok(inheriting(before, body)))
}

/// Describes what a node may be changed to. Memory nodes and child graphs cannot be changed.
fn changeable(driver: &Driver, params: &CUgraphNodeParams) -> Answer<Body> {
    match params.kind {
        CU_GRAPH_NODE_TYPE_MEM_FREE => Err(NOT_SUPPORTED),
        _ => simple(driver, params),
    }
}

/// Returns the parameters with which `cuGraphAddNode` would create the same node.
pub(crate) fn cuGraphNodeGetParams(
    call: &Call,
    node: CUgraphNode,
    node_params: Out<CUgraphNodeParams>,
) -> Answer {
    let driver = call.driver()?;
    let node_params = node_params.required()?;
    let graphs = Graphs::of(driver);
    let body = &graphs.node(node)?.body;
    let mut params = CUgraphNodeParams {
        kind: body.kind(),
        reserved0: [0; 3],
        node: CUgraphNodeParamsUnion { reserved1: [0; 29] },
        reserved2: 0,
    };
    match body {
        Body::Kernel(node) => params.node.kernel = kernel_params(node),
        Body::Copy(node) => params.node.memcpy = copy_params(node),
        Body::Fill(node) => {
            params.node.memset =
                CUDA_MEMSET_NODE_PARAMS_v2 { v1: fill_params(node)?, ctx: node.context.handle };
        }
        Body::Host(node) => params.node.host = host_params(*node),
        Body::Child(graph) => {
            let ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE;
            params.node.graph = CUDA_CHILD_GRAPH_NODE_PARAMS { graph: *graph, ownership };
        }
        Body::Empty => {}
        Body::Await(event) | Body::Record(event) => {
            params.node.event = CUDA_EVENT_NODE_PARAMS { event: *event }
        }
        Body::Allocate(reservation) => params.node.alloc = reservation.params(),
        Body::Free(dptr) => params.node.free = CUDA_MEM_FREE_NODE_PARAMS { dptr: *dptr },
        Body::MemOps(node) => params.node.mem_op = mem_op_params(node),
        Body::Signal(node) => {
            let ctx = node.context.handle;
            params.node.ext_sem_signal =
                CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 { v1: signal_params(node), ctx };
        }
        Body::Acquire(node) => {
            let ctx = node.context.handle;
            params.node.ext_sem_wait =
                CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 { v1: acquire_params(node), ctx };
        }
        Body::Conditional(node) => {
            params.node.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                handle: node.handle,
                kind: node.kind,
                size: c_uint::try_from(node.bodies.len()).map_err(|_| INVALID_VALUE)?,
                graph_out: node.bodies.as_ptr().cast_mut(),
                ctx: node.context.handle,
            };
        }
    }
    node_params.put(params)?;
    Ok(())
}
