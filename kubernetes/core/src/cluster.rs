//! The latest known pods and nodes, and the accounting of each node.
//!
//! Events are applied one by one; they may be lost, late or duplicated. A list replaces everything
//! except the record of deleted pods. The accounting of a node is always computed anew from the
//! pods that name it, so it does not depend on the order of events.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::accounting::NodeAccounting;
use crate::claim;
use crate::cordon::Cordon;
use crate::gpus::NodeGpus;
use crate::names::Dialects;
use crate::object::{Node, Pod};
use crate::placement;
use crate::pod_request::{PodObservation, PodRequest};
use crate::refusal::Refusal;
use crate::reservation;
use crate::tentative::TentativePlacements;

/// A node that exists, or that a pod names.
#[derive(Debug, Default)]
struct NodeEntry {
    gpus: Option<NodeGpus>,
    /// Uids of the pods that name it.
    pods: BTreeSet<String>,
    accounting: NodeAccounting,
    /// Since when the node is not ready, in nanoseconds by the caller's clock.
    unready_since: Option<u64>,
    /// It is not ready for so long that its report does not count.
    is_lost: bool,
}

/// Maximum size of each of the two sets of deleted pods. An event is never that late.
const MAX_DELETED: usize = 65_536;

/// Recently deleted pods. A late event does not restore one of them; uids are never used again.
#[derive(Debug, Default)]
struct DeletedPods {
    /// The latest, fewer than [`MAX_DELETED`].
    last: BTreeSet<String>,
    /// Those before, dropped when `last` reaches [`MAX_DELETED`].
    before: BTreeSet<String>,
}

impl DeletedPods {
    fn add(&mut self, uid: &str) {
        self.last.insert(uid.to_owned());
        if self.last.len() >= MAX_DELETED {
            self.before = std::mem::take(&mut self.last);
        }
    }

    fn remove(&mut self, uid: &str) {
        self.last.remove(uid);
        self.before.remove(uid);
    }

    fn has(&self, uid: &str) -> bool {
        self.last.contains(uid) || self.before.contains(uid)
    }
}

/// Known pods and nodes.
#[derive(Debug, Default)]
pub struct Cluster {
    dialects: Dialects,
    nodes: BTreeMap<String, NodeEntry>,
    pods: BTreeMap<String, Arc<PodRequest>>,
    /// Uids of unbound pods by the node that they are nominated for.
    nominated: BTreeMap<String, BTreeSet<String>>,
    tentative: TentativePlacements,
    deleted: DeletedPods,
    /// Indexes of GPUs that get no new pods, by node.
    cordons: BTreeMap<String, BTreeSet<u32>>,
}

impl Cluster {
    /// Creates an empty cluster.
    #[must_use]
    pub fn new(dialects: Dialects) -> Self {
        Self { dialects, ..Self::default() }
    }

    /// Returns the dialects that are read.
    #[must_use]
    pub fn dialects(&self) -> Dialects {
        self.dialects
    }

