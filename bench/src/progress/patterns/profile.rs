//! Profiles of the GPU's own time slicing.

use cgpu_scheduler::tuning::Tuning;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use super::super::as_seconds;
use super::super::bound::Turns;
use super::us;

/// Time slicing of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) slice: Nanos,
    pub(super) switch: Nanos,
    pub(super) idle: Nanos,
}

impl Profile {
    /// The simulator's default.
    pub(super) const USUAL: Self = Self { slice: us(1_024), switch: us(100), idle: us(0) };

    /// Returns all profiles, the default first.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for slice in [1_024, 2_048].map(us) {
            for switch in [30, 100, 180].map(us) {
                all.extend([0, 20].map(|idle| Self { slice, switch, idle: us(idle) }));
            }
        }
        all.sort_by_key(|profile| *profile != Self::USUAL);
        all
    }

    pub(super) fn model(&self) -> Model {
        Model { slice: self.slice, switch: self.switch, idle: self.idle, ..Model::default() }
    }

    pub(super) fn turns(&self) -> Turns {
        let turn = Tuning::DEFAULT.base_for(self.switch);
        Turns { switch: as_seconds(self.switch), turn: as_seconds(turn) }
    }

    pub(super) fn describe(&self) -> String {
        let micros = |time: Nanos| time.0 / 1_000;
        format!(
            "slices of {} us, {} us a switch, {} us idle",
            micros(self.slice),
            micros(self.switch),
            micros(self.idle)
        )
    }
}
