//! The driver's types, laid out as in its header. Sizes are asserted below.
//!
//! A handle is a number here: only the driver may dereference it, and a number is `Send`.

pub use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

pub use crate::constants::*;
pub use crate::copy_types::*;
pub use crate::external_types::*;
pub use crate::graph_types::*;
pub use crate::memory_types::*;
pub use crate::results::CUresult;

/// Defines opaque handles: as large as a pointer, compared and hashed by value, never dereferenced.
macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident,)*) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub usize);

        impl $name {
            /// No handle: C's NULL.
            pub const NULL: $name = $name(0);

            /// Returns whether it is C's NULL.
            #[must_use]
            pub const fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    )*};
}
pub(crate) use handles;

handles! {
    /// A context.
    CUcontext,
    /// A module.
    CUmodule,
    /// A kernel in a context.
    CUfunction,
    /// Code that is loaded for all contexts.
    CUlibrary,
    /// A kernel of a library; valid in place of a [`CUfunction`].
    CUkernel,
    /// A stream.
    CUstream,
    /// An event.
    CUevent,
    /// A graph.
    CUgraph,
    /// A node of a graph.
    CUgraphNode,
    /// An executable graph.
    CUgraphExec,
    /// A host object whose lifetime graphs share.
    CUuserObject,
    /// An array.
    CUarray,
    /// A mipmapped array.
    CUmipmappedArray,
    /// A memory pool.
    CUmemoryPool,
    /// A linker invocation.
    CUlinkState,
    /// A green context.
    CUgreenCtx,
    /// Memory of another interface.
    CUexternalMemory,
    /// A semaphore of another interface.
    CUexternalSemaphore,
    /// A checkpoint that the program has to complete.
    CUcheckpointOperationHandle,
    /// The resources of a new green context.
    CUdevResourceDesc,
}

impl CUstream {
    /// The default stream that waits for all blocking streams of the context.
    pub const LEGACY: CUstream = CUstream(1);
    /// The calling thread's own default stream.
    pub const PER_THREAD: CUstream = CUstream(2);
}

/// A GPU's ordinal among the visible ones.
pub type CUdevice = c_int;
/// An address in the GPU's or the unified address space.
pub type CUdeviceptr = u64;
/// An address before CUDA 3.2.
pub type CUdeviceptr_v1 = c_uint;
/// Physical memory behind `cuMemCreate`.
pub type CUmemGenericAllocationHandle = u64;
/// 32 bits, in the driver's spelling.
pub type cuuint32_t = u32;
/// 64 bits, in the driver's spelling.
pub type cuuint64_t = u64;

/// A host function in stream order.
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
/// A host function in stream order that gets the stream's state.
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
/// Dynamic shared memory, in bytes, of a block of the given size.
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: c_int) -> usize>;
/// Called for each node of a recaptured graph. The shim does not use its arguments.
pub type CUgraphRecaptureCallback = Option<unsafe extern "C" fn() -> CUresult>;

/// Structs that the shim passes on unread.
macro_rules! opaque {
    ($($(#[$meta:meta])* $name:ident,)*) => {$(
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
        }
    )*};
}

opaque! {
    /// Arguments of a capture into a graphics command list.
    CUstreamCigCaptureParams,
    /// How a context shares the GPU with a graphics interface.
    CUctxCigParam,
}

/// 16 bytes that name a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CUuuid {
    /// The bytes, most significant first, as text shows them.
    pub bytes: [u8; 16],
}

/// Result of `cuDeviceGetProperties`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUdevprop {
    pub max_threads_per_block: c_int,
    pub max_threads_dim: [c_int; 3],
    pub max_grid_size: [c_int; 3],
    pub shared_mem_per_block: c_int,
    pub total_constant_memory: c_int,
    pub simd_width: c_int,
    pub mem_pitch: c_int,
    pub regs_per_block: c_int,
    pub clock_rate: c_int,
    pub texture_align: c_int,
}

/// A limit on the multiprocessors that a context uses.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUexecAffinityParam {
    /// The kind; there is one, the number of multiprocessors.
    pub kind: CUexecAffinityType,
    /// Multiprocessors.
    pub sm_count: c_uint,
}

/// Arguments of `cuCtxCreate_v4`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUctxCreateParams {
    pub exec_affinity_params: *mut CUexecAffinityParam,
    pub num_exec_affinity_params: c_int,
    pub cig_params: *mut CUctxCigParam,
}

