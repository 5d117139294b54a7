//! Memory that comes with something else than an allocation: code and variables of modules, a
//! larger heap, stack or printf buffer.
//!
//! ```text
//!   growing: what is known beforehand is charged ---> the driver does it ---> grown: what the GPU's free memory shows is booked
//!                 |                                          |
//!                 +--- does not fit: refused                 +--- past the limit, and undone, seen to come back: refused
//! ```
//!
//! How much it is can rarely be told before. So it is measured as a context is
//! (`contexts/size.rs`), by the fall of the GPU's free memory less what the container booked
//! meanwhile; where that cannot be told, because others are at it too, what was charged
//! beforehand stands. A module that turns out to go past the limit is unloaded again; only if the
//! memory then comes back was it the module's, and the program is told that memory is out. What
//! cannot be undone (a library that a look-up brings into a context, code that comes with a first
//! launch) exceeds, is shown, and blocks new allocations, and what else would be brought.
//!
//! What is booked for an object belongs to the context that it was loaded into: it goes back with
//! the object, or with the context. The monitor's figure for the process ([`cgpu_shm::growth`])
//! corrects all of it.

pub(crate) mod table;

use std::mem::ManuallyDrop;

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

pub use self::table::Cause;
use self::table::{Share, gpus_in};
use crate::charge;
use crate::contexts::size::Baseline;
use crate::contexts::table::Context;
use crate::ledger::Denied;
use crate::tables::Tables;

/// The implicit memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Implicit<'a> {
    tables: &'a Tables,
}

impl<'a> Implicit<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// A library was loaded whose variables take so much in each context, as far as its image says;
    /// it is in `context` already, if there is one.
    pub fn library_loaded(self, library: usize, variables: Bytes, context: Option<Context>) {
        self.tables.implicit.libraries.lock().load(library, variables, context);
    }

    /// A module is gone, with its functions.
    pub fn module_unloaded(self, module: usize) {
        self.tables.implicit.libraries.lock().forget_functions();
        self.unloaded(Cause::Module(module), None, Bytes::MAX);
    }

    /// A library is gone from all contexts.
    pub fn library_unloaded(self, library: usize) {
        self.tables.implicit.libraries.lock().unload(library);
        self.unloaded(Cause::Library(library), None, Bytes::MAX);
    }

    /// A call is about to be made that brings `what`, a handle of the driver, into `context`, and
    /// with it `library`, if that is known. `physical_free` reads the GPU's free memory, if it can
    /// be read. `None`: it has been brought there before.
    ///
    /// # Errors
    /// [`Denied`]: the library's variables would go over the limit, or the container is over it already.
    pub fn begin_load(
        self,
        context: Context,
        what: usize,
        library: Option<usize>,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<Option<PendingLoad<'a>>, Denied> {
        let libraries = self.tables.implicit.libraries.lock();
        if libraries.is_brought(what, context) {
            return Ok(None);
        }
        let new = library.filter(|library| !libraries.is_brought(*library, context));
        let known = new.map_or(Bytes::ZERO, |library| libraries.variables(library));
        drop(libraries);
        let gpu = context.gpu();
        let (used, limit) = (self.tables.ledger.total(gpu), self.tables.ledger.limit(gpu));
        if used > limit {
            let reason = Reason::CodeOverLimit;
            self.tables.ledger.count(reason);
            return Err(Denied { reason, wanted: known, used, limit });
        }
        let growing = self.begin(context, known, physical_free)?;
        Ok(Some(PendingLoad { growing, what, library }))
    }

    /// Something is about to be done in `context` that takes memory that was not requested: charges
    /// `known` of it. `physical_free` reads the GPU's free memory, if it can be read.
    ///
    /// # Errors
    /// [`Denied`]: what is known would go over the limit.
    pub fn begin(
        self,
        context: Context,
        known: Bytes,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<PendingImplicit<'a>, Denied> {
        let gpu = context.gpu();
        let already = self.tables.ledger.creations().begin(gpu);
        // Nothing fits also where there is no room at all: what comes is not known yet.
        if known > Bytes::ZERO
            && let Err(denied) = charge::charge_or_trim(
                self.tables,
                gpu,
                Column::Implicit,
                known,
                Reason::CodeOverLimit,
            )
        {
            self.tables.ledger.creations().end(gpu);
            return Err(denied);
        }
        let (physical_free, accounted) =
            (physical_free(), self.tables.ledger.accounted(gpu) - known);
        let concurrent = already.max(self.tables.ledger.creations().count(gpu).saturating_sub(1));
        Ok(PendingImplicit {
            tables: self.tables,
            context,
            baseline: Baseline {
                physical_free,
                accounted,
                charged: known,
                concurrent,
                is_alone: self.tables.ledger.creations().is_alone(),
            },
        })
    }

    /// What came with `cause` is about to go from the GPU, and then from the accounting. In between
    /// these say too much: a process that measured then would take it for something that was
    /// charged and never came, and let others have it.
    pub fn begin_unload(self, cause: Cause) -> PendingUnload<'a> {
        let gpus = self.tables.implicit.gpus(cause);
        gpus_in(gpus).for_each(|gpu| _ = self.tables.ledger.creations().begin(gpu));
        PendingUnload { tables: self.tables, gpus }
    }

    /// What came with `cause` is gone from the GPU: from `context`, if there is one, else from all;
    /// at most so much from each.
    pub fn unloaded(self, cause: Cause, context: Option<Context>, most: Bytes) {
        for Share { context, bytes, .. } in self.tables.implicit.take(cause, context, most) {
            // Of a context that has ended it went with that.
            let had = self.tables.contexts.lessen(context, bytes);
            self.tables.ledger.shrink(context.gpu(), had);
        }
    }

    /// What of `cause` came with a context, which is part of what that costs, if it has `now`. To
    /// be asked before it is first changed.
    pub fn came_with(self, context: Context, cause: Cause, now: Bytes) -> Bytes {
        self.tables.implicit.came_with(context, cause, now)
    }
}

