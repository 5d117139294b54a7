//! Replies of the scheduler extender, with the paths and bodies of gpushare's extender.
//!
//! Names are capitalised because kube-scheduler's types have no others. All replies but that of
//! `bind` depend only on the [`Cluster`]. [`bind`] returns a change; its caller writes it, confirms
//! the claim and binds the pod ([`crate::claim`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::NodeAccounting;
use crate::claim::{self, Change};
use crate::cluster::Cluster;
use crate::gpus::{NodeGpus, Placement};
use crate::names::Dialects;
use crate::object::Pod;
use crate::placement;
use crate::pod_request::PodRequest;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::resource_request::ResourceRequest;

/// Prefix of every path but `/version`.
pub const PREFIX: &str = "/gpushare-scheduler";

/// Nodes that a scheduler may name before the copy has them, beside as many as the copy has.
const NODES_AHEAD: usize = 1000;

/// Endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// GET `/version`.
    Version,
    /// POST `filter`.
    Filter,
    /// POST `prioritize`.
    Prioritize,
    /// POST `preempt`.
    Preempt,
    /// POST `bind`.
    Bind,
    /// GET `inspect`, or `inspect/NODE`.
    Inspect(Option<&'a str>),
}

impl<'a> Call<'a> {
    /// Returns the endpoint of a path, or `None` if there is none for this method.
    #[must_use]
    pub fn of(method: &str, path: &'a str) -> Option<Self> {
        if path == "/version" {
            return (method == "GET").then_some(Self::Version);
        }
        let rest = path.strip_prefix(PREFIX)?.strip_prefix('/')?;
        match (method, rest) {
            ("POST", "filter") => Some(Self::Filter),
            ("POST", "prioritize") => Some(Self::Prioritize),
            ("POST", "preempt") => Some(Self::Preempt),
            ("POST", "bind") => Some(Self::Bind),
            ("GET", "inspect" | "inspect/") => Some(Self::Inspect(None)),
            ("GET", node) => {
                let name = node.strip_prefix("inspect/")?;
                (!name.contains('/')).then_some(Self::Inspect(Some(name)))
            }
            _ => None,
        }
    }
}

/// Returns the reply to `/version`.
#[must_use]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Request of filter and prioritize.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Candidates {
    /// Pod to place.
    #[serde(alias = "pod")]
    pub pod: Option<Pod>,
    /// Candidate nodes as whole objects: from schedulers whose configuration says that the extender
    /// has no cache.
    #[serde(alias = "nodes")]
    pub nodes: Option<NodeList>,
    /// Names of candidate nodes.
    #[serde(alias = "nodenames", alias = "nodeNames")]
    pub node_names: Option<Vec<String>>,
}

/// Nodes, returned as they came.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeList {
    /// Node objects, unparsed.
    #[serde(default)]
    pub items: Vec<Value>,
}

/// Reply of filter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Filtered {
    /// Fitting nodes, if the request has whole nodes.
    pub nodes: Option<NodeList>,
    /// Fitting nodes, if the request has names.
    pub node_names: Option<Vec<String>>,
    /// Reasons of nodes that would fit if pods were removed.
    pub failed_nodes: BTreeMap<String, String>,
    /// Reasons of nodes that never fit.
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Why there is no result.
    pub error: String,
}

impl Filtered {
    /// Whether a node fits.
    #[must_use]
    pub fn fits_any(&self) -> bool {
        self.node_names.as_ref().is_some_and(|names| !names.is_empty())
            || self.nodes.as_ref().is_some_and(|nodes| !nodes.items.is_empty())
    }
}

/// Score of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Priority {
    /// Name of the node.
    pub host: String,
    /// Score, 0 to 10.
    pub score: u64,
}

/// Request of bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Binding {
    /// Name of the pod.
    #[serde(alias = "podName")]
    pub pod_name: String,
    /// Namespace of the pod.
    #[serde(alias = "podNamespace")]
    pub pod_namespace: String,
    /// Uid of the pod.
    #[serde(rename = "PodUID", alias = "podUID")]
    pub pod_uid: String,
    /// Name of the node.
    #[serde(alias = "node")]
    pub node: String,
}

/// Reply of bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Bound {
    /// Why the pod was not bound; empty if it was.
    pub error: String,
}

