//! The machine that a process sees: what the CUDA and NVML calls are made of.
//!
//! One [`Machine`] per loaded library; it attaches the process to the segment with a slot of its own. All methods take
//! `&self` and may be called from any thread. None of them is meant to be called from a signal handler or an at-fork
//! handler.
//!
//! * A forked child finds its parent's machine unusable: every method answers [`Error::Forked`], touches nothing
//!   shared, and the child opens one of its own if it wants one ([`Machine::is_inherited`]).
//! * Enqueuing calls give a [`Ticket`]; [`Machine::wait`] blocks until it is done and its host-visible effects are
//!   performed.
//! * A call that finds the stream's queue full blocks, as the driver's does.
//! * Host-visible effects (copies, fills, memory writes, host functions) are performed in order by a thread of the
//!   process when they are due, because programs poll plain memory; whoever waits performs those that are due by then.
//!
//! A blocking call asks the timeline for a forecast, sleeps to it, and looks again: whatever arrived meanwhile has
//! changed it.

mod accounting;
mod accounts;
mod allocations;
mod bytes;
mod checkpoints;
mod contexts;
mod effects;
mod events;
mod graph;
mod helper;
mod order;
mod physical;
mod plan;
mod pools;
mod semaphores;
mod shares;
mod streams;
mod teams;
mod trail;
mod utilisation;
mod work;

use core::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cgpu_shm::atomic::AtomicBool;
use cgpu_shm::units::Nanos;

pub use crate::memory::{
    Access, Allocation, MappedRange, Member, Offer, Origin, PhysicalId, PhysicalInfo,
    PhysicalPlace, PoolId, PoolSettings, PoolUsage, Reuse, Sendable, Side,
};
pub use crate::timeline::Progress;
pub use crate::timeline::{
    ClockRate, ContextId, EngineTime, EventId, GREATEST_PRIORITY, GpuSample, ProcessSample,
    ProcessUse, SemaphoreId, Site, StreamId, Team, Ticket, Xid,
};
pub use accounting::Life;
pub use allocations::MemoryInfo;
pub use checkpoints::Entered;
pub use events::milliseconds;
pub use graph::Flight;
pub use plan::{Plan, Step, Work};
pub use shares::Number;
pub use streams::StreamKind;
pub use trail::trail;
use utilisation::REAP;
pub use utilisation::Utilisation;
pub use work::{CopyKind, Fill, Launch, Pitched, WaitCondition, Width};

use effects::Effects;
use graph::Tracks;
use helper::{Alarm, Helper};
use order::Order;

use crate::clock::Clock;
use crate::error::Error;
use crate::gpu::GpuSpec;
use crate::memory::{Files, Memory};
use crate::segment::{Segment, Transaction};
use crate::settings::{Figures, Settings};
use crate::timeline::{Forecast, Timeline};

/// An attached process. Dropping it detaches: contexts go at once.
#[derive(Debug)]
pub struct Machine {
    /// Of no use in a forked child, which must not drop it.
    core: ManuallyDrop<Arc<Core>>,
    helper: ManuallyDrop<Mutex<Option<Helper>>>,
}

/// What calls and the helper thread share.
#[derive(Debug)]
struct Core {
    segment: Segment,
    clock: Clock,
    memory: Mutex<Memory>,
    /// The bytes of exports.
    files: Files,
    /// Whether there ever was a pool.
    pooling: AtomicBool,
    /// Locked before the memory.
    order: Mutex<Order>,
    effects: Effects,
    tracks: Tracks,
    alarm: Alarm,
}

/// Nothing that a panic could leave half done is under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a waiter sleeps when nothing says that what it waits for will ever come.
const POLL: Nanos = Nanos::from_micros(200);
/// The longest sleep: a death nearby makes things come earlier than forecast.
const LONGEST: Nanos = Nanos::from_millis(10);

impl Machine {
    /// Opens the machine that the environment names, making it if need be.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Segment`], [`Error::Full`] when all slots are taken.
    pub fn from_environment() -> Result<Self, Error> {
        Self::open(&Settings::from_environment()?)
    }

