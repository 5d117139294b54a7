//! The node at the API server: its labels are read, and its GPUs are written.
//!
//! It is level-triggered: whenever the node or the GPUs change, the annotation is compared with the
//! GPUs and written if it differs. So a removed annotation is restored at once, and so is the
//! number of GPUs after a restart of the kubelet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_client::{Api, EventHandler, Failure, List};
use cgpu_kubernetes_core::gpus::{Entry, Held, Inventory, NodeGpus};
use cgpu_kubernetes_core::names::{COUNT, annotation};
use cgpu_kubernetes_core::object::{Node, Written};
use cgpu_kubernetes_core::unit::Unit;
use cgpu_kubernetes_dra::owner::{OtherOwners, Program};
use cgpu_kubernetes_node::gpus::{Gpus, NodeGpu};
use cgpu_kubernetes_node::owners::{Announcer, ObservedOwners};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::details::{Details, DetailsReader};

/// The node's GPUs as its labels configure them, or none while they are unknown.
pub(crate) type ObservedNode = Option<Arc<NodeGpus>>;

/// Delay before a failed write is repeated.
const RETRY_BACKOFF: Duration = Duration::from_secs(5);
/// Delay before details of GPUs that no source has told are read again.
const DETAILS_BACKOFF: Duration = Duration::from_secs(30);

/// The latest state of our node.
pub(crate) struct OwnNode(pub(crate) watch::Sender<Option<Node>>);

impl EventHandler<Node> for OwnNode {
    type Kept = Node;

    fn condense(&self, node: Node) -> Node {
        node
    }

    fn replace(&self, all: List<Node>) {
        match all.items.into_iter().next() {
            Some(node) => self.apply(node),
            None => warn!("the API server has no node of this name"),
        }
    }

    fn apply(&self, node: Node) {
        self.0.send_if_modified(|known| {
            // A node reports that it is alive every few seconds.
            let is_same = |known: &Node| {
                known.metadata.labels == node.metadata.labels
                    && known.metadata.annotations == node.metadata.annotations
                    && known.status == node.status
            };
            let changes = !known.as_ref().is_some_and(is_same);
            *known = Some(node);
            changes
        });
    }

    fn delete(&self, _: Node) {
        warn!("this node was deleted at the API server");
    }
}

/// Returns the GPUs that a previous plugin recorded as unhealthy.
pub(crate) fn unhealthy_gpus(node: &Node) -> BTreeSet<String> {
    let previous = node.metadata.annotations.get(annotation::GPUS);
    let inventory: Option<Inventory> = previous.and_then(|text| serde_json::from_str(text).ok());
    let gpus = inventory.map_or_else(Vec::new, |inventory| inventory.gpus);
    gpus.into_iter().filter(|gpu| !gpu.healthy).map(|gpu| gpu.uuid).collect()
}

/// Returns the node's GPUs with this inventory written on it.
pub(crate) fn with_inventory(node: &Node, inventory: &Inventory) -> NodeGpus {
    let mut node = node.clone();
    node.metadata.annotations.insert(annotation::GPUS.to_owned(), written(inventory));
    // It is this program's own report, and known better.
    node.metadata.annotations.remove(annotation::HELD);
    NodeGpus::of(&node)
}

fn entry(gpu: &NodeGpu, details: Details, owners: &OtherOwners) -> Entry {
    let NodeGpu { device, is_healthy } = gpu;
    let Details { product, locality } = details;
    let (uuid, mib) = (device.name(), device.total.0 >> 20);
    let other_owner = owners.owner(&uuid).map(|owner| owner.name().to_owned());
    Entry { uuid, mib, healthy: *is_healthy, other_owner, product, locality }
}

fn written(inventory: &Inventory) -> String {
    // Serializing plain fields cannot fail.
    serde_json::to_string(inventory).unwrap_or_default()
}

/// What decides what is written on the node.
pub(crate) struct Sources {
    pub(crate) gpus: watch::Receiver<Gpus>,
    pub(crate) owners: watch::Receiver<ObservedOwners>,
    pub(crate) held: watch::Receiver<Option<Held>>,
    pub(crate) node: watch::Receiver<Option<Node>>,
}

