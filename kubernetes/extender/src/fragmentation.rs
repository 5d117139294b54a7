//! Events about pods that would fit if other pods left a GPU, but for which the scheduler does not
//! ask whom to evict, because the sums of the nodes suffice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{Candidates, Filtered};
use cgpu_kubernetes_core::preemption;

use crate::cache::ClusterCache;
use crate::events::{self, EventRecorder};

/// Time within which the scheduler asks, if it does. It asks right after it has filtered.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pods that are remembered. Others are filtered again.
const MAX_WAITING: usize = 1024;

/// Pods that no node fitted, by uid, until the scheduler asks for them or an event is written.
#[derive(Debug, Default)]
pub(crate) struct Fragmentation {
    waiting: Mutex<HashMap<String, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// Nodes that pass the scheduler's filters and would fit without other pods.
    nodes: Vec<String>,
}

impl Fragmentation {
    /// Records the result of filter.
    pub(crate) fn filtered(&self, candidates: &Candidates, filtered: &Filtered) {
        let Some(pod) = &candidates.pod else { return };
        let is_unfit = !filtered.fits_any() && !filtered.failed_nodes.is_empty();
        let mut waiting = self.waiting();
        if !is_unfit {
            waiting.remove(&pod.metadata.uid);
        } else if waiting.len() < MAX_WAITING || waiting.contains_key(&pod.metadata.uid) {
            let new = || Waiting { since: Instant::now(), nodes: Vec::new() };
            let failed = filtered.failed_nodes.keys().take(preemption::MAX_EXAMINED);
            waiting.entry(pod.metadata.uid.clone()).or_insert_with(new).nodes =
                failed.cloned().collect();
        }
    }

    /// Records that other pods are evicted for this one.
    pub(crate) fn preempts(&self, uid: &str) {
        self.waiting().remove(uid);
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns the pods for which the scheduler has not asked.
    fn due(&self) -> Vec<(String, Waiting)> {
        self.waiting().extract_if(|_, waiting| waiting.since.elapsed() >= ASK_TIMEOUT).collect()
    }
}

/// Runs without end.
pub(crate) async fn run(
    fragmentation: Arc<Fragmentation>,
    cache: Arc<ClusterCache>,
    events: Arc<EventRecorder>,
) {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        for (uid, waiting) in fragmentation.due() {
            report(&cache.read(), &events, &uid, &waiting.nodes);
        }
    }
}

/// Reports a pod of the copy that still waits.
fn report(cluster: &Cluster, events: &EventRecorder, uid: &str, nodes: &[String]) {
    let Some(pod) = cluster.pod(uid).filter(|pod| pod.node().is_none() && pod.nominated.is_none())
    else {
        return;
    };
    let Ok(request) = pod.resource_request() else { return };
    // The scheduler does not count all that is requested: not HAMi's memory, nor a growth.
    let suffices = |name: &&str| {
        let room = cluster.room(pod, name);
        room.is_some_and(|(node, room)| preemption::suffices_in_sum(node, &room, &request))
    };
    let nodes = nodes.iter().map(String::as_str).filter(suffices);
    if let Some(found) = preemption::fragmented(cluster, pod, nodes) {
        let message = format!(
            "on node `{}` enough is free in all, but not on one GPU, and the scheduler evicts no \
             pods for that; in the way, with a lower priority: {}",
            found.node.name,
            found.pods.join(", ")
        );
        events.warn_at_times(pod, events::FRAGMENTED, &message);
    }
}
