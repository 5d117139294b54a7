//! A pod that requests GPUs, reduced to what concerns them.

use std::sync::Arc;

use crate::allocation::Allocation;
use crate::container_request::ContainerRequest;
use crate::eviction::Eviction;
use crate::gpus::NodeGpus;
use crate::names::{Dialects, GANGS, POD_LABELS};
use crate::object::{Condition, Pod, Texts};
use crate::refusal::Refusal;
use crate::resource_request::ResourceRequest;
use crate::rules::{self, PlacementRules};
use crate::sizes::Sizes;

/// What is kept of a pod that requests GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// Version of the pod object.
    pub version: String,
    /// Node that it is bound to.
    pub bound: Option<String>,
    /// Whether it has started.
    pub running: bool,
    /// Requests of its containers.
    pub requests: Result<Vec<ContainerRequest>, Refusal>,
    /// Weights of the containers with requests, in the order of these.
    pub weights: Vec<u32>,
    /// Labels that concern GPUs.
    pub labels: Texts,
    /// Annotations that say which nodes and GPUs it may have ([`crate::rules`]).
    pub rules: Texts,
    /// GPUs that it was given.
    pub allocation: Result<Option<Allocation>, Refusal>,
    /// Priority.
    pub priority: i32,
    /// Node on which room is kept for it.
    pub nominated: Option<String>,
    /// It is of a gang: its scheduler may hold it back until others have a node.
    pub in_gang: bool,
    /// Why its scheduler last failed to place it; read of nominated pods of gangs only.
    pub failure: Option<String>,
    /// What its eviction depends on.
    pub eviction: Eviction,
    /// What its containers have instead of what they requested.
    pub sizes: Result<Sizes, Refusal>,
}

impl PodRequest {
    /// Returns `None` if the pod requests no GPU, or has ended and holds nothing.
    #[must_use]
    pub fn of(pod: &Pod, dialects: Dialects) -> Option<Self> {
        if has_ended(pod) {
            return None;
        }
        let requests = ContainerRequest::of_pod(pod, dialects);
        if requests.as_ref().is_ok_and(Vec::is_empty) {
            return None;
        }
        let metadata = &pod.metadata;
        let named = |name: &String| Some(name).filter(|name| !name.is_empty()).cloned();
        let labels = metadata.labels.iter().filter(|(name, _)| name.starts_with(POD_LABELS));
        let is_rule = |name: &str| dialects.hami && rules::ANNOTATIONS.contains(&name);
        let rules = metadata.annotations.iter().filter(|(name, _)| is_rule(name));
        let sizes = Sizes::read(&metadata.annotations);
        Some(Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            version: metadata.resource_version.clone(),
            bound: named(&pod.spec.node_name),
            running: pod.status.phase == "Running",
            weights: weights(pod, requests.as_deref().unwrap_or_default(), sizes.as_ref().ok()),
            requests,
            labels: labels.map(|(name, text)| (name.clone(), text.clone())).collect(),
            rules: rules.map(|(name, text)| (name.clone(), text.clone())).collect(),
            allocation: Allocation::read(&metadata.annotations),
            priority: pod.spec.priority,
            nominated: named(&pod.status.nominated_node_name),
            in_gang: in_gang(pod),
            failure: failure(pod),
            eviction: Eviction::of(pod),
            sizes,
        })
    }

    /// Returns whether the pod requested a GPU and has ended, which is final.
    #[must_use]
    pub fn has_ended(pod: &Pod, dialects: Dialects) -> bool {
        has_ended(pod) && ContainerRequest::of_pod(pod, dialects) != Ok(Vec::new())
    }

    /// Returns the node whose accounting the pod is in: the one it is bound to, else the one
    /// claimed for it.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.bound.as_deref().or_else(|| self.claimed())
    }

    /// Returns the node that was claimed for it.
    #[must_use]
    pub fn claimed(&self) -> Option<&str> {
        self.allocation.as_ref().ok()?.as_ref()?.node.as_deref()
    }

    /// Returns what it needs of each GPU.
    ///
    /// # Errors
    /// The defect of its requests, labels or annotations.
    pub fn resource_request(&self) -> Result<ResourceRequest, Refusal> {
        let requests = self.requests.as_ref().map_err(Clone::clone)?;
        let rules = PlacementRules::of(&self.rules)?;
        Ok(ResourceRequest { rules, ..ResourceRequest::of(requests, &self.labels)? })
    }

    /// Checks that the pod's annotations permit these GPUs of a node.
    ///
    /// # Errors
    /// They do not, or they are invalid.
    pub fn check_permitted(
        &self,
        node: &NodeGpus,
        gpus: impl IntoIterator<Item = u32>,
    ) -> Result<(), Refusal> {
        let rules = PlacementRules::of(&self.rules)?;
        let is_permitted = |gpu: &u32| node.gpu(*gpu).is_some_and(|gpu| rules.permit(gpu));
        match gpus.into_iter().find(|gpu| !is_permitted(gpu)) {
            Some(gpu) => Err(Refusal::new(format!(
                "the annotations of {} do not permit GPU {gpu} of node `{}`, which was chosen for \
                 it; correct them, or delete the pod",
                self.title(),
                node.name
            ))),
            None => Ok(()),
        }
    }

    /// Returns `namespace/name`, for messages.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn weights(pod: &Pod, requests: &[ContainerRequest], sizes: Option<&Sizes>) -> Vec<u32> {
    let containers = || pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let resized = |request: &ContainerRequest| sizes?.0.get(&request.container)?.weight;
    let weight = |request: &ContainerRequest| {
        resized(request)
            .or_else(|| containers().nth(request.index)?.weight.as_ref()?.trim().parse().ok())
    };
    requests.iter().map(|request| weight(request).unwrap_or(1)).collect()
}

/// A pod, by what it means for the accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodObservation {
    /// It requests GPUs.
    Requests(Arc<PodRequest>),
    /// It requested GPUs and has ended, which is final. Holds its uid.
    Ended(String),
    /// It has nothing to do with GPUs. Holds its uid.
    Other(String),
}

impl PodObservation {
    /// Classifies a pod.
    #[must_use]
    pub fn of(pod: &Pod, dialects: Dialects) -> Self {
        match PodRequest::of(pod, dialects) {
            Some(pod_request) => Self::Requests(Arc::new(pod_request)),
            None if PodRequest::has_ended(pod, dialects) => Self::Ended(pod.metadata.uid.clone()),
            None => Self::Other(pod.metadata.uid.clone()),
        }
    }

    /// Returns the uid of the pod.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Requests(pod_request) => &pod_request.uid,
            Self::Ended(uid) | Self::Other(uid) => uid,
        }
    }
}

fn in_gang(pod: &Pod) -> bool {
    let of = |texts: &Texts| GANGS.iter().any(|name| texts.contains_key(*name));
    pod.spec.scheduling_group
        || pod.spec.workload_ref
        || of(&pod.metadata.labels)
        || of(&pod.metadata.annotations)
}

/// Pods of gangs only: 10,000 others need not remember a text.
fn failure(pod: &Pod) -> Option<String> {
    if pod.status.nominated_node_name.is_empty() || !in_gang(pod) {
        return None;
    }
    let mut conditions = pod.status.conditions.iter();
    let is_failure = |it: &&Condition| it.kind == "PodScheduled" && it.status == "False";
    conditions.find(is_failure).map(|condition| condition.message.clone())
}

fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}
