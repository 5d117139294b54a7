//! Events about pods and nodes, as `kubectl describe` shows them.

use std::hash::{DefaultHasher, Hash, Hasher};

use http::Method;
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::{Value, json};

use crate::api::Api;
use crate::failure::Failure;
use crate::record::escaped;

/// Longest message of an event, in characters.
const MAX_MESSAGE_CHARS: usize = 1024;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Information.
    Normal,
    /// A problem that needs action.
    Warning,
}

/// Kind of the object that an event regards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// A pod.
    Pod,
    /// A node. It has no namespace; its events are in the namespace `default`.
    Node,
}

/// An event about a pod or a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Kind of the object.
    pub regarding: Regarding,
    /// Namespace of the pod; empty for a node.
    pub namespace: String,
    /// Name of the pod or node.
    pub name: String,
    /// Uid of the pod; for a node its name, as kubelets write it.
    pub uid: String,
    /// Severity.
    pub severity: Severity,
    /// Reason in CamelCase, for programs.
    pub reason: &'static str,
    /// Message of one sentence, for people.
    pub message: String,
    /// Name of the program that reports it.
    pub component: &'static str,
}

impl Event {
    /// Returns a warning about a node.
    #[must_use]
    pub fn of_node(
        name: &str,
        reason: &'static str,
        message: String,
        component: &'static str,
    ) -> Self {
        Self {
            regarding: Regarding::Node,
            namespace: String::new(),
            name: name.to_owned(),
            uid: name.to_owned(),
            severity: Severity::Warning,
            reason,
            message,
            component,
        }
    }

    /// Returns the namespace of the event itself.
    fn namespace_of_event(&self) -> &str {
        match self.regarding {
            Regarding::Pod => &self.namespace,
            Regarding::Node => "default",
        }
    }

    /// Returns the name of the event. Equal events have the same name, from any replica.
    fn event_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        // A name may have 253 characters; names of pods are ASCII.
        let pod: String = self.name.chars().take(230).collect();
        format!("{pod}.{:016x}", hasher.finish())
    }

    fn body(&self, now: &str) -> Value {
        let message: String = self.message.chars().take(MAX_MESSAGE_CHARS).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.event_name(), "namespace": self.namespace_of_event()},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": match self.regarding { Regarding::Pod => "Pod", Regarding::Node => "Node" },
                "namespace": self.namespace, "name": self.name, "uid": self.uid,
            },
            "type": match self.severity {
                Severity::Normal => "Normal",
                Severity::Warning => "Warning",
            },
            "reason": self.reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "reportingInstance": "",
        })
    }
}

/// Returns the present time to the second, as the API server writes times.
///
/// # Errors
/// The clock shows no time that can be written.
pub fn timestamp() -> Result<String, Failure> {
    strtime::format("%Y-%m-%dT%H:%M:%SZ", Timestamp::now())
        .map_err(|error| Failure::Garbled(error.to_string()))
}

impl Api {
    /// Publishes an event. If it exists already, its count is incremented.
    ///
    /// # Errors
    /// A request fails, or the namespace is being deleted.
    pub async fn publish(&self, event: &Event) -> Result<(), Failure> {
        let now = timestamp()?;
        let all = format!("/api/v1/namespaces/{}/events", escaped(event.namespace_of_event()));
        match self.send::<Value>(Method::POST, &all, Some(&event.body(&now))).await {
            Err(Failure::Exists(_)) => {}
            other => return other.map(|_| ()),
        }
        let path = format!("{all}/{}", escaped(&event.event_name()));
        let known: Value = self.send(Method::GET, &path, None).await?;
        let count = known["count"].as_u64().unwrap_or(1).saturating_add(1);
        let patch = json!({"count": count, "lastTimestamp": now});
        self.send::<Value>(Method::PATCH, &path, Some(&patch)).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_name_of_equal_events_is_equal_and_fits() {
        let event = |message: &str| Event {
            regarding: Regarding::Pod,
            namespace: "n".into(),
            name: "p".repeat(253),
            uid: "u".into(),
            severity: Severity::Warning,
            reason: "GpuRequestRefused",
            message: message.to_owned(),
            component: "c",
        };
        assert_eq!(event("a").event_name(), event("a").event_name());
        assert_ne!(event("a").event_name(), event("b").event_name());
        assert!(event("a").event_name().len() <= 253);
        let body = event(&"ä".repeat(2000)).body("2026-11-23T00:00:00Z");
        assert_eq!(body["message"].as_str().unwrap().chars().count(), MAX_MESSAGE_CHARS);
        assert_eq!(body["involvedObject"]["uid"], "u");
        let node = Event::of_node("n1", "GpuNodeLabelIgnored", "m".into(), "c")
            .body("2026-11-23T00:00:00Z");
        assert_eq!(
            (&node["metadata"]["namespace"], &node["involvedObject"]["kind"]),
            (&json!("default"), &json!("Node"))
        );
    }
}
