//! Nodes are added to graphs: the functions for each kind of node.

use std::collections::BTreeMap;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::Fill;

use super::arguments::Arguments;
use super::memory::Reservation;
use super::node::{Body, FillNode, HostNode, KernelNode, MemOpsNode, SemaphoresNode};
use super::{Copying, Edge, Graphs};
use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out, Received};
use crate::call::Call;
use crate::context::Context;
use crate::driver::Driver;
use crate::function;
use crate::launch::{self, Shape};
use crate::{library, location, memops, semaphore};

pub(crate) fn edges(
    from: In<CUgraphNode>,
    data: Option<In<CUgraphEdgeData>>,
    count: usize,
) -> Answer<Vec<Edge>> {
    let from = from.read_all(count)?;
    let data = match data.filter(|data| data.required().is_ok()) {
        Some(data) => data.read_all(count)?,
        None => vec![CUgraphEdgeData::default(); count],
    };
    Ok(from.into_iter().zip(data).map(|(from, data)| Edge { from, data }).collect())
}

/// Adds a node that was checked.
pub(super) fn add(
    driver: &Driver,
    node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: Vec<Edge>,
    body: Body,
) -> Answer {
    let node = node.required()?;
    let free = if let Body::Free(address) = body { Some(address) } else { None };
    let mut graphs = Graphs::of(driver);
    graphs.graph(graph)?;
    if let Some(address) = free {
        Reservation::find(driver, address).ok_or(INVALID_VALUE)?.freed_in(graph)?;
    }
    if let Body::Allocate(reservation) = &body {
        reservation.set_owner(graph);
    }
    node.put(graphs.add(graph, dependencies, body)?)?;
    Ok(())
}

/// Returns the context that parameters name; NULL is the current one.
pub(super) fn context_of(driver: &Driver, context: CUcontext) -> Answer<Arc<Context>> {
    driver.context(context)
}

pub(super) fn kernel(driver: &Driver, params: &CUDA_KERNEL_NODE_PARAMS_v2) -> Answer<Body> {
    let CUDA_KERNEL_NODE_PARAMS_v2 { v1: given, kern, .. } = *params;
    let handle = match (given.func.is_null(), kern.is_null()) {
        (false, _) => given.func,
        // A kernel stands for its function in the current context.
        (true, false) => library::function_of(driver, kern)?,
        (true, true) => return Err(INVALID_VALUE),
    };
    let function = function::find(driver, handle)?;
    let shape = Shape {
        grid: [given.grid_dim_x, given.grid_dim_y, given.grid_dim_z],
        block: [given.block_dim_x, given.block_dim_y, given.block_dim_z],
        shared: given.shared_mem_bytes,
        cooperative: false,
        priority: None,
    };
    let launch = launch::prepare(driver, &function, shape)?;
    // SAFETY: a list that the program passes for the duration of the call: NULL, or as long as the
    // function's parameters.
    let values = unsafe { Received::received(given.kernel_params) };
    // SAFETY: as above; the list ends as the driver documents.
    let extra = unsafe { Received::received(given.extra) };
    let arguments = Arguments::taken(&function, values, extra)?.map(Arc::new);
    Ok(Body::Kernel(KernelNode {
        function: handle,
        kernel: kern,
        context: Arc::clone(&function.context),
        shape,
        launch,
        arguments,
        attributes: BTreeMap::new(),
    }))
}

/// Converts the parameters of a kernel node to those since CUDA 12.
pub(super) fn since_12(v1: CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    CUDA_KERNEL_NODE_PARAMS_v2 { v1, kern: CUkernel::NULL, ctx: CUcontext::NULL }
}

pub(super) fn copying(driver: &Driver, params: &CUDA_MEMCPY3D, context: CUcontext) -> Answer<Body> {
    let copying = Copying::received(params, context_of(driver, context)?);
    copying.check(driver)?;
    Ok(Body::Copy(copying))
}

