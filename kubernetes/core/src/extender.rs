//! What the scheduler extender answers: the paths and bodies of gpushare's, as kube-scheduler sends and expects them.
//!
//! Names are capitalised, for kube-scheduler's types have no other. All answers but `bind` are functions of what is known; `bind` says what
//! is to be written, and whoever calls it writes, looks and binds ([`crate::claim`]).

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::accounting::NodeAccounting;
use crate::claim::{self, Change};
use crate::cluster::Cluster;
use crate::gpus::{NodeGpus, Placement};
use crate::object::Pod;
use crate::placement;
use crate::pod_request::PodRequest;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::resource_request::ResourceRequest;

/// What every path but `/version` begins with.
pub const PREFIX: &str = "/gpushare-scheduler";

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// GET `/version`.
    Version,
    /// POST `filter`.
    Filter,
    /// POST `prioritize`.
    Prioritize,
    /// POST `bind`.
    Bind,
    /// GET `inspect`, or `inspect/NODE`.
    Inspect(Option<&'a str>),
}

impl<'a> Call<'a> {
    /// None: there is no such path, or not for this method.
    #[must_use]
    pub fn of(method: &str, path: &'a str) -> Option<Self> {
        if path == "/version" {
            return (method == "GET").then_some(Self::Version);
        }
        let rest = path.strip_prefix(PREFIX)?.strip_prefix('/')?;
        match (method, rest) {
            ("POST", "filter") => Some(Self::Filter),
            ("POST", "prioritize") => Some(Self::Prioritize),
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

/// What `/version` says.
#[must_use]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// What filter and prioritize are asked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Candidates {
    /// Who is to be placed.
    #[serde(alias = "pod")]
    pub pod: Option<Pod>,
    /// Where, with everything that is known of the nodes; only from schedulers that were told that we remember nothing.
    #[serde(alias = "nodes")]
    pub nodes: Option<NodeList>,
    /// Where.
    #[serde(alias = "nodenames", alias = "nodeNames")]
    pub node_names: Option<Vec<String>>,
}

/// Nodes, as they came: they go back so.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeList {
    /// Each a node, with whatever it has.
    #[serde(default)]
    pub items: Vec<Value>,
}

/// What filter answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Filtered {
    /// Those that will do, if whole nodes came.
    pub nodes: Option<NodeList>,
    /// Those that will do, if names came.
    pub node_names: Option<Vec<String>>,
    /// Why others will not, unless pods go.
    pub failed_nodes: BTreeMap<String, String>,
    /// Why others never will.
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Why there is no answer.
    pub error: String,
}

/// A node's score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Priority {
    /// Its name.
    pub host: String,
    /// 0 to 10.
    pub score: u64,
}

/// What bind is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Binding {
    /// The pod's name.
    #[serde(alias = "podName")]
    pub pod_name: String,
    /// Its namespace.
    #[serde(alias = "podNamespace")]
    pub pod_namespace: String,
    /// Itself.
    #[serde(rename = "PodUID", alias = "podUID")]
    pub pod_uid: String,
    /// Where to.
    #[serde(alias = "node")]
    pub node: String,
}

/// What bind answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Bound {
    /// Why not; empty: it is.
    pub error: String,
}

/// Reads a body.
///
/// # Errors
/// It is not what it should be.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::new(format!("the request is not what kube-scheduler sends: {error}"))
    })
}

/// Which nodes have room.
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

/// How well nodes would do, by how full they would be.
#[must_use]
pub fn prioritize(
    cluster: &Cluster,
    candidates: &Candidates,
    placement: Placement,
) -> Vec<Priority> {
    let Some(pod) = &candidates.pod else { return Vec::new() };
    let requesting_pod = RequestingPod::of(pod, cluster);
    let listed = candidates.nodes.iter().flat_map(|nodes| &nodes.items);
    let listed = listed.filter_map(|node| node["metadata"]["name"].as_str());
    let named = candidates.node_names.iter().flatten().map(String::as_str);
    // What was asked twice is answered once.
    let mut seen = HashSet::new();
    let names: Vec<&str> = named.chain(listed).filter(|name| seen.insert(*name)).collect();
    let full: Vec<Option<u64>> =
        names.iter().map(|name| requesting_pod.fullness(cluster, name)).collect();
    let known: Vec<u64> = full.iter().copied().flatten().collect();
    let mut scores = placement::scores(&known, placement).into_iter();
    let score = |full: &Option<u64>| full.and_then(|_| scores.next()).unwrap_or(0);
    let scores: Vec<u64> = full.iter().map(score).collect();
    names
        .iter()
        .zip(scores)
        .map(|(name, score)| Priority { host: (*name).to_owned(), score })
        .collect()
}

