//! Memory that comes with something else than an allocation: code and variables of modules, a
//! larger heap, stack or printf buffer.
//!
//! ```text
//!   begin: charge what is known ---> driver ---> grown: charge the fall of free memory
//!              |                       |
//!              |                       +--- over the limit: undone; denied if the memory returns
//!              +--- does not fit: denied
//! ```
//!
//! The size is rarely known in advance. So it is measured like a context's (`contexts/size.rs`), by
//! the fall of the GPU's free memory less what the container charged meanwhile. If that cannot be
//! told, because of other creations, or allocations of other threads, the charge in advance stands.
//! A module that exceeds the limit is unloaded again; if the memory returns, it was the module's,
//! and the program gets out of memory. What cannot be undone (a library that a look-up loads into
//! a context, code loaded at a first launch) stays charged above the limit, is shown, and blocks
//! new allocations and loads.
//!
//! Memory charged for an object belongs to the context that it was loaded into: it is refunded with
//! the object, or with the context. The monitor's measurement of the process
//! ([`cgpu_shm::unaccounted`]) corrects all of it.

pub(crate) mod table;

use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

pub use self::table::Cause;
use self::table::{Share, gpus_in};
use crate::contexts::size::Baseline;
use crate::contexts::table::Context;
use crate::ledger::Denied;
use crate::measured::Measured;
use crate::tables::{Tables, part};

part!(
    /// The implicit memory of this process.
    Implicit
);

impl<'a> Implicit<'a> {
    /// Records a loaded library, and how much its variables take in each context according to its
    /// image. It is in `context` already, if there is one.
    pub fn library_loaded(self, library: usize, variables: Bytes, context: Option<Context>) {
        self.tables.implicit.libraries.lock().load(library, variables, context);
    }

    /// Refunds an unloaded module, and forgets its functions.
    pub fn module_unloaded(self, module: usize) {
        self.tables.implicit.libraries.lock().forget_functions();
        self.unloaded(Cause::Module(module), None, Bytes::MAX);
    }

    /// Refunds a library that was unloaded from all contexts.
    pub fn library_unloaded(self, library: usize) {
        self.tables.implicit.libraries.lock().unload(library);
        self.unloaded(Cause::Library(library), None, Bytes::MAX);
    }

    /// Begins a call that loads `what`, a driver handle, into `context`, and with it `library`, if
    /// that is known. `physical_free` reads the GPU's free memory, if that is possible. Returns
    /// `None` if it is loaded there already.
    ///
    /// # Errors
    /// [`Denied`] if the library's variables would exceed the limit, or the container exceeds it
    /// already.
    pub fn begin_load(
        self,
        context: Context,
        what: usize,
        library: Option<usize>,
        physical_free: impl Fn() -> Option<Bytes>,
    ) -> Result<Option<PendingLoad<'a>>, Denied> {
        let libraries = self.tables.implicit.libraries.lock();
        if libraries.is_loaded(what, context) {
            return Ok(None);
        }
        let new = library.filter(|library| !libraries.is_loaded(*library, context));
        let known = new.map_or(Bytes::ZERO, |library| libraries.variables(library));
        drop(libraries);
        let gpu = context.gpu();
        let ledger = &self.tables.ledger;
        if ledger.total(gpu) > ledger.limit(gpu) {
            return Err(ledger.deny(gpu, Reason::CodeOverLimit, known));
        }
        let growing = self.begin(context, known, physical_free)?;
        Ok(Some(PendingLoad { growing, what, library }))
    }

    /// Begins something in `context` that takes memory that was not requested: charges the `known`
    /// part. `physical_free` reads the GPU's free memory, if that is possible.
    ///
    /// # Errors
    /// [`Denied`] if the known part would exceed the limit.
    pub fn begin(
        self,
        context: Context,
        known: Bytes,
        physical_free: impl Fn() -> Option<Bytes>,
    ) -> Result<PendingImplicit<'a>, Denied> {
        // Zero bytes are no charge: that would fail without any room, and the size is not known.
        let known = Some(known).filter(|known| *known > Bytes::ZERO);
        let (gpu, reason) = (context.gpu(), Reason::CodeOverLimit);
        let measured = Measured::begin(self.tables, gpu, known, reason, physical_free)?;
        Ok(PendingImplicit { measured, context })
    }

    /// Begins to unload what came with `cause`, until the returned value is dropped. In between the
    /// accounting is higher than the GPU's use; another process must not take the difference for
    /// its own.
    pub fn begin_unload(self, cause: Cause) -> PendingUnload<'a> {
        let gpus = self.tables.implicit.gpus(cause);
        gpus_in(gpus).for_each(|gpu| _ = self.tables.ledger.begin_creation(gpu));
        PendingUnload { tables: self.tables, gpus }
    }

    /// Refunds what came with `cause` and is unloaded: from `context` only, if there is one, and at
    /// most `most` in each context.
    pub fn unloaded(self, cause: Cause, context: Option<Context>, most: Bytes) {
        for Share { context, bytes, .. } in self.tables.implicit.take(cause, context, most) {
            // If the context has ended, it was refunded with that.
            let had = self.tables.contexts.lessen(context, bytes);
            self.tables.ledger.shrink(context.gpu(), had);
        }
    }

    /// Returns how much of `cause` came with a context, whose cost includes it; that is `now` when
    /// first called. Must be called before the first change.
    pub fn came_with(self, context: Context, cause: Cause, now: Bytes) -> Bytes {
        self.tables.implicit.came_with(context, cause, now)
    }
}

