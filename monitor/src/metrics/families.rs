//! The table of the monitor's metrics: the one place where they are named, described and read.
//!
//! A value that `Status` (`cgpu_client::message`) lacks is filled in by
//! `monitor/src/control/status.rs`. The scheduler extender's own metrics are in
//! `kubernetes/extender/src/metrics.rs`.

use std::collections::BTreeMap;

use cgpu_client::message::{
    Cause, ContainerStatus, FindingCount, GpuStatus, ShareStatus, Sharing, Status,
};
use cgpu_shm::reason::{Kind as ReasonKind, Reason};

use super::own::Usage;

/// Of which kind a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its samples are named with `_total`.
    Counter,
    /// Always 1; what it tells is in its labels. Its samples are named with `_info`.
    Info,
}

/// In what it counts: the last word of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Parts of 1.
    Ratio,
}

/// A sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// Takes the samples of a family.
pub type Samples<'a> = &'a mut dyn FnMut(Labels, f64);

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Of the monitor.
    pub status: &'a Status,
    /// What its own process takes.
    pub own: &'a Usage,
}

/// A family of metrics.
#[derive(Clone, Copy)]
pub struct Family {
    /// Without unit and suffix.
    pub stem: &'static str,
    /// Of which kind.
    pub kind: Kind,
    /// In what.
    pub unit: Unit,
    /// One sentence.
    pub help: &'static str,
    /// Reads its samples.
    pub read: fn(Source<'_>, Samples<'_>),
}

impl Family {
    /// The name of its samples.
    #[must_use]
    pub fn name(&self) -> String {
        let unit = match self.unit {
            Unit::None => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::Ratio => "_ratio",
        };
        let suffix = match self.kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        format!("{}{unit}{suffix}", self.stem)
    }
}

