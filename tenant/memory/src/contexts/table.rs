//! The contexts of this process: the GPU, the cost and the owner of each.
//!
//! Every allocation looks up its context, so a look-up takes no lock: the table is a fixed array of
//! pairs (handle, word), probed linearly. Creation and destruction are rare and take a lock.
//!
//! ```text
//!   enter ----> known ----> leave ----> destroyed   its allocations count nothing from here on
//!                 ^           |
//!                 +--- stay --+                     the driver did not destroy it
//! ```
//!
//! A leaving context is still found: whether a release is a primary context's last one is unknown
//! before the call. The driver may give the handle of a destroyed context to another thread before
//! the destroying call has returned here. That thread enters it as new; the leaving context is then
//! off the table, but not yet closed.

use cgpu_shm::atomic::{AtomicU64, AtomicUsize, Ordering};
use cgpu_shm::units::{Bytes, DeviceIndex};

use cgpu_shm::spin::Spin;

use crate::allocations::table::{AllocationTable, Owner};

/// Maximum number of contexts that are told apart. A context takes 100 MiB of a GPU and more, so no
/// process reaches it.
const MOST: usize = 512;
/// Pairs of the table: a power of two, at least half of them empty.
const PAIRS: usize = 2 * MOST;
/// The handle in the pair of a removed context: probing continues past it. No driver's handle is
/// odd.
const TOMBSTONE: usize = 1;

/// An accounted context, and its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    gpu: DeviceIndex,
    owner: Owner,
}

impl Context {
    /// Returns the context's GPU.
    #[inline]
    #[must_use]
    pub fn gpu(self) -> DeviceIndex {
        self.gpu
    }

    #[inline]
    pub(crate) fn owner(self) -> Owner {
        self.owner
    }

    fn word(self) -> u64 {
        (self.gpu.get() as u64) << 32 | u64::from(self.owner.bits())
    }

    #[inline]
    fn of_word(word: u64) -> Option<Self> {
        let gpu = DeviceIndex::new(usize::try_from(word >> 32).ok()?)?;
        // The lower half is the owner.
        #[allow(clippy::cast_possible_truncation)]
        let owner = Owner::of_bits(word as u32);
        Some(Self { gpu, owner })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    New(Context),
    /// It was known; nothing has changed.
    Known(Context),
    /// The table is full: its memory is accounted to the GPU.
    Unrecorded(Context),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) gpu: DeviceIndex,
    /// The sum of its allocations.
    pub(crate) used: Bytes,
    pub(crate) implicit: Bytes,
}

#[derive(Debug)]
pub(crate) struct ContextTable {
    table: Box<[Pair; PAIRS]>,
    registry: Spin<Registry>,
}

#[derive(Debug, Default)]
struct Pair {
    /// The driver's handle; 0: never used. Stored after the word.
    handle: AtomicUsize,
    word: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    handle: usize,
    context: Context,
    implicit: Bytes,
    /// Uses beyond the first.
    attached: u32,
    /// Calls in the driver that may destroy it.
    leaving: u32,
    open: bool,
}

#[derive(Debug, Default)]
struct Registry {
    /// By the index of their owners, which begin after those of the GPUs.
    records: Vec<Record>,
    open: usize,
}

impl ContextTable {
    pub(crate) fn new() -> Self {
        let table = Box::new(std::array::from_fn(|_| Pair::default()));
        Self { table, registry: Spin::new(Registry::default()) }
    }

    /// Returns the owner of what belongs to a GPU and to no context: the first indices are the
    /// GPUs'.
    pub(crate) fn of_gpu(gpu: DeviceIndex) -> Context {
        let index = u16::try_from(gpu.get()).unwrap_or(0);
        Context { gpu, owner: Owner::new(index, 0) }
    }

    /// Returns the context of a handle. Takes no lock, so it may still find one that is being
    /// destroyed.
    #[inline]
    pub(crate) fn find(&self, handle: usize) -> Option<Context> {
        for pair in self.probe(handle) {
            // HB context: Acquire meets the Release in `publish`: the word is the handle's or
            // newer.
            match pair.handle.load(Ordering::Acquire) {
                0 => return None,
                found if found == handle => {
                    return Context::of_word(pair.word.load(Ordering::Relaxed));
                }
                _ => {}
            }
        }
        None
    }

