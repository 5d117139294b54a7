//! Slots: one per process of the container. `docs/internals/shared-memory.md` has the states.
//!
//! **Only the process that holds a slot's byte changes the slot's state.** A living process holds
//! it until it exits. A sweep locks it briefly, which succeeds exactly if the process has exited.
//! So two sweeps never clear the same slot, and no sweep clears a slot that was claimed meanwhile.
//! A sweeper that exits between two steps leaves the old state or the new one: the next sweep
//! continues from there.
//!
//! The byte is the kernel's, so it is a trait here ([`SlotLocks`]):
//! [`crate::liveness::LivenessLocks`] in a program, a flag in a model.

use std::io;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::layout::{Slot, store_bytes};
use crate::lock::{Liveness, Owner};
use crate::units::{Generation, Nanos, SlotIndex};

/// How long an exited process's memory counts as draining when no monitor can confirm that it is
/// gone. Longer than any teardown seen on a driver, and short for a caller that waits for it.
pub const DRAIN_PERIOD: Nanos = Nanos::from_millis(500);

/// The lock bytes of the slots.
pub trait SlotLocks {
    /// A byte locked until the process exits.
    type Lock;
    /// A byte locked until dropped.
    type Guard;

    /// Locks a slot's byte until this process exits; `None` if it is locked.
    ///
    /// # Errors
    /// The system's.
    fn hold(&self, slot: SlotIndex) -> io::Result<Option<Self::Lock>>;

    /// Locks a slot's byte briefly; `None` if it is locked.
    ///
    /// # Errors
    /// The system's.
    fn try_lock(&self, slot: SlotIndex) -> io::Result<Option<Self::Guard>>;

    /// Whether a slot's byte is locked.
    ///
    /// # Errors
    /// The system's; then nothing is known.
    fn liveness(&self, slot: SlotIndex) -> io::Result<Liveness>;
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Unused; everything that belongs to it is zero.
    Free = 0,
    /// Belongs to a process, which may have exited unnoticed.
    Live = 1,
    /// Belongs to an exited process whose memory may still be on the GPU.
    Draining = 2,
    /// Holds only what an exited process had exported and others may hold.
    Orphan = 3,
}

/// A slot's `state` word: generation and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Composes a word.
    #[must_use]
    pub const fn new(generation: Generation, state: State) -> Self {
        Self(generation.get() << 8 | state as u64)
    }

    /// The generation; 0: the slot was never used.
    #[must_use]
    pub const fn generation(self) -> Generation {
        Generation::from_bits(self.0 >> 8)
    }

    /// The state; `None` for a word that no cgpu process wrote.
    #[must_use]
    pub const fn state(self) -> Option<State> {
        match self.0.to_le_bytes()[0] {
            0 => Some(State::Free),
            1 => Some(State::Live),
            2 => Some(State::Draining),
            3 => Some(State::Orphan),
            _ => None,
        }
    }
}

/// Whether an exited process's memory has left the GPU, so that its bytes need no longer be
/// charged.
///
/// `word` is its draining slot's, `since` the time when its exit was found. With a monitor only the
/// confirmed word counts (`grant.drained`, which repeats the slot's word); without one, the time
/// since.
#[must_use]
pub fn is_gone(word: Word, since: Nanos, now: Nanos, monitor: Option<Word>) -> bool {
    match monitor {
        Some(gone) => gone == word,
        None => now - since >= DRAIN_PERIOD,
    }
}

/// The claiming process; for display, never to send signals.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotOwner<'a> {
    /// Process id in the container's PID namespace.
    pub pid: u32,
    /// The process's name; 15 bytes of it are kept.
    pub comm: &'a [u8],
}

/// A claimed slot, which is ours while `lock` is held: until this process exits.
#[derive(Debug)]
pub struct Claim<Lock> {
    /// The slot.
    pub slot: SlotIndex,
    /// The slot's generation while it is ours.
    pub generation: Generation,
    /// The lock on its byte.
    pub lock: Lock,
}

