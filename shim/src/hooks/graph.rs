//! Graphs: their memory is charged when they are launched or uploaded, by what the GPU has reserved
//! for them ([`cgpu_memory`] describes how).
//!
//! In a process whose graphs never allocate, this costs one load in each of these calls.

use cgpu_abi::types::*;
use cgpu_memory::{Footprint, GraphId, Graphs, PoolDriver, PoolError, PoolId, Submission, Tenant};

use super::answer::refuse;
use super::memory::call_retrying;
use crate::devices::DriverOrdinal;
use crate::gate::{self, Kernel, Launch};
use crate::graphs::{self, Driver, UnsupportedGraph};
use crate::order::Order;
use crate::process;
use crate::{boundary, driver};

hooks! { call;
    cuGraphInstantiate, cuGraphInstantiate_v2(
        graph_exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode,
        log_buffer: *mut c_char, buffer_size: usize,
    ) => {
        // SAFETY: `call` writes to the program's handle if it succeeds.
        unsafe { instantiate(graph_exec, graph, false, call) }
    };

    // Records what the executable graph can take.
    cuGraphInstantiateWithFlags(
        graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong,
    ) => {
        // SAFETY: `call` writes to the program's handle if it succeeds.
        unsafe { instantiate(graph_exec, graph, false, call) }
    };

    // May also upload the graph at once.
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz(
        graph_exec: *mut CUgraphExec, graph: CUgraph,
        instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    ) => {
        // SAFETY: `call` writes to the program's handle if it succeeds; the program's record is
        // null or valid.
        unsafe { instantiate_with(graph_exec, graph, instantiate_params, call) }
    };
}

/// Defines functions that launch an executable graph. If no GPU is contended and no graph
/// allocates, it is three loads and a jump, which cannot panic and so have no guard.
macro_rules! graph_launches {
    ($($symbol:ident: $order:ident, $flavour:ident;)*) => {$(
        /// Waits for the container's turn, and charges what the graph may take.
        #[inline(always)]
        pub(crate) unsafe fn $symbol(graph: CUgraphExec, stream: CUstream) -> CUresult {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn slow(graph: CUgraphExec, stream: CUstream) -> CUresult {
                // SAFETY: the program's own call.
                let call = || unsafe { driver::$symbol(graph, stream) };
                let send = || send(graph, Submission::Launch, Order::$order(stream), call);
                boundary::guard(|| {
                    if gate::is_open() {
                        return send();
                    }
                    gate::enter(Launch::graph(graph, stream, Launch::$flavour), send)
                })
            }

            let unasked = gate::is_open() && !graphs::may_allocate();
            let function = if unasked { driver::address::$symbol() } else { slow };
            // SAFETY: the program's own call.
            unsafe { function(graph, stream) }
        }
    )*};
}

graph_launches! {
    cuGraphLaunch: legacy, LEGACY;
    cuGraphLaunch_ptsz: per_thread, PER_THREAD;
}

/// Defines functions that upload an executable graph. If no graph allocates it is one load and a
/// jump.
macro_rules! uploads {
    ($($symbol:ident: $order:ident;)*) => {$(
        /// Charges what the graph may take.
        #[inline(always)]
        pub(crate) unsafe fn $symbol(graph: CUgraphExec, stream: CUstream) -> CUresult {
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn charged(graph: CUgraphExec, stream: CUstream) -> CUresult {
                // SAFETY: the program's own call.
                let call = || unsafe { driver::$symbol(graph, stream) };
                boundary::guard(|| send(graph, Submission::Upload, Order::$order(stream), call))
            }

            let function =
                if graphs::may_allocate() { charged } else { driver::address::$symbol() };
            // SAFETY: the program's own call.
            unsafe { function(graph, stream) }
        }
    )*};
}

uploads! {
    cuGraphUpload: legacy;
    cuGraphUpload_ptsz: per_thread;
}

hooks! { call;
    // Updates an executable graph, which may then take more or less.
    cuGraphExecUpdate(
        graph_exec: CUgraphExec, graph: CUgraph, error_node_out: *mut CUgraphNode,
        update_result_out: *mut CUgraphExecUpdateResult,
    ) => update(graph_exec, graph, Graphs::updated, call);

    // Returns more information about what cannot be updated.
    cuGraphExecUpdate_v2(
        graph_exec: CUgraphExec, graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo,
    ) => update(graph_exec, graph, Graphs::updated, call);

    // Changes what a part of the graph can take.
    cuGraphExecChildGraphNodeSetParams(
        graph_exec: CUgraphExec, node: CUgraphNode, child_graph: CUgraph,
    ) => update(graph_exec, child_graph, Graphs::part_updated, call);
}

/// The part may be a child graph.
pub(crate) unsafe fn cuGraphExecNodeSetParams(
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    node_params: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuGraphExecNodeSetParams(graph_exec, node, node_params) };
    // SAFETY: null, or the program's own record, which the driver would read as well.
    match unsafe { node_params.as_ref() } {
        Some(params) if params.kind == CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: for this kind the program has set this member of the union.
            let child = unsafe { params.node.graph }.graph;
            update(graph_exec, child, Graphs::part_updated, call)
        }
        _ => call(),
    }
}

