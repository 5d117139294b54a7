//! One process of a container: the tenant that the shim's hooks talk to.
//!
//! ```text
//!   charge ---> the driver allocates ---> settle(address, context)
//!      |                 |                   recorded, or refunded if the context went meanwhile
//!      +--- dropped: refunded
//!
//!   take -----> the driver frees ------> freed: refunded
//!      |                 |
//!      +--- dropped: put back
//! ```
//!
//! Every pair of calls encloses one call of the driver, and no lock is held across it. The books are changed on the safe side of
//! the driver: raised before memory can be taken, lowered after it is back. Only the table of addresses is changed early, before a
//! free: the driver may give the address to another thread before the call has returned here.

use std::fmt;
use std::mem::ManuallyDrop;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::{Column, Refused, Usage};
use cgpu_shm::lock::{Guard, Owner as Name};
use cgpu_shm::region::Region;
use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};
use cgpu_shm::uuid::Uuid;

use crate::allocations::{Allocation, Allocations, Inserted, MOST_UNITS, Owner, UNIT};
use crate::arrays::Requirements;
use crate::contexts::{Before, Context, Contexts, Entered, Estate, size};
use crate::exports::Exports;
use crate::graphs::Graphs;
use crate::implicit::Causes;
use crate::ledger::{Denied, Ledger, Patience};
use crate::physical::Physicals;
use crate::pools::Pools;
use crate::start::{self, Started};
use crate::views::Views;
use crate::{Clock, Environment, Inventory, Member, Reason, Refusal, View};

/// A device address (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// A context as the driver names it (the `CUcontext` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// How a start ended, if it was not refused.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one in a process's life
pub enum Start {
    /// The shim stays out of the way: every hook is the real call.
    Off(Reason),
    /// Books are kept.
    On(Tenant),
}

/// The books of one process. Shared by its threads. A forked child leaves its parent's alone, neither using nor dropping it, and
/// starts one of its own.
pub struct Tenant {
    pub(crate) ledger: Ledger,
    gpus: Vec<(Uuid, Gpu)>,
    pub(crate) contexts: Contexts,
    pub(crate) views: Views,
    pub(crate) causes: Causes,
    pub(crate) allocations: Allocations,
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) physicals: Spin<Physicals>,
    pub(crate) requirements: Spin<Requirements>,
    pub(crate) exports: Exports,
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("gpus", &self.gpus).finish_non_exhaustive()
    }
}

impl Tenant {
    /// Reads the settings, opens or makes the region, claims a slot, registers the GPUs. After the real `cuInit`.
    ///
    /// # Errors
    /// A [`Refusal`], whose sentence says what was expected, what came and what to do: settings that cannot be understood, or
    /// a region that cannot be used while a limit is set.
    pub fn start(
        environment: &dyn Environment,
        inventory: Inventory<'_>,
        clock: &'static dyn Clock,
    ) -> Result<Start, Refusal> {
        let (ledger, gpus) = match start::start(environment, inventory, clock)? {
            Started::Off(reason) => return Ok(Start::Off(reason)),
            Started::On(ledger, gpus) => (ledger, gpus),
        };
        let allocations = Allocations::new();
        for &(_, gpu) in &gpus {
            allocations.open(Contexts::of_gpu(gpu).owner(), gpu).map_err(|_| {
                Refusal::new("expected some host memory for the books, found none: free some")
            })?;
        }
        Ok(Start::On(Self {
            ledger,
            gpus,
            contexts: Contexts::new(),
            views: Views::new(),
            causes: Causes::new(),
            allocations,
            pools: Pools::new(),
            graphs: Graphs::new(),
            physicals: Spin::new(Physicals::new()),
            requirements: Spin::new(Requirements::new()),
            exports: Exports::new(),
        }))
    }

    /// The GPU with this UUID, if it is sliced; none: native, hooks pass.
    #[must_use]
    pub fn gpu(&self, uuid: Uuid) -> Option<Gpu> {
        self.gpus.iter().find(|(known, _)| *known == uuid).map(|(_, gpu)| *gpu)
    }

    /// The limit now in force on `gpu`; none: accounted, but not limited.
    #[must_use]
    pub fn limit(&self, gpu: Gpu) -> Option<Bytes> {
        Some(self.ledger.limit(gpu)).filter(|limit| *limit != Bytes::MAX)
    }

