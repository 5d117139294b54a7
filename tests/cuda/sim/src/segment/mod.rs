//! The segment: the file that every client of a machine maps.
//!
//! ```text
//!   preamble: magic, figures, cards, lock, generations | undo log | the timeline's words
//! ```
//!
//! * **The lock** is proto's: a word that names its holder's slot, taken over when that is dead.
//! * **Every change** goes through the undo log ([`Transaction`]); whoever takes the lock next rolls back what a dead holder left.
//! * **Liveness** is proto's: a lock on a byte of the file that lives as long as the process's memory.
//! * A **forked child** has neither the mapping nor the byte; it is told so by a page that the kernel wipes ([`Lineage`]).
//!
//! A process that is stopped (SIGSTOP) while it holds the lock keeps it, and the machine stands still until it goes on: to take the lock
//! from a process that may write again would be a gamble. `docs/simulator.md` says how likely that is.

mod file;
mod journal;
mod lineage;
mod preamble;
#[cfg(test)]
mod tests;

use core::mem::ManuallyDrop;
use std::io;

use cgpu_proto::atomic::{AtomicU64, Ordering};
use cgpu_proto::liveness::{Life, Lifeline};
use cgpu_proto::lock::Owner;
use cgpu_proto::slots::Presence;
use cgpu_proto::units::{Generation, Nanos, SlotIndex};

use crate::card::CardSpec;
use crate::error::Error;
use crate::settings::{Figures, Settings};
use crate::timeline::{self, ProcessState, Timeline};
use file::Mapping;
use preamble::Preamble;

pub use journal::Transaction;
pub use lineage::Lineage;

/// How long a living holder of the lock is waited for. It is stopped then, or the host is overloaded beyond use.
const PATIENCE: Nanos = Nanos::from_millis(60_000);

/// The parts of the mapped file.
#[derive(Clone, Copy)]
struct Shared<'a> {
    preamble: &'a Preamble,
    log: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl core::fmt::Debug for Shared<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("words", &self.words.len()).finish_non_exhaustive()
    }
}

/// The segment as one process has it: mapped, with a slot.
#[derive(Debug)]
pub struct Segment {
    /// Both are gone in a forked child, which must not drop them.
    mapping: ManuallyDrop<Mapping>,
    seat: ManuallyDrop<Seat>,
    lineage: Lineage,
    figures: Figures,
    cards: Vec<CardSpec>,
    dilation_milli: u64,
}

/// A slot that is this process's.
#[derive(Debug)]
struct Seat {
    slot: SlotIndex,
    generation: Generation,
    _lifeline: Lifeline,
}

impl Seat {
    fn owner(&self) -> Owner {
        Owner::new(self.slot, self.generation)
    }
}

