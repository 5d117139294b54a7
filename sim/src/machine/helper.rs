//! The thread that performs effects when they are due, and looks after the dead.
//!
//! It sleeps until the instant that the timeline forecasts for the next effect, or until something is enqueued that may
//! come due earlier. Host functions run in a second thread: they may take as long as they like, memory writes must not
//! wait for them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use cgpu_shm::units::Nanos;

use super::effects::HostCall;
use super::{Core, Machine, lock};
use crate::clock::Clock;
use crate::error::Error;

/// How often any client of the segment looks for dead processes.
const REAP: Nanos = Nanos::from_millis(20);
/// The helper sleeps to this long before an effect, then yields. Less than a call's lead: it has a core to itself less
/// often than to share.
const LEAD: Nanos = Nanos::from_micros(30);

/// Wakes the helper.
#[derive(Debug)]
pub(super) struct Alarm {
    state: Mutex<AlarmState>,
    bell: Condvar,
}

#[derive(Debug)]
struct AlarmState {
    /// When the helper will wake by itself; `MAX` while it is awake, so that no ring is missed.
    wakes_at: Nanos,
    rung: bool,
    stopped: bool,
}

impl Default for Alarm {
    fn default() -> Self {
        let state = AlarmState { wakes_at: Nanos::MAX, rung: false, stopped: false };
        Self { state: Mutex::new(state), bell: Condvar::new() }
    }
}

impl Alarm {
    /// Something may be due from that instant on.
    pub(super) fn ring_by(&self, instant: Nanos) {
        let mut state = lock(&self.state);
        if instant < state.wakes_at {
            state.rung = true;
            // The helper would wake only to wait for the lock.
            drop(state);
            self.bell.notify_one();
        }
    }

    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.bell.notify_one();
    }

    /// The helper is awake and will look at everything rung so far. `false`: it is to end.
    fn awake(&self) -> bool {
        let mut state = lock(&self.state);
        state.rung = false;
        state.wakes_at = Nanos::MAX;
        !state.stopped
    }

    /// Sleeps until the instant, or until rung or stopped.
    fn sleep(&self, core: &Core, until: Nanos) {
        {
            let mut state = lock(&self.state);
            let span = core.clock.real(until - core.clock.now()) - LEAD;
            if state.rung || state.stopped {
                return;
            }
            if span > Nanos::ZERO {
                state.wakes_at = until;
                // An early wake-up only costs a look.
                let (state, slept) = self
                    .bell
                    .wait_timeout(state, span.duration())
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if !slept.timed_out() || state.rung || state.stopped {
                    return;
                }
            }
        }
        core.clock.wait(until, LEAD);
    }
}

/// The running thread.
#[derive(Debug)]
pub(super) struct Helper {
    thread: JoinHandle<()>,
}

impl Helper {
    pub(super) fn join(self) {
        // It does not panic; if it did there would be nobody to tell.
        let _ = self.thread.join();
    }

    fn spawn(core: &Arc<Core>) -> Result<Self, Error> {
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new()
            .name("cgpu-sim".to_owned())
            .spawn(move || run(&core))
            .map_err(|error| Error::System(format!("the simulator's thread: {error}")))?;
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
    // This thread is the simulator's own, so its timers may be as exact as they get.
    // SAFETY: PR_SET_TIMERSLACK takes one number and changes nothing but the calling thread's slack.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    let mut caller: Option<(Sender<HostCall>, JoinHandle<()>)> = None;
    while core.alarm.awake() {
        // What fails here (a stuck lock) is told to whoever calls; the helper tries again.
        let _ = core.segment.reap(core.clock.now(), REAP).and_then(|()| core.bury_exports());
        let now = core.clock.now();
        let until = match core.perform(true) {
            Ok(next) => next.map_or(now + REAP, |next| next.min(now + REAP)),
            Err(_) => now + REAP,
        };
        for call in core.take_calls() {
            let (calls, _) = caller.get_or_insert_with(|| spawn_caller(core));
            // It ends only when this end of the channel does.
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

/// The program's signal handlers run on the program's threads. Threads made by this one inherit it.
fn block_signals() {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: fills the set it is given.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is filled; the old one is not asked for; only this thread's mask changes.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), core::ptr::null_mut()) };
}
