//! The driver's types of memory beyond plain allocations, laid out as its header has them. Sizes are asserted with those of
//! [`types`](crate::types).

use core::ffi::{c_uint, c_ulonglong};

use crate::types::*;

/// What an array whose memory is mapped later needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUDA_ARRAY_MEMORY_REQUIREMENTS {
    /// In bytes.
    pub size: usize,
    /// In bytes.
    pub alignment: usize,
    /// Zero.
    pub reserved: [c_uint; 4],
}

/// How a sparse array is divided.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_ARRAY_SPARSE_PROPERTIES {
    pub tile_extent: [c_uint; 3],
    pub miptail_first_level: c_uint,
    pub miptail_size: c_ulonglong,
    pub flags: c_uint,
    pub reserved: [c_uint; 4],
}

/// One mapping of memory into an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUarrayMapInfo {
    /// An array or a mipmapped one.
    pub resource_type: CUresourcetype,
    /// Which: a [`CUarray`] or a [`CUmipmappedArray`].
    pub resource: usize,
    /// A level or the tail.
    pub subresource_type: c_uint,
    /// Which part: read by its kind.
    pub subresource: [c_ulonglong; 4],
    /// To map or to unmap.
    pub mem_operation_type: CUmemOperationType,
    /// The kind of handle.
    pub mem_handle_type: c_uint,
    /// What to map.
    pub mem_handle: CUmemGenericAllocationHandle,
    /// From which byte of it on.
    pub offset: c_ulonglong,
    /// On which GPU: its bit.
    pub device_bit_mask: c_uint,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 2],
}

/// What a multicast object is made with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmulticastObjectProp {
    /// GPUs of the team.
    pub num_devices: c_uint,
    /// Bytes that can be bound for each.
    pub size: usize,
    /// What it can be exported as.
    pub handle_types: c_ulonglong,
    /// Zero.
    pub flags: c_ulonglong,
}

/// A logical endpoint, as programs name it.
pub type CUlogicalEndpointId = cuuint32_t;

/// What a logical endpoint is made with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUlogicalEndpointProp {
    /// Of one GPU or of several.
    pub kind: CUlogicalEndpointType,
    /// Its owner, of one; how many, of several.
    pub device_or_devices: c_uint,
    /// Bytes that can be bound for each GPU.
    pub size: c_ulonglong,
    /// What it can be exported as.
    pub ipc_handle_types: c_uint,
    /// What it is to be used for.
    pub flags: c_uint,
}

/// Multiprocessors of a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUdevSmResource {
    /// How many.
    pub sm_count: c_uint,
    /// The fewest that a part of them can be.
    pub min_sm_partition_size: c_uint,
    /// Parts are multiples of this.
    pub sm_coscheduled_alignment: c_uint,
    /// Of a group: how it was asked for.
    pub flags: c_uint,
    /// In which locality domain, if the flags say so.
    pub locality_domain_id: c_uint,
}

/// What a group of multiprocessors is to be.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    /// How many; 0: to be found out.
    pub sm_count: c_uint,
    /// In groups of so many on one cluster of the GPU; 0: however they come.
    pub coscheduled_sm_count: c_uint,
    /// In larger groups, where it can be had.
    pub preferred_coscheduled_sm_count: c_uint,
    /// `CUdevSmResourceGroup_flags`.
    pub flags: c_uint,
    /// In which locality domain, if the flags say so.
    pub locality_domain_id: c_uint,
    /// Zero.
    pub reserved: [c_uint; 11],
}

/// Something of a GPU that can be divided. The members that are only some kinds' lie in `data`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevResource {
    /// What.
    pub kind: CUdevResourceType,
    /// The driver's own.
    pub internal: [u8; 92],
    /// Multiprocessors, for `CU_DEV_RESOURCE_TYPE_SM`.
    pub sm: CUdevSmResource,
    /// The rest of the union.
    pub oversize: [u8; 20],
    /// The driver's own.
    pub next: usize,
}

/// A texture: what kernels are given.
pub type CUtexObject = c_ulonglong;
/// A surface: what kernels are given.
pub type CUsurfObject = c_ulonglong;

/// What a texture or surface shows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_RESOURCE_DESC {
    /// What kind of memory; says how to read `resource`.
    pub kind: CUresourcetype,
    /// Which: a [`CUarray`], a [`CUmipmappedArray`], or an address and how it is laid out.
    pub resource: [c_ulonglong; 16],
    /// Zero.
    pub flags: c_uint,
}

/// How a texture is read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_TEXTURE_DESC {
    pub address_mode: [c_uint; 3],
    pub filter_mode: c_uint,
    pub flags: c_uint,
    pub max_anisotropy: c_uint,
    pub mipmap_filter_mode: c_uint,
    pub mipmap_level_bias: f32,
    pub min_mipmap_level_clamp: f32,
    pub max_mipmap_level_clamp: f32,
    pub border_color: [f32; 4],
    pub reserved: [c_uint; 12],
}

/// Which part of a resource a texture shows, and as what.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_RESOURCE_VIEW_DESC {
    pub format: c_uint,
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub first_mipmap_level: c_uint,
    pub last_mipmap_level: c_uint,
    pub first_layer: c_uint,
    pub last_layer: c_uint,
    pub reserved: [c_uint; 16],
}
