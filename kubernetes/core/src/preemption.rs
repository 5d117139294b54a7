//! The scheduler's question whom to evict, and the answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::accounting::NodeAccounting;
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::extender::{decode, named_nodes};
use crate::gpus::NodeGpus;
use crate::object::{Pod, nullable};
use crate::pod_request::PodRequest;
use crate::refusal::Refusal;
use crate::resource_request::ResourceRequest;
use crate::share::Share;
use crate::victims::{self, Given, Preemptor};

/// Most victims of a node in a question.
const MAX_VICTIMS: usize = 10_000;

/// Most nodes that are examined for a pod that no node fits.
pub const MAX_EXAMINED: usize = 64;

/// Request of preempt, in either form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Question {
    /// Pod to place.
    #[serde(alias = "pod")]
    pub pod: Option<Pod>,
    /// Victims by node, as whole pods: from schedulers whose configuration says that the extender
    /// has no cache.
    #[serde(alias = "nodeNameToVictims", deserialize_with = "nullable")]
    pub node_name_to_victims: BTreeMap<String, Option<Chosen<WholePod>>>,
    /// Victims by node, by uid.
    #[serde(alias = "nodeNameToMetaVictims", deserialize_with = "nullable")]
    pub node_name_to_meta_victims: BTreeMap<String, Option<Chosen<MetaPod>>>,
}

/// Victims that the scheduler has chosen on a node.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Chosen<P> {
    /// Pods, the most important first.
    #[serde(alias = "pods", deserialize_with = "nullable", bound = "P: Deserialize<'de>")]
    pub pods: Vec<P>,
    /// Evictions that budgets do not allow.
    #[serde(
        rename = "NumPDBViolations",
        alias = "numPDBViolations",
        deserialize_with = "nullable"
    )]
    pub violations: i64,
}

impl<P> Default for Chosen<P> {
    fn default() -> Self {
        Self { pods: Vec::new(), violations: 0 }
    }
}

/// A victim as a whole pod. Only what is read of it is kept: a body of a few MiB could have a
/// million empty pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WholePod {
    #[serde(deserialize_with = "nullable")]
    metadata: WholeMetadata,
    #[serde(deserialize_with = "nullable")]
    spec: WholeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WholeMetadata {
    #[serde(deserialize_with = "nullable")]
    uid: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WholeSpec {
    #[serde(deserialize_with = "nullable")]
    priority: i32,
}

/// A pod by its uid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaPod {
    /// Uid.
    #[serde(rename = "UID", alias = "uid")]
    pub uid: String,
}

/// Reply of preempt. A node with an empty list would fail the whole preemption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Answer {
    /// Victims by node.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Victims of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct MetaVictims {
    /// Pods, the highest priority first.
    pub pods: Vec<MetaPod>,
    /// Evictions that budgets do not allow.
    #[serde(rename = "NumPDBViolations")]
    pub violations: u64,
}

/// Parses the body of a question.
///
/// # Errors
/// The body is not what kube-scheduler sends, or names many more nodes or pods than there can be.
pub fn question(body: &[u8], cluster: &Cluster) -> Result<Question, Refusal> {
    let question: Question = decode(body)?;
    let whole = question.node_name_to_victims.values().flatten().map(|chosen| chosen.pods.len());
    let meta =
        question.node_name_to_meta_victims.values().flatten().map(|chosen| chosen.pods.len());
    named_nodes(
        question.node_name_to_victims.len() + question.node_name_to_meta_victims.len(),
        cluster,
    )?;
    match whole.chain(meta).max() {
        Some(most) if most > MAX_VICTIMS => Err(Refusal::new(format!(
            "the request names {most} victims of a node, expected at most {MAX_VICTIMS}"
        ))),
        _ => Ok(question),
    }
}

