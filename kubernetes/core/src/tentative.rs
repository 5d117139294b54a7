//! Tentative placements of pods of gangs: a node and GPUs for each, from filter until it is bound.
//!
//! A scheduler that binds the pods of a gang together holds each one back until all have a node.
//! Until then no object shows its node, so a pod that is filtered meanwhile would be answered the
//! same room. Filter answers one node for a pod of a gang, and keeps GPUs for it there against pods
//! of the same or a lower priority.
//!
//! A placement ends when the pod is claimed, bound or deleted, when its object nominates another
//! node, and at a new filter of it. Until its object shows the node it has a deadline, too.
//!
//! kube-scheduler 1.35 and 1.36 leave the node in the object when a pod has waited in vain, until
//! it fails once more (kubernetes/enhancements#5771). They tell the failure, so a new one counts as
//! the end, and the node as not nominated.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::accounting::NodeAccounting;
use crate::gpus::NodeGpus;
use crate::pod_request::PodRequest;
use crate::share::Share;

/// How long a placement counts without a sign of the scheduler, in nanoseconds. Schedulers show the
/// node within a second since Kubernetes 1.35; older ones when the gang is complete.
pub const DEADLINE: u64 = 60_000_000_000;

/// Shares of GPUs, by their indexes.
pub(crate) type Parts = Vec<(u32, Share)>;

/// A placement.
#[derive(Debug)]
struct Tentative {
    /// The pod, nominated for its node.
    pod: Arc<PodRequest>,
    /// What it has there.
    parts: Parts,
    /// The node that its object nominated before.
    before: Option<String>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its object does not show the node yet. It counts until this time, in nanoseconds.
    Unseen(u64),
    /// Its object shows the node, and told this failure when it first did. It counts until either
    /// changes.
    Shown(Option<String>),
    /// Its object still shows the node, but its scheduler gave up. It counts no longer, and neither
    /// does the nomination.
    GivenUp,
}

/// The placements by the pods' uids.
#[derive(Debug, Default)]
pub(crate) struct TentativePlacements(BTreeMap<String, Tentative>);

impl TentativePlacements {
    /// Places a pod on a node until the deadline. `now` is in nanoseconds.
    pub(crate) fn place(&mut self, pod: PodRequest, node: &str, parts: Parts, now: u64) {
        let before = pod.nominated.clone();
        let state = if before.as_deref() == Some(node) {
            State::Shown(pod.failure.clone())
        } else {
            State::Unseen(now.saturating_add(DEADLINE))
        };
        let pod = Arc::new(PodRequest { nominated: Some(node.to_owned()), ..pod });
        self.0.insert(pod.uid.clone(), Tentative { pod, parts, before, state });
    }

    /// Ends the placement of a pod.
    pub(crate) fn end(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Compares the placement of a pod with its object.
    pub(crate) fn observe(&mut self, pod: &PodRequest) {
        let Some(tentative) = self.0.get_mut(&pod.uid) else { return };
        let is_shown = pod.nominated == tentative.pod.nominated;
        let was_shown = !matches!(tentative.state, State::Unseen(_));
        let is_elsewhere = !is_shown
            && (was_shown || pod.nominated.is_some() && pod.nominated != tentative.before);
        if pod.node().is_some() || is_elsewhere {
            self.0.remove(&pod.uid);
        } else if is_shown {
            match &tentative.state {
                State::Unseen(_) => tentative.state = State::Shown(pod.failure.clone()),
                State::Shown(before) if *before != pod.failure => tentative.state = State::GivenUp,
                State::Shown(_) | State::GivenUp => {}
            }
        }
    }

    /// Ends the placements whose deadline has passed.
    pub(crate) fn expire(&mut self, now: u64) {
        self.0.retain(|_, tentative| match tentative.state {
            State::Unseen(until) => now < until,
            State::Shown(_) | State::GivenUp => true,
        });
    }

    /// Ends the placements of all pods but these.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| exists(uid));
    }

    /// Returns a pod that has a placement, as nominated for its node.
    pub(crate) fn get(&self, uid: &str) -> Option<&Arc<PodRequest>> {
        self.0.get(uid).map(|tentative| &tentative.pod)
    }

    /// Reserves what `pod` must leave to the pods that are placed on a node.
    pub(crate) fn reserve(
        &self,
        pod: &PodRequest,
        node: &NodeGpus,
        accounting: &mut Cow<'_, NodeAccounting>,
    ) {
        let counts = |tentative: &&Tentative| {
            let other = &tentative.pod;
            tentative.state != State::GivenUp
                && other.nominated.as_ref() == Some(&node.name)
                && other.uid != pod.uid
                && other.priority >= pod.priority
        };
        for tentative in self.0.values().filter(counts) {
            accounting.to_mut().reserve(node, &tentative.pod, tentative.parts.clone());
        }
    }
}

#[cfg(test)]
mod tests;