/// Something that takes memory that was not requested, while the driver does it. Refunded if it is
/// dropped without [`PendingImplicit::grown`].
#[derive(Debug)]
#[must_use = "what has not grown is refunded"]
pub struct PendingImplicit<'a> {
    measured: Measured<'a>,
    context: Context,
}

impl PendingImplicit<'_> {
    /// Returns how much it has taken, by the GPU's free memory now, which `physical_free` reads.
    /// `None` if that cannot be told.
    #[must_use]
    pub fn growth(&self, physical_free: impl Fn() -> Option<Bytes>) -> Option<Bytes> {
        self.measured.measure(Baseline::growth, physical_free)
    }

    /// Returns whether it has exceeded the container's limit by this growth.
    #[must_use]
    pub fn exceeds(&self, growth: Option<Bytes>) -> bool {
        let (ledger, gpu) = (&self.measured.tables.ledger, self.context.gpu());
        let more = growth.map_or(Bytes::ZERO, |growth| growth - self.measured.charged());
        more > Bytes::ZERO && ledger.total(gpu) + more > ledger.limit(gpu)
    }

    /// Returns whether at least half of a growth has returned after it was undone, by the GPU's
    /// free memory before and after. If not, another container took it.
    #[must_use]
    pub fn was_returned(
        growth: Option<Bytes>,
        before: Option<Bytes>,
        after: Option<Bytes>,
    ) -> bool {
        let back = before.zip(after).map_or(Bytes::ZERO, |(before, after)| after - before);
        back.0 >= growth.unwrap_or_default().0 / 2
    }

    /// Counts the refusal.
    pub fn denied(self) {
        self.measured.tables.ledger.count(Reason::CodeOverLimit);
    }

    /// Charges its growth to `cause`. `None`: what was known in advance stands.
    pub fn grown(self, cause: Cause, growth: Option<Bytes>) {
        let (table, context) = (&self.measured.tables.implicit, self.context);
        table.add(cause, context, self.commit(growth));
    }

    fn commit(self, growth: Option<Bytes>) -> Bytes {
        let Self { mut measured, context } = self;
        let bytes = growth.unwrap_or(measured.charged());
        measured.adjust(bytes);
        let tables = measured.tables;
        measured.finish();
        if tables.contexts.enlarge(context, bytes) {
            return bytes;
        }
        tables.ledger.refund(context.gpu(), Column::Implicit, bytes);
        Bytes::ZERO
    }
}

/// Something that the driver is about to unload: until it is dropped, processes of the container
/// measure nothing. Dropped after the refund, or if nothing was unloaded.
#[derive(Debug)]
#[must_use = "it is about the time until it is dropped"]
pub struct PendingUnload<'a> {
    tables: &'a Tables,
    /// A bit each.
    gpus: u32,
}

impl Drop for PendingUnload<'_> {
    fn drop(&mut self) {
        gpus_in(self.gpus).for_each(|gpu| self.tables.ledger.end_creation(gpu));
    }
}

/// Something of a library that the driver is about to load into a context. Refunded if it is
/// dropped without [`PendingLoad::loaded`].
#[derive(Debug)]
#[must_use = "what has not been loaded is refunded"]
pub struct PendingLoad<'a> {
    growing: PendingImplicit<'a>,
    what: usize,
    library: Option<usize>,
}

impl PendingLoad<'_> {
    /// Records that it is loaded. `physical_free` reads the GPU's free memory, if that is possible.
    pub fn loaded(self, physical_free: impl Fn() -> Option<Bytes>) {
        let Self { growing, what, library } = self;
        let (tables, context) = (growing.measured.tables, growing.context);
        let known = growing.measured.charged();
        let growth = growing.growth(physical_free);
        let growth = growing.commit(growth);
        if let Some(library) = library {
            // A kernel comes with code, which may stay with the context when the library is
            // unloaded.
            let its = if what == library { growth } else { growth.min(known) };
            tables.implicit.add(Cause::Library(library), context, its);
        }
        let mut libraries = tables.implicit.libraries.lock();
        let both = [Some(what), library].into_iter().flatten();
        both.for_each(|what| libraries.add(what, context, library));
    }
}

#[cfg(test)]
mod tests;
