//! Pods and nodes as the API server sends them, with the fields that cgpu reads.
//!
//! The cluster's version may differ from ours: unknown fields are ignored, `null` counts as absent,
//! and quantities may be numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Not;

use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::names::variable;

/// Most containers, and most init containers, of a pod.
const MAX_CONTAINERS: usize = 10_000;

/// Strings by name, such as labels.
pub type Texts = BTreeMap<String, String>;

/// Metadata of any object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Name, unique in its namespace at any time.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Namespace; empty for nodes.
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    /// Identifier that is never used again.
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
    /// Version, different after every change of the object.
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
    /// Labels, unchecked.
    #[serde(deserialize_with = "nullable")]
    pub labels: Texts,
    /// Annotations, unchecked.
    #[serde(deserialize_with = "nullable")]
    pub annotations: Texts,
    /// When it was created, as RFC 3339 in UTC: later times are larger texts.
    #[serde(deserialize_with = "nullable")]
    pub creation_timestamp: String,
    /// Whether it is being deleted.
    #[serde(deserialize_with = "is_present", skip_serializing_if = "Not::not")]
    pub deletion_timestamp: bool,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, identifier, labels and annotations.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// Containers, and the node it is bound to.
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// Phase.
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

/// Specification of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Node that the pod is bound to; empty if it is not bound.
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    /// Containers in their order; allocations refer to them by position.
    #[serde(deserialize_with = "containers")]
    pub containers: Vec<Container>,
    /// Init containers, sidecars included.
    #[serde(deserialize_with = "containers")]
    pub init_containers: Vec<Container>,
    /// Priority, which the API server takes from the pod's class.
    #[serde(deserialize_with = "nullable")]
    pub priority: i32,
    /// Whether it has rules about nodes or other pods.
    #[serde(deserialize_with = "is_present", skip_serializing_if = "Not::not")]
    pub affinity: bool,
    /// Whether it has rules about how pods are spread.
    #[serde(deserialize_with = "is_present", skip_serializing_if = "Not::not")]
    pub topology_spread_constraints: bool,
    /// Whether it names a group of pods that are scheduled together.
    #[serde(deserialize_with = "is_present", skip_serializing_if = "Not::not")]
    pub scheduling_group: bool,
    /// The same in Kubernetes 1.35.
    #[serde(deserialize_with = "is_present", skip_serializing_if = "Not::not")]
    pub workload_ref: bool,
    /// What its runtime class adds to its requests.
    #[serde(deserialize_with = "nullable")]
    pub overhead: BTreeMap<String, Written>,
    /// Resources of the pod as a whole.
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in its pod.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Limits and requests.
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
    /// `Always` makes an init container a sidecar.
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: String,
    /// Ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
    /// The weight in its variables, as it is there; `None`: 1, or not known. The other variables,
    /// which may be many, are not kept.
    #[serde(rename = "env", deserialize_with = "weight", skip_serializing)]
    pub weight: Option<String>,
}

/// A port of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    /// Port of the node that it occupies; 0 for none.
    #[serde(deserialize_with = "nullable")]
    pub host_port: u32,
}

/// Resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Limits.
    #[serde(deserialize_with = "nullable")]
    pub limits: BTreeMap<String, Written>,
    /// Requests.
    #[serde(deserialize_with = "nullable")]
    pub requests: BTreeMap<String, Written>,
}

/// Status of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(deserialize_with = "nullable")]
    pub phase: String,
    /// Node on which it is to be bound; empty if there is none.
    #[serde(deserialize_with = "nullable")]
    pub nominated_node_name: String,
    /// Whether it has a node, and others.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels and annotations.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// Resources and addresses.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// Status of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Resources of the node, those of devices that fail included.
    #[serde(deserialize_with = "nullable")]
    pub capacity: BTreeMap<String, Written>,
    /// Resources that pods can use.
    #[serde(deserialize_with = "nullable")]
    pub allocatable: BTreeMap<String, Written>,
    /// Addresses of the node.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<Address>,
    /// Whether it is ready, and others.
    #[serde(deserialize_with = "nullable")]
    pub conditions: Vec<Condition>,
}

/// A condition of a pod or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// `PodScheduled`, `Ready` or another kind.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    #[serde(deserialize_with = "nullable")]
    pub status: String,
    /// Why it is so, for people.
    #[serde(deserialize_with = "nullable")]
    pub message: String,
}

/// An address of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Address {
    /// `InternalIP` or another kind.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// The address.
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

/// A ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Name and namespace.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// Texts by key.
    #[serde(deserialize_with = "nullable")]
    pub data: Texts,
}

