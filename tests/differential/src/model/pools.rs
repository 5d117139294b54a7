//! Pools with a maximum size.

use super::{MIB, Process};
use crate::command::DEFAULT_POOL;

impl Process {
    /// Returns the pool of an allocation: the GPU's current pool stands for the default one.
    #[must_use]
    pub fn meant(&self, pool: u32) -> u32 {
        if pool == DEFAULT_POOL { self.current } else { pool }
    }

    /// Returns the bytes of a pool that are in use, in pieces of 512 bytes.
    #[must_use]
    pub fn in_use_of(&self, pool: u32) -> u64 {
        let its = self.pooled.values().filter(|pooled| pooled.pool == pool);
        its.map(|pooled| pooled.bytes.next_multiple_of(512)).sum()
    }

    /// Returns whether `bytes` more certainly exceed a pool's maximum, which is rounded up to
    /// blocks of 2 MiB.
    #[must_use]
    pub fn is_beyond(&self, pool: u32, bytes: u64) -> bool {
        let most = self.caps.get(&pool).map(|most| most.next_multiple_of(2 * MIB));
        most.is_some_and(|most| self.in_use_of(pool) + bytes > most)
    }

    /// Returns whether a pool certainly has room for `bytes` more: it has no maximum, or nothing of
    /// it is in use.
    #[must_use]
    pub fn has_room(&self, pool: u32, bytes: u64) -> bool {
        !self.caps.contains_key(&pool) || self.in_use_of(pool) == 0 && !self.is_beyond(pool, bytes)
    }

    /// Removes a pool. If it was the GPU's current pool, the default pool is current again.
    pub fn destroy_pool(&mut self, pool: u32) {
        self.pools.remove(&pool);
        self.caps.remove(&pool);
        self.local.remove(&pool);
        if self.current == pool {
            self.current = DEFAULT_POOL;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pooled;

    #[test]
    fn pool_at_its_maximum_has_no_room() {
        let mut process = Process { current: 7, ..Process::default() };
        process.caps.insert(7, 3 * MIB);
        assert_eq!((process.meant(DEFAULT_POOL), process.meant(8)), (7, 8));
        assert!(process.has_room(7, 4 * MIB) && !process.has_room(7, 4 * MIB + 1));
        process.pooled.insert(1, Pooled { bytes: MIB + 1, pool: 7, handle: None });
        assert_eq!(process.in_use_of(7), MIB + 512);
        assert!(
            !process.has_room(7, 1)
                && !process.is_beyond(7, 3 * MIB - 512)
                && process.is_beyond(7, 3 * MIB)
        );
        assert!(process.has_room(8, 1 << 40));
        process.destroy_pool(7);
        assert_eq!(process.meant(DEFAULT_POOL), DEFAULT_POOL);
    }
}
