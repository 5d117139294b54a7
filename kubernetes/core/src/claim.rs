//! Claims: GPUs that are chosen for a pod and recorded on it, then confirmed and bound, or
//! withdrawn.
//!
//! ```text
//!   choose -- patch* --> claimed -- confirm: no GPU over-full --> bind* --> bound
//!     ^         |           |                                       |
//!     |         | conflict  | over-full                             | conflict, or no bind follows
//!     |         v           v                                       v
//!     +--- next attempt <-- withdrawn <------------------- after CLAIM_TIMEOUT_NANOS
//!
//!   * only if the pod is unchanged
//! ```
//!
//! A claim counts from the patch that writes it until the patch that removes it. An extender first
//! writes its claim and then checks it. So if two extenders claim the same memory, the later writer
//! sees the other's claim.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::accounting::{Holding, NodeAccounting};
use crate::container_request::units_in_all;
use crate::gpus::NodeGpus;
use crate::names::annotation;
use crate::object::Pod;
use crate::placement;
use crate::pod_request::PodRequest;
use crate::refusal::Refusal;
use crate::reservation;

/// Time within which a claim must be bound, in nanoseconds.
pub const CLAIM_TIMEOUT_NANOS: u64 = 60_000_000_000;

/// Changes to a pod's annotations that apply only to the version that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod.
    pub uid: String,
    /// Version that was read.
    pub version: String,
    /// Annotations to set, or with `None` to remove.
    pub annotations: BTreeMap<&'static str, Option<String>>,
}

impl Change {
    /// Returns a change of a pod as it is known.
    #[must_use]
    pub fn of(pod: &PodRequest, annotations: BTreeMap<&'static str, Option<String>>) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            version: pod.version.clone(),
            annotations,
        }
    }

    /// Returns the change as a merge patch. The API server answers with a conflict if the uid or
    /// the version is not the pod's.
    #[must_use]
    pub fn patch(&self) -> Value {
        let annotations: Map<String, Value> =
            self.annotations.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        json!({"metadata": {
            "uid": self.uid, "resourceVersion": self.version, "annotations": annotations,
        }})
    }

    /// Applies the change to a pod, as the API server would.
    pub fn apply(&self, pod: &mut Pod) {
        for (name, text) in &self.annotations {
            match text {
                Some(text) => pod.metadata.annotations.insert((*name).to_owned(), text.clone()),
                None => pod.metadata.annotations.remove(*name),
            };
        }
    }
}

/// Chooses GPUs of a node for a pod. A claim that the pod already has does not count against it.
///
/// # Errors
/// The pod is bound, its request is invalid, or the node has too little.
pub fn claim(
    pod: &PodRequest,
    node: &NodeGpus,
    accounting: &NodeAccounting,
    now: u64,
) -> Result<Change, Refusal> {
    if let Some(bound) = &pod.bound {
        return Err(Refusal::new(format!("{} is already bound to node `{bound}`", pod.title())));
    }
    let request = pod.resource_request()?;
    let requests = pod.requests.as_ref().map_err(Clone::clone)?;
    let others;
    let accounting = if accounting.holders.iter().any(|holder| holder.pod.uid == pod.uid) {
        others = accounting.without(node, &pod.uid);
        &others
    } else {
        accounting
    };
    let positions = placement::choose(node, accounting, &request).map_err(|reason| {
        Refusal::new(format!(
            "{} does not fit on node `{}`: {}",
            pod.title(),
            node.name,
            reason.text
        ))
    })?;
    let mut split: BTreeMap<usize, BTreeMap<u32, u64>> = BTreeMap::new();
    for need in &request.needs {
        let gpus = positions.iter().take(need.gpus).map(|position| &node.gpus[*position]);
        split.insert(need.index, gpus.map(|gpu| (gpu.index, need.of(gpu).units)).collect());
    }
    let sizes: Vec<u64> = positions.iter().map(|position| node.gpus[*position].units).collect();
    let equal = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    let first = positions.first().map(|position| &node.gpus[*position]);
    let written: Vec<String> =
        sizes.iter().take(if equal { 1 } else { sizes.len() }).map(u64::to_string).collect();
    let text = |value: String| Some(value);
    let annotations = [
        (
            annotation::INDEX,
            first.filter(|_| positions.len() == 1).map(|gpu| gpu.index.to_string()),
        ),
        (annotation::DEVICE, text(written.join(","))),
        (annotation::POD, text(units_in_all(requests, first).to_string())),
        (annotation::ASSIGNED, text("false".to_owned())),
        (annotation::ASSUME_TIME, text(now.to_string())),
        (annotation::ALLOCATION, text(json!(split).to_string())),
        (annotation::NODE, text(node.name.clone())),
    ];
    Ok(Change::of(pod, annotations.into()))
}

/// Checks a claim against all pods that were bound to its node or unbound when it was written, as
/// they are known now.
///
/// # Errors
/// The claim is gone or was edited, another extender claimed the same GPU, or its room is kept for
/// a nominated pod. The claim must be withdrawn; the scheduler tries again.
pub(crate) fn confirm<'a>(
    uid: &str,
    node: &NodeGpus,
    pods: impl IntoIterator<Item = &'a Arc<PodRequest>>,
) -> Result<(), Refusal> {
    let pods: Vec<&Arc<PodRequest>> = pods.into_iter().collect();
    let accounting = NodeAccounting::of(node, pods.iter().copied());
    let Some(own) = accounting.holders.iter().find(|holder| holder.pod.uid == uid) else {
        return Err(Refusal::new("the claim is gone: it was withdrawn"));
    };
    let Holding::Shares(shares) = &own.holding else {
        return Err(Refusal::new("the claim was edited"));
    };
    own.pod.check_permitted(node, shares.iter().map(|(gpu, _)| *gpu))?;
    if let Some(gpu) = accounting.overfull(node).find(|gpu| shares.iter().any(|it| it.0 == *gpu)) {
        return Err(Refusal::new(format!(
            "another scheduler claimed GPU {gpu} of node `{}` at the same time",
            node.name
        )));
    }
    let others = accounting.without(node, uid);
    // A pod of a gang was placed, and its claim made, as if its object nominated the node.
    let nominated = own.pod.in_gang.then(|| node.name.clone());
    let nominated = nominated.or_else(|| own.pod.nominated.clone());
    let pod = PodRequest { nominated, ..(*own.pod).clone() };
    let kept = reservation::against(&pod, node, &others, pods.iter().copied());
    match shares.iter().find(|(gpu, share)| !share.fits(kept.free(node, *gpu as usize))) {
        Some((gpu, _)) => Err(Refusal::new(format!(
            "GPU {gpu} of node `{}` is kept for a pod for which others were evicted",
            node.name
        ))),
        None => Ok(()),
    }
}

/// Returns the change that removes a claim.
#[must_use]
pub fn withdraw(pod: &PodRequest) -> Change {
    Change::of(pod, annotation::ALL.into_iter().map(|name| (name, None)).collect())
}

/// Returns whether a claim is stale: the pod is not bound, and the claim is old or from the future.
#[must_use]
pub fn is_stale(pod: &PodRequest, now: u64) -> bool {
    let claimed = match &pod.allocation {
        Ok(allocation) => allocation
            .as_ref()
            .filter(|allocation| allocation.node.is_some())
            .map(|allocation| allocation.since),
        Err(_) => None,
    };
    pod.bound.is_none() && claimed.is_some_and(|since| since.abs_diff(now) > CLAIM_TIMEOUT_NANOS)
}

#[cfg(test)]
mod tests;
