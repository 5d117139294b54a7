use super::*;
use crate::accounting::NodeAccounting;
use crate::claim;
use crate::fixture::{node, pod, sharing, texts};
use crate::names::{Dialects, MEMORY, annotation};
use crate::object::{Node, Pod};

fn environment(pod: &Pod, node: &Node) -> String {
    let node = NodeGpus::of(node);
    let mut pod = pod.clone();
    let waiting = PodRequest::of(&pod, Dialects { hami: true }).unwrap();
    claim::claim(&waiting, &node, &NodeAccounting::of(&node, []), 1).unwrap().apply(&mut pod);
    let placed = PodRequest::of(&pod, Dialects { hami: true }).unwrap();
    let variables = super::of(&placed, "main", &node).unwrap().unwrap();
    variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

#[test]
fn environment_equals_that_of_the_documents() {
    // Document 000: 8 GiB over four V100 of 16130 MiB.
    let mut four = sharing("binpack-1-0", 8);
    four.metadata.labels = texts(&[("aliyun.com/gpu-count", "4")]);
    let text = environment(&four, &node("n", "GiB", &[16130; 4]));
    assert_eq!(
        text,
        "NVIDIA_VISIBLE_DEVICES=GPU-n-0,GPU-n-1,GPU-n-2,GPU-n-3\n\
         ALIYUN_COM_GPU_MEM_IDX=0,1,2,3\nALIYUN_COM_GPU_MEM_POD=8\n\
         ALIYUN_COM_GPU_MEM_CONTAINER=2\nALIYUN_COM_GPU_MEM_DEV=15\n"
    );
    // Document 001: 8 of 14 GiB of a T4.
    let text = environment(&sharing("binpack-2", 8), &node("n", "GiB", &[15109]));
    assert!(
        text.contains("ALIYUN_COM_GPU_MEM_DEV=14\n")
            && text.contains("ALIYUN_COM_GPU_MEM_CONTAINER=8\n"),
        "{text}"
    );
    // Document 003: 16 units of 128 MiB.
    let text = environment(&sharing("binpack", 16), &node("n", "128MiB", &[15109]));
    assert!(
        text.contains("ALIYUN_COM_GPU_MEM_DEV=118\n")
            && text.contains("ALIYUN_COM_GPU_MEM_CONTAINER=16\n"),
        "{text}"
    );
    // Document 004: HAMi's names count MiB.
    let hami = pod(
        "ai-benchmark",
        &[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "30"), ("nvidia.com/gpumem", "3000")],
    );
    let text = environment(&hami, &node("n", "GiB", &[15109]));
    let expected = "ALIYUN_COM_GPU_MEM_CONTAINER=3000\nALIYUN_COM_GPU_MEM_DEV=15109\n\
                    ALIYUN_COM_GPU_CORE_PERCENTAGE=30\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn environment_of_unequal_gpus_has_lists() {
    let half = pod("p", &[("nvidia.com/gpu", "2"), ("nvidia.com/gpumem-percentage", "50")]);
    let text = environment(&half, &node("n", "GiB", &[15109, 23028]));
    assert!(
        text.contains("ALIYUN_COM_GPU_MEM_CONTAINER=7,11\nALIYUN_COM_GPU_MEM_DEV=14,22\n"),
        "{text}"
    );
    let mut shared = node("n", "GiB", &[15109]);
    shared.metadata.labels = texts(&[("ack.node.gpu.schedule", "share")]);
    assert!(environment(&sharing("p", 2), &shared).ends_with("CGPU_DISABLE=true\n"));
}

#[test]
fn container_keeps_its_part_when_the_unit_changes() {
    let mut pod = sharing("p", 2);
    let before = NodeGpus::of(&node("n", "GiB", &[15109]));
    let waiting = PodRequest::of(&pod, Dialects::default()).unwrap();
    claim::claim(&waiting, &before, &NodeAccounting::of(&before, []), 1).unwrap().apply(&mut pod);
    let placed = PodRequest::of(&pod, Dialects::default()).unwrap();
    let after = NodeGpus::of(&node("n", "128MiB", &[15109]));
    let variables = super::of(&placed, "main", &after).unwrap().unwrap();
    assert!(
        variables.contains(&(variable::CONTAINER, "2".into()))
            && variables.contains(&(variable::DEVICE, "14".into())),
        "{variables:?}"
    );
}

