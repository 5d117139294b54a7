//! This process's part in the container's books: charges that wait where waiting helps, refunds, and what is in force.
//!
//! The books themselves, and why two charges never go over the limit together nor refuse each other, are
//! [`cgpu_proto::ledger`]. Here is what a refusal is: not the first "does not fit", but that one that stands when the dead have
//! been looked for and their memory has been waited for.

use cgpu_proto::atomic::Ordering;
use cgpu_proto::grant::Heartbeat;
use cgpu_proto::ledger::{Account, Column, Refused, Usage};
use cgpu_proto::liveness::Lifeline;
use cgpu_proto::lock::{Acquired, Guard, Owner};
use cgpu_proto::region::Region;
use cgpu_proto::slots::Claim;
use cgpu_proto::units::{Bytes, CardIndex, Nanos, SlotIndex};

use crate::{Clock, Reason};

/// How long a charge waits for a card's lock. Its owner holds it for some 20 ns; after so long it is stopped (SIGSTOP, a
/// debugger).
const LOCK_PATIENCE: Nanos = Nanos::from_millis(1000);
/// How long a call waits for the memory of processes that have ended: twice what it lingers without a monitor.
const DRAIN_PATIENCE: Nanos = Nanos::from_millis(1000);
/// How long the first contexts of other processes are waited for. One takes a fraction of a second, or some seconds on a card that was
/// asleep.
const LEARNING_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Between two looks at them.
const PAUSE: Nanos = Nanos::from_millis(5);
/// About as long as a call of the driver takes.
const MOMENT: Nanos = Nanos::from_micros(50);

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

/// How long a call has already waited for draining memory: one per call of the program, at most 1 s.
#[derive(Debug, Default)]
pub struct Patience {
    since: Option<Nanos>,
    /// Whether anything drained at the last look.
    drained: bool,
}

impl Patience {
    /// Sleeps a little; false when there is no patience left.
    fn rest(&mut self, clock: &dyn Clock) -> bool {
        self.nap(clock, |_| PAUSE)
    }

    fn nap(&mut self, clock: &dyn Clock, length: impl FnOnce(Nanos) -> Nanos) -> bool {
        let now = clock.now();
        let waited = now - *self.since.get_or_insert(now);
        if waited >= DRAIN_PATIENCE {
            return false;
        }
        clock.sleep(length(waited));
        true
    }
}

/// The books, as this process keeps its part.
pub(crate) struct Ledger {
    region: Region,
    claim: Claim<Lifeline>,
    heartbeat: Heartbeat,
    clock: &'static dyn Clock,
}

impl Ledger {
    pub(crate) fn new(region: Region, claim: Claim<Lifeline>, clock: &'static dyn Clock) -> Self {
        Self { region, claim, heartbeat: Heartbeat::default(), clock }
    }

    /// The container's region.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// This process's name in it.
    #[inline]
    pub(crate) fn me(&self) -> Owner {
        self.claim.owner()
    }

    /// The limit in force; [`Bytes::MAX`]: none.
    #[inline]
    pub(crate) fn limit(&self, card: CardIndex) -> Bytes {
        let registered = Bytes(self.region.card(card).limit.load(Ordering::Relaxed));
        self.region.granted().limit(card, registered)
    }

    /// What the container uses.
    pub(crate) fn usage(&self, card: CardIndex) -> Usage {
        self.account(card).usage(&self.region.shared().slot)
    }

    /// The sum of it.
    pub(crate) fn total(&self, card: CardIndex) -> Bytes {
        self.account(card).total()
    }

    /// Charges, if it fits or will fit when the dead are gone. `denied`: the reason to count if not.
    #[inline]
    pub(crate) fn charge(
        &self,
        card: CardIndex,
        column: Column,
        bytes: Bytes,
        denied: Reason,
    ) -> Result<(), Denied> {
        match self.attempt(card, column, bytes) {
            Ok(()) => Ok(()),
            Err(_) => self.insist(card, column, bytes, denied),
        }
    }

    /// Books what cannot be refused; counted if it goes over the limit.
    pub(crate) fn book(&self, card: CardIndex, column: Column, bytes: Bytes) {
        let (limit, life) = (|| self.limit(card), |owner| self.region.life(owner));
        self.account(card).book(column, bytes, limit, LOCK_PATIENCE, life);
        if self.total(card) > self.limit(card) {
            self.count(Reason::ImplicitOverLimit);
        }
    }

    /// Gives back.
    #[inline]
    pub(crate) fn refund(&self, card: CardIndex, column: Column, bytes: Bytes) {
        self.account(card).refund(column, bytes);
    }

