//! What the driver says of pools, and is asked to do with them.

use std::fmt;

use cgpu_shm::units::Bytes;

use crate::handles::PoolId;

/// What the driver says of its pools, and what it does with them on our account.
pub trait PoolDriver: fmt::Debug + Sync {
    /// What the pool holds of its GPU, used or not (`RESERVED_MEM_CURRENT`). None: the driver does
    /// not say.
    fn reserved(&self, pool: PoolId) -> Option<Bytes>;
    /// What of that is in use (`USED_MEM_CURRENT`). None: the driver does not say.
    fn used(&self, pool: PoolId) -> Option<Bytes>;
    /// Gives back what can be spared.
    fn trim(&self, pool: PoolId);
    /// Destroys a pool that holds nothing. `false`: the driver refused.
    fn destroy(&self, pool: PoolId) -> bool;
}
