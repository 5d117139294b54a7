//! What `kubectl inspect gpushare` shows.

mod details;
mod summary;

use serde::Serialize;

use crate::accounting::{Holder, NodeAccounting, Standing};
use crate::cluster::Cluster;
use crate::container_request::units_in_all;
use crate::gpus::NodeGpus;
use crate::placement;
use crate::pod_request::PodRequest;
use crate::refusal::Refusal;
use crate::unit::Unit;

/// All of it; serialised, it is what `-o json` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// What a unit is, where that is the same everywhere.
    pub unit: Option<Unit>,
    /// Units that are held, what is pending included.
    pub allocated: u64,
    /// Units of all GPUs.
    pub total: u64,
    /// By name.
    pub nodes: Vec<NodeView>,
    /// Pods that ask for GPUs and are bound nowhere, by namespace and name.
    pub waiting: Vec<Waiting>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its first internal address, or `unknown`.
    pub address: String,
    /// What a unit is.
    pub unit: Option<Unit>,
    /// Units that are held, what is pending included.
    pub allocated: u64,
    /// Units of its GPUs.
    pub total: u64,
    /// Units of pods that are bound here while it cannot be told which GPU they have.
    pub pending: u64,
    /// Why no pod may come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// What of its labels was passed over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// By index.
    pub gpus: Vec<GpuView>,
    /// By namespace and name.
    pub pods: Vec<PodView>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuView {
    /// Its number on the node.
    pub index: u32,
    /// Its name for the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Units that are held.
    pub allocated: u64,
    /// Units.
    pub total: u64,
    /// Percent of compute that is set aside.
    pub percent: u32,
    /// Containers.
    pub containers: u32,
    /// Whether it may be given to anybody new.
    pub healthy: bool,
}

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Units of each of the node's GPUs.
    pub units: Vec<u64>,
    /// Units of which it cannot be told on which GPU they are.
    pub pending: u64,
    /// Why that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A pod without a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Units it asks for, in all.
    pub units: u64,
    /// Over how many GPUs.
    pub gpus: usize,
    /// Why it is on no node: what is wrong with it, or with each of the nodes. Empty: there is room.
    pub reasons: Vec<String>,
}

impl Overview {
    /// Of all nodes, or of the one of this name.
    ///
    /// # Errors
    /// There is no such node.
    pub fn of(cluster: &Cluster, only: Option<&str>) -> Result<Self, Refusal> {
        let nodes: Vec<NodeView> = cluster
            .nodes()
            .filter(|(node, _)| only.is_none_or(|name| name == node.name))
            .map(|(node, accounting)| NodeView::of(node, accounting))
            .collect();
        if let Some(name) = only
            && nodes.is_empty()
        {
            return Err(Refusal::new(format!("nodes \"{}\" not found", name.escape_default())));
        }
        let mut units = nodes.iter().filter(|node| node.total > 0).map(|node| node.unit);
        let first = units.next().flatten();
        let unit = first.filter(|_| units.all(|unit| unit == first));
        let sum = |of: fn(&NodeView) -> u64| {
            nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(of(node)))
        };
        let mut waiting: Vec<Waiting> = match only {
            Some(_) => Vec::new(),
            None => cluster
                .pods()
                .filter(|pod| pod.node().is_none())
                .map(|pod| Waiting::of(pod, cluster))
                .collect(),
        };
        waiting.sort_by(|one, other| {
            (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name))
        });
        Ok(Self {
            unit,
            allocated: sum(|node| node.allocated),
            total: sum(|node| node.total),
            nodes,
            waiting,
        })
    }

    /// The table, byte for byte as gpushare's documents have it.
    #[must_use]
    pub fn summary(&self) -> String {
        summary::of(self)
    }

    /// What `-d` shows: each node's pods.
    #[must_use]
    pub fn details(&self) -> String {
        details::of(self)
    }

    /// What a table is made of: nodes that have any memory to share.
    fn shared(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|node| node.total > 0)
    }

    /// `18/28 (64%)`.
    fn usage(&self) -> String {
        let (allocated, total) = (self.allocated, self.total);
        format!("{allocated}/{total} ({}%)", percent(allocated, total))
    }
}

/// Whole percent, rounded down.
fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

impl NodeView {
    fn of(node: &NodeGpus, accounting: &NodeAccounting) -> Self {
        let gpus: Vec<GpuView> = node
            .gpus
            .iter()
            .enumerate()
            .map(|(position, gpu)| GpuView {
                index: gpu.index,
                uuid: gpu.uuid.clone(),
                allocated: accounting.units(position),
                total: gpu.units,
                percent: accounting.held[position].percent,
                containers: accounting.held[position].containers,
                healthy: gpu.healthy,
            })
            .collect();
        let pods: Vec<PodView> =
            accounting.holders.iter().map(|holder| PodView::of(holder, node)).collect();
        let pending = pods.iter().fold(0_u64, |sum, pod| sum.saturating_add(pod.pending));
        Self {
            name: node.name.clone(),
            address: node.address.clone(),
            unit: node.gpus.first().map(|gpu| gpu.unit),
            allocated: gpus.iter().fold(pending, |sum, gpu| sum.saturating_add(gpu.allocated)),
            total: node.units(),
            pending,
            closed: node.closed.as_ref().map(ToString::to_string),
            notes: node.notes.clone(),
            gpus,
            pods,
        }
    }
}

impl PodView {
    fn of(holder: &Holder, node: &NodeGpus) -> Self {
        let requests = holder.pod.requests.as_deref().unwrap_or_default();
        let (pending, reason) = match &holder.standing {
            Standing::Holds(_) => (0, None),
            Standing::Unclear(refusal) | Standing::Nothing(refusal) => {
                (units_in_all(requests, node.gpus.first()), Some(refusal.to_string()))
            }
        };
        Self {
            name: holder.pod.name.clone(),
            namespace: holder.pod.namespace.clone(),
            units: (0..node.gpus.len()).map(|position| holder.units(position)).collect(),
            pending,
            reason,
        }
    }
}

impl Waiting {
    fn of(pod: &PodRequest, cluster: &Cluster) -> Self {
        let (gpus, reasons) = match pod.resource_request() {
            Err(refusal) => (0, vec![refusal.to_string()]),
            Ok(request) => {
                let mut reasons = Vec::new();
                let mut fits = false;
                for (node, accounting) in cluster.nodes() {
                    match placement::choose(node, accounting, &request) {
                        Ok(_) => fits = true,
                        Err(reason) => reasons.push(format!("{}: {}", node.name, reason.text)),
                    }
                }
                (request.gpus, if fits { Vec::new() } else { reasons })
            }
        };
        Self {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            units: units_in_all(pod.requests.as_deref().unwrap_or_default(), None),
            gpus,
            reasons,
        }
    }
}

#[cfg(test)]
mod tests;
