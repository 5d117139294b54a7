//! Bodies of kube-scheduler's requests with any bytes. Each node of a request is answered once, a
//! score is at most 10, a pod that fits is bound without giving out more than a GPU has, one of a
//! gang is answered one node, and victims have a lower priority.

use std::collections::{BTreeSet, HashMap};

use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{self, Binding, Call, Candidates, Filtered};
use cgpu_kubernetes_core::gpus::Placement;
use cgpu_kubernetes_core::names::{COUNT, Dialects, MEMORY, annotation};
use cgpu_kubernetes_core::object::{Node, Pod};
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::preemption::{self, Question};
use serde_json::{Value, json};

/// Time of a claim, in nanoseconds since 1970.
const NOW: u64 = 1_000_000_000;

/// Returns a node with two GPUs.
pub(super) fn node() -> Node {
    let gpus = json!({"unit": "GiB", "gpus": [
        {"uuid": "GPU-a-0", "mib": 15109}, {"uuid": "GPU-a-1", "mib": 23028},
    ]});
    let metadata = json!({"name": "a", "annotations": {annotation::GPUS: gpus.to_string()}});
    serde_json::from_value(json!({ "metadata": metadata })).expect("a node")
}

/// Returns a pod that requests this many units.
pub(super) fn pod(name: &str, units: u32) -> Pod {
    let metadata = json!({"name": name, "namespace": "test", "uid": name});
    let container = json!({"name": "main", "resources": {"limits": {MEMORY: units}}});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [container]}}))
        .expect("a pod")
}

/// Claims GPUs of a node for a pod and binds it, as the extender and the API server do.
pub(super) fn place(cluster: &mut Cluster, mut pod: Pod, node: &str) -> Option<Pod> {
    cluster.apply_pod(&pod);
    let binding = Binding {
        pod_name: pod.metadata.name.clone(),
        pod_namespace: pod.metadata.namespace.clone(),
        pod_uid: pod.metadata.uid.clone(),
        node: node.to_owned(),
    };
    extender::bind(cluster, &binding, NOW).ok()?.apply(&mut pod);
    node.clone_into(&mut pod.spec.node_name);
    cluster.apply_pod(&pod);
    Some(pod)
}

/// Returns a node with two GPUs, one without an inventory, and a pod on the first.
pub(super) fn cluster() -> Cluster {
    let mut cluster = Cluster::new(Dialects { hami: true });
    cluster.apply_node(&node());
    let allocatable = json!({MEMORY: "14", COUNT: 1});
    let plain = json!({"metadata": {"name": "b"}, "status": {"allocatable": allocatable}});
    cluster.apply_node(&serde_json::from_value(plain).expect("a node"));
    place(&mut cluster, pod("known", 9), "a").expect("there is room");
    cluster
}

fn is_overfull(cluster: &Cluster) -> bool {
    cluster.nodes().any(|(node, accounting)| accounting.overfull(node).next().is_some())
}

fn name_of(node: &Value) -> Option<&str> {
    node["metadata"]["name"].as_str()
}

/// Checks that each requested node is answered once.
fn check_filtered(candidates: &Candidates, filtered: &Filtered) {
    if candidates.pod.is_none() {
        return assert!(!filtered.error.is_empty() && filtered.node_names.is_none());
    }
    let failed = |name: &str| {
        filtered.failed_nodes.contains_key(name)
            || filtered.failed_and_unresolvable_nodes.contains_key(name)
    };
    let names = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let (requested, fitting) = (names(&candidates.node_names), names(&filtered.node_names));
    assert!(fitting.iter().all(|name| requested.contains(name) && !failed(name)));
    assert!(requested.iter().all(|name| fitting.contains(name) != failed(name)), "{filtered:?}");
    if let Some(nodes) = &candidates.nodes {
        let items = &filtered.nodes.as_ref().expect("nodes for nodes").items;
        let is_answered = |node: &Value| {
            name_of(node).is_none_or(|name| items.contains(node) != failed(name))
        };
        assert!(nodes.items.iter().all(is_answered), "{filtered:?}");
    }
    let reasons = filtered.failed_nodes.values();
    let mut reasons = reasons.chain(filtered.failed_and_unresolvable_nodes.values());
    assert!(reasons.all(|reason| !reason.is_empty()));
    assert!(!filtered.failed_nodes.keys().any(|name| {
        filtered.failed_and_unresolvable_nodes.contains_key(name)
    }));
}