/// One row a family: stem, kind, unit, sentence, reader.
macro_rules! families {
    ($(#[$about:meta])* $name:ident: $($stem:literal, $kind:ident, $unit:ident, $help:literal, $read:expr;)*) => {
        $(#[$about])*
        pub const $name: &[Family] = &[$(
            Family { stem: $stem, kind: Kind::$kind, unit: Unit::$unit, help: $help, read: $read },
        )*];
    };
}

families! {
    /// Ours.
    OURS:
    "cgpu_build", Info, None, "The monitor's version.",
        |of, put| put(vec![("version", of.status.version.clone())], 1.0);
    "cgpu_uptime", Gauge, Seconds, "How long the monitor has run.",
        |of, put| put(vec![], millis(of.status.uptime_ms));
    "process_cpu", Counter, Seconds, "CPU time that the monitor has used.", |of, put| put(vec![], of.own.cpu_seconds);
    "process_resident_memory", Gauge, Bytes, "Resident memory of the monitor.",
        |of, put| put(vec![], float(of.own.resident));

    "cgpu_gpu", Info, None, "A GPU: its UUID and its product's name.",
        |of, put| gpus(of, put, |gpu| vec![("uuid", gpu.uuid.clone()), ("model", text(&gpu.name))], |_| Some(1.0));
    "cgpu_gpu_memory_size", Gauge, Bytes, "Memory of the GPU.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.memory_total)));
    "cgpu_gpu_memory_used", Gauge, Bytes, "Memory used by everybody on the GPU, by NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.memory_used.map(float));
    "cgpu_gpu_utilization", Gauge, Ratio, "How much of the time the GPU computes, by NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.utilization.map(percent));
    "cgpu_gpu_policy", Gauge, None, "The GPU's scheduling policy, 0 to 5.",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.policy.into()));
    "cgpu_gpu_capacity_units", Gauge, None, "Capacity of the GPU in units: the sum of weights that it has room for (max_inst).",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.max_inst.into()));
    "cgpu_gpu_free_capacity_units", Gauge, None, "Capacity units of the GPU that are free (free_weight).",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.free_weight.into()));
    "cgpu_gpu_contended", Gauge, None, "1 while turns are given on the GPU.",
        |of, put| gpus(of, put, none, |gpu| Some(flag(gpu.sharing == Sharing::Contended)));
    "cgpu_gpu_turns", Counter, None, "Turns begun on the GPU.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.turns)));
    "cgpu_gpu_switch", Gauge, Seconds, "What a switch between containers costs, as learned from the turns.",
        |of, put| gpus(of, put, none, |gpu| gpu.switch_us.map(|us| float(us) / 1e6));
    "cgpu_unshimmed_processes", Gauge, None, "Processes on the GPU, by NVML, that belong to no container, or keep no books in theirs.",
        |of, put| gpus(of, put, none, |gpu| Some(count(gpu.unknown_processes.len())));
    "cgpu_watched_processes", Gauge, None, "Processes that the watcher finds something wrong with, by cause and, where one owns them, container.", watched;
    "cgpu_findings", Counter, None, "How often it has found something wrong, by cause and container.",
        |of, put| finding_counts(&of.status.found, put);
    "cgpu_ended_processes", Counter, None, "Processes that the monitor has ended for that, by cause and container.",
        |of, put| finding_counts(&of.status.ends, put);

    "cgpu_container", Info, None, "A container: its id, its name and, where that is known, its image.",
        |of, put| containers(of, put, names, |_| Some(1.0));
    "cgpu_container_weight", Gauge, None, "The weight that the container asked for.",
        |of, put| containers(of, put, none, |one| Some(one.weight.into()));
    "cgpu_container_high_priority", Gauge, None, "1 if the container has high priority.",
        |of, put| containers(of, put, none, |one| Some(flag(one.high_priority)));
    "cgpu_container_processes", Gauge, None, "Living processes of the container that use a GPU.",
        |of, put| containers(of, put, none, |one| Some(count(one.processes.iter().filter(|process| process.live).count())));
    "cgpu_container_refused", Gauge, None, "1 if the shim refused to start in the container.",
        |of, put| containers(of, put, none, |one| Some(flag(one.refused.is_some())));
    "cgpu_container_fault", Gauge, None, "1 for everything that is wrong with the container, by kind.", faults;
    "cgpu_refusals", Counter, None, "Calls that were refused, by reason.",
        |of, put| reasons(of, put, ReasonKind::Refusal);
    "cgpu_bypasses", Counter, None, "Calls that went to the driver without being accounted or gated, by reason.",
        |of, put| reasons(of, put, ReasonKind::Bypass);
    "cgpu_notices", Counter, None, "Calls that were done and about which something was unusual, by reason.",
        |of, put| reasons(of, put, ReasonKind::Notice);

    "cgpu_memory_limit", Gauge, Bytes, "Memory limit of the container on the GPU; absent where it has none.",
        |of, put| shares(of, put, |share| (share.limit > 0).then(|| float(share.limit)));
    "cgpu_memory_used", Gauge, Bytes, "What the container has of the GPU: asked for, implicit, and left by dead exporters.",
        |of, put| shares(of, put, |share| Some(float(used(share))));
    "cgpu_memory_implicit", Gauge, Bytes, "The part of it that came with contexts, modules and first launches.",
        |of, put| shares(of, put, |share| Some(float(share.implicit)));
    "cgpu_memory_orphan", Gauge, Bytes, "The part of it that dead processes had exported.",
        |of, put| shares(of, put, |share| Some(float(share.orphan)));
    "cgpu_memory_draining", Gauge, Bytes, "The part of it that is of dead processes and not yet seen to be gone.",
        |of, put| shares(of, put, |share| Some(float(share.draining)));
    "cgpu_share_set", Gauge, Ratio, "Share of the GPU that the container is sure of while it is busy.",
        |of, put| shares(of, put, |share| Some(share.share_set / 100.0));
    "cgpu_share_measured", Gauge, Ratio, "Part of the last second for which the GPU computed for it; absent while that is not metered, others' work runs beside its own, or several of its processes compute.",
        |of, put| shares(of, put, |share| share.share_second.filter(|_| !share.share_estimated).map(|share| share / 100.0));
    "cgpu_container_utilization", Gauge, Ratio, "How much of the time the GPU computed for the container, by NVML.",
        |of, put| shares(of, put, |share| share.utilization.map(percent));
    "cgpu_gpu_time", Counter, Seconds, "GPU time that the container was charged.",
        |of, put| shares(of, put, |share| Some(share.gpu_time_ms / 1000.0));
    "cgpu_forgiven_gpu_time", Counter, Seconds, "The part of it that was forgiven, because the container owes enough already.",
        |of, put| shares(of, put, |share| Some(share.forgiven_ms / 1000.0));
    "cgpu_reported_gpu_time", Counter, Seconds, "GPU time that the container's processes have reported.",
        |of, put| shares(of, put, |share| Some(share.reported_ms / 1000.0));
    "cgpu_accounting_error", Gauge, Ratio, "How far the two are apart, of what was charged; absent before anything was.",
        |of, put| shares(of, put, accounting_error);
    "cgpu_turns", Counter, None, "Turns that the container had.",
        |of, put| shares(of, put, |share| Some(float(share.turns)));
    "cgpu_turn_anomalies", Counter, None, "Turns with an anomaly, by kind.", anomalies;
    "cgpu_waits", Counter, None, "How often the container began to wait at its gate.",
        |of, put| shares(of, put, |share| Some(float(share.waits)));
    "cgpu_waiting", Counter, Seconds, "How long it has waited there, as far as it was looked at.",
        |of, put| shares(of, put, |share| Some(share.waited_ms / 1000.0));
}

