//! Pools and the GPU: allocations from pools, growth, trimming, destruction.

use cgpu_shm::units::Bytes;

use super::{Chunk, Freed, Order, Pool, PoolId, PoolSettings, Taken};
use crate::error::Error;
use crate::memory::space::Space;
use crate::memory::span::Source;
use crate::memory::{Accounting, Allocation, Memory, Offer, Origin, system};
use crate::timeline::{ExportId, Site, Ticket};

const STEP: u64 = 512;

fn rounded(size: Bytes) -> u64 {
    size.0.next_multiple_of(STEP)
}

impl Memory {
    /// Takes a piece of a pool, without growing it.
    pub(crate) fn take_pooled(
        &mut self,
        pool: PoolId,
        size: Bytes,
        order: &Order<'_>,
    ) -> Result<Option<Taken>, Error> {
        let its = self.pools.get_mut(pool)?;
        if size.0 == 0 || its.destroyed || its.imported {
            return Err(Error::Invalid(
                "an allocation of zero bytes, or from a destroyed or imported pool",
            ));
        }
        let gpu = its.settings.site.gpu;
        // Checked before rounding, which could overflow.
        if size > self.totals[gpu] {
            return Err(Error::OutOfMemory);
        }
        let Some(taken) = its.take(rounded(size), order) else { return Ok(None) };
        its.use_more(rounded(size));
        let address = taken.address;
        self.live.insert(address, Allocation { address, size, gpu, origin: Origin::Pool(pool) });
        Ok(Some(taken))
    }

    /// Adds a chunk to a pool, large enough for a piece of that size.
    pub(crate) fn grow_pool(
        &mut self,
        accounting: &impl Accounting,
        pool: PoolId,
        size: Bytes,
        chunk: Bytes,
    ) -> Result<(), Error> {
        let its = self.pools.get(pool)?;
        let (PoolSettings { site, shareable, .. }, sizes) =
            (its.settings, its.growth_sizes(rounded(size), chunk.0));
        let mut result = Err(Error::OutOfMemory);
        for length in sizes {
            result = self.take_chunk(accounting, site, length, shareable);
            if !matches!(result, Err(Error::OutOfMemory)) {
                break;
            }
        }
        let (start, chunk) = result?;
        let length = Bytes(chunk.length);
        let its = self.pools.get_mut(pool)?;
        its.chunks.insert(start, chunk);
        its.growths += 1;
        its.usage.reserved = its.usage.reserved + length;
        its.usage.reserved_high = its.usage.reserved_high.max(its.usage.reserved);
        Ok(())
    }

    fn take_chunk(
        &mut self,
        accounting: &impl Accounting,
        site: Site,
        length: u64,
        shareable: bool,
    ) -> Result<(u64, Chunk), Error> {
        let start = self.take_addresses(site.gpu, length)?;
        let export = if shareable {
            self.take_shared_chunk(accounting, site, start, length).map(Some)
        } else {
            accounting.take(site, Bytes(length)).map(|()| None)
        };
        let export = export.inspect_err(|_| self.give_addresses(site.gpu, start, length))?;
        let mut free = Space::default();
        free.give(start, length, start..start + length);
        Ok((start, Chunk { length, export, free, left: length }))
    }

    fn take_shared_chunk(
        &mut self,
        accounting: &impl Accounting,
        site: Site,
        start: u64,
        length: u64,
    ) -> Result<(ExportId, u64), Error> {
        let exported = accounting.create_export(site, Bytes(length))?;
        let (span, _) = self.gpu(site.gpu)?;
        if let Err(error) = span.alias(start, length, Source::File(&exported.file)) {
            accounting.drop_hold(exported.export)?;
            return Err(system("cannot map a pool's memory")(error));
        }
        Ok((exported.export, exported.serial))
    }

    /// Frees a piece in the order of a stream, at a ticket.
    pub(crate) fn free_pooled(&mut self, address: u64, ticket: Ticket) -> Result<(), Error> {
        let (pool, length) = self.end_piece(address)?;
        self.pools.get_mut(pool)?.freed.push(Freed { address, length, ticket });
        Ok(())
    }

    pub(crate) fn free_pooled_now(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
    ) -> Result<(), Error> {
        let (pool, length) = self.end_piece(address)?;
        self.pools.get_mut(pool)?.give(address, length);
        self.end_destroyed(accounting)
    }

    fn end_piece(&mut self, address: u64) -> Result<(PoolId, u64), Error> {
        let allocation = self.live.get(&address).ok_or(Error::NoAllocation)?;
        let Origin::Pool(pool) = allocation.origin else { return Err(Error::NoAllocation) };
        let length = rounded(allocation.size);
        self.live.remove(&address);
        let usage = &mut self.pools.get_mut(pool)?.usage;
        usage.used = usage.used - Bytes(length);
        Ok((pool, length))
    }

