use super::*;
use crate::claim::CLAIM_TIMEOUT_NANOS;
use crate::fixture::{node, sharing};

fn held(cluster: &Cluster, name: &str) -> u64 {
    assert!(cluster.is_valid());
    cluster.node(name).expect("a node").1.held.iter().map(|share| share.units).sum()
}

fn claimed(cluster: &Cluster, pod: &Pod, name: &str, now: u64) -> Pod {
    let (node, accounting) = cluster.node(name).unwrap();
    let change =
        claim::claim(cluster.pod(&pod.metadata.uid).unwrap(), node, accounting, now).unwrap();
    let mut pod = pod.clone();
    change.apply(&mut pod);
    pod.metadata.resource_version = "2".into();
    pod
}

/// Makes a cluster with a node of 14 units and a waiting pod. Returns the pod with a claim for 8 of
/// them since time 5, which is not applied yet.
fn with_claim() -> (Cluster, Pod) {
    let mut cluster = Cluster::new(Dialects::default());
    let waiting = sharing("a", 8);
    cluster.replace([&node("n", "GiB", &[15109])], [&waiting]);
    let pod = claimed(&cluster, &waiting, "n", 5);
    (cluster, pod)
}

#[test]
fn events_of_any_kind_leave_the_accounting_of_a_list() {
    let mut cluster = Cluster::new(Dialects::default());
    let waiting = sharing("a", 8);
    cluster.apply_pod(&waiting);
    cluster.apply_node(&node("n", "GiB", &[15109]));
    assert_eq!(held(&cluster, "n"), 0);
    let pod = claimed(&cluster, &waiting, "n", 5);
    cluster.apply_pod(&pod);
    cluster.apply_pod(&pod);
    // A late event changes nothing.
    cluster.apply_pod(&waiting);
    assert_eq!(held(&cluster, "n"), 8);
    let mut bound = pod.clone();
    bound.spec.node_name = "n".into();
    bound.metadata.resource_version = "3".into();
    cluster.apply_pod(&bound);
    assert_eq!(held(&cluster, "n"), 8);
    // A node that is removed and added again has its pods.
    cluster.delete_node("n");
    assert!(cluster.node("n").is_none() && cluster.is_valid());
    cluster.apply_node(&node("n", "GiB", &[15109]));
    assert_eq!(held(&cluster, "n"), 8);
    cluster.delete_pod("uid-a");
    cluster.apply_pod(&bound);
    cluster.delete_pod("uid-a");
    assert_eq!(held(&cluster, "n"), 0);
    cluster.replace([&node("n", "GiB", &[15109])], [&bound]);
    assert_eq!(held(&cluster, "n"), 8);
    let mut done = bound.clone();
    done.status.phase = "Succeeded".into();
    done.metadata.resource_version = "4".into();
    cluster.apply_pod(&done);
    assert_eq!(held(&cluster, "n"), 0);
    cluster.apply_pod(&bound);
    assert_eq!(held(&cluster, "n"), 0);
}

#[test]
fn unbound_claim_becomes_stale() {
    let (mut cluster, pod) = with_claim();
    cluster.apply_pod(&pod);
    assert_eq!(cluster.stale(6).count(), 0);
    assert_eq!(cluster.stale(6 + CLAIM_TIMEOUT_NANOS).count(), 1);
    // A pod cannot be bound to a node that does not exist.
    assert_eq!(cluster.confirm("uid-a", "n"), Ok(()));
    cluster.delete_node("n");
    assert_eq!(cluster.stale(6).count(), 1);
    assert_eq!(cluster.confirm("uid-a", "n").unwrap_err().message(), "the node `n` was deleted");
}

/// A claim of a deleted pod would never be withdrawn.
#[test]
fn late_event_does_not_restore_a_deleted_pod() {
    let here = node("n", "GiB", &[15109]);
    let (mut cluster, pod) = with_claim();
    cluster.apply_pod(&pod);
    // Deleted while no watch was open: the list lacks it.
    cluster.replace([&here], []);
    cluster.apply_pod(&pod);
    assert_eq!(held(&cluster, "n"), 0);
    // The next list does not restore it.
    cluster.replace([&here], []);
    cluster.apply_pod(&pod);
    assert_eq!(held(&cluster, "n"), 0);
    // Deleted by an event, then a list arrives.
    let mut other = pod.clone();
    other.metadata.uid = "uid-b".into();
    cluster.apply_pod(&other);
    cluster.delete_pod("uid-b");
    cluster.replace([&here], []);
    cluster.apply_pod(&other);
    assert_eq!(held(&cluster, "n"), 0);
    // A pod that is listed exists.
    cluster.replace([&here], [&pod]);
    cluster.apply_pod(&pod);
    assert_eq!(held(&cluster, "n"), 8);
}

