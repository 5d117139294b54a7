//! Device memory, as the allocation calls see it.

use cgpu_shm::units::Bytes;

use super::{Allocation, ContextId, Machine, Origin, lock};
use crate::error::Error;
use crate::instance::Part;

/// A GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Total as NVML reports it, with the driver's own.
    pub total: Bytes,
    /// The driver's own.
    pub reserved: Bytes,
    /// Contexts and allocations of all processes.
    pub used: Bytes,
    /// The rest: total - reserved - used.
    pub free: Bytes,
}

impl MemoryInfo {
    /// Returns the memory that programs can use: cuDeviceTotalMem and the total of cuMemGetInfo.
    #[must_use]
    pub fn usable(&self) -> Bytes {
        self.total - self.reserved
    }
}

impl Machine {
    /// Allocates device memory: in 512-byte steps below 1 MiB (out of the context's 2 MiB blocks),
    /// else in 2 MiB steps. The address is unique among all memory of the process, never 0, and
    /// must not be accessed by the host.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoContext`], [`Error::Invalid`] for zero bytes.
    pub fn allocate(&self, context: ContextId, size: Bytes) -> Result<u64, Error> {
        self.check_not_forked()?;
        let allocate = || lock(&self.core.memory).allocate(&**self.core, context, size);
        match allocate() {
            Err(Error::OutOfMemory) => {
                self.trim_gpu(self.gpu_of(context)?)?;
                allocate()
            }
            allocated => allocated,
        }
    }

    /// Frees an allocation, by its first byte. One of a context waits until all work on the
    /// context's streams is done, as in the driver. One of a pool is freed at once.
    ///
    /// # Errors
    /// [`Error::NoAllocation`].
    pub fn free(&self, address: u64) -> Result<(), Error> {
        self.check_not_forked()?;
        let found = lock(&self.core.memory).find(address);
        let allocation =
            found.filter(|found| found.address == address).ok_or(Error::NoAllocation)?;
        if let Origin::Context(context) = allocation.origin {
            self.synchronize_context(context)?;
        }
        self.free_now(address)
    }

    /// Frees an allocation, by its first byte, without waiting: for a stream-ordered free that is
    /// due.
    ///
    /// # Errors
    /// [`Error::NoAllocation`].
    pub fn free_now(&self, address: u64) -> Result<(), Error> {
        self.check_not_forked()?;
        self.core.free_now(address)
    }

    /// Returns the live allocation of this process that contains an address.
    #[must_use]
    pub fn allocation(&self, address: u64) -> Option<Allocation> {
        self.check_not_forked().ok()?;
        lock(&self.core.memory).find(address)
    }

    /// Returns whether an address is a GPU's, in use or not.
    #[must_use]
    pub fn is_device(&self, address: u64) -> bool {
        !self.is_inherited() && lock(&self.core.memory).holds(address)
    }

    /// Returns a GPU's memory now.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn memory_info(&self, gpu: usize) -> Result<MemoryInfo, Error> {
        let spec = *self.gpus().get(gpu).ok_or(Error::NoGpu)?;
        // Unused exports, and pools whose last frees are done, no longer count.
        self.core.end_unused_exports()?;
        self.core.end_pools()?;
        // The use of a partitioned GPU is the sum over its instances.
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
