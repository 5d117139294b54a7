//! Slots: one per process of the container.
//!
//! ```text
//!               claim: take the byte for life
//!        free ---------------------------------> live
//!         ^                                       |
//!         |  bury: its memory is gone             |  mourn: the byte is free, so the process is gone
//!         |  (byte borrowed, cells cleared)       |  (byte borrowed)
//!         +-------------- draining <--------------+
//!         |                  |
//!         |                  |  it had exported memory, which others may hold (cells cleared but for that)
//!         +--- orphan <------+
//!           nobody holds it
//! ```
//!
//! **Who holds a slot's byte is the only one who changes the slot's state.** The living process holds it for life; whoever mourns
//! or buries borrows it for a moment, which succeeds exactly when the process is gone. So no two sweepers ever clear the same
//! slot, and none clears a slot that was claimed meanwhile. A death between any two steps leaves either the old state or the new
//! one, and a free byte: the next sweep goes on from there.
//!
//! Dead is not free: a dead process's bytes stay on the books while the driver tears its memory down. See [`is_gone`].
//!
//! The byte is the kernel's, so it is a trait here ([`Presence`]): [`crate::liveness::LivenessLocks`] in life, a flag in a model.

use std::io;

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::layout::{Slot, store_bytes};
use crate::lock::{Liveness, Owner};
use crate::units::{Generation, Nanos, SlotIndex};

/// How long a dead process's memory is taken to linger when no monitor can tell. Longer than any teardown seen on a driver, and
/// short for somebody who waits for it.
pub const LINGERS: Nanos = Nanos::from_millis(500);

/// The bytes that say who is there.
pub trait Presence {
    /// A byte held until the process's end.
    type Stay;
    /// A byte held until dropped.
    type Visit;

    /// Takes a slot's byte for life; `None` if it is taken.
    ///
    /// # Errors
    /// As the system says.
    fn take(&self, slot: SlotIndex) -> io::Result<Option<Self::Stay>>;

    /// Takes a slot's byte for a moment; `None` if it is taken.
    ///
    /// # Errors
    /// As the system says.
    fn borrow(&self, slot: SlotIndex) -> io::Result<Option<Self::Visit>>;

    /// Whether a slot's byte is taken.
    ///
    /// # Errors
    /// As the system says; then nothing is known.
    fn life(&self, slot: SlotIndex) -> io::Result<Liveness>;
}

/// What a slot is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nobody's; whatever belongs to it is zero.
    Free = 0,
    /// A process's, or a dead one's whom nobody has missed yet.
    Live = 1,
    /// A dead process's, whose memory may still be on the GPU.
    Draining = 2,
    /// Nobody's: what a dead process had exported, which others may hold.
    Orphan = 3,
}

/// A slot's `state`: which of its users, and what it is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// The word that says so.
    #[must_use]
    pub const fn new(generation: Generation, state: State) -> Self {
        Self(generation.get() << 8 | state as u64)
    }

    /// Which user; the number 0 says that there never was one.
    #[must_use]
    pub const fn generation(self) -> Generation {
        Generation::from_bits(self.0 >> 8)
    }

    /// What it is used for; `None` for a word that no process of ours wrote.
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

/// Whether a dead process's memory has left the GPU, so that its bytes may leave the books.
///
/// `word` is its draining slot's, `since` when it was found dead. With a monitor only the monitor's word counts
/// (`grant.gone`, which repeats the slot's word); without one, the time since.
#[must_use]
pub fn is_gone(word: Word, since: Nanos, now: Nanos, monitor: Option<Word>) -> bool {
    match monitor {
        Some(gone) => gone == word,
        None => now - since >= LINGERS,
    }
}

/// Who claims: for people only, never a basis for signals.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotOwner<'a> {
    /// Process id in the container's own PID namespace.
    pub pid: u32,
    /// The process's name, at most 15 bytes of it are kept.
    pub comm: &'a [u8],
}

/// A slot that is ours as long as `stay` is held, which is: for life.
#[derive(Debug)]
pub struct Claim<Stay> {
    /// Which slot.
    pub slot: SlotIndex,
    /// Which of its users we are.
    pub generation: Generation,
    /// Its byte.
    pub stay: Stay,
}

impl<Stay> Claim<Stay> {
    /// Our name in shared locks.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::new(self.slot, self.generation)
    }
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes newly found dead.
    pub mourned: u32,
    /// Slots given back.
    pub buried: u32,
    /// Dead ones whose memory is not gone yet.
    pub draining: u32,
    /// Dead ones of whom only exported memory is left.
    pub orphans: u32,
}

/// The slots of a container.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    slots: &'a [Slot],
    high_water: &'a AtomicU32,
}

impl<'a> Table<'a> {
    /// `high_water` counts the slots that were ever used.
    #[must_use]
    pub fn new(slots: &'a [Slot], high_water: &'a AtomicU32) -> Self {
        Self { slots, high_water }
    }

