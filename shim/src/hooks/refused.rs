//! The attributes by which programs find out what they need not try, because it is refused
//! ([`super::refuse`]).

use cgpu_abi::types::{
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
    CUdevice_attribute,
};

/// Whether an attribute announces what is refused; it reads 0 under a limit.
///
/// Managed memory moves between host and GPU as it likes, so no limit holds it; unified addressing
/// and pageable memory are other things, and stay.
pub(super) fn announces_refused(attribute: CUdevice_attribute) -> bool {
    [
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    ]
    .contains(&attribute)
}
