//! Tentative placements of pods of gangs: a node for each, from filter until the scheduler shows
//! where it has put the pod.
//!
//! A scheduler that binds the pods of a gang together holds each one back until all have a node.
//! Until then no object shows its node, so a pod that is filtered meanwhile would be answered the
//! same room. Filter answers one node for a pod of a gang, and the pod counts there like one that
//! is nominated ([`crate::reservation`]).
//!
//! A placement ends when the pod is nominated, claimed, bound or deleted, at a new filter of it,
//! and at its deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pod_request::PodRequest;

/// How long a placement counts without a sign of the scheduler, in nanoseconds. Schedulers show the
/// node within a second since Kubernetes 1.35; older ones when the gang is complete.
pub const DEADLINE: u64 = 60_000_000_000;

/// A placement.
#[derive(Debug)]
struct Tentative {
    /// The pod, nominated for its node.
    pod: Arc<PodRequest>,
    /// The node that its object nominated before.
    before: Option<String>,
    until: u64,
}

/// The placements by the pods' uids.
#[derive(Debug, Default)]
pub(crate) struct TentativePlacements(BTreeMap<String, Tentative>);

impl TentativePlacements {
    /// Places a pod on a node until the deadline. `now` is in nanoseconds.
    pub(crate) fn place(&mut self, pod: PodRequest, node: &str, now: u64) {
        let before = pod.nominated.clone();
        let pod = Arc::new(PodRequest { nominated: Some(node.to_owned()), ..pod });
        let until = now.saturating_add(DEADLINE);
        self.0.insert(pod.uid.clone(), Tentative { pod, before, until });
    }

    /// Ends the placement of a pod.
    pub(crate) fn end(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Ends the placement of a pod if its object now shows where it is to run.
    pub(crate) fn observe(&mut self, pod: &PodRequest) {
        let Some(Tentative { before, pod: placed, .. }) = self.0.get(&pod.uid) else { return };
        let is_new = pod.nominated.is_some() && pod.nominated != *before;
        if pod.node().is_some() || is_new || pod.nominated == placed.nominated {
            self.end(&pod.uid);
        }
    }

    /// Ends the placements whose deadline has passed.
    pub(crate) fn expire(&mut self, now: u64) {
        self.0.retain(|_, tentative| now < tentative.until);
    }

    /// Ends the placements of all pods but these.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| exists(uid));
    }

    /// Returns a pod that has a placement, as nominated for its node.
    pub(crate) fn get(&self, uid: &str) -> Option<&Arc<PodRequest>> {
        self.0.get(uid).map(|tentative| &tentative.pod)
    }

    /// Returns the pods that are placed on a node, as nominated for it.
    pub(crate) fn on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Arc<PodRequest>> {
        let pods = self.0.values().map(|tentative| &tentative.pod);
        pods.filter(move |pod| pod.nominated.as_deref() == Some(node))
    }
}

#[cfg(test)]
mod tests;
