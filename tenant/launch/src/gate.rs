//! The gate: admits launches in the container's turns and measures the GPU time they take.
//! `docs/internals/turns.md` describes the protocol.
//!
//! ```text
//!   launch --> gate word is the open one? -------------------> the driver   two loads and a branch
//!                |  no
//!                +--> Thread::spend: budget left under it? --> the driver   a table of the thread
//!                       |  no
//!                       +--> Gate::before_launch, the driver, Gate::after_launch   the slow path
//!                              |
//!                              slow_path      the steps admit, wait, measure
//!                              marker         events and writes on the streams
//!                              admission      proceed, sleep or wait             pure
//!                              sibling_queue  order of sibling processes         pure
//!                              context_queue  order of the process's contexts    pure
//!                              account        what is owed, in which turn        pure
//!                              crate::gpu_time, crate::cost                      pure
//!                              platform       the driver, time                   traits
//! ```
//!
//! The slow path is taken every 250 us of launched work and whenever the gate word changes. It
//! charges the thread's launches and puts a marker behind them: a timing event and a memory write
//! on the launch's own stream. It then measures what has ended and sets a budget for the next
//! launches.
//!
//! Locks: one per GPU and process. It is never held across a call of the driver, a sleep or a wait.
//! Only one thread at a time queries a GPU's events; the others go on without measuring.

mod account;
mod admission;
mod admit;
mod context_queue;
mod marker;
mod measure;
mod platform;
mod reading;
mod sibling_queue;
mod slow_path;
mod thread;
mod wait;

use std::fmt;
use std::time::{Duration, Instant};

use cgpu_shm::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use cgpu_shm::grant::{Heartbeat, Turn, TurnState};
use cgpu_shm::layout::{Cell, GPUS};
use cgpu_shm::region::Region;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::units::{Nanos, SlotIndex};

use self::account::{Account, Siblings};
pub use self::platform::{Driver, DriverError, Host, Platform};
use self::reading::Reading;
use self::sibling_queue::SiblingQueue;
use self::slow_path::SlowPath;
pub use self::thread::Thread;
pub use crate::cost::Kernel;
pub use crate::gpu_time::{ContextKey, Event, Stream};
use crate::gpu_time::{LaneId, ThreadKey};
pub use cgpu_shm::clock::Clocks;
use cgpu_shm::reason::Reason;
use cgpu_shm::spin::Spin;
use cgpu_shm::units::DeviceIndex as Gpu;

/// How long a context's end waits for another thread that queries its events.
const QUERY_TIMEOUT: Duration = Duration::from_millis(20);

/// A launch at the gate.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// What is launched.
    pub kernel: Kernel,
    /// Where to.
    pub stream: Stream,
    /// The calling thread's current context.
    pub context: ContextKey,
    /// The context's GPU.
    pub gpu: Gpu,
    /// It uses programmatic stream serialization: no marker may come between it and its predecessor
    /// on the stream.
    pub programmatic: bool,
    /// Its cost may differ from one launch to the next, so each takes the slow path.
    pub variable_cost: bool,
}

/// A metered launch that was admitted, until the driver has answered.
#[derive(Clone, Copy, Debug)]
#[must_use = "pass it to after_launch with the driver's answer"]
pub struct Admitted {
    launch: Launch,
    lane: Option<LaneId>,
    cost: Nanos,
    /// A marker follows it, so that it is measured by itself.
    needs_marker: bool,
}

/// The gate of one process.
pub struct Gate<'r> {
    region: &'r Region,
    slot: SlotIndex,
    /// The gate word under which this process has found all GPUs open.
    open: &'r AtomicU32,
    heartbeat: Heartbeat,
    threads: AtomicU32,
    /// The first context that launched.
    context: AtomicUsize,
    /// Set once a second context has launched. A thread may change contexts between two launches,
    /// so no thread gets a budget then: each launch takes the slow path.
    several_contexts: AtomicBool,
    devices: [DeviceGate; GPUS],
}

