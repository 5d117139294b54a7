//! Stream-ordered memory, as its calls see it.

use std::collections::HashSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::units::Bytes;

use super::{Core, Machine, StreamId, Ticket, lock};
use crate::error::Error;
use crate::memory::{Offer, Order, Origin, PoolId, PoolSettings, PoolUsage, Reuse, Taken};
use crate::timeline::{Command, ExportId, ExportKind, Forecast};

impl Machine {
    /// Creates an empty pool.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn create_pool(&self, settings: PoolSettings) -> Result<PoolId, Error> {
        self.check_not_forked()?;
        self.check_gpu(settings.site.gpu)?;
        // Relaxed: a thread that does not see it yet cannot use the new pool either.
        self.core.has_pools.store(true, Ordering::Relaxed);
        Ok(lock(&self.core.memory).pools.create(settings))
    }

    /// Destroys a pool, together with the last of its allocations.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn destroy_pool(&self, pool: PoolId) -> Result<(), Error> {
        self.complete_pool_frees(true)?;
        lock(&self.core.memory).destroy_pool(&**self.core, pool)
    }

    /// Allocates from a pool, in the order of a stream; `None`: usable at once by any stream. Freed
    /// memory is reused as the pool's [`Reuse`] allows; else the pool grows. When the GPU is out of
    /// memory, its pools first give back unused memory, and pending frees are waited for.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoPool`], [`Error::Invalid`] for zero bytes and another
    /// process's pool.
    pub fn allocate_from(
        &self,
        pool: PoolId,
        size: Bytes,
        stream: Option<StreamId>,
    ) -> Result<u64, Error> {
        self.start_helper()?;
        let gpu = lock(&self.core.memory).pools.settings(pool)?.site.gpu;
        self.complete_pool_frees(false)?;
        let mut taken = self.core.take_or_grow(pool, size, stream);
        if taken == Err(Error::OutOfMemory) {
            self.trim_gpu(gpu)?;
            taken = self.core.take_or_grow(pool, size, stream);
        }
        while taken == Err(Error::OutOfMemory) && self.core.wait_for_a_free(gpu)? {
            self.trim_gpu(gpu)?;
            taken = self.core.take_or_grow(pool, size, stream);
        }
        let Taken { address, wait } = taken?;
        if let (Some(wait), Some(stream)) = (wait, stream)
            && let Err(error) = self.enqueue(stream, Command::Wait(wait))
        {
            lock(&self.core.memory).free_pooled_now(&**self.core, address)?;
            return Err(error);
        }
        Ok(address)
    }

    /// Frees memory of a pool, this process's or imported, in the order of a stream.
    ///
    /// # Errors
    /// [`Error::NoAllocation`], [`Error::NoStream`].
    pub fn free_in(&self, address: u64, stream: StreamId) -> Result<(), Error> {
        self.check_not_forked()?;
        let found = lock(&self.core.memory).find(address).filter(|found| found.address == address);
        match found.ok_or(Error::NoAllocation)?.origin {
            Origin::Pool(_) => {
                let ticket = self.enqueue(stream, Command::Nothing)?;
                lock(&self.core.memory).free_pooled(address, ticket)
            }
            // By the time the stream gets there the program may have freed it otherwise; that is
            // its own error.
            Origin::Context(_) | Origin::Imported(_) => {
                let core = std::sync::Arc::downgrade(&self.core);
                let free = move || {
                    if let Some(core) = core.upgrade() {
                        let _ = core.free_now(address);
                    }
                };
                self.host_function(stream, Box::new(free)).map(|_| ())
            }
            Origin::Opened(_) => Err(Error::NoAllocation),
        }
    }

    /// Returns the settings that a pool was created with.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn pool_settings(&self, pool: PoolId) -> Result<PoolSettings, Error> {
        lock(&self.core.memory).pools.settings(pool)
    }

    /// Returns whether a pool was imported from another process.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn is_pool_imported(&self, pool: PoolId) -> Result<bool, Error> {
        lock(&self.core.memory).pools.is_imported(pool)
    }

    /// Returns what a pool holds.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn pool_usage(&self, pool: PoolId) -> Result<PoolUsage, Error> {
        lock(&self.core.memory).pools.usage(pool)
    }

    /// Resets a high-water mark: of reserved memory, else of used memory.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn reset_pool_high(&self, pool: PoolId, reserved: bool) -> Result<(), Error> {
        lock(&self.core.memory).pools.reset_high(pool, reserved)
    }

    /// Changes and returns a pool's reuse policy.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn pool_reuse(
        &self,
        pool: PoolId,
        change: impl FnOnce(&mut Reuse),
    ) -> Result<Reuse, Error> {
        let mut memory = lock(&self.core.memory);
        let reuse = memory.pools.reuse(pool)?;
        change(reuse);
        Ok(*reuse)
    }

    /// Changes and returns how much a pool keeps when the host waits for the GPU.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn pool_threshold(
        &self,
        pool: PoolId,
        change: impl FnOnce(&mut Bytes),
    ) -> Result<Bytes, Error> {
        let mut memory = lock(&self.core.memory);
        let threshold = memory.pools.threshold(pool)?;
        change(threshold);
        Ok(*threshold)
    }

    /// Releases unused memory of a pool, down to `keep` bytes if it can.
    ///
    /// # Errors
    /// [`Error::NoPool`].
    pub fn trim_pool(&self, pool: PoolId, keep: Bytes) -> Result<(), Error> {
        self.complete_pool_frees(true)?;
        lock(&self.core.memory).trim(&**self.core, pool, keep)
    }

    /// Exports a pool as a descriptor, which other processes can import.
    ///
    /// # Errors
    /// [`Error::NotShareable`], [`Error::NoPool`], [`Error::System`].
    pub fn export_pool(&self, pool: PoolId) -> Result<OwnedFd, Error> {
        self.check_not_forked()?;
        let mut memory = lock(&self.core.memory);
        let settings = memory.pools.settings(pool)?;
        if !settings.shareable || memory.pools.is_imported(pool)? {
            return Err(Error::NotShareable);
        }
        let identity = memory.pools.identity(pool)?;
        let (export, serial) = match *identity {
            Some(identity) => identity,
            None => {
                let made = self.core.make_export(settings.site, ExportKind::Pool, Bytes::ZERO)?;
                *identity.insert((made.export, made.serial))
            }
        };
        self.core.send(export, serial)
    }

    /// Imports another process's pool by a descriptor.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if the descriptor is not a pool's; [`Error::System`].
    pub fn import_pool(&self, descriptor: BorrowedFd<'_>) -> Result<PoolId, Error> {
        self.check_not_forked()?;
        self.start_helper()?;
        let received = self.core.receive(descriptor, &[ExportKind::Pool])?;
        let identity = (received.export, received.serial);
        Ok(lock(&self.core.memory).pools.import(received.site, identity))
    }

    /// Offers an allocation of a pool to processes that import the pool. Returns the pool's serial,
    /// too.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::NotShareable`] unless the pool is shareable and was
    /// exported.
    pub fn offer_pooled(&self, address: u64) -> Result<(u64, Offer), Error> {
        self.check_not_forked()?;
        let mut memory = lock(&self.core.memory);
        let (pool, offer) = memory.offer_pooled(address)?;
        let (_, serial) = memory.pools.identity(pool)?.ok_or(Error::NotShareable)?;
        Ok((serial, offer))
    }

    /// Imports an allocation of the pool that `pool` was imported from. Repeated imports are
    /// counted.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is freed, or of another pool; [`Error::NoPool`],
    /// [`Error::System`].
    pub fn import_pooled(&self, pool: PoolId, of: u64, offer: &Offer) -> Result<u64, Error> {
        self.check_not_forked()?;
        let mut memory = lock(&self.core.memory);
        let imported = memory.pools.is_imported(pool)?;
        let identity = *memory.pools.identity(pool)?;
        if !imported || identity.map(|(_, serial)| serial) != Some(of) {
            return Err(Error::NoAllocation);
        }
        let whole = self.core.describe_offer(offer)?;
        let origin = Origin::Imported(pool);
        match memory.origin_of(ExportId(offer.export), offer.serial) {
            Some(_) => memory.open(whole.0, whole.1, offer, None, origin),
            None => self.core.open_export(&mut memory, whole, offer, origin),
        }
    }

    /// Makes completed stream-ordered frees available to every stream: in all pools, or in those
    /// with opportunistic reuse.
    fn complete_pool_frees(&self, all: bool) -> Result<(), Error> {
        self.check_not_forked()?;
        self.core.complete_pool_frees(all)
    }

    /// Releases unused memory of the pools of a GPU that is out of memory.
    pub(super) fn trim_gpu(&self, gpu: usize) -> Result<(), Error> {
        self.complete_pool_frees(true)?;
        lock(&self.core.memory).trim_pools(&**self.core, Some(gpu))
    }
}