/// Keeps the node's annotation and the inventory equal.
pub(crate) struct Synchronizer {
    pub(crate) api: Api,
    pub(crate) unit: Unit,
    pub(crate) program: Program,
    pub(crate) details: DetailsReader,
}

impl Synchronizer {
    /// Does so without end.
    pub(crate) async fn run(self, mut sources: Sources, sender: &watch::Sender<ObservedNode>) {
        let Self { api, unit, program, mut details } = self;
        let mut announcer = Announcer::new(program);
        loop {
            let known = sources.node.borrow_and_update().clone();
            let found = sources.gpus.borrow_and_update().clone();
            let owners = sources.owners.borrow_and_update().clone();
            let holds = sources.held.borrow_and_update().clone();
            let mut delay = None;
            if let (Some(known), Some(gpus), Some(owners)) = (known, found, owners) {
                let read = tokio::task::spawn_blocking(move || {
                    details.read(&gpus);
                    (details, gpus)
                });
                let Ok((same, gpus)) = read.await else { return };
                details = same;
                let others = gpus.iter().filter_map(|gpu| owners.owner(&gpu.device.name()));
                let others = others.collect();
                let entry =
                    |gpu: &NodeGpu| entry(gpu, details.of(&gpu.device.name(), &known), &owners);
                let inventory = Inventory { unit, gpus: gpus.iter().map(entry).collect() };
                delay = (!details.are_known(&gpus)).then_some(DETAILS_BACKOFF);
                send(sender, with_inventory(&known, &inventory));
                let outcome = async {
                    write(&api, &known, &inventory, holds.as_ref()).await?;
                    announcer.announce(&api, &known.metadata.name, others).await
                };
                if let Err(failure) = outcome.await {
                    warn!("cannot write the node's GPUs: {failure}");
                    delay = Some(RETRY_BACKOFF);
                }
            }
            tokio::select! {
                changed = sources.node.changed() => if changed.is_err() { return },
                changed = sources.gpus.changed() => if changed.is_err() { return },
                changed = sources.owners.changed() => if changed.is_err() { return },
                changed = sources.held.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(delay.unwrap_or(Duration::MAX)), if delay.is_some() => {}
            }
        }
    }
}

fn send(sender: &watch::Sender<ObservedNode>, now: NodeGpus) {
    now.notes.iter().for_each(|note| warn!("{note}"));
    sender.send_if_modified(|previous| {
        let changes = previous.as_deref() != Some(&now);
        if changes {
            if let Some(why) = &now.closed {
                warn!("this node's GPUs are not shared: {why}");
            }
            *previous = Some(Arc::new(now));
        }
        changes
    });
}

async fn write(
    api: &Api,
    node: &Node,
    inventory: &Inventory,
    held: Option<&Held>,
) -> Result<(), Failure> {
    let name = &node.metadata.name;
    if let Some(held) = held {
        // Serializing plain fields cannot fail.
        let text = (!held.is_empty()).then(|| serde_json::to_string(held).unwrap_or_default());
        if node.metadata.annotations.get(annotation::HELD) != text.as_ref() {
            let patch = json!({"metadata": {"annotations": {annotation::HELD: text}}});
            api.patch::<Node>("", name, &patch).await?;
        }
    }
    let text = written(inventory);
    if node.metadata.annotations.get(annotation::GPUS) != Some(&text) {
        let patch = json!({"metadata": {"annotations": {annotation::GPUS: text}}});
        api.patch::<Node>("", name, &patch).await?;
        info!(gpus = text, "written on the node");
    }
    let count = Written(inventory.gpus.len().to_string());
    if node.status.allocatable.get(COUNT) != Some(&count) {
        let count = json!({COUNT: count});
        let patch = json!({"status": {"capacity": count, "allocatable": count}});
        api.patch_status::<Node>("", name, &patch).await?;
    }
    Ok(())
}