struct DeviceGate {
    account: Spin<Account>,
    /// A thread is querying the driver for event times.
    measuring: AtomicBool,
}

impl fmt::Debug for Gate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("slot", &self.slot)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

impl<'r> Gate<'r> {
    /// Makes the gate of the process in `slot`. Launches under the gate word in `open` go straight
    /// to the driver.
    #[must_use]
    pub fn new(region: &'r Region, slot: SlotIndex, open: &'r AtomicU32) -> Self {
        open.store(0, Ordering::Relaxed);
        Self {
            region,
            slot,
            open,
            heartbeat: Heartbeat::default(),
            threads: AtomicU32::new(0),
            context: AtomicUsize::new(0),
            several_contexts: AtomicBool::new(false),
            devices: core::array::from_fn(|_| DeviceGate {
                account: Spin::new(Account::new()),
                measuring: AtomicBool::new(false),
            }),
        }
    }

    /// Waits until the launch may proceed. Returns none if it is not metered.
    pub fn before_launch(
        &self,
        thread: &Thread,
        launch: Launch,
        driver: &impl Driver,
        platform: &impl Platform,
    ) -> Option<Admitted> {
        // A launch from a signal handler that interrupted the gate is not held.
        if !thread.enter() {
            return None;
        }
        let admitted =
            SlowPath { gate: self, key: self.key(thread), thread, launch, driver, platform }
                .before_launch();
        thread.leave();
        admitted
    }

    /// Accounts for the driver's answer to a launch.
    pub fn after_launch(
        &self,
        thread: &Thread,
        admitted: Admitted,
        accepted: bool,
        driver: &impl Driver,
        platform: &impl Platform,
    ) {
        if thread.enter() {
            let launch = admitted.launch;
            SlowPath { gate: self, key: self.key(thread), thread, launch, driver, platform }
                .after_launch(admitted, accepted);
            thread.leave();
        }
    }

    /// Measures what has run after the thread synchronized with all of its launches into `stream`,
    /// or, without a stream, into the context. Notifies the monitor when nothing is left.
    pub fn after_synchronize(
        &self,
        thread: &Thread,
        (context, stream): (ContextKey, Option<Stream>),
        driver: &impl Driver,
        platform: &impl Platform,
    ) {
        let Some((key, gpu)) = thread.key(self.address()).zip(thread.gpu()) else { return };
        let launched = self.context.load(Ordering::Relaxed) == context.0;
        if !launched || self.several_contexts.load(Ordering::Relaxed) || !thread.enter() {
            return;
        }
        // Not a launch: only its context and stream are used.
        let kernel = Kernel::new(0, [0; 3], [0; 3]);
        let at = stream.unwrap_or(Stream { handle: 0, per_thread: false });
        let launch =
            Launch { kernel, stream: at, context, gpu, programmatic: false, variable_cost: false };
        SlowPath { gate: self, key, thread, launch, driver, platform }.after_synchronize(stream);
        thread.leave();
    }

    /// Returns whether the monitor has requested a notification when this thread's work has run.
    #[must_use]
    pub fn wants_completion(&self, thread: &Thread) -> bool {
        let gpu = thread.key(self.address()).and_then(|_| thread.gpu());
        let granted = self.region.grant();
        let holds = |gpu| granted.turn(gpu).state() == TurnState::Yours;
        gpu.is_some_and(|gpu| holds(gpu) && granted.is_notify_slot(gpu, self.slot))
    }

    /// Charges an exited thread's last launches and drops its budget.
    pub fn thread_exited(&self, thread: &Thread, platform: &impl Platform) {
        if let Some((key, gpu)) = thread.key(self.address()).zip(thread.gpu()) {
            let clocks = platform.clocks();
            let mut account = self.device(gpu).account.lock();
            account.charge_thread(thread, key, clocks.raw);
            account.publish(self.cell(gpu), self.siblings(gpu, account.turn(), clocks), clocks);
        }
    }