    /// Replaces nodes and pods as [`Self::replace_nodes`] and [`Self::replace_pods`] do.
    pub fn replace<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) {
        let dialects = self.dialects;
        self.replace_nodes(nodes.into_iter().map(NodeGpus::of));
        self.replace_pods(pods.into_iter().map(|pod| PodObservation::of(pod, dialects)), "");
    }

    /// Replaces the nodes with those of a list.
    pub fn replace_nodes(&mut self, nodes: impl IntoIterator<Item = NodeGpus>) {
        let mut lost: BTreeSet<String> = self.nodes.keys().cloned().collect();
        for gpus in nodes {
            lost.remove(&gpus.name);
            self.apply_gpus(gpus);
        }
        lost.iter().for_each(|name| self.delete_node(name));
    }

    /// Replaces the pods with a list of the API server at `version`.
    ///
    /// Known pods that are not listed count as deleted, and so do those deleted before. A listed
    /// pod exists, even if it counted as deleted. A pod that is known in a newer version than the
    /// list's keeps it: the change arrived by watch while the list was made.
    ///
    /// With an empty `version`, the list must not be older than the latest known state. Otherwise
    /// pods that appeared in between count as deleted until the next list. So request it without
    /// `resourceVersion=0`.
    pub fn replace_pods(&mut self, pods: impl IntoIterator<Item = PodObservation>, version: &str) {
        let mut known = std::mem::take(&mut self.pods);
        self.nominated.clear();
        self.nodes.values_mut().for_each(|entry| entry.pods.clear());
        let mut ended = Vec::new();
        for observation in pods {
            match observation {
                PodObservation::Requests(listed) => {
                    self.deleted.remove(&listed.uid);
                    let newer = known
                        .remove(&listed.uid)
                        .filter(|known| is_older(&listed.version, &known.version));
                    self.add(newer.unwrap_or(listed));
                }
                PodObservation::Ended(uid) => ended.push(uid),
                PodObservation::Other(_) => {}
            }
        }
        ended.iter().for_each(|uid| {
            known.remove(uid);
            self.deleted.add(uid);
        });
        for (uid, pod) in known {
            if is_older(version, &pod.version) {
                self.add(pod);
            } else {
                self.deleted.add(&uid);
            }
        }
        self.tentative.retain(|uid| self.pods.contains_key(uid));
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.compute(name));
    }

    /// Applies a new or changed node.
    pub fn apply_node(&mut self, node: &Node) {
        self.apply_gpus(NodeGpus::of(node));
    }

    fn apply_gpus(&mut self, mut gpus: NodeGpus) {
        let name = gpus.name.clone();
        if let Some(cordoned) = self.cordons.get(&name) {
            cordon(&mut gpus, cordoned);
        }
        let entry = self.nodes.entry(name.clone()).or_default();
        if gpus.ready {
            (entry.unready_since, entry.is_lost) = (None, false);
        } else if entry.is_lost {
            gpus.held.clear();
        }
        // Nodes report that they are alive every few seconds; that does not change the accounting.
        if entry.gpus.as_ref() != Some(&gpus) {
            entry.gpus = Some(gpus);
            self.compute(&name);
        }
    }

    /// Drops what nodes report of their containers that have not been ready for `after`
    /// nanoseconds. A node that is ready again reports anew. To be called often.
    pub fn expire_reports(&mut self, now: u64, after: u64) {
        let mut lost = Vec::new();
        for (name, entry) in &mut self.nodes {
            let Some(gpus) = entry.gpus.as_mut().filter(|gpus| !gpus.ready) else { continue };
            let since = *entry.unready_since.get_or_insert(now);
            if !entry.is_lost && now.saturating_sub(since) >= after {
                entry.is_lost = true;
                gpus.held.clear();
                lost.push(name.clone());
            }
        }
        lost.iter().for_each(|name| self.compute(name));
    }

    /// Removes a node.
    pub fn delete_node(&mut self, name: &str) {
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.gpus = None;
            self.compute(name);
        }
    }

    /// Replaces all cordons with those of a list.
    pub fn replace_cordons(&mut self, cordons: impl IntoIterator<Item = Cordon>) {
        let mut lost: BTreeSet<String> = self.cordons.keys().cloned().collect();
        for cordon in cordons {
            lost.remove(&cordon.node);
            self.apply_cordon(cordon);
        }
        lost.into_iter().for_each(|node| self.apply_cordon(Cordon { node, ..Cordon::default() }));
    }

    /// Applies a new or changed cordon. Without GPUs it counts as removed.
    pub fn apply_cordon(&mut self, changed: Cordon) {
        let Cordon { node, gpus, .. } = changed;
        if let Some(known) = self.nodes.get_mut(&node).and_then(|entry| entry.gpus.as_mut()) {
            cordon(known, &gpus);
            self.compute(&node);
        }
        if gpus.is_empty() {
            self.cordons.remove(&node);
        } else {
            self.cordons.insert(node, gpus);
        }
    }

    /// Applies a new or changed pod, unless a newer version is known.
    pub fn apply_pod(&mut self, pod: &Pod) {
        self.apply(PodObservation::of(pod, self.dialects));
    }

    /// Applies a new or changed pod, unless a newer version is known.
    pub fn apply(&mut self, observation: PodObservation) {
        let uid = observation.uid().to_owned();
        if self.deleted.has(&uid) {
            return;
        }
        let known = self.pods.get(&uid).cloned();
        match observation {
            PodObservation::Requests(pod_request) => {
                if let Some(known) = known {
                    if is_older(&pod_request.version, &known.version) {
                        return;
                    }
                    if known.node() != pod_request.node() {
                        self.unname_node(&known);
                    }
                }
                let name = pod_request.node().map(str::to_owned);
                self.add(pod_request);
                if let Some(name) = name {
                    self.compute(&name);
                }
            }
            // The end is final. An unknown pod is recorded, too: an earlier state of it may arrive
            // late.
            PodObservation::Ended(uid) => self.delete_pod(&uid),
            PodObservation::Other(_) if known.is_some() => self.delete_pod(&uid),
            PodObservation::Other(_) => {}
        }
    }

    /// Removes a pod.
    pub fn delete_pod(&mut self, uid: &str) {
        self.deleted.add(uid);
        self.tentative.end(uid);
        if let Some(pod) = self.pods.remove(uid) {
            self.end_nomination(&pod);
            self.unname_node(&pod);
        }
    }

    /// Returns the GPUs and the accounting of a node that exists.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<(&NodeGpus, &NodeAccounting)> {
        let entry = self.nodes.get(name)?;
        Some((entry.gpus.as_ref()?, &entry.accounting))
    }

    /// Returns a node that exists, and its accounting as the pod finds it: without its own claim,
    /// and with the room that is kept for others.
    #[must_use]
    pub fn room(
        &self,
        pod: &PodRequest,
        name: &str,
    ) -> Option<(&NodeGpus, Cow<'_, NodeAccounting>)> {
        let (node, accounting) = self.node(name)?;
        let pod = self.tentative.get(&pod.uid).map_or(pod, Arc::as_ref);
        let accounting = match pod.claimed() {
            Some(claimed) if claimed == name => Cow::Owned(accounting.without(node, &pod.uid)),
            _ => Cow::Borrowed(accounting),
        };
        let nominated = self.nominated.get(name).into_iter().flatten();
        // A placement is newer than what the pod's object says.
        let nominated = nominated.filter(|uid| self.tentative.get(uid).is_none());
        let nominated = nominated.filter_map(|uid| self.pods.get(uid));
        let mut accounting = accounting;
        self.tentative.reserve(pod, node, &mut accounting);
        let kept = reservation::against(pod, node, &accounting, nominated);
        Some((
            node,
            match kept {
                Cow::Owned(kept) => Cow::Owned(kept),
                Cow::Borrowed(_) => accounting,
            },
        ))
    }

    /// Places a pod on a node that has room for it, in place of an earlier placement. `now` is in
    /// nanoseconds.
    pub fn place(&mut self, pod: PodRequest, name: &str, now: u64) {
        let Ok(request) = pod.resource_request() else { return };
        let Some((node, accounting)) = self.room(&pod, name) else { return };
        let Ok(positions) = placement::choose(node, &accounting, &request) else { return };
        let part = |(rank, position): (usize, &usize)| {
            let gpu = &node.gpus[*position];
            (gpu.index, request.of_gpu(rank, gpu))
        };
        let parts = positions.iter().enumerate().map(part).collect();
        self.tentative.place(pod, name, parts, now);
    }

    /// Ends the placement of a pod.
    pub fn end_placement(&mut self, uid: &str) {
        self.tentative.end(uid);
    }

    /// Ends the placements whose deadline has passed. To be called often.
    pub fn expire_placements(&mut self, now: u64) {
        self.tentative.expire(now);
    }

    /// Returns the pod with the claim that the copy knows: a scheduler may not have seen it yet.
    #[must_use]
    pub fn with_claim(&self, pod: PodRequest) -> PodRequest {
        match self.pods.get(&pod.uid) {
            Some(known) => PodRequest { allocation: known.allocation.clone(), ..pod },
            None => pod,
        }
    }

    /// Returns the nodes that exist, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeGpus, &NodeAccounting)> {
        self.nodes.values().filter_map(|entry| Some((entry.gpus.as_ref()?, &entry.accounting)))
    }

    /// Returns a pod that requests GPUs.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodRequest>> {
        self.pods.get(uid)
    }

    /// Returns the pods that request GPUs, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodRequest>> {
        self.pods.values()
    }

    /// Checks a claim before its pod is bound. All changes of pods up to the version of the claim
    /// must have been applied.
    ///
    /// # Errors
    /// Those of [`claim::confirm`], or the node is not known, so what it has is not known either.
    /// The claim must be withdrawn.
    pub fn confirm(&self, uid: &str, node: &str) -> Result<(), Refusal> {
        let none = BTreeSet::new();
        let of_node = self.nodes.get(node).map_or(&none, |entry| &entry.pods);
        let nominated = self.nominated.get(node).unwrap_or(&none);
        let uids = of_node.union(nominated);
        self.confirm_listed(uid, node, uids.filter_map(|uid| self.pods.get(uid)))
    }

    /// Does the same by `pods`, which the API server has listed after the claim was written: those
    /// that are unbound, then those that are bound to the node.
    ///
    /// # Errors
    /// As above.
    pub fn confirm_listed<'a>(
        &self,
        uid: &str,
        node: &str,
        pods: impl IntoIterator<Item = &'a Arc<PodRequest>>,
    ) -> Result<(), Refusal> {
        let (gpus, _) = self.node(node).ok_or_else(|| {
            Refusal::new(format!("the node `{}` was deleted", node.escape_default()))
        })?;
        // The claim was made beside what is kept for placed pods.
        let is_placed =
            |pod: &Arc<PodRequest>| pod.node().is_none() && self.tentative.get(&pod.uid).is_some();
        claim::confirm(uid, gpus, pods.into_iter().filter(|pod| !is_placed(pod)))
    }

    /// Returns pods whose claims are stale: claims that are old, or on nodes that do not exist.
    pub fn stale(&self, now: u64) -> impl Iterator<Item = &Arc<PodRequest>> {
        self.pods().filter(move |pod| {
            let lost =
                pod.bound.is_none() && pod.claimed().is_some_and(|name| self.node(name).is_none());
            lost || claim::is_stale(pod, now)
        })
    }

    /// Returns whether the accounting equals one computed from all pods. For tests.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let mut nominated: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in self.pods.values().filter(|pod| pod.bound.is_none()) {
            if let Some(name) = &pod.nominated {
                nominated.entry(name.clone()).or_default().insert(pod.uid.clone());
            }
        }
        nominated == self.nominated
            && self.nodes.iter().all(|(name, entry)| {
                let naming: BTreeSet<&String> = self
                    .pods
                    .values()
                    .filter(|pod| pod.node() == Some(name))
                    .map(|pod| &pod.uid)
                    .collect();
                let accounting =
                    entry.gpus.as_ref().map(|gpus| NodeAccounting::of(gpus, self.pods.values()));
                naming == entry.pods.iter().collect()
                    && accounting.unwrap_or_default() == entry.accounting
            })
            && self
                .pods
                .values()
                .all(|pod| pod.node().is_none_or(|name| self.nodes.contains_key(name)))
    }

    /// Stores a pod. The caller must compute the accounting of its node afterwards.
    fn add(&mut self, pod: Arc<PodRequest>) {
        if let Some(known) = self.pods.get(&pod.uid).cloned() {
            self.end_nomination(&known);
        }
        if let (Some(name), None) = (&pod.nominated, &pod.bound) {
            self.nominated.entry(name.clone()).or_default().insert(pod.uid.clone());
        }
        self.tentative.observe(&pod);
        if let Some(name) = pod.node() {
            self.nodes.entry(name.to_owned()).or_default().pods.insert(pod.uid.clone());
        }
        self.pods.insert(pod.uid.clone(), pod);
    }

    fn end_nomination(&mut self, pod: &PodRequest) {
        let Some(name) = &pod.nominated else { return };
        if let Some(uids) = self.nominated.get_mut(name) {
            uids.remove(&pod.uid);
            if uids.is_empty() {
                self.nominated.remove(name);
            }
        }
    }

    fn unname_node(&mut self, pod: &PodRequest) {
        let Some(name) = pod.node() else { return };
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.pods.remove(&pod.uid);
            self.compute(name);
        }
    }

    fn compute(&mut self, name: &str) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        if entry.gpus.is_none() && entry.pods.is_empty() {
            self.nodes.remove(name);
            return;
        }
        let pods = entry.pods.iter().filter_map(|uid| self.pods.get(uid));
        entry.accounting =
            entry.gpus.as_ref().map(|gpus| NodeAccounting::of(gpus, pods)).unwrap_or_default();
    }
}

fn cordon(node: &mut NodeGpus, cordoned: &BTreeSet<u32>) {
    node.gpus.iter_mut().for_each(|gpu| gpu.cordoned = cordoned.contains(&gpu.index));
}

/// Returns whether one version is older than another. Versions of all API servers are growing
/// numbers; of others the order is not known.
fn is_older(version: &str, known: &str) -> bool {
    match (version.parse::<u64>(), known.parse::<u64>()) {
        (Ok(version), Ok(known)) => version < known,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
