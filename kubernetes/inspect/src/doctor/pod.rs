//! Checks of a pod at the API server, with the same reasons as the extender.

use std::collections::BTreeMap;

use cgpu_kubernetes_core::accounting::Holding;
use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::placement;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::preemption;
use cgpu_kubernetes_core::resource_request::ResourceRequest;
use serde_json::Value;

use super::causes::{Cause, Findings};
use super::claim;
use super::facts::{Facts, ObservedPod};
use super::node::HANDLER;

/// Reason of the extender's events about nodes that do not exist.
pub(super) const NODE_UNKNOWN: &str = "GpuNodeUnknown";

/// Maximum number of nodes that are named for a reason; of the others, the number is given.
const MAX_NAMED_NODES: usize = 3;

pub(super) fn examine(
    facts: &Facts,
    observed: &ObservedPod,
    is_selected: bool,
    findings: &mut Findings,
) {
    let subject = format!("pod {}", observed.title());
    if matches!(observed.pod.status.phase.as_str(), "Failed" | "Succeeded") {
        let (reason, message) = (&observed.status.reason, &observed.status.message);
        if is_rejected(observed) && PodRequest::has_ended(&observed.pod, facts.cluster.dialects()) {
            findings.add(Cause::Rejected, &subject, format!("{reason}: {message}"));
        } else if is_selected {
            findings.add(Cause::Ended, &subject, [reason.as_str(), message].join(" "));
        }
        return;
    }
    let Some(pod_request) = facts.cluster.pod(&observed.pod.metadata.uid) else {
        if is_selected && observed.spec.resource_claims.is_empty() {
            findings.add(Cause::RequestsNothing, &subject, "");
        }
        return;
    };
    let request = match pod_request.resource_request() {
        Ok(request) => request,
        Err(refusal) => return findings.add(Cause::NotUnderstood, &subject, refusal.message()),
    };
    for note in &request.notes {
        findings.add(Cause::LabelIgnored, &subject, note);
    }
    match &pod_request.bound {
        None => examine_pending(facts, observed, pod_request, &request, &subject, findings),
        Some(node) => examine_bound(facts, observed, pod_request, node, &subject, findings),
    }
}

/// Returns whether the kubelet rejected the pod before it started: a device plugin failed it, or
/// the node has less than the scheduler assumed.
fn is_rejected(observed: &ObservedPod) -> bool {
    let reason = &observed.status.reason;
    reason == "UnexpectedAdmissionError" || reason.starts_with("OutOf")
}

fn examine_pending(
    facts: &Facts,
    observed: &ObservedPod,
    pod_request: &PodRequest,
    request: &ResourceRequest,
    subject: &str,
    findings: &mut Findings,
) {
    if let Some(node) = pod_request.claimed() {
        return findings.add(Cause::Claimed, subject, format!("on node {node}"));
    }
    // Nodes by reason, and whether the reason can end when other pods end.
    let mut reasons: BTreeMap<String, (Vec<&str>, bool)> = BTreeMap::new();
    let mut fits = false;
    let mut sufficient = Vec::new();
    // A node without GPUs is not a candidate.
    let names = facts.cluster.nodes().filter(|(node, _)| !node.gpus.is_empty());
    for name in names.map(|(node, _)| node.name.as_str()) {
        let Some((node, accounting)) = facts.cluster.room(pod_request, name) else { continue };
        match placement::choose(node, &accounting, request) {
            Ok(_) => fits = true,
            Err(reason) => {
                let (nodes, resolvable) = reasons.entry(reason.text).or_default();
                nodes.push(name);
                *resolvable |= reason.resolvable;
                if preemption::suffices_in_sum(node, &accounting, request) {
                    sufficient.push(name);
                }
            }
        }
    }
    let message = observed.scheduler_message();
    // kube-scheduler's message about a failed call of the extender contains its path.
    let has_failed = message.contains("gpushare-scheduler") || message.contains("extender");
    let gone = claim::latest(&facts.unknown_nodes, observed, NODE_UNKNOWN);
    if let Some(found) = gone.filter(|_| has_failed) {
        return findings.add(Cause::NodeGone, subject, found);
    }
    if fits {
        let cause = match message {
            "" => Cause::Unseen,
            _ if has_failed => Cause::ExtenderSilent,
            _ => Cause::OtherObstacle,
        };
        let found = if message.is_empty() {
            format!("schedulerName {}", observed.spec.scheduler_name)
        } else {
            message.to_owned()
        };
        return findings.add(cause, subject, found);
    }
    if reasons.is_empty() {
        // A cluster without shared GPUs has its own finding.
        return;
    }
    let resolvable = reasons.values().any(|(_, resolvable)| *resolvable);
    if let Some(found) = preemption::fragmented(&facts.cluster, pod_request, sufficient) {
        let found = format!("{}: in the way: {}", found.node.name, found.pods.join(", "));
        return findings.add(Cause::Fragmented, subject, found);
    }
    let found: Vec<String> =
        reasons.iter().map(|(reason, (nodes, _))| format!("{}: {reason}", named(nodes))).collect();
    findings.add(
        if resolvable { Cause::NoRoom } else { Cause::NeverFits },
        subject,
        found.join("; "),
    );
}