    /// Forgets the events of a context that is being destroyed.
    pub fn forget_context(&self, context: ContextKey) {
        for device in &self.devices {
            // Threads in other contexts query this one's events, which end with it.
            let limit = Instant::now() + QUERY_TIMEOUT;
            while device.measuring.swap(true, Ordering::Acquire) && Instant::now() < limit {
                std::thread::yield_now();
            }
            device.account.lock().gpu_time.forget(context);
            device.measuring.store(false, Ordering::Release);
        }
    }

    /// Forgets the cost of a kernel whose handle may be reused for another.
    pub fn forget_cost(&self, kernel: Kernel) {
        for device in &self.devices {
            device.account.lock().gpu_time.forget_cost(kernel);
        }
    }

    /// Returns a number that distinguishes this gate from the parent process's.
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    fn key(&self, thread: &Thread) -> ThreadKey {
        thread.key(self.address()).unwrap_or_else(|| {
            let key = ThreadKey(self.threads.fetch_add(1, Ordering::Relaxed));
            thread.register(self.address(), key);
            key
        })
    }

    fn device(&self, gpu: Gpu) -> &DeviceGate {
        // `Gpu` is below `GPUS` by construction.
        #[allow(clippy::indexing_slicing)]
        &self.devices[gpu.get()]
    }

    fn cell(&self, gpu: Gpu) -> &Cell {
        self.region.cell(gpu, self.slot)
    }

    fn read(&self, gpu: Gpu, now: Nanos) -> Reading {
        let reading = Reading::of(self.region.grant(), gpu, self.slot, &self.heartbeat, now);
        self.region.slot(self.slot).acked.store(reading.word.into(), Ordering::Relaxed);
        reading
    }

    /// Sums what the container's other processes report about the GPU and this turn.
    fn siblings(&self, gpu: Gpu, turn: Turn, clocks: Clocks) -> Siblings {
        self.others(gpu).fold(Siblings::default(), |sum, (_, cell)| sum.with(cell, turn, clocks))
    }

    /// Returns the queue of the live siblings, for a launch that has waited since `since`.
    fn sibling_queue(&self, gpu: Gpu, since: Nanos, clocks: Clocks) -> SiblingQueue {
        let lives = |slot: usize| {
            let word = SlotIndex::new(slot)
                .map(|slot| Word(self.region.slot(slot).state.load(Ordering::Relaxed)));
            word.and_then(Word::state) == Some(State::Live)
        };
        let living = self.others(gpu).filter(|(slot, _)| lives(*slot));
        living.fold(SiblingQueue::default(), |queue, (slot, cell)| {
            queue.with(cell, (since, slot < self.slot.get()), clocks)
        })
    }

    /// Returns the cells of the other slots that are or were in use.
    fn others(&self, gpu: Gpu) -> impl Iterator<Item = (usize, &Cell)> {
        let cells = self.region.shared().cell.get(gpu.get()).into_iter().flatten();
        let high_water = self.region.shared().header.high_water.load(Ordering::Relaxed);
        let used = usize::try_from(high_water).unwrap_or(usize::MAX);
        cells.take(used).enumerate().filter(|(slot, _)| *slot != self.slot.get())
    }

    /// Returns whether the process has work in flight on other GPUs, which may wait for work on
    /// this one.
    fn works_elsewhere(&self, gpu: Gpu) -> bool {
        let others = self.devices.iter().enumerate().filter(|(place, _)| *place != gpu.get());
        self.several_contexts.load(Ordering::Relaxed)
            && others
                .map(|(_, device)| device.account.lock().gpu_time.work())
                .any(|work| work.launches > 0)
    }

    fn note_context(&self, context: ContextKey) {
        let first =
            self.context.compare_exchange(0, context.0, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|first| first != context.0) {
            self.several_contexts.store(true, Ordering::Relaxed);
        }
    }

    fn count(&self, reason: Reason) {
        if let Some(counter) = self.region.slot(self.slot).counter.get(reason as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
