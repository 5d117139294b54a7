//! Memory that comes with something else than an allocation: code and variables of modules, a larger heap, stack or printf buffer.
//!
//! ```text
//!   growing: what is known beforehand is charged ---> the driver does it ---> grown: what the GPU's free memory shows is booked
//!                 |                                          |
//!                 +--- does not fit: refused                 +--- past the limit, and undone, seen to come back: refused
//! ```
//!
//! How much it is can rarely be told before. So it is measured as a context is (`contexts/size.rs`), by the fall of the GPU's free memory less
//! what the container booked meanwhile; where that is anybody's guess, because others are at it too, what was charged beforehand stands.
//! A module that turns out to go past the limit is unloaded again; only if the memory then comes back was it the module's, and the program
//! is told that memory is out. What cannot be undone (a library that a look-up brings into a context, code that comes with a first launch)
//! exceeds, is shown, and blocks new allocations, and what else would be brought.
//!
//! What is booked for an object belongs to the context that it was loaded into: it goes back with the object, or with the context.
//! The monitor's figure for the process ([`cgpu_shm::growth`]) corrects all of it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::mem::ManuallyDrop;

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Column;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu, SlotIndex};

use crate::contexts::{Before, Context};
use crate::ledger::Denied;
use crate::{Reason, Tenant};

/// What implicit memory came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A module, by its handle (`CUmodule`).
    Module(usize),
    /// A library, by its handle (`CUlibrary`).
    Library(usize),
    /// A limit of the context (`CUlimit`).
    Limit(u32),
    /// A green context, by its handle (`CUgreenCtx`).
    Green(usize),
    /// Code that stays with its context.
    Code,
}

/// What is booked for objects that can give it back, and what came with their contexts before.
#[derive(Debug)]
pub(crate) struct Causes {
    shares: Spin<Vec<Share>>,
    came: Spin<Vec<Share>>,
    libraries: Spin<Libraries>,
}

#[derive(Clone, Copy, Debug)]
struct Share {
    cause: Cause,
    context: Context,
    bytes: Bytes,
}

impl Causes {
    pub(crate) fn new() -> Self {
        Self {
            shares: Spin::new(Vec::new()),
            came: Spin::new(Vec::new()),
            libraries: Spin::new(Libraries::default()),
        }
    }

    /// What of a cause came with a context: what it was when it was first asked for. Without host memory to note it, that is now.
    fn came_with(&self, context: Context, cause: Cause, now: Bytes) -> Bytes {
        let mut came = self.came.lock();
        if let Some(share) = came.iter().find(|share| share.cause == cause && share.context == context) {
            return share.bytes;
        }
        if came.try_reserve(1).is_ok() {
            came.push(Share { cause, context, bytes: now });
        }
        now
    }

    /// Notes more for an object. Without host memory for it, it stays with the context.
    fn add(&self, cause: Cause, context: Context, bytes: Bytes) {
        if cause == Cause::Code || bytes == Bytes::ZERO {
            return;
        }
        let mut shares = self.shares.lock();
        if let Some(share) = shares.iter_mut().find(|share| share.cause == cause && share.context == context)
        {
            share.bytes = share.bytes + bytes;
        } else if shares.try_reserve(1).is_ok() {
            shares.push(Share { cause, context, bytes });
        }
    }

    /// An object's share in each context, which is taken off; of `context` only, if there is one, and `most` of it.
    fn take(&self, cause: Cause, context: Option<Context>, most: Bytes) -> Vec<Share> {
        let mut taken = Vec::new();
        self.shares.lock().retain_mut(|share| {
            if share.cause != cause || context.is_some_and(|context| context != share.context) {
                return true;
            }
            let bytes = share.bytes.min(most);
            if taken.try_reserve(1).is_ok() {
                taken.push(Share { bytes, ..*share });
                share.bytes = share.bytes - bytes;
            }
            share.bytes > Bytes::ZERO
        });
        taken
    }

    /// The GPUs on which an object has a share, a bit each.
    fn gpus(&self, cause: Cause) -> u32 {
        let shares = self.shares.lock();
        let its = shares.iter().filter(|share| share.cause == cause);
        its.fold(0, |gpus, share| gpus | bit(share.context.gpu()))
    }

