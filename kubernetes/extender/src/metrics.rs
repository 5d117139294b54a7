//! Metrics for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use cgpu_kubernetes_core::cluster::Cluster;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VerbLabels {
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BindLabels {
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub(crate) enum Outcome {
    Bound,
    Refused,
    Failed,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClosedLabels {
    reason: Closed,
}

/// Why a connection was closed before its client was done.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub(crate) enum Closed {
    /// Another client needed its place.
    Displaced,
    /// Its client was too slow, or idle for too long.
    Expired,
}

pub(crate) struct Metrics {
    registry: Registry,
    took: Family<VerbLabels, Histogram, fn() -> Histogram>,
    binds: Family<BindLabels, Counter>,
    closed: Family<ClosedLabels, Counter>,
    nodes: Gauge<u64, AtomicU64>,
    pods: Gauge<u64, AtomicU64>,
    leads: Gauge<u64, AtomicU64>,
    passed_on: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("cgpu_extender");
        // From 0.1 ms to 13 s.
        let took: Family<VerbLabels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 18)));
        let (binds, closed) = (Family::default(), Family::default());
        let (nodes, pods, leads) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("request_seconds", "Duration of requests", took.clone());
        registry.register("binds", "Bindings by outcome", binds.clone());
        registry.register(
            "connections_closed",
            "Connections closed because another client needed them, or their client was too slow",
            closed.clone(),
        );
        registry.register("nodes", "Known nodes", nodes.clone());
        registry.register("pods", "Known pods that request GPUs", pods.clone());
        registry.register("leader", "Whether this replica is the leader", leads.clone());
        let passed_on = Counter::default();
        registry.register(
            "passed_on",
            "Requests that were passed on to the leader",
            passed_on.clone(),
        );
        Self { registry, took, binds, closed, nodes, pods, leads, passed_on }
    }

    pub(crate) fn took(&self, verb: &'static str, time: Duration) {
        self.took.get_or_create(&VerbLabels { verb }).observe(time.as_secs_f64());
    }

    pub(crate) fn bound(&self, outcome: Outcome) {
        self.binds.get_or_create(&BindLabels { outcome }).inc();
    }

    pub(crate) fn closed(&self, reason: Closed) {
        self.closed.get_or_create(&ClosedLabels { reason }).inc();
    }

    pub(crate) fn passed_on(&self) {
        self.passed_on.inc();
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.leads.set(leads.into());
    }

    pub(crate) fn count_objects(&self, cluster: &Cluster) {
        self.nodes.set(cluster.nodes().count() as u64);
        self.pods.set(cluster.pods().count() as u64);
    }

    /// Returns the metrics in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_their_names() {
        let metrics = Metrics::new();
        metrics.took("filter", Duration::from_millis(3));
        metrics.bound(Outcome::Bound);
        metrics.closed(Closed::Expired);
        metrics.leads(true);
        let text = metrics.text();
        for line in [
            r#"cgpu_extender_request_seconds_count{verb="filter"} 1"#,
            r#"cgpu_extender_binds_total{outcome="Bound"} 1"#,
            r#"cgpu_extender_connections_closed_total{reason="Expired"} 1"#,
            "\ncgpu_extender_leader 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
