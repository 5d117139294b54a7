use super::*;
use crate::cluster::Cluster;
use crate::names::{Dialects, MEMORY, annotation};
use crate::object::{Condition, Container, Metadata, Node, Pod, PodSpec, PodStatus, Resources};

fn node() -> NodeGpus {
    let text =
        r#"{"unit":"GiB","gpus":[{"uuid":"GPU-a","mib":15109},{"uuid":"GPU-b","mib":23028}]}"#;
    NodeGpus::of(&Node {
        metadata: Metadata {
            name: "n".into(),
            annotations: [(annotation::GPUS.to_owned(), text.to_owned())].into(),
            ..Default::default()
        },
        ..Default::default()
    })
}

fn pod(
    name: &str,
    units: &str,
    phase: &str,
    annotations: &[(&str, &str)],
) -> Option<Arc<PodRequest>> {
    let limits = [(MEMORY.to_owned(), units.into())].into();
    let container = Container {
        name: "c".into(),
        resources: Resources { limits, ..Default::default() },
        ..Default::default()
    };
    let pod = Pod {
        metadata: Metadata {
            name: name.into(),
            uid: format!("uid of {name}"),
            annotations: annotations
                .iter()
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect(),
            ..Default::default()
        },
        spec: PodSpec { node_name: "n".into(), containers: vec![container], ..Default::default() },
        status: PodStatus { phase: phase.into(), ..Default::default() },
    };
    PodRequest::of(&pod, Dialects::default()).map(Arc::new)
}

fn held(pods: &[Option<Arc<PodRequest>>]) -> Vec<u64> {
    NodeAccounting::of(&node(), pods.iter().flatten())
        .held
        .iter()
        .map(|share| share.units)
        .collect()
}

#[test]
fn accounting_is_what_the_pods_hold() {
    let running = pod("a", "8", "Running", &[(annotation::INDEX, "1")]);
    let pending = pod("b", "2", "Pending", &[(annotation::INDEX, "1")]);
    assert_eq!(held(&[running.clone(), pending.clone()]), [0, 10]);
    // An ended pod holds nothing, even with annotations.
    assert_eq!(
        held(&[running.clone(), pod("b", "2", "Succeeded", &[(annotation::INDEX, "1")])]),
        [0, 8]
    );
    assert_eq!(held(&[pod("b", "2", "Failed", &[(annotation::INDEX, "1")])]), [0, 0]);
    let accounting = NodeAccounting::of(&node(), [running, pending].iter().flatten());
    assert_eq!(accounting.free(&node(), 1).units, 12);
    assert_eq!(accounting.free(&node(), 2), Share::NONE);
    assert_eq!(accounting.without(&node(), "uid of a").held[1].units, 2);
}

#[test]
fn pod_on_unknown_gpus_counts_on_every_gpu() {
    for edited in [
        &[][..],
        &[(annotation::INDEX, "5")],
        &[(annotation::INDEX, "one")],
        &[(annotation::INDEX, "0"), (annotation::NODE, "m")],
    ] {
        assert_eq!(held(&[pod("a", "8", "Running", edited)]), [8, 8], "{edited:?}");
        // The pod does not start before its annotations are repaired; until then its memory stays
        // reserved.
        let kept = if edited.is_empty() { [0, 0] } else { [8, 8] };
        assert_eq!(held(&[pod("a", "8", "Pending", edited)]), kept, "{edited:?}");
    }
    // An impossible size, which would scale the pod's units down.
    assert_eq!(
        held(&[pod(
            "a",
            "8",
            "Running",
            &[(annotation::INDEX, "1"), (annotation::DEVICE, "2200")]
        )]),
        [8, 8]
    );
    assert_eq!(
        held(&[pod("a", "8", "Running", &[(annotation::INDEX, "1"), (annotation::DEVICE, "179")])]),
        [0, 1]
    );
    // A pod with invalid limits does not start. If one runs, it may hold everything.
    assert_eq!(held(&[pod("a", "-8", "Running", &[(annotation::INDEX, "0")])]), [14, 22]);
}