    /// A context has ended, and all that was in it.
    pub(crate) fn forget(&self, context: Context) {
        self.shares.lock().retain(|share| share.context != context);
        self.came.lock().retain(|share| share.context != context);
        self.libraries.lock().brought.retain(|(_, other), _| *other != context);
    }
}

/// The keys are the driver's own handles: nobody chooses them to collide, and random seeds would need a symbol
/// (`getrandom`) that older C libraries lack.
type Unseeded = BuildHasherDefault<DefaultHasher>;

/// What is known of libraries, their kernels and functions, by the driver's handles. Without host memory to note something it is not known: then
/// a library's size is measured only, and a look-up is measured again.
#[derive(Debug, Default)]
struct Libraries {
    /// What the variables of each take in a context, as its image says.
    variables: Vec<(usize, Bytes)>,
    /// What is in which context, and of which library it is, if that is known. A framework looks up thousands.
    brought: HashMap<(usize, Context), Option<usize>, Unseeded>,
}

impl Libraries {
    fn is_brought(&self, what: usize, context: Context) -> bool {
        self.brought.contains_key(&(what, context))
    }

    fn bring(&mut self, what: usize, context: Context, library: Option<usize>) {
        if self.brought.try_reserve(1).is_ok() {
            self.brought.entry((what, context)).or_insert(library);
        }
    }

    /// A library is gone, and what is of it; its handles may be others' next. So may be those of which nobody knows what they are of.
    fn unload(&mut self, library: usize) {
        self.variables.retain(|(handle, _)| *handle != library);
        self.brought.retain(|_, its| its.is_some_and(|its| its != library));
    }

    /// A module is gone, and its functions, of which nobody knows which they are: their handles may be others' next.
    fn forget_functions(&mut self) {
        self.brought.retain(|_, library| library.is_some());
    }

    fn variables(&self, library: usize) -> Bytes {
        let of_it = self.variables.iter().find(|(handle, _)| *handle == library);
        of_it.map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }
}

impl Tenant {
    /// A library was loaded whose variables take so much in each context, as far as its image says; it is in `context` already, if there is one.
    pub fn library_loaded(&self, library: usize, variables: Bytes, context: Option<Context>) {
        let mut libraries = self.causes.libraries.lock();
        if let Some(context) = context {
            libraries.bring(library, context, Some(library));
        }
        if variables > Bytes::ZERO && libraries.variables.try_reserve(1).is_ok() {
            libraries.variables.push((library, variables));
        }
    }

    /// A module is gone, with its functions.
    pub fn module_unloaded(&self, module: usize) {
        self.causes.libraries.lock().forget_functions();
        self.shrunk(Cause::Module(module), None, Bytes::MAX);
    }

    /// A library is gone from all contexts.
    pub fn library_unloaded(&self, library: usize) {
        self.causes.libraries.lock().unload(library);
        self.shrunk(Cause::Library(library), None, Bytes::MAX);
    }

    /// A call is about to be made that brings `what`, a handle of the driver, into `context`, and with it `library`, if that is known.
    /// `physical_free` reads the GPU's free memory, if it can be read. `None`: it has been brought there before.
    ///
    /// # Errors
    /// [`Denied`]: the library's variables would go over the limit, or the container is over it already.
    pub fn bringing(
        &self,
        context: Context,
        what: usize,
        library: Option<usize>,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<Option<Bringing<'_>>, Denied> {
        let libraries = self.causes.libraries.lock();
        if libraries.is_brought(what, context) {
            return Ok(None);
        }
        let new = library.filter(|library| !libraries.is_brought(*library, context));
        let known = new.map_or(Bytes::ZERO, |library| libraries.variables(library));
        drop(libraries);
        let gpu = context.gpu();
        let (used, limit) = (self.ledger.total(gpu), self.ledger.limit(gpu));
        if used > limit {
            let reason = Reason::CodeOverLimit;
            self.count(reason);
            return Err(Denied { reason, wanted: known, used, limit });
        }
        let growing = self.growing(context, known, physical_free)?;
        Ok(Some(Bringing { growing, what, library }))
    }

