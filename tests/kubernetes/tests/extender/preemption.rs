//! The question whom to evict, room for nominated pods, and events about fragmented nodes.

use cgpu_kubernetes_tests::api_server::{Fault, FaultAction};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::http::Reply;
use cgpu_kubernetes_tests::objects::{node, pod, pod_with};
use serde_json::{Value, json};

use crate::{Fixture, key, running};

pub(crate) fn with_priority(mut pod: Value, priority: i32) -> Value {
    pod["spec"]["priority"] = json!(priority);
    pod
}

/// A node of two GPUs that are full.
pub(crate) fn crowded() -> Fixture {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    for (name, gpu, priority) in [("a", 0, 1), ("b", 0, 2), ("c", 1, 1), ("d", 1, 3)] {
        fixture.pod(with_priority(running(pod("test", name, 7), "n1", gpu, 7), priority));
    }
    fixture
}

pub(crate) fn preempt(extender: &Extender, pod: &Value, victims: &[&Value]) -> Reply {
    let pods: Vec<Value> =
        victims.iter().map(|victim| json!({"UID": victim["metadata"]["uid"]})).collect();
    let body = json!({
        "Pod": pod, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n1": {"Pods": pods, "NumPDBViolations": 0}},
    });
    extender.connection().request("POST", "/gpushare-scheduler/preempt", &body.to_string())
}

/// The names of the victims on the node in a reply.
pub(crate) fn victims(fixture: &Fixture, reply: &Reply) -> Vec<String> {
    assert_eq!(reply.status, 200, "{reply:?}");
    let answer = reply.json();
    let pods = fixture.server.objects("pods");
    let name = |victim: &Value| {
        let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == victim["UID"]).expect("a pod");
        pod["metadata"]["name"].as_str().expect("a name").to_owned()
    };
    let listed = answer["NodeNameToMetaVictims"]["n1"]["Pods"].as_array();
    listed.into_iter().flatten().map(name).collect()
}

#[test]
fn victims_free_one_gpu_and_obey_budgets() {
    let fixture = crowded();
    let high = fixture.pod(with_priority(pod("test", "high", 14), 9));
    let [a, c] = ["a", "c"].map(|name| fixture.now(&pod("test", name, 7)));
    let extender = fixture.extender();
    // The scheduler's choice by sums: the two pods of the lowest priority, one of each GPU.
    assert_eq!(victims(&fixture, &preempt(&extender, &high, &[&a, &c])), ["b", "a"]);
    let label = json!({"matchLabels": {"app": "b"}});
    let budget = fixture.server.put(
        "poddisruptionbudgets",
        json!({"metadata": {"name": "b", "namespace": "test"}, "spec": {"selector": label},
            "status": {"disruptionsAllowed": 0}}),
    );
    assert_eq!(budget["metadata"]["name"], "b");
    assert_eq!(victims(&fixture, &preempt(&extender, &high, &[&a, &c])), ["d", "c"]);
    // Without the budgets nothing is evicted.
    let refuse = FaultAction::Refuse(403, "Forbidden");
    fixture.server.fault(Fault::next("GET", "/poddisruptionbudgets", refuse));
    assert_eq!(preempt(&extender, &high, &[&a, &c]).status, 503);
    let body = r#"{"NodeNameToMetaVictims": 7}"#;
    let reply = extender.connection().request("POST", "/gpushare-scheduler/preempt", body);
    assert_eq!(reply.status, 400);
}

#[test]
fn freed_room_is_kept_until_the_nominated_pod_is_bound() {
    let fixture = crowded();
    let mut high = with_priority(pod("test", "high", 14), 9);
    high["status"]["nominatedNodeName"] = json!("n1");
    let high = fixture.pod(high);
    let low = fixture.pod(with_priority(pod("test", "low", 7), 5));
    let extender = fixture.extender();
    for name in ["a", "b"] {
        assert!(fixture.server.remove(&key(&pod("test", name, 7))));
    }
    fixture.wait_for_units(&extender, "n1", 14);
    assert_eq!(extender.filter(&low, &["n1"])["NodeNames"], json!([]));
    assert_eq!(extender.bind(&low, "n1").status, 500);
    assert_eq!(extender.filter(&high, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&high, "n1").status, 200);
    assert!(fixture.server.remove(&key(&high)));
    fixture.wait_for_units(&extender, "n1", 14);
    assert_eq!(extender.bind(&low, "n1").status, 200);
}

#[test]
fn fragmented_node_is_an_event_unless_the_scheduler_asks() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let victim = fixture.pod(with_priority(running(pod("test", "a", 8), "n1", 0, 8), 1));
    fixture.pod(with_priority(running(pod("test", "b", 7), "n1", 1, 7), 20));
    let [asked, waits] =
        ["asked", "waits"].map(|name| fixture.pod(with_priority(pod("test", name, 8), 9)));
    // kube-scheduler does not count HAMi's memory, so it has the node with too little in all.
    let beyond = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "15000"});
    let beyond = fixture.pod(with_priority(pod_with("test", "beyond", &beyond), 9));
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--hami"]);
    for pod in [&beyond, &asked, &waits, &waits] {
        assert_eq!(extender.filter(pod, &["n1"])["NodeNames"], json!([]));
    }
    assert_eq!(victims(&fixture, &preempt(&extender, &asked, &[])), ["a"]);
    assert_eq!(
        fixture.event(&waits, "GpuFragmented"),
        "on node `n1` enough is free in all, but not on one GPU, and the scheduler evicts no pods \
         for that; in the way, with a lower priority: test/a"
    );
    // Another message of the same pod within five minutes.
    fixture.server.remove(&key(&victim));
    fixture.wait_for_units(&extender, "n1", 7);
    fixture.pod(with_priority(running(pod("test", "c", 9), "n1", 0, 9), 1));
    fixture.wait_for_units(&extender, "n1", 16);
    let later = fixture.pod(with_priority(pod("test", "later", 8), 9));
    for pod in [&waits, &later] {
        assert_eq!(extender.filter(pod, &["n1"])["NodeNames"], json!([]));
    }
    assert!(fixture.event(&later, "GpuFragmented").ends_with("test/c"));
    let events = fixture.server.objects("events");
    let of = |pod: &Value| {
        let is_one = |event: &&Value| {
            event["reason"] == "GpuFragmented"
                && event["involvedObject"]["uid"] == pod["metadata"]["uid"]
        };
        events.iter().filter(is_one).count()
    };
    assert_eq!((of(&asked), of(&waits), of(&later), of(&beyond)), (0, 1, 1, 0));
}
