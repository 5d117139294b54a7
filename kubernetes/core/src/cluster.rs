//! Pods and nodes as they were last seen, and the accounting of each node.
//!
//! Events are taken one by one and may be lost, late or doubled; a list replaces everything but the memory of what is gone. The accounting of a node
//! is computed anew from what names it, so it does not matter by which way it came to be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::accounting::NodeAccounting;
use crate::claim;
use crate::gpus::NodeGpus;
use crate::names::Dialects;
use crate::object::{Node, Pod};
use crate::pod_request::{PodObservation, PodRequest};
use crate::refusal::Refusal;

/// A node that is known, or that a pod names.
#[derive(Debug, Default)]
struct NodeEntry {
    gpus: Option<NodeGpus>,
    /// Uids of the pods that name it.
    pods: BTreeSet<String>,
    accounting: NodeAccounting,
}

/// Number of deleted pods that are remembered, and at most twice as many. Late events are not as
/// late as that.
const MAX_DELETED: usize = 65_536;

/// Deleted pods: a late event does not restore one, for no uid is used twice.
#[derive(Debug, Default)]
struct DeletedPods {
    /// Fewer than [`MAX_DELETED`].
    last: BTreeSet<String>,
    /// Those before them: forgotten together when there are [`MAX_DELETED`] newer ones.
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

/// Everything that is known.
#[derive(Debug, Default)]
pub struct Cluster {
    dialects: Dialects,
    nodes: BTreeMap<String, NodeEntry>,
    pods: BTreeMap<String, Arc<PodRequest>>,
    deleted: DeletedPods,
}

impl Cluster {
    /// One that knows nothing.
    #[must_use]
    pub fn new(dialects: Dialects) -> Self {
        Self { dialects, ..Self::default() }
    }

    /// Which names are listened to.
    #[must_use]
    pub fn dialects(&self) -> Dialects {
        self.dialects
    }

    /// Forgets what it knew and takes this, as [`Self::replace_nodes`] and [`Self::replace_pods`] do.
    pub fn replace<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) {
        let dialects = self.dialects;
        self.replace_nodes(nodes.into_iter().map(NodeGpus::of));
        self.replace_pods(pods.into_iter().map(|pod| PodObservation::of(pod, dialects)), "");
    }

    /// These are the nodes that there are.
    pub fn replace_nodes(&mut self, nodes: impl IntoIterator<Item = NodeGpus>) {
        let mut lost: BTreeSet<String> = self.nodes.keys().cloned().collect();
        for gpus in nodes {
            lost.remove(&gpus.name);
            self.apply_gpus(gpus);
        }
        lost.iter().for_each(|name| self.delete_node(name));
    }

    /// These are the pods that there were when the API server had this version. Those that were known and are not among them are gone, and so are
    /// those that were gone before; one that is among them lives, whatever was thought of it. Of one that is known in a newer version than the
    /// list's that version stays: it came by another way while the list was made.
    ///
    /// Without a version the list must not be older than what was seen, or pods that came in between would be taken for gone until the next list:
    /// the API server is to be asked for one without `resourceVersion=0`.
    pub fn replace_pods(&mut self, pods: impl IntoIterator<Item = PodObservation>, version: &str) {
        let mut known = std::mem::take(&mut self.pods);
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
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        names.iter().for_each(|name| self.compute(name));
    }

    /// A node came or changed.
    pub fn apply_node(&mut self, node: &Node) {
        self.apply_gpus(NodeGpus::of(node));
    }

    fn apply_gpus(&mut self, gpus: NodeGpus) {
        let name = gpus.name.clone();
        let entry = self.nodes.entry(name.clone()).or_default();
        // Nodes say every few seconds that they live; that does not change the accounting.
        if entry.gpus.as_ref() != Some(&gpus) {
            entry.gpus = Some(gpus);
            self.compute(&name);
        }
    }

    /// A node went.
    pub fn delete_node(&mut self, name: &str) {
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.gpus = None;
            self.compute(name);
        }
    }

    /// A pod came or changed. An older version than the one that is known is passed over.
    pub fn apply_pod(&mut self, pod: &Pod) {
        self.apply(PodObservation::of(pod, self.dialects));
    }

    /// A pod came or changed. An older version than the one that is known is passed over.
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
            // It has ended, which is for ever, also where it was not known: what it was before may come late.
            PodObservation::Ended(uid) => self.delete_pod(&uid),
            PodObservation::Other(_) if known.is_some() => self.delete_pod(&uid),
            PodObservation::Other(_) => {}
        }
    }

    /// A pod went.
    pub fn delete_pod(&mut self, uid: &str) {
        self.deleted.add(uid);
        if let Some(pod) = self.pods.remove(uid) {
            self.unname_node(&pod);
        }
    }

    /// The GPUs and the accounting of a node that is there.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<(&NodeGpus, &NodeAccounting)> {
        let entry = self.nodes.get(name)?;
        Some((entry.gpus.as_ref()?, &entry.accounting))
    }

    /// All that are there, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeGpus, &NodeAccounting)> {
        self.nodes.values().filter_map(|entry| Some((entry.gpus.as_ref()?, &entry.accounting)))
    }

    /// A pod that asks for GPUs.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&Arc<PodRequest>> {
        self.pods.get(uid)
    }

    /// All of these, by uid.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<PodRequest>> {
        self.pods.values()
    }

    /// Looks at a claim before it is bound: `pods` are what the API server lists of the node's pods and of those that are bound nowhere.
    ///
    /// # Errors
    /// As [`claim::confirm`]; and the node is not known, so that nobody can say what it has: withdraw.
    pub fn confirm<'a>(
        &self,
        uid: &str,
        node: &str,
        pods: impl IntoIterator<Item = &'a Arc<PodRequest>>,
    ) -> Result<(), Refusal> {
        let (gpus, _) = self.node(node).ok_or_else(|| {
            Refusal::new(format!("the node `{}` has gone", node.escape_default()))
        })?;
        claim::confirm(uid, gpus, pods)
    }

    /// Claims that have come to nothing: old ones, and those on nodes that are not there.
    pub fn stale(&self, now: u64) -> impl Iterator<Item = &Arc<PodRequest>> {
        self.pods().filter(move |pod| {
            let lost =
                pod.bound.is_none() && pod.claimed().is_some_and(|name| self.node(name).is_none());
            lost || claim::is_stale(pod, now)
        })
    }

    /// Whether the accounting is what it would be if everything had been seen at once. For tests.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.nodes.iter().all(|(name, entry)| {
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
        }) && self
            .pods
            .values()
            .all(|pod| pod.node().is_none_or(|name| self.nodes.contains_key(name)))
    }

    /// The accounting of its node is to be computed then.
    fn add(&mut self, pod: Arc<PodRequest>) {
        if let Some(name) = pod.node() {
            self.nodes.entry(name.to_owned()).or_default().pods.insert(pod.uid.clone());
        }
        self.pods.insert(pod.uid.clone(), pod);
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

/// Versions are numbers that grow, in every API server there is; of others nothing is known.
fn is_older(version: &str, known: &str) -> bool {
    match (version.parse::<u64>(), known.parse::<u64>()) {
        (Ok(version), Ok(known)) => version < known,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
