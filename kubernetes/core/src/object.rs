//! Pods and nodes as the API server has them: the fields that count, whatever else is there.
//!
//! A cluster may be newer or older than any library: unknown fields are passed over, `null` is nothing, and quantities may be numbers.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// Names to texts.
pub type Texts = BTreeMap<String, String>;

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Unique in its namespace, at any time.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Empty for nodes.
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    /// Unique for ever.
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
    /// Changes with every change of the object.
    #[serde(deserialize_with = "nullable")]
    pub resource_version: String,
    /// As somebody wrote them.
    #[serde(deserialize_with = "nullable")]
    pub labels: Texts,
    /// As somebody wrote them.
    #[serde(deserialize_with = "nullable")]
    pub annotations: Texts,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Who it is.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// What was asked for.
    #[serde(deserialize_with = "nullable")]
    pub spec: PodSpec,
    /// What became of it.
    #[serde(deserialize_with = "nullable")]
    pub status: PodStatus,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it is bound to; empty: nowhere yet.
    #[serde(deserialize_with = "nullable")]
    pub node_name: String,
    /// In their order, which is what allocations count by.
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    /// Sidecars among them.
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Unique in its pod.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// What it asks for.
    #[serde(deserialize_with = "nullable")]
    pub resources: Resources,
    /// `Always` makes a sidecar of an init container.
    #[serde(deserialize_with = "nullable")]
    pub restart_policy: String,
}

/// What a container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// At most.
    #[serde(deserialize_with = "nullable")]
    pub limits: BTreeMap<String, Written>,
    /// At least.
    #[serde(deserialize_with = "nullable")]
    pub requests: BTreeMap<String, Written>,
}

/// What became of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(deserialize_with = "nullable")]
    pub phase: String,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Who it is.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// What it has.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// What a node has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// What pods may have of it.
    #[serde(deserialize_with = "nullable")]
    pub allocatable: BTreeMap<String, Written>,
    /// Where it can be reached.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<Address>,
}

/// An address of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Address {
    /// `InternalIP` and others.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// The address.
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

/// A quantity as it was written, by a person or a machine.
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

/// `null` is as good as nothing: Go writes it for what is empty.
///
/// # Errors
/// It is neither nothing nor what is expected.
pub fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_with_nulls_and_unknown_fields_parses() {
        let pod: Pod = serde_json::from_str(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"d","uid":"u","labels":null,"annotations":{"a":"b"},
                "creationTimestamp":null,"managedFields":[{"x":1}]},
                "spec":{"nodeName":null,"containers":[{"name":"c","image":"i","resources":{"limits":{"aliyun.com/gpu-mem":8,"cpu":"500m"},"claims":[]}},
                {"name":"d","resources":{}}],"initContainers":null,"novel":{"field":[]}},"status":{"phase":"Pending","qosClass":"BestEffort"}}"#,
        )
        .unwrap();
        assert_eq!(pod.spec.containers[0].resources.limits["aliyun.com/gpu-mem"], "8".into());
        assert_eq!(pod.spec.node_name, "");
        let again: Pod = serde_json::from_str(&serde_json::to_string(&pod).unwrap()).unwrap();
        assert_eq!(again, pod);
        let node: Node = serde_json::from_str(r#"{"metadata":{"name":"n"},"status":{"allocatable":{"aliyun.com/gpu-mem":"28"},"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}"#).unwrap();
        assert_eq!(node.status.addresses[0].kind, "InternalIP");
        assert_eq!(serde_json::from_str::<Pod>("{}").unwrap(), Pod::default());
        assert!(serde_json::from_str::<Pod>(r#"{"spec":"x"}"#).is_err());
    }
}
