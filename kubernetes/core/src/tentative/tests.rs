use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::DEADLINE;
use crate::cluster::Cluster;
use crate::extender::{Binding, Candidates, bind, filter_and_place, prioritize};
use crate::fixture::{node, sharing};
use crate::gpus::Placement;
use crate::names::{Dialects, GANGS};
use crate::object::{Condition, Node, Pod};

/// Units of the only GPU of each node of these tests.
const UNITS: u64 = 14;

fn nodes() -> [Node; 2] {
    [node("n1", "GiB", &[15109]), node("n2", "GiB", &[15109])]
}

fn cluster(pods: &[Pod]) -> Cluster {
    let mut cluster = Cluster::new(Dialects::default());
    cluster.replace(&nodes(), pods);
    cluster
}

fn of_gang(mut pod: Pod) -> Pod {
    pod.metadata.labels.insert(GANGS[0].into(), "g".into());
    pod
}

fn candidates(pod: &Pod) -> Candidates {
    let names = Some(vec!["n1".into(), "n2".into()]);
    Candidates { pod: Some(pod.clone()), nodes: None, node_names: names }
}

/// Returns the nodes that filter answers.
fn answered(cluster: &mut Cluster, pod: &Pod, now: u64) -> Vec<String> {
    let answer = filter_and_place(cluster, &candidates(pod), Placement::Binpack, now);
    answer.node_names.unwrap_or_default()
}

/// Applies a pod in its next version.
fn apply_next(cluster: &mut Cluster, pod: &mut Pod) {
    let version: u64 = pod.metadata.resource_version.parse().unwrap();
    pod.metadata.resource_version = (version + 1).to_string();
    cluster.apply_pod(pod);
}

fn binding(pod: &Pod, node: &str) -> Binding {
    Binding {
        pod_name: pod.metadata.name.clone(),
        pod_namespace: "test".into(),
        pod_uid: pod.metadata.uid.clone(),
        node: node.into(),
    }
}

#[test]
fn pods_of_a_gang_that_wait_have_different_room() {
    let pods = ["a", "b", "c"].map(|name| of_gang(sharing(name, 8)));
    let mut cluster = cluster(&pods);
    assert_eq!(answered(&mut cluster, &pods[0], 1), ["n1"], "one of two");
    assert_eq!(answered(&mut cluster, &pods[1], 1), ["n2"]);
    assert!(answered(&mut cluster, &pods[2], 1).is_empty());
    // Others find no room there either, unless they go before it.
    let mut other = sharing("other", 8);
    assert!(answered(&mut cluster, &other, 1).is_empty());
    other.spec.priority = 1;
    assert_eq!(answered(&mut cluster, &other, 1), ["n1", "n2"]);
    assert_eq!(answered(&mut cluster, &sharing("small", 6), 1), ["n1", "n2"]);
    // The pod itself finds its room at its binding, and no other pod does.
    assert!(bind(&cluster, &binding(&pods[0], "n1"), 1).is_ok());
    assert!(bind(&cluster, &binding(&pods[2], "n1"), 1).is_err());
}

#[test]
fn placement_ends_with_the_first_sign_of_the_scheduler() {
    let nominated = |pod: &mut Pod| pod.status.nominated_node_name = "n2".into();
    let bound = |pod: &mut Pod| {
        pod.spec.node_name = "n2".into();
        pod.metadata.annotations = crate::fixture::texts(&[("ALIYUN_COM_GPU_MEM_IDX", "0")]);
    };
    type Sign = fn(&mut Pod);
    for (sign, change) in [("nominated elsewhere", nominated as Sign), ("bound elsewhere", bound)] {
        let mut pod = of_gang(sharing("a", 14));
        let mut cluster = cluster(std::slice::from_ref(&pod));
        assert_eq!(answered(&mut cluster, &pod, 1), ["n1"]);
        change(&mut pod);
        pod.metadata.resource_version = "2".into();
        cluster.apply_pod(&pod);
        assert_eq!(answered(&mut cluster, &sharing("other", 14), 1), ["n1"], "{sign}");
    }
}

#[test]
fn placement_ends_at_its_deadline_with_its_pod_and_with_a_new_filter() {
    let pod = of_gang(sharing("a", 14));
    let other = sharing("other", 14);
    let mut cluster = cluster(&[pod.clone(), other.clone()]);
    let mut placed = || {
        assert_eq!(answered(&mut cluster, &pod, 5), ["n1"], "the same node again, not the other");
        assert_eq!(answered(&mut cluster, &other, 5), ["n2"]);
    };
    placed();
    placed();
    cluster.expire_placements(4 + DEADLINE);
    assert_eq!(answered(&mut cluster, &other, 5), ["n2"]);
    cluster.expire_placements(5 + DEADLINE);
    assert_eq!(answered(&mut cluster, &other, 5), ["n1", "n2"]);
    assert_eq!(answered(&mut cluster, &pod, 5), ["n1"]);
    cluster.delete_pod(&pod.metadata.uid);
    assert_eq!(answered(&mut cluster, &other, 5), ["n1", "n2"]);
    assert_eq!(answered(&mut cluster, &pod, 5), ["n1"]);
    cluster.replace(&nodes(), [&other]);
    assert_eq!(answered(&mut cluster, &other, 5), ["n1", "n2"], "it is not listed");
}

