//! Pods of gangs, and pods that are on their way: what filter and prioritize answer others.

use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::Fixture;

fn fixture() -> Fixture {
    Fixture::with(&[node("n1", &[15109]), node("n2", &[15109])])
}

fn names(filtered: &Value) -> &Value {
    &filtered["NodeNames"]
}

/// Returns the scores of the nodes.
fn scores(extender: &Extender, pod: &Value) -> Vec<u64> {
    let body = json!({"Pod": pod, "Nodes": null, "NodeNames": ["n1", "n2"]}).to_string();
    let reply =
        extender.connection().request("POST", "/gpushare-scheduler/prioritize", &body).json();
    let all = reply.as_array().expect("scores");
    all.iter().map(|one| one["Score"].as_u64().expect("a score")).collect()
}

#[test]
fn pods_of_a_gang_are_answered_one_node_each() {
    let fixture = fixture();
    let pods = ["a", "b", "c"].map(|name| {
        let mut pod = pod("test", name, 8);
        pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
        fixture.pod(pod)
    });
    let other = fixture.pod(pod("test", "other", 8));
    let extender = fixture.extender();
    let answered = |pod: &Value| names(&extender.filter(pod, &["n1", "n2"])).clone();
    assert_eq!(answered(&pods[0]), json!(["n1"]));
    assert_eq!(answered(&pods[1]), json!(["n2"]));
    assert_eq!(answered(&pods[2]), json!([]));
    assert_eq!(answered(&other), json!([]));
    assert_eq!(answered(&pods[0]), json!(["n1"]), "asked again");
    assert_eq!(extender.bind(&pods[0], "n1").json()["Error"], "");
    assert_eq!(extender.bind(&pods[1], "n2").json()["Error"], "");
}

/// As kube-scheduler 1.35 and 1.36 write it when a pod has waited in vain.
#[test]
fn room_of_a_pod_that_its_scheduler_gave_up_is_free_although_it_is_nominated() {
    let fixture = fixture();
    let mut waiting = pod("test", "waiting", 14);
    waiting["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = json!("g");
    let mut waiting = fixture.pod(waiting);
    let other = fixture.pod(pod("test", "other", 14));
    let extender = fixture.extender();
    let answered = |pod: &Value| names(&extender.filter(pod, &["n1", "n2"])).clone();
    assert_eq!(answered(&waiting), json!(["n1"]));
    waiting["status"]["nominatedNodeName"] = json!("n1");
    fixture.pod(waiting.clone());
    assert_eq!(answered(&other), json!(["n2"]));
    waiting["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "1 rejected due to timeout after waiting 10s"}]);
    fixture.pod(waiting);
    until_holds("its room is free", || answered(&other) == json!(["n1", "n2"]));
}

#[test]
fn node_that_a_pod_on_its_way_may_fill_has_a_lower_score() {
    let fixture = fixture();
    let mut on_n1 = pod("test", "held", 4);
    on_n1["spec"]["nodeName"] = json!("n1");
    on_n1["metadata"]["annotations"] = json!({"ALIYUN_COM_GPU_MEM_IDX": "0"});
    fixture.pod(on_n1);
    let [first, second] = ["first", "second"].map(|name| fixture.pod(pod("test", name, 9)));
    let extender = fixture.extender();
    assert_eq!(scores(&extender, &second), [10, 0], "the fullest node first");
    assert_eq!(*names(&extender.filter(&first, &["n1", "n2"])), json!(["n1", "n2"]));
    assert_eq!(scores(&extender, &second), [4, 5], "n1 has too little for parts of both");
    assert_eq!(*names(&extender.filter(&second, &["n1", "n2"])), json!(["n1", "n2"]));
    assert_eq!(extender.bind(&first, "n2").json()["Error"], "");
    assert_eq!(scores(&extender, &second)[0], 10, "its node is known");
}
