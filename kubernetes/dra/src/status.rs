//! What the status of a claim says of its shares, and when it is written. Pure.
//!
//! Each write goes to every watcher of claims in the cluster. So a claim's status is written once
//! when it is prepared, once when its part of the GPU's time is first measured, and later at most
//! once in an interval, if a share's limit, its memory or its part of the GPU's time has changed.
//! Live values are metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use cgpu_client::wall::WallState;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::allocation::{NodeClaim, Share};
use crate::resize::Outcome;

/// Smallest change of a share's part of the GPU's time that is written, in percentage points.
const MIN_CHANGE: f64 = 5.0;

/// Seconds that are measured before a share's part of the GPU's time is written for the first time.
const FIRST_MEASURED: u32 = 20;

/// Delay before a failed write is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(10);

/// What the containers of a share have used of its GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// Memory limit, in bytes.
    pub limit: u64,
    /// Memory that counts against it, in bytes.
    pub used: u64,
    /// Part of the last second that the GPU computed for them, in percent; none: not measured.
    pub share: Option<f64>,
    /// What holds the limit; none: not known.
    pub wall: Option<WallState>,
    /// Why the driver does not hold it: `old_driver`, `mig` and others.
    pub wall_reason: Option<String>,
}

/// Uses, by name of the share.
pub type Uses = BTreeMap<String, Use>;

/// What became of the resize of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What became of it.
    pub outcome: Outcome,
    /// Since when, as the API server writes times.
    pub since: String,
}

/// Conditions, by uid of the claim.
pub type Conditions = BTreeMap<String, Condition>;

/// The statuses of the node's claims.
#[derive(Debug)]
pub struct Statuses {
    pool: String,
    interval: Duration,
    claims: BTreeMap<String, Written>,
}

/// What was written of a claim.
#[derive(Clone, Debug, Default)]
struct Written {
    is_written: bool,
    condition: Option<Condition>,
    /// When it may be written again.
    due: Duration,
    /// By name of the share.
    shares: BTreeMap<String, Reported>,
    /// What was measured since the last look, by name of the share.
    measured: BTreeMap<String, Mean>,
}

/// A mean of what was measured in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    sum: f64,
    seconds: u32,
}

impl Mean {
    fn value(self) -> Option<f64> {
        (self.seconds > 0).then(|| self.sum / f64::from(self.seconds))
    }
}

/// What a status says of a share.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reported {
    known: Option<Use>,
    /// Part of the GPU's time, in percent.
    measured: Mean,
}

impl Reported {
    /// Whether it differs enough from what was written.
    fn differs(&self, written: &Self) -> bool {
        let limit = |reported: &Self| {
            let known = reported.known.as_ref()?;
            Some((known.limit, known.wall, known.wall_reason.clone()))
        };
        let has_moved = match (self.measured.value(), written.measured.value()) {
            (Some(now), Some(before)) => (now - before).abs() > MIN_CHANGE,
            (now, before) => now.is_some() && before.is_none(),
        };
        let used = |known: &Use| Some((known.used, known.limit / 20));
        let has_grown = self.known.as_ref().and_then(used).is_some_and(|(now, part)| {
            written.known.as_ref().is_some_and(|before| now.abs_diff(before.used) > part)
        });
        has_moved || has_grown || limit(self).is_some() && limit(self) != limit(written)
    }
}

impl Written {
    /// Whether a share was measured for long enough, of which the status has no measurement.
    fn has_first_measurement(&self) -> bool {
        self.measured.iter().any(|(name, mean)| {
            let before = self.shares.get(name).and_then(|share| share.measured.value());
            before.is_none() && mean.seconds >= FIRST_MEASURED
        })
    }
}

impl Statuses {
    /// Makes the statuses of a node's pool. A claim's is written at most once in `interval`.
    #[must_use]
    pub fn new(pool: &str, interval: Duration) -> Self {
        Self { pool: pool.to_owned(), interval, claims: BTreeMap::new() }
    }

