//! The copy of the cluster that requests are answered from, and its freshness.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use cgpu_kubernetes_client::{EventHandler, Failure, List};
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::cordon::Cordon;
use cgpu_kubernetes_core::expected::ExpectedPods;
use cgpu_kubernetes_core::extender::{self, Candidates, Filtered, Priority};
use cgpu_kubernetes_core::gpus::{NodeGpus, Placement};
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{ConfigMap, Node, Pod};
use cgpu_kubernetes_core::pod_request::{PodObservation, PodRequest};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::binder::now;
use tracing::warn;

/// Time without an answer of the API server after which the extender is not ready.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// Interval of looks for the first lists.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Copy of the cluster.
#[derive(Debug)]
pub(crate) struct ClusterCache {
    cluster: RwLock<Cluster>,
    expected: Mutex<ExpectedPods>,
    /// Version up to which it has all changes of pods; `None` if that is not known.
    seen: watch::Sender<Option<u64>>,
    pods: Freshness,
    nodes: Freshness,
}

/// Whether a kind of object has been listed, and since when the API server fails to answer for it.
#[derive(Debug, Default)]
struct Freshness {
    listed: AtomicBool,
    failing_since: Mutex<Option<Instant>>,
}

impl Freshness {
    fn connection_changed(&self, outcome: Result<(), &Failure>) {
        let mut failing_since = self.failing_since.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(()) => *failing_since = None,
            Err(_) => *failing_since = failing_since.or(Some(Instant::now())),
        }
    }

    fn unready_reason(&self, kind: &str) -> Option<String> {
        if !self.listed.load(Ordering::Acquire) {
            return Some(format!("the {kind} of the cluster have not been listed yet"));
        }
        let failing_since = *self.failing_since.lock().unwrap_or_else(PoisonError::into_inner);
        let out = failing_since.map(|since| since.elapsed()).filter(|out| *out > STALE_AFTER);
        out.map(|out| format!("the API server has not answered for {kind} for {} s", out.as_secs()))
    }
}

impl ClusterCache {
    pub(crate) fn new(dialects: Dialects) -> Self {
        Self {
            cluster: RwLock::new(Cluster::new(dialects)),
            expected: Mutex::default(),
            seen: watch::Sender::new(None),
            pods: Freshness::default(),
            nodes: Freshness::default(),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Cluster> {
        self.cluster.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds or updates a pod that the API server has just returned.
    pub(crate) fn apply(&self, pod: &Pod) {
        self.write().apply_pod(pod);
    }

    fn write(&self) -> RwLockWriteGuard<'_, Cluster> {
        self.cluster.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a filter. A pod of a gang is placed meanwhile.
    pub(crate) fn filter(&self, candidates: &Candidates, placement: Placement) -> Filtered {
        let pod = candidates.pod.as_ref();
        let dialects = self.read().dialects();
        if pod.is_some_and(|pod| extender::is_placed(pod, dialects)) {
            let mut cluster = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
            extender::filter_and_place(&mut cluster, candidates, placement, now())
        } else {
            let cluster = self.read();
            let answer = extender::filter(&cluster, candidates);
            if let (Some(pod), Some(names)) =
                (pod.and_then(|pod| PodRequest::of(pod, dialects)), &answer.node_names)
            {
                self.expected().answered(&pod, names, &cluster, now());
            }
            answer
        }
    }

    /// Scores nodes.
    pub(crate) fn prioritize(
        &self,
        candidates: &Candidates,
        placement: Placement,
    ) -> Vec<Priority> {
        let uid = candidates.pod.as_ref().map_or("", |pod| &pod.metadata.uid);
        let cluster = self.read();
        let expected = self.expected();
        let beside = expected.beside(uid, &cluster, now());
        extender::prioritize(&cluster, candidates, placement, &beside)
    }

    fn expected(&self) -> MutexGuard<'_, ExpectedPods> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends placements whose deadline has passed.
    pub(crate) fn expire_placements(&self) {
        let mut cluster = self.cluster.write().unwrap_or_else(PoisonError::into_inner);
        cluster.expire_placements(now());
    }

    /// Waits until the copy has all changes of pods up to `version`. Returns whether it has.
    pub(crate) async fn has_seen(&self, version: u64, within: Duration) -> bool {
        let mut seen = self.seen.subscribe();
        // The sender lives as long as the copy.
        let reached = seen.wait_for(|seen| seen.is_some_and(|seen| seen >= version));
        timeout(within, reached).await.is_ok_and(|reached| reached.is_ok())
    }

    /// Drops what nodes report that have not been ready for so many nanoseconds.
    pub(crate) fn expire_reports(&self, now: u64, after: u64) {
        self.cluster.write().unwrap_or_else(PoisonError::into_inner).expire_reports(now, after);
    }

    /// Returns whether pods and nodes have been listed.
    pub(crate) fn is_listed(&self) -> bool {
        self.pods.listed.load(Ordering::Acquire) && self.nodes.listed.load(Ordering::Acquire)
    }

    /// Returns when pods and nodes have been listed.
    pub(crate) async fn listed(&self) {
        while !self.is_listed() {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns why the extender is not ready, or `None` if it is.
    pub(crate) fn unready_reason(&self) -> Option<String> {
        self.nodes.unready_reason("nodes").or_else(|| self.pods.unready_reason("pods"))
    }
}

impl EventHandler<Pod> for ClusterCache {
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

    fn caught_up(&self, version: &str) {
        self.seen.send_replace(version.parse().ok());
    }

    fn connection_changed(&self, outcome: Result<(), &Failure>) {
        self.pods.connection_changed(outcome);
    }
}

impl EventHandler<Node> for ClusterCache {
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

    fn connection_changed(&self, outcome: Result<(), &Failure>) {
        self.nodes.connection_changed(outcome);
    }
}

/// ConfigMaps that take GPUs out. They are optional, so readiness does not depend on them.
impl EventHandler<ConfigMap> for ClusterCache {
    type Kept = Option<Cordon>;

    fn condense(&self, record: ConfigMap) -> Option<Cordon> {
        let cordon = Cordon::of(&record)?;
        if !cordon.invalid.is_empty() {
            warn!(node = cordon.node, invalid = ?cordon.invalid, "a ConfigMap of unhealthy GPUs \
                lists what are no indexes");
        }
        Some(cordon)
    }

    fn replace(&self, all: List<Option<Cordon>>) {
        self.write().replace_cordons(all.items.into_iter().flatten());
    }

    fn apply(&self, record: ConfigMap) {
        if let Some(cordon) = self.condense(record) {
            self.write().apply_cordon(cordon);
        }
    }

    fn delete(&self, record: ConfigMap) {
        if let Some(Cordon { node, .. }) = Cordon::of(&record) {
            self.write().apply_cordon(Cordon { node, ..Cordon::default() });
        }
    }
}
