//! Periodic work of the leader: withdraws claims that were not bound, and reports what is wrong
//! with pods on nodes.

use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_client::{Api, Failure, Leadership};
use cgpu_kubernetes_core::accounting::Holding;
use cgpu_kubernetes_core::claim;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::binder::now;
use crate::cache::ClusterCache;
use crate::events::{self, EventRecorder};

/// Runs without end, and does its work while this replica leads.
pub(crate) async fn run(
    api: Api,
    cache: Arc<ClusterCache>,
    events: Arc<EventRecorder>,
    leader: watch::Receiver<Leadership>,
    every: Duration,
    lost_after: Duration,
) {
    let lost_after = u64::try_from(lost_after.as_nanos()).unwrap_or(u64::MAX);
    loop {
        cache.expire_placements();
        // Each replica has its own copy.
        cache.expire_reports(now(), lost_after);
        if *leader.borrow() == Leadership::Own && cache.is_listed() {
            withdraw(&api, &cache).await;
            record_events(&cache, &events);
        }
        tokio::time::sleep(every).await;
    }
}

async fn withdraw(api: &Api, cache: &ClusterCache) {
    let stale: Vec<_> =
        cache.read().stale(now()).map(|pod| (pod.title(), claim::withdraw(pod))).collect();
    for (pod, change) in stale {
        match api.change(&change).await {
            Ok(new) => {
                info!(pod, "a stale claim was withdrawn");
                cache.apply(&new);
            }
            // The pod has changed or is gone; the watch reports it.
            Err(failure @ (Failure::Conflict(_) | Failure::NotFound(_))) => {
                debug!(pod, %failure, "not withdrawn")
            }
            Err(failure) => warn!(pod, %failure, "not withdrawn"),
        }
    }
}

/// Reports invalid requests, edited annotations, pods that bypassed the extender, and invalid
/// labels of nodes.
fn record_events(cache: &ClusterCache, events: &EventRecorder) {
    let cluster = cache.read();
    for pod in cluster.pods().filter(|pod| pod.bound.is_none()) {
        events.report_request(pod);
    }
    for holder in cluster
        .nodes()
        .flat_map(|(_, accounting)| &accounting.holders)
        .filter(|holder| holder.pod.bound.is_some())
    {
        match &holder.holding {
            // A pod that was deleted has no events.
            Holding::Shares(_) | Holding::Left(_) => {}
            Holding::Unclear(refusal) => {
                let message = format!(
                    "{refusal}; until this is corrected or the pod is deleted, it counts on every \
                     GPU of its node"
                );
                events.warn(&holder.pod, events::UNCLEAR, &message);
            }
            Holding::Nothing(refusal) => {
                let message = format!("{refusal}; it will not be started");
                events.warn(&holder.pod, events::NOT_ALLOCATED, &message);
            }
        }
    }
    // Events of nodes are queued last: if the queue is full, pods come first.
    for (node, _) in cluster.nodes() {
        for note in &node.notes {
            events.warn_of_node(&node.name, events::NODE_LABEL_IGNORED, note);
        }
    }
}