impl Segment {
    /// Opens the segment, making it if need be, and attaches this process.
    ///
    /// # Errors
    /// [`Error::Segment`]; [`Error::Full`] when every slot is taken.
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let system = |error: io::Error| Error::Segment(format!("{}: {error}", settings.state.display()));
        loop {
            let mapping = Mapping::open(settings)?;
            let preamble = mapping.shared().preamble;
            let (figures, cards) = (preamble.figures(), preamble.cards()?);
            let dilation_milli = preamble.dilation_milli();
            match attach(&mapping, &figures, &cards) {
                Ok(seat) => {
                    return Ok(Self {
                        mapping: ManuallyDrop::new(mapping),
                        seat: ManuallyDrop::new(seat),
                        lineage: Lineage::new().map_err(system)?,
                        figures,
                        cards,
                        dilation_milli,
                    });
                }
                // Replaced before we had a seat in it.
                Err(Unseated::Elsewhere) => {}
                Err(Unseated::System(error)) => return Err(system(error)),
                Err(Unseated::Error(error)) => return Err(error),
            }
        }
    }

    /// Locks the segment, for one operation. Not twice in one thread.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Stuck`] when a living process keeps the lock for a minute.
    #[inline]
    pub fn begin(&self) -> Result<Transaction<'_>, Error> {
        if self.lineage.is_child() {
            return Err(Error::Forked);
        }
        begin(&self.mapping, self.seat.owner())
    }

    /// This process's number in the timeline.
    #[must_use]
    pub fn process(&self) -> usize {
        self.seat.slot.get()
    }

    /// Whether this process is a forked child of the one that opened the segment.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.lineage.is_child()
    }

    /// The figures that the segment was made with.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The cards that the segment was made with.
    #[must_use]
    pub fn cards(&self) -> &[CardSpec] {
        &self.cards
    }

    /// The dilation that the segment was made with.
    #[must_use]
    pub fn dilation_milli(&self) -> u64 {
        self.dilation_milli
    }

    /// Looks for dead processes, and lets their contexts go after the figures' delay. At most once per `interval`, whoever asks.
    ///
    /// # Errors
    /// As [`Segment::begin`].
    pub fn reap(&self, now: Nanos, interval: Nanos) -> Result<(), Error> {
        let mut transaction = self.begin()?;
        if !Timeline::new(&mut transaction, &self.figures).may_reap(now, interval) {
            return Ok(());
        }
        transaction.commit();
        // To ask after a life costs system calls: not under the lock.
        let dead: Vec<_> = SlotIndex::all()
            .filter(|&slot| state_of(self.mapping.shared(), slot) == ProcessState::Live)
            .map(|slot| (slot, self.generation(slot)))
            .filter(|&(slot, _)| matches!(self.mapping.lifelines.life(slot), Ok(Life::Dead)))
            .collect();
        for (slot, generation) in dead {
            let mut transaction = self.begin()?;
            let mut timeline = Timeline::new(&mut transaction, &self.figures);
            // Unless it went in good order meanwhile, or somebody else was first.
            if timeline.process_state(slot.get()) == ProcessState::Live && self.generation(slot) == generation
            {
                let now = timeline.advance(now);
                timeline.die(slot.get(), now);
                transaction.commit();
            }
        }
        Ok(())
    }

    fn generation(&self, slot: SlotIndex) -> u64 {
        self.mapping.shared().preamble.generation[slot.get()].load(Ordering::Acquire)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.lineage.is_child() {
            return;
        }
        // SAFETY: not used again: this is the drop; not dropped before: nobody else does.
        unsafe { ManuallyDrop::drop(&mut self.seat) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.mapping) };
    }
}

/// Why a process got no seat.
enum Unseated {
    /// Another file has taken the name.
    Elsewhere,
    System(io::Error),
    Error(Error),
}

impl From<io::Error> for Unseated {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { Self::Elsewhere } else { Self::System(error) }
    }
}

impl From<Error> for Unseated {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn attach(mapping: &Mapping, figures: &Figures, cards: &[CardSpec]) -> Result<Seat, Unseated> {
    for slot in SlotIndex::all() {
        if state_of(mapping.shared(), slot) != ProcessState::Free {
            continue;
        }
        let Some(lifeline) = mapping.lifelines.take(slot)? else { continue };
        let word = &mapping.shared().preamble.generation[slot.get()];
        let generation = Generation::from_bits(word.load(Ordering::Relaxed)).next();
        // HB generation: Release, for whoever asks whether a lock's owner is still the user of its slot.
        word.store(generation.get(), Ordering::Release);
        let seat = Seat { slot, generation, _lifeline: lifeline };
        let mut transaction = begin(mapping, seat.owner())?;
        let mut timeline = Timeline::new(&mut transaction, figures);
        // Its last user may have attached and died since we looked.
        if timeline.process_state(slot.get()) == ProcessState::Free {
            for (index, card) in cards.iter().enumerate() {
                timeline.install(index, card.total - card.reserved());
            }
            timeline.attach(slot.get(), std::process::id());
            transaction.commit();
            return Ok(seat);
        }
    }
    Err(Error::Full("processes").into())
}

fn begin(mapping: &Mapping, me: Owner) -> Result<Transaction<'_>, Error> {
    let shared = mapping.shared();
    let life = |owner: Owner| {
        // HB generation: Acquire.
        let generation = shared.preamble.generation[owner.slot().get()].load(Ordering::Acquire);
        if !owner.is(Generation::from_bits(generation)) {
            return Life::Dead;
        }
        mapping.lifelines.life(owner.slot()).unwrap_or(Life::Alive)
    };
    match shared.preamble.lock.acquire(me, PATIENCE, life) {
        Ok(acquired) => Ok(Transaction::begin(shared, acquired.guard())),
        Err(held) => Err(Error::Stuck(held.to_string())),
    }
}

/// What is known of a slot, without the lock: out of date as soon as it is known.
fn state_of(shared: Shared<'_>, slot: SlotIndex) -> ProcessState {
    ProcessState::of(shared.words[timeline::process_state_at(slot.get()).0].load(Ordering::Relaxed))
}
