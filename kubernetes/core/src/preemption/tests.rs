use super::*;
use crate::extender::{self, Binding, Candidates};
use crate::fixture::{node, sharing};
use crate::names::{Dialects, annotation};
use serde_json::{Value, json};

fn on(name: &str, units: u64, gpu: u32, priority: i32) -> Pod {
    let mut pod = sharing(name, units);
    pod.spec.node_name = "n".into();
    pod.spec.priority = priority;
    let allocation = json!({"0": {gpu.to_string(): units}}).to_string();
    pod.metadata.annotations = [(annotation::ALLOCATION.to_owned(), allocation)].into();
    pod
}

fn pending(name: &str, units: u64, priority: i32, nominated: &str) -> Pod {
    let mut pod = sharing(name, units);
    pod.spec.priority = priority;
    pod.status.nominated_node_name = nominated.into();
    pod
}

fn cluster(pods: &[Pod]) -> Cluster {
    let mut cluster = Cluster::new(Dialects::default());
    cluster.replace(&[node("n", "GiB", &[14 << 10, 14 << 10])], pods);
    assert!(cluster.is_valid());
    cluster
}

fn crowded() -> [Pod; 4] {
    [on("a", 7, 0, 1), on("b", 7, 0, 2), on("c", 7, 1, 1), on("d", 7, 1, 2)]
}

fn ask(cluster: &Cluster, body: &Value) -> Value {
    let question = question(body.to_string().as_bytes(), cluster).unwrap();
    serde_json::to_value(preempt(cluster, &[], &question)).unwrap()
}

#[test]
fn both_forms_of_the_question_have_the_same_answer() {
    let cluster = cluster(&crowded());
    let high = pending("high", 14, 9, "");
    let answer = json!({"NodeNameToMetaVictims": {
        "n": {"Pods": [{"UID": "uid-d"}, {"UID": "uid-c"}], "NumPDBViolations": 0},
    }});
    let meta = json!({"n": {"Pods": [{"UID": "uid-a"}, {"UID": "uid-c"}], "NumPDBViolations": 0}});
    let body = json!({"Pod": high, "NodeNameToVictims": null, "NodeNameToMetaVictims": meta});
    assert_eq!(ask(&cluster, &body), answer);
    let [a, _, c, _] = crowded();
    let whole = json!({"n": {"Pods": [a, c], "NumPDBViolations": 0}, "other": {"Pods": [a]}});
    let body = json!({"Pod": high, "NodeNameToVictims": whole, "NodeNameToMetaVictims": null});
    assert_eq!(ask(&cluster, &body), answer);
    // Empty lists.
    for empty in [json!(null), json!({}), json!({"Pods": null}), json!({"Pods": []})] {
        let body = json!({"Pod": high, "NodeNameToMetaVictims": {"n": empty, "other": null}});
        let found = ask(&cluster, &body);
        assert_eq!(found["NodeNameToMetaVictims"]["n"]["Pods"].as_array().unwrap().len(), 2);
        assert!(found["NodeNameToMetaVictims"]["other"].is_null());
    }
}

#[test]
fn node_that_needs_no_victims_is_left_out() {
    let none = json!({"NodeNameToMetaVictims": {}});
    let cluster = cluster(&[on("a", 7, 0, 1)]);
    let body = |pod: &Pod| json!({"Pod": pod, "NodeNameToMetaVictims": {"n": {"Pods": []}}});
    assert_eq!(ask(&cluster, &body(&pending("high", 14, 9, ""))), none);
    assert_eq!(ask(&cluster, &body(&pending("large", 15, 9, ""))), none);
    assert_eq!(ask(&cluster, &json!({})), none);
    // A whole pod of no lower priority, which the copy does not have.
    let mut other = on("other", 1, 0, 9);
    other.spec.containers.clear();
    let body = json!({"Pod": pending("high", 14, 9, ""),
        "NodeNameToVictims": {"n": {"Pods": [other]}}});
    assert_eq!(ask(&cluster, &body), none);
}

