//! The output of `kubectl inspect gpushare`.

mod details;
mod shares;
mod summary;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::accounting::{Holder, Holding, NodeAccounting};
use crate::cluster::Cluster;
use crate::container_request::units_in_all;
use crate::gpus::{HeldPod, NodeGpus};
use crate::placement;
use crate::pod_request::PodRequest;
use crate::refusal::Refusal;
use crate::unit::Unit;

/// Everything that the command shows. Serialized, it is the output of `-o json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// Unit, if all nodes have the same.
    pub unit: Option<Unit>,
    /// Units held, pending ones included.
    pub allocated: u64,
    /// Units of all GPUs.
    pub total: u64,
    /// Nodes by name.
    pub nodes: Vec<NodeView>,
    /// Unbound pods that request GPUs, by namespace and name.
    pub waiting: Vec<Waiting>,
}

/// A node with its GPUs and pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Name.
    pub name: String,
    /// First internal address, or `unknown`.
    pub address: String,
    /// Unit.
    pub unit: Option<Unit>,
    /// Units held, pending ones included.
    pub allocated: u64,
    /// Units of all GPUs.
    pub total: u64,
    /// Units of pods that are bound here but whose GPU is not known.
    pub pending: u64,
    /// Why no pod is placed here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// Labels that were ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// GPUs by index.
    pub gpus: Vec<GpuView>,
    /// Pods by namespace and name.
    pub pods: Vec<PodView>,
}

/// A GPU with what is held of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuView {
    /// Index on the node.
    pub index: u32,
    /// UUID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Units held.
    pub allocated: u64,
    /// Units in all.
    pub total: u64,
    /// Percent of compute that is held.
    pub percent: u32,
    /// Number of containers.
    pub containers: u32,
    /// Sum of their weights.
    pub weight: u64,
    /// Whether new pods are placed on it.
    pub healthy: bool,
}

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodView {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Units held on each of the node's GPUs.
    pub units: Vec<u64>,
    /// Weight of each of its containers.
    pub weights: Vec<u32>,
    /// Percent of compute held on each of the node's GPUs.
    pub percent: Vec<u32>,
    /// What holds the memory limit of each running container, by its name, as its node reports it:
    /// `driver`, `driver_except_managed`, `partial`, `shim`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub walls: BTreeMap<String, String>,
    /// Why the driver does not hold it, by the container's name: `old_driver`, `mig` and others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub wall_reasons: BTreeMap<String, String>,
    /// Units whose GPU is not known.
    pub pending: u64,
    /// Why the GPU is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An unbound pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Units requested, in all.
    pub units: u64,
    /// Number of GPUs requested.
    pub gpus: usize,
    /// Why it is on no node: the defect of its request, or the reason of each node. Empty if a node
    /// fits.
    pub reasons: Vec<String>,
}

impl Overview {
    /// Builds the overview of all nodes, or of the node named `only`.
    ///
    /// # Errors
    /// The node does not exist.
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

    /// Returns the table, byte for byte as in gpushare's documents.
    #[must_use]
    pub fn summary(&self) -> String {
        summary::of(self)
    }

    /// Returns the tables of `-d`, with a line for each pod.
    #[must_use]
    pub fn details(&self) -> String {
        details::of(self)
    }

    /// Returns the compute of each GPU, and with `details` of each pod. gpushare has no such table.
    #[must_use]
    pub fn shares(&self, details: bool) -> String {
        shares::of(self, details)
    }

    /// Returns the nodes of the tables: those with memory to share.
    fn shared(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|node| node.total > 0)
    }

    /// Returns the sums, such as `18/28 (64%)`.
    fn usage(&self) -> String {
        let (allocated, total) = (self.allocated, self.total);
        format!("{allocated}/{total} ({}%)", percent(allocated, total))
    }
}

/// Returns whole percent, rounded down.
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
                weight: weight(accounting, position),
                healthy: gpu.takes_pods(),
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

/// Returns the sum of the weights on a GPU.
fn weight(accounting: &NodeAccounting, position: usize) -> u64 {
    let on_it = accounting.holders.iter().filter(|holder| holder.share(position).is_some());
    on_it.flat_map(|holder| &holder.pod.weights).map(|weight| u64::from(*weight)).sum()
}

impl PodView {
    fn of(holder: &Holder, node: &NodeGpus) -> Self {
        let requests = holder.pod.requests.as_deref().unwrap_or_default();
        let (pending, reason) = match &holder.holding {
            Holding::Shares(_) => (0, None),
            Holding::Left(_) => {
                (0, Some("it was deleted, but its containers still run on the node".to_owned()))
            }
            Holding::Unclear(refusal) | Holding::Nothing(refusal) => {
                (units_in_all(requests, node.gpus.first()), Some(refusal.to_string()))
            }
        };
        let held = node.held.get(&holder.pod.uid).cloned().unwrap_or_default();
        let HeldPod { walls, wall_reasons, .. } = held;
        Self {
            name: holder.pod.name.clone(),
            namespace: holder.pod.namespace.clone(),
            units: (0..node.gpus.len()).map(|position| holder.units(position)).collect(),
            weights: holder.pod.weights.clone(),
            percent: (0..node.gpus.len())
                .map(|position| holder.share(position).map_or(0, |share| share.percent))
                .collect(),
            walls,
            wall_reasons,
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
