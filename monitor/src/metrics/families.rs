//! The table of the monitor's metrics: the only place where they are named, described and read.
//!
//! `monitor/src/control/status.rs` fills in the `Status` (`cgpu_client::message`) that they are
//! read from. The scheduler extender's metrics are in `kubernetes/extender/src/metrics.rs`.

use std::collections::BTreeMap;

use cgpu_client::message::{
    Cause, ContainerStatus, FindingCount, GpuStatus, ShareStatus, Sharing, Status,
};
use cgpu_shm::reason::{Kind as ReasonKind, Reason};
use cgpu_text::printable;

use super::own::Usage;

/// Kind of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its samples are named with `_total`.
    Counter,
    /// Always 1; its labels carry the information. Its samples are named with `_info`.
    Info,
}

/// Unit of a family: the last part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// No unit: a count.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Parts of 1.
    Ratio,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// Hertz.
    Hertz,
}

/// A sample's labels.
pub type Labels = Vec<(&'static str, String)>;

/// Receives the samples of a family.
pub type Samples<'a> = &'a mut dyn FnMut(Labels, f64);

/// What samples are read from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The monitor's status.
    pub status: &'a Status,
    /// CPU time and memory of the monitor's process.
    pub own: &'a Usage,
}

/// A family of metrics.
#[derive(Clone, Copy)]
pub struct Family {
    /// The name without unit and suffix.
    pub stem: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The help text: one sentence or phrase.
    pub help: &'static str,
    /// Reads its samples.
    pub read: fn(Source<'_>, Samples<'_>),
}

impl Family {
    /// Returns the name of its samples.
    #[must_use]
    pub fn name(&self) -> String {
        let unit = match self.unit {
            Unit::None => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::Ratio => "_ratio",
            Unit::Celsius => "_celsius",
            Unit::Watts => "_watts",
            Unit::Hertz => "_hertz",
        };
        let suffix = match self.kind {
            Kind::Gauge => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        };
        format!("{}{unit}{suffix}", self.stem)
    }
}