pub(super) fn filling(
    driver: &Driver,
    params: &CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Answer<Body> {
    let fill = Fill {
        to: params.dst,
        value: params.value,
        size: u64::from(params.element_size),
        elements: params.width as u64,
        rows: params.height as u64,
        pitch: params.pitch as u64,
    };
    let context = context_of(driver, context)?;
    let shapeless = !matches!(fill.size, 1 | 2 | 4) || fill.elements == 0 || fill.rows == 0;
    if shapeless
        || !fill.to.is_multiple_of(fill.size)
        || fill.rows > 1 && fill.pitch < fill.elements * fill.size
    {
        return Err(INVALID_VALUE);
    }
    Ok(Body::Fill(FillNode { fill, context }))
}

pub(super) fn host(params: &CUDA_HOST_NODE_PARAMS) -> Answer<Body> {
    Ok(Body::Host(HostNode::new(params.function, params.user_data.expose_provenance())?))
}

pub(super) fn event(driver: &Driver, event: CUevent) -> Answer<CUevent> {
    driver.events.get(event.0).ok_or(INVALID_HANDLE)?;
    Ok(event)
}

pub(super) fn mem_ops(driver: &Driver, params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Answer<Body> {
    let context = context_of(driver, params.ctx)?;
    // SAFETY: the program gives the number of operations; they are valid for the call.
    let operations: In<CUstreamBatchMemOpParams> =
        unsafe { In::received(params.param_array.cast_const()) };
    let operations = memops::batch(operations, params.count, params.flags)?;
    for operation in &operations {
        memops::work(driver, operation)?;
    }
    Ok(Body::MemOps(MemOpsNode { operations: operations.into(), flags: params.flags, context }))
}

/// Defines the functions that read the parameters of semaphore nodes.
macro_rules! semaphores {
    ($($name:ident $body:ident: $params:ty;)*) => {$(
        pub(super) fn $name(driver: &Driver, params: &$params, context: CUcontext) -> Answer<Body> {
            let context = context_of(driver, context)?;
            // SAFETY: the program gives the number of semaphores; they are valid for the call.
            let semaphores = unsafe { In::received(params.ext_sem_array.cast_const()) };
            // SAFETY: as above, for their parameters.
            let operations = unsafe { In::received(params.params_array) };
            let (semaphores, params) =
                semaphore::received(driver, semaphores, operations, params.num_ext_sems)?;
            let (semaphores, params) = (semaphores.into(), params.into());
            Ok(Body::$body(SemaphoresNode { semaphores, params, context }))
        }
    )*};
}

semaphores! {
    signal Signal: CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
    acquire Acquire: CUDA_EXT_SEM_WAIT_NODE_PARAMS;
}

pub(super) fn allocation(
    driver: &Driver,
    params: &CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Answer<Arc<Reservation>> {
    let props = params.pool_props;
    if props.alloc_type != CU_MEM_ALLOCATION_TYPE_PINNED
        || props.handle_types != CU_MEM_HANDLE_TYPE_NONE
    {
        return Err(NOT_SUPPORTED);
    }
    let site = location::site_of(driver, props.location)?;
    // Not simulated in a locality domain.
    if site.domain.is_some() {
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: the program gives the number of descriptors; they are valid for the call.
    let access: In<CUmemAccessDesc> = unsafe { In::received(params.access_descs) };
    let access = access.read_all(params.access_desc_count)?;
    Reservation::new(driver, params.bytesize as u64, driver.device(site.gpu), access)
}

pub(crate) fn cuGraphCreate(call: &Call, graph: Out<CUgraph>, flags: c_uint) -> Answer {
    let driver = call.driver()?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    graph.required()?.put(Graphs::of(driver).create())?;
    Ok(())
}

/// Defines the functions that add a node: their parameters after the dependencies, and the node's
/// description.
macro_rules! nodes {
    ($($symbol:ident ($driver:ident, $($argument:ident: $type:ty),*) $body:expr;)*) => {$(
        pub(crate) fn $symbol(
            call: &Call,
            graph_node: Out<CUgraphNode>,
            graph: CUgraph,
            dependencies: In<CUgraphNode>,
            num_dependencies: usize,
            $($argument: $type),*
        ) -> Answer {
            let $driver = call.driver()?;
            let dependencies = edges(dependencies, None, num_dependencies)?;
            add($driver, graph_node, graph, dependencies, $body)
        }
    )*};
}

nodes! {
    cuGraphAddKernelNode(driver, node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>)
        kernel(driver, &since_12(node_params.read()?))?;
    cuGraphAddKernelNode_v2(driver, node_params: In<CUDA_KERNEL_NODE_PARAMS_v2>)
        kernel(driver, &node_params.read()?)?;
    cuGraphAddMemcpyNode(driver, copy_params: In<CUDA_MEMCPY3D>, ctx: CUcontext)
        copying(driver, &copy_params.read()?, ctx)?;
    cuGraphAddMemsetNode(driver, memset_params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext)
        filling(driver, &memset_params.read()?, ctx)?;
    cuGraphAddHostNode(_driver, node_params: In<CUDA_HOST_NODE_PARAMS>) host(&node_params.read()?)?;
    cuGraphAddEmptyNode(_driver,) Body::Empty;
    cuGraphAddEventRecordNode(driver, record: CUevent) Body::Record(event(driver, record)?);
    cuGraphAddEventWaitNode(driver, awaited: CUevent) Body::Await(event(driver, awaited)?);
    cuGraphAddBatchMemOpNode(driver, node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>)
        mem_ops(driver, &node_params.read()?)?;
    cuGraphAddExternalSemaphoresSignalNode(driver, node_params: In<CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>)
        signal(driver, &node_params.read()?, CUcontext::NULL)?;
    cuGraphAddExternalSemaphoresWaitNode(driver, node_params: In<CUDA_EXT_SEM_WAIT_NODE_PARAMS>)
        acquire(driver, &node_params.read()?, CUcontext::NULL)?;
    cuGraphAddMemFreeNode(_driver, dptr: CUdeviceptr) Body::Free(dptr);
}

pub(crate) fn cuGraphAddMemAllocNode(
    call: &Call,
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    node_params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>,
) -> Answer {
    let driver = call.driver()?;
    let mut params = node_params.read()?;
    let reservation = allocation(driver, &params)?;
    params.dptr = reservation.first;
    let dependencies = edges(dependencies, None, num_dependencies)?;
    add(driver, graph_node, graph, dependencies, Body::Allocate(reservation))?;
    node_params.put(params)?;
    Ok(())
}

pub(crate) fn cuGraphAddChildGraphNode(
    call: &Call,
    graph_node: Out<CUgraphNode>,
    graph: CUgraph,
    dependencies: In<CUgraphNode>,
    num_dependencies: usize,
    child_graph: CUgraph,
) -> Answer {
    let driver = call.driver()?;
    let node = graph_node.required()?;
    let dependencies = edges(dependencies, None, num_dependencies)?;
    node.put(Graphs::of(driver).add_child(graph, dependencies, child_graph, false)?)?;
    Ok(())
}

pub(crate) fn cuGraphDestroyNode(call: &Call, node: CUgraphNode) -> Answer {
    let driver = call.driver()?;
    Graphs::of(driver).destroy_node(node)
}

pub(crate) fn cuGraphConditionalHandleCreate(
    call: &Call,
    handle_out: Out<CUgraphConditionalHandle>,
    graph: CUgraph,
    ctx: CUcontext,
    default_launch_value: c_uint,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let handle_out = handle_out.required()?;
    context_of(driver, ctx)?;
    if flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
        return Err(INVALID_VALUE);
    }
    let assigned = flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0;
    handle_out.put(Graphs::of(driver).create_condition(
        graph,
        default_launch_value,
        assigned,
    )?)?;
    Ok(())
}
