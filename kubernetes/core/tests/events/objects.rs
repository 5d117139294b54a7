//! Pods and nodes for the API server.

use cgpu_kubernetes_core::object::{Node, Pod};
use serde_json::json;

/// Annotation with the units by container and GPU.
pub(crate) const ALLOCATION: &str = "scheduler.framework.gpushare.allocation";

pub(crate) fn node(name: &str, mib: &[u64], unhealthy: &[usize]) -> Node {
    let gpus: Vec<_> = mib
        .iter()
        .enumerate()
        .map(|(index, mib)| {
            let uuid = format!("GPU-{name}-{index}");
            json!({"uuid": uuid, "mib": mib, "healthy": !unhealthy.contains(&index)})
        })
        .collect();
    let gpus = json!({"unit": "GiB", "gpus": gpus}).to_string();
    serde_json::from_value(
        json!({"metadata": {"name": name, "annotations": {"cgpu.dev/gpus": gpus}}}),
    )
    .unwrap()
}

pub(crate) fn container(name: &str, units: &serde_json::Value) -> serde_json::Value {
    json!({"name": name, "resources": {"limits": {"aliyun.com/gpu-mem": units}}})
}

pub(crate) fn pod(number: u64, containers: &serde_json::Value) -> Pod {
    let name = format!("pod-{number}");
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{number:06}")},
        "spec": {"containers": containers},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}