    /// Opens the machine with the given settings on the real clock. What others use already counts as it is, and must
    /// have the GPUs that the settings name; what nobody uses is made anew if the settings differ.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let segment = Segment::open(settings)?;
        let clock = Clock::Real { dilation_milli: segment.dilation_milli() };
        Ok(Self::with(segment, clock))
    }

    /// Opens the machine with a clock of the caller's choice. On a virtual clock there is no thread: effects are
    /// performed by calls, and waiting moves the clock.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open_with(settings: &Settings, clock: Clock) -> Result<Self, Error> {
        Ok(Self::with(Segment::open(settings)?, clock))
    }

    fn with(segment: Segment, clock: Clock) -> Self {
        let memory = Memory::new(segment.gpus().iter().map(|gpu| gpu.total).collect());
        let files = Files::beside(segment.path());
        let core = Core {
            segment,
            clock,
            memory: Mutex::new(memory),
            files,
            pooling: AtomicBool::new(false),
            order: Mutex::default(),
            effects: Effects::default(),
            tracks: Tracks::default(),
            alarm: Alarm::default(),
        };
        Self {
            core: ManuallyDrop::new(Arc::new(core)),
            helper: ManuallyDrop::new(Mutex::new(None)),
        }
    }

    /// Whether this machine is the parent's and this process a forked child.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.core.segment.is_inherited()
    }

    /// The GPUs, in order.
    #[must_use]
    pub fn gpus(&self) -> &[GpuSpec] {
        self.core.segment.gpus()
    }

    /// The model's figures.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        self.core.segment.figures()
    }

    /// Thousandths of real time per device time.
    #[must_use]
    pub fn dilation_milli(&self) -> u64 {
        self.core.segment.dilation_milli()
    }

    /// Device time. At dilation 1 it is `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.core.clock.now()
    }

    fn check_lineage(&self) -> Result<(), Error> {
        if self.is_inherited() { Err(Error::Forked) } else { Ok(()) }
    }

    fn check_gpu(&self, gpu: usize) -> Result<(), Error> {
        if gpu < self.gpus().len() { Ok(()) } else { Err(Error::NoGpu) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A child has neither the threads nor the mappings, and perhaps finds the locks taken.
        if self.is_inherited() {
            return;
        }
        if let Some(helper) = lock(&self.helper).take() {
            self.core.alarm.stop();
            helper.join();
        }
        // Should the lock not be had, the process's death does the same a little later.
        let _ = self.core.with(|timeline, now| {
            timeline.detach(self.core.segment.process(), now);
            Ok(())
        });
        let _ = self.core.bury_exports();
        // SAFETY: not used again: this is the drop; not dropped before: nobody else does.
        unsafe { ManuallyDrop::drop(&mut self.core) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.helper) };
    }
}

impl Core {
    /// One operation: the timeline is advanced to now, then changed by `operation`; if that fails nothing of it stays.
    /// It may be done more than once ([`Segment::transact`]).
    #[inline]
    fn with<R>(
        &self,
        mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>, Nanos) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.segment.transact(|timeline| {
            // Read under the lock, so that nobody else has been further.
            let now = timeline.advance(self.clock.now());
            operation(timeline, now)
        })
    }

    /// The GPU of a context, if the context is this process's.
    fn own_context(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        context: ContextId,
    ) -> Result<usize, Error> {
        match timeline.place_of(context) {
            Some((gpu, process)) if process == self.segment.process() => Ok(gpu),
            _ => Err(Error::NoContext),
        }
    }

    fn own_stream(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        stream: StreamId,
    ) -> Result<ContextId, Error> {
        let context = timeline.context_of_stream(stream).ok_or(Error::NoStream)?;
        self.own_context(timeline, context).map_err(|_| Error::NoStream)?;
        Ok(context)
    }

    /// The context of an event that this process may record and wait for.
    fn own_event(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        event: EventId,
    ) -> Result<ContextId, Error> {
        let context = timeline.context_of_event(event).ok_or(Error::NoEvent)?;
        // One with a name is every process's.
        if timeline.name_of_event(event).is_none() {
            self.own_context(timeline, context).map_err(|_| Error::NoEvent)?;
        }
        Ok(context)
    }

    /// Blocks until the host can see that all tickets are done, and performs the effects that are due by then.
    fn wait_for(&self, tickets: &[Ticket]) -> Result<(), Error> {
        let mut visible = None;
        loop {
            let now = self.clock.now();
            let wake = match visible {
                Some(instant) if instant <= now => break,
                Some(instant) => instant,
                None => self.with(|timeline, now| {
                    // The latest of all, if all are done.
                    visible = tickets.iter().try_fold(Nanos::ZERO, |latest, &ticket| {
                        Some(latest.max(timeline.visible_at(ticket)?))
                    });
                    Ok(match visible {
                        Some(instant) => instant,
                        None => match timeline.forecast(tickets) {
                            Forecast::At(instant) => instant + timeline.figures().visibility,
                            Forecast::NotBefore(instant) => instant,
                            Forecast::Unknown => now + POLL,
                        },
                    })
                })?,
            };
            self.clock.wait_until(wake.min(now + LONGEST));
            if matches!(self.clock, Clock::Virtual(_)) {
                self.perform_due()?;
            }
        }
        self.perform_due()
    }
}