/// One row per family: stem, kind, unit, help, reader.
macro_rules! families {
    (
        $(#[$about:meta])* $name:ident:
        $($stem:literal, $kind:ident, $unit:ident, $help:literal, $read:expr;)*
    ) => {
        $(#[$about])*
        pub const $name: &[Family] = &[$(
            Family { stem: $stem, kind: Kind::$kind, unit: Unit::$unit, help: $help, read: $read },
        )*];
    };
}

families! {
    /// The families of cgpu.
    OURS:
    "cgpu_build", Info, None,
        "The monitor's version.",
        |of, put| put(vec![("version", of.status.version.clone())], 1.0);
    "cgpu_uptime", Gauge, Seconds,
        "Time since the monitor started.",
        |of, put| put(vec![], millis(of.status.uptime_ms));
    "process_cpu", Counter, Seconds,
        "CPU time that the monitor has used.",
        |of, put| put(vec![], of.own.cpu_seconds);
    "process_resident_memory", Gauge, Bytes,
        "Resident memory of the monitor.",
        |of, put| put(vec![], float(of.own.resident));

    "cgpu_gpu", Info, None,
        "A GPU: its UUID and its product name.",
        |of, put| gpus(of, put, model, |_| Some(1.0));
    "cgpu_gpu_memory_size", Gauge, Bytes,
        "Memory of the GPU.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.memory_total)));
    "cgpu_gpu_memory_used", Gauge, Bytes,
        "Memory in use on the GPU by all processes, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.memory_used.map(float));
    "cgpu_gpu_memory_unattributed", Gauge, Bytes,
        "Memory in use on the GPU, beyond 256 MiB, that no process has and no container is charged \
            for.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.memory_unattributed)));
    "cgpu_gpu_utilization", Gauge, Ratio,
        "Part of the time for which the GPU computes, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.utilization.map(percent));
    "cgpu_gpu_temperature", Gauge, Celsius,
        "Temperature of the GPU, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.temperature_celsius.map(f64::from));
    "cgpu_gpu_power", Gauge, Watts,
        "Power that the GPU's board draws, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.power_mw.map(watts));
    "cgpu_gpu_power_limit", Gauge, Watts,
        "The limit in force of that power.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.power_limit_mw.map(watts));
    "cgpu_gpu_sm_clock", Gauge, Hertz,
        "Clock of the GPU's multiprocessors, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.sm_clock_mhz.map(hertz));
    "cgpu_gpu_memory_clock", Gauge, Hertz,
        "Clock of the GPU's memory, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.memory_clock_mhz.map(hertz));
    "cgpu_gpu_pcie_generation", Gauge, None,
        "Generation of the GPU's present PCIe link, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.pcie.map(|link| link.generation.into()));
    "cgpu_gpu_pcie_width", Gauge, None,
        "Lanes of the GPU's present PCIe link, according to NVML.",
        |of, put| gpus(of, put, none, |gpu| gpu.board.pcie.map(|link| link.width.into()));
    "cgpu_gpu_policy", Gauge, None,
        "The GPU's scheduling policy, 0 to 5.",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.policy.into()));
    "cgpu_gpu_capacity_units", Gauge, None,
        "Capacity of the GPU in units: the largest sum of weights (max_inst).",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.max_inst.into()));
    "cgpu_gpu_free_capacity_units", Gauge, None,
        "Capacity units of the GPU that are free (free_weight).",
        |of, put| gpus(of, put, none, |gpu| Some(gpu.free_weight.into()));
    "cgpu_gpu_contended", Gauge, None,
        "1 while the GPU is shared in turns.",
        |of, put| gpus(of, put, none, |gpu| Some(flag(gpu.sharing == Sharing::Contended)));
    "cgpu_gpu_turns", Counter, None,
        "Turns begun on the GPU.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.turns)));
    "cgpu_gpu_switch", Gauge, Seconds,
        "Cost of a switch between containers, learned from the turns.",
        |of, put| gpus(of, put, none, |gpu| gpu.switch_us.map(|us| float(us) / 1e6));
    "cgpu_gpu_limits_unverified", Gauge, None,
        "1 if containers have limits on the GPU and NVML does not report what they hold of it.",
        |of, put| gpus(of, put, none, |gpu| Some(flag(gpu.limits_unverified.is_some())));
    "cgpu_gpu_walls_left", Counter, None,
        "Memory limits that the driver keeps for control groups that were deleted before the \
            monitor could remove the limit.",
        |of, put| gpus(of, put, none, |gpu| Some(float(gpu.walls_left)));
    "cgpu_gpu_mps", Gauge, None,
        "1 while MPS runs the work of several containers on the GPU at the same time, so that it \
            has policy 5.",
        |of, put| gpus(of, put, none, |gpu| Some(flag(gpu.mps.is_some())));
    "cgpu_unshimmed_processes", Gauge, None,
        "Processes on the GPU, according to NVML, that belong to no container or are not \
            accounted in theirs.",
        |of, put| gpus(of, put, none, |gpu| Some(count(gpu.unknown_processes.len())));
    "cgpu_watched_processes", Gauge, None,
        "Processes without the shim or over the limit now, by cause and, where one owns them, \
            container.",
        watched;
    "cgpu_findings", Counter, None,
        "Findings of such processes, by cause and container.",
        |of, put| finding_counts(&of.status.found, put);
    "cgpu_ended_processes", Counter, None,
        "Processes that the monitor has ended for such a finding, by cause and container.",
        |of, put| finding_counts(&of.status.ends, put);

    "cgpu_container", Info, None,
        "A container: its id, its name and, where known, its image; in Kubernetes its namespace and \
         pod, and its name there.",
        |of, put| containers(of, put, names, |_| Some(1.0));
    "cgpu_container_weight", Gauge, None,
        "Weight that the container requested.",
        |of, put| containers(of, put, none, |one| Some(one.weight.into()));
    "cgpu_container_high_priority", Gauge, None,
        "1 if the container has high priority.",
        |of, put| containers(of, put, none, |one| Some(flag(one.high_priority)));
    "cgpu_container_processes", Gauge, None,
        "Living processes of the container that use a GPU.",
        |of, put| containers(of, put, none, |one| {
            Some(count(one.processes.iter().filter(|process| process.live).count()))
        });
    "cgpu_container_refused", Gauge, None,
        "1 if the shim refused to start in the container.",
        |of, put| containers(of, put, none, |one| Some(flag(one.refused.is_some())));
    "cgpu_container_fault", Gauge, None,
        "1 for each fault of the container, by kind.",
        |of, put| labelled(of, put, "fault", |one| one.faults.keys());
    "cgpu_container_unknown_function", Gauge, None,
        "1 for each function of the container's driver that takes memory, by its name, and that \
            the container's release of cgpu does not know.",
        |of, put| labelled(of, put, "function", |one| one.unknown_functions.keys());
    "cgpu_refusals", Counter, None,
        "Calls that were refused, by reason.",
        |of, put| reasons(of, put, ReasonKind::Refusal);
    "cgpu_bypasses", Counter, None,
        "Calls that went to the driver without being accounted or gated, by reason.",
        |of, put| reasons(of, put, ReasonKind::Bypass);
    "cgpu_notices", Counter, None,
        "Calls that succeeded in an unusual way, by reason.",
        |of, put| reasons(of, put, ReasonKind::Notice);

    "cgpu_memory_limit", Gauge, Bytes,
        "Memory limit of the container on the GPU; absent where it has none.",
        |of, put| shares(of, put, |share| (share.limit > 0).then(|| float(share.limit)));
    "cgpu_memory_used", Gauge, Bytes,
        "Memory of the GPU charged to the container: allocated, implicit, and exported by exited \
            processes.",
        |of, put| shares(of, put, |share| Some(float(used(share))));
    "cgpu_memory_implicit", Gauge, Bytes,
        "The part of it that contexts, modules and first launches take.",
        |of, put| shares(of, put, |share| Some(float(share.implicit)));
    "cgpu_memory_orphan", Gauge, Bytes,
        "The part of it that exited processes had exported.",
        |of, put| shares(of, put, |share| Some(float(share.orphan)));
    "cgpu_memory_draining", Gauge, Bytes,
        "The part of it that exited processes had and that is not known to be released yet.",
        |of, put| shares(of, put, |share| Some(float(share.draining)));
    "cgpu_wall_state", Gauge, None,
        "1 for what holds the container's limit on the GPU, by state: driver, \
            driver_except_managed, partial or shim; with shim, reason names why not the driver.",
        walls;
    "cgpu_wall_hard", Gauge, Bytes,
        "The driver's memory limit for the container's control group; absent where it has none.",
        |of, put| shares(of, put, |share| share.wall.as_ref()?.hard.map(float));
    "cgpu_wall_used", Gauge, Bytes,
        "Memory that the driver charges the container's control group; absent without such a limit.",
        |of, put| shares(of, put, |share| share.wall.as_ref()?.used.map(float));
    "cgpu_wall_excess", Gauge, Bytes,
        "The part of it that the container's ledger does not have; absent without such a limit.",
        |of, put| shares(of, put, |share| {
            share.wall.as_ref().filter(|wall| wall.used.is_some()).map(|wall| float(wall.excess))
        });
    "cgpu_share_set", Gauge, Ratio,
        "Share of the GPU that is guaranteed to the container while it is busy.",
        |of, put| shares(of, put, |share| Some(share.share_set / 100.0));
    "cgpu_share_measured", Gauge, Ratio,
        "Part of the last second for which the GPU computed for the container; absent while it is \
            not measured, while others' work runs at the same time, or while several of its \
            processes compute.",
        |of, put| shares(of, put, |share| {
            share.share_second.filter(|_| !share.share_estimated).map(|share| share / 100.0)
        });
    "cgpu_container_utilization", Gauge, Ratio,
        "Part of the time for which the GPU computed for the container, according to NVML.",
        |of, put| shares(of, put, |share| share.utilization.map(percent));
    "cgpu_gpu_time", Counter, Seconds,
        "GPU time charged to the container.",
        |of, put| shares(of, put, |share| Some(share.gpu_time_ms / 1000.0));
    "cgpu_forgiven_gpu_time", Counter, Seconds,
        "The part of it that was forgiven because the container's debt is at its limit.",
        |of, put| shares(of, put, |share| Some(share.forgiven_ms / 1000.0));
    "cgpu_reported_gpu_time", Counter, Seconds,
        "GPU time reported by the container's processes.",
        |of, put| shares(of, put, |share| Some(share.reported_ms / 1000.0));
    "cgpu_accounting_error", Gauge, Ratio,
        "Difference of charged and reported GPU time, as a part of the charged time; absent \
            before any was charged.",
        |of, put| shares(of, put, accounting_error);
    "cgpu_turns", Counter, None,
        "Turns of the container.",
        |of, put| shares(of, put, |share| Some(float(share.turns)));
    "cgpu_turn_anomalies", Counter, None,
        "Turns with an anomaly, by kind.",
        anomalies;
    "cgpu_waits", Counter, None,
        "Waits of the container's launches at its gate.",
        |of, put| shares(of, put, |share| Some(float(share.waits)));
    "cgpu_waiting", Counter, Seconds,
        "Time that the container's launches have waited at its gate, as sampled by the monitor.",
        |of, put| shares(of, put, |share| Some(share.waited_ms / 1000.0));
}

