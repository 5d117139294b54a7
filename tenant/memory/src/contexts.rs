//! Contexts: what each is taken to cost, before and after the driver is asked for one.
//!
//! The memory of a context, and what was allocated in it, is refunded in one step when the driver
//! has destroyed it.

pub(crate) mod size;
pub(crate) mod table;

use std::mem::ManuallyDrop;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Column;
use cgpu_shm::lock::Guard;
use cgpu_shm::reason::Reason;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{Bytes, DeviceIndex, SlotIndex};

use self::size::Baseline;
use self::table::{Context, Entered, Released};
use crate::charge;
use crate::exports::Exports;
use crate::handles::ContextId;
use crate::ledger::Denied;
use crate::physical::Physical;
use crate::tables::Tables;

/// The contexts of this process.
#[derive(Clone, Copy, Debug)]
pub struct Contexts<'a> {
    tables: &'a Tables,
}

impl<'a> Contexts<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// The context's GPU and place in the accounting. None: its creation was not seen; see
    /// [`Contexts::adopt`].
    #[inline]
    #[must_use]
    pub fn find(self, context: ContextId) -> Option<Context> {
        self.tables.contexts.find(context.0)
    }

    /// Charges a context of the learned size as implicit memory, before the driver is asked to
    /// create one. `physical_free` reads the GPU's free memory, if it can be read. Not for a
    /// primary context that is active already.
    ///
    /// # Errors
    /// [`Denied`]: it would go over the limit.
    pub fn begin_create(
        self,
        gpu: DeviceIndex,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<PendingContext<'a>, Denied> {
        let first = self.first(gpu);
        // Before the creation is marked: while it is, nothing is confirmed.
        self.tables.ledger.await_confirmation(gpu, self.learned(gpu));
        self.relearn(gpu);
        let charged = self.learned(gpu);
        // Others are looked for before and after the readings: who is found by neither has all of
        // its own before them or all after them.
        let already = self.tables.ledger.creations().begin(gpu);
        if let Err(denied) = charge::charge_or_trim(
            self.tables,
            gpu,
            Column::Implicit,
            charged,
            Reason::ContextOverLimit,
        ) {
            self.tables.ledger.creations().end(gpu);
            return Err(denied);
        }
        // After the charge: where it is short, it makes room first, by trimming pools or waiting
        // for exited processes, and what they give back would be taken off the context's cost.
        let (physical_free, accounted) =
            (physical_free(), self.tables.ledger.accounted(gpu) - charged);
        let concurrent = already.max(self.tables.ledger.creations().count(gpu).saturating_sub(1));
        let baseline = Baseline {
            physical_free,
            accounted,
            charged,
            concurrent,
            is_alone: self.tables.ledger.creations().is_alone(),
        };
        Ok(PendingContext { tables: self.tables, gpu, first, baseline })
    }

    /// First contexts are created one after the other: what two that are created at once cost
    /// cannot be told apart by the GPU's free memory, and all later ones are charged by it. None:
    /// it is known.
    fn first(self, gpu: DeviceIndex) -> Option<Guard<'a>> {
        if self.learned(gpu) > Bytes::ZERO {
            return None;
        }
        // The process before us may have learned it.
        self.tables.ledger.creations().learn(gpu).filter(|_| self.learned(gpu) == Bytes::ZERO)
    }

    /// Whether it is known what a context costs on `gpu`: then one is charged before it is created.
    #[must_use]
    pub fn size_is_known(self, gpu: DeviceIndex) -> bool {
        self.learned(gpu) > Bytes::ZERO
    }

    /// Whether two contexts in turn were seen to cost the same on `gpu`: then there is nothing left
    /// to learn.
    #[must_use]
    pub fn size_is_agreed(self, gpu: DeviceIndex) -> bool {
        self.tables.ledger.region().gpu(gpu).agreed.load(Ordering::Relaxed) != 0
    }

    /// Takes up a context whose creation was not seen (made by a private path of the runtime), with
    /// the learned size as implicit memory, which may exceed the limit. One that is known is left
    /// as it is.
    pub fn adopt(self, context: ContextId, gpu: DeviceIndex) -> Context {
        if let Some(known) = self.tables.contexts.find(context.0) {
            return known;
        }
        self.tables.ledger.count(Reason::UnknownContext);
        let implicit = self.learned(gpu);
        self.tables.ledger.force_charge(gpu, Column::Implicit, implicit);
        self.enter(context, gpu, implicit)
    }

    /// A context has one more use.
    pub fn attached(self, context: ContextId) {
        self.tables.contexts.attach(context.0);
    }

    /// A use of a context is about to end. False: it is the first one, with which the context ends.
    pub fn detaching(self, context: ContextId) -> bool {
        self.tables.contexts.detach(context.0)
    }

    /// A context is about to be destroyed (or the last reference of a primary context released, or
    /// it is reset). None: unknown.
    pub fn begin_destroy(self, context: ContextId) -> Option<PendingContextDestroy<'a>> {
        let context = self.tables.contexts.leave(context.0)?;
        Some(PendingContextDestroy { tables: self.tables, context })
    }

    /// What a context was last seen to cost on the GPU.
    fn learned(self, gpu: DeviceIndex) -> Bytes {
        Bytes(self.tables.ledger.region().gpu(gpu).context.load(Ordering::Relaxed))
    }

    /// Corrects what a context was seen to cost, by what the monitor says of a process that has
    /// exactly one, as charged: a neighbour's that started at the same instant may have been taken
    /// for part of it. Not by one that others may hold memory of: what the monitor finds they have
    /// let go is in that figure, too.
    fn relearn(self, gpu: DeviceIndex) {
        let region = self.tables.ledger.region();
        let learned = &region.gpu(gpu).context;
        let known = learned.load(Ordering::Relaxed);
        for slot in SlotIndex::all().take(region.slots().high_water()) {
            let cell = region.cell(gpu, slot);
            let lends = cell.exported.load(Ordering::Relaxed) > 0;
            if known == 0 || lends || cell.implicit.load(Ordering::Relaxed) != known {
                continue;
            }
            let word = Word(region.slot(slot).state.load(Ordering::Relaxed));
            let growth = region.grant().unaccounted_of(gpu, slot);
            let short = growth.bytes(word, cell.implicit_epoch.load(Ordering::Relaxed));
            // More than booked may as well be code that came since.
            if word.state() == Some(State::Live) && short < 0 {
                learned.store(known.saturating_add_signed(short).max(1), Ordering::Relaxed);
                return;
            }
        }
    }

    /// Enters a context that is charged with `implicit` bytes.
    fn enter(self, context: ContextId, gpu: DeviceIndex, implicit: Bytes) -> Context {
        match self.tables.contexts.enter(context.0, gpu, implicit, &self.tables.allocations) {
            Entered::New(context) => context,
            Entered::Known(context) => {
                self.tables.ledger.refund(gpu, Column::Implicit, implicit);
                context
            }
            Entered::Untold(context) => {
                self.tables.ledger.count(Reason::TooManyContexts);
                context
            }
        }
    }

    fn release(self, context: Context, released: Option<Released>) {
        if let Some(Released { gpu, used, implicit }) = released {
            Physical::new(self.tables).arrays_gone_with(context.owner());
            let used = Exports::new(self.tables).unexported(context.owner(), used);
            self.tables.ledger.refund(gpu, Column::Used, used);
            self.tables.ledger.end(gpu, implicit);
            self.tables.implicit.forget(context);
        }
    }
}