    /// What every getter shows for `gpu`, with the physically free memory that the real getter gave. Not limited: none, show
    /// what the real getter gave.
    #[must_use]
    pub fn view(&self, gpu: Gpu, physical_free: Bytes) -> Option<View> {
        let limit = self.limit(gpu)?;
        self.pools_changed(Some(gpu));
        self.look_at_kept();
        self.ledger.glance();
        Some(View::of(limit, self.ledger.total(gpu), physical_free))
    }

    /// The container's living processes as they stand on `gpu`.
    #[must_use]
    pub fn members(&self, gpu: Gpu) -> Vec<Member> {
        self.pools_changed(Some(gpu));
        self.ledger.members(gpu)
    }

    /// What the container uses on `gpu`, apart: asked for, implicit, draining.
    #[must_use]
    pub fn usage(&self, gpu: Gpu) -> Usage {
        self.ledger.usage(gpu)
    }

    /// The container's region, for the gate.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.ledger.region()
    }

    /// This process's name in the region: its slot, and which of the slot's users it is.
    #[must_use]
    pub fn name(&self) -> Name {
        self.ledger.me()
    }

    /// Charges `size` (as the program asked, not rounded) before the driver is called. Waits up to 1 s if only the memory of
    /// processes that have just ended is in the way.
    ///
    /// # Errors
    /// [`Denied`]: over the limit.
    #[inline]
    pub fn charge(&self, gpu: Gpu, size: Bytes) -> Result<Charge<'_>, Denied> {
        let Some(units) = units(size) else { return Err(self.too_large(gpu, size)) };
        self.hold(gpu, Column::Used, bytes(units), Reason::OverLimit)?;
        Ok(Charge { tenant: self, gpu, units })
    }

    /// The driver answered out of memory although the limit allowed it: whether to ask once more, because a process of the
    /// container has just ended and its memory is on the way. Sleeps a little first. Call in a loop with one `Patience` while
    /// the driver refuses; false in the end.
    #[must_use]
    pub fn ask_again(&self, gpu: Gpu, patience: &mut Patience) -> bool {
        self.ledger.ask_again(gpu, patience)
    }

    /// Takes the allocation at `address` off the table, before the driver is asked to free it: the driver may give the address
    /// to another thread before the free has returned here. None: not on the books, pass the call on (counted).
    #[inline]
    pub fn take(&self, address: Address) -> Option<Taken<'_>> {
        let taken = self.take_known(address);
        if taken.is_none() {
            self.ledger.count(Reason::UnknownFree);
        }
        taken
    }

    /// As [`Tenant::take`], for an address that need not be on the books.
    #[inline]
    pub(crate) fn take_known(&self, address: Address) -> Option<Taken<'_>> {
        let (gpu, Allocation { address, units, owner }) = self.allocations.remove(address.0)?;
        let ways = if self.exports.any() { self.exports.take(address) } else { 0 };
        Some(Taken { tenant: self, gpu, address, units, owner, ways })
    }

    /// The context's GPU and place on the books. None: its creation was not seen; see [`Tenant::context_seen`].
    #[inline]
    #[must_use]
    pub fn context(&self, context: ContextId) -> Option<Context> {
        self.contexts.find(context.0)
    }

    /// Charges a context of the learned size as implicit memory, before the driver is asked to create one. `physical_free`
    /// reads the GPU's free memory, if it can be read. Not for a primary context that is active already.
    ///
    /// # Errors
    /// [`Denied`]: it would go over the limit.
    pub fn context_starting(
        &self,
        gpu: Gpu,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<Starting<'_>, Denied> {
        let first = self.first_context(gpu);
        // Before the creation is marked: while it is, nothing is confirmed.
        self.ledger.await_confirmation(gpu, self.learned(gpu));
        self.relearn(gpu);
        let charged = self.learned(gpu);
        // Others are looked for before and after the readings: who is found by neither has all of its own before them or all
        // after them.
        let already = self.ledger.creation_begins(gpu);
        if let Err(denied) = self.hold(gpu, Column::Implicit, charged, Reason::ContextOverLimit) {
            self.ledger.creation_ends(gpu);
            return Err(denied);
        }
        // After the charge: where it is short, it makes room first, by trimming pools or waiting for the dead, and what they give back
        // would be taken off the context's cost.
        let (physical_free, booked) = (physical_free(), self.ledger.booked(gpu) - charged);
        let beside = already.max(self.ledger.creations(gpu).saturating_sub(1));
        let before = Before { physical_free, booked, charged, beside, alone: self.ledger.is_alone() };
        Ok(Starting { tenant: self, gpu, first, before })
    }

    /// First contexts are created one after the other: what two that are created at once cost cannot be told apart by the GPU's free
    /// memory, and all later ones are charged by it. None: it is known.
    fn first_context(&self, gpu: Gpu) -> Option<Guard<'_>> {
        if self.learned(gpu) > Bytes::ZERO {
            return None;
        }
        // Whoever was before us may have learned it.
        self.ledger.learning(gpu).filter(|_| self.learned(gpu) == Bytes::ZERO)
    }

    /// Whether it is known what a context costs on `gpu`: then one is charged before it is created.
    #[must_use]
    pub fn context_size_is_known(&self, gpu: Gpu) -> bool {
        self.learned(gpu) > Bytes::ZERO
    }

    /// Whether two contexts in turn were seen to cost the same on `gpu`: then there is nothing left to learn.
    #[must_use]
    pub fn context_size_is_agreed(&self, gpu: Gpu) -> bool {
        self.ledger.region().gpu(gpu).agreed.load(Ordering::Relaxed) != 0
    }

    /// A number that changes with every charge and every refund of this process on `gpu`.
    #[must_use]
    pub fn activity(&self, gpu: Gpu) -> u64 {
        let cell = self.ledger.region().cell(gpu, self.name().slot());
        let charges = u64::from(cell.charges.load(Ordering::Relaxed));
        charges.rotate_left(32) ^ cell.held.load(Ordering::Relaxed)
    }

    /// What of `gpu` was free when a monitor asked NVML last; none: no monitor has told it lately.
    #[must_use]
    pub fn told_free(&self, gpu: Gpu) -> Option<Bytes> {
        let (uuid, _) = self.gpus.iter().find(|(_, known)| *known == gpu)?;
        self.ledger.told_free(*uuid)
    }

    /// Takes up a context whose creation was not seen (made by a private path of the runtime), with the learned size as
    /// implicit memory, which may exceed the limit. One that is known is left as it is.
    pub fn context_seen(&self, context: ContextId, gpu: Gpu) -> Context {
        if let Some(known) = self.contexts.find(context.0) {
            return known;
        }
        self.ledger.count(Reason::UnknownContext);
        let implicit = self.learned(gpu);
        self.ledger.book(gpu, Column::Implicit, implicit);
        self.enter(context, gpu, implicit)
    }

    /// A context has one more use.
    pub fn context_attached(&self, context: ContextId) {
        self.contexts.attach(context.0);
    }

    /// A use of a context is about to end. False: it is the first one, with which the context ends.
    pub fn context_detaching(&self, context: ContextId) -> bool {
        self.contexts.detach(context.0)
    }

    /// A context is about to be destroyed (or the last reference of a primary context released, or it is reset). None: unknown.
    pub fn context_leaving(&self, context: ContextId) -> Option<Leaving<'_>> {
        let context = self.contexts.leave(context.0)?;
        Some(Leaving { tenant: self, context })
    }

    /// Counts `reason` in the process's slot. One relaxed add.
    pub fn count(&self, reason: Reason) {
        self.ledger.count(reason);
    }

    /// Charges; where that does not fit, what pools can spare is given back first.
    #[inline]
    pub(crate) fn hold(&self, gpu: Gpu, column: Column, bytes: Bytes, denied: Reason) -> Result<(), Denied> {
        if column == Column::Used && self.ledger.take_spare(gpu, bytes) {
            return Ok(());
        }
        self.hold_among_others(gpu, column, bytes, denied)
    }

    #[inline(never)]
    fn hold_among_others(
        &self,
        gpu: Gpu,
        column: Column,
        bytes: Bytes,
        denied: Reason,
    ) -> Result<(), Denied> {
        self.ledger.attempt(gpu, column, bytes).or_else(|refused| {
            if matches!(refused, Refused::Short { .. }) {
                self.relieve(gpu);
            }
            self.ledger.insist(gpu, column, bytes, denied, refused)
        })
    }

    #[cold]
    pub(crate) fn too_large(&self, gpu: Gpu, wanted: Bytes) -> Denied {
        let reason = Reason::TooLarge;
        self.ledger.count(reason);
        Denied { reason, wanted, used: self.ledger.total(gpu), limit: self.ledger.limit(gpu) }
    }

    /// What a context was last seen to cost on the GPU.
    fn learned(&self, gpu: Gpu) -> Bytes {
        Bytes(self.ledger.region().gpu(gpu).context.load(Ordering::Relaxed))
    }

    /// Enters a context that is charged with `implicit` bytes.
    fn enter(&self, context: ContextId, gpu: Gpu, implicit: Bytes) -> Context {
        match self.contexts.enter(context.0, gpu, implicit, &self.allocations) {
            Entered::New(context) => context,
            Entered::Known(context) => {
                self.ledger.refund(gpu, Column::Implicit, implicit);
                context
            }
            Entered::Untold(context) => {
                self.ledger.count(Reason::TooManyContexts);
                context
            }
        }
    }

    fn wind_up(&self, context: Context, estate: Option<Estate>) {
        if let Some(Estate { gpu, used, implicit }) = estate {
            self.arrays_gone_with(context.owner());
            let used = self.unlent(context.owner(), used);
            self.ledger.refund(gpu, Column::Used, used);
            self.ledger.end(gpu, implicit);
            self.causes.forget(context);
        }
    }
}