families! {
    /// Families under HAMi's names, for existing dashboards.
    HAMI:
    "hami_host_gpu_memory_used", Gauge, Bytes,
        "Memory in use on the GPU.",
        |of, put| hami_gpus(of, put, |gpu| gpu.memory_used.map(float));
    "hami_host_gpu_utilization", Gauge, Ratio,
        "Part of the time for which the GPU computes.",
        |of, put| hami_gpus(of, put, |gpu| gpu.utilization.map(percent));
    "hami_vgpu_memory_used", Gauge, Bytes,
        "Memory of the GPU charged to the container.",
        |of, put| hami_shares(of, put, |share| Some(float(used(share))));
    "hami_vgpu_memory_limit", Gauge, Bytes,
        "Memory limit of the container.",
        |of, put| hami_shares(of, put, |share| Some(float(share.limit)));
    "hami_container_device_memory", Gauge, Bytes,
        "Memory of the GPU charged to the container.",
        |of, put| hami_shares(of, put, |share| Some(float(used(share))));
    "hami_container_device_utilization", Gauge, Ratio,
        "Part of the time for which the GPU computed for the container.",
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

fn model(gpu: &GpuStatus) -> Labels {
    vec![("uuid", gpu.uuid.clone()), ("model", text(&gpu.name))]
}

fn names(container: &ContainerStatus) -> Labels {
    let image = container.image.as_deref().map(|image| ("image", text(image)));
    let mut labels: Labels = [("name", text(&container.name))].into_iter().chain(image).collect();
    // Of a container of Kubernetes. Names of other engines have no slash.
    if let [namespace, pod, name] = container.name.split('/').collect::<Vec<_>>()[..] {
        let own = [("namespace", namespace), ("pod", pod), ("container_name", name)];
        labels.extend(own.map(|(label, value)| (label, text(value))));
    }
    labels
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

/// Puts 1 for each of a container's values of `label`.
fn labelled<'a, I: Iterator<Item = &'a String>>(
    of: Source<'a>,
    put: Samples<'_>,
    label: &'static str,
    values: impl Fn(&'a ContainerStatus) -> I,
) {
    for container in &of.status.containers {
        for value in values(container) {
            put(vec![("container", text(&container.id)), (label, text(value))], 1.0);
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

/// Puts the number of processes with the same GPU, cause and container.
fn watched(of: Source<'_>, put: Samples<'_>) {
    let mut sums: BTreeMap<Labels, usize> = BTreeMap::new();
    for finding in &of.status.findings {
        let mut labels = vec![("gpu", finding.gpu.to_string())];
        labels.extend(cause_labels(finding.cause, finding.container.as_deref()));
        *sums.entry(labels).or_default() += 1;
    }
    sums.into_iter().for_each(|(labels, sum)| put(labels, count(sum)));
}

fn finding_counts(of: &[FindingCount], put: Samples<'_>) {
    for count in of {
        put(cause_labels(count.cause, count.container.as_deref()), float(count.count));
    }
}

fn cause_labels(cause: Cause, container: Option<&str>) -> Labels {
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
                ("hidden", anomalies.hidden),
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

fn walls(of: Source<'_>, put: Samples<'_>) {
    for container in &of.status.containers {
        for share in &container.gpus {
            let Some(wall) = &share.wall else { continue };
            let labels = [
                ("container", text(&container.id)),
                ("gpu", share.gpu.to_string()),
                ("state", wall.state.name().into()),
                ("reason", wall.absent.clone().unwrap_or_default()),
            ];
            put(labels.into(), 1.0);
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
        for (index, share) in container.gpus.iter().enumerate() {
            let labels = [
                ("container", text(&container.name)),
                // Names repeat, and containers choose them.
                ("container_id", text(&container.id)),
                ("vdevice_index", index.to_string()),
                ("device_uuid", share.uuid.clone()),
            ];
            value(share).into_iter().for_each(|value| put(labels.clone().into(), value));
        }
    }
}

fn used(share: &ShareStatus) -> u64 {
    share.used.saturating_add(share.implicit).saturating_add(share.orphan)
}

/// Escapes a label's value. Containers choose their names, which must not end a line or the label,
/// and the encoder escapes nothing.
fn text(name: &str) -> String {
    printable(name).replace('\\', "\\\\").replace('"', "\\\"")
}

fn millis(ms: u64) -> f64 {
    float(ms) / 1000.0
}

fn percent(percent: u32) -> f64 {
    f64::from(percent) / 100.0
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1e3
}

fn hertz(megahertz: u32) -> f64 {
    f64::from(megahertz) * 1e6
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn count(things: usize) -> f64 {
    float(things as u64)
}

/// Converts to a double, as which readers parse every value.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}
