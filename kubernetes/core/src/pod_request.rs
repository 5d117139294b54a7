//! A pod that requests GPUs, as far as GPUs are concerned.

use std::sync::Arc;

use crate::allocation::Allocation;
use crate::container_request::ContainerRequest;
use crate::names::{Dialects, POD_LABELS};
use crate::object::{Pod, Texts};
use crate::refusal::Refusal;
use crate::resource_request::ResourceRequest;

/// What is kept of a pod that requests GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Itself, for ever.
    pub uid: String,
    /// Which version of it this is.
    pub version: String,
    /// The node it is bound to.
    pub bound: Option<String>,
    /// Whether it has been started.
    pub running: bool,
    /// What it asks for.
    pub requests: Result<Vec<ContainerRequest>, Refusal>,
    /// Those of its labels that are about GPUs.
    pub labels: Texts,
    /// What it was given.
    pub allocation: Result<Option<Allocation>, Refusal>,
}

impl PodRequest {
    /// Returns none if the pod requests nothing of ours, or has ended and holds nothing.
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
        let labels = metadata.labels.iter().filter(|(name, _)| name.starts_with(POD_LABELS));
        Some(Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            version: metadata.resource_version.clone(),
            bound: Some(&pod.spec.node_name).filter(|name| !name.is_empty()).cloned(),
            running: pod.status.phase == "Running",
            requests,
            labels: labels.map(|(name, text)| (name.clone(), text.clone())).collect(),
            allocation: Allocation::read(&metadata.annotations),
        })
    }

    /// Whether it asked for something of ours and has ended, which is for ever.
    #[must_use]
    pub fn has_ended(pod: &Pod, dialects: Dialects) -> bool {
        has_ended(pod) && ContainerRequest::of_pod(pod, dialects) != Ok(Vec::new())
    }

    /// The node whose accounting it is in: where it is bound, else the one that was claimed for it.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.bound.as_deref().or_else(|| self.claimed())
    }

    /// The node that was claimed for it.
    #[must_use]
    pub fn claimed(&self) -> Option<&str> {
        self.allocation.as_ref().ok()?.as_ref()?.node.as_deref()
    }

    /// What it needs of each GPU.
    ///
    /// # Errors
    /// What is wrong with what it asks for.
    pub fn resource_request(&self) -> Result<ResourceRequest, Refusal> {
        ResourceRequest::of(self.requests.as_ref().map_err(Clone::clone)?, &self.labels)
    }

    /// `namespace/name`, for sentences.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A pod as the accounting sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodObservation {
    /// It requests GPUs.
    Requests(Arc<PodRequest>),
    /// It requested GPUs and has ended, which is final. Its uid.
    Ended(String),
    /// It has nothing to do with GPUs. Its uid.
    Other(String),
}

impl PodObservation {
    /// What this one is.
    #[must_use]
    pub fn of(pod: &Pod, dialects: Dialects) -> Self {
        match PodRequest::of(pod, dialects) {
            Some(pod_request) => Self::Requests(Arc::new(pod_request)),
            None if PodRequest::has_ended(pod, dialects) => Self::Ended(pod.metadata.uid.clone()),
            None => Self::Other(pod.metadata.uid.clone()),
        }
    }

    /// The pod itself.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Requests(pod_request) => &pod_request.uid,
            Self::Ended(uid) | Self::Other(uid) => uid,
        }
    }
}

fn has_ended(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}