    /// Returns whether a handle is a context that is not leaving.
    pub(crate) fn knows(&self, handle: usize) -> bool {
        let mut registry = self.registry.lock();
        let record = self.find(handle).and_then(|context| registry.record(context));
        record.is_some_and(|record| record.leaving == 0)
    }

    /// Enters a context whose own memory is charged as `implicit` bytes of the GPU. Unless it is
    /// new, the caller refunds those.
    pub(crate) fn enter(
        &self,
        handle: usize,
        gpu: DeviceIndex,
        implicit: Bytes,
        allocations: &AllocationTable,
    ) -> Entered {
        let unrecorded = Entered::Unrecorded(Self::of_gpu(gpu));
        if handle == 0 || handle == TOMBSTONE {
            return unrecorded;
        }
        let mut registry = self.registry.lock();
        let known = self.find(handle);
        if let Some(context) = known
            && registry.record(context).is_some_and(|record| record.leaving == 0)
        {
            return Entered::Known(context);
        }
        let Some(pair) = self.pair(handle, known.is_some()) else { return unrecorded };
        let Some(context) = registry.add(handle, gpu, implicit, allocations) else {
            return unrecorded;
        };
        pair.word.store(context.word(), Ordering::Relaxed);
        // HB context: Release publishes the word.
        pair.handle.store(handle, Ordering::Release);
        Entered::New(context)
    }

    pub(crate) fn attach(&self, handle: usize) {
        self.uses(handle, |attached| attached.checked_add(1));
    }

    /// Ends a use; returns `false` if only the first one is left.
    pub(crate) fn detach(&self, handle: usize) -> bool {
        self.uses(handle, |attached| attached.checked_sub(1))
    }

    fn uses(&self, handle: usize, change: impl FnOnce(u32) -> Option<u32>) -> bool {
        let mut registry = self.registry.lock();
        let record = self.find(handle).and_then(|context| registry.record(context));
        record.is_some_and(|record| {
            change(record.attached).map(|attached| record.attached = attached).is_some()
        })
    }

    /// Notes that a call that may destroy the context goes to the driver.
    pub(crate) fn leave(&self, handle: usize) -> Option<Context> {
        let mut registry = self.registry.lock();
        let context = self.find(handle)?;
        let record = registry.record(context)?;
        record.leaving = record.leaving.saturating_add(1);
        Some(context)
    }

    /// Notes that the driver did not destroy the context. Returns what it releases if it was
    /// destroyed all the same: its handle has been reused meanwhile.
    pub(crate) fn stay(&self, context: Context, allocations: &AllocationTable) -> Option<Released> {
        let mut registry = self.registry.lock();
        let record = registry.record(context)?;
        record.leaving = record.leaving.saturating_sub(1);
        let present = self.find(record.handle);
        if present == Some(context) { None } else { registry.close(context, allocations) }
    }

    /// Closes a destroyed context; `None` if another thread has closed it.
    pub(crate) fn destroyed(
        &self,
        context: Context,
        allocations: &AllocationTable,
    ) -> Option<Released> {
        let mut registry = self.registry.lock();
        let handle = registry.record(context)?.handle;
        if self.find(handle) == Some(context) {
            self.remove(handle);
        }
        registry.close(context, allocations)
    }

    /// Enters a handle that is a view of a context, which owns what is allocated in it.
    pub(crate) fn enter_view(&self, handle: usize, context: Context) {
        let _registry = self.registry.lock();
        if handle == 0 || handle == TOMBSTONE || self.find(handle) == Some(context) {
            return;
        }
        if let Some(pair) = self.pair(handle, self.find(handle).is_some()) {
            pair.word.store(context.word(), Ordering::Relaxed);
            // HB context: Release publishes the word.
            pair.handle.store(handle, Ordering::Release);
        }
    }

    pub(crate) fn leave_view(&self, handle: usize) {
        let _registry = self.registry.lock();
        self.remove(handle);
    }

