//! Compares placement over nodes and GPUs with an optimal packer that knows all pods beforehand, by
//! exhaustive search in small clusters.
//!
//! The bounds are the current quality, not a promise: placing each pod when it arrives cannot be
//! optimal.

use std::collections::HashMap;

use cgpu_kubernetes_core::cluster::Cluster;
use cgpu_kubernetes_core::extender::{self, Binding, Candidates};
use cgpu_kubernetes_core::gpus::Placement;
use cgpu_kubernetes_core::names::Dialects;
use cgpu_kubernetes_core::object::{Node, Pod};
use fastrand::Rng;
use serde_json::json;

const UNITS: u64 = 14;

fn node(name: &str, gpus: usize, placement: &str) -> Node {
    let gpus: Vec<_> = (0..gpus)
        .map(|gpu| json!({"uuid": format!("GPU-{name}-{gpu}"), "mib": UNITS * 1024}))
        .collect();
    let text = json!({"unit": "GiB", "gpus": gpus}).to_string();
    serde_json::from_value(json!({"metadata": {
        "name": name, "annotations": {"cgpu.dev/gpus": text},
        "labels": {"ack.node.gpu.placement": placement},
    }}))
    .unwrap()
}

fn pod(number: usize, units: u64) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("p{number}"), "namespace": "d", "uid": format!("u{number}"),
            "resourceVersion": "1",
        },
        "spec": {"containers": [
            {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": units}}},
        ]},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

/// Returns the units that are held after placing pods of these sizes one after the other, and the
/// number of GPUs in use.
fn placed(nodes: usize, gpus: usize, sizes: &[u64], placement: Placement) -> (u64, usize) {
    let label = if placement == Placement::Binpack { "binpack" } else { "spread" };
    let mut cluster = Cluster::new(Dialects::default());
    let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
    names.iter().for_each(|name| cluster.apply_node(&node(name, gpus, label)));
    for (number, units) in sizes.iter().enumerate() {
        let mut pod = pod(number, *units);
        cluster.apply_pod(&pod);
        let request =
            |names| Candidates { pod: Some(pod.clone()), nodes: None, node_names: Some(names) };
        let fitting = extender::filter(&cluster, &request(names.clone())).node_names.unwrap();
        let ranked = extender::prioritize(&cluster, &request(fitting), placement, &HashMap::new());
        let Some(best) = ranked.into_iter().max_by_key(|priority| priority.score) else {
            cluster.delete_pod(&pod.metadata.uid);
            continue;
        };
        let binding = Binding {
            pod_name: pod.metadata.name.clone(),
            pod_namespace: "d".into(),
            pod_uid: pod.metadata.uid.clone(),
            node: best.host.clone(),
        };
        extender::bind(&cluster, &binding, 1).expect("it fits").apply(&mut pod);
        pod.spec.node_name = best.host;
        pod.metadata.resource_version = "2".into();
        cluster.apply_pod(&pod);
    }
    let held = cluster.nodes().flat_map(|(_, accounting)| &accounting.held);
    held.fold((0, 0), |(units, gpus), share| {
        (units + share.units, gpus + usize::from(share.units > 0))
    })
}

/// Returns the most units of these that so many GPUs can hold, each pod on one GPU or none.
fn most(sizes: &[u64], gpus: usize) -> u64 {
    fn go(sizes: &[u64], free: &mut Vec<u64>, held: u64, left: u64, best: &mut u64) {
        *best = held.max(*best);
        let Some((size, rest)) = sizes.split_first() else { return };
        if held + left <= *best {
            return;
        }
        for gpu in 0..free.len() {
            // GPUs with equally many free units are equivalent.
            if free[gpu] >= *size && !free[..gpu].contains(&free[gpu]) {
                free[gpu] -= size;
                go(rest, free, held + size, left - size, best);
                free[gpu] += size;
            }
        }
        go(rest, free, held, left - size, best);
    }
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    let mut best = 0;
    go(&sorted, &mut vec![UNITS; gpus], 0, sorted.iter().sum(), &mut best);
    best
}

/// Returns the fewest GPUs that hold all of these.
fn fewest(sizes: &[u64]) -> usize {
    let sum: u64 = sizes.iter().sum();
    (1..=sizes.len()).find(|gpus| most(sizes, *gpus) == sum).expect("one for each")
}

#[test]
fn full_cluster_holds_nearly_as_much_as_an_optimal_packer() {
    for (placement, percent) in [(Placement::Binpack, 91), (Placement::Spread, 85)] {
        let mut random = Rng::with_seed(3);
        let (mut ours, mut best) = (0, 0);
        for _ in 0..200 {
            // About one and a half times what fits.
            let sizes: Vec<u64> = (0..12).map(|_| random.u64(1..=UNITS)).collect();
            let (units, _) = placed(2, 2, &sizes, placement);
            let most = most(&sizes, 4);
            assert!(units <= most, "{sizes:?}");
            (ours, best) = (ours + units, best + most);
        }
        println!("{placement:?}: {ours} of {best} units");
        assert!(ours * 100 >= best * percent, "{placement:?}: {ours} of {best} units");
    }
}

#[test]
fn binpack_opens_few_more_gpus_than_an_optimal_packer() {
    let mut random = Rng::with_seed(4);
    let (mut ours, mut best) = (0, 0);
    for _ in 0..200 {
        let sizes: Vec<u64> = (0..8).map(|_| random.u64(1..=UNITS)).collect();
        let (units, gpus) = placed(4, 2, &sizes, Placement::Binpack);
        assert_eq!(units, sizes.iter().sum::<u64>(), "there is a GPU for each");
        let fewest = fewest(&sizes);
        assert!(
            gpus >= fewest && gpus * 10 <= fewest * 17,
            "{sizes:?}: {gpus} GPUs, {fewest} would do"
        );
        (ours, best) = (ours + gpus, best + fewest);
    }
    println!("{ours} GPUs, {best} would do");
    assert!(ours * 100 <= best * 108, "{ours} GPUs, {best} would do");
}

/// Halves share GPUs, so that whole GPUs stay free.
#[test]
fn pods_that_fit_in_pairs_are_placed_in_pairs() {
    let (units, gpus) = placed(2, 2, &[7; 8], Placement::Binpack);
    assert_eq!((units, gpus), (56, 4));
    let (units, gpus) = placed(2, 2, &[7; 4], Placement::Binpack);
    assert_eq!((units, gpus), (28, 2));
    let (units, gpus) = placed(2, 2, &[7; 4], Placement::Spread);
    assert_eq!((units, gpus), (28, 4));
}
