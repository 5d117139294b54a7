//! Nodes of graphs: those that allocate, and the bodies of conditional ones.

use cgpu_abi::types::*;
use cgpu_memory::{Bodies, NodeId};

use super::answer::refuse;
use crate::source::Source;
use crate::{driver, graphs, process};

hooks! { call;
    // The memory belongs to the graph, which takes it when it is launched.
    cuGraphAddMemAllocNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
    ) => {
        // SAFETY: null, or the program's own record, which the driver would read as well.
        allocate(unsafe { node_params.as_ref() }.map(|params| params.pool_props), call)
    };

    // A node of any kind.
    cuGraphAddNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        num_dependencies: usize, node_params: *mut CUgraphNodeParams,
    ) => {
        // SAFETY: the record is null or valid; `call` writes to the program's node if it succeeds.
        unsafe { add(graph_node, node_params, call) }
    };

    // With edge data.
    cuGraphAddNode_v2, cuGraphAddNode_v3(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
        dependency_data: *const CUgraphEdgeData, num_dependencies: usize,
        node_params: *mut CUgraphNodeParams,
    ) => {
        // SAFETY: the record is null or valid; `call` writes to the program's node if it succeeds.
        unsafe { add(graph_node, node_params, call) }
    };
}

fn allocate(properties: Option<CUmemPoolProps>, call: impl FnOnce() -> CUresult) -> CUresult {
    let tenant = tenant_or_return!(call());
    if let Some(properties) = properties
        && let Source::Refused(role) =
            Source::of(tenant, properties.alloc_type, properties.location)
    {
        return refuse(role, call);
    }
    graphs::will_allocate();
    call()
}

/// Adds a node of any kind.
///
/// # Safety
///
/// `params` is null or readable; if `call` succeeds, it has written to `node` and `params`.
unsafe fn add(
    node: *mut CUgraphNode,
    params: *mut CUgraphNodeParams,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: guaranteed by the caller.
    match unsafe { params.as_ref() }.map(|params| params.kind) {
        Some(CU_GRAPH_NODE_TYPE_MEM_ALLOC) => {
            // SAFETY: as above.
            let given = unsafe { params.read() };
            // SAFETY: for this kind the program has set this member of the union.
            allocate(Some(unsafe { given.node.alloc }.pool_props), call)
        }
        Some(CU_GRAPH_NODE_TYPE_CONDITIONAL) => {
            let answer = call();
            if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant()) {
                // SAFETY: the driver has just written there.
                let node = unsafe { node.read() };
                // SAFETY: as above.
                let made = unsafe { params.read() };
                // SAFETY: for this kind the program and the driver have set this member of the
                // union.
                let conditional = unsafe { made.node.conditional };
                let list = conditional.graph_out.expose_provenance();
                tenant
                    .graphs()
                    .conditional_made(NodeId(node.0), Bodies { list, count: conditional.size });
            }
            answer
        }
        _ => call(),
    }
}
