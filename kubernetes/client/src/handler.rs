//! Receivers of what a reflector lists and watches.

use std::sync::{PoisonError, RwLock};

use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::object::{Node, Pod};
use cgpu_kubernetes_core::pod_request::PodObservation;

use crate::api::List;
use crate::failure::Failure;
use crate::record::Record;

/// Receives the objects of a kind.
pub trait EventHandler<R: Record>: Send + Sync {
    /// What is kept of an object. There may be 50,000 of them.
    type Kept: Send;

    /// Reduces an object to what is kept of it.
    fn condense(&self, record: R) -> Self::Kept;

    /// Replaces all objects by those of a list.
    fn replace(&self, all: List<Self::Kept>);

    /// Adds or updates an object.
    fn apply(&self, record: R);

    /// Removes an object.
    fn delete(&self, record: R);

    /// Records that all changes up to `version` have been passed on.
    fn caught_up(&self, _version: &str) {}

    /// Records whether the API server answered, which tells how fresh the objects are.
    fn connection_changed(&self, _outcome: Result<(), &Failure>) {}
}

fn write(cluster: &RwLock<Cluster>) -> std::sync::RwLockWriteGuard<'_, Cluster> {
    // The next list repairs what a panic left behind.
    cluster.write().unwrap_or_else(PoisonError::into_inner)
}

impl EventHandler<Pod> for RwLock<Cluster> {
    type Kept = PodObservation;

    fn condense(&self, record: Pod) -> PodObservation {
        let dialects = self.read().unwrap_or_else(PoisonError::into_inner).dialects();
        PodObservation::of(&record, dialects)
    }

    fn replace(&self, all: List<PodObservation>) {
        write(self).replace_pods(all.items, &all.version);
    }

    fn apply(&self, record: Pod) {
        let observation = self.condense(record);
        write(self).apply(observation);
    }

    fn delete(&self, record: Pod) {
        write(self).delete_pod(&record.metadata.uid);
    }
}

impl EventHandler<Node> for RwLock<Cluster> {
    type Kept = NodeGpus;

    fn condense(&self, record: Node) -> NodeGpus {
        NodeGpus::of(&record)
    }

    fn replace(&self, all: List<NodeGpus>) {
        write(self).replace_nodes(all.items);
    }

    fn apply(&self, record: Node) {
        write(self).apply_node(&record);
    }

    fn delete(&self, record: Node) {
        write(self).delete_node(&record.metadata.name);
    }
}
