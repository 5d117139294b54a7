//! The driver's types for other interfaces' memory and semaphores, and for checkpoints, laid out as
//! in its header. Sizes are asserted with those of [`types`](crate::types).

use core::ffi::{c_char, c_int, c_uint, c_ulonglong};

use crate::types::*;

/// Another interface's name of an object: a descriptor, or another system's handle.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUexternalHandle {
    /// A descriptor of the object, if the kind says so.
    pub fd: c_int,
    /// The rest of the vendor's union.
    pub rest: [c_uint; 3],
}

/// What `cuImportExternalMemory` imports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
    pub kind: CUexternalMemoryHandleType,
    pub handle: CUexternalHandle,
    /// In bytes.
    pub size: c_ulonglong,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// A buffer in another interface's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    pub offset: c_ulonglong,
    pub size: c_ulonglong,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// A chain of arrays in another interface's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
    pub offset: c_ulonglong,
    pub array_desc: CUDA_ARRAY3D_DESCRIPTOR,
    pub num_levels: c_uint,
    pub reserved: [c_uint; 16],
}

/// What `cuImportExternalSemaphore` imports.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
    pub kind: CUexternalSemaphoreHandleType,
    pub handle: CUexternalHandle,
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// How a semaphore is signalled.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
    /// The new value of a semaphore with values.
    pub fence_value: c_ulonglong,
    pub nv_sci_sync: c_ulonglong,
    pub keyed_mutex_key: c_ulonglong,
    pub params_reserved: [c_uint; 12],
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// What to wait for in a semaphore.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
    /// The least value to wait for, of a semaphore with values.
    pub fence_value: c_ulonglong,
    pub nv_sci_sync: c_ulonglong,
    pub keyed_mutex_key: c_ulonglong,
    /// In milliseconds.
    pub keyed_mutex_timeout: c_uint,
    pub keyed_mutex_padding: c_uint,
    pub params_reserved: [c_uint; 10],
    pub flags: c_uint,
    pub reserved: [c_uint; 16],
}

/// Semaphores that a graph signals.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS {
    pub ext_sem_array: *mut CUexternalSemaphore,
    pub params_array: *const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS,
    pub num_ext_sems: c_uint,
}

/// Semaphores that a graph signals, with the context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXT_SEM_SIGNAL_NODE_PARAMS_v2 {
    pub v1: CUDA_EXT_SEM_SIGNAL_NODE_PARAMS,
    pub ctx: CUcontext,
}

/// Semaphores that a graph waits for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXT_SEM_WAIT_NODE_PARAMS {
    pub ext_sem_array: *mut CUexternalSemaphore,
    pub params_array: *const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS,
    pub num_ext_sems: c_uint,
}

/// Semaphores that a graph waits for, with the context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_EXT_SEM_WAIT_NODE_PARAMS_v2 {
    pub v1: CUDA_EXT_SEM_WAIT_NODE_PARAMS,
    pub ctx: CUcontext,
}

/// How `cuCheckpointProcessLock` locks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUcheckpointLockArgs {
    /// Timeout in milliseconds; 0: none.
    pub timeout_ms: c_uint,
    /// Zero.
    pub reserved0: c_uint,
    /// Zero.
    pub reserved1: [cuuint64_t; 7],
}

/// How `cuCheckpointProcessCheckpoint` stores the GPUs' memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUcheckpointCheckpointArgs {
    /// Where to write how the program can store it; 0: the driver stores it.
    pub custom_storage_info_out: usize,
    /// Zero.
    pub reserved: [c_char; 56],
}

/// A GPU and its replacement.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUcheckpointGpuPair {
    pub old_uuid: CUuuid,
    pub new_uuid: CUuuid,
}

/// How `cuCheckpointProcessRestore` restores.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUcheckpointRestoreArgs {
    /// The GPUs; NULL: those from before.
    pub gpu_pairs: *const CUcheckpointGpuPair,
    /// Their number.
    pub gpu_pairs_count: c_uint,
    /// Zero.
    pub padding0: c_uint,
    /// As in [`CUcheckpointCheckpointArgs`].
    pub custom_storage_info_out: usize,
    /// Zero.
    pub reserved: [c_char; 40],
}

/// Empty so far.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUcheckpointUnlockArgs {
    /// Zero.
    pub reserved: [cuuint64_t; 8],
}