/// Bytes charged for an allocation that the driver is now asked for. Dropped without [`Charge::settle`]: refunded.
#[derive(Debug)]
#[must_use = "a charge that is dropped is refunded"]
pub struct Charge<'a> {
    pub(crate) tenant: &'a Tenant,
    pub(crate) gpu: Gpu,
    units: u32,
}

/// What became of a settled charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// On the books, under its address.
    Recorded,
    /// The context was destroyed meanwhile, the memory with it: refunded.
    Refunded,
    /// Charged, but without an entry (no host memory): refunded when the process ends.
    Unrecorded,
}

impl Charge<'_> {
    /// The driver made the allocation at `address`. `context` is the one that owns it (what dies with it); none for memory
    /// that belongs to no context.
    #[inline]
    pub fn settle(self, address: Address, context: Option<Context>) -> Settled {
        // From here on the table answers for the bytes.
        let Self { tenant, gpu, units } = *ManuallyDrop::new(self);
        let owner = match context {
            Some(context) if context.gpu() == gpu => context.owner(),
            _ => Contexts::of_gpu(gpu).owner(),
        };
        match tenant.allocations.insert(Allocation { address: address.0, units, owner }) {
            Inserted::New => Settled::Recorded,
            other => tenant.settled(gpu, units, other),
        }
    }

    /// What is charged: the size rounded as the driver does.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        bytes(self.units)
    }
}