/// Parses the body of a request.
///
/// # Errors
/// The body is not what kube-scheduler sends.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(format!("the request is not what kube-scheduler sends: {error}"))
    })
}

/// A request of filter and prioritize from a scheduler that sends names.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NamedCandidates {
    #[serde(alias = "pod")]
    pod: Option<Pod>,
    #[serde(alias = "nodes")]
    nodes: Option<IgnoredAny>,
    #[serde(alias = "nodenames", alias = "nodeNames")]
    node_names: Option<Vec<String>>,
}

/// Parses the body of filter and prioritize. Without `whole_nodes` it needs memory of some times
/// its size, whatever it contains.
///
/// # Errors
/// The body is not what kube-scheduler sends, has whole nodes where they are not accepted, or names
/// many more nodes than there are.
pub fn candidates(
    body: &[u8],
    whole_nodes: bool,
    cluster: &Cluster,
) -> Result<Candidates, Refusal> {
    let candidates = if whole_nodes {
        decode(body)?
    } else {
        let named: NamedCandidates = decode(body)?;
        if named.nodes.is_some() {
            return Err(Refusal::new(
                "the request has whole nodes: set nodeCacheCapable: true in the scheduler's \
                 configuration, or start the extender with --whole-nodes",
            ));
        }
        Candidates { pod: named.pod, nodes: None, node_names: named.node_names }
    };
    named_nodes(candidates.node_names.as_ref().map_or(0, Vec::len), cluster)?;
    Ok(candidates)
}

/// Checks the number of nodes that a request names.
pub(crate) fn named_nodes(named: usize, cluster: &Cluster) -> Result<(), Refusal> {
    let known = cluster.nodes().count();
    // Each gets a part of the reply. The scheduler may be ahead of our watch.
    if named > 2 * known + NODES_AHEAD {
        return Err(Refusal::new(format!(
            "the request names {named} nodes, but the cluster has {known}"
        )));
    }
    Ok(())
}

/// Returns the nodes that fit the pod.
#[must_use]
pub fn filter(cluster: &Cluster, candidates: &Candidates) -> Filtered {
    let Some(pod) = &candidates.pod else {
        return Filtered { error: "the request names no pod".to_owned(), ..Filtered::default() };
    };
    let requesting_pod = RequestingPod::of(pod, cluster);
    let mut answer = Filtered::default();
    let mut fits = |name: &str| match requesting_pod.fits(cluster, name) {
        Ok(()) => true,
        Err(reason) => {
            let failed = if reason.resolvable {
                &mut answer.failed_nodes
            } else {
                &mut answer.failed_and_unresolvable_nodes
            };
            failed.insert(name.to_owned(), reason.counted());
            false
        }
    };
    let names = candidates
        .node_names
        .as_ref()
        .map(|names| names.iter().filter(|name| fits(name)).cloned().collect());
    let nodes = candidates.nodes.as_ref().map(|nodes| {
        let items = nodes
            .items
            .iter()
            .filter(|node| node["metadata"]["name"].as_str().is_some_and(&mut fits));
        NodeList { items: items.cloned().collect() }
    });
    Filtered { nodes, node_names: names, ..answer }
}

/// Whether a node fits a pod that is known.
#[must_use]
pub fn fits(cluster: &Cluster, pod: &PodRequest, node: &str) -> bool {
    let resource_request = pod.resource_request().map(Some);
    RequestingPod { pod: Some(pod.clone()), resource_request }.fits(cluster, node).is_ok()
}

/// Returns the nodes that fit the pod; of a pod of a gang only the best one, on which it is placed
/// ([`crate::tentative`]). `now` is in nanoseconds.
#[must_use]
pub fn filter_and_place(
    cluster: &mut Cluster,
    candidates: &Candidates,
    placement: Placement,
    now: u64,
) -> Filtered {
    let requesting = candidates.pod.as_ref().and_then(|pod| placed(pod, cluster.dialects()));
    let Some(pod) = requesting else { return filter(cluster, candidates) };
    cluster.end_placement(&pod.uid);
    let mut answer = filter(cluster, candidates);
    let fitting = Candidates {
        pod: candidates.pod.clone(),
        nodes: answer.nodes.clone(),
        node_names: answer.node_names.clone(),
    };
    let ranked = prioritize(cluster, &fitting, placement, &HashMap::new());
    let Some(best) = ranked.iter().rev().max_by_key(|priority| priority.score) else {
        return answer;
    };
    if let Some(names) = &mut answer.node_names {
        names.retain(|name| *name == best.host);
    }
    if let Some(nodes) = &mut answer.nodes {
        nodes.items.retain(|node| node["metadata"]["name"].as_str() == Some(&best.host));
    }
    cluster.place(cluster.with_claim(pod), &best.host, now);
    answer
}

