//! Checks of a node at the API server.

use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::{MEMORY, label};
use cgpu_kubernetes_core::object::Texts;
use cgpu_kubernetes_core::quantity;
use cgpu_kubernetes_dra::owner::{OtherOwner, Program};

use super::causes::{Cause, Findings};
use super::facts::{Facts, ObservedNode};

/// Label of the plugin's pods.
const PLUGIN: &str = "cgpu-device-plugin";
/// Name of cgpu's runtime at the engine.
pub(super) const HANDLER: &str = "cgpu";

pub(super) fn examine(facts: &Facts, name: &str, findings: &mut Findings) {
    let (Some(observed), Some((gpus, accounting))) =
        (facts.nodes.get(name), facts.cluster.node(name))
    else {
        return;
    };
    let labels = &observed.node.metadata.labels;
    let subject = format!("node {name}");
    // A node without GPUs that is not labelled for sharing is ignored.
    let is_shared = labels.get(label::SHARED).is_some_and(|value| value == "true");
    if gpus.gpus.is_empty()
        && !is_shared
        && gpus.closed.as_ref().is_none_or(|_| !has_units(observed))
    {
        return;
    }
    for note in &gpus.notes {
        findings.add(Cause::LabelIgnored, &subject, note);
    }
    match &gpus.closed {
        Some(refusal) if is_excluded(labels) => {
            return findings.add(Cause::TakenOut, &subject, refusal.message());
        }
        Some(_) if gpus.gpus.is_empty() && is_unreported(observed) => {
            report_missing_plugin(facts, name, &subject, findings)
        }
        Some(refusal) => findings.add(Cause::GpusUnreadable, &subject, refusal.message()),
        // It does not register beside another owner of all GPUs.
        None if gpus.gpus.iter().all(|gpu| gpu.other_owner.is_some()) => {}
        None if !has_units(observed) => {
            let found =
                format!("{} units on {} GPUs, and none allocatable", gpus.units(), gpus.gpus.len());
            match plugin(facts, name) {
                Some((_, obstacles)) if !obstacles.is_empty() => {
                    findings.add(Cause::PluginFailing, &subject, obstacles.join("; "))
                }
                Some(_) => findings.add(Cause::NoUnits, &subject, found),
                None => findings.add(Cause::PluginGone, &subject, found),
            }
        }
        None => {}
    }
    report_isolation(gpus, labels, &subject, findings);
    if gpus.isolated && observed.has_handler(HANDLER) == Some(false) {
        findings.add(
            Cause::NoRuntime,
            &subject,
            format!("its engine has {}", observed.handlers().join(", ")),
        );
    }
    for (at, gpu) in gpus.gpus.iter().enumerate() {
        let uuid = gpu.uuid.as_deref().unwrap_or("no name");
        let title = format!("GPU {} ({uuid})", gpu.index);
        if !gpu.healthy {
            findings.add(Cause::GpuUnhealthy, &subject, &title);
        }
        if let Some(owner) = &gpu.other_owner {
            let program = Program::Plugin { hami: facts.cluster.dialects().hami };
            let remedy = OtherOwner::named(owner).remedy(program);
            findings.add(Cause::OtherOwner, &subject, format!("{title}: {owner}: {remedy}"));
        }
        if gpu.cordoned {
            findings.add(Cause::GpuTakenOut, &subject, &title);
        }
        if accounting.is_overfull(gpus, at) {
            let held = accounting.held.get(at).map_or(0, |share| share.units);
            findings.add(
                Cause::OverFull,
                &subject,
                format!("GPU {} has {} units, of which {held} are held", gpu.index, gpu.units),
            );
        }
    }
}

/// Reports labels that disable limits.
fn report_isolation(gpus: &NodeGpus, labels: &Texts, subject: &str, findings: &mut Findings) {
    if gpus.isolated {
        return;
    }
    let is = |name: &str, value: &str| labels.get(name).is_some_and(|it| it == value);
    if is(label::NO_ISOLATION, "true") {
        findings.add(Cause::IsolationOff, subject, "");
    }
    if is(label::SCHEDULE, "share") {
        findings.add(Cause::ModeShare, subject, "");
    }
}

fn report_missing_plugin(facts: &Facts, name: &str, subject: &str, findings: &mut Findings) {
    match plugin(facts, name) {
        Some((title, obstacles)) if !obstacles.is_empty() => {
            findings.add(
                Cause::PluginFailing,
                subject,
                format!("{title}: {}", obstacles.join("; ")),
            );
        }
        Some((title, _)) => findings.add(Cause::NoPlugin, subject, format!("its pod is {title}")),
        None => findings.add(Cause::NoPlugin, subject, "no pod of it is on the node"),
    }
}

/// Returns the plugin's pod on the node, and why it does not run.
fn plugin(facts: &Facts, name: &str) -> Option<(String, Vec<String>)> {
    let observed = facts
        .pods
        .iter()
        .find(|observed| observed.pod.spec.node_name == name && observed.is_component(PLUGIN))?;
    Some((observed.title(), observed.obstacles()))
}

fn is_excluded(labels: &Texts) -> bool {
    let mode = labels.get(label::SCHEDULE).map(String::as_str);
    labels.get(label::SHARED).is_some_and(|value| value == "false")
        || mode.is_some_and(|mode| !matches!(mode, "cgpu" | "core_mem" | "share"))
}

/// Returns whether neither the plugin nor the kubelet has reported GPUs.
fn is_unreported(observed: &ObservedNode) -> bool {
    let annotations = &observed.node.metadata.annotations;
    !annotations.contains_key(cgpu_kubernetes_core::names::annotation::GPUS) && !has_units(observed)
}

fn has_units(observed: &ObservedNode) -> bool {
    let units = observed.node.status.allocatable.get(MEMORY);
    units.is_some_and(|written| quantity::whole(&written.0) != Ok(0))
}
