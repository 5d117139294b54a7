//! Parameters of nodes, by the functions for each kind: read and set, in a graph and in an
//! executable graph.

use std::collections::BTreeMap;

use cgpu_abi::types::*;

use super::build::{acquire, copying, event, filling, host, kernel, mem_ops, signal, since_12};
use super::executable::{self, Executable};
use super::node::{Body, FillNode, HostNode, KernelNode, MemOpsNode, SemaphoresNode};
use super::{Copying, Graphs};
use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::argument::{In, Out};
use crate::call::Call;
use crate::driver::Driver;
use crate::launch;

impl Graphs {
    /// Changes a node's work; its kind must stay.
    pub(super) fn change(&mut self, node: CUgraphNode, body: Body) -> Answer {
        let node = self.node_mut(node)?;
        if node.body.kind() != body.kind() {
            return Err(INVALID_VALUE);
        }
        node.body = inheriting(&node.body, body);
        Ok(())
    }
}

/// Keeps a kernel node's attributes when its parameters change.
pub(super) fn inheriting(before: &Body, mut after: Body) -> Body {
    if let (Body::Kernel(before), Body::Kernel(after)) = (before, &mut after) {
        after.attributes = before.attributes.clone();
        if before.shape.cooperative {
            after.shape.cooperative = true;
            after.launch.footprint = after.launch.footprint.cooperative();
        }
    }
    after
}

pub(super) fn kernel_params(node: &KernelNode) -> CUDA_KERNEL_NODE_PARAMS_v2 {
    let (grid, block) = (node.shape.grid, node.shape.block);
    let lists =
        node.arguments.as_ref().map(|arguments| (arguments.parameters(), arguments.extra()));
    let (kernel_params, extra) = lists.unwrap_or((core::ptr::null_mut(), core::ptr::null_mut()));
    CUDA_KERNEL_NODE_PARAMS_v2 {
        v1: CUDA_KERNEL_NODE_PARAMS_v1 {
            func: node.function,
            grid_dim_x: grid[0],
            grid_dim_y: grid[1],
            grid_dim_z: grid[2],
            block_dim_x: block[0],
            block_dim_y: block[1],
            block_dim_z: block[2],
            shared_mem_bytes: node.shape.shared,
            kernel_params,
            extra,
        },
        kern: node.kernel,
        ctx: node.context.handle,
    }
}

pub(super) fn fill_params(node: &FillNode) -> Answer<CUDA_MEMSET_NODE_PARAMS> {
    let size = |number: u64| usize::try_from(number).map_err(|_| INVALID_VALUE);
    Ok(CUDA_MEMSET_NODE_PARAMS {
        dst: node.fill.to,
        pitch: size(node.fill.pitch)?,
        value: node.fill.value,
        element_size: c_uint::try_from(node.fill.size).map_err(|_| INVALID_VALUE)?,
        width: size(node.fill.elements)?,
        height: size(node.fill.rows)?,
    })
}

pub(super) fn host_params(node: HostNode) -> CUDA_HOST_NODE_PARAMS {
    let user_data = core::ptr::with_exposed_provenance_mut(node.data);
    CUDA_HOST_NODE_PARAMS { function: Some(node.function), user_data }
}

/// The operations belong to the node and live as long as it has them.
pub(super) fn mem_op_params(node: &MemOpsNode) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: node.context.handle,
        count: c_uint::try_from(node.operations.len()).unwrap_or(c_uint::MAX),
        param_array: node.operations.as_ptr().cast_mut().cast(),
        flags: node.flags,
    }
}

/// Defines the functions that return the parameters of semaphore nodes. The lists belong to the
/// node and live as long as it has them.
macro_rules! semaphore_params {
    ($($name:ident $operation:ident $params_of:ident;)*) => {$(
        pub(super) fn $name(node: &SemaphoresNode<$operation>) -> $params_of {
            $params_of {
                ext_sem_array: node.semaphores.as_ptr().cast_mut(),
                params_array: node.params.as_ptr(),
                num_ext_sems: c_uint::try_from(node.semaphores.len()).unwrap_or(c_uint::MAX),
            }
        }
    )*};
}

semaphore_params! {
    signal_params CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS CUDA_EXT_SEM_SIGNAL_NODE_PARAMS;
    acquire_params CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS CUDA_EXT_SEM_WAIT_NODE_PARAMS;
}

/// Returns a node's parameters, if the node is of the right kind.
fn params_of<T>(
    call: &Call,
    node: CUgraphNode,
    read: impl FnOnce(&Body) -> Option<Answer<T>>,
) -> Answer<T> {
    let driver = call.driver()?;
    read(&Graphs::of(driver).node(node)?.body).ok_or(INVALID_VALUE)?
}