impl Core {
    /// Notes an order between streams, if there is a pool that may need it.
    pub(super) fn ordered(&self, note: impl FnOnce(&mut super::Order)) {
        if self.has_pools.load(Ordering::Relaxed) {
            note(&mut lock(&self.order));
        }
    }

    /// Trims pools to their thresholds, after the host has waited for the GPU.
    pub(super) fn trim_to_thresholds(&self) -> Result<(), Error> {
        if !self.has_pools.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.complete_pool_frees(true)?;
        lock(&self.memory).trim_pools(self, None)
    }

    /// Destroys the pools that waited for their last frees.
    pub(super) fn end_pools(&self) -> Result<(), Error> {
        if !self.has_pools.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.complete_pool_frees(false)?;
        lock(&self.memory).end_destroyed(self)
    }

    fn complete_pool_frees(&self, all: bool) -> Result<(), Error> {
        let freed = lock(&self.memory).pools.freed(None);
        if freed.is_empty() {
            return Ok(());
        }
        let done: HashSet<Ticket> = self.with(|timeline, now| {
            let done = |ticket: &&Ticket| {
                timeline.visible_at(**ticket).is_some_and(|instant| instant <= now)
            };
            Ok(freed.iter().filter(done).copied().collect())
        })?;
        lock(&self.memory).pools.complete_frees(all, |ticket| done.contains(&ticket));
        Ok(())
    }

