//! The driver calls for pools that the accounting needs.

use std::fmt;

use cgpu_shm::units::Bytes;

use crate::handles::PoolId;

/// The driver calls for pools.
pub trait PoolDriver: fmt::Debug + Sync {
    /// Returns what the pool holds of its GPU, used or not (`RESERVED_MEM_CURRENT`); `None` if the
    /// driver does not report it.
    fn reserved(&self, pool: PoolId) -> Option<Bytes>;
    /// Returns how much of that is in use (`USED_MEM_CURRENT`); `None` if the driver does not
    /// report it.
    fn used(&self, pool: PoolId) -> Option<Bytes>;
    /// Gives unused memory back to the GPU.
    fn trim(&self, pool: PoolId);
    /// Destroys an empty pool. Returns `false` if the driver refused.
    fn destroy(&self, pool: PoolId) -> bool;
}