#[test]
fn pod_that_is_filtered_again_counts_once() {
    let mut first = of_gang(sharing("a", 4));
    let second = of_gang(sharing("b", 10));
    let mut cluster = cluster(&[first.clone(), second.clone()]);
    assert_eq!(answered(&mut cluster, &second, 1), ["n1"]);
    first.status.nominated_node_name = "n1".into();
    first.metadata.resource_version = "2".into();
    cluster.apply_pod(&first);
    assert_eq!(answered(&mut cluster, &first, 1), ["n1"]);
    assert!(bind(&cluster, &binding(&second, "n1"), 1).is_ok(), "4 and 10 of 14");
    // An old nomination is no sign of where it is now.
    let third = of_gang(sharing("c", 14));
    assert_eq!(answered(&mut cluster, &third, 1), ["n2"]);
}

fn failed(pod: &mut Pod, message: &str) {
    let [kind, status, message] = ["PodScheduled", "False", message].map(String::from);
    pod.status.conditions = vec![Condition { kind, status, message }];
}

/// kube-scheduler 1.35 and 1.36 write the failure, but leave the node until the second one.
#[test]
fn placement_ends_when_its_scheduler_gives_up_and_leaves_the_node() {
    let mut pod = of_gang(sharing("a", 14));
    failed(&mut pod, "its gang is not complete");
    let other = sharing("other", 14);
    let mut cluster = cluster(&[pod.clone(), other.clone()]);
    assert_eq!(answered(&mut cluster, &pod, 1), ["n1"]);
    pod.status.nominated_node_name = "n1".into();
    apply_next(&mut cluster, &mut pod);
    apply_next(&mut cluster, &mut pod);
    assert_eq!(answered(&mut cluster, &other, 1), ["n2"], "it waits");
    failed(&mut pod, "rejected after 10 s");
    apply_next(&mut cluster, &mut pod);
    assert_eq!(answered(&mut cluster, &other, 1), ["n1", "n2"]);
    // What takes the room may be bound, and the pod's next filter comes after it.
    let mut taken = other;
    bind(&cluster, &binding(&taken, "n1"), 1).unwrap().apply(&mut taken);
    apply_next(&mut cluster, &mut taken);
    assert_eq!(cluster.confirm(&taken.metadata.uid, "n1"), Ok(()));
    assert_eq!(answered(&mut cluster, &pod, 1), ["n2"]);
    cluster.delete_pod(&taken.metadata.uid);
    assert_eq!(answered(&mut cluster, &pod, 1), ["n1"], "as its object shows it");
    let third = sharing("third", 14);
    assert_eq!(answered(&mut cluster, &third, 1), ["n2"]);
    // The second failure clears it.
    pod.status.nominated_node_name.clear();
    apply_next(&mut cluster, &mut pod);
    assert_eq!(answered(&mut cluster, &third, 1), ["n1", "n2"]);
}

/// Its claim on the first GPU was refused, because the later one would have that without it.
#[test]
fn claim_of_a_nominated_pod_stands_beside_a_later_one() {
    let mut pods = ["a", "b"].map(|name| sharing(name, 9));
    for pod in &mut pods {
        pod.status.nominated_node_name = "n1".into();
    }
    let mut cluster = Cluster::new(Dialects::default());
    cluster.replace(&[node("n1", "GiB", &[15109, 15109])], &pods);
    for pod in &mut pods {
        bind(&cluster, &binding(pod, "n1"), 1).unwrap().apply(pod);
        apply_next(&mut cluster, pod);
        assert_eq!(cluster.confirm(&pod.metadata.uid, "n1"), Ok(()), "{}", pod.metadata.name);
    }
}

#[test]
fn pod_of_a_gang_is_known_by_each_scheduler() {
    let is_placed = |pod: &Pod| crate::extender::is_placed(pod, Dialects::default());
    assert!(!is_placed(&sharing("a", 1)));
    for name in GANGS {
        let mut pod = sharing("a", 1);
        pod.metadata.annotations.insert(name.into(), "g".into());
        assert!(is_placed(&pod), "annotation {name}");
        let mut pod = sharing("a", 1);
        pod.metadata.labels.insert(name.into(), "g".into());
        assert!(is_placed(&pod), "label {name}");
    }
    for field in [r#"schedulingGroup":{"podGroupName"#, r#"workloadRef":{"podGroup"#] {
        let text = format!(
            r#"{{"metadata":{{"name":"a","uid":"u"}},"spec":{{"{field}":"g"}},"containers":
                [{{"name":"main","resources":{{"limits":{{"aliyun.com/gpu-mem":"1"}}}}}}]}}}}"#
        );
        assert!(is_placed(&serde_json::from_str(&text).unwrap()), "{field}");
    }
    assert!(!is_placed(&of_gang(crate::fixture::pod("a", &[]))), "it requests no GPU");
}

