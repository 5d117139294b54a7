//! Memory in stream order, of the card's default pool and others.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, DEFAULT_POOL};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, DEVICE, PINNED, PoolProperty, RESERVED};

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

    pub(crate) fn free_pooled(&mut self, context: u32, key: u32) -> Result<i32> {
        let Some(&address) = self.pooled.get(&key) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuMemFreeAsync", [usize::try_from(address)?, 0])?;
        }
        if code == 0 {
            self.pooled.remove(&key);
        }
        Ok(code)
    }

    pub(crate) fn create_pool(&mut self, pool: u32) -> Result<i32> {
        let (kind, handle_types, location) = (PINNED, DESCRIPTOR, DEVICE);
        let mut property = PoolProperty { kind, handle_types, location, ..PoolProperty::default() };
        let mut handle = 0_usize;
        let code = self.cuda.call(c"cuMemPoolCreate", [place(&mut handle), place(&mut property)])?;
        if code == 0 {
            self.pooling = true;
            self.pools.insert(pool, handle);
        }
        Ok(code)
    }

    /// What the default pool of the first card holds, and its own ones.
    pub(crate) fn holds(&self) -> Result<u64> {
        let mut pool = 0_usize;
        let code = self.cuda.call(c"cuDeviceGetDefaultMemPool", [place(&mut pool), 0])?;
        if code != 0 {
            bail!("cuDeviceGetDefaultMemPool answered {code}");
        }
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
