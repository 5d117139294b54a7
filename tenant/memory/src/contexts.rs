//! Contexts: how much each is charged, before and after the driver creates it.
//!
//! When the driver has destroyed a context, its memory and what was allocated in it are refunded in
//! one step.

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
use crate::exports::Exports;
use crate::handles::ContextId;
use crate::ledger::Denied;
use crate::measured::Measured;
use crate::physical::Physical;
use crate::tables::{Tables, part};

part!(
    /// The contexts of this process.
    Contexts
);

impl<'a> Contexts<'a> {
    /// Returns the accounted context of a handle. `None` if its creation was not seen; see
    /// [`Contexts::adopt`].
    #[inline]
    #[must_use]
    pub fn find(self, context: ContextId) -> Option<Context> {
        self.tables.contexts.find(context.0)
    }

    /// Charges a context of the learned size as implicit memory, before the driver creates one.
    /// `physical_free` reads the GPU's free memory, if that is possible. Not for a primary context
    /// that is active already.
    ///
    /// # Errors
    /// [`Denied`] if it would exceed the limit.
    pub fn begin_create(
        self,
        gpu: DeviceIndex,
        physical_free: impl Fn() -> Option<Bytes>,
    ) -> Result<PendingContext<'a>, Denied> {
        let first = self.first(gpu);
        // Before the creation begins: nothing is confirmed while one is in progress.
        self.tables.ledger.await_confirmation(gpu, self.learned(gpu));
        self.relearn(gpu);
        let (known, reason) = (Some(self.learned(gpu)), Reason::ContextOverLimit);
        let measured = Measured::begin(self.tables, gpu, known, reason, physical_free)?;
        Ok(PendingContext { measured, gpu, first })
    }

    /// Serializes first contexts, until the size of one is known: free memory cannot tell the costs
    /// of two that are created at once, and all later ones are charged by it. Returns `None` if the
    /// size is known.
    fn first(self, gpu: DeviceIndex) -> Option<Guard<'a>> {
        if self.learned(gpu) > Bytes::ZERO {
            return None;
        }
        // The former owner of the lock may have learned it.
        self.tables.ledger.lock_learning(gpu).filter(|_| self.learned(gpu) == Bytes::ZERO)
    }

    /// Returns whether the size of a context on `gpu` is known: one is then charged before it is
    /// created.
    #[must_use]
    pub fn size_is_known(self, gpu: DeviceIndex) -> bool {
        self.learned(gpu) > Bytes::ZERO
    }

    /// Returns whether two contexts in succession had the same size on `gpu`: measuring is then
    /// over.
    #[must_use]
    pub fn size_is_agreed(self, gpu: DeviceIndex) -> bool {
        self.tables.ledger.region().gpu(gpu).agreed.load(Ordering::Relaxed) != 0
    }

    /// Accounts a context whose creation was not seen (the runtime has private entry points).
    /// Charges the learned size as implicit memory, even above the limit. A known context is left
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

    /// Adds a use of a context.
    pub fn attached(self, context: ContextId) {
        self.tables.contexts.attach(context.0);
    }

    /// Ends a use of a context. Returns `false` if it is the last one, with which the context ends.
    pub fn detaching(self, context: ContextId) -> bool {
        self.tables.contexts.detach(context.0)
    }

    /// Begins the destruction of a context: `cuCtxDestroy`, the last release of a primary context,
    /// or its reset. `None` if it is unknown.
    pub fn begin_destroy(self, context: ContextId) -> Option<PendingContextDestroy<'a>> {
        let context = self.tables.contexts.leave(context.0)?;
        self.tables.ledger.begin_call();
        Some(PendingContextDestroy { tables: self.tables, context })
    }

    fn learned(self, gpu: DeviceIndex) -> Bytes {
        Bytes(self.tables.ledger.region().gpu(gpu).context.load(Ordering::Relaxed))
    }

    /// Corrects the learned size, which may include what a neighbour took at the same instant. The
    /// monitor's measurement of a process with exactly one context, charged at that size, shows the
    /// difference. Processes with exported memory are skipped: their measurement also has what
    /// importers released.
    fn relearn(self, gpu: DeviceIndex) {
        let region = self.tables.ledger.region();
        let learned = &region.gpu(gpu).context;
        let known = learned.load(Ordering::Relaxed);
        for slot in SlotIndex::all().take(region.slots().high_water()) {
            let cell = region.cell(gpu, slot);
            let is_exporter = cell.exported.load(Ordering::Relaxed) > 0;
            if known == 0 || is_exporter || cell.implicit.load(Ordering::Relaxed) != known {
                continue;
            }
            let word = Word(region.slot(slot).state.load(Ordering::Relaxed));
            let growth = region.grant().unaccounted_of(gpu, slot);
            let short = growth.bytes(word, cell.implicit_epoch.load(Ordering::Relaxed));
            // More than was charged may be code that was loaded since.
            if word.state() == Some(State::Live) && short < 0 {
                learned.store(known.saturating_add_signed(short).max(1), Ordering::Relaxed);
                return;
            }
        }
    }

    fn enter(self, context: ContextId, gpu: DeviceIndex, implicit: Bytes) -> Context {
        match self.tables.contexts.enter(context.0, gpu, implicit, &self.tables.allocations) {
            Entered::New(context) => context,
            Entered::Known(context) => {
                self.tables.ledger.refund(gpu, Column::Implicit, implicit);
                context
            }
            Entered::Unrecorded(context) => {
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

/// A context charged by its learned size while the driver creates it. Refunded if it is dropped
/// without [`PendingContext::created`].
#[derive(Debug)]
#[must_use = "a context that is not created is refunded"]
pub struct PendingContext<'a> {
    measured: Measured<'a>,
    gpu: DeviceIndex,
    /// Held until the size is known.
    first: Option<Guard<'a>>,
}

impl PendingContext<'_> {
    /// Commits the context that the driver created. `physical_free` reads the GPU's free memory, if
    /// that is possible; with the reading of [`Contexts::begin_create`] it gives the size of a
    /// context on this GPU. A context that is known already (a second retain of a primary context)
    /// costs nothing.
    pub fn created(self, context: ContextId, physical_free: impl Fn() -> Option<Bytes>) -> Context {
        let Self { mut measured, gpu, first: _first } = self;
        let (tables, charged) = (measured.tables, measured.charged());
        let contexts = Contexts::new(tables);
        if !tables.contexts.knows(context.0) {
            let learned = contexts.learned(gpu);
            if charged == Bytes::ZERO && learned > Bytes::ZERO {
                // The wait for the learning process timed out, and the size is known now.
                measured.adjust(learned);
            } else if let Some(size) = measured.measure(Baseline::size, physical_free) {
                let record = tables.ledger.region().gpu(gpu);
                record.context.store(size.0, Ordering::Relaxed);
                record.agreed.store(size::sizes_agree(size, charged).into(), Ordering::Relaxed);
                measured.adjust(size);
            }
        }
        let entered = contexts.enter(context, gpu, measured.charged());
        measured.finish();
        entered
    }
}

/// A context that the driver is about to destroy. Unchanged if it is dropped without
/// [`PendingContextDestroy::destroyed`].
#[derive(Debug)]
#[must_use = "a leaving context that is dropped stays"]
pub struct PendingContextDestroy<'a> {
    tables: &'a Tables,
    context: Context,
}

impl PendingContextDestroy<'_> {
    /// Refunds the context and everything in it.
    pub fn destroyed(self) {
        let Self { tables, context } = *ManuallyDrop::new(self);
        Contexts::new(tables)
            .release(context, tables.contexts.destroyed(context, &tables.allocations));
        tables.ledger.end_call();
    }
}

impl Drop for PendingContextDestroy<'_> {
    fn drop(&mut self) {
        let released = self.tables.contexts.stay(self.context, &self.tables.allocations);
        Contexts::new(self.tables).release(self.context, released);
        self.tables.ledger.end_call();
    }
}
