use super::*;
use crate::fixture::{container, node, pod, sharing, texts};
use crate::names::{Dialects, MEMORY};

fn pod_request(pod: &Pod) -> Arc<PodRequest> {
    Arc::new(PodRequest::of(pod, Dialects { hami: true }).unwrap())
}

fn claimed(pod: &Pod, node: &NodeGpus, accounting: &NodeAccounting) -> (Pod, Change) {
    let change = claim(&pod_request(pod), node, accounting, 7).unwrap();
    let mut pod = pod.clone();
    change.apply(&mut pod);
    (pod, change)
}

#[test]
fn claim_writes_the_annotations_of_gpushare_and_its_own() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109, 15109]));
    let (_, change) = claimed(&sharing("p", 8), &node, &NodeAccounting::of(&node, []));
    let expected = json!({"metadata": {
        "uid": "uid-p",
        "resourceVersion": "1",
        "annotations": {
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
            "ALIYUN_COM_GPU_MEM_DEV": "14",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "8",
            "cgpu.dev/node": "n",
            "scheduler.framework.gpushare.allocation": r#"{"0":{"0":8}}"#,
        },
    }});
    assert_eq!(change.patch(), expected);
}

#[test]
fn claim_reads_back_as_requested() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109, 23028, 15109]));
    let mut multi = sharing("p", 8);
    multi.metadata.labels = texts(&[("aliyun.com/gpu-count", "2")]);
    multi.spec.containers.push(container("second", &[(MEMORY, "4")]));
    multi.spec.init_containers.push(container("init", &[(MEMORY, "18")]));
    let (pod, change) = claimed(&multi, &node, &NodeAccounting::of(&node, []));
    assert_eq!(
        change.annotations[annotation::ALLOCATION].as_deref(),
        Some(r#"{"0":{"0":4,"2":4},"1":{"0":2,"2":2},"2":{"0":9,"2":9}}"#)
    );
    assert_eq!(
        (&change.annotations[annotation::INDEX], change.annotations[annotation::POD].as_deref()),
        (&None, Some("18"))
    );
    let accounting = NodeAccounting::of(&node, [&pod_request(&pod)]);
    assert_eq!(accounting.held.iter().map(|share| share.units).collect::<Vec<_>>(), [9, 0, 9]);
    // Unequal GPUs are written with their sizes.
    let mut wide = sharing("w", 12);
    wide.metadata.labels = texts(&[("aliyun.com/gpu-count", "3")]);
    let (pod, change) = claimed(&wide, &node, &accounting);
    assert_eq!(change.annotations[annotation::DEVICE].as_deref(), Some("14,22,14"));
    assert_eq!(NodeAccounting::of(&node, [&pod_request(&pod)]).held[1].units, 4);
}

#[test]
fn later_claim_of_the_same_memory_is_refused() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109]));
    let empty = NodeAccounting::of(&node, []);
    let (one, _) = claimed(&sharing("a", 8), &node, &empty);
    // Claimed with accounting from before the first claim.
    let (other, _) = claimed(&sharing("b", 8), &node, &empty);
    let (one, other) = (pod_request(&one), pod_request(&other));
    assert_eq!(confirm(&one.uid, &node, [&one]), Ok(()));
    let refusal = confirm(&other.uid, &node, [&one, &other]).unwrap_err().to_string();
    assert_eq!(refusal, "another scheduler claimed GPU 0 of node `n` at the same time");
    let (small, _) = claimed(&sharing("c", 2), &node, &NodeAccounting::of(&node, [&one]));
    assert_eq!(confirm("uid-c", &node, [&one, &pod_request(&small)]), Ok(()));
    assert!(confirm("uid-d", &node, [&one]).is_err());
}

#[test]
fn own_claim_does_not_block_a_pod() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109]));
    let (pod, _) = claimed(&sharing("a", 8), &node, &NodeAccounting::of(&node, []));
    let pod = pod_request(&pod);
    let accounting = NodeAccounting::of(&node, [&pod]);
    assert!(claim(&pod, &node, &accounting, 8).is_ok());
    assert!(
        claim(&pod_request(&sharing("b", 8)), &node, &accounting, 8)
            .unwrap_err()
            .message()
            .ends_with("does not fit on node `n`: 1/1 GPUs: 6 of 8 units free")
    );
}

#[test]
fn stale_claim_is_withdrawn_completely() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109]));
    let (mut pod, _) = claimed(&sharing("a", 8), &node, &NodeAccounting::of(&node, []));
    assert!(!is_stale(&pod_request(&pod), 7 + CLAIM_TIMEOUT_NANOS));
    assert!(is_stale(&pod_request(&pod), 8 + CLAIM_TIMEOUT_NANOS));
    // A time in the future or an invalid one does not keep a claim.
    let mut ahead = pod.clone();
    ahead.metadata.annotations.insert(annotation::ASSUME_TIME.into(), "99999999999999999".into());
    assert!(is_stale(&pod_request(&ahead), 8 + CLAIM_TIMEOUT_NANOS));
    ahead.metadata.annotations.insert(annotation::ASSUME_TIME.into(), "soon".into());
    assert!(is_stale(&pod_request(&ahead), 8 + CLAIM_TIMEOUT_NANOS));
    let change = withdraw(&pod_request(&pod));
    assert!(change.patch()["metadata"]["annotations"]["cgpu.dev/node"].is_null());
    let mut bound = pod.clone();
    bound.spec.node_name = "n".into();
    assert!(!is_stale(&pod_request(&bound), u64::MAX));
    assert!(
        claim(&pod_request(&bound), &node, &NodeAccounting::of(&node, []), 8)
            .unwrap_err()
            .message()
            .contains("is already bound to node `n`")
    );
    change.apply(&mut pod);
    assert_eq!(pod, sharing("a", 8));
}

#[test]
fn invalid_request_is_not_claimed() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109]));
    for limits in [&[(MEMORY, "-1")][..], &[(MEMORY, "1.5")], &[("nvidia.com/gpu", "99")]] {
        assert!(
            claim(&pod_request(&pod("p", limits)), &node, &NodeAccounting::of(&node, []), 1)
                .is_err(),
            "{limits:?}"
        );
    }
}

/// `claim` chooses no GPU on which `confirm` would refuse the claim.
#[test]
fn claim_avoids_a_gpu_with_overfull_compute() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109, 15109]));
    let busy = |name: &str| {
        let (pod, _) = claimed(
            &pod(name, &[(MEMORY, "4"), (crate::names::CORE, "80")]),
            &node,
            &NodeAccounting::of(&node, []),
        );
        pod_request(&pod)
    };
    let pods = [busy("a"), busy("b")];
    let accounting = NodeAccounting::of(&node, &pods);
    assert_eq!(accounting.overfull(&node).collect::<Vec<_>>(), [0]);
    let (pod, _) = claimed(&sharing("c", 2), &node, &accounting);
    let own = pod_request(&pod);
    assert_eq!(confirm("uid-c", &node, pods.iter().chain([&own])), Ok(()));
}