/// What is to be written on a pod before it is bound. `now` is in nanoseconds since 1970.
///
/// # Errors
/// The pod or the node is not known, or there is no room.
pub fn bind(cluster: &Cluster, binding: &Binding, now: u64) -> Result<Change, Refusal> {
    let title = format!("{}/{}", binding.pod_namespace, binding.pod_name);
    let pod = cluster.pod(&binding.pod_uid).ok_or_else(|| {
        Refusal::new(format!(
            "the pod {title} has not been seen, or has gone; kube-scheduler asks again if it is there"
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
        .node(&binding.node)
        .ok_or_else(|| Refusal::new(format!("the node `{}` has not been seen", binding.node)))?;
    claim::claim(pod, node, accounting, now)
}

/// A pod that is to be placed, and what it needs.
struct RequestingPod {
    uid: String,
    /// The node that it has a claim on already, from an attempt before.
    claimed: Option<String>,
    /// None: nothing of ours.
    resource_request: Result<Option<ResourceRequest>, Refusal>,
}

impl RequestingPod {
    fn of(pod: &Pod, cluster: &Cluster) -> Self {
        let pod_request = PodRequest::of(pod, cluster.dialects());
        let uid = pod.metadata.uid.clone();
        let claimed = cluster.pod(&uid).and_then(|known| known.claimed()).map(str::to_owned);
        Self {
            uid,
            claimed,
            resource_request: pod_request
                .map(|pod_request| pod_request.resource_request())
                .transpose(),
        }
    }

    /// With the node and its accounting without this pod's own claim.
    fn with_node<T>(
        &self,
        cluster: &Cluster,
        name: &str,
        with: impl FnOnce(&NodeGpus, &NodeAccounting) -> T,
    ) -> Option<T> {
        let (node, accounting) = cluster.node(name)?;
        if self.claimed.as_deref() == Some(name) {
            return Some(with(node, &accounting.without(node, &self.uid)));
        }
        Some(with(node, accounting))
    }

    fn fits(&self, cluster: &Cluster, name: &str) -> Result<(), Reason> {
        let request = match &self.resource_request {
            Ok(Some(request)) => request,
            Ok(None) => return Ok(()),
            Err(refusal) => return Err(Reason::lasting(refusal.sentence())),
        };
        self.with_node(cluster, name, |node, accounting| {
            placement::choose(node, accounting, request).map(|_| ())
        })
        .unwrap_or_else(|| Err(Reason::lasting("the node has not been seen yet")))
    }

    fn fullness(&self, cluster: &Cluster, name: &str) -> Option<u64> {
        let request = self.resource_request.as_ref().ok()?.as_ref()?;
        self.with_node(cluster, name, |node, accounting| {
            let positions = placement::choose(node, accounting, request).ok()?;
            Some(placement::fullness(node, accounting, request, &positions))
        })?
    }
}

/// What inspect answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// By name.
    pub nodes: Vec<InspectedNode>,
    /// Why there is nothing.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub error: String,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InspectedNode {
    /// Its name.
    pub name: String,
    /// Units of its GPUs.
    #[serde(rename = "totalGPU")]
    pub total: u64,
    /// Units that are held.
    #[serde(rename = "usedGPU")]
    pub used: u64,
    /// By index.
    pub devs: Vec<InspectedGpu>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedGpu {
    /// Its number on the node.
    pub id: u32,
    /// Units.
    #[serde(rename = "totalGPU")]
    pub total: u64,
    /// Units that are held.
    #[serde(rename = "usedGPU")]
    pub used: u64,
    /// By namespace and name.
    pub pods: Vec<InspectedPod>,
}

/// A pod on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedPod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Units of this GPU.
    #[serde(rename = "usedGPU")]
    pub used: u64,
}

/// What is held, on all nodes that have GPUs or on the one of this name.
#[must_use]
pub fn inspect(cluster: &Cluster, only: Option<&str>) -> Inspected {
    let chosen = |node: &NodeGpus| only.map_or(node.units() > 0, |name| name == node.name);
    let nodes: Vec<InspectedNode> = cluster
        .nodes()
        .filter(|(node, _)| chosen(node))
        .map(|(node, accounting)| inspected(node, accounting))
        .collect();
    let error = match only {
        Some(name) if nodes.is_empty() => format!("the node {name} is not there"),
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