#[test]
fn pod_placed_elsewhere_gets_no_environment() {
    let here = NodeGpus::of(&node("n", "GiB", &[15109]));
    let said = |annotations: &[(&str, &str)]| {
        let mut pod = sharing("p", 2);
        pod.metadata.annotations = texts(annotations);
        super::of(&PodRequest::of(&pod, Dialects::default()).unwrap(), "main", &here)
            .unwrap_err()
            .to_string()
    };
    assert!(
        said(&[]).starts_with("no GPU was chosen for test/p: it bypassed the scheduler extender")
    );
    assert!(
        said(&[(annotation::INDEX, "0"), (annotation::NODE, "m")])
            .starts_with("the GPUs of test/p were chosen on node `m`, not on `n`")
    );
    assert!(said(&[(annotation::INDEX, "3")]).contains("it names GPU 3"));
    let plain = PodRequest::of(&pod("p", &[(MEMORY, "2")]), Dialects::default()).unwrap();
    assert_eq!(super::of(&plain, "other", &here), Ok(None));
}

/// A limit of 0 would mean no limit.
#[test]
fn amount_is_never_0() {
    let here = NodeGpus::of(&node("n", "GiB", &[15109, 15109]));
    let made = |limits: &[(&str, &str)], split: &str| {
        let mut pod = pod("p", limits);
        pod.metadata.annotations = texts(&[(annotation::ALLOCATION, split)]);
        let pod_request = PodRequest::of(&pod, Dialects { hami: true }).unwrap();
        super::of(&pod_request, "main", &here).map_err(|refusal| refusal.to_string())
    };
    let refusal =
        Err("container `main` was given 0 units of GPU 0, expected at least 1".to_owned());
    assert_eq!(made(&[(MEMORY, "8")], r#"{"0":{"0":0,"1":8}}"#), refusal);
    assert_eq!(made(&[("nvidia.com/gpu", "1")], r#"{"0":{"0":0}}"#), refusal);
    // Nor for compute, when the annotation has more GPUs than requested.
    let variables = made(&[(MEMORY, "8"), (crate::names::CORE, "1")], r#"{"0":{"0":4,"1":4}}"#)
        .unwrap()
        .unwrap();
    assert!(variables.contains(&(variable::PERCENT, "1".into())), "{variables:?}");
    // No limits produce this request, but it would be refused here.
    let mut pod_request = PodRequest::of(
        &pod("p", &[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "1")]),
        Dialects { hami: true },
    )
    .unwrap();
    pod_request.requests.as_mut().unwrap()[0].amount =
        Amount::Each { gpus: 1, memory: Memory::Mib(0), percent: 0 };
    pod_request.allocation =
        Allocation::read(&texts(&[(annotation::ALLOCATION, r#"{"0":{"0":1}}"#)]));
    assert_eq!(
        super::of(&pod_request, "main", &here).unwrap_err().to_string(),
        "ALIYUN_COM_GPU_MEM_CONTAINER of container `main` of test/p would be `0`, expected at \
         least 1 for each GPU"
    );
}

#[test]
fn priority_of_hami_is_high_priority() {
    let of = |priority: &str| {
        let limits = [("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3000")];
        let mut limits = limits.to_vec();
        limits.extend((!priority.is_empty()).then_some(("nvidia.com/priority", priority)));
        environment(&pod("p", &limits), &node("n", "GiB", &[15109]))
    };
    assert!(of("0").ends_with("ALIYUN_COM_GPU_HIGH_PRIO=1\n"), "{}", of("0"));
    assert!(of("1").ends_with("ALIYUN_COM_GPU_HIGH_PRIO=0\n"), "{}", of("1"));
    assert!(!of("").contains("HIGH_PRIO"), "{}", of(""));
}

#[test]
fn gpu_that_the_annotations_exclude_is_not_given() {
    let node = NodeGpus::of(&node("n", "GiB", &[15109, 15109]));
    let mut pod = sharing("p", 2);
    let request = |pod: &Pod| PodRequest::of(pod, Dialects { hami: true }).unwrap();
    let claim = claim::claim(&request(&pod), &node, &NodeAccounting::of(&node, []), 1).unwrap();
    claim.apply(&mut pod);
    assert!(super::of(&request(&pod), "main", &node).is_ok());
    // It was edited after the choice.
    let name = "nvidia.com/nouse-gpuuuid".to_owned();
    pod.metadata.annotations.insert(name, "GPU-n-0".to_owned());
    let expected = "the annotations of test/p do not permit GPU 0 of node `n`";
    let refusal = super::of(&request(&pod), "main", &node).unwrap_err().to_string();
    assert!(refusal.starts_with(expected), "{refusal}");
    let pods = [std::sync::Arc::new(request(&pod))];
    let refusal = claim::confirm("uid-p", &node, &pods).unwrap_err().to_string();
    assert!(refusal.starts_with(expected), "{refusal}");
}
