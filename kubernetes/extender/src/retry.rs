//! Pods that no node fitted, and that one fits now: kube-scheduler is to try them again.
//!
//! It does so by itself at the next event of the cluster, and else after five minutes. But it may
//! try before the copy here has that event, and not all that frees GPUs is an event for it: not a
//! ConfigMap that is deleted, nor a deadline that passes. A change of the pod is one, for that pod
//! alone. So the extender writes an annotation on it.
//!
//! Only the leader answers filter, so only it knows such pods. A new leader learns of them when
//! they are tried again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cgpu_kubernetes_client::{Api, Failure};
use cgpu_kubernetes_core::claim::Change;
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{self, Candidates, Filtered};
use cgpu_kubernetes_core::names::annotation;
use cgpu_kubernetes_core::preemption;
use tracing::{debug, info, warn};

use crate::binder::now;
use crate::cache::ClusterCache;

/// Interval between two checks. A node must fit at two in a row: mostly the scheduler has tried the
/// pod again by then.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pods that are remembered. Others wait for the scheduler alone.
const MAX_REFUSED: usize = 1024;

/// Pods that one check examines: those whose examination was longest ago.
const MAX_EXAMINED: usize = 32;

/// Pods that no node fitted, by uid, until one does.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    refused: Mutex<HashMap<String, Refused>>,
}

#[derive(Debug, Default)]
struct Refused {
    /// Nodes that pass the scheduler's filters.
    nodes: Vec<String>,
    /// Number of the check that examined it last.
    examined: u64,
    /// Whether a node fitted then.
    fits: bool,
}

impl Retry {
    /// Records the result of filter.
    pub(crate) fn filtered(&self, candidates: &Candidates, filtered: &Filtered) {
        let Some(pod) = &candidates.pod else { return };
        let mut refused = self.refused();
        if filtered.fits_any() || !filtered.error.is_empty() {
            refused.remove(&pod.metadata.uid);
        } else if refused.len() < MAX_REFUSED || refused.contains_key(&pod.metadata.uid) {
            let failed =
                filtered.failed_nodes.keys().chain(filtered.failed_and_unresolvable_nodes.keys());
            let nodes = failed.take(preemption::MAX_EXAMINED).cloned().collect();
            let uid = pod.metadata.uid.clone();
            refused.insert(uid, Refused { nodes, ..Refused::default() });
        }
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<String, Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Examines some pods, and returns titles of those that a node has fitted twice, and the
    /// changes that have the scheduler try them again. Pods that are bound, claimed or gone are
    /// forgotten.
    fn check(&self, number: u64, cluster: &Cluster) -> Vec<(String, Change)> {
        let mut refused = self.refused();
        refused.retain(|uid, _| cluster.pod(uid).is_some_and(|pod| pod.node().is_none()));
        let mut pods: Vec<_> = refused.iter_mut().collect();
        pods.sort_unstable_by_key(|(_, refused)| refused.examined);
        let mut changes = Vec::new();
        for (uid, refused) in pods.into_iter().take(MAX_EXAMINED) {
            let Some(pod) = cluster.pod(uid) else { continue };
            let fitted = std::mem::replace(
                &mut refused.fits,
                refused.nodes.iter().any(|node| extender::fits(cluster, pod, node)),
            );
            refused.examined = number;
            if fitted && refused.fits {
                let annotations = BTreeMap::from([(annotation::RETRIED, Some(now().to_string()))]);
                changes.push((pod.title(), Change::of(pod, annotations)));
            }
        }
        changes
    }

    fn forget(&self, uid: &str) {
        self.refused().remove(uid);
    }
}

/// Runs without end.
pub(crate) async fn run(retry: Arc<Retry>, api: Api, cache: Arc<ClusterCache>) {
    for number in 1.. {
        tokio::time::sleep(POLL_INTERVAL).await;
        let changes = retry.check(number, &cache.read());
        for (pod, change) in changes {
            match api.change(&change).await {
                Ok(new) => {
                    info!(pod, "a node fits it now: kube-scheduler is to try it again");
                    cache.apply(&new);
                }
                // It has changed, which has the scheduler try it again, or is gone.
                Err(failure @ (Failure::Conflict(_) | Failure::NotFound(_))) => {
                    debug!(pod, %failure, "not to be tried again");
                }
                Err(failure) => {
                    warn!(pod, %failure, "a node fits it, and the scheduler was not told");
                    continue;
                }
            }
            retry.forget(&change.uid);
        }
    }
}