macro_rules! getters {
    ($($symbol:ident $kind:ident $type:ty: $node:ident => $params_of:expr;)*) => {$(
        pub(crate) fn $symbol(call: &Call, node: CUgraphNode, params_out: Out<$type>) -> Answer {
            let params_out = params_out.required()?;
            params_out.put(params_of(call, node, |body| match body {
                Body::$kind($node) => Some($params_of),
                _ => None,
            })?)?;
            Ok(())
        }
    )*};
}

getters! {
    cuGraphKernelNodeGetParams Kernel CUDA_KERNEL_NODE_PARAMS_v1: node =>
        Ok(kernel_params(node).v1);
    cuGraphKernelNodeGetParams_v2 Kernel CUDA_KERNEL_NODE_PARAMS_v2: node =>
        Ok(kernel_params(node));
    cuGraphMemcpyNodeGetParams Copy CUDA_MEMCPY3D: node => Ok(node.params());
    cuGraphMemsetNodeGetParams Fill CUDA_MEMSET_NODE_PARAMS: node => fill_params(node);
    cuGraphHostNodeGetParams Host CUDA_HOST_NODE_PARAMS: node => Ok(host_params(*node));
    cuGraphEventRecordNodeGetEvent Record CUevent: node => Ok(*node);
    cuGraphEventWaitNodeGetEvent Await CUevent: node => Ok(*node);
    cuGraphBatchMemOpNodeGetParams MemOps CUDA_BATCH_MEM_OP_NODE_PARAMS: node =>
        Ok(mem_op_params(node));
    cuGraphExternalSemaphoresSignalNodeGetParams Signal CUDA_EXT_SEM_SIGNAL_NODE_PARAMS: node =>
        Ok(signal_params(node));
    cuGraphExternalSemaphoresWaitNodeGetParams Acquire CUDA_EXT_SEM_WAIT_NODE_PARAMS: node =>
        Ok(acquire_params(node));
    cuGraphMemAllocNodeGetParams Allocate CUDA_MEM_ALLOC_NODE_PARAMS: node => Ok(node.params());
    cuGraphMemFreeNodeGetParams Free CUdeviceptr: node => Ok(*node);
}

/// Returns the context that a copy or fill node keeps when its parameters change.
fn context(call: &Call, node: CUgraphNode) -> Answer<CUcontext> {
    params_of(call, node, |body| body.context().map(|context| Ok(context.handle)))
}

/// Defines the functions that set a node's parameters: in a graph, and in an executable graph.
macro_rules! setters {
    ($($symbol:ident $executable:ident (
        $call:ident $driver:ident $node:ident,
        $argument:ident: $type:ty $(, $more:ident: $other:ty)?
    ) $body:expr, $body_there:expr;)*) => {$(
        pub(crate) fn $symbol($call: &Call, $node: CUgraphNode, $argument: $type) -> Answer {
            let $driver = $call.driver()?;
            let body = $body;
            Graphs::of($driver).change($node, body)
        }

        pub(crate) fn $executable(
            $call: &Call,
            graph_exec: CUgraphExec,
            $node: CUgraphNode,
            $argument: $type,
            $($more: $other)?
        ) -> Answer {
            let $driver = $call.driver()?;
            let body = $body_there;
            executable::set($driver, graph_exec, $node, |before| Ok(inheriting(before, body)))
        }
    )*};
}

setters! {
    cuGraphKernelNodeSetParams cuGraphExecKernelNodeSetParams
        (call driver node, node_params: In<CUDA_KERNEL_NODE_PARAMS_v1>)
        kernel(driver, &since_12(node_params.read()?))?,
        kernel(driver, &since_12(node_params.read()?))?;
    cuGraphKernelNodeSetParams_v2 cuGraphExecKernelNodeSetParams_v2
        (call driver node, node_params: In<CUDA_KERNEL_NODE_PARAMS_v2>)
        kernel(driver, &node_params.read()?)?, kernel(driver, &node_params.read()?)?;
    cuGraphMemcpyNodeSetParams cuGraphExecMemcpyNodeSetParams
        (call driver node, copy_params: In<CUDA_MEMCPY3D>, ctx: CUcontext)
        copying(driver, &copy_params.read()?, context(call, node)?)?,
        copying(driver, &copy_params.read()?, ctx)?;
    cuGraphMemsetNodeSetParams cuGraphExecMemsetNodeSetParams
        (call driver node, memset_params: In<CUDA_MEMSET_NODE_PARAMS>, ctx: CUcontext)
        filling(driver, &memset_params.read()?, context(call, node)?)?,
        filling(driver, &memset_params.read()?, ctx)?;
    cuGraphHostNodeSetParams cuGraphExecHostNodeSetParams
        (call driver node, node_params: In<CUDA_HOST_NODE_PARAMS>)
        host(&node_params.read()?)?, host(&node_params.read()?)?;
    cuGraphEventRecordNodeSetEvent cuGraphExecEventRecordNodeSetEvent
        (call driver node, record: CUevent)
        Body::Record(event(driver, record)?),
        Body::Record(event(driver, record)?);
    cuGraphEventWaitNodeSetEvent cuGraphExecEventWaitNodeSetEvent
        (call driver node, awaited: CUevent)
        Body::Await(event(driver, awaited)?),
        Body::Await(event(driver, awaited)?);
    cuGraphBatchMemOpNodeSetParams cuGraphExecBatchMemOpNodeSetParams
        (call driver node, node_params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>)
        mem_ops(driver, &node_params.read()?)?, mem_ops(driver, &node_params.read()?)?;
    cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExecExternalSemaphoresSignalNodeSetParams
        (call driver node, node_params: In<CUDA_EXT_SEM_SIGNAL_NODE_PARAMS>)
        signal(driver, &node_params.read()?, context(call, node)?)?,
        signal(driver, &node_params.read()?, context(call, node)?)?;
    cuGraphExternalSemaphoresWaitNodeSetParams cuGraphExecExternalSemaphoresWaitNodeSetParams
        (call driver node, node_params: In<CUDA_EXT_SEM_WAIT_NODE_PARAMS>)
        acquire(driver, &node_params.read()?, context(call, node)?)?,
        acquire(driver, &node_params.read()?, context(call, node)?)?;
}

