//! Resolution of addresses in the unified space: the kind of memory, and the machine's address of
//! it.

use cgpu_abi::types::*;

use crate::answer::Answer;
use crate::driver::{Driver, count, lock};

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A GPU's memory.
    Device,
    /// Host memory that the GPU can reach.
    Pinned,
    /// Any other host memory.
    Pageable,
}

impl Side {
    /// Returns whether the GPU can reach it.
    pub(crate) fn is_reachable(self) -> bool {
        self != Side::Pageable
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) side: Side,
    /// The machine's address.
    pub(crate) address: u64,
}

/// Resolves an address. An address of missing or inaccessible device memory resolves, too: the
/// machine refuses its use.
pub(crate) fn resolve(driver: &Driver, address: CUdeviceptr) -> Answer<Place> {
    if driver.machine.is_device(address) {
        return Ok(Place { side: Side::Device, address });
    }
    let known = lock(&driver.host).find(count(address)?).is_some();
    Ok(Place { side: if known { Side::Pinned } else { Side::Pageable }, address })
}