impl Drop for Charge<'_> {
    // Inlined, and what is cold is called by value: so that a charge that is settled lives in registers.
    #[inline]
    fn drop(&mut self) {
        self.tenant.refused(self.gpu, self.units);
    }
}

impl Tenant {
    #[cold]
    fn refused(&self, gpu: Gpu, units: u32) {
        self.ledger.refund(gpu, Column::Used, bytes(units));
    }

    #[cold]
    fn kept(&self, gpu: Gpu, address: u64, units: u32, owner: Owner, ways: u64) {
        let allocation = Allocation { address, units, owner };
        if ways != 0 {
            self.exports.restore(address, gpu, bytes(units), owner, ways);
        }
        self.ledger.count(Reason::FreeRefused);
        let restored = self.allocations.restore(allocation);
        self.settled(gpu, units, restored);
    }

    #[cold]
    fn settled(&self, gpu: Gpu, units: u32, inserted: Inserted) -> Settled {
        match inserted {
            Inserted::New => Settled::Recorded,
            Inserted::Replaced(gpu, former) => {
                self.ledger.count(Reason::AddressReplaced);
                self.ledger.refund(gpu, Column::Used, former);
                Settled::Recorded
            }
            Inserted::Stale => {
                self.ledger.count(Reason::StaleContext);
                self.ledger.refund(gpu, Column::Used, bytes(units));
                Settled::Refunded
            }
            Inserted::Exhausted => {
                self.ledger.count(Reason::Unrecorded);
                Settled::Unrecorded
            }
        }
    }
}

/// An allocation taken off the table while the driver is asked to free it. Dropped without [`Taken::freed`]: put back, still
/// charged.
#[derive(Debug)]
#[must_use = "a taken allocation that is dropped is put back"]
pub struct Taken<'a> {
    tenant: &'a Tenant,
    gpu: Gpu,
    address: u64,
    units: u32,
    owner: Owner,
    /// How others may hold it; 0: they do not.
    ways: u64,
}

