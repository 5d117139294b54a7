//! Binding: claim, confirm, bind (`docs/internals/kubernetes.md`).
//!
//! The pod's annotations are the only state of a binding. An interrupted binding leaves a claim
//! that the next attempt overwrites, or that is withdrawn after a minute.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cgpu_kubernetes_client::{Api, Failure, Query};
use cgpu_kubernetes_core::claim::{self, Change};
use cgpu_kubernetes_core::extender::{self, Binding};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::{PodObservation, PodRequest};
use cgpu_kubernetes_core::refusal::Refusal;
use tokio::sync::Mutex;
use tracing::{debug, info};

use crate::cache::ClusterCache;

/// Attempts to write a pod that others write at the same time.
const MAX_ATTEMPTS: usize = 4;

/// Number of locks that nodes are spread over.
const NODE_LOCKS: usize = 64;

pub(crate) struct Binder {
    api: Api,
    cache: Arc<ClusterCache>,
    /// Serializes claims on a node: of two claims made at once each would see the other when it is
    /// confirmed, and both would be withdrawn. Claims of other replicas are not excluded, nor need
    /// they be.
    node_locks: Vec<Mutex<()>>,
    unbound: Mutex<Unbound>,
    /// Time for the watch to report a claim. After that, lists confirm it: kube-scheduler waits.
    watch_timeout: Duration,
}

/// Unbound pods with claims or nominations, as they were last listed. One list serves all claims
/// that were written before it.
#[derive(Default)]
struct Unbound {
    version: Option<u64>,
    pods: Vec<Arc<PodRequest>>,
}

#[derive(Debug)]
pub(crate) enum BindError {
    Refused(Refusal),
    /// The API server refused, or did not answer.
    Failed(&'static str, Failure),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(what, failure) => write!(f, "{what}: {failure}"),
        }
    }
}

impl From<Refusal> for BindError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

enum Plan {
    /// Write this claim on it.
    Claim(Change),
    /// Bind it: it requests no GPUs.
    Plain(Box<Pod>),
    /// Nothing: it is bound already, and that answer was lost.
    Bound,
}

/// A pod that is ready to be bound.
enum Claimed {
    Gpus(Pod),
    /// It requests no GPUs.
    Plain(Pod),
    /// It is already bound to this node.
    Bound,
}

impl Binder {
    /// Creates a binder that writes through `api` and chooses from `cache`.
    pub(crate) fn new(api: Api, cache: Arc<ClusterCache>, watch_timeout: Duration) -> Self {
        let node_locks = (0..NODE_LOCKS).map(|_| Mutex::new(())).collect();
        Self { api, cache, node_locks, unbound: Mutex::default(), watch_timeout }
    }

    pub(crate) async fn bind(&self, binding: &Binding) -> Result<(), BindError> {
        let (pod, claimed) = match self.claim(binding).await? {
            Claimed::Bound => return Ok(()),
            Claimed::Plain(pod) => (pod, false),
            Claimed::Gpus(pod) => (pod, true),
        };
        if claimed {
            self.confirm(binding, &pod).await?;
        }
        self.bind_claimed(binding, pod).await?;
        info!(pod = title(binding), node = binding.node, "bound");
        Ok(())
    }

