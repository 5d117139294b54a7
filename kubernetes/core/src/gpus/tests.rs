use super::*;
use crate::object::{Address, Metadata, NodeStatus};

fn node(
    labels: &[(&str, &str)],
    annotation: Option<&str>,
    allocatable: &[(&str, &str)],
) -> NodeGpus {
    let texts = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    let annotations = annotation.map(|text| (annotation::GPUS.to_owned(), text.to_owned()));
    NodeGpus::of(&Node {
        metadata: Metadata {
            name: "n".into(),
            labels: texts(labels),
            annotations: annotations.into_iter().collect(),
            ..Default::default()
        },
        status: NodeStatus {
            allocatable: allocatable
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).into()))
                .collect(),
            addresses: vec![
                Address { kind: "Hostname".into(), address: "n".into() },
                Address { kind: "InternalIP".into(), address: "10.0.0.1".into() },
                Address { kind: "InternalIP".into(), address: "10.0.0.2".into() },
            ],
            ..Default::default()
        },
    })
}

#[test]
fn gpus_of_the_annotation_have_their_own_sizes() {
    let text = r#"{"unit":"GiB","gpus":[
        {"uuid":"GPU-a","mib":15109},{"uuid":"GPU-b","mib":23028,"healthy":false}]}"#;
    // With the annotation, the kubelet's counts are not used.
    let gpus = node(&[], Some(text), &[(MEMORY, "7"), (COUNT, "9")]);
    assert_eq!(gpus.closed, None);
    assert_eq!(gpus.address, "10.0.0.1");
    let sizes: Vec<_> = gpus.gpus.iter().map(|gpu| (gpu.index, gpu.units, gpu.healthy)).collect();
    assert_eq!(sizes, [(0, 14, true), (1, 22, false)]);
    assert_eq!(gpus.units(), 36);
    let small = node(&[], Some(r#"{"unit":"128MiB","gpus":[{"uuid":"GPU-a","mib":81920}]}"#), &[]);
    assert_eq!((small.gpus[0].units, small.gpus[0].unit), (640, Unit::Mib128));
}

#[test]
fn gpus_without_the_annotation_are_equal() {
    let gpus = node(&[], None, &[(MEMORY, "29"), (COUNT, "2")]);
    assert_eq!(gpus.gpus.iter().map(|gpu| gpu.units).collect::<Vec<_>>(), [14, 14]);
    assert_eq!(node(&[], None, &[(MEMORY, "15109"), (COUNT, "1")]).gpus[0].unit, Unit::Mib);
}

#[test]
fn node_that_is_not_shared_has_a_reason() {
    let two = [(MEMORY, "28"), (COUNT, "2")];
    for (labels, annotation, allocatable, message) in [
        (&[][..], None, &[][..], "the node has no GPUs to share"),
        (&[("gpushare", "false")], None, &two, "the node's label gpushare is `false`"),
        (
            &[("ack.node.gpu.schedule", "default")],
            None,
            &two,
            "ack.node.gpu.schedule is `default`, expected `cgpu`, `core_mem` or `share`",
        ),
        (&[("ack.node.gpu.schedule", "cpgu")], None, &two, "is `cpgu`, expected"),
        (
            &[],
            None,
            &[(MEMORY, "28")],
            "aliyun.com/gpu-count of the node is 0, expected 1 to 64 GPUs for its 28 units",
        ),
        (
            &[],
            None,
            &[(MEMORY, "x")],
            "aliyun.com/gpu-mem of the node is `x`, which is not a quantity",
        ),
        (&[], None, &[(MEMORY, "28"), (COUNT, "1000")], "is 1000, expected 1 to 64"),
        (&[], Some("14,14"), &two, "cgpu.dev/gpus is not what the device plugin writes"),
        (&[], Some(r#"{"unit":"GB","gpus":[]}"#), &two, "is not what the device plugin writes"),
        (
            &[],
            Some(r#"{"unit":"GiB","gpus":[{"uuid":"a","mib":-1}]}"#),
            &two,
            "is not what the device plugin writes",
        ),
        (
            &[],
            Some(r#"{"unit":"GiB","gpus":[{"uuid":"a","mib":1},{"uuid":"a","mib":1}]}"#),
            &two,
            "lists a GPU twice",
        ),
    ] {
        let closed = node(labels, annotation, allocatable).closed.expect(message).to_string();
        assert!(closed.contains(message), "{closed}");
    }
}

#[test]
fn labels_configure_the_gpus() {
    let two = [(MEMORY, "28"), (COUNT, "2")];
    let with = |labels: &[(&str, &str)]| node(labels, None, &two);
    assert_eq!(with(&[]).gpus[0].percent, 100);
    assert_eq!(with(&[("ack.node.gpu.schedule", "cgpu")]).gpus[0].percent, 0);
    assert!(with(&[("ack.node.gpu.schedule", "core_mem")]).isolated);
    assert!(!with(&[("ack.node.gpu.schedule", "share")]).isolated);
    assert!(!with(&[("cgpu.disable.isolation", "true")]).isolated);
    assert_eq!(with(&[("ack.node.gpu.placement", "spread")]).placement, Placement::Spread);
    let misspelt = with(&[("ack.node.gpu.placement", "spred")]);
    assert_eq!((misspelt.placement, misspelt.notes.len()), (Placement::Binpack, 1));
}

#[test]
fn gpu_smaller_than_a_unit_is_unhealthy() {
    let text = r#"{"unit":"GiB","gpus":[
        {"uuid":"GPU-a","mib":0},{"uuid":"GPU-b","mib":1023},{"uuid":"GPU-c","mib":1024}]}"#;
    let listed = node(&[], Some(text), &[]);
    let healthy: Vec<_> = listed.gpus.iter().map(|gpu| (gpu.units, gpu.healthy)).collect();
    assert_eq!(healthy, [(0, false), (0, false), (1, true)]);
    let divided = node(&[], None, &[(MEMORY, "1"), (COUNT, "2")]);
    assert!(divided.gpus.iter().all(|gpu| gpu.units == 0 && !gpu.healthy));
}
