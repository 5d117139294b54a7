//! What counts when a pod may be evicted for another one.

use std::collections::BTreeSet;

use crate::object::{Container, Pod, Written};
use crate::quantity::Quantity;
use crate::share::{Role, Share, most};

/// What the eviction of a pod depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// When the pod was created; later times are larger.
    pub created: String,
    /// Whether the pod is being deleted already.
    pub terminating: bool,
    /// Whether the pod may be in another pod's way by more than its amounts.
    pub fixed: bool,
    /// Lines `name=value`: one text is smaller than a map.
    labels: String,
    /// Resources that the pod asks for, in thousandths, by name.
    amounts: Vec<(String, u64)>,
}

impl Eviction {
    /// Reads a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let labels = &pod.metadata.labels;
        let of_node = |container: &Container| container.ports.iter().any(|port| port.host_port > 0);
        let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        Self {
            created: pod.metadata.creation_timestamp.clone(),
            terminating: pod.metadata.deletion_timestamp,
            fixed: pod.spec.affinity || containers.into_iter().any(of_node),
            labels: labels.iter().map(|(name, value)| format!("{name}={value}\n")).collect(),
            amounts: amounts(pod),
        }
    }

    /// Returns whether the pod asks for at least as much of every resource as the other.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.amounts.iter().all(|(name, amount)| {
            let own = self.amounts.iter().find(|(own, _)| own == name);
            own.map_or(0, |(_, amount)| *amount) >= *amount
        })
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

/// Returns what a pod asks for, as kube-scheduler counts it: requests of containers and sidecars,
/// or of an init container with the sidecars before it; for resources of the pod as a whole those;
/// and what its runtime class adds.
fn amounts(pod: &Pod) -> Vec<(String, u64)> {
    let spec = &pod.spec;
    let init = spec.init_containers.iter().map(|container| {
        let role = if container.restart_policy == "Always" { Role::Sidecar } else { Role::Init };
        (role, &container.resources.requests)
    });
    let then = spec.containers.iter().map(|it| (Role::Container, &it.resources.requests));
    let parts: Vec<_> = init.chain(then).collect();
    let whole = &spec.resources.requests;
    let maps = parts.iter().map(|(_, map)| *map).chain([whole, &spec.overhead]);
    let names: BTreeSet<&String> = maps.flat_map(|map| map.keys()).collect();
    let millis = |written: Option<&Written>| {
        written.and_then(|it| Quantity::parse(&it.0).ok()).map_or(0, Quantity::millis)
    };
    let amount = |name: &String| {
        let of_parts = parts
            .iter()
            .map(|(role, map)| (*role, Share { units: millis(map.get(name)), ..Share::NONE }));
        let own =
            if whole.contains_key(name) { millis(whole.get(name)) } else { most(of_parts).units };
        own.saturating_add(millis(spec.overhead.get(name)))
    };
    names.into_iter().map(|name| (name.clone(), amount(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn eviction(spec: serde_json::Value) -> Eviction {
        let metadata = json!({"labels": {"app": "a", "app.kubernetes.io/name": "b=c", "x": ""}});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        Eviction::of(&pod)
    }

    fn container(cpu: &str, memory: &str) -> serde_json::Value {
        json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    #[test]
    fn amounts_are_those_that_kube_scheduler_counts() {
        let amounts = |spec| eviction(spec).amounts;
        let sum = json!({"containers": [container("500m", "1Gi"), container("1", "1Gi")]});
        let gib = (1 << 30) * 1000;
        assert_eq!(amounts(sum), [("cpu".into(), 1500), ("memory".into(), 2 * gib)]);
        let mut init = container("2", "1Mi");
        let spec = json!({"containers": [container("1", "1Gi")], "initContainers": [init.clone()]});
        assert_eq!(amounts(spec), [("cpu".into(), 2000), ("memory".into(), gib)]);
        init["restartPolicy"] = json!("Always");
        let spec = json!({"containers": [container("1", "0")], "initContainers": [init],
            "overhead": {"cpu": "250m"}});
        assert_eq!(amounts(spec)[0].1, 3250);
        let spec = json!({"containers": [container("1", "1Gi")],
            "resources": {"requests": {"cpu": "4"}}});
        assert_eq!(amounts(spec), [("cpu".into(), 4000), ("memory".into(), gib)]);
    }

    #[test]
    fn pod_covers_another_with_at_most_its_amounts() {
        let of =
            |cpu: &str, memory: &str| eviction(json!({"containers": [container(cpu, memory)]}));
        assert!(of("1", "1Gi").covers(&of("1", "1Gi")));
        assert!(of("2", "1Gi").covers(&of("1", "1Gi")));
        assert!(!of("2", "1Gi").covers(&of("1", "2Gi")));
        assert!(!eviction(json!({})).covers(&of("1", "0")));
        assert!(of("1", "1").covers(&eviction(json!({}))));
    }

    #[test]
    fn host_port_and_affinity_fix_a_pod() {
        let port = |port: u32| {
            eviction(json!({"containers": [{"ports": [{"containerPort": 80, "hostPort": port}]}]}))
        };
        assert!(port(80).fixed && !port(0).fixed);
        assert!(eviction(json!({"affinity": {}})).fixed);
    }

    #[test]
    fn labels_are_kept() {
        let eviction = eviction(json!({}));
        assert_eq!(eviction.label("app"), Some("a"));
        assert_eq!(eviction.label("app.kubernetes.io/name"), Some("b=c"));
        assert_eq!((eviction.label("x"), eviction.label("ap")), (Some(""), None));
    }
}