/// Memory that the graph has taken stays reserved and charged. Its cost is forgotten, because its
/// handle may be reused.
pub(crate) unsafe fn cuGraphExecDestroy(graph_exec: CUgraphExec) -> CUresult {
    // SAFETY: the program's own call.
    let call = || unsafe { driver::cuGraphExecDestroy(graph_exec) };
    // Before the driver can reuse the handle.
    gate::forget_cost(Kernel::graph(graph_exec.0));
    let Some(tenant) = allocating() else { return call() };
    let number = tenant.graphs().number(GraphId(graph_exec.0));
    let answer = call();
    if let (CUresult::SUCCESS, Some(number)) = (answer, number) {
        tenant.graphs().destroyed(GraphId(graph_exec.0), number);
    }
    answer
}

/// Releases reserved memory that no graph uses.
pub(crate) unsafe fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuDeviceGraphMemTrim(device) };
    changed(DriverOrdinal(device));
    answer
}

/// Updates the accounting from the reserved memory; no returned number exceeds the limit.
pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own call.
    let answer = unsafe { driver::cuDeviceGetGraphMemAttribute(device, attr, value) };
    if let (CUresult::SUCCESS, Some(tenant)) = (answer, process::tenant())
        && let Some(gpu) = process::devices(tenant).gpu(DriverOrdinal(device))
        && let Some(limit) = tenant.view().limit(gpu)
    {
        changed(DriverOrdinal(device));
        let value = value.cast::<u64>();
        // SAFETY: the driver has just written a number of that size there.
        let figure = unsafe { value.read_unaligned() };
        // SAFETY: as above.
        unsafe { value.write_unaligned(figure.min(limit.0)) };
    }
    answer
}

fn allocating() -> Option<&'static Tenant> {
    if graphs::may_allocate() { process::tenant() } else { None }
}

fn changed(device: DriverOrdinal) {
    if let Some(tenant) = allocating()
        && let Some(gpu) = process::devices(tenant).gpu(device)
    {
        tenant.pools().changed(PoolId::of_graphs(gpu));
    }
}

/// Calls [`instantiate`] with parameters.
///
/// # Safety
///
/// As for [`instantiate`]; `params` is null, or readable and writable.
unsafe fn instantiate_with(
    graph_exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    // SAFETY: guaranteed by the caller.
    let flags = unsafe { params.as_ref() }.map_or(0, |params| params.flags);
    let uploads = flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    // SAFETY: guaranteed by the caller.
    let answer = unsafe { instantiate(graph_exec, graph, uploads, call) };
    // SAFETY: as above.
    if let (CUresult::ERROR_OUT_OF_MEMORY, Some(params)) = (answer, unsafe { params.as_mut() }) {
        params.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    answer
}

/// Makes an executable graph, and records what it can take.
///
/// # Safety
///
/// If `call` succeeds, it has written a handle to `graph_exec`.
unsafe fn instantiate(
    graph_exec: *mut CUgraphExec,
    graph: CUgraph,
    uploads: bool,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(tenant) = allocating() else { return call() };
    let mut footprint = match graphs::footprint(tenant, graph) {
        Ok(footprint) => footprint,
        Err(unsupported) => return refuse_graph(unsupported, call),
    };
    let call = || {
        // SAFETY: the driver has just written there.
        driver::ok(call()).map(|()| GraphId(unsafe { graph_exec.read() }.0))
    };
    let undo = |graph: GraphId| {
        // SAFETY: the driver just returned the handle, and the program has not seen it. One that
        // cannot be destroyed is never launched.
        let _ = unsafe { driver::cuGraphExecDestroy(CUgraphExec(graph.0)) };
    };
    answered(tenant.graphs().instantiate(&mut footprint, uploads, &Driver, call, undo))
}

fn update(
    graph_exec: CUgraphExec,
    graph: CUgraph,
    updated: impl FnOnce(Graphs<'static>, GraphId, &mut Footprint, &'static dyn PoolDriver),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(tenant) = allocating() else { return call() };
    let mut footprint = match graphs::footprint(tenant, graph) {
        Ok(footprint) => footprint,
        Err(unsupported) => return refuse_graph(unsupported, call),
    };
    let answer = call();
    let concerned = !footprint.is_empty() || tenant.graphs().gpu(GraphId(graph_exec.0)).is_some();
    if answer == CUresult::SUCCESS && concerned {
        updated(tenant.graphs(), GraphId(graph_exec.0), &mut footprint, &Driver);
    }
    answer
}

fn send(
    graph: CUgraphExec,
    submission: Submission,
    order: Order,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let graph = GraphId(graph.0);
    let Some((tenant, gpu)) =
        allocating().and_then(|tenant| Some((tenant, tenant.graphs().gpu(graph)?)))
    else {
        return call();
    };
    match order.is_captured() {
        Ok(false) => {}
        // It becomes part of another graph.
        Ok(true) => return call(),
        Err(answer) => return answer,
    }
    let call = || driver::ok(call_retrying(tenant, gpu, &call));
    answered(tenant.graphs().send(graph, submission, order.lane(), call, || order.is_busy()))
}

fn refuse_graph(unsupported: UnsupportedGraph, call: impl FnOnce() -> CUresult) -> CUresult {
    match unsupported {
        UnsupportedGraph::Memory(role) => refuse(role, call),
        UnsupportedGraph::NoHostMemory => CUresult::ERROR_OUT_OF_MEMORY,
    }
}

fn answered(made: Result<(), PoolError<CUresult>>) -> CUresult {
    match made {
        Ok(()) => CUresult::SUCCESS,
        Err(PoolError::Driver(answer)) => answer,
        Err(PoolError::Denied(_) | PoolError::Unknown | PoolError::Destroyed) => {
            CUresult::ERROR_OUT_OF_MEMORY
        }
    }
}
