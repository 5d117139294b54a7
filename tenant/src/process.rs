//! One process of a container: the tenant that the shim's hooks talk to.

use std::fmt;

use crate::{Bytes, Card, Clock, Environment, Inventory, Nanos, Reason, Refusal, Uuid, View};

/// A device address (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// A context as the driver names it (the `CUcontext` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextId(pub usize);

/// How a start ended, if it was not refused.
#[derive(Debug)]
pub enum Start {
    /// The shim stays out of the way: every hook is the real call.
    Off(Reason),
    /// Books are kept.
    On(Tenant),
}

/// The books of one process. Shared by its threads; lives until the process ends and is never dropped (a forked child leaves
/// its parent's alone and starts one of its own).
pub struct Tenant {
    clock: &'static dyn Clock,
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").finish_non_exhaustive()
    }
}

/// A context on the books: which, and on which card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    card: Card,
    token: u32,
}

impl Context {
    /// The context's card.
    #[must_use]
    pub fn card(self) -> Card {
        self.card
    }
}

/// An allocation refused by the limit: `CUDA_ERROR_OUT_OF_MEMORY`. Already counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Why.
    pub reason: Reason,
    /// What was asked for, rounded as the driver does.
    pub wanted: Bytes,
    /// What the container used at that moment.
    pub used: Bytes,
    /// What it may use.
    pub limit: Bytes,
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

/// Bytes charged for an allocation that the driver is now asked for. Dropped without [`Charge::settle`]: refunded.
#[derive(Debug)]
#[must_use = "a charge that is dropped is refunded"]
pub struct Charge<'a> {
    tenant: &'a Tenant,
    card: Card,
    bytes: Bytes,
}

impl Charge<'_> {
    /// The driver made the allocation at `address`. `context` is the one that owns it (what dies with it); none for memory
    /// that belongs to no context.
    pub fn settle(self, address: Address, context: Option<Context>) -> Settled {
        let _ = (self.tenant, self.card, self.bytes, address, context.map(|context| context.token));
        Settled::Recorded
    }

    /// What is charged: the size rounded as the driver does.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

/// An allocation taken off the table while the driver is asked to free it. Dropped without [`Taken::freed`]: put back, still
/// charged.
#[derive(Debug)]
#[must_use = "a taken allocation that is dropped is put back"]
pub struct Taken<'a> {
    tenant: &'a Tenant,
}

impl Taken<'_> {
    /// The driver freed it: the bytes are refunded.
    pub fn freed(self) {
        let _ = self.tenant;
    }
}

/// A context charged by its learned size while the driver is asked to create it. Dropped without [`Starting::created`]: refunded.
#[derive(Debug)]
#[must_use = "a context that is not created is refunded"]
pub struct Starting<'a> {
    tenant: &'a Tenant,
    card: Card,
}

impl Starting<'_> {
    /// The driver created it. `physical_free` is the card's free memory read now, if it could be read: with the one given to
    /// [`Tenant::context_starting`] it teaches what a context costs on this card. A context that was known already (a second
    /// retain of a primary context) costs nothing.
    pub fn created(self, context: ContextId, physical_free: Option<Bytes>) -> Context {
        let _ = (self.tenant, context, physical_free);
        Context { card: self.card, token: 0 }
    }
}

/// A context off the books while the driver is asked to destroy it. Dropped without [`Leaving::gone`]: it stays.
#[derive(Debug)]
#[must_use = "a leaving context that is dropped stays"]
pub struct Leaving<'a> {
    tenant: &'a Tenant,
}

impl Leaving<'_> {
    /// It is destroyed: everything in it, and its own memory, is refunded.
    pub fn gone(self) {
        let _ = self.tenant;
    }
}

/// How long a call has already waited for draining memory: one per call of the program, at most 1 s.
#[derive(Debug, Default)]
pub struct Patience {
    since: Option<Nanos>,
}

impl Tenant {
    /// Reads the settings, opens or makes the region, claims a slot, registers the cards. After the real `cuInit`.
    ///
    /// # Errors
    /// A [`Refusal`], whose sentence says what was expected, what came and what to do: settings that cannot be understood, or
    /// a region that cannot be used while a limit is set.
    pub fn start(
        environment: &dyn Environment,
        inventory: Inventory<'_>,
        clock: &'static dyn Clock,
    ) -> Result<Start, Refusal> {
        let _ = (environment, inventory, clock);
        Ok(Start::Off(Reason::NoLimit))
    }

    /// The card with this UUID, if it is sliced; none: native, hooks pass.
    #[must_use]
    pub fn card(&self, uuid: Uuid) -> Option<Card> {
        let _ = uuid;
        None
    }

    /// The limit now in force on `card`; none: accounted, but not limited.
    #[must_use]
    pub fn limit(&self, card: Card) -> Option<Bytes> {
        let _ = card;
        None
    }

    /// What every getter shows for `card`, with the physically free memory that the real getter gave. Not limited: none, show
    /// what the real getter gave.
    #[must_use]
    pub fn view(&self, card: Card, physical_free: Bytes) -> Option<View> {
        let _ = (card, physical_free);
        None
    }

    /// Charges `size` (as the program asked, not rounded) before the driver is called. Waits up to 1 s if only the memory of
    /// processes that have just ended is in the way.
    ///
    /// # Errors
    /// [`Denied`]: over the limit.
    pub fn charge(&self, card: Card, size: Bytes) -> Result<Charge<'_>, Denied> {
        Ok(Charge { tenant: self, card, bytes: size })
    }

    /// The driver answered out of memory although the limit allowed it: whether to ask once more, because a process of the
    /// container has just ended and its memory is on the way. Sleeps a little first. Call in a loop with one `Patience` while
    /// the driver refuses; false in the end.
    #[must_use]
    pub fn ask_again(&self, card: Card, patience: &mut Patience) -> bool {
        let _ = (card, patience.since.get_or_insert_with(|| self.clock.now()));
        false
    }

    /// Takes the allocation at `address` off the table, before the driver is asked to free it: the driver may give the address
    /// to another thread before the free has returned here. None: not on the books, pass the call on (counted).
    pub fn take(&self, address: Address) -> Option<Taken<'_>> {
        let _ = address;
        None
    }

    /// The context's card and place on the books. None: its creation was not seen; see [`Tenant::context_seen`].
    #[must_use]
    pub fn context(&self, context: ContextId) -> Option<Context> {
        let _ = context;
        None
    }

    /// Charges a context of the learned size as implicit memory, before the driver is asked to create one. `physical_free`:
    /// the card's free memory read now, if it could be read.
    ///
    /// # Errors
    /// [`Denied`]: it would go over the limit.
    pub fn context_starting(&self, card: Card, physical_free: Option<Bytes>) -> Result<Starting<'_>, Denied> {
        let _ = physical_free;
        Ok(Starting { tenant: self, card })
    }

    /// Takes up a context whose creation was not seen (made by a private path of the runtime), with the learned size as
    /// implicit memory, which may exceed the limit.
    pub fn context_seen(&self, context: ContextId, card: Card) -> Context {
        let _ = context;
        Context { card, token: 0 }
    }

    /// A context is about to be destroyed (or the last reference of a primary context released, or it is reset). None: unknown.
    pub fn context_leaving(&self, context: ContextId) -> Option<Leaving<'_>> {
        let _ = context;
        None
    }

    /// Counts `reason` in the process's slot. One relaxed add.
    pub fn count(&self, reason: Reason) {
        let _ = reason;
    }
}
