//! The segment: the file that every client of a machine maps.
//!
//! ```text
//!   preamble: magic, figures, GPUs, lock, generations | area | area | ...      an area: undo log, the timeline's words
//! ```
//!
//! * **The lock** is shm's: a word that names its holder's slot, taken over when that is dead.
//! * **Every change** goes through the undo log ([`Transaction`]); whoever takes the lock next rolls back what a dead
//!   holder left.
//! * **A holder that is stopped** is left behind in its area (`areas`), and does its operation again when it
//!   continues.
//! * **Liveness** is shm's: a lock on a byte of the file that lives as long as the process's memory.
//! * A **forked child** has neither the mapping nor the byte; it is told so by a page that the kernel wipes
//!   ([`Lineage`]).

mod areas;
mod file;
mod journal;
mod lineage;
mod preamble;
#[cfg(test)]
mod tests;

use core::mem::ManuallyDrop;
use std::io;
use std::sync::{Mutex, PoisonError};

use areas::Area;
use cgpu_shm::atomic::{Ordering, fence};
use cgpu_shm::liveness::{Liveness, LivenessLock};
use cgpu_shm::lock::{Acquired, Guard, HeldBy, Owner};
use cgpu_shm::slots::Presence;
use cgpu_shm::units::{Generation, Nanos, SlotIndex};
use file::Mapping;
use journal::Ended;

use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::identity::{Anchor, Identity};
use crate::settings::{Figures, Settings};
use crate::timeline::{self, ProcessState, Progress, Timeline};

pub use journal::Transaction;
pub use lineage::Lineage;

/// How long one living holder of the lock is waited for before it is left behind. Sections take microseconds, and a
/// descheduled holder on a busy host some milliseconds.
const TIMEOUT: Nanos = Nanos::from_millis(20);
/// How many times that one who copies an area is waited for. A death is noticed at once all the same.
const COPYING: u32 = 100;
/// How many times that a thread waits for another of its own process: they stop and go on together.
const PATIENCES: u32 = 3_000;

/// The segment as one process has it: mapped, with a slot.
#[derive(Debug)]
pub struct Segment {
    /// Both are gone in a forked child, which must not drop them.
    mapping: ManuallyDrop<Mapping>,
    seat: ManuallyDrop<Seat>,
    lineage: Lineage,
    figures: Figures,
    gpus: Vec<GpuSpec>,
    dilation_milli: u64,
}

