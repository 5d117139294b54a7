//! Pods, nodes and runtime classes as the doctor reads them, with fields that the core does not
//! need.

use std::collections::BTreeMap;

use cgpu_kubernetes_client::Record;
use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::names::{Dialects, annotation};
use cgpu_kubernetes_core::object::{Metadata, Node, Pod, Variable, nullable};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::claim::ClaimFacts;
use crate::claims::object::ObservedEvent;

pub(crate) struct Facts {
    pub(crate) cluster: Cluster,
    /// Pods by namespace and name.
    pub(crate) pods: Vec<ObservedPod>,
    /// Nodes by name.
    pub(crate) nodes: BTreeMap<String, ObservedNode>,
    /// Handlers of runtime classes by name; `None` without permission to list them.
    pub(crate) classes: Option<BTreeMap<String, String>>,
    /// Claims of GPUs, and what they need.
    pub(crate) claims: ClaimFacts,
    /// The extender's events about nodes that do not exist.
    pub(crate) unknown_nodes: Vec<ObservedEvent>,
}

impl Facts {
    pub(crate) fn new(
        dialects: Dialects,
        nodes: Vec<ObservedNode>,
        mut pods: Vec<ObservedPod>,
        classes: Option<Vec<ObservedClass>>,
        claims: ClaimFacts,
    ) -> Self {
        let mut cluster = Cluster::new(dialects);
        cluster.replace(nodes.iter().map(|node| &node.node), pods.iter().map(|pod| &pod.pod));
        pods.sort_by_cached_key(ObservedPod::title);
        let nodes = nodes.into_iter().map(|node| (node.node.metadata.name.clone(), node)).collect();
        let classes = classes.map(|classes| {
            classes.into_iter().map(|class| (class.metadata.name, class.handler)).collect()
        });
        Self { cluster, pods, nodes, classes, claims, unknown_nodes: Vec::new() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ObservedPod {
    /// The fields that the core reads.
    pub(crate) pod: Pod,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodSpec {
    #[serde(deserialize_with = "nullable")]
    pub(crate) scheduler_name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) runtime_class_name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_claims: Vec<ClaimReference>,
}

/// A claim of a pod, by name or made from a template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimReference {
    /// Name in the pod.
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    pub(crate) resource_claim_name: Option<String>,
    pub(crate) resource_claim_template_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) image: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) command: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) args: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    env: Vec<Variable>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PodStatus {
    #[serde(deserialize_with = "nullable")]
    pub(crate) reason: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) message: String,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "nullable")]
    init_container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "nullable")]
    container_statuses: Vec<ContainerStatus>,
    /// Claims that were made from templates.
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_claim_statuses: Vec<ClaimReference>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type", deserialize_with = "nullable")]
    kind: String,
    #[serde(deserialize_with = "nullable")]
    status: String,
    #[serde(deserialize_with = "nullable")]
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    #[serde(deserialize_with = "nullable")]
    name: String,
    #[serde(deserialize_with = "nullable")]
    state: State,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    #[serde(deserialize_with = "nullable")]
    reason: String,
    #[serde(deserialize_with = "nullable")]
    message: String,
}

/// Reasons of waiting containers that are not a problem.
const HARMLESS_REASONS: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

impl ObservedPod {
    pub(crate) fn title(&self) -> String {
        format!("{}/{}", self.pod.metadata.namespace, self.pod.metadata.name)
    }

    /// Returns the scheduler's message; empty if no scheduler has tried the pod.
    pub(crate) fn scheduler_message(&self) -> &str {
        let scheduled =
            self.status.conditions.iter().find(|condition| condition.kind == "PodScheduled");
        scheduled
            .filter(|condition| condition.status != "True")
            .map_or("", |condition| &condition.message)
    }

    /// Returns whether its sandbox is ready, which is after its claims were prepared.
    pub(crate) fn has_sandbox(&self) -> bool {
        let is_ready = |condition: &Condition| {
            condition.kind == "PodReadyToStartContainers" && condition.status == "True"
        };
        self.status.conditions.iter().any(is_ready)
    }