    /// Something is about to be done in `context` that takes memory nobody asked for: charges `known` of it. `physical_free` reads the GPU's
    /// free memory, if it can be read.
    ///
    /// # Errors
    /// [`Denied`]: what is known would go over the limit.
    pub fn growing(
        &self,
        context: Context,
        known: Bytes,
        physical_free: impl FnOnce() -> Option<Bytes>,
    ) -> Result<Growing<'_>, Denied> {
        let gpu = context.gpu();
        let already = self.ledger.creation_begins(gpu);
        // Nothing fits also where there is no room at all: what comes is not known yet.
        if known > Bytes::ZERO
            && let Err(denied) = self.hold(gpu, Column::Implicit, known, Reason::CodeOverLimit)
        {
            self.ledger.creation_ends(gpu);
            return Err(denied);
        }
        let (physical_free, booked) = (physical_free(), self.ledger.booked(gpu) - known);
        let beside = already.max(self.ledger.creations(gpu).saturating_sub(1));
        Ok(Growing {
            tenant: self,
            context,
            before: Before { physical_free, booked, charged: known, beside, alone: self.ledger.is_alone() },
        })
    }

    /// What came with `cause` is about to go from the GPU, and then from the books. In between these say too much: whoever measured then would
    /// take it for something that was charged and never came, and let others have it.
    pub fn shrinking(&self, cause: Cause) -> Shrinking<'_> {
        let gpus = self.causes.gpus(cause);
        gpus_in(gpus).for_each(|gpu| _ = self.ledger.creation_begins(gpu));
        Shrinking { tenant: self, gpus }
    }

    /// What came with `cause` is gone from the GPU: from `context`, if there is one, else from all; at most so much from each.
    pub fn shrunk(&self, cause: Cause, context: Option<Context>, most: Bytes) {
        for Share { context, bytes, .. } in self.causes.take(cause, context, most) {
            // Of a context that has ended it went with that.
            let had = self.contexts.lessen(context, bytes);
            self.ledger.shrink(context.gpu(), had);
        }
    }

    /// What of `cause` came with a context, which is part of what that costs, if it has `now`. To be asked before it is first changed.
    pub fn came_with(&self, context: Context, cause: Cause, now: Bytes) -> Bytes {
        self.causes.came_with(context, cause, now)
    }

    /// Corrects what a context was seen to cost, by what the monitor says of a process that has exactly one, as charged: a neighbour's that
    /// started at the same instant may have been taken for part of it. Not by one that others may hold memory of: what the monitor finds they
    /// have let go is in that figure, too.
    pub(crate) fn relearn(&self, gpu: Gpu) {
        let region = self.ledger.region();
        let learned = &region.gpu(gpu).context;
        let known = learned.load(Ordering::Relaxed);
        for slot in SlotIndex::all().take(region.slots().high_water()) {
            let cell = region.cell(gpu, slot);
            let lends = cell.exported.load(Ordering::Relaxed) > 0;
            if known == 0 || lends || cell.implicit.load(Ordering::Relaxed) != known {
                continue;
            }
            let word = Word(region.slot(slot).state.load(Ordering::Relaxed));
            let growth = region.granted().growth_of(gpu, slot);
            let short = growth.bytes(word, cell.ended.load(Ordering::Relaxed));
            // More than booked may as well be code that came since.
            if word.state() == Some(State::Live) && short < 0 {
                learned.store(known.saturating_add_signed(short).max(1), Ordering::Relaxed);
                return;
            }
        }
    }
}

/// Something that takes memory nobody asked for, while the driver is asked to do it. Dropped without [`Growing::grown`]: refunded.
#[derive(Debug)]
#[must_use = "what has not grown is refunded"]
pub struct Growing<'a> {
    tenant: &'a Tenant,
    context: Context,
    before: Before,
}

