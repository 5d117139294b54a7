//! The segment: the file that every client of a machine maps.
//!
//! ```text
//!   preamble: magic, figures, GPUs, lock, generations | area | area | ...
//!                                                       area: undo log, the timeline's words
//! ```
//!
//! * **The lock** is shm's: a word with its holder's slot, taken over when the holder has died.
//! * **Every change** goes through the undo log ([`Transaction`]). The next holder of the lock
//!   rolls back what an exited holder left.
//! * **A stopped holder** is preempted (`areas`), and repeats its operation when it continues.
//! * **Liveness** is shm's: a lock on a byte of the file that ends with the process's memory.
//! * A **forked child** has neither the mapping nor the byte; a page that the kernel wipes tells it
//!   so ([`ForkDetector`]).

mod areas;
mod file;
mod fork;
mod journal;
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
use cgpu_shm::slots::SlotLocks;
use cgpu_shm::units::{Generation, Nanos, SlotIndex};
use file::Mapping;
use journal::Ended;

use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::identity::{Anchor, Identity};
use crate::settings::{Figures, Settings};
use crate::timeline::{self, ProcessState, Progress, Timeline};

pub use fork::ForkDetector;
pub use journal::Transaction;

/// Timeout for one live holder of the lock before it is preempted. Critical sections take
/// microseconds, a descheduled holder on a busy host some milliseconds.
const LOCK_TIMEOUT: Nanos = Nanos::from_millis(20);
/// Timeouts for a holder that copies an area. Its death is noticed at once all the same.
const COPY_TIMEOUTS: u32 = 100;
/// Timeouts for another thread of the same process: a stop affects both.
const MAX_TIMEOUTS: u32 = 3_000;

/// The mapped segment, with a slot of this process.
#[derive(Debug)]
pub struct Segment {
    /// Both are gone in a forked child, which must not drop them.
    mapping: ManuallyDrop<Mapping>,
    claim: ManuallyDrop<Claim>,
    fork_detector: ForkDetector,
    figures: Figures,
    gpus: Vec<GpuSpec>,
    time_scale_milli: u64,
}

#[derive(Debug)]
struct Claim {
    slot: SlotIndex,
    generation: Generation,
    /// Held by the thread that has the lock or waits for it: the lock knows processes, not threads.
    alone: Mutex<()>,
    _liveness_lock: LivenessLock,
    _anchor: Option<Anchor>,
}

impl Claim {
    fn owner(&self) -> Owner {
        Owner::new(self.slot, self.generation)
    }
}

