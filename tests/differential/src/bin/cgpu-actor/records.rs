//! Structures and constants of `cuda.h` and `nvml.h`.

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Property {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: u32,
    pub(crate) id: i32,
    pub(crate) metadata: usize,
    pub(crate) flags: [u8; 8],
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PoolProperty {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: u32,
    pub(crate) id: i32,
    pub(crate) metadata: usize,
    pub(crate) max_size: usize,
    pub(crate) reserved: [u64; 7],
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct AllocationNode {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: u32,
    pub(crate) id: i32,
    pub(crate) security: usize,
    pub(crate) max_size: usize,
    pub(crate) reserved: [u64; 7],
    pub(crate) access: usize,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

/// `CUgraphNodeParams`, with the member of its union as 64-bit words.
#[repr(C)]
#[derive(Default)]
pub(crate) struct AnyNode {
    pub(crate) kind: u32,
    pub(crate) reserved: [u32; 3],
    pub(crate) words: [u64; 29],
    pub(crate) rest: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Instantiation {
    pub(crate) flags: u64,
    pub(crate) upload_stream: usize,
    pub(crate) node: usize,
    pub(crate) result: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Descriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Requirements {
    pub(crate) size: usize,
    pub(crate) alignment: usize,
    pub(crate) reserved: [u32; 4],
}

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct FlatDescriptor {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// The same with 32-bit sizes.
#[repr(C)]
#[derive(Default)]
pub(crate) struct OldFlatDescriptor {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR` with 32-bit sizes.
#[repr(C)]
#[derive(Default)]
pub(crate) struct OldDescriptor {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) depth: u32,
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`, `CU_STREAM_NON_BLOCKING`, `CU_EVENT_DISABLE_TIMING`.
pub(crate) const LEGACY_STREAM: usize = 1;
pub(crate) const THREAD_STREAM: usize = 2;
pub(crate) const NON_BLOCKING: usize = 1;
pub(crate) const UNTIMED: usize = 2;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_LOCATION_TYPE_HOST`.
pub(crate) const PINNED: u32 = 1;
pub(crate) const DEVICE: u32 = 1;
pub(crate) const HOST: u32 = 2;
/// `CU_AD_FORMAT_FLOAT`, `CUDA_ARRAY3D_DEFERRED_MAPPING`, `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`,
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const FLOAT: u32 = 0x20;
pub(crate) const DEFERRED: u32 = 0x80;
pub(crate) const THRESHOLD: usize = 4;
pub(crate) const RESERVED: usize = 5;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
pub(crate) const GRAPHS_RESERVED: usize = 2;
/// `CU_GRAPH_NODE_TYPE_GRAPH`, `_MEM_ALLOC`, `_MEM_FREE`, `_CONDITIONAL`.
pub(crate) const PART: u32 = 4;
pub(crate) const MEMORY_NODE: u32 = 10;
pub(crate) const MEMORY_FREED: u32 = 11;
pub(crate) const CONDITIONAL: u32 = 13;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`, `_UPLOAD`.
pub(crate) const FREES_ON_LAUNCH: usize = 1;
pub(crate) const UPLOADS: usize = 2;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const LAZY_PEER_ACCESS: u32 = 1;

/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`.
pub(crate) const DOMAIN: u32 = 6;
/// `CUDA_ARRAY3D_SPARSE`, `CU_MEM_OPERATION_TYPE_MAP`, `CU_MEM_OPERATION_TYPE_UNMAP`.
pub(crate) const SPARSE: u32 = 0x40;
pub(crate) const MAP: u32 = 1;
pub(crate) const UNMAP: u32 = 2;
/// `CU_DEV_RESOURCE_TYPE_SM`, `CU_GREEN_CTX_DEFAULT_STREAM`.
pub(crate) const MULTIPROCESSORS: usize = 1;
pub(crate) const GREEN_DEFAULT_STREAM: usize = 1;
/// `CU_LIMIT_STACK_SIZE`, `CU_LIMIT_PRINTF_FIFO_SIZE`, `CU_LIMIT_MALLOC_HEAP_SIZE`.
pub(crate) const STACK_LIMIT: usize = 0;
pub(crate) const PRINTF_LIMIT: usize = 1;
pub(crate) const HEAP_LIMIT: usize = 2;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`,
/// `CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR`.
pub(crate) const MULTIPROCESSOR_COUNT: usize = 16;
pub(crate) const MULTIPROCESSOR_THREADS: usize = 39;
/// `CU_LOGICAL_ENDPOINT_TYPE_UNICAST`, `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`.
pub(crate) const UNICAST: u32 = 1;
pub(crate) const OPAQUE_DESCRIPTOR: u32 = 1;

/// `CUdevResource`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Resource {
    words: [u64; 18],
}

/// `CUmulticastObjectProp`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct TeamProperty {
    pub(crate) devices: u32,
    pub(crate) size: usize,
    pub(crate) handle_types: u64,
    pub(crate) flags: u64,
}

/// `CUlogicalEndpointProp` of one device.
#[repr(C)]
#[derive(Default)]
pub(crate) struct EndpointProperty {
    pub(crate) kind: u32,
    pub(crate) device: i32,
    pub(crate) size: u64,
    pub(crate) handle_types: u32,
    pub(crate) flags: u32,
}

/// `CUarrayMapInfo` for a level of an array: both kinds are 0.
#[repr(C)]
#[derive(Default)]
pub(crate) struct TileMap {
    pub(crate) resource_kind: u32,
    pub(crate) resource: u64,
    pub(crate) part_kind: u32,
    /// Padding before the union, which has an alignment of 8.
    pub(crate) gap: u32,
    pub(crate) level: u32,
    pub(crate) layer: u32,
    pub(crate) offset: [u32; 3],
    pub(crate) extent: [u32; 3],
    pub(crate) operation: u32,
    pub(crate) handle_kind: u32,
    pub(crate) handle: u64,
    pub(crate) at: u64,
    pub(crate) devices: u32,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 2],
}

/// `CUDA_EXTERNAL_MEMORY_HANDLE_DESC` for a file descriptor.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ExternalMemory {
    pub(crate) kind: u32,
    /// Padding before the union, which has an alignment of 8 and a size of 16.
    pub(crate) gap: u32,
    pub(crate) descriptor: i32,
    pub(crate) rest: [u32; 3],
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// `CUDA_EXTERNAL_MEMORY_BUFFER_DESC`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ExternalBuffer {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 16],
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct NvmlProcess {
    pub(crate) pid: u32,
    pub(crate) memory: u64,
    pub(crate) instances: [u32; 2],
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct NvmlMemory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}
