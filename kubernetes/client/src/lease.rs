//! Who of several replicas does what only one need do: whoever holds a Lease.
//!
//! Clocks of machines differ, so no time that stands in a lease is believed: a holder counts as gone when its lease has not changed for as long as it
//! says it lasts, by the clock of whoever looks. A holder that cannot renew stops before that.

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

/// How long a lease lasts, and how often it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// So long after its last renewal a holder counts as gone.
    pub lasts: Duration,
    /// So often it is renewed, or tried for.
    pub every: Duration,
}

impl Default for Term {
    fn default() -> Self {
        Self { lasts: Duration::from_secs(15), every: Duration::from_secs(3) }
    }
}

/// A lease, as far as it counts.
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

    fn lasts(&self) -> Duration {
        Duration::from_secs(self.spec.lease_duration_seconds.unwrap_or(0))
    }
}

/// What is to be done about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is ours: say that we are here.
    Renew,
    /// Nobody has it.
    Take,
    /// Somebody else has it.
    Wait,
}

impl Step {
    /// Of a lease that has been the same for `unchanged`.
    fn of(lease: &Lease, identity: &str, unchanged: Duration) -> Self {
        match lease.holder() {
            Some(holder) if holder == identity => Self::Renew,
            Some(_) if unchanged <= lease.lasts() => Self::Wait,
            _ => Self::Take,
        }
    }
}

/// A part in the election.
pub struct Election {
    api: Api,
    /// Where the leases of its namespace are.
    all: String,
    name: String,
    identity: String,
    term: Term,
}

impl Election {
    /// For the lease of this name. `identity` is nobody else's.
    #[must_use]
    pub fn new(api: Api, namespace: &str, name: &str, identity: &str, term: Term) -> Self {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", escaped(namespace));
        Self { api, all, name: name.to_owned(), identity: identity.to_owned(), term }
    }

    /// Takes part for ever; `leads` says whether we lead. It stops saying so in time before another may.
    pub async fn run(&self, leads: &watch::Sender<bool>) {
        let mut seen: Option<(Lease, Instant)> = None;
        let mut renewed: Option<Instant> = None;
        loop {
            let asked = Instant::now();
            match tokio::time::timeout(self.patience(), self.step(&mut seen)).await {
                Ok(Ok(true)) => renewed = Some(asked),
                // Somebody else has it.
                Ok(Ok(false)) => renewed = None,
                Ok(Err(failure)) => debug!(%failure, lease = self.name, "cannot reach the lease"),
                Err(_) => debug!(lease = self.name, "the lease was not reached in time"),
            }
            let leading = renewed.is_some_and(|at| at.elapsed() < self.patience());
            if leads.send_if_modified(|leads| std::mem::replace(leads, leading) != leading) {
                info!(lease = self.name, identity = self.identity, leading, "leadership");
            }
            tokio::time::sleep(self.term.every).await;
        }
    }

    /// So long without a renewal it is still ours for sure.
    fn patience(&self) -> Duration {
        self.term.lasts * 2 / 3
    }

    /// Lets go, so that nobody has to wait.
    pub async fn resign(&self) {
        let Ok(lease) = self.read().await else { return };
        if lease.as_ref().and_then(Lease::holder) == Some(self.identity.as_str()) {
            let version = lease.map(|lease| lease.metadata.resource_version);
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": ""}});
            // Whoever took it meanwhile may have it.
            let _ = self.api.ask::<Value>(Method::PATCH, &self.path(), Some(&patch)).await;
        }
    }

    /// Looks once and does what is to be done. True: it is ours.
    async fn step(&self, seen: &mut Option<(Lease, Instant)>) -> Result<bool, Failure> {
        let Some(lease) = self.read().await? else {
            let spec = self.spec(true, 0)?;
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": self.name}, "spec": spec,
            });
            return match self.api.ask::<Value>(Method::POST, &self.all, Some(&lease)).await {
                Ok(_) => Ok(true),
                Err(Failure::Exists(_)) => Ok(false),
                Err(failure) => Err(failure),
            };
        };
        let since = match seen {
            Some((known, since)) if *known == lease => *since,
            _ => seen.insert((lease.clone(), Instant::now())).1,
        };
        let step = Step::of(&lease, &self.identity, since.elapsed());
        let transitions = lease.spec.lease_transitions.unwrap_or(0);
        let spec = match step {
            Step::Wait => return Ok(false),
            Step::Renew => self.spec(false, transitions)?,
            Step::Take => self.spec(true, transitions + 1)?,
        };
        let patch = json!({"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec});
        match self.api.ask::<Value>(Method::PATCH, &self.path(), Some(&patch)).await {
            Ok(_) => Ok(true),
            Err(Failure::Conflict(_)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn read(&self) -> Result<Option<Lease>, Failure> {
        match self.api.ask(Method::GET, &self.path(), None).await {
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
            "leaseDurationSeconds": self.term.lasts.as_secs().max(1),
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
    fn a_lease_is_taken_from_those_who_are_gone_alone() {
        let second = Duration::from_secs(1);
        assert_eq!(Step::of(&lease("us"), "us", second * 100), Step::Renew);
        assert_eq!(Step::of(&lease("they"), "us", second * 15), Step::Wait);
        assert_eq!(Step::of(&lease("they"), "us", second * 16), Step::Take);
        assert_eq!(Step::of(&lease(""), "us", second), Step::Take);
        assert_eq!(Step::of(&Lease::default(), "us", second), Step::Take);
    }
}