impl Segment {
    /// Opens the segment, creating it if needed, and attaches this process.
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
            let time_scale_milli = preamble.time_scale_milli();
            match attach(&mapping, &figures, &gpus) {
                Ok(claim) => {
                    return Ok(Self {
                        mapping: ManuallyDrop::new(mapping),
                        claim: ManuallyDrop::new(claim),
                        fork_detector: ForkDetector::new().map_err(system)?,
                        figures,
                        gpus,
                        time_scale_milli,
                    });
                }
                // The file was replaced before a slot was claimed in it.
                Err(ClaimError::Replaced) => {}
                Err(ClaimError::System(error)) => return Err(system(error)),
                Err(ClaimError::Error(error)) => return Err(error),
            }
        }
    }

    /// Runs one operation: locks the segment, applies `operation`, and keeps its changes if it
    /// succeeds. It runs again if this process was preempted in the middle, so it must be
    /// repeatable. Operations do not nest.
    ///
    /// # Errors
    /// The operation's own, when nothing of it stays; [`Error::Forked`]; [`Error::Stuck`],
    /// [`Error::System`].
    #[inline]
    pub fn transact<R>(
        &self,
        operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.fork_detector.is_child() {
            return Err(Error::Forked);
        }
        transact(&self.mapping, &self.claim, &self.figures, operation)
    }

    /// Returns this process's number in the timeline.
    #[must_use]
    pub fn process(&self) -> usize {
        self.claim.slot.get()
    }

    /// Returns the identity of a process whose id in its own PID namespace is `pid`.
    #[must_use]
    pub fn identity(&self, process: usize, pid: u32) -> Identity {
        let [namespace, device, inode] = self.mapping.preamble().identity[process]
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        Identity { pid, namespace, anchor: (device, inode) }
    }

    /// Counts one more call in progress of this process, unless it is locked.
    #[must_use]
    pub fn enter(&self) -> bool {
        let slot = self.process();
        self.mapping.preamble().calls[slot][0].fetch_add(1, Ordering::SeqCst);
        // HB calls: a call is counted before it reads the state, and a locking process sets the
        // state before it reads the count: one of the two sees the other. Hence the fences, which
        // order a store before a load.
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

    /// Ends a counted call of this process.
    pub fn leave(&self) {
        if !self.fork_detector.is_child() {
            self.mapping.preamble().calls[self.process()][0].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Returns whether a process has no call in progress.
    #[must_use]
    pub fn is_quiet(&self, process: usize) -> bool {
        // HB calls.
        fence(Ordering::SeqCst);
        self.mapping.preamble().calls[process][0].load(Ordering::SeqCst) == 0
    }

    /// Returns whether this process is a forked child of the one that opened the segment.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.fork_detector.is_child()
    }

    /// Returns the path of the segment's file.
    #[must_use]
    pub fn path(&self) -> &std::path::Path {
        self.mapping.path()
    }

    /// Returns the figures of the segment.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Returns the GPUs of the segment.
    #[must_use]
    pub fn gpus(&self) -> &[GpuSpec] {
        &self.gpus
    }

    /// Returns the time scale of the segment, in thousandths.
    #[must_use]
    pub fn time_scale_milli(&self) -> u64 {
        self.time_scale_milli
    }

    /// Returns how many processes have died while they held the lock.
    #[must_use]
    pub fn takeovers(&self) -> u64 {
        if self.fork_detector.is_child() {
            0
        } else {
            self.mapping.preamble().takeovers.load(Ordering::Relaxed)
        }
    }

    /// Checks for exited processes, and ends their contexts after the figures' delay. At most once
    /// per `interval` for all clients together.
    ///
    /// # Errors
    /// As [`Segment::transact`].
    pub fn reap(&self, now: Nanos, interval: Nanos) -> Result<(), Error> {
        if !self.transact(|timeline| Ok(timeline.may_reap(now, interval)))? {
            return Ok(());
        }
        for (slot, generation) in exited_processes(&self.mapping) {
            self.transact(|timeline| {
                // Unless it detached meanwhile, or another client was first.
                if timeline.process_state(slot.get()) == ProcessState::Live
                    && generation_of(&self.mapping, slot) == generation
                {
                    let now = timeline.advance(now);
                    timeline.die(slot.get(), now);
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.fork_detector.is_child() {
            return;
        }
        // SAFETY: dropped exactly once, here, and not used afterwards: this is the drop.
        unsafe { ManuallyDrop::drop(&mut self.claim) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.mapping) };
    }
}

/// The reason why a process got no slot.
enum ClaimError {
    /// Another file has the name.
    Replaced,
    System(io::Error),
    Error(Error),
}

impl From<io::Error> for ClaimError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::NotFound { Self::Replaced } else { Self::System(error) }
    }
}

impl From<Error> for ClaimError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn attach(mapping: &Mapping, figures: &Figures, gpus: &[GpuSpec]) -> Result<Claim, ClaimError> {
    let (identity, mut anchor) = Anchor::create();
    let is_free = |slot: &SlotIndex| state_of(mapping, *slot) == ProcessState::Free;
    // Where none is free, that of an exited process which no client has noticed yet.
    for slot in SlotIndex::all().filter(is_free).chain(SlotIndex::all()) {
        let Some(liveness_lock) = mapping.liveness_locks.hold(slot)? else { continue };
        let word = &mapping.preamble().generation[slot.get()];
        let generation = Generation::from_bits(word.load(Ordering::Relaxed)).next();
        // HB generation: Release, for a process that checks whether a lock's owner still has its
        // slot.
        word.store(generation.get(), Ordering::Release);
        let Identity { namespace, anchor: (device, inode), .. } = identity;
        mapping.preamble().calls[slot.get()][0].store(0, Ordering::Relaxed);
        for (word, value) in
            mapping.preamble().identity[slot.get()].iter().zip([namespace, device, inode])
        {
            word.store(value, Ordering::Relaxed);
        }
        let mut claim = Claim {
            slot,
            generation,
            alone: Mutex::default(),
            _liveness_lock: liveness_lock,
            _anchor: None,
        };
        let exited = if figures.persistence == 0 { exited_processes(mapping) } else { Vec::new() };
        transact(mapping, &claim, figures, |timeline| {
            if figures.persistence == 0 && !has_users(mapping, timeline, slot, &exited) {
                // The first client since the driver has let the GPUs go.
                timeline.clear_limits();
            }
            // Its process has exited: its liveness lock is ours.
            if timeline.process_state(slot.get()) != ProcessState::Free {
                let now = timeline.now();
                timeline.detach(slot.get(), now);
            }
            for (index, gpu) in gpus.iter().enumerate() {
                timeline.install(index, gpu.usable());
                if gpu.domains() > 1 {
                    timeline.set_domains(index, gpu.domains(), gpu.domain_room());
                }
            }
            timeline.attach(slot.get(), identity.pid);
            timeline.set_identity(slot.get(), [namespace, device, inode]);
            Ok(())
        })?;
        claim._anchor = anchor.take();
        return Ok(claim);
    }
    Err(Error::Full("processes").into())
}

/// Returns the processes that have exited, noticed or not, with their generations. Liveness checks
/// are system calls, so they are made without the lock.
fn exited_processes(mapping: &Mapping) -> Vec<(SlotIndex, u64)> {
    SlotIndex::all()
        .filter(|&slot| state_of(mapping, slot) == ProcessState::Live)
        .map(|slot| (slot, generation_of(mapping, slot)))
        .filter(|&(slot, _)| matches!(mapping.liveness_locks.liveness(slot), Ok(Liveness::Exited)))
        .collect()
}

/// Returns whether a process other than `own` uses the GPUs, of which `exited` no longer do.
fn has_users(
    mapping: &Mapping,
    timeline: &Timeline<'_, Transaction<'_>>,
    own: SlotIndex,
    exited: &[(SlotIndex, u64)],
) -> bool {
    SlotIndex::all().any(|slot| {
        slot != own
            && timeline.process_state(slot.get()) == ProcessState::Live
            && !exited.contains(&(slot, generation_of(mapping, slot)))
    })
}

fn generation_of(mapping: &Mapping, slot: SlotIndex) -> u64 {
    mapping.preamble().generation[slot.get()].load(Ordering::Acquire)
}

#[inline]
fn transact<R>(
    mapping: &Mapping,
    claim: &Claim,
    figures: &Figures,
    mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>) -> Result<R, Error>,
) -> Result<R, Error> {
    // A panic cannot leave the data under this lock inconsistent.
    let _alone = claim.alone.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let mut transaction = begin(mapping, claim)?;
        let result = operation(&mut Timeline::new(&mut transaction, figures))?;
        match transaction.commit() {
            Ended::Committed => return Ok(result),
            Ended::Preempted(preempted) => {
                let is_committed = loop {
                    match preempted.is_committed(mapping.preamble()) {
                        Some(is_committed) => break is_committed,
                        None => drop(begin(mapping, claim)?),
                    }
                };
                if is_committed {
                    return Ok(result);
                }
            }
        }
    }
}

