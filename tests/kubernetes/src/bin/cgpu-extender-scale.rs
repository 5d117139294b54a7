//! Latency and memory of the real extender over HTTP with many nodes and pods: `cargo xtask build
//! && target/dist/cgpu-extender-scale`. Prints one JSON object for each cluster: with many
//! `pending` pods, and `full` of running ones. One of these names, and a number of rounds, may be
//! given. `cargo xtask bench extender` measures `pending`.
//!
//! A fake API server runs on the same machine. Times are the client's: filter's include the names
//! of all nodes each way, and bind's include the API server's patch, watch and binding.

use std::time::{Duration, Instant};

use cgpu_kubernetes_tests::api_server::ApiServer;
use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::process::memory;
use serde_json::{Value, json};

const GPUS: usize = 8;

struct Size {
    nodes: usize,
    running: usize,
    /// Pods that wait all the time, beside the one that is placed.
    pending: usize,
    rounds: usize,
}

const FULL: Size = Size { nodes: 5000, running: 50_000, pending: 0, rounds: 2000 };
const PENDING: Size = Size { nodes: 1000, running: 10_000, pending: 5000, rounds: 1000 };

fn main() {
    let mut arguments = std::env::args().skip(1);
    let only = arguments.next();
    let rounds = arguments.next().and_then(|text| text.parse().ok());
    for (name, size) in [("pending", PENDING), ("full", FULL)] {
        if only.as_ref().is_none_or(|only| only == name) {
            println!("{}", measure(&Size { rounds: rounds.unwrap_or(size.rounds), ..size }));
        }
    }
}

fn measure(size: &Size) -> Value {
    let server = ApiServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<String> =
        (0..size.nodes).map(|number| format!("node-{number:04}.example.internal")).collect();
    for name in &names {
        server.put("nodes", node(name, &[15109; GPUS]));
    }
    let flags = ["--log-level", "info", "--watch-timeout", "2"];
    let empty = Extender::start(&server, folder.path(), &flags);
    let without_pods = resident_mib(empty.pid());
    empty.kill();
    let mut random = Random(3);
    for number in 0..size.running {
        let (name, gpu) = (&names[number % size.nodes], number / size.nodes % GPUS);
        server.put("pods", running(number, name, gpu, 1 + random.below(6)));
    }
    let mut next = size.running;
    let mut queue: std::collections::VecDeque<Value> = std::iter::from_fn(|| {
        next += 1;
        Some(server.put("pods", waiting(next, 1 + random.below(14))))
    })
    .take(size.pending + size.rounds)
    .collect();
    let started = Instant::now();
    let extender = Extender::start(&server, folder.path(), &flags);
    let ready = started.elapsed();
    let listed = resident_mib(extender.pid());
    let mut connection = extender.connection();
    let (mut filters, mut binds, mut both, mut refused) = (Vec::new(), Vec::new(), Vec::new(), 0);
    let before = server.bytes_sent();
    for _ in 0..size.rounds {
        let pending = queue.pop_front().expect("a pod for each round");
        let body = json!({"Pod": pending, "Nodes": null, "NodeNames": names}).to_string();
        let started = Instant::now();
        let reply = connection.request("POST", "/gpushare-scheduler/filter", &body);
        let filter = milliseconds(started);
        filters.push(filter);
        let answer = reply.json();
        let fitting = answer["NodeNames"].as_array().expect("names");
        let Some(index) = random.among(fitting.len()) else {
            refused += 1;
            continue;
        };
        let node = fitting[index].as_str().expect("a name");
        let started = Instant::now();
        let reply = bind(&mut connection, &pending, node);
        assert_eq!(reply.status, 200, "{reply:?}");
        binds.push(milliseconds(started));
        both.extend(binds.last().map(|bind| filter + bind));
    }
    // The watch's last events.
    std::thread::sleep(Duration::from_secs(1));
    let bytes = (server.bytes_sent() - before) / binds.len().max(1) as u64;
    let answered = resident_mib(extender.pid());
    let pods = size.running + size.pending + size.rounds;
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    json!({
        "nodes": size.nodes, "gpus": GPUS, "running": size.running, "pending": queue.len(),
        "rounds": size.rounds, "refused": refused,
        "pod_bytes": queue.front().map_or(0, |pod| pod.to_string().len()),
        "ready_ms": round(ready.as_secs_f64() * 1e3),
        "extender_filter_ms": quantiles(filters), "extender_bind_ms": quantiles(binds),
        "both_ms": quantiles(both), "extender_bind_bytes": bytes,
        "resident_mib_listed": listed, "resident_mib_answered": answered,
        "resident_mib_most": peak_mib(extender.pid()),
        "mib_per_10000_pods": round((listed - without_pods) * 1e4 / f64::from(pods)),
    })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn quantiles(mut all: Vec<f64>) -> Value {
    all.sort_by(f64::total_cmp);
    let at = |part: usize| all.get(all.len() * part / 1000).or(all.last()).copied().map(round);
    json!({"p50": at(500), "p99": at(990), "max": all.last().copied().map(round)})
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn resident_mib(pid: u32) -> f64 {
    mib(pid, "VmRSS")
}

fn peak_mib(pid: u32) -> f64 {
    mib(pid, "VmHWM")
}

fn mib(pid: u32, name: &str) -> f64 {
    let kib = u32::try_from(memory(pid, name) >> 10).expect("less than 4 TiB");
    round(f64::from(kib) / 1024.0)
}

fn waiting(number: usize, units: u64) -> Value {
    let mut pod = pod("production", &format!("inference-{number}-58579b95f7-4wpbl"), units);
    // Fields that any pod of a Deployment has, which the extender does not read.
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inference-58579b95f7",
        "uid": "0b6c8f0e-2f1c-4a43-9a39-2f5f3a2d9e55", "controller": true, "blockOwnerDeletion": true}]);
    pod["metadata"]["managedFields"] = json!([{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
        "time": "2026-11-20T08:01:12Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}}}}]);
    pod["spec"]["containers"][0]["env"] = (0..12).map(|number| json!({"name": format!("SETTING_{number}"),
        "valueFrom": {"configMapKeyRef": {"name": "inference-settings", "key": format!("setting-{number}")}}})).collect();
    pod["spec"]["volumes"] = json!([{"name": "kube-api-access-4wpbl", "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}}]}}]);
    pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastProbeTime": null, "lastTransitionTime": "2026-11-20T08:01:12Z", "message": "0/1000 nodes are available: \
        1000 node(s) with no GPUs for the pod (8/8 GPUs: 4 of 8 units free). preemption: 0/1000 nodes are available: \
        1000 No preemption victims found for incoming pod."}]);
    pod["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]);
    pod
}

fn running(number: usize, node: &str, gpu: usize, units: u64) -> Value {
    let mut pod = waiting(number, units);
    let gpu = gpu.to_string();
    pod["spec"]["nodeName"] = json!(node);
    pod["status"]["phase"] = json!("Running");
    pod["metadata"]["annotations"] = json!({
        "ALIYUN_COM_GPU_MEM_IDX": gpu, "ALIYUN_COM_GPU_MEM_DEV": "14", "ALIYUN_COM_GPU_MEM_POD": units.to_string(),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "scheduler.framework.gpushare.allocation": json!({"0": {gpu: units}}).to_string(), "cgpu.dev/node": node,
    });
    pod
}

/// A generator with the same numbers in every run (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn among(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| usize::try_from(self.below(count as u64)).unwrap_or(0))
    }
}