/// A slot that is this process's.
#[derive(Debug)]
struct Seat {
    slot: SlotIndex,
    generation: Generation,
    /// Held by the one thread that has the lock, or waits for it: the lock knows processes, not threads.
    alone: Mutex<()>,
    _lifeline: LivenessLock,
    _anchor: Option<Anchor>,
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
        let system =
            |error: io::Error| Error::Segment(format!("{}: {error}", settings.state.display()));
        loop {
            let mapping = Mapping::open(settings)?;
            let preamble = mapping.preamble();
            let (figures, gpus) = (preamble.figures(), preamble.gpus()?);
            let dilation_milli = preamble.dilation_milli();
            match attach(&mapping, &figures, &gpus) {
                Ok(seat) => {
                    return Ok(Self {
                        mapping: ManuallyDrop::new(mapping),
                        seat: ManuallyDrop::new(seat),
                        lineage: Lineage::new().map_err(system)?,
                        figures,
                        gpus,
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

    /// One operation: locks the segment, lets `operation` change it, and keeps the changes if it succeeds. It is done
    /// again if this process was stopped in the middle and left behind, so it must give the same twice. Not from within
    /// an operation.
    ///
    /// # Errors
    /// The operation's own, when nothing of it stays; [`Error::Forked`]; [`Error::Stuck`], [`Error::System`].
    #[inline]
    pub fn transact<R>(
        &self,
        operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.lineage.is_child() {
            return Err(Error::Forked);
        }
        transact(&self.mapping, &self.seat, &self.figures, operation)
    }

    /// This process's number in the timeline.
    #[must_use]
    pub fn process(&self) -> usize {
        self.seat.slot.get()
    }

    /// Who a process is that goes by `pid` in its own PID namespace.
    #[must_use]
    pub fn identity(&self, process: usize, pid: u32) -> Identity {
        let [namespace, device, inode] = self.mapping.preamble().identity[process]
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        Identity { pid, namespace, anchor: (device, inode) }
    }

    /// Counts one more call of this process, unless it is locked.
    #[must_use]
    pub fn enter(&self) -> bool {
        let slot = self.process();
        self.mapping.preamble().calls[slot][0].fetch_add(1, Ordering::SeqCst);
        // HB calls: a call is counted before it looks, and whoever locks says so before it looks at the count: one of the two sees the
        // other. Hence the fences, which order a store before a load.
        fence(Ordering::SeqCst);
        let area = Area::of(self.mapping.words(), areas::current(self.mapping.preamble()));
        let progress =
            Progress::of(area.words[timeline::progress_at(slot).0].load(Ordering::Relaxed));
        let enters = progress == Progress::Running;
        if !enters {
            self.leave();
        }
        enters
    }

    /// A call of this process that was counted is over.
    pub fn leave(&self) {
        if !self.lineage.is_child() {
            self.mapping.preamble().calls[self.process()][0].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether no call of a process goes on.
    #[must_use]
    pub fn is_quiet(&self, process: usize) -> bool {
        // HB calls.
        fence(Ordering::SeqCst);
        self.mapping.preamble().calls[process][0].load(Ordering::SeqCst) == 0
    }

    /// Whether this process is a forked child of the one that opened the segment.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.lineage.is_child()
    }

    /// The segment's file.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.mapping.path()
    }

    /// The figures that the segment was made with.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The GPUs that the segment was made with.
    #[must_use]
    pub fn gpus(&self) -> &[GpuSpec] {
        &self.gpus
    }

    /// The dilation that the segment was made with.
    #[must_use]
    pub fn dilation_milli(&self) -> u64 {
        self.dilation_milli
    }

    /// How many processes have died while they held the lock.
    #[must_use]
    pub fn takeovers(&self) -> u64 {
        if self.lineage.is_child() {
            0
        } else {
            self.mapping.preamble().takeovers.load(Ordering::Relaxed)
        }
    }

    /// Looks for dead processes, and lets their contexts go after the figures' delay. At most once per `interval`,
    /// whoever asks.
    ///
    /// # Errors
    /// As [`Segment::transact`].
    pub fn reap(&self, now: Nanos, interval: Nanos) -> Result<(), Error> {
        if !self.transact(|timeline| Ok(timeline.may_reap(now, interval)))? {
            return Ok(());
        }
        // To ask after a life costs system calls: not under the lock.
        let dead: Vec<_> = SlotIndex::all()
            .filter(|&slot| state_of(&self.mapping, slot) == ProcessState::Live)
            .map(|slot| (slot, self.generation(slot)))
            .filter(|&(slot, _)| matches!(self.mapping.lifelines.life(slot), Ok(Liveness::Dead)))
            .collect();
        for (slot, generation) in dead {
            self.transact(|timeline| {
                // Unless it went in good order meanwhile, or somebody else was first.
                if timeline.process_state(slot.get()) == ProcessState::Live
                    && self.generation(slot) == generation
                {
                    let now = timeline.advance(now);
                    timeline.die(slot.get(), now);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn generation(&self, slot: SlotIndex) -> u64 {
        self.mapping.preamble().generation[slot.get()].load(Ordering::Acquire)
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

fn attach(mapping: &Mapping, figures: &Figures, gpus: &[GpuSpec]) -> Result<Seat, Unseated> {
    let (who, mut anchor) = Anchor::introduce();
    for slot in SlotIndex::all() {
        if state_of(mapping, slot) != ProcessState::Free {
            continue;
        }
        let Some(lifeline) = mapping.lifelines.take(slot)? else { continue };
        let word = &mapping.preamble().generation[slot.get()];
        let generation = Generation::from_bits(word.load(Ordering::Relaxed)).next();
        // HB generation: Release, for whoever asks whether a lock's owner is still the user of its slot.
        word.store(generation.get(), Ordering::Release);
        let Identity { namespace, anchor: (device, inode), .. } = who;
        mapping.preamble().calls[slot.get()][0].store(0, Ordering::Relaxed);
        for (word, value) in
            mapping.preamble().identity[slot.get()].iter().zip([namespace, device, inode])
        {
            word.store(value, Ordering::Relaxed);
        }
        let mut seat =
            Seat { slot, generation, alone: Mutex::default(), _lifeline: lifeline, _anchor: None };
        let attached = transact(mapping, &seat, figures, |timeline| {
            // Its last user may have attached and died since we looked.
            let free = timeline.process_state(slot.get()) == ProcessState::Free;
            if free {
                for (index, gpu) in gpus.iter().enumerate() {
                    timeline.install(index, gpu.usable());
                    if gpu.domains() > 1 {
                        timeline.divide(index, gpu.domains(), gpu.domain_room());
                    }
                }
                timeline.attach(slot.get(), who.pid);
                timeline.introduce(slot.get(), [namespace, device, inode]);
            }
            Ok(free)
        })?;
        if attached {
            seat._anchor = anchor.take();
            return Ok(seat);
        }
    }
    Err(Error::Full("processes").into())
}

#[inline]
fn transact<R>(
    mapping: &Mapping,
    seat: &Seat,
    figures: &Figures,
    mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>) -> Result<R, Error>,
) -> Result<R, Error> {
    // Nothing that a panic could leave half done is under it.
    let _alone = seat.alone.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let mut transaction = begin(mapping, seat)?;
        let result = operation(&mut Timeline::new(&mut transaction, figures))?;
        match transaction.commit() {
            Ended::Kept => return Ok(result),
            Ended::Robbed(robbed) => {
                let stays = loop {
                    match robbed.stays(mapping.preamble()) {
                        Some(stays) => break stays,
                        None => drop(begin(mapping, seat)?),
                    }
                };
                if stays {
                    return Ok(result);
                }
            }
        }
    }
}

#[inline]
fn begin<'a>(mapping: &'a Mapping, seat: &Seat) -> Result<Transaction<'a>, Error> {
    let preamble = mapping.preamble();
    loop {
        let guard = match preamble.lock.try_acquire(seat.owner()) {
            Some(guard) => guard,
            None => acquire(mapping, seat)?,
        };
        // Whoever is stopped up to here may be left behind before it knows where: then to move is its robber's business, and
        // the area that it reads somebody else's. HB area: the lock is asked after what a robber says after robbing it.
        let is_ours = || preamble.lock.owner() == Some(seat.owner());
        if areas::must_leave(preamble) && is_ours() {
            move_on(mapping)?;
        }
        let area = areas::current(preamble);
        if is_ours() {
            return Ok(Transaction::begin(preamble, Area::of(mapping.words(), area), guard));
        }
    }
}

/// Takes the lock from whoever does not give it back: a dead holder, or one that has not run for too long.
#[cold]
fn acquire<'a>(mapping: &'a Mapping, seat: &Seat) -> Result<Guard<'a>, Error> {
    let preamble = mapping.preamble();
    let mut overdue = None;
    let mut copying = 0;
    for _ in 0..PATIENCES {
        let judge =
            |owner| if Some(owner) == overdue { Liveness::Dead } else { life(mapping, owner) };
        match preamble.lock.acquire(seat.owner(), TIMEOUT, judge) {
            Ok(Acquired::TakenOver(guard, owner)) if life(mapping, owner) == Liveness::Alive => {
                let generation = preamble.generation[owner.slot().get()].load(Ordering::Acquire);
                areas::strand(preamble, generation << 8 | u64::from(owner.slot().0));
                return Ok(guard);
            }
            Ok(acquired) => {
                if matches!(acquired, Acquired::TakenOver(..)) {
                    preamble.takeovers.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(acquired.guard());
            }
            // Threads of this process have its name: it cannot be left behind by itself.
            Err(HeldBy(owner)) if owner == seat.owner() => {}
            // Whoever leaves somebody behind copies for milliseconds, and may be descheduled as well. Robbed in its turn it
            // would go on writing to the area that its robber chooses too.
            Err(HeldBy(_)) if areas::must_leave(preamble) && copying < COPYING => copying += 1,
            Err(HeldBy(owner)) => overdue = Some(owner),
        }
    }
    Err(Error::Stuck(
        "a thread of this process has held the simulated GPU's lock for a minute".to_owned(),
    ))
}

#[cold]
fn move_on(mapping: &Mapping) -> Result<(), Error> {
    let is_gone = |who: u64| {
        let slot = SlotIndex(who.to_le_bytes()[0]);
        life(mapping, Owner::new(slot, Generation::from_bits(who >> 8))) == Liveness::Dead
    };
    let moved = mapping
        .reopen()
        .and_then(|file| areas::move_on(mapping.preamble(), mapping.words(), &file, is_gone));
    moved.map_err(|error| Error::System(format!("leaving a stopped process behind: {error}")))
}

fn life(mapping: &Mapping, owner: Owner) -> Liveness {
    // HB generation: Acquire.
    let generation = mapping.preamble().generation[owner.slot().get()].load(Ordering::Acquire);
    if !owner.is(Generation::from_bits(generation)) {
        return Liveness::Dead;
    }
    mapping.lifelines.life(owner.slot()).unwrap_or(Liveness::Alive)
}

/// What is known of a slot, without the lock: out of date as soon as it is known.
fn state_of(mapping: &Mapping, slot: SlotIndex) -> ProcessState {
    let area = Area::of(mapping.words(), areas::current(mapping.preamble()));
    ProcessState::of(area.words[timeline::process_state_at(slot.get()).0].load(Ordering::Relaxed))
}
