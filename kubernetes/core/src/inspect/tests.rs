use std::collections::HashMap;

use super::*;
use crate::extender::{self, Binding, Candidates};
use crate::fixture::{plain_node, sharing};
use crate::gpus::Placement;
use crate::names::Dialects;
use crate::object::Pod;

/// The cluster of document 001: two nodes with a T4 each.
fn documented() -> Cluster {
    let mut cluster = Cluster::new(Dialects::default());
    cluster.apply_node(&plain_node("sd-cluster-04", "192.168.1.214", 14, 1));
    cluster.apply_node(&plain_node("sd-cluster-05", "192.168.1.215", 14, 1));
    cluster
}

/// Places a pod as kube-scheduler does: filters, ranks, takes the last of the best nodes, and
/// binds.
fn deploy(cluster: &mut Cluster, name: &str, units: u64) -> String {
    deploy_pod(cluster, sharing(name, units))
}

fn deploy_pod(cluster: &mut Cluster, mut pod: Pod) -> String {
    cluster.apply_pod(&pod);
    let names: Vec<String> = cluster.nodes().map(|(node, _)| node.name.clone()).collect();
    let request =
        |names| Candidates { pod: Some(pod.clone()), nodes: None, node_names: Some(names) };
    let fitting = extender::filter(cluster, &request(names)).node_names.unwrap();
    let ranked =
        extender::prioritize(cluster, &request(fitting), Placement::Binpack, &HashMap::new());
    let node = ranked.iter().max_by_key(|priority| priority.score).expect("room").host.clone();
    let binding = Binding {
        pod_name: pod.metadata.name.clone(),
        pod_namespace: "test".into(),
        pod_uid: pod.metadata.uid.clone(),
        node: node.clone(),
    };
    extender::bind(cluster, &binding, 1).unwrap().apply(&mut pod);
    pod.spec.node_name.clone_from(&node);
    pod.metadata.resource_version = "2".into();
    cluster.apply_pod(&pod);
    node
}

fn table(cluster: &Cluster) -> String {
    Overview::of(cluster, None).unwrap().summary()
}

/// The four deployments of document 001 in order, with its tables byte for byte.
#[test]
fn tables_equal_those_of_document_001() {
    let mut cluster = documented();
    assert_eq!(deploy(&mut cluster, "binpack-1-6d6955c487-j4c4b", 2), "sd-cluster-05");
    assert_eq!(
        table(&cluster),
        "\
NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
sd-cluster-04  192.168.1.214  0/14                   0/14
sd-cluster-05  192.168.1.215  2/14                   2/14
----------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
2/28 (7%)
"
    );
    assert_eq!(deploy(&mut cluster, "binpack-2-58579b95f7-4wpbl", 8), "sd-cluster-05");
    assert_eq!(deploy(&mut cluster, "binpack-2-58579b95f7-sjhwt", 8), "sd-cluster-04");
    assert_eq!(
        table(&cluster),
        "\
NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
sd-cluster-04  192.168.1.214  8/14                   8/14
sd-cluster-05  192.168.1.215  10/14                  10/14
----------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
18/28 (64%)
"
    );
    assert_eq!(deploy(&mut cluster, "binpack-3-556bbd84f9-9xqg7", 2), "sd-cluster-05");
    assert_eq!(
        table(&cluster),
        "\
NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
sd-cluster-04  192.168.1.214  8/14                   8/14
sd-cluster-05  192.168.1.215  12/14                  12/14
----------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
20/28 (71%)
"
    );
    assert_eq!(deploy(&mut cluster, "binpack-4-6956458f85-cv62j", 5), "sd-cluster-04");
    assert_eq!(
        table(&cluster),
        "\
NAME           IPADDRESS      GPU0(Allocated/Total)  GPU Memory(GiB)
sd-cluster-04  192.168.1.214  13/14                  13/14
sd-cluster-05  192.168.1.215  12/14                  12/14
------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
25/28 (89%)
"
    );
}

/// The totals of the first table of document 001, in which a GPU is partly used.
#[test]
fn totals_equal_those_of_the_first_table_of_document_001() {
    let mut cluster = documented();
    deploy(&mut cluster, "binpack-2", 8);
    assert!(
        table(&cluster).ends_with("----\nAllocated/Total GPU Memory In Cluster:\n8/28 (28%)\n")
    );
}

#[test]
fn details_have_a_line_for_each_pod() {
    let mut cluster = documented();
    deploy(&mut cluster, "binpack-1", 2);
    deploy(&mut cluster, "binpack-2", 8);
    assert_eq!(
        Overview::of(&cluster, Some("sd-cluster-05")).unwrap().details(),
        "
NAME:       sd-cluster-05
IPADDRESS:  192.168.1.215

NAME         NAMESPACE  GPU0(Allocated)
binpack-1    test       2
binpack-2    test       8
Allocated :  10 (71%)
Total :      14
----------------------------------------------


Allocated/Total GPU Memory In Cluster:  10/14 (71%)
"
    );
    assert_eq!(Overview::of(&cluster, Some("x")).unwrap_err().message(), "nodes \"x\" not found");
}

