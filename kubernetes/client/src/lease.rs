//! Leader election among replicas: the holder of a Lease leads.
//!
//! Clocks of machines differ, so no time in a lease is used: a lease has expired when it has not
//! changed for its own duration, by the clock of the replica that reads it. A holder that cannot
//! renew stops before that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::Method;
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info};

use crate::api::Api;
use crate::failure::Failure;
use crate::record::escaped;

/// Duration of a lease, and interval of attempts.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTiming {
    /// Time after the last renewal until the lease expires.
    pub duration: Duration,
    /// Interval at which it is renewed, or its holder is checked.
    pub renew_interval: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), renew_interval: Duration::from_secs(3) }
    }
}

/// Annotation of a lease: the address of its holder, for the other replicas.
const ADDRESS: &str = "cgpu.dev/address";

/// Which replica leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Leadership {
    /// This one.
    Own,
    /// Another one, at this address; it is empty if the lease names none.
    Other(String),
    /// None, or it is not known which.
    #[default]
    Unknown,
}

/// The fields of a Lease that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Lease {
    metadata: LeaseMetadata,
    spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseMetadata {
    resource_version: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<u64>,
    lease_transitions: Option<u64>,
}

impl Lease {
    fn holder(&self) -> Option<&str> {
        self.spec.holder_identity.as_deref().filter(|name| !name.is_empty())
    }

    fn address(&self) -> String {
        self.metadata.annotations.get(ADDRESS).cloned().unwrap_or_default()
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.spec.lease_duration_seconds.unwrap_or(0))
    }
}

/// What a replica does with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Renew it: this replica holds it.
    Renew,
    /// Take it: it has no holder, or has expired.
    Take,
    /// Wait: another replica holds it.
    Wait,
}

impl Action {
    /// Decides about a lease that has not changed for `unchanged`.
    fn of(lease: &Lease, identity: &str, unchanged: Duration) -> Self {
        match lease.holder() {
            Some(holder) if holder == identity => Self::Renew,
            Some(_) if unchanged <= lease.duration() => Self::Wait,
            _ => Self::Take,
        }
    }
}

/// A participant of the election.
pub struct Election {
    api: Api,
    /// Path of the leases of its namespace.
    all: String,
    name: String,
    identity: String,
    address: String,
    timing: LeaseTiming,
}

impl Election {
    /// Creates a participant for the lease `name`. `identity` must differ between replicas; the
    /// others reach this one at `address`.
    #[must_use]
    pub fn new(
        api: Api,
        (namespace, name): (&str, &str),
        identity: &str,
        address: &str,
        timing: LeaseTiming,
    ) -> Self {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", escaped(namespace));
        let [name, identity, address] = [name, identity, address].map(str::to_owned);
        Self { api, all, name, identity, address, timing }
    }

    /// Participates without end. `leader` tells which replica leads; it ceases to be this one
    /// before another replica can take the lease.
    pub async fn run(&self, leader: &watch::Sender<Leadership>) {
        let mut seen: Option<(Lease, Instant)> = None;
        let mut renewed: Option<Instant> = None;
        let mut known = Leadership::Unknown;
        loop {
            let started = Instant::now();
            match tokio::time::timeout(self.renew_deadline(), self.attempt(&mut seen)).await {
                Ok(Ok(now)) => {
                    renewed = (now == Leadership::Own).then_some(started);
                    known = now;
                }
                Ok(Err(failure)) => debug!(%failure, lease = self.name, "cannot reach the lease"),
                Err(_) => debug!(lease = self.name, "the lease was not reached in time"),
            }
            let holds = renewed.is_some_and(|at| at.elapsed() < self.renew_deadline());
            if known == Leadership::Own && !holds {
                known = Leadership::Unknown;
            }
            if leader.send_if_modified(|last| std::mem::replace(last, known.clone()) != known) {
                info!(lease = self.name, identity = self.identity, leader = ?known, "leadership");
            }
            tokio::time::sleep(self.timing.renew_interval).await;
        }
    }

    /// Returns the time after a renewal until which the lease is certainly held.
    fn renew_deadline(&self) -> Duration {
        self.timing.duration * 2 / 3
    }

    /// Releases the lease, so that another replica can take it at once.
    pub async fn resign(&self) {
        let Ok(lease) = self.read().await else { return };
        if lease.as_ref().and_then(Lease::holder) == Some(self.identity.as_str()) {
            let version = lease.map(|lease| lease.metadata.resource_version);
            let patch =
                json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}});
            // A conflict means that another replica has taken it.
            let _ = self.api.send::<Value>(Method::PATCH, &self.path(), Some(&patch)).await;
        }
    }

    /// Reads the lease once and takes or renews it. Returns which replica holds it.
    async fn attempt(&self, seen: &mut Option<(Lease, Instant)>) -> Result<Leadership, Failure> {
        let Some(lease) = self.read().await? else {
            let spec = self.spec(true, 0)?;
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": self.name, "annotations": {ADDRESS: self.address}},
                "spec": spec,
            });
            return match self.api.send::<Value>(Method::POST, &self.all, Some(&lease)).await {
                Ok(_) => Ok(Leadership::Own),
                Err(Failure::Exists(_)) => Ok(Leadership::Unknown),
                Err(failure) => Err(failure),
            };
        };
        let since = match seen {
            Some((known, since)) if *known == lease => *since,
            _ => seen.insert((lease.clone(), Instant::now())).1,
        };
        let action = Action::of(&lease, &self.identity, since.elapsed());
        let transitions = lease.spec.lease_transitions.unwrap_or(0);
        let spec = match action {
            Action::Wait => return Ok(Leadership::Other(lease.address())),
            Action::Renew => self.spec(false, transitions)?,
            Action::Take => self.spec(true, transitions + 1)?,
        };
        let version = &lease.metadata.resource_version;
        let annotations = json!({ADDRESS: self.address});
        let patch = json!({
            "metadata": {"resourceVersion": version, "annotations": annotations}, "spec": spec,
        });
        match self.api.send::<Value>(Method::PATCH, &self.path(), Some(&patch)).await {
            Ok(_) => Ok(Leadership::Own),
            // Another replica has just taken it.
            Err(Failure::Conflict(_)) => Ok(Leadership::Unknown),
            Err(failure) => Err(failure),
        }
    }

    async fn read(&self) -> Result<Option<Lease>, Failure> {
        match self.api.send(Method::GET, &self.path(), None).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Failure::NotFound(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn spec(&self, taken: bool, transitions: u64) -> Result<Value, Failure> {
        let now = strtime::format("%Y-%m-%dT%H:%M:%S%.6fZ", Timestamp::now())
            .map_err(|error| Failure::Garbled(error.to_string()))?;
        let mut spec = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.timing.duration.as_secs().max(1),
            "leaseTransitions": transitions,
            "renewTime": now,
        });
        if taken {
            spec["acquireTime"] = json!(now);
        }
        Ok(spec)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.all, escaped(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: None,
        };
        Lease { spec, ..Lease::default() }
    }

    #[test]
    fn lease_is_taken_only_without_a_live_holder() {
        let second = Duration::from_secs(1);
        assert_eq!(Action::of(&lease("us"), "us", second * 100), Action::Renew);
        assert_eq!(Action::of(&lease("they"), "us", second * 15), Action::Wait);
        assert_eq!(Action::of(&lease("they"), "us", second * 16), Action::Take);
        assert_eq!(Action::of(&lease(""), "us", second), Action::Take);
        assert_eq!(Action::of(&Lease::default(), "us", second), Action::Take);
    }
}