/// Of two pods that want a node the older one goes first, at binding and when the claim is
/// confirmed, also where the younger one's object has nominated the node for longer.
#[test]
fn claim_of_a_placed_pod_is_confirmed_beside_a_nominated_one() {
    let mut cluster = Cluster::new(Dialects::default());
    let mut older = of_gang(sharing("a", 12));
    let mut younger = of_gang(sharing("b", 3));
    younger.status.nominated_node_name = "n1".to_owned();
    cluster.replace(&[node("n1", "GiB", &[15109, 15109])], &[older.clone(), younger]);
    assert_eq!(answered(&mut cluster, &older, 1), ["n1"]);
    let change = bind(&cluster, &binding(&older, "n1"), 1).unwrap();
    change.apply(&mut older);
    apply_next(&mut cluster, &mut older);
    assert_eq!(cluster.confirm(&older.metadata.uid, "n1"), Ok(()));
}

#[derive(Clone, Debug)]
enum Event {
    /// The scheduler asks for a node, and holds the pod back.
    Filter(usize),
    /// It binds a pod to the node that it was answered.
    Bind(usize),
    /// It shows the node that it was answered.
    Nominate(usize),
    /// The pod is deleted, and made anew.
    Replace(usize),
    Expire(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let pod = || 0..6_usize;
    prop_oneof![
        4 => pod().prop_map(Event::Filter),
        2 => pod().prop_map(Event::Bind),
        1 => pod().prop_map(Event::Nominate),
        1 => pod().prop_map(Event::Replace),
        1 => (0..2 * DEADLINE).prop_map(Event::Expire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A gang and a scheduler that waits, in any order: the pods that it holds back, nominates and
    /// has bound fit together, each can be bound where it was placed, and nothing stays behind.
    #[test]
    fn waiting_pods_fit_together(
        units in prop::collection::vec(1..=UNITS, 6),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut generation = 0;
        let mut make = |at: usize| {
            generation += 1;
            of_gang(sharing(&format!("p{at}-{generation}"), units[at]))
        };
        let mut pods: Vec<Pod> = (0..6).map(&mut make).collect();
        let mut cluster = Cluster::new(Dialects::default());
        let two = ["n1", "n2"].map(|name| node(name, "GiB", &[15109, 15109]));
        cluster.replace(&two, &pods);
        let mut now = 1;
        // What the scheduler knows: its node for each pod, since when.
        let mut waiting: BTreeMap<usize, (String, u64)> = BTreeMap::new();
        for event in events {
            match event {
                Event::Filter(at) if pods[at].spec.node_name.is_empty() => {
                    waiting.remove(&at);
                    let answer = answered(&mut cluster, &pods[at], now);
                    prop_assert!(answer.len() <= 1);
                    if let Some(node) = answer.into_iter().next() {
                        let ranked = prioritize(
                            &cluster, &candidates(&pods[at]), Placement::Binpack, &HashMap::new()
                        );
                        prop_assert_eq!(ranked.len(), 2);
                        waiting.insert(at, (node, now));
                    }
                }
                Event::Bind(at) => if let Some((node, since)) = waiting.remove(&at) {
                    let change = bind(&cluster, &binding(&pods[at], &node), now);
                    // After its deadline another may have its room.
                    prop_assert!(change.is_ok() || now >= since + DEADLINE, "{:?}", change);
                    let pod = &mut pods[at];
                    let Ok(change) = change else { continue };
                    change.apply(pod);
                    apply_next(&mut cluster, pod);
                    let confirmed = cluster.confirm(&pod.metadata.uid, &node);
                    prop_assert!(
                        confirmed.is_ok() || now >= since + DEADLINE, "{:?}", confirmed
                    );
                    pod.spec.node_name = node;
                    apply_next(&mut cluster, pod);
                },
                Event::Nominate(at) => if let Some((node, since)) = waiting.get_mut(&at) {
                    if now >= *since + DEADLINE { continue }
                    // From now on the API server's object keeps the room.
                    *since = u64::MAX - DEADLINE;
                    let pod = &mut pods[at];
                    pod.status.nominated_node_name.clone_from(node);
                    apply_next(&mut cluster, pod);
                },
                Event::Replace(at) => {
                    waiting.remove(&at);
                    cluster.delete_pod(&pods[at].metadata.uid);
                    pods[at] = make(at);
                    cluster.apply_pod(&pods[at]);
                }
                Event::Expire(time) => {
                    now += time;
                    cluster.expire_placements(now);
                }
                Event::Filter(_) => {}
            }
            for name in ["n1", "n2"] {
                let bound = (0..6).filter(|at| pods[*at].spec.node_name == name);
                let held = waiting.iter().filter(|(_, (node, since))| {
                    node == name && now < since.saturating_add(DEADLINE)
                });
                let sum: u64 = bound.chain(held.map(|(at, _)| *at)).map(|at| units[at]).sum();
                prop_assert!(sum <= 2 * UNITS, "{name}: {sum}");
            }
        }
        for pod in &pods {
            cluster.delete_pod(&pod.metadata.uid);
        }
        prop_assert_eq!(answered(&mut cluster, &sharing("last", UNITS), now), ["n1", "n2"]);
    }
}
