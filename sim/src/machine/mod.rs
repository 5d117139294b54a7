//! The machine that a process sees: the operations behind the CUDA and NVML calls.
//!
//! Each loaded library has one [`Machine`], which attaches the process to the segment with a slot
//! of its own. All methods take `&self` and may be called from any thread, but not from signal or
//! at-fork handlers.
//!
//! * In a forked child every method answers [`Error::Forked`] and touches nothing shared. The child
//!   can open a machine of its own ([`Machine::is_inherited`]).
//! * Enqueuing calls return a [`Ticket`]. [`Machine::wait`] blocks until it is done and its
//!   host-visible effects are performed.
//! * A call that finds the stream's queue full blocks, as the driver's does.
//! * Host-visible effects (copies, fills, memory writes, host functions) are performed in order by
//!   a thread of the process when they are due, because programs poll plain memory. A waiting call
//!   also performs those that are due.
//!
//! A blocking call gets a forecast from the timeline, sleeps until then, and checks again: new
//! commands may have changed it.

mod accounting;
mod allocations;
mod bytes;
mod checkpoints;
mod contexts;
mod effects;
mod enqueued;
mod events;
mod exports;
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
mod utilisation;
mod wall;
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
pub use accounting::AccountingStats;
pub use allocations::MemoryInfo;
pub use checkpoints::Entered;
pub use enqueued::record_enqueued;
pub use events::milliseconds;
pub use graph::Flight;
pub use plan::{Plan, Step, Work};
pub use shares::ExportNumber;
pub use streams::StreamKind;
use utilisation::REAP_INTERVAL;
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

/// An attached process. Dropping it detaches and destroys its contexts.
#[derive(Debug)]
pub struct Machine {
    /// Unusable in a forked child, which must not drop it.
    core: ManuallyDrop<Arc<Core>>,
    helper: ManuallyDrop<Mutex<Option<Helper>>>,
}

/// State shared by calls and the helper thread.
#[derive(Debug)]
struct Core {
    segment: Segment,
    clock: Clock,
    memory: Mutex<Memory>,
    /// The bytes of exports.
    files: Files,
    /// Whether a pool was ever created.
    has_pools: AtomicBool,
    /// The ids of this process's control group and its ancestors, when it last used memory.
    control_group: Mutex<Vec<u64>>,
    /// Locked before the memory.
    order: Mutex<Order>,
    effects: Effects,
    tracks: Tracks,
    alarm: Alarm,
}

/// Locks a mutex whose data a panic cannot leave inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Poll interval when nothing forecasts the awaited event.
const POLL_INTERVAL: Nanos = Nanos::from_micros(200);
/// Maximum sleep: the death of another process makes things happen earlier than forecast.
const MAX_SLEEP: Nanos = Nanos::from_millis(10);

impl Machine {
    /// Opens the machine that the environment names, creating it if needed.
    ///
    /// # Errors
    /// [`Error::Settings`], [`Error::Segment`], [`Error::Full`] when all slots are taken.
    pub fn from_environment() -> Result<Self, Error> {
        Self::open(&Settings::from_environment()?)
    }

    /// Opens the machine with the given settings on the real clock. A machine in use must have the
    /// GPUs that the settings name; one that is not in use is created anew if the settings differ.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open(settings: &Settings) -> Result<Self, Error> {
        let segment = Segment::open(settings)?;
        let clock = Clock::Real { time_scale_milli: segment.time_scale_milli() };
        Ok(Self::with(segment, clock))
    }

    /// Opens the machine with the given clock. A virtual clock has no helper thread: calls perform
    /// effects, and waits move the clock.
    ///
    /// # Errors
    /// As [`Machine::from_environment`].
    pub fn open_with(settings: &Settings, clock: Clock) -> Result<Self, Error> {
        Ok(Self::with(Segment::open(settings)?, clock))
    }

    fn with(segment: Segment, clock: Clock) -> Self {
        let memory = Memory::new(segment.gpus().iter().map(|gpu| gpu.total).collect());
        let files = Files::of_segment(segment.path());
        let core = Core {
            segment,
            clock,
            memory: Mutex::new(memory),
            files,
            has_pools: AtomicBool::new(false),
            control_group: Mutex::default(),
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

    /// Returns whether this process is a forked child and the machine its parent's.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.core.segment.is_inherited()
    }

    /// Returns the GPUs, in order.
    #[must_use]
    pub fn gpus(&self) -> &[GpuSpec] {
        self.core.segment.gpus()
    }

    /// Returns the model's figures.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        self.core.segment.figures()
    }

    /// Returns real time per device time, in thousandths.
    #[must_use]
    pub fn time_scale_milli(&self) -> u64 {
        self.core.segment.time_scale_milli()
    }

    /// Returns the device time now: `CLOCK_MONOTONIC` divided by the time scale.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.core.clock.now()
    }

    fn check_not_forked(&self) -> Result<(), Error> {
        if self.is_inherited() { Err(Error::Forked) } else { Ok(()) }
    }

    fn check_gpu(&self, gpu: usize) -> Result<(), Error> {
        if gpu < self.gpus().len() { Ok(()) } else { Err(Error::NoGpu) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A child has neither the threads nor the mappings, and may find the locks taken.
        if self.is_inherited() {
            return;
        }
        if let Some(helper) = lock(&self.helper).take() {
            self.core.alarm.stop();
            helper.join();
        }
        // If this fails, reclaiming the exited process does the same a little later.
        let _ = self.core.with(|timeline, now| {
            timeline.detach(self.core.segment.process(), now);
            Ok(())
        });
        let _ = self.core.end_unused_exports();
        // SAFETY: dropped exactly once, here, and not used afterwards: this is the drop.
        unsafe { ManuallyDrop::drop(&mut self.core) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.helper) };
    }
}

impl Core {
    /// Runs one operation: advances the timeline to now, then applies `operation`. A failure leaves
    /// nothing of it. It may run more than once ([`Segment::transact`]).
    #[inline]
    fn with<R>(
        &self,
        mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>, Nanos) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.segment.transact(|timeline| {
            // Read under the lock, so that no other process has advanced further.
            let now = timeline.advance(self.clock.now());
            operation(timeline, now)
        })
    }

    /// Returns the GPU of a context of this process.
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

    /// Returns the context of an event that this process may record and wait for.
    fn own_event(
        &self,
        timeline: &Timeline<'_, Transaction<'_>>,
        event: EventId,
    ) -> Result<ContextId, Error> {
        let context = timeline.context_of_event(event).ok_or(Error::NoEvent)?;
        // A named event is open to every process.
        if timeline.name_of_event(event).is_none() {
            self.own_context(timeline, context).map_err(|_| Error::NoEvent)?;
        }
        Ok(context)
    }

    /// Blocks until the host can see that all tickets are done, and performs the effects that are
    /// due.
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
                            Forecast::Unknown => now + POLL_INTERVAL,
                        },
                    })
                })?,
            };
            self.clock.wait_until(wake.min(now + MAX_SLEEP));
            if matches!(self.clock, Clock::Virtual(_)) {
                self.perform_due()?;
            }
        }
        self.perform_due()
    }
}
