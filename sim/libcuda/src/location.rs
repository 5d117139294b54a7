//! Locations of memory as programs name them: a GPU, one of its locality domains, the host.

use cgpu_abi::types::*;
use cgpu_sim::machine::Site;

use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::Driver;

/// Returns the place on a GPU that a location names. The only domain of a GPU is the whole GPU.
/// Other locations on the host are valid for handles only (`physical`).
pub(crate) fn site_of(driver: &Driver, location: CUmemLocation) -> Answer<Site> {
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => Ok(driver.gpu(location.id)?.into()),
        CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            // The GPU is in the lowest byte, the domain in the next one.
            let [gpu, domain, ..] = location.id.to_le_bytes();
            let (gpu, domain) = (driver.gpu(gpu.into())?, usize::from(domain));
            match driver.machine.gpus()[gpu].domains() {
                1 if domain == 0 => Ok(gpu.into()),
                domains if domain < domains => Ok(Site { gpu, domain: Some(domain) }),
                _ => Err(INVALID_VALUE),
            }
        }
        CU_MEM_LOCATION_TYPE_HOST_NUMA => {
            gpu_of_node(driver, location.id).map(Site::from).ok_or(NOT_SUPPORTED)
        }
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns the NUMA node of a GPU's memory, if it is one.
pub(crate) fn node_of(driver: &Driver, gpu: usize) -> Option<c_int> {
    let first = driver.machine.figures().numa_node;
    (first > 0).then(|| c_int::try_from(first + gpu as u64).unwrap_or(-1))
}

/// Returns the GPU whose memory is a NUMA node.
pub(crate) fn gpu_of_node(driver: &Driver, node: c_int) -> Option<usize> {
    (0..driver.machine.gpus().len()).find(|gpu| node_of(driver, *gpu) == Some(node))
}

/// Returns the GPU that a location names; a domain is refused.
pub(crate) fn gpu_of(driver: &Driver, location: CUmemLocation) -> Answer<usize> {
    match site_of(driver, location)? {
        Site { gpu, domain: None } => Ok(gpu),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns the location of a place on a GPU.
pub(crate) fn location_of(driver: &Driver, site: Site) -> CUmemLocation {
    let device = driver.device(site.gpu);
    match site.domain {
        None => CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: device },
        Some(domain) => {
            // Both fit into a byte: there are at most 16 GPUs.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let id = [device as u8, domain as u8, 0, 0];
            let kind = CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
            CUmemLocation { kind, id: c_int::from_le_bytes(id) }
        }
    }
}

/// Returns the ordinal of a place's domain; -1 if it is in none.
pub(crate) fn ordinal(site: Site) -> c_int {
    site.domain.and_then(|domain| c_int::try_from(domain).ok()).unwrap_or(-1)
}