    /// Adds memory to a context's own; returns `false` if the context is closed.
    pub(crate) fn enlarge(&self, context: Context, bytes: Bytes) -> bool {
        let mut registry = self.registry.lock();
        let record = registry.record(context);
        record.map(|record| record.implicit = record.implicit + bytes).is_some()
    }

    /// Subtracts memory from a context's own; returns how much of it the context had.
    pub(crate) fn lessen(&self, context: Context, bytes: Bytes) -> Bytes {
        let mut registry = self.registry.lock();
        let Some(record) = registry.record(context) else { return Bytes::ZERO };
        let had = record.implicit.min(bytes);
        record.implicit = record.implicit - had;
        had
    }

    fn probe(&self, handle: usize) -> impl Iterator<Item = &Pair> {
        let spread = (handle as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let home = usize::try_from(spread).unwrap_or(0) & (PAIRS - 1);
        // The mask keeps the index within the array.
        #[allow(clippy::indexing_slicing)]
        (home..home + PAIRS).map(|index| &self.table[index & (PAIRS - 1)])
    }

    /// Returns the pair of a handle: its own if it is `present`, else the first free one.
    fn pair(&self, handle: usize, present: bool) -> Option<&Pair> {
        self.probe(handle).find(|pair| match pair.handle.load(Ordering::Relaxed) {
            0 | TOMBSTONE => !present,
            found => present && found == handle,
        })
    }

    /// Removes a handle from the table. Tombstones at the end of a chain become unused, so that
    /// searches for unknown handles stay short.
    fn remove(&self, handle: usize) {
        let Some(index) =
            self.table.iter().position(|pair| pair.handle.load(Ordering::Relaxed) == handle)
        else {
            return;
        };
        let handle_at = |index: usize| self.table.get(index & (PAIRS - 1)).map(|pair| &pair.handle);
        let store = |index: usize, handle: usize| {
            if let Some(at) = handle_at(index) {
                at.store(handle, Ordering::Relaxed);
            }
        };
        let load =
            |index: usize| handle_at(index).map_or(0, |handle| handle.load(Ordering::Relaxed));
        store(index, TOMBSTONE);
        let mut last = index;
        while load(last) == TOMBSTONE && load(last + 1) == 0 {
            store(last, 0);
            last = last.wrapping_sub(1) & (PAIRS - 1);
        }
    }
}

impl Registry {
    fn index(context: Context) -> Option<usize> {
        context.owner.index().checked_sub(cgpu_shm::layout::GPUS)
    }

    fn record(&mut self, context: Context) -> Option<&mut Record> {
        let record = self.records.get_mut(Self::index(context)?)?;
        (record.open && record.context == context).then_some(record)
    }

    fn add(
        &mut self,
        handle: usize,
        gpu: DeviceIndex,
        implicit: Bytes,
        allocations: &AllocationTable,
    ) -> Option<Context> {
        if self.open >= MOST {
            return None;
        }
        let reusable = |record: &Record| {
            !record.open && record.context.owner.generation() + 1 < Owner::GENERATIONS
        };
        let free = self.records.iter().position(reusable);
        let index = free.unwrap_or(self.records.len());
        let number = u16::try_from(index + cgpu_shm::layout::GPUS).ok()?;
        if usize::from(number) >= Owner::INDICES {
            return None;
        }
        let generation =
            self.records.get(index).map_or(0, |record| record.context.owner.generation() + 1);
        let context = Context { gpu, owner: Owner::new(number, generation) };
        let record = Record { handle, context, implicit, attached: 0, leaving: 0, open: true };
        allocations.open(context.owner, gpu).ok()?;
        match self.records.get_mut(index) {
            Some(former) => *former = record,
            None => {
                self.records.try_reserve(1).ok()?;
                self.records.push(record);
            }
        }
        self.open += 1;
        Some(context)
    }

    fn close(&mut self, context: Context, allocations: &AllocationTable) -> Option<Released> {
        let record = self.record(context)?;
        record.open = false;
        let released = Released {
            gpu: context.gpu,
            used: allocations.close(context.owner),
            implicit: record.implicit,
        };
        self.open -= 1;
        Some(released)
    }
}

#[cfg(test)]
mod tests;
