//! What one of the replicas does now and then: withdraws claims that came to nothing, and tells what is wrong with pods on nodes.

use std::sync::Arc;
use std::time::Duration;

use cgpu_kubernetes_client::{Api, Failure};
use cgpu_kubernetes_core::accounting::Standing;
use cgpu_kubernetes_core::claim;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::binder::now;
use crate::events::{self, EventRecorder};
use crate::sight::Sight;

/// Does so for ever, while `leads` says that it is for us to do.
pub(crate) async fn run(
    api: Api,
    sight: Arc<Sight>,
    events: Arc<EventRecorder>,
    leads: watch::Receiver<bool>,
    every: Duration,
) {
    loop {
        if *leads.borrow() && sight.is_listed() {
            withdraw(&api, &sight).await;
            record_events(&sight, &events);
        }
        tokio::time::sleep(every).await;
    }
}

async fn withdraw(api: &Api, sight: &Sight) {
    let stale: Vec<_> = sight.look().stale(now()).map(|pod| (pod.title(), claim::withdraw(pod))).collect();
    for (pod, change) in stale {
        match api.change(&change).await {
            Ok(new) => {
                info!(pod, "a claim that nobody bound was withdrawn");
                sight.apply(&new);
            }
            // It has changed, or gone: our watch will tell.
            Err(failure @ (Failure::Conflict(_) | Failure::NotFound(_))) => {
                debug!(pod, %failure, "not withdrawn")
            }
            Err(failure) => warn!(pod, %failure, "not withdrawn"),
        }
    }
}

/// Annotations that somebody has edited, pods that came past us, and labels of nodes that mean nothing.
fn record_events(sight: &Sight, events: &EventRecorder) {
    let cluster = sight.look();
    for holder in
        cluster.nodes().flat_map(|(_, accounting)| &accounting.holders).filter(|holder| holder.pod.bound.is_some())
    {
        match &holder.standing {
            Standing::Holds(_) => {}
            Standing::Unclear(refusal) => {
                let sentence = format!(
                    "{refusal}; until that is put right or the pod is deleted, it counts on every GPU of its node"
                );
                events.warn(&holder.pod, events::UNCLEAR, &sentence);
            }
            Standing::Nothing(refusal) => {
                let sentence = format!("{refusal}; it will not be started");
                events.warn(&holder.pod, events::WITHOUT, &sentence);
            }
        }
    }
    // Nobody waits for these: where there are more than can be told, pods come first.
    for (node, _) in cluster.nodes() {
        for note in &node.notes {
            events.warn_of_node(&node.name, events::NODE_LABEL, note);
        }
    }
}
