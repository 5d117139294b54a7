//! Binding: claim, look, bind (`docs/kubernetes.md`).
//!
//! Nothing is remembered of a binding but what stands on the pod. Whatever interrupts one, a death included, leaves a claim that the next attempt writes over,
//! or that is withdrawn after a minute.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cgpu_kubernetes_client::{Api, Failure, Query};
use cgpu_kubernetes_core::claim::{self, Change};
use cgpu_kubernetes_core::pod_request::{PodRequest, PodObservation};
use cgpu_kubernetes_core::extender::{self, Binding};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::refusal::Refusal;
use tokio::sync::Mutex;
use tracing::{debug, info};

use crate::sight::Sight;

/// How often somebody else's write may come in between.
const TRIES: usize = 4;

/// Nodes are spread over so many locks.
const LANES: usize = 64;

/// Binds pods.
pub(crate) struct Binder {
    api: Api,
    sight: Arc<Sight>,
    /// One claim at a time is made on a node: two that are made at once would see each other when they look, and both come to nothing. Others' claims
    /// are not kept out by this, nor need they be.
    lanes: Vec<Mutex<()>>,
}

/// Why a pod was not bound.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It must not be.
    Refused(Refusal),
    /// The API server would not, or did not answer.
    Failed(&'static str, Failure),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Failed(what, failure) => write!(f, "{what}: {failure}"),
        }
    }
}

impl From<Refusal> for Obstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What is to be done with a pod.
enum Plan {
    /// This is to be written on it first.
    Claim(Change),
    /// It asks for no GPUs.
    Plain(Pod),
    /// Whoever asks did not hear that it was done.
    Bound,
}

/// A pod, ready to be bound.
enum Claimed {
    /// With a claim on it.
    Gpus(Pod),
    /// It needs none.
    Plain(Pod),
    /// It is already, to this node.
    Bound,
}

impl Binder {
    /// One that writes by `api` and chooses by what `sight` knows.
    pub(crate) fn new(api: Api, sight: Arc<Sight>) -> Self {
        let lanes = (0..LANES).map(|_| Mutex::new(())).collect();
        Self { api, sight, lanes }
    }

    /// Binds a pod to a node.
    pub(crate) async fn bind(&self, binding: &Binding) -> Result<(), Obstacle> {
        let (pod, claimed) = match self.claim(binding).await? {
            Claimed::Bound => return Ok(()),
            Claimed::Plain(pod) => (pod, false),
            Claimed::Gpus(pod) => (pod, true),
        };
        if claimed {
            self.look(binding, &pod).await?;
        }
        self.settle(binding, pod).await?;
        info!(pod = title(binding), node = binding.node, "bound");
        Ok(())
    }