impl Taken<'_> {
    /// The driver freed it: the bytes are refunded.
    #[inline]
    pub fn freed(self) {
        let Self { tenant, gpu, units, ways, .. } = *ManuallyDrop::new(self);
        if ways == 0 {
            tenant.ledger.refund(gpu, Column::Used, bytes(units));
        } else {
            tenant.part_with(gpu, bytes(units), ways);
        }
    }
}

impl Drop for Taken<'_> {
    // As a charge's.
    #[inline]
    fn drop(&mut self) {
        self.tenant.kept(self.gpu, self.address, self.units, self.owner, self.ways);
    }
}

/// A context charged by its learned size while the driver is asked to create it. Dropped without [`Starting::created`]: refunded.
#[derive(Debug)]
#[must_use = "a context that is not created is refunded"]
pub struct Starting<'a> {
    tenant: &'a Tenant,
    gpu: Gpu,
    before: Before,
    /// Held until the size is known.
    first: Option<Guard<'a>>,
}

impl Starting<'_> {
    /// The driver created it. `physical_free` is the GPU's free memory read now, if it could be read: with the one given to
    /// [`Tenant::context_starting`] it teaches what a context costs on this GPU. A context that was known already (a second
    /// retain of a primary context) costs nothing.
    pub fn created(mut self, context: ContextId, physical_free: Option<Bytes>) -> Context {
        let _first = self.first.take();
        let Self { tenant, gpu, before, .. } = *ManuallyDrop::new(self);
        let (ledger, charged) = (&tenant.ledger, before.charged);
        if tenant.contexts.knows(context.0) {
            let known = tenant.enter(context, gpu, charged);
            ledger.creation_ends(gpu);
            return known;
        }
        let beside = ledger.creations(gpu).saturating_sub(1);
        // Who began without knowing, because whoever was learning took too long, and sees it known now, takes that.
        let learned = tenant.learned(gpu);
        let (measured, known) = match (charged, learned) {
            (Bytes::ZERO, size) if size > Bytes::ZERO => (None, size),
            _ => (
                Before { alone: before.alone && ledger.is_alone(), ..before }.size(
                    physical_free,
                    ledger.booked(gpu) - charged,
                    beside,
                ),
                charged,
            ),
        };
        if let Some(size) = measured {
            let record = ledger.region().gpu(gpu);
            record.context.store(size.0, Ordering::Relaxed);
            record.agreed.store(size::agree(size, charged).into(), Ordering::Relaxed);
        }
        let implicit = measured.unwrap_or(known);
        if implicit > charged {
            ledger.book(gpu, Column::Implicit, implicit - charged);
        } else {
            ledger.refund(gpu, Column::Implicit, charged - implicit);
        }
        let entered = tenant.enter(context, gpu, implicit);
        // Not before the books are right: what others then find gone from the GPU, and not there, is theirs.
        ledger.creation_ends(gpu);
        entered
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        // Until then nothing is concluded from what the GPU says.
        self.tenant.ledger.refund(self.gpu, Column::Implicit, self.before.charged);
        self.tenant.ledger.creation_ends(self.gpu);
    }
}

/// A context whose destruction the driver is being asked for. Dropped without [`Leaving::gone`]: it stays.
#[derive(Debug)]
#[must_use = "a leaving context that is dropped stays"]
pub struct Leaving<'a> {
    tenant: &'a Tenant,
    context: Context,
}

impl Leaving<'_> {
    /// It is destroyed: everything in it, and its own memory, is refunded.
    pub fn gone(self) {
        let Self { tenant, context } = *ManuallyDrop::new(self);
        tenant.wind_up(context, tenant.contexts.gone(context, &tenant.allocations));
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let estate = self.tenant.contexts.stay(self.context, &self.tenant.allocations);
        self.tenant.wind_up(self.context, estate);
    }
}

/// A size as the driver takes it, in units of 512 bytes: below 1 MiB rounded to 512 bytes, else to 2 MiB. None: beyond 1 TiB.
#[inline]
fn units(size: Bytes) -> Option<u32> {
    const MIB: u64 = 1 << 20;
    let multiple = if size.0 < MIB { UNIT } else { 2 * MIB };
    let units = u32::try_from(size.0.checked_next_multiple_of(multiple)? / UNIT).ok()?;
    (units < MOST_UNITS).then_some(units)
}

#[inline]
pub(crate) fn bytes(units: u32) -> Bytes {
    Bytes(u64::from(units) * UNIT)
}

#[cfg(test)]
mod tests;
