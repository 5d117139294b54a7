//! The thread that performs effects when they are due and reclaims exited processes.
//!
//! It sleeps until the instant that the timeline forecasts for the next effect, or until a command
//! is enqueued that may be due earlier. Host functions run in a second thread: they may take any
//! time, and memory writes must not wait for them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use cgpu_shm::units::Nanos;

use super::effects::HostCall;
use super::{Core, Machine, lock};
use crate::clock::Clock;
use crate::error::Error;

/// Interval between two checks for exited processes, by all clients of the segment together.
const REAP_INTERVAL: Nanos = Nanos::from_millis(20);
/// The helper sleeps until this long before an effect, then yields. Shorter than a call's lead, as
/// the helper usually shares its core.
const LEAD: Nanos = Nanos::from_micros(30);

#[derive(Debug)]
pub(super) struct Alarm {
    state: Mutex<AlarmState>,
    wakes: Condvar,
}

#[derive(Debug)]
struct AlarmState {
    /// When the helper wakes by itself; `MAX` while it is awake, so that no notification is missed.
    wakes_at: Nanos,
    notified: bool,
    stopped: bool,
}

impl Default for Alarm {
    fn default() -> Self {
        let state = AlarmState { wakes_at: Nanos::MAX, notified: false, stopped: false };
        Self { state: Mutex::new(state), wakes: Condvar::new() }
    }
}

impl Alarm {
    /// Notifies the helper that something may be due from that instant on.
    pub(super) fn notify_by(&self, instant: Nanos) {
        let mut state = lock(&self.state);
        if instant < state.wakes_at {
            state.notified = true;
            // Unlock first: the helper would wake only to wait for the lock.
            drop(state);
            self.wakes.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.wakes.notify_one();
    }

    /// Marks the helper as awake: it will handle everything notified so far. Returns `false` if it
    /// must end.
    fn awake(&self) -> bool {
        let mut state = lock(&self.state);
        state.notified = false;
        state.wakes_at = Nanos::MAX;
        !state.stopped
    }

    /// Sleeps until the instant, a notification, or a stop.
    fn sleep(&self, core: &Core, until: Nanos) {
        {
            let mut state = lock(&self.state);
            let span = core.clock.real(until - core.clock.now()) - LEAD;
            if state.notified || state.stopped {
                return;
            }
            if span > Nanos::ZERO {
                state.wakes_at = until;
                // An early wake-up costs one more check.
                let (state, slept) = self
                    .wakes
                    .wait_timeout(state, span.duration())
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if !slept.timed_out() || state.notified || state.stopped {
                    return;
                }
            }
        }
        core.clock.wait(until, LEAD);
    }
}

#[derive(Debug)]
pub(super) struct Helper {
    thread: JoinHandle<()>,
}

impl Helper {
    pub(super) fn join(self) {
        // It does not panic; if it did, there is no caller to report it to.
        let _ = self.thread.join();
    }

    fn spawn(core: &Arc<Core>) -> Result<Self, Error> {
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new()
            .name("cgpu-sim".to_owned())
            .spawn(move || run(&core))
            .map_err(|error| {
                Error::System(format!("cannot start the simulator's thread: {error}"))
            })?;
        Ok(Self { thread })
    }
}

impl Machine {
    /// Starts the helper, unless it runs or the clock is virtual.
    pub(super) fn start_helper(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Err(Error::Forked);
        }
        let mut helper = lock(&self.helper);
        if helper.is_none() && matches!(self.core.clock, Clock::Real { .. }) {
            *helper = Some(Helper::spawn(&self.core)?);
        }
        Ok(())
    }
}

fn run(core: &Arc<Core>) {
    block_signals();
    // SAFETY: PR_SET_TIMERSLACK takes one number and changes nothing but the calling thread's
    // slack. This thread is the simulator's own.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    let mut caller: Option<(Sender<HostCall>, JoinHandle<()>)> = None;
    while core.alarm.awake() {
        // A failure (a stuck lock) is reported by the program's calls; the helper tries again.
        let _ = core
            .segment
            .reap(core.clock.now(), REAP_INTERVAL)
            .and_then(|()| core.end_unused_exports());
        let now = core.clock.now();
        let until = match core.perform(true) {
            Ok(next) => next.map_or(now + REAP_INTERVAL, |next| next.min(now + REAP_INTERVAL)),
            Err(_) => now + REAP_INTERVAL,
        };
        for call in core.take_calls() {
            let (calls, _) = caller.get_or_insert_with(|| spawn_caller(core));
            // The thread ends only when this end of the channel is dropped.
            let _ = calls.send(call);
        }
        core.alarm.sleep(core, until);
    }
    if let Some((calls, thread)) = caller {
        drop(calls);
        let _ = thread.join();
    }
}

fn spawn_caller(core: &Arc<Core>) -> (Sender<HostCall>, JoinHandle<()>) {
    let (calls, queue) = channel::<HostCall>();
    let core = Arc::clone(core);
    let thread = std::thread::spawn(move || {
        for call in queue {
            let _ = core.call(call);
        }
    });
    (calls, thread)
}

/// Blocks signals: the program's handlers run on the program's threads. Threads made by this one
/// inherit the mask.
fn block_signals() {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set that it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is filled; the old mask is not requested; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), core::ptr::null_mut()) };
}