    /// While this is held, nobody else of the container creates a context on the card without knowing what one costs. None: whoever has
    /// it lives and takes longer than anybody should wait.
    pub(crate) fn learning(&self, card: CardIndex) -> Option<Guard<'_>> {
        let lock = &self.region.card(card).learning;
        let life = |owner| self.region.life(owner);
        lock.acquire(self.me(), LEARNING_PATIENCE, life).ok().map(Acquired::guard)
    }

    /// A context is being created: how many others of the container are.
    pub(crate) fn creation_begins(&self, card: CardIndex) -> u64 {
        let others = self.creations(card);
        self.region.cell(card, self.claim.slot).creating.fetch_add(1, Ordering::Relaxed);
        others
    }

    /// It is created, or was not: how many others still are.
    pub(crate) fn creation_ends(&self, card: CardIndex) -> u64 {
        let less = |creating: u64| creating.checked_sub(1);
        // Zero if somebody else wrote there: then it stays so.
        let mine = &self.region.cell(card, self.claim.slot).creating;
        let _ = mine.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.creations(card)
    }

    /// How many contexts of the container are being created, ours among them.
    pub(crate) fn creations(&self, card: CardIndex) -> u64 {
        let slots = SlotIndex::all().take(self.region.slots().high_water());
        let creating = slots.map(|slot| self.region.cell(card, slot).creating.load(Ordering::Relaxed));
        creating.fold(0, u64::saturating_add)
    }

    /// Whether to ask the driver once more, which refused what the limit allows.
    pub(crate) fn ask_again(&self, card: CardIndex, patience: &mut Patience) -> bool {
        if patience.since.is_none() {
            self.count(Reason::DriverRefused);
        }
        self.sweep();
        let drains = self.usage(card).draining > Bytes::ZERO;
        // When the last of it has just gone, one more attempt is due.
        let before = std::mem::replace(&mut patience.drained, drains);
        (drains && patience.rest(self.clock)) || (before && !drains)
    }

    /// Counts a reason in the process's slot.
    pub(crate) fn count(&self, reason: Reason) {
        if let Some(counter) = self.region.slot(self.claim.slot).counter.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits a little for what others do at this moment.
    pub(crate) fn pause(&self) {
        self.clock.sleep(MOMENT);
    }

    /// Sleeps while the card works: shortly at first, as kernels are. False when there is no patience left.
    pub(crate) fn nap(&self, patience: &mut Patience) -> bool {
        patience.nap(self.clock, |waited| waited.clamp(MOMENT, PAUSE))
    }

    #[inline]
    fn account(&self, card: CardIndex) -> Account<'_> {
        self.region.account(card, self.me())
    }

    /// Charges, if it fits as the books stand.
    #[inline]
    pub(crate) fn attempt(&self, card: CardIndex, column: Column, bytes: Bytes) -> Result<(), Refused> {
        let life = |owner| self.region.life(owner);
        self.account(card).charge(column, bytes, || self.limit(card), LOCK_PATIENCE, life)
    }

    /// The slow path of a charge, which ends with a counted refusal.
    #[cold]
    #[inline(never)]
    fn insist(&self, card: CardIndex, column: Column, bytes: Bytes, denied: Reason) -> Result<(), Denied> {
        self.charge_patiently(card, column, bytes).map_err(|refused| {
            let (reason, used, limit) = match refused {
                Refused::Held(_) => (Reason::LockHeld, self.total(card), self.limit(card)),
                Refused::Short { used, limit, .. } => (denied, used, limit),
            };
            self.count(reason);
            Denied { reason, wanted: bytes, used, limit }
        })
    }

    /// Charges; finds the dead, and waits for their memory while that alone is in the way. A refusal is not counted.
    pub(crate) fn charge_patiently(
        &self,
        card: CardIndex,
        column: Column,
        bytes: Bytes,
    ) -> Result<(), Refused> {
        let mut patience = Patience::default();
        loop {
            self.sweep();
            let refused = match self.attempt(card, column, bytes) {
                Ok(()) if patience.since.is_some() => {
                    self.count(Reason::WaitedForDraining);
                    return Ok(());
                }
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            let usage = self.usage(card);
            let stays = usage.total() - usage.draining;
            let by_the_dead = matches!(refused, Refused::Short { limit, .. } if stays + bytes <= limit);
            if !by_the_dead || !patience.rest(self.clock) {
                return Err(refused);
            }
        }
    }

    fn sweep(&self) {
        let now = self.clock.now();
        let monitor = self.heartbeat.observe(self.region.granted(), now).lives();
        // Where the dead cannot be looked for, they stay on the books: the refusal stands.
        let _ = self.region.sweep(now, monitor);
    }
}
