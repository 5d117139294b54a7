//! What is known of the cluster, and how fresh that is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use cgpu_kubernetes_client::{Failure, EventHandler, List};
use cgpu_kubernetes_core::pod_request::PodObservation;
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::gpus::NodeGpus;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};

/// So long a copy may have been out of touch before we say that others should be asked.
const PATIENCE: Duration = Duration::from_secs(60);

/// The copy.
#[derive(Debug)]
pub(crate) struct Sight {
    cluster: RwLock<Cluster>,
    pods: Touch,
    nodes: Touch,
}

/// Whether a kind of object has been listed, and since when the API server does not answer for it.
#[derive(Debug, Default)]
struct Touch {
    listed: AtomicBool,
    lost: Mutex<Option<Instant>>,
}

impl Touch {
    fn connection_changed(&self, how: Result<(), &Failure>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        match how {
            Ok(()) => *lost = None,
            Err(_) => *lost = lost.or(Some(Instant::now())),
        }
    }

    fn obstacle(&self, kind: &str) -> Option<String> {
        if !self.listed.load(Ordering::Acquire) {
            return Some(format!("the {kind} of the cluster have not been listed yet"));
        }
        let lost = *self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let out = lost.map(|since| since.elapsed()).filter(|out| *out > PATIENCE);
        out.map(|out| format!("nothing was heard of {kind} for {} s", out.as_secs()))
    }
}

impl Sight {
    /// One that knows nothing yet.
    pub(crate) fn new(dialects: Dialects) -> Self {
        Self { cluster: RwLock::new(Cluster::new(dialects)), pods: Touch::default(), nodes: Touch::default() }
    }

    /// What is known.
    pub(crate) fn look(&self) -> RwLockReadGuard<'_, Cluster> {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod as the API server has just shown it.
    pub(crate) fn apply(&self, pod: &Pod) {
        self.cluster.write().unwrap_or_else(PoisonError::into_inner).apply_pod(pod);
    }

    /// Whether there is anything to answer from.
    pub(crate) fn is_listed(&self) -> bool {
        self.pods.listed.load(Ordering::Acquire) && self.nodes.listed.load(Ordering::Acquire)
    }

    /// Why others should be asked instead. None: ask us.
    pub(crate) fn obstacle(&self) -> Option<String> {
        self.nodes.obstacle("nodes").or_else(|| self.pods.obstacle("pods"))
    }
}

impl EventHandler<Pod> for Sight {
    type Kept = PodObservation;

    fn condense(&self, record: Pod) -> PodObservation {
        self.cluster.condense(record)
    }

    fn replace(&self, all: List<PodObservation>) {
        EventHandler::<Pod>::replace(&self.cluster, all);
        self.pods.listed.store(true, Ordering::Release);
    }

    fn apply(&self, record: Pod) {
        EventHandler::apply(&self.cluster, record);
    }

    fn delete(&self, record: Pod) {
        EventHandler::delete(&self.cluster, record);
    }

    fn connection_changed(&self, how: Result<(), &Failure>) {
        self.pods.connection_changed(how);
    }
}

impl EventHandler<Node> for Sight {
    type Kept = NodeGpus;

    fn condense(&self, record: Node) -> NodeGpus {
        self.cluster.condense(record)
    }

    fn replace(&self, all: List<NodeGpus>) {
        EventHandler::<Node>::replace(&self.cluster, all);
        self.nodes.listed.store(true, Ordering::Release);
    }

    fn apply(&self, record: Node) {
        EventHandler::apply(&self.cluster, record);
    }

    fn delete(&self, record: Node) {
        EventHandler::delete(&self.cluster, record);
    }

    fn connection_changed(&self, how: Result<(), &Failure>) {
        self.nodes.connection_changed(how);
    }
}