    async fn claim(&self, binding: &Binding) -> Result<Claimed, Obstacle> {
        let mut hasher = DefaultHasher::new();
        binding.node.hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % LANES as u64).unwrap_or(0);
        let _lane = self.lanes[lane].lock().await;
        let mut conflict = None;
        for _ in 0..TRIES {
            let change = match self.plan(binding, conflict.is_some()).await? {
                Plan::Claim(change) => change,
                Plan::Plain(pod) => return Ok(Claimed::Plain(pod)),
                Plan::Bound => return Ok(Claimed::Bound),
            };
            match self.api.change(&change).await {
                Ok(pod) => {
                    self.sight.apply(&pod);
                    debug!(
                        pod = title(binding),
                        node = binding.node,
                        version = pod.metadata.resource_version,
                        "claimed"
                    );
                    return Ok(Claimed::Gpus(pod));
                }
                // What we knew of it was old, or somebody else has just written.
                Err(failure @ Failure::Conflict(_)) => conflict = Some(failure),
                Err(failure) => return Err(Obstacle::Failed("the claim was not written", failure)),
            }
        }
        let failure = conflict.unwrap_or_else(|| Failure::Conflict(String::new()));
        Err(Obstacle::Failed("others write on the pod", failure))
    }

    async fn plan(&self, binding: &Binding, stale: bool) -> Result<Plan, Obstacle> {
        if stale || self.sight.look().pod(&binding.pod_uid).is_none() {
            // kube-scheduler may be ahead of our watch.
            let pod: Pod = self
                .api
                .get(&binding.pod_namespace, &binding.pod_name)
                .await
                .map_err(|failure| Obstacle::Failed("the pod cannot be read", failure))?;
            if pod.metadata.uid != binding.pod_uid {
                let sentence = format!("the pod {} is another one by now", title(binding));
                return Err(Refusal::new(sentence).into());
            }
            let dialects = self.sight.look().dialects();
            match PodObservation::of(&pod, dialects) {
                PodObservation::Other(_) => return Ok(Plan::Plain(pod)),
                PodObservation::Requests(_) | PodObservation::Ended(_) => self.sight.apply(&pod),
            }
        }
        let cluster = self.sight.look();
        if cluster.pod(&binding.pod_uid).is_some_and(|pod| pod.bound.as_ref() == Some(&binding.node)) {
            return Ok(Plan::Bound);
        }
        Ok(Plan::Claim(extender::bind(&cluster, binding, now())?))
    }

    /// Whether the claim may stand, by what the API server has; else it is withdrawn.
    async fn look(&self, binding: &Binding, pod: &Pod) -> Result<(), Obstacle> {
        let verdict = match self.listed(&binding.node).await {
            Ok(pods) => self
                .sight
                .look()
                .confirm(&binding.pod_uid, &binding.node, pods.values())
                .map_err(Obstacle::Refused),
            Err(failure) => Err(Obstacle::Failed("the node's pods cannot be listed", failure)),
        };
        if verdict.is_err() {
            self.withdraw(pod).await;
        }
        verdict
    }

    /// Who may have something of a node: those that are bound nowhere, then those that are bound there. A pod that is bound in between is in both lists; the
    /// other way round it would be in none.
    async fn listed(&self, node: &str) -> Result<BTreeMap<String, Arc<PodRequest>>, Failure> {
        let dialects = self.sight.look().dialects();
        let mut found = BTreeMap::new();
        for name in ["", node] {
            let list = self.api.list::<Pod>(&Query::all().field(format!("spec.nodeName={name}"))).await?;
            for pod in &list.items {
                if let Some(pod_request) = PodRequest::of(pod, dialects) {
                    found.insert(pod_request.uid.clone(), Arc::new(pod_request));
                }
            }
        }
        Ok(found)
    }

    async fn withdraw(&self, pod: &Pod) {
        let dialects = self.sight.look().dialects();
        let Some(pod_request) = PodRequest::of(pod, dialects) else { return };
        match self.api.change(&claim::withdraw(&pod_request)).await {
            Ok(pod) => self.sight.apply(&pod),
            // It is withdrawn after a minute.
            Err(failure) => debug!(pod = pod_request.title(), %failure, "the claim was not withdrawn"),
        }
    }

    /// Binds what was claimed, as long as that claim stands.
    async fn settle(&self, binding: &Binding, mut pod: Pod) -> Result<(), Obstacle> {
        let dialects = self.sight.look().dialects();
        let claim = |pod: &Pod| PodRequest::of(pod, dialects).map(|pod_request| pod_request.allocation);
        let claimed = claim(&pod);
        let mut failure = Failure::Conflict(String::new());
        for _ in 0..TRIES {
            match self.api.bind(&pod, &binding.node).await {
                Ok(()) => return Ok(()),
                Err(new) => failure = new,
            }
            // Whether it was bound all the same, or what came in between.
            let Ok(now) = self.api.get::<Pod>(&binding.pod_namespace, &binding.pod_name).await else { break };
            self.sight.apply(&now);
            if now.metadata.uid != binding.pod_uid {
                break;
            }
            if now.spec.node_name == binding.node {
                return Ok(());
            }
            // Somebody wrote something else on it: the claim has stood all the time, for each has a time of its own.
            let stands = now.spec.node_name.is_empty() && claim(&now) == claimed;
            if !stands || !matches!(failure, Failure::Conflict(_)) {
                break;
            }
            pod = now;
        }
        Err(Obstacle::Failed("the pod was not bound", failure))
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn title(binding: &Binding) -> String {
    format!("{}/{}", binding.pod_namespace, binding.pod_name)
}
