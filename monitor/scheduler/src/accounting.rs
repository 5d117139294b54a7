//! GPU time of a container: charged, reported, and anomalies of its turns.

use cgpu_shm::units::Nanos;
use serde::{Deserialize, Serialize};

use super::last_second::LastSecond;

/// Numbers of turns with an anomaly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnAnomalies {
    /// Reported more than was held: charged what was held.
    pub over: u64,
    /// Reported less than was held: charged what was held.
    pub under: u64,
    /// Reports with impossible values.
    pub invalid: u64,
    /// Work still running at the drain timeout: others ran beside it.
    pub overruns: u64,
    /// Turns in which the holder never launched.
    pub missed: u64,
    /// Audits in which more was measured than charged: the difference was charged.
    #[serde(default)]
    pub hidden: u64,
}

impl TurnAnomalies {
    /// Returns these numbers, each at most `most`.
    pub(super) fn bounded(self, most: u64) -> Self {
        Self {
            over: self.over.min(most),
            under: self.under.min(most),
            invalid: self.invalid.min(most),
            overruns: self.overruns.min(most),
            missed: self.missed.min(most),
            hidden: self.hidden.min(most),
        }
    }
}

/// GPU time of one container on one GPU.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Charged so far.
    pub charged: Nanos,
    /// The part of it that was forgiven: it counts as used, but costs no credit.
    pub forgiven: Nanos,
    /// Accepted growth of its own reports.
    pub reported: Nanos,
    /// How often a thread began to wait at its gate.
    pub waits: u64,
    /// How long its threads waited.
    pub waited: Nanos,
    /// Turns begun.
    pub turns: u64,
    /// Turns with an anomaly.
    pub anomalies: TurnAnomalies,
    /// What it has computed within the last second, by its reports.
    pub(super) computed: LastSecond,
    /// The part of these that may include other containers' time.
    pub(super) unclear: LastSecond,
}

impl Account {
    /// Charges GPU time.
    pub fn charge(&mut self, time: Nanos) {
        self.charged = self.charged + time;
    }

    /// Refunds an excess charge.
    pub fn refund(&mut self, time: Nanos) {
        self.charged = self.charged - time;
    }

    /// Records GPU time that the container's processes have reported, and what it computed in it.
    /// `clear`: the report includes no other container's time.
    pub(super) fn report(&mut self, now: Nanos, reported: Nanos, computed: Nanos, clear: bool) {
        self.reported = self.reported + reported;
        self.computed.add(now, computed);
        if !clear {
            self.unclear.add(now, computed);
        }
    }
}
