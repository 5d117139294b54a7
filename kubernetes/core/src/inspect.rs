//! What `kubectl inspect gpushare` shows.

mod details;
mod summary;

use serde::Serialize;

use crate::ask::units_in_all;
use crate::books::{Holder, NodeBooks, Standing};
use crate::cards::NodeCards;
use crate::claimant::Claimant;
use crate::cluster::Cluster;
use crate::placement;
use crate::refusal::Refusal;
use crate::unit::Unit;

/// All of it; serialised, it is what `-o json` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// What a unit is, where that is the same everywhere.
    pub unit: Option<Unit>,
    /// Units that are held, what is pending included.
    pub allocated: u64,
    /// Units of all cards.
    pub total: u64,
    /// By name.
    pub nodes: Vec<NodeView>,
    /// Pods that ask for cards and are bound nowhere, by namespace and name.
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
    /// Units of its cards.
    pub total: u64,
    /// Units of pods that are bound here while it cannot be told which card they have.
    pub pending: u64,
    /// Why no pod may come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
    /// What of its labels was passed over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// By index.
    pub cards: Vec<CardView>,
    /// By namespace and name.
    pub pods: Vec<PodView>,
}

/// A card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CardView {
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
    /// Units of each of the node's cards.
    pub units: Vec<u64>,
    /// Units of which it cannot be told on which card they are.
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
    /// Over how many cards.
    pub cards: usize,
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
            .map(|(node, books)| NodeView::of(node, books))
            .collect();
        if let Some(name) = only
            && nodes.is_empty()
        {
            return Err(Refusal::new(format!("nodes \"{}\" not found", name.escape_default())));
        }
        let mut units = nodes.iter().filter(|node| node.total > 0).map(|node| node.unit);
        let first = units.next().flatten();
        let unit = first.filter(|_| units.all(|unit| unit == first));
        let sum =
            |of: fn(&NodeView) -> u64| nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(of(node)));
        let mut waiting: Vec<Waiting> = match only {
            Some(_) => Vec::new(),
            None => cluster
                .pods()
                .filter(|pod| pod.node().is_none())
                .map(|pod| Waiting::of(pod, cluster))
                .collect(),
        };
        waiting.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
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
    fn of(node: &NodeCards, books: &NodeBooks) -> Self {
        let cards: Vec<CardView> = node
            .cards
            .iter()
            .enumerate()
            .map(|(place, card)| CardView {
                index: card.index,
                uuid: card.uuid.clone(),
                allocated: books.units(place),
                total: card.units,
                percent: books.held[place].percent,
                containers: books.held[place].places,
                healthy: card.healthy,
            })
            .collect();
        let pods: Vec<PodView> = books.holders.iter().map(|holder| PodView::of(holder, node)).collect();
        let pending = pods.iter().fold(0_u64, |sum, pod| sum.saturating_add(pod.pending));
        Self {
            name: node.name.clone(),
            address: node.address.clone(),
            unit: node.cards.first().map(|card| card.unit),
            allocated: cards.iter().fold(pending, |sum, card| sum.saturating_add(card.allocated)),
            total: node.units(),
            pending,
            closed: node.closed.as_ref().map(ToString::to_string),
            notes: node.notes.clone(),
            cards,
            pods,
        }
    }
}

impl PodView {
    fn of(holder: &Holder, node: &NodeCards) -> Self {
        let asks = holder.pod.asks.as_deref().unwrap_or_default();
        let (pending, reason) = match &holder.standing {
            Standing::Holds(_) => (0, None),
            Standing::Unclear(refusal) | Standing::Nothing(refusal) => {
                (units_in_all(asks, node.cards.first()), Some(refusal.to_string()))
            }
        };
        Self {
            name: holder.pod.name.clone(),
            namespace: holder.pod.namespace.clone(),
            units: (0..node.cards.len()).map(|place| holder.units(place)).collect(),
            pending,
            reason,
        }
    }
}

impl Waiting {
    fn of(pod: &Claimant, cluster: &Cluster) -> Self {
        let (cards, reasons) = match pod.demand() {
            Err(refusal) => (0, vec![refusal.to_string()]),
            Ok(demand) => {
                let mut reasons = Vec::new();
                let mut fits = false;
                for (node, books) in cluster.nodes() {
                    match placement::choose(node, books, &demand) {
                        Ok(_) => fits = true,
                        Err(reason) => reasons.push(format!("{}: {}", node.name, reason.text)),
                    }
                }
                (demand.cards, if fits { Vec::new() } else { reasons })
            }
        };
        Self {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            units: units_in_all(pod.asks.as_deref().unwrap_or_default(), None),
            cards,
            reasons,
        }
    }
}

#[cfg(test)]
mod tests;