impl<Lock> Claim<Lock> {
    /// Our name in shared locks.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(self.slot, self.generation)
    }
}

/// Counts of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes newly found to have exited.
    pub exited: u32,
    /// Slots freed.
    pub freed: u32,
    /// Exited processes whose memory is not gone yet.
    pub draining: u32,
    /// Exited processes of which only exported memory is left.
    pub orphans: u32,
}

/// The slots of a container.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    slots: &'a [Slot],
    high_water: &'a AtomicU32,
}

impl<'a> Table<'a> {
    /// Wraps a container's slots; `high_water` counts those that were ever used.
    #[must_use]
    pub fn new(slots: &'a [Slot], high_water: &'a AtomicU32) -> Self {
        Self { slots, high_water }
    }

    /// Claims the first free slot; `None` if there is none. To be called after a sweep.
    ///
    /// # Errors
    /// Those of `locks`.
    pub fn claim<P: SlotLocks>(
        &self,
        locks: &P,
        who: SlotOwner<'_>,
        now: Nanos,
    ) -> io::Result<Option<Claim<P::Lock>>> {
        for (slot, entry) in self.entries(self.slots.len()) {
            if load(entry).state() != Some(State::Free) {
                continue;
            }
            let Some(lock) = locks.hold(slot)? else { continue };
            // The byte is ours, and with it the word. Load again: the slot may have been claimed
            // and freed since.
            let word = load(entry);
            if word.state() != Some(State::Free) {
                continue;
            }
            let generation = word.generation().next();
            self.high_water.fetch_max(u32::from(slot.0) + 1, Ordering::Relaxed);
            entry.pid.store(who.pid, Ordering::Relaxed);
            store_bytes(&entry.comm, who.comm.get(..15).unwrap_or(who.comm));
            entry.since.store(now.0, Ordering::Relaxed);
            // HB claim: Release publishes the high-water mark and all of the above with the word.
            entry.state.store(Word::new(generation, State::Live).0, Ordering::Release);
            return Ok(Some(Claim { slot, generation, lock }));
        }
        Ok(None)
    }

