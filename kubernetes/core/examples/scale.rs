//! Measures filter and bind with many nodes and pods, and the memory that the cluster state takes.
//! Prints one JSON object. Bodies are parsed and serialized, but nothing is sent.
//!
//! `cargo run --release --package cgpu-kubernetes-core --example scale`

use std::time::Instant;

use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{self, Binding, Candidates, Filtered};
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};
use fastrand::Rng;
use serde_json::json;

const NODES: usize = 5000;
const GPUS: usize = 8;
const PODS: usize = 50_000;
const ROUNDS: usize = 2000;

fn main() {
    let before = resident_mib();
    let mut random = Rng::with_seed(3);
    let mut cluster = Cluster::new(Dialects::default());
    let names: Vec<String> =
        (0..NODES).map(|number| format!("node-{number:04}.example.internal")).collect();
    for name in &names {
        cluster.apply_node(&node(name));
    }
    let started = Instant::now();
    for number in 0..PODS {
        let (node, gpu) = (number % NODES, number / NODES % GPUS);
        cluster.apply_pod(&pod(number, random.u64(1..=6), Some((&names[node], gpu))));
    }
    let load = started.elapsed();
    let waiting: Vec<Pod> =
        (0..ROUNDS).map(|number| pod(PODS + number, random.u64(1..=14), None)).collect();
    let (mut filters, mut binds, mut both, mut refused) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for pod in &waiting {
        cluster.apply_pod(pod);
        let body = json!({"Pod": pod, "Nodes": null, "NodeNames": names}).to_string();
        let started = Instant::now();
        let candidates: Candidates = extender::decode(body.as_bytes()).expect("a request");
        let answer = extender::filter(&cluster, &candidates);
        let reply = serde_json::to_string(&answer).expect("an answer");
        let filter = started.elapsed().as_secs_f64() * 1e3;
        filters.push(filter);
        let answer: Filtered = serde_json::from_str(&reply).expect("an answer");
        let Some(node) = random.choice(answer.node_names.expect("names")) else {
            refused += 1;
            continue;
        };
        let body = json!({
            "PodName": pod.metadata.name, "PodNamespace": pod.metadata.namespace,
            "PodUID": pod.metadata.uid, "Node": node,
        });
        let body = body.to_string();
        let started = Instant::now();
        let binding: Binding = extender::decode(body.as_bytes()).expect("a request");
        let change = extender::bind(&cluster, &binding, 1).expect("room");
        let patch = change.patch().to_string();
        let mut claimed = pod.clone();
        change.apply(&mut claimed);
        claimed.metadata.resource_version = "2".into();
        cluster.apply_pod(&claimed);
        cluster.confirm(&binding.pod_uid, &node).expect("no other claim");
        binds.push(started.elapsed().as_secs_f64() * 1e3);
        both.extend(binds.last().map(|bind| filter + bind));
        assert!(!patch.is_empty());
    }
    println!(
        "{}",
        json!({
            "nodes": NODES, "gpus": GPUS, "pods": PODS, "rounds": ROUNDS, "refused": refused,
            "load_ms": round(load.as_secs_f64() * 1e3),
            "filter_ms": quantiles(filters), "bind_ms": quantiles(binds),
            "both_ms": quantiles(both),
            "resident_mib": round(resident_mib() - before),
        })
    );
}

fn quantiles(mut all: Vec<f64>) -> serde_json::Value {
    all.sort_by(f64::total_cmp);
    let at = |part: usize| all.get(all.len() * part / 1000).or(all.last()).copied().map(round);
    json!({"p50": at(500), "p99": at(990), "max": all.last().copied().map(round)})
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Returns the resident memory of this process in MiB.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
        / 1024.0
}

fn node(name: &str) -> Node {
    let gpus: Vec<_> =
        (0..GPUS).map(|gpu| json!({"uuid": format!("GPU-{name}-{gpu}"), "mib": 15109})).collect();
    let gpus = json!({"unit": "GiB", "gpus": gpus}).to_string();
    serde_json::from_value(
        json!({"metadata": {"name": name, "annotations": {"cgpu.dev/gpus": gpus}}}),
    )
    .expect("a node")
}

fn pod(number: usize, units: u64, on: Option<(&str, usize)>) -> Pod {
    let annotations = on.map(|(node, gpu)| {
        json!({
            "ALIYUN_COM_GPU_MEM_IDX": gpu.to_string(), "ALIYUN_COM_GPU_MEM_DEV": "14",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "cgpu.dev/node": node,
            "scheduler.framework.gpushare.allocation":
                json!({"0": {gpu.to_string(): units}}).to_string(),
        })
    });
    let uid = format!("788d1c6b-6f2a-4f0f-9d4e-{number:012}");
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("inference-{number}-58579b95f7-4wpbl"), "namespace": "production",
            "uid": uid, "resourceVersion": "1",
            "labels": {"app": "inference"}, "annotations": annotations},
        "spec": {"nodeName": on.map(|(node, _)| node),
            "containers": [{
                "name": "main", "image": "example/inference:1",
                "resources": {"limits": {"aliyun.com/gpu-mem": units.to_string()}},
            }]},
        "status": {"phase": if on.is_some() { "Running" } else { "Pending" }},
    }))
    .expect("a pod")
}