/// Whether [`filter_and_place`] places the pod.
#[must_use]
pub fn is_placed(pod: &Pod, dialects: Dialects) -> bool {
    placed(pod, dialects).is_some()
}

fn placed(pod: &Pod, dialects: Dialects) -> Option<PodRequest> {
    PodRequest::of(pod, dialects).filter(|pod| pod.in_gang && pod.bound.is_none())
}

/// Scores nodes by how full they would be with the pod. Nodes that have too little room for what
/// others are expected to take, too, come behind the rest ([`crate::expected`]; in thousandths of
/// units).
#[must_use]
pub fn prioritize(
    cluster: &Cluster,
    candidates: &Candidates,
    placement: Placement,
    expected: &HashMap<&str, u64>,
) -> Vec<Priority> {
    let Some(pod) = &candidates.pod else { return Vec::new() };
    let requesting_pod = RequestingPod::of(pod, cluster);
    let listed = candidates.nodes.iter().flat_map(|nodes| &nodes.items);
    let listed = listed.filter_map(|node| node["metadata"]["name"].as_str());
    let named = candidates.node_names.iter().flatten().map(String::as_str);
    // A node that is named twice is scored once.
    let mut seen = HashSet::new();
    let names: Vec<&str> = named.chain(listed).filter(|name| seen.insert(*name)).collect();
    let full: Vec<Option<u64>> =
        names.iter().map(|name| requesting_pod.fullness(cluster, name)).collect();
    let known: Vec<u64> = full.iter().copied().flatten().collect();
    let own = requesting_pod.resource_request.as_ref().ok().and_then(Option::as_ref);
    let placement = own.and_then(|request| request.rules.nodes).unwrap_or(placement);
    let mut scores = placement::scores(&known, placement).into_iter();
    let score = |full: &Option<u64>| full.and_then(|_| scores.next()).unwrap_or(0);
    let mut scores: Vec<u64> = full.iter().map(score).collect();
    if !expected.is_empty() {
        let is_crowded = |name: &&str| {
            let expected = expected.get(name).copied().unwrap_or(0);
            requesting_pod.room_left(cluster, name).is_some_and(|left| left < expected)
        };
        let crowded: Vec<bool> = names.iter().map(is_crowded).collect();
        placement::put_behind(&mut scores, &crowded);
    }
    names
        .iter()
        .zip(scores)
        .map(|(name, score)| Priority { host: (*name).to_owned(), score })
        .collect()
}

/// Returns the claim to write on a pod before it is bound. `now` is in nanoseconds since 1970.
///
/// # Errors
/// The pod or the node is not known, or the pod does not fit.
pub fn bind(cluster: &Cluster, binding: &Binding, now: u64) -> Result<Change, Refusal> {
    let title = format!("{}/{}", binding.pod_namespace, binding.pod_name);
    let pod = cluster.pod(&binding.pod_uid).ok_or_else(|| {
        Refusal::new(format!(
            "the pod {title} is not known, or was deleted; kube-scheduler tries again if it exists"
        ))
    })?;
    if pod.title() != title {
        return Err(Refusal::new(format!(
            "the pod {} is {}, not {title}",
            binding.pod_uid,
            pod.title()
        )));
    }
    let (node, accounting) = cluster
        .room(pod, &binding.node)
        .ok_or_else(|| Refusal::new(format!("the node `{}` is not known", binding.node)))?;
    claim::claim(pod, node, &accounting, now)
}

/// A pod to place, with its resource request.
struct RequestingPod {
    /// The pod; none if it requests no GPU.
    pod: Option<PodRequest>,
    /// `None` if it requests no GPU.
    resource_request: Result<Option<ResourceRequest>, Refusal>,
}