/// A context charged by its learned size while the driver is asked to create it. Dropped without
/// [`PendingContext::created`]: refunded.
#[derive(Debug)]
#[must_use = "a context that is not created is refunded"]
pub struct PendingContext<'a> {
    tables: &'a Tables,
    gpu: DeviceIndex,
    baseline: Baseline,
    /// Held until the size is known.
    first: Option<Guard<'a>>,
}

impl PendingContext<'_> {
    /// The driver created it. `physical_free` is the GPU's free memory read now, if it could be
    /// read: with the one given to [`Contexts::begin_create`] it teaches what a context costs on
    /// this GPU. A context that was known already (a second retain of a primary context) costs
    /// nothing.
    pub fn created(mut self, context: ContextId, physical_free: Option<Bytes>) -> Context {
        let _first = self.first.take();
        let Self { tables, gpu, baseline, .. } = *ManuallyDrop::new(self);
        let (ledger, charged) = (&tables.ledger, baseline.charged);
        if tables.contexts.knows(context.0) {
            let known = Contexts::new(tables).enter(context, gpu, charged);
            ledger.creations().end(gpu);
            return known;
        }
        let concurrent = ledger.creations().count(gpu).saturating_sub(1);
        // Who began without knowing, because the learning process took too long, and sees it known
        // now, takes that.
        let learned = Contexts::new(tables).learned(gpu);
        let (measured, known) = match (charged, learned) {
            (Bytes::ZERO, size) if size > Bytes::ZERO => (None, size),
            _ => (
                Baseline {
                    is_alone: baseline.is_alone && ledger.creations().is_alone(),
                    ..baseline
                }
                .size(physical_free, ledger.accounted(gpu) - charged, concurrent),
                charged,
            ),
        };
        if let Some(size) = measured {
            let record = ledger.region().gpu(gpu);
            record.context.store(size.0, Ordering::Relaxed);
            record.agreed.store(size::sizes_agree(size, charged).into(), Ordering::Relaxed);
        }
        let implicit = measured.unwrap_or(known);
        if implicit > charged {
            ledger.force_charge(gpu, Column::Implicit, implicit - charged);
        } else {
            ledger.refund(gpu, Column::Implicit, charged - implicit);
        }
        let entered = Contexts::new(tables).enter(context, gpu, implicit);
        // Not before the accounting is right: what others then find gone from the GPU, and not
        // there, is theirs.
        ledger.creations().end(gpu);
        entered
    }
}

impl Drop for PendingContext<'_> {
    fn drop(&mut self) {
        // Until then nothing is concluded from what the GPU says.
        self.tables.ledger.refund(self.gpu, Column::Implicit, self.baseline.charged);
        self.tables.ledger.creations().end(self.gpu);
    }
}

/// A context whose destruction the driver is being asked for. Dropped without
/// [`PendingContextDestroy::destroyed`]: it stays.
#[derive(Debug)]
#[must_use = "a leaving context that is dropped stays"]
pub struct PendingContextDestroy<'a> {
    tables: &'a Tables,
    context: Context,
}

impl PendingContextDestroy<'_> {
    /// It is destroyed: everything in it, and its own memory, is refunded.
    pub fn destroyed(self) {
        let Self { tables, context } = *ManuallyDrop::new(self);
        Contexts::new(tables)
            .release(context, tables.contexts.destroyed(context, &tables.allocations));
    }
}

impl Drop for PendingContextDestroy<'_> {
    fn drop(&mut self) {
        let released = self.tables.contexts.stay(self.context, &self.tables.allocations);
        Contexts::new(self.tables).release(self.context, released);
    }
}