    /// Returns a claim whose status is due, with the devices of this driver in it. Called each
    /// second with what was used in it; `now` counts from any time. A new condition is due at once.
    pub fn next<'a>(
        &mut self,
        now: Duration,
        claims: &'a [NodeClaim],
        uses: &Uses,
        conditions: &Conditions,
    ) -> Option<(&'a NodeClaim, Value)> {
        self.claims.retain(|uid, _| claims.iter().any(|claim| claim.uid == *uid));
        for claim in claims {
            let written = self.claims.entry(claim.uid.clone()).or_default();
            for share in &claim.shares {
                if let Some(measured) = uses.get(&share.name).and_then(|known| known.share) {
                    let mean = written.measured.entry(share.name.clone()).or_default();
                    (mean.sum, mean.seconds) = (mean.sum + measured, mean.seconds + 1);
                }
            }
        }
        for claim in claims {
            let Some(written) = self.claims.get_mut(&claim.uid) else { continue };
            let condition = conditions.get(&claim.uid);
            let is_news = condition != written.condition.as_ref();
            if now < written.due && !is_news && !written.has_first_measurement() {
                continue;
            }
            written.due = now + self.interval;
            let reported = |share: &Share| {
                let known = uses.get(&share.name).cloned();
                let measured = written.measured.remove(&share.name).unwrap_or_default();
                (share.name.clone(), Reported { known, measured })
            };
            let shares: BTreeMap<_, _> = claim.shares.iter().map(reported).collect();
            let differs = |(name, reported): (&String, &Reported)| {
                reported.differs(&written.shares.get(name).cloned().unwrap_or_default())
            };
            let is_due = is_news || !written.is_written || shares.iter().any(differs);
            if is_due {
                let of = |share: &Share| shares.get(&share.name).cloned().unwrap_or_default();
                let device = |share| device(&self.pool, share, of(share), condition);
                let devices = claim.shares.iter().map(device).collect();
                (written.is_written, written.shares) = (true, shares);
                written.condition = condition.cloned();
                return Some((claim, devices));
            }
        }
        None
    }

    /// Has a claim's status written again after [`RETRY_BACKOFF`], because it could not be.
    pub fn failed(&mut self, now: Duration, uid: &str) {
        if let Some(written) = self.claims.get_mut(uid) {
            (written.is_written, written.due) = (false, now + RETRY_BACKOFF);
        }
    }
}