#[test]
fn overfull_gpu_is_reported_without_overflow() {
    let pods = [
        pod("a", "10", "Running", &[(annotation::INDEX, "0")]),
        pod("b", "10", "Running", &[(annotation::INDEX, "0")]),
    ];
    let (node, accounting) = (node(), NodeAccounting::of(&node(), pods.iter().flatten()));
    assert_eq!(accounting.overfull(&node).collect::<Vec<_>>(), [0]);
    assert_eq!(accounting.free(&node, 0).units, 0);
}

#[test]
fn holding_without_gpus_has_a_reason() {
    let holding = |annotations: &[(&str, &str)]| match Holding::of(
        &pod("a", "8", "Running", annotations).unwrap(),
        &node(),
    ) {
        Holding::Unclear(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(holding(&[]), "no GPU was chosen for it: it bypassed the scheduler extender");
    assert_eq!(
        holding(&[(annotation::INDEX, "0"), (annotation::NODE, "m")]),
        "its GPUs were chosen on node `m`, but it is bound to `n`"
    );
}

#[test]
fn deleted_pod_holds_its_room_while_its_container_lives() {
    let held = |text: &str, conditions: Vec<Condition>| {
        let mut object = Node::default();
        object.metadata.name = "n".into();
        object.metadata.annotations = [
            (
                annotation::GPUS.to_owned(),
                r#"{"unit":"GiB","gpus":[{"uuid":"a","mib":15109},{"uuid":"b","mib":23028}]}"#
                    .to_owned(),
            ),
            (annotation::HELD.to_owned(), text.to_owned()),
        ]
        .into();
        object.status.conditions = conditions;
        object
    };
    let report = r#"{"uid of a":{"pod":"t/a","gpus":{"1":{"mib":8373,"percent":30,"containers":1}}},
        "uid of z":{"pod":"t/z","gpus":{"7":{"mib":1,"percent":0,"containers":1}}}}"#;
    let running = pod("a", "8", "Running", &[(annotation::INDEX, "1")]);
    let node = NodeGpus::of(&held(report, vec![]));
    let share = Share { units: 8, percent: 30, containers: 1 };
    // While the pod is there, its object counts.
    let with = NodeAccounting::of(&node, running.iter());
    assert_eq!((with.held[1].units, with.held[1].percent), (8, 0));
    assert_eq!(with.without(&node, "uid of a").held[1], Share::NONE);
    let without = NodeAccounting::of(&node, []);
    assert_eq!(without.held, [Share::NONE, share]);
    assert_eq!(without.units(1), 8);
    assert_eq!(without.without(&node, "another").held[1], share);
    // A report that is not understood may hide anything.
    assert!(NodeGpus::of(&held("much", vec![])).closed.is_some());

    // The report of a node that is gone counts for a time, and again when it is back.
    let ready = |status: &str| {
        let (kind, status) = ("Ready".into(), status.into());
        vec![Condition { kind, status, ..Condition::default() }]
    };
    let mut cluster = Cluster::default();
    let units = |cluster: &Cluster| cluster.node("n").unwrap().1.held[1].units;
    cluster.apply_node(&held(report, ready("True")));
    cluster.expire_reports(5, 10);
    cluster.expire_reports(100, 10);
    assert_eq!(units(&cluster), 8);
    cluster.apply_node(&held(report, ready("Unknown")));
    cluster.expire_reports(105, 10);
    cluster.apply_node(&held(report, ready("False")));
    cluster.expire_reports(114, 10);
    assert_eq!(units(&cluster), 8);
    cluster.expire_reports(115, 10);
    assert_eq!(units(&cluster), 0);
    cluster.apply_node(&held(report, ready("Unknown")));
    assert_eq!(units(&cluster), 0);
    cluster.apply_node(&held(report, ready("True")));
    assert_eq!(units(&cluster), 8);
    assert!(cluster.is_valid());
}
