//! Device memory, as the allocation calls see it.

use cgpu_shm::units::Bytes;

use super::{Allocation, ContextId, Machine, Origin, lock};
use crate::error::Error;
use crate::instance::Part;

/// A GPU's memory.
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
    /// Allocates device memory: 512-byte steps below 1 MiB (out of the context's 2 MiB blocks), else steps of 2 MiB.
    /// The address is unique among all memory of the process, never 0, and not to be touched by the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoContext`], [`Error::Invalid`] for zero bytes.
    pub fn allocate(&self, context: ContextId, size: Bytes) -> Result<u64, Error> {
        self.check_lineage()?;
        let allocate = || lock(&self.core.memory).allocate(&**self.core, context, size);
        match allocate() {
            Err(Error::OutOfMemory) => {
                self.trim_short(self.gpu_of(context)?)?;
                allocate()
            }
            allocated => allocated,
        }
    }

    /// Frees an allocation, by its first byte: one of a context when all that the context's streams hold is done, as the driver
    /// does; one of a pool at once, for the program says that nothing uses it any more.
    ///
    /// # Errors
    /// [`Error::NoAllocation`].
    pub fn free(&self, address: u64) -> Result<(), Error> {
        self.check_lineage()?;
        let found = lock(&self.core.memory).find(address);
        let allocation =
            found.filter(|found| found.address == address).ok_or(Error::NoAllocation)?;
        if let Origin::Context(context) = allocation.origin {
            self.synchronize_context(context)?;
        }
        self.free_now(address)
    }

    /// Frees an allocation, by its first byte, without waiting: for a free in stream order, whose turn has come.
    ///
    /// # Errors
    /// [`Error::NoAllocation`].
    pub fn free_now(&self, address: u64) -> Result<(), Error> {
        self.check_lineage()?;
        self.core.free_now(address)
    }

    /// The live allocation of this process that holds a byte.
    #[must_use]
    pub fn allocation(&self, address: u64) -> Option<Allocation> {
        self.check_lineage().ok()?;
        lock(&self.core.memory).find(address)
    }

    /// Whether an address is a GPU's, in use or not.
    #[must_use]
    pub fn is_device(&self, address: u64) -> bool {
        !self.is_inherited() && lock(&self.core.memory).holds(address)
    }

    /// A GPU's memory now.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn memory_info(&self, gpu: usize) -> Result<MemoryInfo, Error> {
        let spec = *self.gpus().get(gpu).ok_or(Error::NoGpu)?;
        // Of exports that nobody keeps any more, and of pools that were waiting for their last frees.
        self.core.bury_exports()?;
        self.core.end_pools()?;
        // A divided GPU has what its instances have.
        let is_in = |part| matches!(part, Part::Instance(instance) if instance.gpu == gpu);
        let here: Vec<usize> = self
            .gpus()
            .iter()
            .enumerate()
            .filter(|(_, each)| is_in(each.part))
            .map(|(place, _)| place)
            .collect();
        if !here.is_empty() {
            let instances = here
                .into_iter()
                .map(|place| self.memory_info(place))
                .collect::<Result<Vec<_>, _>>()?;
            let used: Bytes = instances.into_iter().map(|info| info.used).sum();
            let reserved = spec.reserved();
            return Ok(MemoryInfo {
                total: spec.total,
                reserved,
                used,
                free: spec.total - reserved - used,
            });
        }
        let (used, usable) = self.core.with(|timeline, _| Ok(timeline.memory(gpu)))?;
        Ok(MemoryInfo {
            total: spec.total,
            reserved: spec.total - usable,
            used,
            free: usable - used,
        })
    }
}