/// Something that takes memory that was not requested, while the driver is asked to do it. Dropped
/// without [`PendingImplicit::grown`]: refunded.
#[derive(Debug)]
#[must_use = "what has not grown is refunded"]
pub struct PendingImplicit<'a> {
    tables: &'a Tables,
    context: Context,
    baseline: Baseline,
}

impl PendingImplicit<'_> {
    /// Whether it has taken the container past its limit, by the GPU's free memory now.
    #[must_use]
    pub fn exceeds(&self, physical_free: Option<Bytes>) -> bool {
        let ledger = &self.tables.ledger;
        let gpu = self.context.gpu();
        let more = self
            .measure(physical_free)
            .map_or(Bytes::ZERO, |growth| growth - self.baseline.charged);
        more > Bytes::ZERO && ledger.total(gpu) + more > ledger.limit(gpu)
    }

    /// It has been undone: whether what it had taken, by the GPU's free memory before and after
    /// that, has come back, or at least half of it. Else that was another container's.
    #[must_use]
    pub fn was_returned(&self, before: Option<Bytes>, after: Option<Bytes>) -> bool {
        let growth = self.measure(before).unwrap_or(Bytes::ZERO);
        let back = before.zip(after).map_or(Bytes::ZERO, |(before, after)| after - before);
        back.0 >= growth.0 / 2
    }

    /// Counts that it was refused because it would have taken the container past its limit.
    pub fn denied(self) {
        self.tables.ledger.count(Reason::CodeOverLimit);
    }

    /// The driver did it. `physical_free` is the GPU's free memory read now; none: what was known
    /// beforehand stands.
    pub fn grown(self, cause: Cause, physical_free: Option<Bytes>) {
        let (table, context) = (&self.tables.implicit, self.context);
        table.add(cause, context, self.commit(physical_free));
    }

    /// Charges what has come: how much.
    fn commit(self, physical_free: Option<Bytes>) -> Bytes {
        let growth = self.measure(physical_free);
        let Self { tables, context, baseline } = *ManuallyDrop::new(self);
        let (ledger, gpu) = (&tables.ledger, context.gpu());
        let (charged, bytes) = (baseline.charged, growth.unwrap_or(baseline.charged));
        if bytes > charged {
            ledger.force_charge(gpu, Column::Implicit, bytes - charged);
        } else {
            ledger.refund(gpu, Column::Implicit, charged - bytes);
        }
        ledger.creations().end(gpu);
        if tables.contexts.enlarge(context, bytes) {
            return bytes;
        }
        ledger.refund(gpu, Column::Implicit, bytes);
        Bytes::ZERO
    }

    /// What has come; none: it cannot be told.
    fn measure(&self, physical_free: Option<Bytes>) -> Option<Bytes> {
        let (ledger, gpu) = (&self.tables.ledger, self.context.gpu());
        let concurrent = ledger.creations().count(gpu).saturating_sub(1);
        let baseline = Baseline {
            is_alone: self.baseline.is_alone && ledger.creations().is_alone(),
            ..self.baseline
        };
        baseline.growth(physical_free, ledger.accounted(gpu) - baseline.charged, concurrent)
    }
}

impl Drop for PendingImplicit<'_> {
    fn drop(&mut self) {
        let (ledger, gpu) = (&self.tables.ledger, self.context.gpu());
        ledger.refund(gpu, Column::Implicit, self.baseline.charged);
        ledger.creations().end(gpu);
    }
}

/// Something that is about to go from the GPU: while this is there, nothing is concluded from what
/// the GPU says. To be dropped when it has gone from the accounting, or has not gone.
#[derive(Debug)]
#[must_use = "it is about the time until it is dropped"]
pub struct PendingUnload<'a> {
    tables: &'a Tables,
    /// A bit each.
    gpus: u32,
}

impl Drop for PendingUnload<'_> {
    fn drop(&mut self) {
        gpus_in(self.gpus).for_each(|gpu| self.tables.ledger.creations().end(gpu));
    }
}

/// Something of a library that the driver is asked for in a context. Dropped without
/// [`PendingLoad::brought`]: it was not brought.
#[derive(Debug)]
#[must_use = "what has not been brought is refunded"]
pub struct PendingLoad<'a> {
    growing: PendingImplicit<'a>,
    what: usize,
    library: Option<usize>,
}

impl PendingLoad<'_> {
    /// It is there. `physical_free` is the GPU's free memory read now.
    pub fn brought(self, physical_free: Option<Bytes>) {
        let Self { growing, what, library } = self;
        let (tables, context, known) = (growing.tables, growing.context, growing.baseline.charged);
        let growth = growing.commit(physical_free);
        if let Some(library) = library {
            // With a kernel comes code, which may stay with the context when the library goes.
            let its = if what == library { growth } else { growth.min(known) };
            tables.implicit.add(Cause::Library(library), context, its);
        }
        let mut libraries = tables.implicit.libraries.lock();
        let both = [Some(what), library].into_iter().flatten();
        both.for_each(|what| libraries.bring(what, context, library));
    }
}

#[cfg(test)]
mod tests;
