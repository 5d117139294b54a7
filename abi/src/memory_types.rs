//! The driver's types for memory beyond plain allocations, laid out as in its header. Sizes are
//! asserted with those of [`types`](crate::types).

use core::ffi::{c_uint, c_ulonglong};

use crate::types::*;

/// Memory that an array with deferred mapping needs.
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
    /// The [`CUarray`] or [`CUmipmappedArray`].
    pub resource: usize,
    /// A level or the tail.
    pub subresource_type: c_uint,
    /// The part, by its kind.
    pub subresource: [c_ulonglong; 4],
    /// Map or unmap.
    pub mem_operation_type: CUmemOperationType,
    /// The kind of handle.
    pub mem_handle_type: c_uint,
    /// What to map.
    pub mem_handle: CUmemGenericAllocationHandle,
    /// Offset in it, in bytes.
    pub offset: c_ulonglong,
    /// The GPU, as a bit.
    pub device_bit_mask: c_uint,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 2],
}

/// Properties of a new multicast object.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmulticastObjectProp {
    /// GPUs of the team.
    pub num_devices: c_uint,
    /// Bytes that can be bound per GPU.
    pub size: usize,
    /// Handle types for export.
    pub handle_types: c_ulonglong,
    /// Zero.
    pub flags: c_ulonglong,
}

/// A logical endpoint, as programs name it.
pub type CUlogicalEndpointId = cuuint32_t;

/// Properties of a new logical endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUlogicalEndpointProp {
    /// For one GPU or several.
    pub kind: CUlogicalEndpointType,
    /// The GPU, or the number of GPUs.
    pub device_or_devices: c_uint,
    /// Bytes that can be bound for each GPU.
    pub size: c_ulonglong,
    /// Handle types for export.
    pub ipc_handle_types: c_uint,
    /// Its use.
    pub flags: c_uint,
}

/// Multiprocessors of a GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CUdevSmResource {
    /// Their number.
    pub sm_count: c_uint,
    /// The smallest part.
    pub min_sm_partition_size: c_uint,
    /// Parts are multiples of this.
    pub sm_coscheduled_alignment: c_uint,
    /// Flags with which a group was requested.
    pub flags: c_uint,
    /// The locality domain, if the flags say so.
    pub locality_domain_id: c_uint,
}

/// A requested group of multiprocessors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CU_DEV_SM_RESOURCE_GROUP_PARAMS {
    /// Their number; 0: to be determined.
    pub sm_count: c_uint,
    /// Number in a group on one cluster of the GPU; 0: any.
    pub coscheduled_sm_count: c_uint,
    /// Preferred larger number in a group.
    pub preferred_coscheduled_sm_count: c_uint,
    /// `CUdevSmResourceGroup_flags`.
    pub flags: c_uint,
    /// The locality domain, if the flags say so.
    pub locality_domain_id: c_uint,
    /// Zero.
    pub reserved: [c_uint; 11],
}

/// A divisible resource of a GPU. Members of single kinds are in `data`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUdevResource {
    /// The kind.
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

/// A texture, as kernels get it.
pub type CUtexObject = c_ulonglong;
/// A surface, as kernels get it.
pub type CUsurfObject = c_ulonglong;

/// The memory of a texture or surface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_RESOURCE_DESC {
    /// The kind of memory; tells how to read `resource`.
    pub kind: CUresourcetype,
    /// A [`CUarray`], a [`CUmipmappedArray`], or an address and its layout.
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

/// The part of a resource that a texture reads, and its format.
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