#[test]
fn pod_without_gpus_keeps_the_victims_of_the_scheduler() {
    let cluster = cluster(&[]);
    let mut plain = pending("plain", 1, 9, "");
    plain.spec.containers.clear();
    let victims = json!({"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}, "m": {"Pods": []}});
    let body = json!({"Pod": plain, "NodeNameToMetaVictims": victims});
    let answer = json!({"n": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}});
    assert_eq!(ask(&cluster, &body)["NodeNameToMetaVictims"], answer);
}

#[test]
fn question_with_too_many_names_is_refused() {
    let cluster = cluster(&[]);
    let many: Vec<Value> = vec![json!({}); MAX_VICTIMS + 1];
    let refused = |body: Value| question(body.to_string().as_bytes(), &cluster).unwrap_err();
    let whole = refused(json!({"NodeNameToVictims": {"n": {"Pods": many}}}));
    assert!(whole.message().contains("expected at most 10000"), "{whole}");
    let nodes: BTreeMap<String, Value> =
        (0..2000).map(|node| (node.to_string(), json!(null))).collect();
    let named = refused(json!({"NodeNameToMetaVictims": nodes}));
    assert!(named.message().contains("names 2000 nodes, but the cluster has 1"), "{named}");
}

fn fits(cluster: &Cluster, pod: &Pod) -> bool {
    let names = Some(vec!["n".to_owned()]);
    let candidates = Candidates { pod: Some(pod.clone()), nodes: None, node_names: names };
    let filtered = extender::filter(cluster, &candidates).node_names == Some(vec!["n".into()]);
    let binding = Binding {
        pod_name: pod.metadata.name.clone(),
        pod_namespace: "test".into(),
        pod_uid: pod.metadata.uid.clone(),
        node: "n".into(),
    };
    assert_eq!(extender::bind(cluster, &binding, 1).is_ok(), filtered, "{}", pod.metadata.name);
    filtered
}

#[test]
fn freed_room_belongs_to_the_nominated_pod() {
    let (high, low) = (pending("high", 14, 9, "n"), pending("low", 5, 1, ""));
    let (equal, higher) = (pending("equal", 5, 9, ""), pending("higher", 5, 10, ""));
    let others = [on("c", 10, 1, 2), high.clone(), low.clone(), equal.clone(), higher.clone()];
    let with = |more: &[Pod]| cluster(&[&others[..], more].concat());
    // Both victims run, one of them, none.
    for more in [&[on("a", 7, 0, 1), on("b", 7, 0, 1)][..], &[on("a", 7, 0, 1)], &[]] {
        let cluster = with(more);
        assert!(!fits(&cluster, &low) && !fits(&cluster, &equal), "{} victims", more.len());
        assert_eq!(fits(&cluster, &higher), more.len() < 2);
        assert_eq!(fits(&cluster, &high), more.is_empty());
    }
    // Deleted, nominated elsewhere, bound.
    let mut cluster = with(&[]);
    cluster.delete_pod("uid-high");
    assert!(fits(&cluster, &low) && cluster.is_valid());
    for change in [pending("high", 14, 9, "m"), on("high", 5, 0, 9)] {
        let mut cluster = with(&[]);
        cluster.apply_pod(&change);
        assert!(fits(&cluster, &low) && cluster.is_valid());
    }
}

#[test]
fn older_of_two_nominated_pods_of_equal_priority_is_first() {
    let nominated = |name: &str, created: &str| {
        let mut pod = pending(name, 14, 9, "n");
        pod.metadata.creation_timestamp = created.into();
        pod
    };
    let old = nominated("old", "2026-01-01T00:00:00Z");
    let new = nominated("new", "2026-01-01T00:00:01Z");
    let cluster = cluster(&[on("c", 10, 1, 9), old.clone(), new.clone()]);
    assert!(fits(&cluster, &old) && !fits(&cluster, &new));
}

#[test]
fn claim_in_the_room_of_a_nominated_pod_is_not_confirmed() {
    let (high, mut low) = (pending("high", 14, 9, "n"), pending("low", 5, 1, ""));
    // A copy that does not know the nomination.
    let stale = cluster(&[on("c", 10, 1, 2), low.clone()]);
    let binding = Binding {
        pod_name: "low".into(),
        pod_namespace: "test".into(),
        pod_uid: "uid-low".into(),
        node: "n".into(),
    };
    extender::bind(&stale, &binding, 1).unwrap().apply(&mut low);
    let listed = |pods: &[Pod]| -> Vec<std::sync::Arc<PodRequest>> {
        let of = |pod: &Pod| PodRequest::of(pod, Dialects::default()).map(std::sync::Arc::new);
        pods.iter().filter_map(of).collect()
    };
    let others = [on("c", 10, 1, 2), low.clone()];
    assert_eq!(stale.confirm_listed("uid-low", "n", &listed(&others)), Ok(()));
    let all = [&others[..], &[high]].concat();
    let refusals = [
        stale.confirm_listed("uid-low", "n", &listed(&all)),
        // The copy knows it by now.
        cluster(&all).confirm("uid-low", "n"),
    ];
    for refusal in refusals.map(Result::unwrap_err) {
        assert!(refusal.message().contains("GPU 0 of node `n` is kept for a pod"), "{refusal}");
    }
}

#[test]
fn fragmented_node_names_the_pods_in_the_way() {
    let cluster = cluster(&[on("a", 8, 0, 1), on("b", 7, 1, 1), on("d", 6, 1, 20)]);
    let ask = |units: u64, priority: i32| {
        let pod = PodRequest::of(&pending("p", units, priority, ""), Dialects::default()).unwrap();
        fragmented(&cluster, &pod, ["m", "n"]).map(|found| (found.node.name.clone(), found.pods))
    };
    assert_eq!(ask(8, 9), Some(("n".to_owned(), vec!["test/b".to_owned()])));
    assert_eq!(ask(14, 9), Some(("n".to_owned(), vec!["test/a".to_owned()])));
    assert_eq!(ask(8, 1), None, "no lower priority");
    assert_eq!(ask(6, 9), None, "it fits");
    let (node, accounting) = cluster.node("n").unwrap();
    let in_sum = |units: u64| {
        let pod = PodRequest::of(&pending("p", units, 9, ""), Dialects::default()).unwrap();
        suffices_in_sum(node, accounting, &pod.resource_request().unwrap())
    };
    assert!(in_sum(7) && !in_sum(8));
}