families! {
    /// HAMi's, for dashboards that exist.
    HAMI:
    "hami_host_gpu_memory_used", Gauge, Bytes, "Memory used on the GPU.",
        |of, put| hami_gpus(of, put, |gpu| gpu.memory_used.map(float));
    "hami_host_gpu_utilization", Gauge, Ratio, "How much of the time the GPU computes.",
        |of, put| hami_gpus(of, put, |gpu| gpu.utilization.map(percent));
    "hami_vgpu_memory_used", Gauge, Bytes, "What the container has of the GPU.",
        |of, put| hami_shares(of, put, |share| Some(float(used(share))));
    "hami_vgpu_memory_limit", Gauge, Bytes, "The container's memory limit.",
        |of, put| hami_shares(of, put, |share| Some(float(share.limit)));
    "hami_container_device_memory", Gauge, Bytes, "What the container has of the GPU.",
        |of, put| hami_shares(of, put, |share| Some(float(used(share))));
    "hami_container_device_utilization", Gauge, Ratio, "How much of the time the GPU computed for the container.",
        |of, put| hami_shares(of, put, |share| share.utilization.map(percent));
}

fn none<T>(_: &T) -> Labels {
    Vec::new()
}

fn gpus(
    of: Source<'_>,
    put: Samples<'_>,
    labels: fn(&GpuStatus) -> Labels,
    value: impl Fn(&GpuStatus) -> Option<f64>,
) {
    for gpu in &of.status.gpus {
        let mut all = vec![("gpu", gpu.index.to_string())];
        all.extend(labels(gpu));
        value(gpu).into_iter().for_each(|value| put(all.clone(), value));
    }
}

fn names(container: &ContainerStatus) -> Labels {
    let image = container.image.as_deref().map(|image| ("image", text(image)));
    [("name", text(&container.name))].into_iter().chain(image).collect()
}

fn containers(
    of: Source<'_>,
    put: Samples<'_>,
    labels: fn(&ContainerStatus) -> Labels,
    value: impl Fn(&ContainerStatus) -> Option<f64>,
) {
    for container in &of.status.containers {
        let mut all = vec![("container", text(&container.id))];
        all.extend(labels(container));
        value(container).into_iter().for_each(|value| put(all.clone(), value));
    }
}

fn shares(of: Source<'_>, put: Samples<'_>, value: impl Fn(&ShareStatus) -> Option<f64>) {
    for container in &of.status.containers {
        for share in &container.gpus {
            let labels = vec![("container", text(&container.id)), ("gpu", share.gpu.to_string())];
            value(share).into_iter().for_each(|value| put(labels.clone(), value));
        }
    }
}