pub(crate) fn cuGraphExecChildGraphNodeSetParams(
    call: &Call,
    graph_exec: CUgraphExec,
    node: CUgraphNode,
    child_graph: CUgraph,
) -> Answer {
    let driver = call.driver()?;
    Executable::find(driver, graph_exec)?.change_child(driver, node, child_graph)
}

fn with_kernel<T>(
    driver: &Driver,
    node: CUgraphNode,
    apply: impl FnOnce(&mut KernelNode) -> Answer<T>,
) -> Answer<T> {
    match &mut Graphs::of(driver).node_mut(node)?.body {
        Body::Kernel(kernel) => apply(kernel),
        _ => Err(INVALID_VALUE),
    }
}

/// The highest attribute up to CUDA 13.
const ATTRIBUTES: CUlaunchAttributeID = 20;

pub(crate) fn cuGraphKernelNodeGetAttribute(
    call: &Call,
    node: CUgraphNode,
    attr: CUkernelNodeAttrID,
    value_out: Out<CUkernelNodeAttrValue>,
) -> Answer {
    let driver = call.driver()?;
    if attr > ATTRIBUTES {
        return Err(INVALID_VALUE);
    }
    let pad = with_kernel(driver, node, |kernel| {
        let mut value = CUkernelNodeAttrValue {
            pad: kernel.attributes.get(&attr).copied().unwrap_or_default(),
        };
        if attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
            value.cooperative = c_int::from(kernel.shape.cooperative);
        }
        // SAFETY: every byte of the union is initialised, and every bit pattern is a valid integer.
        Ok(unsafe { value.pad })
    })?;
    value_out.put(CUkernelNodeAttrValue { pad })?;
    Ok(())
}

pub(crate) fn cuGraphKernelNodeSetAttribute(
    call: &Call,
    node: CUgraphNode,
    attr: CUkernelNodeAttrID,
    value: In<CUkernelNodeAttrValue>,
) -> Answer {
    let driver = call.driver()?;
    let value = value.read()?;
    if attr > ATTRIBUTES {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the program passes the whole union, and every bit pattern is a valid integer.
    let pad = unsafe { value.pad };
    // SAFETY: as above.
    let cooperative = unsafe { value.cooperative } != 0;
    with_kernel(driver, node, |kernel| {
        if attr == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && cooperative != kernel.shape.cooperative {
            let function = crate::function::find(driver, kernel.function)?;
            let shape = launch::Shape { cooperative, ..kernel.shape };
            kernel.launch = launch::prepare(driver, &function, shape)?;
            kernel.shape = shape;
        }
        kernel.attributes.insert(attr, pad);
        Ok(())
    })
}

pub(crate) fn cuGraphKernelNodeCopyAttributes(
    call: &Call,
    dst: CUgraphNode,
    src: CUgraphNode,
) -> Answer {
    let driver = call.driver()?;
    let (attributes, cooperative) = with_kernel(driver, src, |kernel| {
        Ok((core::mem::take(&mut kernel.attributes.clone()), kernel.shape.cooperative))
    })?;
    let attributes: BTreeMap<_, _> = attributes;
    with_kernel(driver, dst, |kernel| {
        if kernel.shape.cooperative != cooperative {
            return Err(NOT_SUPPORTED);
        }
        kernel.attributes = attributes;
        Ok(())
    })
}

/// Returns the parameters of a copy node, with its context.
pub(super) fn copy_params(node: &Copying) -> CUDA_MEMCPY_NODE_PARAMS {
    CUDA_MEMCPY_NODE_PARAMS {
        flags: 0,
        reserved: 0,
        copy_ctx: node.context.handle,
        copy_params: node.params(),
    }
}