    /// Returns why its containers are not started: `container: reason: message`.
    pub(crate) fn obstacles(&self) -> Vec<String> {
        let all = self.status.init_container_statuses.iter().chain(&self.status.container_statuses);
        all.filter_map(|container| {
            let waiting = container.state.waiting.as_ref()?;
            let (reason, message) = (waiting.reason.as_str(), waiting.message.as_str());
            let gap = if message.is_empty() { "" } else { ": " };
            (!HARMLESS_REASONS.contains(&reason))
                .then(|| format!("{}: {reason}{gap}{message}", container.name))
        })
        .collect()
    }

    /// Returns the containers that disable their limits.
    pub(crate) fn switched_off(&self) -> Vec<&str> {
        let off = |container: &&Container| {
            container.env.iter().any(|variable| {
                variable.name == "CGPU_DISABLE" && matches!(variable.value.as_str(), "1" | "true")
            })
        };
        self.spec.containers.iter().filter(off).map(|container| container.name.as_str()).collect()
    }

    /// Returns whether its annotation says that no container has been bound.
    pub(crate) fn is_unbound(&self) -> bool {
        self.pod
            .metadata
            .annotations
            .get(annotation::ASSIGNED)
            .is_some_and(|value| value == "false")
    }

    /// Returns whether it is a pod of this component of cgpu.
    pub(crate) fn is_component(&self, name: &str) -> bool {
        self.pod.metadata.labels.get("app.kubernetes.io/name").is_some_and(|label| label == name)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ObservedNode {
    /// The fields that the core reads.
    pub(crate) node: Node,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
    #[serde(deserialize_with = "nullable")]
    runtime_handlers: Vec<Handler>,
    #[serde(deserialize_with = "nullable")]
    node_info: NodeInfo,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeInfo {
    #[serde(deserialize_with = "nullable")]
    kubelet_version: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Handler {
    #[serde(deserialize_with = "nullable")]
    name: String,
}

impl ObservedNode {
    /// Returns why it is not ready, or `None` if it is.
    pub(crate) fn unready(&self) -> Option<String> {
        let ready = self.status.conditions.iter().find(|condition| condition.kind == "Ready")?;
        (ready.status != "True").then(|| format!("Ready is {}: {}", ready.status, ready.message))
    }

    /// Returns whether its engine has this runtime; `None` for kubelets before 1.30, which do not
    /// report it.
    pub(crate) fn has_handler(&self, name: &str) -> Option<bool> {
        let handlers = &self.status.runtime_handlers;
        (!handlers.is_empty()).then(|| handlers.iter().any(|handler| handler.name == name))
    }

    /// Returns the version of its kubelet, such as `v1.36.2`; empty if it is not known.
    pub(crate) fn kubelet_version(&self) -> &str {
        &self.status.node_info.kubelet_version
    }

    pub(crate) fn handlers(&self) -> Vec<&str> {
        let names = self.status.runtime_handlers.iter().map(|handler| handler.name.as_str());
        names.filter(|name| !name.is_empty()).collect()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObservedClass {
    #[serde(deserialize_with = "nullable")]
    metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    handler: String,
}

/// Parts of an object that are deserialized separately.
#[derive(Deserialize)]
struct Parts<S, T> {
    #[serde(default = "Option::default")]
    spec: Option<S>,
    #[serde(default = "Option::default")]
    status: Option<T>,
}

fn read<'de, D: Deserializer<'de>, T: DeserializeOwned>(value: Value) -> Result<T, D::Error> {
    serde_json::from_value(value).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for ObservedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let pod = read::<D, Pod>(value.clone())?;
        let parts: Parts<PodSpec, PodStatus> = read::<D, _>(value)?;
        Ok(Self {
            pod,
            spec: parts.spec.unwrap_or_default(),
            status: parts.status.unwrap_or_default(),
        })
    }
}

impl<'de> Deserialize<'de> for ObservedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let node = read::<D, Node>(value.clone())?;
        let parts: Parts<Value, NodeStatus> = read::<D, _>(value)?;
        Ok(Self { node, status: parts.status.unwrap_or_default() })
    }
}

impl Record for ObservedPod {
    const PLURAL: &'static str = Pod::PLURAL;
    const NAMESPACED: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.pod.metadata
    }
}

impl Record for ObservedNode {
    const PLURAL: &'static str = Node::PLURAL;
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.node.metadata
    }
}

impl Record for ObservedClass {
    const GROUP: &'static str = "/apis/node.k8s.io/v1";
    const PLURAL: &'static str = "runtimeclasses";
    const NAMESPACED: bool = false;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
