//! Room that is kept for nominated pods: those for which a scheduler has evicted others, until they
//! are bound.
//!
//! Nothing is stored. Which GPUs such a pod will have is computed from the pods of its node, by the
//! same rules as its victims. Pods that are being deleted cost nothing there, so these are the GPUs
//! that are being freed.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;

use crate::accounting::NodeAccounting;
use crate::gpus::NodeGpus;
use crate::pod_request::PodRequest;
use crate::victims::{self, Given, Preemptor};

/// Returns the accounting of a node with what is kept there against `pod`. The accounting must be
/// without the pod's own claim.
#[must_use]
pub fn against<'a, 'p>(
    pod: &PodRequest,
    node: &NodeGpus,
    accounting: &'a NodeAccounting,
    pods: impl IntoIterator<Item = &'p Arc<PodRequest>>,
) -> Cow<'a, NodeAccounting> {
    let is_kept = |other: &&Arc<PodRequest>| {
        is_nominated(other, &node.name) && other.uid != pod.uid && is_ahead(other, pod, &node.name)
    };
    let mut nominated: Vec<&Arc<PodRequest>> = pods.into_iter().filter(is_kept).collect();
    nominated.sort_by(|one, other| order(one).cmp(&order(other)));
    let mut accounting = Cow::Borrowed(accounting);
    for other in nominated {
        let Ok(request) = other.resource_request() else { continue };
        let preemptor =
            Preemptor { priority: other.priority, request: &request, may_replace: false };
        let found = victims::choose(node, &accounting, &preemptor, &Given::default(), &[]);
        let Some(found) = found else { continue };
        let part = |position: &usize| {
            let gpu = &node.gpus[*position];
            (gpu.index, request.of_gpu(0, gpu))
        };
        let parts = found.gpus.iter().map(part).collect();
        accounting.to_mut().reserve(node, other, parts);
    }
    accounting
}

/// Returns whether room is kept for the pod on a node, in which it has no claim.
#[must_use]
pub fn is_nominated(pod: &PodRequest, node: &str) -> bool {
    pod.bound.is_none() && pod.nominated.as_deref() == Some(node) && pod.claimed() != Some(node)
}

/// Returns whether a nominated pod goes before `pod`. Of two that are nominated for the node with
/// equal priority the older one does: otherwise each would wait for the other.
fn is_ahead(nominated: &PodRequest, pod: &PodRequest, node: &str) -> bool {
    nominated.priority > pod.priority
        || nominated.priority == pod.priority
            && (pod.nominated.as_deref() != Some(node) || order(nominated) < order(pod))
}

fn order(pod: &PodRequest) -> (Reverse<i32>, &str, &str) {
    (Reverse(pod.priority), &pod.eviction.created, &pod.uid)
}