    /// Claims the first free slot; `None` when there is none (sweep first, to find the dead).
    ///
    /// # Errors
    /// As the presence says.
    pub fn claim<P: Presence>(
        &self,
        presence: &P,
        who: SlotOwner<'_>,
        now: Nanos,
    ) -> io::Result<Option<Claim<P::Stay>>> {
        for (slot, entry) in self.entries(self.slots.len()) {
            if load(entry).state() != Some(State::Free) {
                continue;
            }
            let Some(stay) = presence.take(slot)? else { continue };
            // The byte is ours and with it the word. Look again: the slot may have been claimed and left since.
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
            return Ok(Some(Claim { slot, generation, stay }));
        }
        Ok(None)
    }

    /// Finds the dead, and gives back the slots of those whose memory is gone.
    ///
    /// `gone` says whether it is, from the word of a slot that drains or is an orphan, and since when (see [`is_gone`]). `reclaim` then
    /// zeroes everything that belongs to the slot but the words of [`Claimant`], and says [`State::Free`]; or, of one that drained, all
    /// but what it had exported, and says [`State::Orphan`]. It may be called again for a slot that it has wound up in part: whoever
    /// called it before has died.
    ///
    /// # Errors
    /// As the presence says; what was swept until then stays swept.
    pub fn sweep<P: Presence>(
        &self,
        presence: &P,
        now: Nanos,
        mut gone: impl FnMut(SlotIndex, Word, Nanos) -> bool,
        mut reclaim: impl FnMut(SlotIndex, State) -> State,
    ) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for (slot, entry) in self.entries(self.high_water()) {
            if load(entry).state() == Some(State::Free) {
                continue;
            }
            let Some(_visit) = presence.borrow(slot)? else { continue };
            let word = load(entry);
            match word.state() {
                Some(State::Free) => {}
                Some(state @ (State::Draining | State::Orphan)) => {
                    let since = Nanos(entry.since.load(Ordering::Relaxed));
                    let mut becomes = state;
                    if since > now {
                        // From before the machine's last start. The wait begins anew.
                        entry.since.store(now.0, Ordering::Relaxed);
                    } else if gone(slot, word, since) {
                        becomes = reclaim(slot, state);
                        if becomes == State::Orphan {
                            entry.since.store(now.0, Ordering::Relaxed);
                        }
                        // HB death: who reads that the process is no more sees all that it ever wrote, by our own reading of the word.
                        entry
                            .state
                            .store(Word::new(word.generation(), becomes).0, Ordering::Release);
                    }
                    match becomes {
                        State::Draining => swept.draining += 1,
                        State::Orphan => swept.orphans += 1,
                        State::Free | State::Live => swept.buried += 1,
                    }
                }
                // A word that makes no sense under a byte that nobody holds was left by somebody who is gone, too.
                Some(State::Live) | None => {
                    entry.since.store(now.0, Ordering::Relaxed);
                    // HB death: whoever reads that the slot drains sees all that its process ever wrote.
                    entry
                        .state
                        .store(Word::new(word.generation(), State::Draining).0, Ordering::Release);
                    swept.mourned += 1;
                    swept.draining += 1;
                }
            }
        }
        Ok(swept)
    }

    /// The slots of processes that live, or whose memory is not gone yet.
    pub fn occupied(&self) -> impl Iterator<Item = (SlotIndex, State)> + use<'a> {
        self.states().filter(|(_, state)| matches!(state, State::Live | State::Draining))
    }

    /// The slots in which there is only what dead processes had exported.
    pub fn orphans(&self) -> impl Iterator<Item = SlotIndex> + use<'a> {
        self.states().filter(|(_, state)| *state == State::Orphan).map(|(slot, _)| slot)
    }

    fn states(&self) -> impl Iterator<Item = (SlotIndex, State)> + use<'a> {
        self.entries(self.high_water())
            .filter_map(|(slot, entry)| Some((slot, load(entry).state()?)))
    }

    /// Whether the owner named in a shared lock lives.
    pub fn liveness<P: Presence>(&self, presence: &P, owner: Owner) -> Liveness {
        let Some(entry) = self.slots.get(owner.slot().get()) else { return Liveness::Dead };
        // The word is at least as new as the owner's claim (HB name, in `lock`): another user or another state means that the
        // owner was mourned.
        let word = load(entry);
        if word.state() == Some(State::Live) && owner.is(word.generation()) {
            presence.life(owner.slot()).unwrap_or(Liveness::Alive)
        } else {
            Liveness::Dead
        }
    }

    /// A slot's word now; `None` for a slot beyond the table.
    #[must_use]
    pub fn word(&self, slot: SlotIndex) -> Option<Word> {
        self.slots.get(slot.get()).map(load)
    }

    /// Slots that were ever used, never more than there are.
    #[inline]
    #[must_use]
    pub fn high_water(&self) -> usize {
        high_water(self.high_water).min(self.slots.len())
    }

    /// Whether the table can be right: every word makes sense, no slot beyond the mark was used, and what belongs to a free slot
    /// is `empty`. To be asked while nobody claims or sweeps.
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

/// The mark as a count; not bounded by anything, because anybody in the container may have written it.
#[inline]
pub(crate) fn high_water(mark: &AtomicU32) -> usize {
    usize::try_from(mark.load(Ordering::Relaxed)).unwrap_or(usize::MAX)
}

fn load(entry: &Slot) -> Word {
    let state: &AtomicU64 = &entry.state;
    // HB claim, HB death: Acquire meets the Release of whoever wrote the word.
    Word(state.load(Ordering::Acquire))
}