impl RequestingPod {
    fn of(pod: &Pod, cluster: &Cluster) -> Self {
        let pod = PodRequest::of(pod, cluster.dialects());
        let resource_request = pod.as_ref().map(PodRequest::resource_request).transpose();
        Self { pod: pod.map(|pod| cluster.with_claim(pod)), resource_request }
    }

    fn fits(&self, cluster: &Cluster, name: &str) -> Result<(), Reason> {
        let (pod, request) = match (&self.pod, &self.resource_request) {
            (Some(pod), Ok(Some(request))) => (pod, request),
            (_, Err(refusal)) => return Err(Reason::permanent(refusal.message())),
            _ => return Ok(()),
        };
        let (node, accounting) = cluster.room(pod, name).ok_or_else(|| {
            Reason::permanent("cgpu does not know the node: it is new, or was deleted")
        })?;
        placement::choose(node, &accounting, request).map(|_| ())
    }

    /// Returns what the node has left beside the pod, in thousandths of units.
    fn room_left(&self, cluster: &Cluster, name: &str) -> Option<u64> {
        let request = self.resource_request.as_ref().ok()?.as_ref()?;
        let (node, accounting) = cluster.room(self.pod.as_ref()?, name)?;
        let held = accounting.held.iter().fold(0_u64, |sum, share| sum.saturating_add(share.units));
        let own = request.units_on(node);
        Some(node.units().saturating_sub(held.saturating_add(own)).saturating_mul(1000))
    }

    fn fullness(&self, cluster: &Cluster, name: &str) -> Option<u64> {
        let request = self.resource_request.as_ref().ok()?.as_ref()?;
        let (node, accounting) = cluster.room(self.pod.as_ref()?, name)?;
        let positions = placement::choose(node, &accounting, request).ok()?;
        Some(placement::fullness(node, &accounting, request, &positions))
    }
}

/// Reply of inspect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// Nodes by name.
    pub nodes: Vec<InspectedNode>,
    /// Why there are none.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub error: String,
}

/// Memory of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InspectedNode {
    /// Name.
    pub name: String,
    /// Units of all GPUs.
    #[serde(rename = "totalGPU")]
    pub total: u64,
    /// Units held.
    #[serde(rename = "usedGPU")]
    pub used: u64,
    /// GPUs by index.
    pub devs: Vec<InspectedGpu>,
}

/// Memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedGpu {
    /// Index on the node.
    pub id: u32,
    /// Units in all.
    #[serde(rename = "totalGPU")]
    pub total: u64,
    /// Units held.
    #[serde(rename = "usedGPU")]
    pub used: u64,
    /// Pods by namespace and name.
    pub pods: Vec<InspectedPod>,
}

/// Memory of a pod on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedPod {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Units held on this GPU.
    #[serde(rename = "usedGPU")]
    pub used: u64,
}

/// Returns what is held on the node named `only`, or on all nodes with GPUs.
#[must_use]
pub fn inspect(cluster: &Cluster, only: Option<&str>) -> Inspected {
    let chosen = |node: &NodeGpus| only.map_or(node.units() > 0, |name| name == node.name);
    let nodes: Vec<InspectedNode> = cluster
        .nodes()
        .filter(|(node, _)| chosen(node))
        .map(|(node, accounting)| inspected(node, accounting))
        .collect();
    let error = match only {
        Some(name) if nodes.is_empty() => format!("the node {name} does not exist"),
        _ => String::new(),
    };
    Inspected { nodes, error }
}

fn inspected(node: &NodeGpus, accounting: &NodeAccounting) -> InspectedNode {
    let pods = |position: usize| {
        let holders =
            accounting.holders.iter().map(move |holder| (&holder.pod, holder.units(position)));
        holders.filter(|(_, used)| *used > 0).map(|(pod, used)| InspectedPod {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            used,
        })
    };
    let devs: Vec<InspectedGpu> = node
        .gpus
        .iter()
        .enumerate()
        .map(|(position, gpu)| InspectedGpu {
            id: gpu.index,
            total: gpu.units,
            used: accounting.units(position),
            pods: pods(position).collect(),
        })
        .collect();
    InspectedNode {
        name: node.name.clone(),
        total: node.units(),
        used: devs.iter().fold(0, |sum, gpu| sum.saturating_add(gpu.used)),
        devs,
    }
}

#[cfg(test)]
mod tests;
