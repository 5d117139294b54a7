//! Who is told what is and what comes.

use std::sync::{PoisonError, RwLock};

use cgpu_kubernetes_core::pod_request::PodObservation;
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::object::{Node, Pod};

use crate::api::List;
use crate::failure::Failure;
use crate::record::Record;

/// Keeps a copy of the objects of a kind.
pub trait Keeper<R: Record>: Send + Sync {
    /// What of an object is kept: of 50,000 pods that should not be much.
    type Kept: Send;

    /// Makes an object into that.
    fn condense(&self, record: R) -> Self::Kept;

    /// These are all that there are, as of the list's version.
    fn replace(&self, all: List<Self::Kept>);

    /// This one came or changed.
    fn see(&self, record: R);

    /// This one went.
    fn lose(&self, record: R);

    /// The API server has answered, or has not: for whoever wants to know how fresh the copy is.
    fn reached(&self, _how: Result<(), &Failure>) {}
}

fn write(cluster: &RwLock<Cluster>) -> std::sync::RwLockWriteGuard<'_, Cluster> {
    // What a panic left is put right by the next list.
    cluster.write().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper<Pod> for RwLock<Cluster> {
    type Kept = PodObservation;

    fn condense(&self, record: Pod) -> PodObservation {
        let dialects = self.read().unwrap_or_else(PoisonError::into_inner).dialects();
        PodObservation::of(&record, dialects)
    }

    fn replace(&self, all: List<PodObservation>) {
        write(self).replace_pods(all.items, &all.version);
    }

    fn see(&self, record: Pod) {
        let observation = self.condense(record);
        write(self).see(observation);
    }

    fn lose(&self, record: Pod) {
        write(self).lose_pod(&record.metadata.uid);
    }
}

impl Keeper<Node> for RwLock<Cluster> {
    type Kept = NodeGpus;

    fn condense(&self, record: Node) -> NodeGpus {
        NodeGpus::of(&record)
    }

    fn replace(&self, all: List<NodeGpus>) {
        write(self).replace_nodes(all.items);
    }

    fn see(&self, record: Node) {
        write(self).see_node(&record);
    }

    fn lose(&self, record: Node) {
        write(self).lose_node(&record.metadata.name);
    }
}