/// Returns the victims of each node on which the pod then fits. A pod that requests no GPU keeps
/// the scheduler's.
#[must_use]
pub fn preempt(cluster: &Cluster, budgets: &[Budget], question: &Question) -> Answer {
    let Some(pod) = &question.pod else { return Answer::default() };
    let pod_request = PodRequest::of(pod, cluster.dialects()).map(|pod| cluster.with_claim(pod));
    let may_replace = !pod.spec.affinity && !pod.spec.topology_spread_constraints;
    let victims = |node: &str, given: Given| {
        let Some(pod_request) = &pod_request else { return Some((given.uids, given.violations)) };
        let request = pod_request.resource_request().ok()?;
        let (gpus, accounting) = cluster.room(pod_request, node)?;
        let priority = pod_request.priority;
        let preemptor = Preemptor { priority, request: &request, may_replace };
        let found = victims::choose(gpus, &accounting, &preemptor, &given, budgets)?;
        Some((found.uids, found.violations))
    };
    let mut answer = Answer::default();
    for (node, given) in given(question, pod.spec.priority) {
        if let Some((uids, violations)) = victims(&node, given).filter(|it| !it.0.is_empty()) {
            let pods = uids.into_iter().map(|uid| MetaPod { uid }).collect();
            answer.node_name_to_meta_victims.insert(node, MetaVictims { pods, violations });
        }
    }
    answer
}

/// Returns the scheduler's victims by node. Nodes with a whole pod of no lower priority are left
/// out.
fn given(question: &Question, priority: i32) -> BTreeMap<String, Given> {
    let violations = |number: i64| u64::try_from(number).unwrap_or(0);
    let whole = question.node_name_to_victims.iter().filter_map(|(node, chosen)| {
        let chosen = chosen.clone().unwrap_or_default();
        if chosen.pods.iter().any(|pod| pod.spec.priority >= priority) {
            return None;
        }
        let uids = chosen.pods.into_iter().map(|pod| pod.metadata.uid).collect();
        Some((node.clone(), Given { uids, violations: violations(chosen.violations) }))
    });
    let meta = question.node_name_to_meta_victims.iter().map(|(node, chosen)| {
        let chosen = chosen.clone().unwrap_or_default();
        let uids = chosen.pods.into_iter().map(|pod| pod.uid).collect();
        (node.clone(), Given { uids, violations: violations(chosen.violations) })
    });
    whole.chain(meta).collect()
}

/// A node on which a pod would fit if pods of lower priority made room on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragmented<'a> {
    /// The node.
    pub node: &'a NodeGpus,
    /// The pods, as `namespace/name`.
    pub pods: Vec<String>,
}

/// Returns the first of the nodes on which other pods would have to make room. None if it fits on
/// one of them. At most 64 nodes are examined.
#[must_use]
pub fn fragmented<'a, 'n>(
    cluster: &'a Cluster,
    pod: &PodRequest,
    nodes: impl IntoIterator<Item = &'n str>,
) -> Option<Fragmented<'a>> {
    let request = pod.resource_request().ok()?;
    let preemptor = Preemptor { priority: pod.priority, request: &request, may_replace: false };
    let mut first = None;
    for name in nodes.into_iter().take(MAX_EXAMINED) {
        let Some((node, accounting)) = cluster.room(pod, name) else { continue };
        match in_the_way(node, &accounting, &preemptor) {
            Some(pods) if pods.is_empty() => return None,
            Some(pods) if first.is_none() => first = Some(Fragmented { node, pods }),
            _ => {}
        }
    }
    first
}

/// Returns whether enough for the pod is free on all GPUs of a node together, which is what a
/// scheduler counts.
#[must_use]
pub fn suffices_in_sum(
    node: &NodeGpus,
    accounting: &NodeAccounting,
    request: &ResourceRequest,
) -> bool {
    let gpus = || node.gpus.iter().enumerate();
    let free = gpus().fold(Share::NONE, |sum, (at, _)| sum.and(accounting.free(node, at)));
    let need = gpus().take(request.gpus);
    let need = need.fold(Share::NONE, |sum, (rank, gpu)| sum.and(request.of_gpu(rank, gpu)));
    need.fits(free)
}

/// Returns the names of the pods that would have to go, none if the pod fits, and `None` if that
/// would not suffice.
fn in_the_way(
    node: &NodeGpus,
    accounting: &NodeAccounting,
    preemptor: &Preemptor<'_>,
) -> Option<Vec<String>> {
    let found = victims::choose(node, accounting, preemptor, &Given::default(), &[])?;
    let title = |uid: &String| {
        let holder = accounting.holders.iter().find(|holder| holder.pod.uid == *uid)?;
        Some(holder.pod.title())
    };
    Some(found.uids.iter().filter_map(title).collect())
}

#[cfg(test)]
mod tests;
