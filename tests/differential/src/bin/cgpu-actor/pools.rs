//! Stream-ordered memory of the GPU's default pool and of others.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, DEFAULT_POOL, OfPool, Place};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DESCRIPTOR, Location, PINNED, PoolProperty, RESERVED, THRESHOLD};

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
                None if pool == DEFAULT_POOL => {
                    self.cuda.call(c"cuMemAllocAsync", [to, size, 0])?
                }
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
        self.make_pool(pool, 0, Place::Gpu)
    }

    pub(crate) fn of_pool(&mut self, about: OfPool, answer: &mut Answer) -> Result<i32> {
        match about {
            OfPool::Make { pool, most, place } => self.make_pool(pool, most, place),
            OfPool::End { pool, place } => self.end_pool(pool, place),
            OfPool::Choose { pool, by } => self.choose_pool(pool, by, answer),
            OfPool::IsChosen { pool } => {
                let chosen = self.chosen_pool(None)?;
                answer.active = chosen == self.pool(pool)?;
                Ok(0)
            }
        }
    }

    fn make_pool(&mut self, pool: u32, most: u64, on: Place) -> Result<i32> {
        let Location { kind: location, id } = self.location(on)?;
        let (kind, handle_types, max_size) = (PINNED, DESCRIPTOR, usize::try_from(most)?);
        let mut property =
            PoolProperty { kind, handle_types, location, id, max_size, ..PoolProperty::default() };
        let mut handle = 0_usize;
        let code =
            self.cuda.call(c"cuMemPoolCreate", [place(&mut handle), place(&mut property)])?;
        if code == 0 {
            self.pooling = true;
            self.pools.insert(pool, handle);
        }
        Ok(code)
    }

    /// Destroys a pool that may have memory in use.
    fn end_pool(&mut self, pool: u32, place: Place) -> Result<i32> {
        let Some(&handle) = self.pools.get(&pool) else { return Ok(NOT_OURS) };
        let code = self.destroy_pool(pool)?;
        if code != 0 {
            self.pools.insert(pool, handle);
            return Ok(code);
        }
        self.destroyed_pools.push(handle);
        if self.chosen_pool(None)? == handle
            || place != Place::Gpu && self.chosen_pool(Some(place))? == handle
        {
            bail!("a destroyed pool is still what is allocated from");
        }
        Ok(code)
    }

    fn choose_pool(&mut self, pool: u32, by: Option<Place>, answer: &mut Answer) -> Result<i32> {
        self.pooling = true;
        let handle = self.pool(pool)?;
        let code = match by {
            None => self.cuda.call(c"cuDeviceSetMemPool", [self.device, handle])?,
            Some(by) => {
                let mut of = self.location(by)?;
                self.cuda.call(c"cuMemSetMemPool", [place(&mut of), PINNED as usize, handle])?
            }
        };
        answer.active = self.chosen_pool(by)? == handle;
        Ok(code)
    }

    /// Returns the GPU's current pool, or the current pool of a place.
    fn chosen_pool(&self, by: Option<Place>) -> Result<usize> {
        let mut pool = 0_usize;
        let code = match by {
            None => self.cuda.call(c"cuDeviceGetMemPool", [place(&mut pool), self.device])?,
            Some(by) => {
                let mut of = self.location(by)?;
                self.cuda
                    .call(c"cuMemGetMemPool", [place(&mut pool), place(&mut of), PINNED as usize])?
            }
        };
        if code == 0 { Ok(pool) } else { bail!("the pool that is allocated from: {code}") }
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

    /// Returns the handle of one of its pools, or of the GPU's default pool.
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

    /// Returns the bytes reserved by the GPU's default pool and by its own pools. Destroyed pools
    /// count as long as they can be queried: under the shim, while they hold memory.
    pub(crate) fn holds(&self) -> Result<u64> {
        let pool = self.default_pool()?;
        let ended = self
            .destroyed_pools
            .iter()
            .filter_map(|pool| self.reserved_by(*pool).ok())
            .sum::<u64>();
        let held: Result<u64> =
            self.pools.values().chain([&pool]).map(|pool| self.reserved_by(*pool)).sum();
        Ok(held? + ended)
    }

    fn reserved_by(&self, pool: usize) -> Result<u64> {
        let mut reserved = 0_u64;
        match self.cuda.call(c"cuMemPoolGetAttribute", [pool, RESERVED, place(&mut reserved)])? {
            0 => Ok(reserved),
            code => bail!("cuMemPoolGetAttribute answered {code}"),
        }
    }
}
