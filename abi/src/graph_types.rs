//! The driver's types for graphs, laid out as in its header. Sizes are asserted with those of
//! [`types`](crate::types).

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::types::*;

/// An attribute of a kernel node: a launch attribute.
pub type CUkernelNodeAttrID = CUlaunchAttributeID;
/// The value of a kernel node's attribute.
pub type CUkernelNodeAttrValue = CUlaunchAttributeValue;
/// The value that controls a conditional node's body.
pub type CUgraphConditionalHandle = cuuint64_t;

/// A copy between two boxes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMCPY3D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_memory_type: CUmemorytype,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub reserved0: *mut c_void,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_memory_type: CUmemorytype,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub reserved1: *mut c_void,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width_in_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// A kernel node, before CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_KERNEL_NODE_PARAMS_v1 {
    pub func: CUfunction,
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub kernel_params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// A kernel node.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_KERNEL_NODE_PARAMS_v2 {
    pub v1: CUDA_KERNEL_NODE_PARAMS_v1,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

/// A fill.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub element_size: c_uint,
    pub width: usize,
    pub height: usize,
}

/// A fill, with its context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMSET_NODE_PARAMS_v2 {
    pub v1: CUDA_MEMSET_NODE_PARAMS,
    pub ctx: CUcontext,
}

/// A host function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_HOST_NODE_PARAMS {
    pub function: CUhostFn,
    pub user_data: *mut c_void,
}

/// A copy, with its context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    pub flags: c_int,
    pub reserved: c_int,
    pub copy_ctx: CUcontext,
    pub copy_params: CUDA_MEMCPY3D,
}

/// Memory that a graph allocates.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    pub pool_props: CUmemPoolProps,
    pub access_descs: *const CUmemAccessDesc,
    pub access_desc_count: usize,
    pub bytesize: usize,
    pub dptr: CUdeviceptr,
}

/// Memory that a graph frees.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEM_FREE_NODE_PARAMS {
    pub dptr: CUdeviceptr,
}

/// Values in memory that a graph writes and waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    pub ctx: CUcontext,
    pub count: c_uint,
    pub param_array: *mut CUstreamBatchMemOpParams,
    pub flags: c_uint,
}

/// A graph within a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    pub graph: CUgraph,
    pub ownership: CUgraphChildGraphNodeOwnership,
}

/// An event that a graph records or waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EVENT_NODE_PARAMS {
    pub event: CUevent,
}

/// Graphs, one of which a value selects.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    pub handle: CUgraphConditionalHandle,
    pub kind: CUgraphConditionalNodeType,
    pub size: c_uint,
    pub graph_out: *mut CUgraph,
    pub ctx: CUcontext,
}

/// Any node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    /// Tells how to read `node`.
    pub kind: CUgraphNodeType,
    /// The driver's own.
    pub reserved0: [c_int; 3],
    /// The parameters of that kind.
    pub node: CUgraphNodeParamsUnion,
    /// The driver's own.
    pub reserved2: c_ulonglong,
}

/// The parameters of a node by its kind.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub union CUgraphNodeParamsUnion {
    pub reserved1: [c_ulonglong; 29],
    pub kernel: CUDA_KERNEL_NODE_PARAMS_v2,
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    pub memset: CUDA_MEMSET_NODE_PARAMS_v2,
    pub host: CUDA_HOST_NODE_PARAMS,
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    pub event: CUDA_EVENT_NODE_PARAMS,
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS,
    pub free: CUDA_MEM_FREE_NODE_PARAMS,
    pub mem_op: CUDA_BATCH_MEM_OP_NODE_PARAMS,
    pub ext_sem_signal: CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2,
    pub ext_sem_wait: CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2,
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
}

/// Arguments and result of `cuGraphInstantiateWithParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: cuuint64_t,
    pub upload_stream: CUstream,
    pub err_node_out: CUgraphNode,
    pub result_out: CUgraphInstantiateResult,
}

/// Result of an update of an executable graph, and its place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUgraphExecUpdateResultInfo {
    pub result: CUgraphExecUpdateResult,
    pub error_node: CUgraphNode,
    pub error_from_node: CUgraphNode,
}