#[test]
fn pod_bound_without_a_gpu_is_pending() {
    let mut cluster = documented();
    cluster.apply_node(&crate::fixture::node("three", "GiB", &[15109, 23028]));
    deploy(&mut cluster, "a", 2);
    let mut bypassed = sharing("b", 3);
    bypassed.spec.node_name = "sd-cluster-04".into();
    cluster.apply_pod(&bypassed);
    assert_eq!(
        table(&cluster),
        "\
NAME           IPADDRESS      GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  \
GPU Memory(GiB)
sd-cluster-04  192.168.1.214  0/14                   0/0                    3                   3/14
sd-cluster-05  192.168.1.215  2/14                   0/0                                        2/14
three          unknown        0/14                   0/22                                       0/36
----------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
5/64 (7%)
"
    );
    assert_eq!(
        Overview::of(&cluster, Some("sd-cluster-04")).unwrap().details(),
        "
NAME:       sd-cluster-04
IPADDRESS:  192.168.1.214

NAME         NAMESPACE  GPU0(Allocated)  Pending(Allocated)
b            test       0                3
Allocated :  3 (21%)
Total :      14
----------------------


Allocated/Total GPU Memory In Cluster:  3/14 (21%)
"
    );
}

#[test]
fn json_has_the_reasons_of_waiting_and_pending_pods() {
    let mut cluster = documented();
    cluster.apply_pod(&sharing("big", 16));
    cluster.apply_pod(&sharing("fine", 2));
    let mut bypassed = sharing("b", 3);
    bypassed.spec.node_name = "sd-cluster-04".into();
    cluster.apply_pod(&bypassed);
    let json = serde_json::to_value(Overview::of(&cluster, None).unwrap()).unwrap();
    assert_eq!(json["unit"], "GiB");
    assert_eq!(
        json["waiting"][0]["reasons"][0],
        "sd-cluster-04: 1/1 GPUs: 16 units requested, the largest has 14"
    );
    assert_eq!(json["waiting"][1]["reasons"], serde_json::json!([]));
    assert_eq!(
        json["nodes"][0]["pods"][0]["reason"],
        "no GPU was chosen for it: it bypassed the scheduler extender"
    );
    assert_eq!(
        json["nodes"][0]["gpus"][0],
        serde_json::json!({
            "index": 0, "allocated": 0, "total": 14, "percent": 0, "containers": 0, "weight": 0,
            "healthy": true,
        })
    );
}

#[test]
fn empty_cluster_has_a_table() {
    let cluster = Cluster::new(Dialects::default());
    assert_eq!(
        table(&cluster),
        "NAME  IPADDRESS  GPU Memory(GiB)\n\nAllocated/Total GPU Memory In Cluster:\n0/0 (0%)\n"
    );
}

#[test]
fn shares_show_what_holds_the_limits() {
    let mut cluster = documented();
    deploy(&mut cluster, "p", 2);
    let mut overview = Overview::of(&cluster, None).unwrap();
    let node = overview.nodes.iter_mut().find(|node| !node.pods.is_empty()).unwrap();
    let named = |it: &[(&str, &str)]| {
        it.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    };
    for (walls, reasons, column) in [
        (&[][..], &[][..], "-"),
        (&[("a", "driver")], &[], "driver"),
        (&[("a", "driver_except_managed")], &[], "driver, except managed memory"),
        (&[("a", "shim"), ("b", "shim")], &[], "shim"),
        (&[("a", "shim")], &[("a", "old_driver")], "shim (driver older than r615)"),
        (&[("a", "shim"), ("b", "driver")], &[("a", "mig")], "a: shim (MIG instance); b: driver"),
    ] {
        (node.pods[0].walls, node.pods[0].wall_reasons) = (named(walls), named(reasons));
        let shown = Overview { nodes: vec![node.clone()], ..Overview::default() }.shares(true);
        assert!(shown.trim_end().ends_with(&format!("  {column}")), "{shown}");
    }
}

#[test]
fn shares_show_weights_and_percentages() {
    let mut cluster = documented();
    deploy(&mut cluster, "plain", 2);
    let mut pod =
        crate::fixture::pod("heavy", &[(crate::names::MEMORY, "3"), (crate::names::CORE, "30")]);
    pod.spec.containers[0].weight = Some("2".to_owned());
    // It has been resized.
    let sizes = r#"{"main":{"weight":4}}"#.to_owned();
    pod.metadata.annotations.insert(crate::names::annotation::SIZES.to_owned(), sizes);
    deploy_pod(&mut cluster, pod);
    let overview = Overview::of(&cluster, None).unwrap();
    assert_eq!(
        overview.shares(true),
        "\
NODE           GPU  MEMORY(Allocated/Total)  WEIGHT  CORES(%)  SHARES
sd-cluster-04  0    0/14                     0       0         0
sd-cluster-05  0    5/14                     5       30        2

POD    NAMESPACE  NODE           MEMORY(GPU:Units)  WEIGHT  CORES(%)  WALL
heavy  test       sd-cluster-05  0:3                4       30        -
plain  test       sd-cluster-05  0:2                1       0         -
"
    );
    assert_eq!(
        overview.shares(false),
        overview.shares(true).split("\n\n").next().unwrap().to_owned() + "\n"
    );
}