    /// Finds exited processes, and frees the slots of those whose memory is gone.
    ///
    /// `gone` decides that, from the word of a draining slot or an orphan and the time since (see
    /// [`is_gone`]). `reclaim` then zeroes everything that belongs to the slot but the words of
    /// [`SlotOwner`] and returns [`State::Free`]. For a draining slot it may instead keep what the
    /// process had exported and return [`State::Orphan`]. It may be called again for a slot that it
    /// has reclaimed in part, because an earlier caller may have exited inside.
    ///
    /// # Errors
    /// Those of `locks`; what was swept until then stays swept.
    pub fn sweep<P: SlotLocks>(
        &self,
        locks: &P,
        now: Nanos,
        mut gone: impl FnMut(SlotIndex, Word, Nanos) -> bool,
        mut reclaim: impl FnMut(SlotIndex, State) -> State,
    ) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for (slot, entry) in self.entries(self.high_water()) {
            if load(entry).state() == Some(State::Free) {
                continue;
            }
            let Some(_guard) = locks.try_lock(slot)? else { continue };
            let word = load(entry);
            match word.state() {
                Some(State::Free) => {}
                Some(state @ (State::Draining | State::Orphan)) => {
                    let since = Nanos(entry.since.load(Ordering::Relaxed));
                    let mut becomes = state;
                    if since > now {
                        // From before the machine's last start: the wait starts again.
                        entry.since.store(now.0, Ordering::Relaxed);
                    } else if gone(slot, word, since) {
                        becomes = reclaim(slot, state);
                        if becomes == State::Orphan {
                            entry.since.store(now.0, Ordering::Relaxed);
                        }
                        // HB exit: a process that reads the new state sees all that the exited one
                        // wrote, because this process has read the word that says so.
                        entry
                            .state
                            .store(Word::new(word.generation(), becomes).0, Ordering::Release);
                    }
                    match becomes {
                        State::Draining => swept.draining += 1,
                        State::Orphan => swept.orphans += 1,
                        State::Free | State::Live => swept.freed += 1,
                    }
                }
                // An invalid word under a free byte was left by a process that has exited, too.
                Some(State::Live) | None => {
                    entry.since.store(now.0, Ordering::Relaxed);
                    // HB exit: a process that reads "draining" sees all that the exited process
                    // wrote.
                    entry
                        .state
                        .store(Word::new(word.generation(), State::Draining).0, Ordering::Release);
                    swept.exited += 1;
                    swept.draining += 1;
                }
            }
        }
        Ok(swept)
    }

    /// Returns the slots of living processes and of exited ones whose memory is not gone.
    pub fn occupied(&self) -> impl Iterator<Item = (SlotIndex, State)> + use<'a> {
        self.states().filter(|(_, state)| matches!(state, State::Live | State::Draining))
    }

    /// Returns the slots that hold only what exited processes had exported.
    pub fn orphans(&self) -> impl Iterator<Item = SlotIndex> + use<'a> {
        self.states().filter(|(_, state)| *state == State::Orphan).map(|(slot, _)| slot)
    }

    fn states(&self) -> impl Iterator<Item = (SlotIndex, State)> + use<'a> {
        self.entries(self.high_water())
            .filter_map(|(slot, entry)| Some((slot, load(entry).state()?)))
    }

    /// Whether the owner named in a shared lock lives.
    pub fn liveness<P: SlotLocks>(&self, locks: &P, owner: Owner) -> Liveness {
        let Some(entry) = self.slots.get(owner.slot().get()) else { return Liveness::Exited };
        // The word is at least as new as the owner's claim (HB name, in `lock`): another generation
        // or state means that its exit was found.
        let word = load(entry);
        if word.state() == Some(State::Live) && owner.is(word.generation()) {
            locks.liveness(owner.slot()).unwrap_or(Liveness::Alive)
        } else {
            Liveness::Exited
        }
    }

    /// Loads a slot's word; `None` for a slot beyond the table.
    #[must_use]
    pub fn word(&self, slot: SlotIndex) -> Option<Word> {
        self.slots.get(slot.get()).map(load)
    }

    /// The number of slots that were ever used, at most the number of slots.
    #[inline]
    #[must_use]
    pub fn high_water(&self) -> usize {
        high_water(self.high_water).min(self.slots.len())
    }

    /// Whether the table is consistent: every word is valid, no slot beyond the mark was used, and
    /// what belongs to a free slot is `empty`. Valid only while no process claims or sweeps.
    #[must_use]
    pub fn is_valid(&self, empty: impl Fn(SlotIndex) -> bool) -> bool {
        let used = self.high_water();
        self.entries(self.slots.len()).enumerate().all(|(index, (slot, entry))| {
            let word = load(entry);
            let untouched = word == Word(0);
            (index < used || untouched)
                && word.state().is_some_and(|state| state != State::Free || empty(slot))
        })
    }

    pub(crate) fn slot(&self, slot: SlotIndex) -> Option<&'a Slot> {
        self.slots.get(slot.get())
    }

    fn entries(&self, count: usize) -> impl Iterator<Item = (SlotIndex, &'a Slot)> + use<'a> {
        SlotIndex::all().zip(self.slots).take(count)
    }
}

/// Loads the mark. It is not bounded: any process of the container may have written it.
#[inline]
pub(crate) fn high_water(mark: &AtomicU32) -> usize {
    usize::try_from(mark.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

fn load(entry: &Slot) -> Word {
    let state: &AtomicU64 = &entry.state;
    // HB claim, HB exit: Acquire meets the Release of the process that wrote the word.
    Word(state.load(Ordering::Acquire))
}