    /// Releases wholly free chunks until the pool holds at most `keep`, or there are none.
    pub(crate) fn trim(
        &mut self,
        accounting: &impl Accounting,
        pool: PoolId,
        keep: Bytes,
    ) -> Result<(), Error> {
        let its = self.pools.get_mut(pool)?;
        let site = its.settings.site;
        let free: Vec<u64> = its
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.left == chunk.length)
            .map(|(&start, _)| start)
            .collect();
        for start in free.into_iter().rev() {
            let its = self.pools.get_mut(pool)?;
            if its.usage.reserved <= keep {
                break;
            }
            let Some(chunk) = its.chunks.remove(&start) else { continue };
            its.usage.reserved = its.usage.reserved - Bytes(chunk.length);
            if chunk.export.is_some() {
                self.unalias(site.gpu, start, chunk.length)?;
            }
            self.give_addresses(site.gpu, start, chunk.length);
            match chunk.export {
                Some((export, _)) => accounting.drop_hold(export)?,
                None => accounting.give(site, Bytes(chunk.length))?,
            }
        }
        Ok(())
    }

    /// Trims pools to their thresholds, or those of a GPU that is out of memory to nothing.
    pub(crate) fn trim_pools(
        &mut self,
        accounting: &impl Accounting,
        short: Option<usize>,
    ) -> Result<(), Error> {
        let pools: Vec<(PoolId, Bytes)> = self
            .pools
            .pools
            .iter()
            .filter(|(_, pool)| short.is_none_or(|gpu| pool.settings.site.gpu == gpu))
            .map(|(&id, pool)| {
                (id, if short.is_some() || pool.destroyed { Bytes::ZERO } else { pool.threshold })
            })
            .collect();
        for (pool, keep) in pools {
            self.trim(accounting, pool, keep)?;
        }
        self.end_destroyed(accounting)
    }

    /// Destroys a pool: at once, or with the last of its pieces.
    pub(crate) fn destroy_pool(
        &mut self,
        accounting: &impl Accounting,
        pool: PoolId,
    ) -> Result<(), Error> {
        self.pools.get_mut(pool)?.destroyed = true;
        self.end_destroyed(accounting)
    }

    /// Destroys pools that waited for their last frees.
    pub(crate) fn end_destroyed(&mut self, accounting: &impl Accounting) -> Result<(), Error> {
        let over =
            |pool: &Pool| pool.destroyed && pool.usage.used == Bytes::ZERO && pool.freed.is_empty();
        let ended: Vec<PoolId> =
            self.pools.pools.iter().filter(|(_, pool)| over(pool)).map(|(&id, _)| id).collect();
        for pool in ended {
            self.trim(accounting, pool, Bytes::ZERO)?;
            if let Some((identity, _)) =
                self.pools.pools.remove(&pool).and_then(|pool| pool.identity)
            {
                accounting.drop_hold(identity)?;
            }
        }
        Ok(())
    }

    /// Returns the export that contains a piece, and its start. A chunk of this process alone
    /// becomes one; it still cannot be imported.
    pub(crate) fn share_chunk(
        &mut self,
        accounting: &impl Accounting,
        pool: PoolId,
        address: u64,
    ) -> Result<(u64, (ExportId, u64)), Error> {
        let its = self.pools.get_mut(pool)?;
        let site = its.settings.site;
        let (bounds, chunk) = its.chunk_of(address).ok_or(Error::NoAllocation)?;
        if let Some(export) = chunk.export {
            return Ok((bounds.start, export));
        }
        let length = chunk.length;
        let exported = accounting.export_own(site, Bytes(length))?;
        if let Err(error) = self.move_into(site.gpu, (bounds.start, length), &exported) {
            // Return the memory to the process.
            accounting.drop_hold(exported.export)?;
            accounting.take(site, Bytes(length))?;
            return Err(error);
        }
        let export = (exported.export, exported.serial);
        if let Some((_, chunk)) = self.pools.get_mut(pool)?.chunk_of(address) {
            chunk.export = Some(export);
        }
        Ok((bounds.start, export))
    }

    /// Describes an allocation of a pool for processes that import from the pool.
    pub(crate) fn offer_pooled(&self, address: u64) -> Result<(PoolId, Offer), Error> {
        let allocation = self.live.get(&address).ok_or(Error::NoAllocation)?;
        let Origin::Pool(pool) = allocation.origin else { return Err(Error::NoAllocation) };
        let its = self.pools.get(pool)?;
        if !its.settings.shareable {
            return Err(Error::NotShareable);
        }
        let (&start, chunk) =
            its.chunks.range(..=address).next_back().ok_or(Error::NoAllocation)?;
        let (export, serial) = chunk.export.ok_or(Error::NotShareable)?;
        let offset = address - start;
        Ok((pool, Offer { export: export.get(), serial, offset, size: allocation.size }))
    }
}
