//! What is told about a pod or a node, where `kubectl describe` shows it.

use std::hash::{DefaultHasher, Hash, Hasher};

use cgpu_kubernetes_core::object::Metadata;
use http::Method;
use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::{Value, json};

use crate::api::Api;
use crate::failure::Failure;
use crate::record::escaped;

/// Characters that an event's message may have.
const LONGEST: usize = 1024;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gravity {
    /// Good to know.
    Normal,
    /// Somebody should do something.
    Warning,
}

/// What something is told about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// A pod.
    Pod,
    /// A node. It is in no namespace; what is told about it is in the one that is called `default`.
    Node,
}

/// Something about a pod or a node, told as an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// Which of the two.
    pub about: About,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's or the node's name.
    pub name: String,
    /// The pod itself; of a node its name, as kubelets say it.
    pub uid: String,
    /// How bad it is.
    pub gravity: Gravity,
    /// One word in capitals and small letters, for programs.
    pub reason: &'static str,
    /// One sentence, for people.
    pub message: String,
    /// Who says so: the program's name.
    pub component: &'static str,
}

impl Notice {
    /// A warning about the pod of this metadata.
    #[must_use]
    pub fn warning(pod: &Metadata, reason: &'static str, message: String, component: &'static str) -> Self {
        Self {
            about: About::Pod,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            gravity: Gravity::Warning,
            reason,
            message,
            component,
        }
    }

    /// A warning about the node of this name.
    #[must_use]
    pub fn of_node(name: &str, reason: &'static str, message: String, component: &'static str) -> Self {
        Self {
            about: About::Node,
            namespace: String::new(),
            name: name.to_owned(),
            uid: name.to_owned(),
            gravity: Gravity::Warning,
            reason,
            message,
            component,
        }
    }

    /// Where the event is.
    fn place(&self) -> &str {
        match self.about {
            About::Pod => &self.namespace,
            About::Node => "default",
        }
    }

    /// The same said again has the same name, whoever says it.
    fn event_name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        // Names have room for 253 characters, and pods' names are of one byte each.
        let pod: String = self.name.chars().take(230).collect();
        format!("{pod}.{:016x}", hasher.finish())
    }

    fn event(&self, now: &str) -> Value {
        let message: String = self.message.chars().take(LONGEST).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.event_name(), "namespace": self.place()},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": match self.about { About::Pod => "Pod", About::Node => "Node" },
                "namespace": self.namespace, "name": self.name, "uid": self.uid,
            },
            "type": match self.gravity { Gravity::Normal => "Normal", Gravity::Warning => "Warning" },
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

impl Api {
    /// Tells it. What was told before counts one more.
    ///
    /// # Errors
    /// There is no answer, or the namespace is about to go.
    pub async fn tell(&self, notice: &Notice) -> Result<(), Failure> {
        let now = strtime::format("%Y-%m-%dT%H:%M:%SZ", Timestamp::now())
            .map_err(|error| Failure::Garbled(error.to_string()))?;
        let all = format!("/api/v1/namespaces/{}/events", escaped(notice.place()));
        match self.ask::<Value>(Method::POST, &all, Some(&notice.event(&now))).await {
            Err(Failure::Exists(_)) => {}
            other => return other.map(|_| ()),
        }
        let path = format!("{all}/{}", escaped(&notice.event_name()));
        let known: Value = self.ask(Method::GET, &path, None).await?;
        let count = known["count"].as_u64().unwrap_or(1).saturating_add(1);
        let patch = json!({"count": count, "lastTimestamp": now});
        self.ask::<Value>(Method::PATCH, &path, Some(&patch)).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_notice_has_the_same_name_and_fits() {
        let pod =
            Metadata { name: "p".repeat(253), namespace: "n".into(), uid: "u".into(), ..Metadata::default() };
        let notice = |message: &str| Notice::warning(&pod, "GpuRequestRefused", message.to_owned(), "c");
        assert_eq!(notice("a").event_name(), notice("a").event_name());
        assert_ne!(notice("a").event_name(), notice("b").event_name());
        assert!(notice("a").event_name().len() <= 253);
        let event = notice(&"ä".repeat(2000)).event("2026-11-23T00:00:00Z");
        assert_eq!(event["message"].as_str().unwrap().chars().count(), LONGEST);
        assert_eq!(event["involvedObject"]["uid"], "u");
        let node =
            Notice::of_node("n1", "GpuNodeLabelIgnored", "m".into(), "c").event("2026-11-23T00:00:00Z");
        assert_eq!(
            (&node["metadata"]["namespace"], &node["involvedObject"]["kind"]),
            (&json!("default"), &json!("Node"))
        );
    }
}