/// A quantity as it was written, as text or as a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Written(pub String);

impl From<&str> for Written {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity: text or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
                Ok(Written(text.to_owned()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Written, E> {
                Ok(Written(number.to_string()))
            }

            fn visit_unit<E: Error>(self) -> Result<Written, E> {
                Ok(Written::default())
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Deserializes `null` as the default value: Go writes it for what is empty.
///
/// # Errors
/// The value is neither `null` nor of the expected type.
pub fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Deserializes whether a field has a value, whatever it is.
fn is_present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

/// Deserializes the containers of a pod. A body of a few MiB could have a million empty ones, which
/// need many times its size; the API server has room for some thousands.
fn containers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Container>, D::Error> {
    struct Bounded;
    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<Container>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_CONTAINERS} containers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut found = Vec::new();
            while let Some(container) = all.next_element()? {
                if found.len() == MAX_CONTAINERS {
                    return Err(Error::invalid_length(MAX_CONTAINERS + 1, &self));
                }
                found.push(container);
            }
            Ok(found)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
    }
    deserializer.deserialize_any(Bounded)
}

/// A variable of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Variable {
    /// Name.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Value; empty if it comes from elsewhere.
    #[serde(deserialize_with = "nullable")]
    pub value: String,
}

/// Deserializes the weight in a container's variables, of which the last counts. What refers to
/// another variable is not known.
fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Variables;
    impl<'de> Visitor<'de> for Variables {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("variables")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(variable) = all.next_element::<Variable>()? {
                if variable.name == variable::WEIGHT {
                    let value = Some(variable.value);
                    found = value.filter(|value| !value.is_empty() && !value.contains("$("));
                }
            }
            Ok(found)
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }
    deserializer.deserialize_any(Variables)
}

/// Returns whether a node can have this name: a DNS subdomain.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    (1..=253).contains(&name.len()) && name.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_with_nulls_and_unknown_fields_parses() {
        let pod: Pod = serde_json::from_str(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"d","uid":"u",
                "labels":null,"annotations":{"a":"b"},"creationTimestamp":null,
                "managedFields":[{"x":1}]},
                "spec":{"nodeName":null,"containers":[{"name":"c","image":"i",
                "env":[{"name":"A","value":"7"},{"name":"B","valueFrom":{}},
                {"name":"ALIYUN_COM_GPU_SCHD_WEIGHT","value":"3"}],
                "resources":{"limits":{"aliyun.com/gpu-mem":8,"cpu":"500m"},"claims":[]}},
                {"name":"d","resources":{}}],"initContainers":null,"novel":{"field":[]}},
                "status":{"phase":"Pending","qosClass":"BestEffort"}}"#,
        )
        .unwrap();
        assert_eq!(pod.spec.containers[0].resources.limits["aliyun.com/gpu-mem"], "8".into());
        assert_eq!(pod.spec.node_name, "");
        assert_eq!(pod.spec.containers[0].weight.as_deref(), Some("3"));
        assert_eq!(pod.spec.containers[1].weight, None);
        let again: Pod = serde_json::from_str(&serde_json::to_string(&pod).unwrap()).unwrap();
        assert_eq!(again.spec.containers[0].resources, pod.spec.containers[0].resources);
        let deleted: Pod = serde_json::from_str(
            r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"affinity":{}}}"#,
        )
        .unwrap();
        assert!(deleted.metadata.deletion_timestamp && deleted.spec.affinity);
        assert!(!pod.metadata.deletion_timestamp && !pod.spec.affinity);
        let node: Node = serde_json::from_str(
            r#"{"metadata":{"name":"n"},"status":{"allocatable":{"aliyun.com/gpu-mem":"28"},
                "addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}"#,
        )
        .unwrap();
        assert_eq!(node.status.addresses[0].kind, "InternalIP");
        assert_eq!(serde_json::from_str::<Pod>("{}").unwrap(), Pod::default());
        assert!(serde_json::from_str::<Pod>(r#"{"spec":"x"}"#).is_err());
        let of = |count: usize| {
            let containers = vec!["{}"; count].join(",");
            serde_json::from_str::<Pod>(&format!(r#"{{"spec":{{"containers":[{containers}]}}}}"#))
        };
        assert_eq!(of(MAX_CONTAINERS).unwrap().spec.containers.len(), MAX_CONTAINERS);
        let error = of(MAX_CONTAINERS + 1).unwrap_err().to_string();
        assert!(error.contains("expected at most 10000 containers"), "{error}");
    }
}