    fn take_or_grow(
        &self,
        pool: PoolId,
        size: Bytes,
        stream: Option<StreamId>,
    ) -> Result<Taken, Error> {
        let order = lock(&self.order);
        let order = Order { stream, after: stream.and_then(|stream| order.after(stream)) };
        let mut memory = lock(&self.memory);
        if let Some(taken) = memory.take_pooled(pool, size, &order)? {
            return Ok(taken);
        }
        memory.grow_pool(self, pool, size, self.segment.figures().pool_chunk)?;
        memory.take_pooled(pool, size, &order)?.ok_or(Error::OutOfMemory)
    }

    /// Waits for a stream-ordered free on the GPU. Returns `false` if none is forecast to complete.
    fn wait_for_a_free(&self, gpu: usize) -> Result<bool, Error> {
        let freed = lock(&self.memory).pools.freed(Some(gpu));
        let next = self.with(|timeline, _| {
            let coming = freed.iter().filter_map(|&ticket| match timeline.forecast(&[ticket]) {
                Forecast::At(instant) => Some((instant, ticket)),
                Forecast::NotBefore(_) | Forecast::Unknown => None,
            });
            Ok(coming.min_by_key(|&(instant, _)| instant).map(|(_, ticket)| ticket))
        })?;
        next.map_or(Ok(false), |ticket| self.wait_for(&[ticket]).map(|()| true))
    }

    /// Frees an allocation, by its first byte, without waiting.
    pub(super) fn free_now(&self, address: u64) -> Result<(), Error> {
        lock(&self.memory).free(self, address)
    }
}
