//! Tentative placements of pods of gangs: a node and GPUs for each, from filter until it is bound.
//!
//! A scheduler that binds the pods of a gang together holds each one back until all have a node.
//! Until then no object shows its node, so a pod that is filtered meanwhile would be answered the
//! same room. Filter answers one node for a pod of a gang, and keeps GPUs for it there against pods
//! of the same or a lower priority.
//!
//! A placement ends when the pod is claimed, bound or deleted, when its object nominates another
//! node, and at a new filter of it. Until its object shows the node it has a deadline, too.

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
    /// None: its object shows the node by now, and that counts until it changes.
    until: Option<u64>,
}

/// The placements by the pods' uids.
#[derive(Debug, Default)]
pub(crate) struct TentativePlacements(BTreeMap<String, Tentative>);

impl TentativePlacements {
    /// Places a pod on a node until the deadline. `now` is in nanoseconds.
    pub(crate) fn place(&mut self, pod: PodRequest, node: &str, parts: Parts, now: u64) {
        let before = pod.nominated.clone();
        let is_shown = before.as_deref() == Some(node);
        let pod = Arc::new(PodRequest { nominated: Some(node.to_owned()), ..pod });
        let until = (!is_shown).then(|| now.saturating_add(DEADLINE));
        self.0.insert(pod.uid.clone(), Tentative { pod, parts, before, until });
    }

    /// Ends the placement of a pod.
    pub(crate) fn end(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Compares the placement of a pod with its object.
    pub(crate) fn observe(&mut self, pod: &PodRequest) {
        let Some(tentative) = self.0.get_mut(&pod.uid) else { return };
        let is_shown = pod.nominated == tentative.pod.nominated;
        let is_elsewhere = !is_shown
            && (tentative.until.is_none()
                || pod.nominated.is_some() && pod.nominated != tentative.before);
        if pod.node().is_some() || is_elsewhere {
            self.0.remove(&pod.uid);
        } else if is_shown {
            tentative.until = None;
        }
    }

    /// Ends the placements whose deadline has passed.
    pub(crate) fn expire(&mut self, now: u64) {
        self.0.retain(|_, tentative| tentative.until.is_none_or(|until| now < until));
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
            other.nominated.as_ref() == Some(&node.name)
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