#[inline]
fn begin<'a>(mapping: &'a Mapping, claim: &Claim) -> Result<Transaction<'a>, Error> {
    let preamble = mapping.preamble();
    loop {
        let guard = match preamble.lock.try_acquire(claim.owner()) {
            Some(guard) => guard,
            None => acquire(mapping, claim)?,
        };
        // A process that is stopped up to here may be preempted before it knows: then moving is the
        // other's job, and the area that it reads may already be in use by others. HB area: the
        // lock is read after what the preempting process stores after taking it.
        let is_ours = || preamble.lock.owner() == Some(claim.owner());
        if areas::is_abandoned(preamble) && is_ours() {
            move_to_free_area(mapping)?;
        }
        let area = areas::current(preamble);
        if is_ours() {
            return Ok(Transaction::begin(preamble, Area::of(mapping.words(), area), guard));
        }
    }
}

/// Takes the lock from an exited holder, or from one that has not run for too long.
#[cold]
fn acquire<'a>(mapping: &'a Mapping, claim: &Claim) -> Result<Guard<'a>, Error> {
    let preamble = mapping.preamble();
    let mut overdue = None;
    let mut copying = 0;
    for _ in 0..MAX_TIMEOUTS {
        let judge = |owner| {
            if Some(owner) == overdue { Liveness::Exited } else { liveness(mapping, owner) }
        };
        match preamble.lock.acquire(claim.owner(), LOCK_TIMEOUT, judge) {
            Ok(Acquired::TakenOver(guard, owner))
                if liveness(mapping, owner) == Liveness::Alive =>
            {
                let generation = preamble.generation[owner.slot().get()].load(Ordering::Acquire);
                areas::abandon(preamble, generation << 8 | u64::from(owner.slot().0));
                return Ok(guard);
            }
            Ok(acquired) => {
                if matches!(acquired, Acquired::TakenOver(..)) {
                    preamble.takeovers.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(acquired.guard());
            }
            // The holder is a thread of this process: it cannot be preempted by its own process.
            Err(HeldBy(owner)) if owner == claim.owner() => {}
            // A preempting process copies for milliseconds, and may be descheduled as well.
            // Preempted in turn, it would go on writing to the area that the next one chooses, too.
            Err(HeldBy(_)) if areas::is_abandoned(preamble) && copying < COPY_TIMEOUTS => {
                copying += 1
            }
            Err(HeldBy(owner)) => overdue = Some(owner),
        }
    }
    Err(Error::Stuck(
        "a thread of this process has held the simulated GPU's lock for a minute".to_owned(),
    ))
}

