//! Addresses in the unified space: what lies there, and under which address the machine knows it.

use cgpu_abi::types::*;

use crate::answer::Answer;
use crate::driver::{Driver, count, lock};

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A GPU's memory.
    Device,
    /// Host memory that the GPU knows.
    Pinned,
    /// Any other host memory.
    Pageable,
}

impl Side {
    /// Whether the GPU can work on it by itself.
    pub(crate) fn is_reachable(self) -> bool {
        self != Side::Pageable
    }
}

/// An address, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) side: Side,
    /// As the machine knows it.
    pub(crate) address: u64,
}

/// Finds out what lies at an address. Of device memory that is not there, or may not be reached, the machine refuses the use.
pub(crate) fn resolve(driver: &Driver, address: CUdeviceptr) -> Answer<Place> {
    if driver.machine.is_device(address) {
        return Ok(Place { side: Side::Device, address });
    }
    let known = lock(&driver.host).find(count(address)?).is_some();
    Ok(Place { side: if known { Side::Pinned } else { Side::Pageable }, address })
}