fn faults(of: Source<'_>, put: Samples<'_>) {
    for container in &of.status.containers {
        for kind in container.faults.keys() {
            put(vec![("container", text(&container.id)), ("fault", text(kind))], 1.0);
        }
    }
}

fn reasons(of: Source<'_>, put: Samples<'_>, kind: ReasonKind) {
    for container in &of.status.containers {
        for (name, sum) in &container.counters {
            if Reason::named(name).is_some_and(|reason| reason.kind() == kind) {
                put(
                    vec![("container", text(&container.id)), ("reason", name.clone())],
                    float(*sum),
                );
            }
        }
    }
}

/// How many processes there are with the same GPU, cause and container.
fn watched(of: Source<'_>, put: Samples<'_>) {
    let mut sums: BTreeMap<Labels, usize> = BTreeMap::new();
    for finding in &of.status.findings {
        let mut labels = vec![("gpu", finding.gpu.to_string())];
        labels.extend(objection(finding.cause, finding.container.as_deref()));
        *sums.entry(labels).or_default() += 1;
    }
    sums.into_iter().for_each(|(labels, sum)| put(labels, count(sum)));
}

fn finding_counts(of: &[FindingCount], put: Samples<'_>) {
    for count in of {
        put(objection(count.cause, count.container.as_deref()), float(count.count));
    }
}

fn objection(cause: Cause, container: Option<&str>) -> Labels {
    let container = container.map(|id| ("container", text(id)));
    std::iter::once(("cause", cause.name().to_owned())).chain(container).collect()
}

fn anomalies(of: Source<'_>, put: Samples<'_>) {
    for container in &of.status.containers {
        for share in &container.gpus {
            let anomalies = share.anomalies;
            for (kind, sum) in [
                ("over", anomalies.over),
                ("under", anomalies.under),
                ("invalid", anomalies.invalid),
                ("overrun", anomalies.overruns),
                ("missed", anomalies.missed),
            ] {
                let labels = [
                    ("container", text(&container.id)),
                    ("gpu", share.gpu.to_string()),
                    ("kind", kind.into()),
                ];
                put(labels.into(), float(sum));
            }
        }
    }
}

fn accounting_error(share: &ShareStatus) -> Option<f64> {
    let (charged, reported) = (share.gpu_time_ms, share.reported_ms);
    (charged > 0.0).then(|| (charged - reported).abs() / charged)
}

fn hami_gpus(of: Source<'_>, put: Samples<'_>, value: impl Fn(&GpuStatus) -> Option<f64>) {
    for gpu in &of.status.gpus {
        let labels = [
            ("device_index", gpu.index.to_string()),
            ("device_uuid", gpu.uuid.clone()),
            ("device_type", text(&gpu.name)),
        ];
        value(gpu).into_iter().for_each(|value| put(labels.clone().into(), value));
    }
}

fn hami_shares(of: Source<'_>, put: Samples<'_>, value: impl Fn(&ShareStatus) -> Option<f64>) {
    for container in &of.status.containers {
        for (place, share) in container.gpus.iter().enumerate() {
            let labels = [
                ("container", text(&container.name)),
                ("vdevice_index", place.to_string()),
                ("device_uuid", share.uuid.clone()),
            ];
            value(share).into_iter().for_each(|value| put(labels.clone().into(), value));
        }
    }
}

fn used(share: &ShareStatus) -> u64 {
    share.used.saturating_add(share.implicit).saturating_add(share.orphan)
}

/// Containers write their names themselves: nothing of it may end a line, or the label. The encoder escapes nothing.
fn text(name: &str) -> String {
    let plain: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    plain.replace('\\', "\\\\").replace('"', "\\\"")
}

fn millis(ms: u64) -> f64 {
    float(ms) / 1000.0
}

fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn count(things: usize) -> f64 {
    float(things as u64)
}

/// The format has no integers of 64 bits either: readers take everything for a double.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