#[cold]
fn move_to_free_area(mapping: &Mapping) -> Result<(), Error> {
    let is_gone = |holder: u64| {
        let slot = SlotIndex(holder.to_le_bytes()[0]);
        liveness(mapping, Owner::new(slot, Generation::from_bits(holder >> 8))) == Liveness::Exited
    };
    let moved = mapping.reopen().and_then(|file| {
        areas::move_to_free_area(mapping.preamble(), mapping.words(), &file, is_gone)
    });
    moved.map_err(|error| Error::System(format!("cannot preempt a stopped process: {error}")))
}

fn liveness(mapping: &Mapping, owner: Owner) -> Liveness {
    // HB generation: Acquire.
    let generation = mapping.preamble().generation[owner.slot().get()].load(Ordering::Acquire);
    if !owner.is(Generation::from_bits(generation)) {
        return Liveness::Exited;
    }
    mapping.liveness_locks.liveness(owner.slot()).unwrap_or(Liveness::Alive)
}

/// Returns the state of a slot, without the lock: possibly out of date.
fn state_of(mapping: &Mapping, slot: SlotIndex) -> ProcessState {
    let area = Area::of(mapping.words(), areas::current(mapping.preamble()));
    ProcessState::of(area.words[timeline::process_state_at(slot.get()).0].load(Ordering::Relaxed))
}
