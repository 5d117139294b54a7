//! The slow path of a launch: three steps in a row.
//!
//! | step | question |
//! |---|---|
//! | [`admit`](super::admit) | is it metered? |
//! | [`wait`](super::wait) | when may it proceed? |
//! | [`measure`](super::measure) | what did it cost? |
//!
//! Each step locks the account once, and once more after each call of the driver in between.

use cgpu_shm::grant::TurnState;
use cgpu_shm::spin::SpinGuard;
use cgpu_shm::units::Nanos;

use super::account::Account;
use super::admission::{Admission, Request};
use super::reading::Reading;
use super::sibling_queue::SiblingQueue;
use super::thread::Thread;
use super::{Admitted, Clocks, Driver, Gate, Launch, Platform};
use crate::gpu_time::ThreadKey;

/// A thread with a launch that takes the slow path.
pub(super) struct SlowPath<'a, 'r, D, P> {
    pub(super) gate: &'a Gate<'r>,
    pub(super) thread: &'a Thread,
    pub(super) key: ThreadKey,
    pub(super) launch: Launch,
    pub(super) driver: &'a D,
    pub(super) platform: &'a P,
}

impl<D: Driver, P: Platform> SlowPath<'_, '_, D, P> {
    /// Runs the steps before the driver's call. Returns none if the launch is not metered.
    pub(super) fn before_launch(&self) -> Option<Admitted> {
        let mut request = self.admit()?;
        let (budget, reading) = self.wait(&mut request)?;
        Some(self.charge(&request, budget, &reading))
    }

    /// Decides whether the launch may go now, and publishes what the process has in flight.
    pub(super) fn decide(
        &self,
        request: &mut Request,
        reading: &Reading,
        clocks: Clocks,
    ) -> Admission {
        let (gpu, now) = (self.launch.gpu, clocks.raw);
        let siblings = self.gate.siblings(gpu, reading.turn, clocks);
        let mut account = self.account();
        let queue = match reading.turn.state() {
            TurnState::Yours => self.gate.sibling_queue(gpu, request.since(&account, now), clocks),
            TurnState::Open | TurnState::Wait => SiblingQueue::default(),
        };
        if request.queued {
            // Launches of other contexts may have been measured meanwhile.
            request.expected = account.gpu_time.expect(self.launch.kernel);
        }
        let admission = request.decide(&mut account, reading, siblings, queue, now);
        if let (Admission::Sleep(_), Some(lane)) = (admission, request.lane) {
            account.gpu_time.throttled(lane);
        }
        account.publish(self.gate.cell(gpu), siblings, clocks);
        admission
    }

    /// Charges what the thread launched on its fast path, on any GPU, and drops its budget.
    pub(super) fn charge_thread(&self, now: Nanos) {
        if let Some(gpu) = self.thread.gpu() {
            self.gate.device(gpu).account.lock().charge_thread(self.thread, self.key, now);
        }
    }

    pub(super) fn account(&self) -> SpinGuard<'_, Account> {
        self.gate.device(self.launch.gpu).account.lock()
    }
}