fn device(pool: &str, share: &Share, reported: Reported, condition: Option<&Condition>) -> Value {
    let mut device = json!({ "driver": DRIVER, "pool": pool, "device": share.device });
    if let Some(id) = &share.share_id {
        device["shareID"] = json!(id);
    }
    let granted = share.granted();
    let mut data = json!({ "uuid": share.gpu });
    if !share.is_admin() {
        let limit = reported.known.as_ref().map_or(granted.memory, |known| known.limit);
        data["memoryLimitBytes"] = json!(limit);
        data["weight"] = json!(granted.weight);
        if granted.cores > 0 {
            data["cores"] = json!(granted.cores);
        }
    }
    if let Some(known) = &reported.known {
        data["memoryUsedBytes"] = json!(known.used);
        if let Some(wall) = known.wall {
            data["wall"] = json!(wall.name());
        }
        if let Some(reason) = &known.wall_reason {
            data["wallReason"] = json!(reason);
        }
    }
    if let Some(measured) = reported.measured.value() {
        data["measuredSharePercent"] = json!((measured * 10.0).round() / 10.0);
        data["measuredSeconds"] = json!(reported.measured.seconds);
    }
    if let Some(Condition { outcome, since }) = condition {
        let [status, reason, message] = outcome.condition();
        device["conditions"] = json!([{ "type": "Resized", "status": status, "reason": reason,
            "message": message, "lastTransitionTime": since }]);
    }
    device["data"] = data;
    device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{claim, pool, result};
    use crate::resize;

    const INTERVAL: Duration = Duration::from_secs(300);
    const NONE: Conditions = Conditions::new();

    fn claims() -> Vec<NodeClaim> {
        let results = json!([result("gpu-0", "1Gi", 2), result("gpu-1", "2Gi", 2)]);
        vec![NodeClaim::of(&claim(&results, &Value::Null), &pool()).unwrap()]
    }

    fn uses(share: f64) -> Uses {
        let known = Use { limit: 1 << 30, used: 7, share: Some(share), ..Use::default() };
        [("u1-0".to_owned(), known)].into()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn status_is_written_once_and_then_on_change() {
        let (claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        let (_, devices) = statuses.next(at(10), &claims, &Uses::new(), &NONE).unwrap();
        assert_eq!(
            devices[1],
            json!({"driver": DRIVER, "pool": "n1", "device": "gpu-1", "shareID": "s",
                "data": {"uuid": "GPU-10101010-1010-1010-1010-101010101010",
                    "memoryLimitBytes": 2_u64 << 30, "weight": 2}})
        );
        // The mean of the seconds since then, in which the container ran.
        for (second, share) in [(11, 20.0), (12, 40.0), (309, 30.0)] {
            assert!(statuses.next(at(second), &claims, &uses(share), &NONE).is_none());
        }
        let (_, devices) = statuses.next(at(310), &claims, &uses(30.0), &NONE).unwrap();
        let data = &devices[0]["data"];
        assert_eq!(
            (&data["measuredSharePercent"], &data["measuredSeconds"]),
            (&30.0.into(), &4.into())
        );
        assert_eq!(data["memoryUsedBytes"], 7);
        // Less than 5 points; then more.
        assert!(statuses.next(at(610), &claims, &uses(34.0), &NONE).is_none());
        let (_, devices) = statuses.next(at(910), &claims, &uses(36.0), &NONE).unwrap();
        assert_eq!(devices[0]["data"]["measuredSharePercent"], 36.0);
        assert!(
            statuses.next(at(1210), &claims, &Uses::new(), &NONE).is_none(),
            "its container has ended"
        );
        // A claim that is gone is forgotten.
        assert!(statuses.next(at(1220), &[], &Uses::new(), &NONE).is_none());
        assert!(statuses.next(at(1221), &claims, &Uses::new(), &NONE).is_some());
    }

    #[test]
    fn first_measurement_is_not_delayed() {
        let (claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        statuses.next(at(0), &claims, &Uses::new(), &NONE).unwrap();
        let mut next = |second| statuses.next(at(second), &claims, &uses(30.0), &NONE);
        let (_, devices) = (1..).find_map(&mut next).unwrap();
        assert_eq!(devices[0]["data"]["measuredSeconds"], FIRST_MEASURED);
        assert!((21..1000).all(|second| next(second).is_none()), "it does not change");
    }

    #[test]
    fn outcome_of_a_resize_is_written_at_once() {
        let (mut claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        statuses.next(at(0), &claims, &Uses::new(), &NONE).unwrap();
        let of = |outcome| {
            Conditions::from([("u1".to_owned(), Condition { outcome, since: "then".into() })])
        };
        claims[0] = resize::resized(&claims[0], Some("memory=128Mi")).unwrap();
        let applied = of(Outcome::Applied("done".into()));
        let (_, devices) = statuses.next(at(1), &claims, &Uses::new(), &applied).unwrap();
        assert_eq!(devices[1]["data"]["memoryLimitBytes"], 128 << 20);
        assert_eq!(
            devices[1]["conditions"],
            json!([{"type": "Resized", "status": "True", "reason": "Applied", "message": "done",
                "lastTransitionTime": "then"}])
        );
        assert!(statuses.next(at(2), &claims, &Uses::new(), &applied).is_none());
        let refused = of(Outcome::Refused("make a new claim".into()));
        let (_, devices) = statuses.next(at(3), &claims, &Uses::new(), &refused).unwrap();
        assert_eq!(devices[0]["conditions"][0]["status"], "False");
        // It is no news while a failed write waits to be repeated.
        statuses.failed(at(3), "u1");
        assert!(statuses.next(at(4), &claims, &Uses::new(), &refused).is_none());
        assert!(statuses.next(at(13), &claims, &Uses::new(), &refused).is_some());
        let (_, devices) = statuses.next(at(14), &claims, &Uses::new(), &NONE).unwrap();
        assert!(devices[0]["conditions"].is_null());
    }

    #[test]
    fn changed_use_of_memory_is_written() {
        let (claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        statuses.next(at(0), &claims, &uses(30.0), &NONE).unwrap();
        let mut grown = uses(30.0);
        grown.get_mut("u1-0").unwrap().used = 50 << 20;
        assert!(
            statuses.next(at(300), &claims, &grown, &NONE).is_none(),
            "less than 5 % of the limit"
        );
        grown.get_mut("u1-0").unwrap().used = 60 << 20;
        let (_, devices) = statuses.next(at(600), &claims, &grown, &NONE).unwrap();
        assert_eq!(devices[0]["data"]["memoryUsedBytes"], 60 << 20);
    }

    #[test]
    fn what_holds_the_limit_is_written() {
        let (claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        let held_by = |wall| {
            let mut uses = uses(0.0);
            uses.get_mut("u1-0").unwrap().wall = Some(wall);
            uses
        };
        let mut shim = held_by(WallState::Shim);
        shim.get_mut("u1-0").unwrap().wall_reason = Some("mig".into());
        let (_, devices) = statuses.next(at(0), &claims, &shim, &NONE).unwrap();
        assert_eq!(devices[0]["data"]["wall"], "shim");
        assert_eq!(devices[0]["data"]["wallReason"], "mig");
        assert!(devices[1]["data"]["wall"].is_null(), "it has no container");
        let driver = held_by(WallState::Driver);
        let (_, devices) = statuses.next(at(300), &claims, &driver, &NONE).unwrap();
        assert_eq!(devices[0]["data"]["wall"], "driver");
        assert!(devices[0]["data"]["wallReason"].is_null());
    }

    #[test]
    fn changed_limit_is_written_and_a_failed_write_repeated() {
        let (claims, mut statuses) = (claims(), Statuses::new("n1", INTERVAL));
        statuses.next(at(0), &claims, &uses(0.0), &NONE).unwrap();
        let mut lower = uses(0.0);
        lower.get_mut("u1-0").unwrap().limit = 1 << 29;
        let (_, devices) = statuses.next(at(300), &claims, &lower, &NONE).unwrap();
        assert_eq!(devices[0]["data"]["memoryLimitBytes"], 1 << 29);
        statuses.failed(at(300), "u1");
        assert!(statuses.next(at(309), &claims, &lower, &NONE).is_none());
        assert!(statuses.next(at(310), &claims, &lower, &NONE).is_some());
        assert!(statuses.next(at(320), &claims, &lower, &NONE).is_none());
    }
}
