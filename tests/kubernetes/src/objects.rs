//! Pods and nodes in the form that they have in a cluster.

use serde_json::{Value, json};

/// Returns a node as our device plugin publishes it, with GPUs of these MiB in units of a GiB.
#[must_use]
pub fn node(name: &str, mib: &[u64]) -> Value {
    let gpus: Vec<Value> = mib
        .iter()
        .enumerate()
        .map(|(index, mib)| json!({"uuid": format!("GPU-{name}-{index}"), "mib": mib}))
        .collect();
    let units: u64 = mib.iter().map(|mib| mib / 1024).sum();
    let amounts = json!({
        "cpu": "8", "memory": "32Gi", "pods": "110",
        "aliyun.com/gpu-mem": units.to_string(), "aliyun.com/gpu-count": mib.len().to_string(),
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "gpushare": "true"},
            "annotations": {"cgpu.dev/gpus": json!({"unit": "GiB", "gpus": gpus}).to_string()},
        },
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns a pending pod with one container that requests this many units.
#[must_use]
pub fn pod(namespace: &str, name: &str, units: u64) -> Value {
    pod_with(namespace, name, &json!({"aliyun.com/gpu-mem": units.to_string()}))
}

/// Returns a pending pod with one container with these limits.
#[must_use]
pub fn pod_with(namespace: &str, name: &str, limits: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {
            "containers": [{
                "name": "main", "image": "example/inference:1",
                "resources": {"limits": limits, "requests": limits},
            }],
            "restartPolicy": "Always", "schedulerName": "default-scheduler",
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    })
}