impl Growing<'_> {
    /// Whether it has taken the container past its limit, by the GPU's free memory now.
    #[must_use]
    pub fn exceeds(&self, physical_free: Option<Bytes>) -> bool {
        let ledger = &self.tenant.ledger;
        let gpu = self.context.gpu();
        let more = self.measure(physical_free).map_or(Bytes::ZERO, |came| came - self.before.charged);
        more > Bytes::ZERO && ledger.total(gpu) + more > ledger.limit(gpu)
    }

    /// It has been undone: whether what it had taken, by the GPU's free memory before and after that, has come back, or at least half of
    /// it. Else that was somebody else's.
    #[must_use]
    pub fn came_back(&self, before: Option<Bytes>, after: Option<Bytes>) -> bool {
        let came = self.measure(before).unwrap_or(Bytes::ZERO);
        let back = before.zip(after).map_or(Bytes::ZERO, |(before, after)| after - before);
        back.0 >= came.0 / 2
    }

    /// Counts that it was refused because it would have taken the container past its limit.
    pub fn denied(self) {
        self.tenant.count(Reason::CodeOverLimit);
    }

    /// The driver did it. `physical_free` is the GPU's free memory read now; none: what was known beforehand stands.
    pub fn grown(self, cause: Cause, physical_free: Option<Bytes>) {
        let (causes, context) = (&self.tenant.causes, self.context);
        causes.add(cause, context, self.booked(physical_free));
    }

    /// Books what has come: how much.
    fn booked(self, physical_free: Option<Bytes>) -> Bytes {
        let came = self.measure(physical_free);
        let Self { tenant, context, before } = *ManuallyDrop::new(self);
        let (ledger, gpu) = (&tenant.ledger, context.gpu());
        let (charged, bytes) = (before.charged, came.unwrap_or(before.charged));
        if bytes > charged {
            ledger.book(gpu, Column::Implicit, bytes - charged);
        } else {
            ledger.refund(gpu, Column::Implicit, charged - bytes);
        }
        ledger.creation_ends(gpu);
        if tenant.contexts.enlarge(context, bytes) {
            return bytes;
        }
        ledger.refund(gpu, Column::Implicit, bytes);
        Bytes::ZERO
    }

    /// What has come; none: it cannot be told.
    fn measure(&self, physical_free: Option<Bytes>) -> Option<Bytes> {
        let (ledger, gpu) = (&self.tenant.ledger, self.context.gpu());
        let beside = ledger.creations(gpu).saturating_sub(1);
        let before = Before { alone: self.before.alone && ledger.is_alone(), ..self.before };
        before.came(physical_free, ledger.booked(gpu) - before.charged, beside)
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        let (ledger, gpu) = (&self.tenant.ledger, self.context.gpu());
        ledger.refund(gpu, Column::Implicit, self.before.charged);
        ledger.creation_ends(gpu);
    }
}

fn bit(gpu: Gpu) -> u32 {
    1 << gpu.get()
}

fn gpus_in(bits: u32) -> impl Iterator<Item = Gpu> {
    Gpu::all().filter(move |gpu| bits & bit(*gpu) != 0)
}

/// Something that is about to go from the GPU: while this is there, nothing is concluded from what the GPU says. To be dropped when it has
/// gone from the books, or has not gone.
#[derive(Debug)]
#[must_use = "it is about the time until it is dropped"]
pub struct Shrinking<'a> {
    tenant: &'a Tenant,
    /// A bit each.
    gpus: u32,
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        gpus_in(self.gpus).for_each(|gpu| self.tenant.ledger.creation_ends(gpu));
    }
}

/// Something of a library that the driver is asked for in a context. Dropped without [`Bringing::brought`]: it was not brought.
#[derive(Debug)]
#[must_use = "what has not been brought is refunded"]
pub struct Bringing<'a> {
    growing: Growing<'a>,
    what: usize,
    library: Option<usize>,
}

impl Bringing<'_> {
    /// It is there. `physical_free` is the GPU's free memory read now.
    pub fn brought(self, physical_free: Option<Bytes>) {
        let Self { growing, what, library } = self;
        let (tenant, context, known) = (growing.tenant, growing.context, growing.before.charged);
        let came = growing.booked(physical_free);
        if let Some(library) = library {
            // With a kernel comes code, which may stay with the context when the library goes.
            let its = if what == library { came } else { came.min(known) };
            tenant.causes.add(Cause::Library(library), context, its);
        }
        let mut libraries = tenant.causes.libraries.lock();
        let both = [Some(what), library].into_iter().flatten();
        both.for_each(|what| libraries.bring(what, context, library));
    }
}

#[cfg(test)]
mod tests;
