//! Managed memory: it moves between host and card as it likes, so no limit holds it. Its functions are refused ([`super::refuse`]); here
//! are the attributes by which programs find out that they need not try.

use cgpu_abi::types::{
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, CUdevice_attribute,
};

/// Whether an attribute says that managed memory can be used; it reads 0 under a limit. Unified addressing and pageable memory
/// are other things, and stay.
pub(super) fn is_about_managed_memory(attribute: CUdevice_attribute) -> bool {
    [
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    ]
    .contains(&attribute)
}