/// Returns names such as `a, b, c and 47 more`.
fn named(nodes: &[&str]) -> String {
    let first = nodes.iter().take(MAX_NAMED_NODES).copied().collect::<Vec<_>>().join(", ");
    match nodes.len().saturating_sub(MAX_NAMED_NODES) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn examine_bound(
    facts: &Facts,
    observed: &ObservedPod,
    pod_request: &PodRequest,
    name: &str,
    subject: &str,
    findings: &mut Findings,
) {
    let Some((node, accounting)) = facts.cluster.node(name) else {
        return findings.add(Cause::NodeNotReady, subject, format!("there is no node {name}"));
    };
    let holding = accounting
        .holders
        .iter()
        .find(|holder| holder.pod.uid == pod_request.uid)
        .map(|holder| &holder.holding);
    let has_gpus = match holding {
        Some(Holding::Nothing(refusal)) => {
            findings.add(Cause::Bypassed, subject, refusal.message());
            false
        }
        Some(Holding::Unclear(refusal)) => {
            let cause =
                if pod_request.allocation == Ok(None) { Cause::Bypassed } else { Cause::Spoilt };
            findings.add(cause, subject, refusal.message());
            false
        }
        Some(Holding::Shares(_) | Holding::Left(_)) | None => true,
    };
    if !pod_request.running {
        let unready = facts.nodes.get(name).and_then(|node| node.unready());
        let obstacles = observed.obstacles();
        if let Some(found) = &unready {
            findings.add(Cause::NodeNotReady, subject, found);
        }
        for obstacle in &obstacles {
            findings.add(Cause::StartRefused, subject, obstacle);
        }
        if unready.is_none() && obstacles.is_empty() && has_gpus {
            findings.add(Cause::Starting, subject, format!("on node {name}"));
        }
    }
    examine_overrides(facts, observed, pod_request, subject, findings);
    examine_resize(observed, subject, findings);
    // Causes of all containers of a node are findings of the node, which is checked, too.
    if !node.isolated {
        return;
    }
    if pod_request.running && has_gpus && observed.is_unbound() {
        findings.add(Cause::NotBound, subject, format!("on node {name}"));
    }
}

/// Reports a resize that was refused, or waits.
fn examine_resize(observed: &ObservedPod, subject: &str, findings: &mut Findings) {
    let annotations = &observed.pod.metadata.annotations;
    let Some(text) = annotations.get(annotation::RESIZE_STATUS) else { return };
    let status: Value = serde_json::from_str(text).unwrap_or_default();
    let outcome = status["outcome"].as_str().unwrap_or_default();
    if matches!(outcome, "Refused" | "Waiting") {
        let message = status["message"].as_str().unwrap_or_default();
        findings.add(Cause::NotResized, subject, format!("{outcome}: {message}"));
    }
}

/// Reports what in the pod itself disables its limits.
fn examine_overrides(
    facts: &Facts,
    observed: &ObservedPod,
    pod_request: &PodRequest,
    subject: &str,
    findings: &mut Findings,
) {
    let requests = pod_request.requests.as_deref().unwrap_or_default();
    let off: Vec<&str> = observed
        .switched_off()
        .into_iter()
        .filter(|name| requests.iter().any(|request| request.container == *name))
        .collect();
    if !off.is_empty() {
        findings.add(Cause::SwitchedOff, subject, format!("in container {}", off.join(", ")));
    }
    let class = &observed.spec.runtime_class_name;
    let handler = facts.classes.as_ref().and_then(|classes| classes.get(class));
    if let Some(handler) = handler.filter(|handler| *handler != HANDLER) {
        findings.add(Cause::OtherRuntime, subject, format!("class {class}, handler {handler}"));
    }
}