    async fn claim(&self, binding: &Binding) -> Result<Claimed, BindError> {
        let mut hasher = DefaultHasher::new();
        binding.node.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % NODE_LOCKS as u64).unwrap_or(0);
        let _lock = self.node_locks[index].lock().await;
        let mut conflict = None;
        for _ in 0..MAX_ATTEMPTS {
            let change = match self.plan(binding, conflict.is_some()).await? {
                Plan::Claim(change) => change,
                Plan::Plain(pod) => return Ok(Claimed::Plain(*pod)),
                Plan::Bound => return Ok(Claimed::Bound),
            };
            match self.api.change(&change).await {
                Ok(pod) => {
                    self.cache.apply(&pod);
                    debug!(
                        pod = title(binding),
                        node = binding.node,
                        version = pod.metadata.resource_version,
                        "claimed"
                    );
                    return Ok(Claimed::Gpus(pod));
                }
                // The known version was outdated, or another client has just written the pod.
                Err(failure @ Failure::Conflict(_)) => conflict = Some(failure),
                Err(failure) => {
                    return Err(BindError::Failed("the claim was not written", failure));
                }
            }
        }
        let failure = conflict.unwrap_or_else(|| Failure::Conflict(String::new()));
        Err(BindError::Failed("other clients keep changing the pod", failure))
    }

    async fn plan(&self, binding: &Binding, stale: bool) -> Result<Plan, BindError> {
        if stale || self.cache.read().pod(&binding.pod_uid).is_none() {
            // kube-scheduler may be ahead of our watch.
            let pod: Pod = self
                .api
                .get(&binding.pod_namespace, &binding.pod_name)
                .await
                .map_err(|failure| BindError::Failed("the pod cannot be read", failure))?;
            if pod.metadata.uid != binding.pod_uid {
                let message = format!("the pod {} was replaced by another one", title(binding));
                return Err(Refusal::new(message).into());
            }
            let dialects = self.cache.read().dialects();
            match PodObservation::of(&pod, dialects) {
                PodObservation::Other(_) => return Ok(Plan::Plain(Box::new(pod))),
                PodObservation::Requests(_) | PodObservation::Ended(_) => self.cache.apply(&pod),
            }
        }
        let cluster = self.cache.read();
        if cluster
            .pod(&binding.pod_uid)
            .is_some_and(|pod| pod.bound.as_ref() == Some(&binding.node))
        {
            return Ok(Plan::Bound);
        }
        Ok(Plan::Claim(extender::bind(&cluster, binding, now())?))
    }

    /// Confirms the claim, or withdraws it.
    async fn confirm(&self, binding: &Binding, pod: &Pod) -> Result<(), BindError> {
        let outcome = self.check(binding, pod).await;
        if outcome.is_err() {
            self.withdraw(pod).await;
        }
        outcome
    }

    /// Checks the claim by the copy, once that has all changes up to the claim's version; if the
    /// watch is late, by lists.
    async fn check(&self, binding: &Binding, pod: &Pod) -> Result<(), BindError> {
        let Binding { pod_uid, node, .. } = binding;
        let version = number(&pod.metadata.resource_version);
        if let Some(version) = version
            && self.cache.has_seen(version, self.watch_timeout).await
        {
            return Ok(self.cache.read().confirm(pod_uid, node)?);
        }
        info!(pod = title(binding), node, "the watch is late: the pods are listed");
        let pods = self
            .listed(node, version)
            .await
            .map_err(|failure| BindError::Failed("the node's pods cannot be listed", failure))?;
        Ok(self.cache.read().confirm_listed(pod_uid, node, pods.values())?)
    }

    /// Lists the pods that may hold a part of a node: unbound pods first, then those of the node. A
    /// pod that is bound in between is in both lists; in the other order it would be in neither.
    async fn listed(
        &self,
        node: &str,
        version: Option<u64>,
    ) -> Result<BTreeMap<String, Arc<PodRequest>>, Failure> {
        let unbound = self.unbound(version).await?;
        let (_, bound) = self.list(node).await?;
        let all = unbound.into_iter().chain(bound);
        Ok(all.map(|pod_request| (pod_request.uid.clone(), pod_request)).collect())
    }

    /// Returns the unbound pods with claims or nominations, as of `version` or later.
    async fn unbound(&self, version: Option<u64>) -> Result<Vec<Arc<PodRequest>>, Failure> {
        let mut last = self.unbound.lock().await;
        if version.is_none() || last.version < version {
            let (version, pods) = self.list("").await?;
            let pods =
                pods.filter(|pod| pod.claimed().is_some() || pod.nominated.is_some()).collect();
            *last = Unbound { version, pods };
        }
        Ok(last.pods.clone())
    }

    /// Lists the pods of a node, or the unbound ones. Returns the list's version, too.
    async fn list(
        &self,
        node: &str,
    ) -> Result<(Option<u64>, impl Iterator<Item = Arc<PodRequest>> + use<>), Failure> {
        let dialects = self.cache.read().dialects();
        let query = Query::all().field(format!("spec.nodeName={node}"));
        let list = self.api.list::<Pod>(&query).await?;
        let pods = list.items.into_iter();
        let pods = pods.filter_map(move |pod| PodRequest::of(&pod, dialects).map(Arc::new));
        Ok((number(&list.version), pods))
    }

    async fn withdraw(&self, pod: &Pod) {
        let dialects = self.cache.read().dialects();
        let Some(pod_request) = PodRequest::of(pod, dialects) else { return };
        match self.api.change(&claim::withdraw(&pod_request)).await {
            Ok(pod) => self.cache.apply(&pod),
            // The sweep withdraws it later.
            Err(failure) => {
                debug!(pod = pod_request.title(), %failure, "the claim was not withdrawn")
            }
        }
    }

    /// Binds a claimed pod, as long as its claim is unchanged.
    async fn bind_claimed(&self, binding: &Binding, mut pod: Pod) -> Result<(), BindError> {
        let dialects = self.cache.read().dialects();
        let claim = |pod: &Pod| PodRequest::of(pod, dialects).map(|it| (it.allocation, it.rules));
        let claimed = claim(&pod);
        let mut failure = Failure::Conflict(String::new());
        for _ in 0..MAX_ATTEMPTS {
            match self.api.bind(&pod, &binding.node).await {
                Ok(()) => return Ok(()),
                Err(new) => failure = new,
            }
            // The pod may be bound although the reply was lost; otherwise another change came
            // first.
            let Ok(now) = self.api.get::<Pod>(&binding.pod_namespace, &binding.pod_name).await
            else {
                break;
            };
            self.cache.apply(&now);
            if now.metadata.uid != binding.pod_uid {
                break;
            }
            if now.spec.node_name == binding.node {
                return Ok(());
            }
            // Another client changed something else. The claim has remained, because each claim has
            // its own time.
            let stands = now.spec.node_name.is_empty() && claim(&now) == claimed;
            if !stands || !matches!(failure, Failure::Conflict(_)) {
                break;
            }
            pod = now;
        }
        Err(BindError::Failed("the pod was not bound", failure))
    }
}

/// Returns a version as a number, which those of all API servers are. Others cannot be compared.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// Returns the nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn title(binding: &Binding) -> String {
    format!("{}/{}", binding.pod_namespace, binding.pod_name)
}
