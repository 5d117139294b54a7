//! Device memory, as the allocation calls see it.

use cgpu_proto::units::Bytes;

use super::{ContextId, Machine};
use crate::error::Error;

/// A live allocation of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first byte.
    pub address: u64,
    /// Its size as asked for.
    pub size: Bytes,
    /// Whose it is.
    pub context: ContextId,
    /// On which card.
    pub card: usize,
}

/// A card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// As NVML gives it, the driver's own included.
    pub total: Bytes,
    /// The driver's own.
    pub reserved: Bytes,
    /// Contexts and allocations of all processes.
    pub used: Bytes,
    /// What is left: total - reserved - used.
    pub free: Bytes,
}

impl MemoryInfo {
    /// What programs can use at most: cuDeviceTotalMem and the total of cuMemGetInfo.
    #[must_use]
    pub fn usable(&self) -> Bytes {
        self.total - self.reserved
    }
}

impl Machine {
    /// Allocates device memory: 512-byte steps below 1 MiB (out of the context's 2 MiB blocks), else steps of 2 MiB. The address is
    /// unique among all memory of the process, never 0, and not to be touched by the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoContext`], [`Error::Invalid`] for zero bytes.
    pub fn allocate(&self, context: ContextId, size: Bytes) -> Result<u64, Error> {
        let _ = (context, size);
        unimplemented!()
    }

    /// Frees an allocation, by its first byte.
    ///
    /// # Errors
    /// [`Error::NoAllocation`].
    pub fn free(&self, address: u64) -> Result<(), Error> {
        let _ = address;
        unimplemented!()
    }

    /// The live allocation that holds a byte.
    #[must_use]
    pub fn allocation(&self, address: u64) -> Option<Allocation> {
        let _ = address;
        unimplemented!()
    }

    /// A card's memory now.
    ///
    /// # Errors
    /// [`Error::NoCard`].
    pub fn memory_info(&self, card: usize) -> Result<MemoryInfo, Error> {
        let _ = card;
        unimplemented!()
    }
}
