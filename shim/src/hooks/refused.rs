//! The attributes that announce features refused under a limit ([`super::refuse`]).

use cgpu_abi::types::{
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    CUdevice_attribute,
};

/// Returns whether an attribute announces a refused feature; it then reads 0 under a limit.
///
/// Managed memory moves freely between host and GPU, so no limit can hold it. Unified addressing
/// and pageable memory access are different features and stay.
pub(super) fn announces_refused(attribute: CUdevice_attribute) -> bool {
    [
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    ]
    .contains(&attribute)
}
