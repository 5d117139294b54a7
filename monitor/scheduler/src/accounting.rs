//! Accounting of GPU time: what a container was charged, what it reported, and anomalies of its turns.

use cgpu_shm::units::Nanos;
use serde::{Deserialize, Serialize};

use super::last_second::LastSecond;

/// Turns with an anomaly, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAnomalies {
    /// Reported more than was held: charged what was held.
    pub over: u64,
    /// Reported less than was held: charged what was held.
    pub under: u64,
    /// Impossible reports.
    pub invalid: u64,
    /// Work still running at the drain limit: others ran beside it.
    pub overruns: u64,
    /// Turns that were not taken up.
    pub missed: u64,
}

/// GPU time of one container on one GPU.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Charged so far.
    pub charged: Nanos,
    /// Part of it that was forgiven: it counts as used, and costs no credit.
    pub forgiven: Nanos,
    /// Growth of its own reports, as accepted.
    pub reported: Nanos,
    /// How often one of its threads began to wait at its gate.
    pub waits: u64,
    /// For how long its threads waited.
    pub waited: Nanos,
    /// Turns begun.
    pub turns: u64,
    /// Turns with an anomaly.
    pub anomalies: TurnAnomalies,
    /// What it has computed within the last second, by its reports.
    pub(super) computed: LastSecond,
    /// Reports among these that do not tell what the container has computed.
    pub(super) unclear: LastSecond,
}

impl Account {
    /// Charges so much.
    pub fn charge(&mut self, time: Nanos) {
        self.charged = self.charged + time;
    }

    /// Takes back what was charged too much.
    pub fn refund(&mut self, time: Nanos) {
        self.charged = self.charged - time;
    }

    /// Takes down GPU time that the container's processes have reported, and what it computed in
    /// it. `clear`: that is sure.
    pub(super) fn report(&mut self, now: Nanos, reported: Nanos, computed: Nanos, clear: bool) {
        self.reported = self.reported + reported;
        self.computed.add(now, computed);
        if !clear {
            self.unclear.add(now, computed);
        }
    }
}