/// A launch for `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUlaunchConfig {
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub stream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub num_attrs: c_uint,
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUlaunchAttribute {
    /// The attribute; tells how to read `value`.
    pub id: CUlaunchAttributeID,
    /// Padding.
    pub pad: [c_char; 4],
    /// The value.
    pub value: CUlaunchAttributeValue,
}

/// The value of a launch attribute. Only members that cgpu reads are named; the size is the
/// driver's.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUlaunchAttributeValue {
    /// The whole value, and its alignment.
    pub pad: [u64; 8],
    /// `COOPERATIVE`: non-zero for a cooperative launch.
    pub cooperative: c_int,
    /// `PROGRAMMATIC_STREAM_SERIALIZATION`: non-zero if the launch may overlap with its
    /// predecessor's end.
    pub programmatic_stream_serialization_allowed: c_int,
    /// `PRIORITY` of the kernel.
    pub priority: c_int,
    /// `CLUSTER_DIMENSION`: x, y, z in blocks.
    pub cluster_dim: [c_uint; 3],
}

/// A copy between two rectangles (the layout since CUDA 3.2).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMCPY2D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_memory_type: CUmemorytype,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub src_pitch: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_memory_type: CUmemorytype,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub dst_pitch: usize,
    pub width_in_bytes: usize,
    pub height: usize,
}

/// A one- or two-dimensional array; sizes in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub format: CUarray_format,
    pub num_channels: c_uint,
}

/// [`CUDA_ARRAY_DESCRIPTOR`] before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_ARRAY_DESCRIPTOR_v1 {
    pub width: c_uint,
    pub height: c_uint,
    pub format: CUarray_format,
    pub num_channels: c_uint,
}

/// An array of up to three dimensions; sizes in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: CUarray_format,
    pub num_channels: c_uint,
    pub flags: c_uint,
}

/// [`CUDA_ARRAY3D_DESCRIPTOR`] before CUDA 3.2.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_ARRAY3D_DESCRIPTOR_v1 {
    pub width: c_uint,
    pub height: c_uint,
    pub depth: c_uint,
    pub format: CUarray_format,
    pub num_channels: c_uint,
    pub flags: c_uint,
}

/// Location of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemLocation {
    /// The kind of location; tells how to read `id`.
    pub kind: CUmemLocationType,
    /// A GPU's ordinal under `DEVICE`, a node under `HOST_NUMA`; under `DEVICE_LOCALITY_DOMAIN` the
    /// GPU's ordinal is only the lowest byte.
    pub id: c_int,
}

/// Access rights of a location to a mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUmemAccessDesc {
    /// The location.
    pub location: CUmemLocation,
    /// The rights.
    pub flags: CUmemAccess_flags,
}

/// Properties for `cuMemCreate`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUmemAllocationProp {
    pub kind: CUmemAllocationType,
    pub requested_handle_types: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32_handle_meta_data: *mut c_void,
    pub compression_type: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// Properties for `cuMemPoolCreate`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUmemPoolProps {
    pub alloc_type: CUmemAllocationType,
    pub handle_types: CUmemAllocationHandleType,
    pub location: CUmemLocation,
    pub win32_security_attributes: *mut c_void,
    /// Maximum size in bytes; 0: the driver decides.
    pub max_size: usize,
    pub usage: u16,
    pub gpu_direct_rdma_capable: u8,
    pub reserved: [u8; 53],
}

/// An exported allocation of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUmemPoolPtrExportData {
    /// The driver's own.
    pub reserved: [u8; 64],
}

/// An exported allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcMemHandle {
    /// The driver's own.
    pub reserved: [c_char; 64],
}

/// An exported event.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUipcEventHandle {
    /// The driver's own.
    pub reserved: [c_char; 64],
}

/// One device's part of `cuLaunchCooperativeKernelMultiDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_LAUNCH_PARAMS {
    pub function: CUfunction,
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub stream: CUstream,
    pub kernel_params: *mut *mut c_void,
}

/// How one node of a graph waits for another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}

/// One operation of `cuStreamBatchMemOp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUstreamBatchMemOpParams {
    /// The operation; the first word of every member.
    pub operation: CUstreamBatchMemOpType,
    /// `WAIT_VALUE_*` and `WRITE_VALUE_*`.
    pub value: CUstreamMemOpValueParams,
    /// The whole, and its alignment.
    pub pad: [cuuint64_t; 6],
}

/// A word that a stream waits for or writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUstreamMemOpValueParams {
    /// The operation.
    pub operation: CUstreamBatchMemOpType,
    /// Its address.
    pub address: CUdeviceptr,
    /// The value; a 32-bit operation has it in the lower half.
    pub value: cuuint64_t,
    /// `CU_STREAM_WAIT_VALUE_*` or `CU_STREAM_WRITE_VALUE_*`.
    pub flags: c_uint,
    /// The driver's own.
    pub alias: CUdeviceptr,
}