fn check_candidates(candidates: &Candidates) {
    let mut cluster = cluster();
    if let Some(pod) = &candidates.pod {
        cluster.apply_pod(pod);
    }
    assert!(cluster.is_valid());
    let filtered = extender::filter(&cluster, candidates);
    check_filtered(candidates, &filtered);
    let expected = filtered.node_names.iter().flatten().map(|name| (name.as_str(), 5000));
    for (placement, expected) in
        [(Placement::default(), HashMap::new()), (Placement::Spread, expected.collect())]
    {
        let scores = extender::prioritize(&cluster, candidates, placement, &expected);
        let hosts: BTreeSet<&str> = scores.iter().map(|score| score.host.as_str()).collect();
        assert!(hosts.len() == scores.len() && scores.iter().all(|score| score.score <= 10));
    }
    let (Some(pod), Some(fitting)) = (&candidates.pod, &filtered.node_names) else { return };
    let was_overfull = is_overfull(&cluster);
    let is_unbound = pod.spec.node_name.is_empty() && cluster.pod(&pod.metadata.uid).is_some();
    if let Some(first) = fitting.first().filter(|_| is_unbound) {
        place(&mut cluster, pod.clone(), first).expect("a pod that fits is bound");
        assert!(was_overfull || !is_overfull(&cluster), "{:?}", extender::inspect(&cluster, None));
    }
    let placed = extender::filter_and_place(&mut cluster, candidates, Placement::default(), 1);
    let answered: BTreeSet<&String> = placed.node_names.iter().flatten().collect();
    let is_placed = extender::is_placed(pod, cluster.dialects());
    assert!(answered.len() <= 1 || !is_placed, "{placed:?}");
    assert!(cluster.is_valid());
}

/// Checks that each node of an answer was asked about, and has victims of lower priority.
fn check_question(question: &Question) {
    let cluster = cluster();
    let answer = preemption::preempt(&cluster, &[], question);
    let priority = question.pod.as_ref().map(|pod| pod.spec.priority);
    for (node, victims) in &answer.node_name_to_meta_victims {
        assert!(
            question.node_name_to_victims.contains_key(node)
                || question.node_name_to_meta_victims.contains_key(node)
        );
        assert!(!victims.pods.is_empty());
        let requests_gpus = question
            .pod
            .as_ref()
            .is_some_and(|pod| PodRequest::of(pod, cluster.dialects()).is_some());
        let known = victims.pods.iter().filter_map(|victim| cluster.pod(&victim.uid));
        assert!(!requests_gpus || known.into_iter().all(|pod| Some(pod.priority) < priority));
    }
}

fn check_path(path: &str) {
    for method in ["GET", "POST"] {
        if let Some(Call::Inspect(Some(node))) = Call::of(method, path) {
            assert!(method == "GET" && path.ends_with(&format!("/inspect/{node}")));
            let inspected = extender::inspect(&cluster(), Some(node));
            assert_eq!(inspected.nodes.is_empty(), !inspected.error.is_empty());
        }
    }
}

pub(crate) fn check(input: &[u8]) {
    if let Ok(path) = std::str::from_utf8(input) {
        check_path(path);
    }
    for whole_nodes in [false, true] {
        if let Ok(candidates) = extender::candidates(input, whole_nodes, &cluster()) {
            check_candidates(&candidates);
        }
    }
    if let Ok(question) = preemption::question(input, &cluster()) {
        check_question(&question);
    }
    if let Ok(binding) = extender::decode::<Binding>(input) {
        match extender::bind(&cluster(), &binding, NOW) {
            Ok(change) => assert_eq!(change.uid, binding.pod_uid),
            Err(refusal) => assert!(!refusal.message().is_empty()),
        }
    }
}
