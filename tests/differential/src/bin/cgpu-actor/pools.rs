//! Memory in stream order, of the card's default pool and others.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, DEFAULT_POOL};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, DEVICE, PINNED, PoolProperty, RESERVED, THRESHOLD};

impl Actor {
    pub(crate) fn allocate_pooled(
        &mut self,
        context: u32,
        key: u32,
        (bytes, pool): (u64, u32),
        answer: &mut Answer,
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        if code == 0 {
            self.pooling = true;
            let (to, size) = (place(&mut answer.address), usize::try_from(bytes)?);
            code = match self.pools.get(&pool) {
                Some(&pool) => self.cuda.call(c"cuMemAllocFromPoolAsync", [to, size, pool, 0])?,
                None if pool == DEFAULT_POOL => self.cuda.call(c"cuMemAllocAsync", [to, size, 0])?,
                None => NOT_OURS,
            };
        }
        if code == 0 {
            self.pooled.insert(key, answer.address);
        }
        Ok(code)
    }

    pub(crate) fn free_pooled(&mut self, context: u32, key: u32, now: bool) -> Result<i32> {
        let Some(&address) = self.pooled.get(&key) else { return Ok(NOT_OURS) };
        let (mut code, address) = (self.enter(context)?, usize::try_from(address)?);
        if code == 0 {
            code = match now {
                true => self.cuda.call(c"cuMemFree_v2", [address])?,
                false => self.cuda.call(c"cuMemFreeAsync", [address, 0])?,
            };
        }
        if code == 0 {
            self.pooled.remove(&key);
        }
        Ok(code)
    }

    pub(crate) fn create_pool(&mut self, pool: u32) -> Result<i32> {
        let (kind, handle_types, location, id) = (PINNED, DESCRIPTOR, DEVICE, self.id()?);
        let mut property = PoolProperty { kind, handle_types, location, id, ..PoolProperty::default() };
        let mut handle = 0_usize;
        let code = self.cuda.call(c"cuMemPoolCreate", [place(&mut handle), place(&mut property)])?;
        if code == 0 {
            self.pooling = true;
            self.pools.insert(pool, handle);
        }
        Ok(code)
    }

    pub(crate) fn destroy_pool(&mut self, pool: u32) -> Result<i32> {
        let Some(handle) = self.pools.remove(&pool) else { return Ok(NOT_OURS) };
        self.cuda.call(c"cuMemPoolDestroy", [handle])
    }

    pub(crate) fn trim_pool(&mut self, pool: u32, keep: u64) -> Result<i32> {
        self.pooling = true;
        self.cuda.call(c"cuMemPoolTrimTo", [self.pool(pool)?, usize::try_from(keep)?])
    }

    pub(crate) fn keep_in_pool(&mut self, pool: u32, mut bytes: u64) -> Result<i32> {
        self.pooling = true;
        self.cuda.call(c"cuMemPoolSetAttribute", [self.pool(pool)?, THRESHOLD, place(&mut bytes)])
    }

    /// One of its own, or the card's.
    fn pool(&self, pool: u32) -> Result<usize> {
        self.pools.get(&pool).copied().map_or_else(|| self.default_pool(), Ok)
    }

    fn default_pool(&self) -> Result<usize> {
        let mut pool = 0_usize;
        match self.cuda.call(c"cuDeviceGetDefaultMemPool", [place(&mut pool), self.device])? {
            0 => Ok(pool),
            code => bail!("cuDeviceGetDefaultMemPool answered {code}"),
        }
    }

    /// What the default pool of the first card holds, and its own ones.
    pub(crate) fn holds(&self) -> Result<u64> {
        let pool = self.default_pool()?;
        self.pools.values().chain([&pool]).map(|pool| self.reserved_by(*pool)).sum()
    }

    fn reserved_by(&self, pool: usize) -> Result<u64> {
        let mut reserved = 0_u64;
        match self.cuda.call(c"cuMemPoolGetAttribute", [pool, RESERVED, place(&mut reserved)])? {
            0 => Ok(reserved),
            code => bail!("cuMemPoolGetAttribute answered {code}"),
        }
    }
}