/// Asserts sizes and alignments, as a C compiler gives them for the vendor's header.
macro_rules! layouts {
    ($($type:ident $size:literal $align:literal,)*) => {
        $(const _: () = assert!(
            size_of::<$type>() == $size && align_of::<$type>() == $align,
            stringify!($type)
        );)*
        /// Name, size and alignment of each, for the check against an installed header.
        pub const LAYOUTS: &[(&str, usize, usize)] = &[$((stringify!($type), $size, $align)),*];
    };
}
pub(crate) use layouts;

layouts! {
    CUdevice 4 4,
    CUdeviceptr 8 8,
    CUdeviceptr_v1 4 4,
    CUmemGenericAllocationHandle 8 8,
    cuuint32_t 4 4,
    cuuint64_t 8 8,
    CUresult 4 4,
    CUdevice_attribute 4 4,
    CUcontext 8 8,
    CUstream 8 8,
    CUhostFn 8 8,
    CUuuid 16 1,
    CUdevprop 56 4,
    CUexecAffinityParam 8 4,
    CUctxCreateParams 24 8,
    CUlaunchConfig 56 8,
    CUlaunchAttribute 72 8,
    CUlaunchAttributeValue 64 8,
    CUDA_MEMCPY2D 128 8,
    CUDA_ARRAY_DESCRIPTOR 24 8,
    CUDA_ARRAY_DESCRIPTOR_v1 16 4,
    CUDA_ARRAY3D_DESCRIPTOR 40 8,
    CUDA_ARRAY3D_DESCRIPTOR_v1 24 4,
    CUmemLocation 8 4,
    CUmemAccessDesc 12 4,
    CUmemAllocationProp 32 8,
    CUmemPoolProps 88 8,
    CUmemPoolPtrExportData 64 1,
    CUipcMemHandle 64 1,
    CUipcEventHandle 64 1,
    CUDA_LAUNCH_PARAMS 56 8,
    CUgraphEdgeData 8 1,
    CUstreamBatchMemOpParams 48 8,
    CUDA_MEMCPY3D 200 8,
    CUmemcpyAttributes 24 4,
    CUoffset3D 24 8,
    CUextent3D 24 8,
    CUmemcpy3DOperand 40 8,
    CUDA_MEMCPY3D_BATCH_OP 112 8,
    CUDA_ARRAY_MEMORY_REQUIREMENTS 32 8,
    CUDA_ARRAY_SPARSE_PROPERTIES 48 8,
    CUarrayMapInfo 96 8,
    CUmulticastObjectProp 32 8,
    CUlogicalEndpointProp 24 8,
    CUDA_RESOURCE_DESC 144 8,
    CUDA_TEXTURE_DESC 104 4,
    CUDA_RESOURCE_VIEW_DESC 112 8,
    CUdevResource 144 8,
    CU_DEV_SM_RESOURCE_GROUP_PARAMS 64 4,
    CUDA_KERNEL_NODE_PARAMS_v1 56 8,
    CUDA_KERNEL_NODE_PARAMS_v2 72 8,
    CUDA_MEMSET_NODE_PARAMS 40 8,
    CUDA_HOST_NODE_PARAMS 16 8,
    CUDA_MEM_ALLOC_NODE_PARAMS 120 8,
    CUDA_BATCH_MEM_OP_NODE_PARAMS 32 8,
    CUDA_MEMCPY_NODE_PARAMS 216 8,
    CUDA_MEMSET_NODE_PARAMS_v2 48 8,
    CUDA_CONDITIONAL_NODE_PARAMS 32 8,
    CUgraphNodeParams 256 8,
    CUDA_GRAPH_INSTANTIATE_PARAMS 32 8,
    CUgraphExecUpdateResultInfo 24 8,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC 104 8,
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC 88 8,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC 120 8,
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC 96 8,
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS 144 8,
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS 144 8,
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS 24 8,
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 32 8,
    CUDA_EXT_SEM_WAIT_NODE_PARAMS 24 8,
    CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 32 8,
    CUcheckpointLockArgs 64 8,
    CUcheckpointCheckpointArgs 64 8,
    CUcheckpointGpuPair 32 1,
    CUcheckpointRestoreArgs 64 8,
    CUcheckpointUnlockArgs 64 8,
    CUprocessState 4 4,
}
