//! A card of the host: its place in the control tree, what is set for it, its controller.

use cgpu_proto::units::Nanos;
use cgpu_proto::uuid::Uuid;

use crate::controller::Card;
use crate::controller::policy::Policy;
use crate::controller::tuning::Tuning;
use crate::scout::CardSample;
use crate::settings::CardSettings;

/// A card of the host.
#[derive(Debug)]
pub(crate) struct Board {
    /// N of the control tree.
    pub(crate) index: u32,
    pub(crate) uuid: Uuid,
    /// NVML knows it.
    pub(crate) known: bool,
    /// What NVML last told of it; else what containers say.
    pub(crate) sample: CardSample,
    pub(crate) settings: CardSettings,
    pub(crate) controller: Card,
    /// When it is to be looked at.
    pub(crate) look: Nanos,
    /// Everybody is to be looked at, now.
    pub(crate) stale: bool,
}

impl Board {
    pub(crate) fn new(index: u32, uuid: Uuid, settings: CardSettings, tuning: Tuning) -> Self {
        let sample = CardSample { uuid, ..CardSample::default() };
        let controller = Card::new(tuning, Policy::default());
        Self { index, uuid, known: false, sample, settings, controller, look: Nanos::MAX, stale: true }
    }

    /// The policy in force: as set; never set, weighted if anybody has a weight above 1, else preemptive.
    pub(crate) fn policy(&self, weighted: bool) -> Policy {
        let number = self.settings.policy.unwrap_or(if weighted { 2 } else { 1 });
        Policy::numbered(number, self.settings.work_conserving).unwrap_or_default()
    }

    /// Takes over the policy in force.
    pub(crate) fn follow(&mut self, now: Nanos, weighted: bool) {
        let policy = self.policy(weighted);
        if policy != self.controller.policy() {
            self.controller.set_policy(now, policy);
            self.stale = true;
        }
    }
}