#[test]
fn late_event_does_not_restore_an_ended_pod() {
    let here = node("n", "GiB", &[15109]);
    let (mut cluster, pod) = with_claim();
    for phase in ["Succeeded", "Failed"] {
        let mut done = pod.clone();
        done.status.phase = phase.into();
        done.metadata.resource_version = "4".into();
        // By an event and by a list.
        let mut cluster = Cluster::new(Dialects::default());
        cluster.apply_node(&here);
        cluster.apply_pod(&done);
        cluster.apply_pod(&pod);
        assert_eq!(held(&cluster, "n"), 0);
        let mut cluster = Cluster::new(Dialects::default());
        cluster.replace([&here], [&done]);
        cluster.apply_pod(&pod);
        assert_eq!(held(&cluster, "n"), 0);
    }
    // A pod that requests no GPU is not recorded.
    let mut plain = crate::fixture::pod("p", &[]);
    plain.status.phase = "Succeeded".into();
    cluster.apply_pod(&plain);
    assert!(!cluster.deleted.has("uid-p"));
}

#[test]
fn deleted_pods_are_remembered_up_to_a_limit() {
    let mut cluster = Cluster::new(Dialects::default());
    for number in 0..3 * MAX_DELETED {
        cluster.delete_pod(&format!("uid {number}"));
        let first = (number + 1).saturating_sub(MAX_DELETED);
        assert!(
            cluster.deleted.has(&format!("uid {first}"))
                && cluster.deleted.has(&format!("uid {number}"))
        );
    }
    assert!(cluster.deleted.last.len() + cluster.deleted.before.len() <= 2 * MAX_DELETED);
    assert!(!cluster.deleted.has("uid 0"));
}

/// A pod that was changed or created while the list was made keeps its newer version.
#[test]
fn list_keeps_pods_newer_than_itself() {
    let here = node("n", "GiB", &[15109]);
    let observed = |pod: &Pod| PodObservation::of(pod, Dialects::default());
    let mut cluster = Cluster::new(Dialects::default());
    cluster.replace([&here], [&sharing("a", 8), &sharing("b", 4)]);
    let listed = sharing("a", 8);
    let mut pod = claimed(&cluster, &listed, "n", 5);
    pod.metadata.resource_version = "12".into();
    cluster.apply_pod(&pod);
    let mut new = sharing("c", 1);
    new.metadata.resource_version = "11".into();
    cluster.apply_pod(&new);
    cluster.replace_pods([observed(&listed)], "10");
    assert_eq!(held(&cluster, "n"), 8);
    assert!(cluster.pod("uid-c").is_some() && cluster.pod("uid-b").is_none());
    // A pod older than the list was deleted before it was made.
    cluster.replace_pods([], "12");
    assert_eq!((held(&cluster, "n"), cluster.pods().count()), (0, 0));
    cluster.apply_pod(&pod);
    assert_eq!(held(&cluster, "n"), 0);
}

#[test]
fn list_of_nodes_leaves_pods() {
    let (mut cluster, pod) = with_claim();
    cluster.apply_pod(&pod);
    cluster.replace_nodes([NodeGpus::of(&node("m", "GiB", &[15109]))]);
    assert!(cluster.node("n").is_none() && cluster.is_valid());
    cluster.replace_nodes([NodeGpus::of(&node("n", "GiB", &[15109, 15109]))]);
    assert_eq!((held(&cluster, "n"), cluster.nodes().count()), (8, 1));
}

#[test]
fn cordoned_gpu_gets_no_pods_until_it_is_released() {
    let free = |cluster: &Cluster| -> Vec<bool> {
        let (node, _) = cluster.node("n").unwrap();
        node.gpus.iter().map(|gpu| !gpu.cordoned).collect()
    };
    let of = |gpus: &[u32]| Cordon {
        node: "n".into(),
        gpus: gpus.iter().copied().collect(),
        ..Cordon::default()
    };
    let mut cluster = Cluster::new(Dialects::default());
    // The order of events does not matter.
    cluster.apply_cordon(of(&[1]));
    let node = crate::fixture::node("n", "GiB", &[15109, 15109]);
    cluster.apply_node(&node);
    assert_eq!(free(&cluster), [true, false]);
    cluster.apply_cordon(of(&[0, 1, 7]));
    assert_eq!(free(&cluster), [false, false]);
    let pod = crate::fixture::sharing("p", 2);
    let request = PodRequest::of(&pod, Dialects::default()).unwrap().resource_request().unwrap();
    let (gpus, accounting) = cluster.node("n").unwrap();
    let reason = crate::placement::choose(gpus, accounting, &request).unwrap_err();
    assert_eq!(reason.text, "2/2 GPUs: unhealthy");
    cluster.replace_cordons([]);
    assert_eq!(free(&cluster), [true, true]);
    assert!(cluster.is_valid());
}
