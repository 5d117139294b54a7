//! What memory at a location is charged to.

use cgpu_abi::Role;
use cgpu_abi::types::*;
use cgpu_memory::{DeviceIndex, Reason, Tenant};
use tracing::warn;

use crate::devices::DriverOrdinal;
use crate::process;

/// Where an allocation takes its memory from.
pub(crate) enum Source {
    Gpu(DeviceIndex),
    /// Memory that is not charged: the host's or an unshared GPU's, or the location cannot exist
    /// and the driver says so.
    Elsewhere,
    /// Memory that cannot be charged, or may not be allocated: the call is refused.
    Refused(Role),
}

impl Source {
    pub(crate) fn of(
        tenant: &Tenant,
        kind: CUmemAllocationType,
        location: CUmemLocation,
    ) -> Source {
        let devices = process::devices(tenant);
        let gpu = |device| match devices.gpu(DriverOrdinal(device)) {
            Some(gpu) => Source::Gpu(gpu),
            None => {
                tenant.count(Reason::NativeGpu);
                Source::Elsewhere
            }
        };
        match location.kind {
            _ if kind == CU_MEM_ALLOCATION_TYPE_MANAGED => Source::Refused(Role::Managed),
            CU_MEM_LOCATION_TYPE_DEVICE => gpu(location.id),
            // The device is the first byte of a record of two; the second is the domain.
            CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
                gpu(CUdevice::from(location.id.to_ne_bytes()[0]))
            }
            // It may be a GPU's, also one that this container has not, and then no limit counts it.
            CU_MEM_LOCATION_TYPE_HOST_NUMA if !devices.is_host(location.id) => {
                let node = location.id;
                warn!("NUMA node {node} is not known to have processors: it may be a GPU's memory");
                Source::Refused(Role::Allocates)
            }
            // The current node is that of a processor.
            CU_MEM_LOCATION_TYPE_HOST
            | CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
            | CU_MEM_LOCATION_TYPE_INVALID => Source::Elsewhere,
            _ => Source::Refused(Role::Allocates),
        }
    }

    pub(crate) fn gpu(&self) -> Option<DeviceIndex> {
        match *self {
            Source::Gpu(gpu) => Some(gpu),
            Source::Elsewhere | Source::Refused(_) => None,
        }
    }
}
