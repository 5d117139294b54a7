//! Valid and invalid requests and settings.

use cgpu_kubernetes_tests::objects::{node, pod, pod_with};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::{Fixture, key, running};

const MEMORY: &str = "aliyun.com/gpu-mem";
const CORE: &str = "aliyun.com/gpu-core.percentage";

impl Fixture {
    /// Asserts that these pods have one event each, and no other object has any.
    fn has_only_events_of(&self, pods: &[&Value]) {
        // Events are written in their order.
        let last = self.pod(labelled("last", &json!({MEMORY: "-2"}), &json!({})));
        self.event(&last, "GpuRequestRefused");
        let events = self.server.objects("events").into_iter();
        let uids = events.map(|event| event["involvedObject"]["uid"].clone());
        let uids: Vec<Value> = uids.filter(|uid| *uid != last["metadata"]["uid"]).collect();
        let expected: Vec<Value> = pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
        assert_eq!(uids, expected);
    }
}

fn labelled(name: &str, limits: &Value, labels: &Value) -> Value {
    let mut pod = pod_with("test", name, limits);
    pod["metadata"]["labels"] = labels.clone();
    pod
}

/// Returns the reason in the form that kube-scheduler gets, which puts the number of nodes before
/// it.
fn counted(reason: &str) -> String {
    format!("node(s) with no GPUs for the pod ({reason})")
}

#[test]
fn invalid_request_fits_no_node_and_has_an_event() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let extender = fixture.extender();
    let count = |gpus: &str| json!({"aliyun.com/gpu-count": gpus});
    let none = json!({});
    for (name, limits, labels, words) in [
        ("negative", json!({MEMORY: "-2"}), none.clone(), "is `-2`, which is"),
        ("fraction", json!({MEMORY: "1.5"}), none.clone(), "is `1.5`, which is not a whole number"),
        (
            "thousandth",
            json!({MEMORY: "1500m"}),
            none.clone(),
            "is `1500m`, which is not a whole number",
        ),
        ("huge", json!({MEMORY: "99999999999999999999"}), none.clone(), "99999999999999999999"),
        ("text", json!({MEMORY: "much"}), none.clone(), "is `much`"),
        ("unit", json!({MEMORY: "2GB"}), none.clone(), "is `2GB`, which is not a quantity"),
        (
            "undivided",
            json!({MEMORY: "7"}),
            count("2"),
            "is 7, which does not divide by the 2 GPUs",
        ),
        ("gpus", json!({MEMORY: "34"}), count("17"), "17"),
        ("label", json!({MEMORY: "2"}), count("two"), "two"),
        ("memoryless", json!({CORE: "50"}), none.clone(), "expected memory as well"),
        ("percent", json!({MEMORY: "2", CORE: "150"}), none, "at most 100"),
    ] {
        let pending = fixture.pod(labelled(name, &limits, &labels));
        let answer = extender.filter(&pending, &["n1", "n2"]);
        assert_eq!(answer["NodeNames"], json!([]), "{name}");
        let reason =
            answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_default().to_owned();
        let event = fixture.event(&pending, "GpuRequestRefused");
        assert!(event.contains(words), "{name}: {event}");
        assert_eq!(reason, counted(&event), "{name}");
        let reply = extender.bind(&pending, "n1");
        assert_eq!(
            (reply.status, reply.json()["Error"].as_str()),
            (500, Some(event.as_str())),
            "{name}"
        );
        assert_eq!(fixture.claim(&pending), [""; 0]);
    }
    // Nor a weight with which its container could not start.
    for weight in ["26", "0", "-1", "much"] {
        let mut heavy = pod_with("test", &format!("weight{weight}"), &json!({MEMORY: "2"}));
        heavy["spec"]["containers"][0]["env"] =
            json!([{"name": "ALIYUN_COM_GPU_SCHD_WEIGHT", "value": weight}]);
        let pending = fixture.pod(heavy);
        let answer = extender.filter(&pending, &["n1"]);
        assert_eq!(answer["NodeNames"], json!([]), "{weight}");
        let event = fixture.event(&pending, "GpuRequestRefused");
        assert!(event.contains("expected a whole number from 1 to 25"), "{weight}: {event}");
        assert_eq!(extender.bind(&pending, "n1").status, 500, "{weight}");
        assert_eq!(fixture.claim(&pending), [""; 0]);
    }
    let events = fixture.server.objects("events");
    let of = |name: &str| {
        events
            .iter()
            .filter(|event| {
                event["involvedObject"]["name"] == name && event["reason"] == "GpuRequestRefused"
            })
            .count()
    };
    let pending =
        fixture.server.object(&key(&labelled("undivided", &json!({}), &json!({})))).unwrap();
    for _ in 0..20 {
        let _ = extender.filter(&pending, &["n1"]);
    }
    assert_eq!(of("undivided"), 1);
}

/// What has a form that is understood, and cannot be fulfilled.
#[test]
fn impossible_request_reserves_nothing_and_has_an_event() {
    const GPUS: &str = "nvidia.com/gpu";
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let options = ["--hami"];
    let extender = cgpu_kubernetes_tests::extender::Extender::start(
        &fixture.server,
        fixture.folder(),
        &options,
    );
    let four = json!({"aliyun.com/gpu-count": "4"});
    let none = json!({});
    for (name, limits, labels, reason, words) in [
        ("both", json!({MEMORY: "2", GPUS: "1"}), &none, "GpuRequestRefused", "requests both"),
        ("many", json!({GPUS: "17"}), &none, "GpuRequestRefused", "expected at most 16"),
        (
            "percent",
            json!({GPUS: "1", "nvidia.com/gpucores": "101"}),
            &none,
            "GpuRequestRefused",
            "is `101`, expected at most 100",
        ),
        ("four", json!({MEMORY: "8"}), &four, "GpuNotBound", "the node has 2"),
        (
            "three",
            json!({GPUS: "3", "nvidia.com/gpumem": "1"}),
            &none,
            "GpuNotBound",
            "the node has 2",
        ),
        ("large", json!({MEMORY: "1M"}), &none, "GpuNotBound", "the largest has 14"),
    ] {
        let pending = fixture.pod(labelled(name, &limits, labels));
        assert_eq!(extender.filter(&pending, &["n1"])["NodeNames"], json!([]), "{name}");
        let event = until(&format!("{name}: an event {reason}"), || {
            // Of a pod that the extender does not know yet it writes no event.
            assert_eq!(extender.bind(&pending, "n1").status, 500, "{name}");
            fixture.event_so_far(&pending, reason)
        });
        assert!(event.contains(words), "{name}: {event}");
        assert_eq!(fixture.claim(&pending), [""; 0], "{name}");
        assert_eq!(fixture.node_of(&pending), None, "{name}");
    }
    for (name, annotation, text, reason, words) in [
        ("uuid", "nvidia.com/use-gpuuuid", "0", "GpuRequestRefused", "expected UUIDs such as"),
        ("mutex", "hami.io/gpu-scheduler-policy", "mutex", "GpuRequestRefused", "is `mutex`"),
        ("none", "nvidia.com/nouse-gpuuuid", "GPU-n1-0,GPU-n1-1", "GpuNotBound", "not permitted"),
    ] {
        let mut pending = labelled(name, &json!({MEMORY: "2"}), &none);
        pending["metadata"]["annotations"] = json!({annotation: text});
        let pending = fixture.pod(pending);
        let filtered = extender.filter(&pending, &["n1"]);
        let why = filtered["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_default();
        assert!(why.contains(words), "{filtered}");
        let event = until(&format!("{name}: an event {reason}"), || {
            assert_eq!(extender.bind(&pending, "n1").status, 500, "{name}");
            fixture.event_so_far(&pending, reason)
        });
        assert!(event.contains(words), "{name}: {event}");
        assert_eq!(fixture.claim(&pending), [""; 0], "{name}");
    }
    let gone = fixture.pod(pod("test", "gone", 2));
    until_holds("the refusal of a node that is gone", || {
        let reply = extender.bind(&gone, "n9");
        assert_eq!(reply.status, 500);
        reply.json()["Error"].as_str().is_some_and(|it| it.contains("the node `n9` is not known"))
    });
    assert_eq!(fixture.claim(&gone), [""; 0]);
    assert_eq!(crate::used(&extender, "n1"), 0);
    // What can be fulfilled still is.
    let fine = fixture.pod(pod("test", "fine", 14));
    assert_eq!(extender.bind(&fine, "n1").status, 200);
}

#[test]
fn request_larger_than_any_gpu_is_unresolvable() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    fixture.pod(running(pod("test", "a", 10), "n1", 0, 10));
    let extender = fixture.extender();
    let answer = extender.filter(&fixture.pod(pod("test", "large", 15)), &["n1"]);
    assert_eq!(
        answer["FailedAndUnresolvableNodes"]["n1"],
        counted("1/1 GPUs: 15 units requested, the largest has 14")
    );
    let answer = extender.filter(&fixture.pod(pod("test", "late", 5)), &["n1"]);
    assert_eq!(answer["FailedNodes"]["n1"], counted("1/1 GPUs: 4 of 5 units free"));
}

#[test]
fn unknown_label_of_a_pod_has_an_event() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let extender = fixture.extender();
    let pending =
        fixture.pod(labelled("odd", &json!({MEMORY: "2"}), &json!({"aliyun.com/gpu-cuont": "2"})));
    assert_eq!(extender.filter(&pending, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(
        fixture.event(&pending, "GpuLabelIgnored"),
        "the label `aliyun.com/gpu-cuont` is not known; expected aliyun.com/gpu-count"
    );
}

/// kube-scheduler reports only the status of the reply. Any client may name a node, so one event in
/// some minutes is written on a pod.
#[test]
fn node_that_is_gone_is_one_event_of_a_pending_pod() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let extender = fixture.extender();
    let pending = fixture.pod(pod("test", "pending", 2));
    until_holds("the pod is known", || extender.bind(&pending, "n8").status == 500);
    assert_eq!(
        fixture.event(&pending, "GpuNodeUnknown"),
        "not bound to node `n8`, which the extender does not know: it was deleted, or is new; \
         kube-scheduler tries again"
    );
    let bound = fixture.pod(running(pod("test", "bound", 2), "n1", 0, 2));
    let named = fixture.pod(pod("test", "named", 2));
    fixture.wait_for_units(&extender, "n1", 2);
    let long = "n".repeat(254);
    for number in 0..50 {
        assert_eq!(extender.bind(&pending, &format!("gone-{number}")).status, 500);
        assert_eq!(extender.bind(&bound, &format!("gone-{number}")).status, 500);
        for invalid in ["", "N1", "n1\u{202e}", "n 1", "../n1", &long] {
            assert_eq!(extender.bind(&named, invalid).status, 500);
        }
    }
    fixture.has_only_events_of(&[&pending]);
    // Each pod has its own.
    assert_eq!(extender.bind(&named, "n9").status, 500);
    assert!(fixture.event(&named, "GpuNodeUnknown").contains("`n9`"));
}

/// Any client that reaches the extender may name pods that do not exist, or describe those that
/// exist as it likes.
#[test]
fn forged_requests_write_no_events() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let real = fixture.pod(pod("test", "real", 2));
    let extender = fixture.extender();
    let mut forged = labelled("forged", &json!({MEMORY: "-2"}), &json!({}));
    for number in 0..50 {
        forged["metadata"]["uid"] = json!(format!("forged-{number}"));
        assert_eq!(extender.filter(&forged, &["n1"])["NodeNames"], json!([]));
        for node in ["n1", "n9"] {
            assert_eq!(extender.bind(&forged, node).status, 500);
        }
        let mut altered = real.clone();
        altered["metadata"]["labels"] = json!({format!("aliyun.com/gpu-{number}"): "1"});
        assert_eq!(extender.filter(&altered, &["n1"])["NodeNames"], json!(["n1"]));
        altered["metadata"]["name"] = json!("other");
        for node in ["n1", "n9"] {
            assert_eq!(extender.bind(&altered, node).status, 500);
        }
    }
    fixture.has_only_events_of(&[]);
}

#[test]
fn unknown_label_of_a_node_has_an_event() {
    let mut misspelt = node("n1", &[15109, 15109]);
    misspelt["metadata"]["labels"]["ack.node.gpu.placement"] = json!("spred");
    let fixture = Fixture::with(&[misspelt]);
    let extender = fixture.extender();
    let event = until("an event on the node", || {
        let events = fixture.server.objects("events").into_iter();
        events.into_iter().find(|event| event["involvedObject"]["kind"] == "Node")
    });
    assert_eq!(event["involvedObject"]["name"], "n1");
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!(
        event["message"],
        "the label ack.node.gpu.placement is `spred`, expected `binpack` or `spread`; it counts as `binpack`"
    );
    assert_eq!(
        extender.filter(&fixture.pod(pod("test", "p", 2)), &["n1"])["NodeNames"],
        json!(["n1"])
    );
}

#[test]
fn edited_annotations_count_on_every_gpu_and_have_an_event() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let edited = fixture.pod(running(pod("test", "edited", 8), "n1", 0, 8));
    let extender = fixture.extender();
    fixture.wait_for_units(&extender, "n1", 8);
    let pending = fixture.pod(pod("test", "pending", 8));
    assert_eq!(extender.filter(&pending, &["n1"])["NodeNames"], json!(["n1"]));
    let name = "scheduler.framework.gpushare.allocation";
    fixture.server.edit(&key(&edited), |pod| {
        pod["metadata"]["annotations"][name] = json!(r#"{"0":{"0":1}}"#)
    });
    let reported = fixture.event(&edited, "GpuAllocationUnclear");
    assert_eq!(
        reported,
        "container `main` was given 1 units, but requests 8; until this is corrected or the pod is deleted, it counts on every GPU of its node"
    );
    assert_eq!(extender.filter(&pending, &["n1"])["NodeNames"], json!([]));
    fixture.server.edit(&key(&edited), |pod| {
        pod["metadata"]["annotations"][name] = json!(r#"{"0":{"0":8}}"#)
    });
    until_holds("it is put right", || {
        extender.filter(&pending, &["n1"])["NodeNames"] == json!(["n1"])
    });
}

#[test]
fn pod_that_bypassed_the_extender_has_an_event() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let extender = fixture.extender();
    let mut bypassed = pod("test", "past", 8);
    bypassed["spec"]["nodeName"] = json!("n1");
    let bypassed = fixture.pod(bypassed);
    assert_eq!(
        fixture.event(&bypassed, "GpuNotAllocated"),
        "no GPU was chosen for it: it bypassed the scheduler extender; it will not be started"
    );
    assert_eq!(
        extender.filter(&fixture.pod(pod("test", "other", 14)), &["n1"])["NodeNames"],
        json!(["n1"])
    );
}

#[test]
fn hami_resources_are_read_when_enabled() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let pending = fixture.pod(pod_with(
        "test",
        "hami",
        &json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4096"}),
    ));
    let plain = fixture.extender();
    assert_eq!(plain.filter(&pending, &["else"])["NodeNames"], json!(["else"]));
    let extender = cgpu_kubernetes_tests::extender::Extender::start(
        &fixture.server,
        fixture.folder(),
        &["--hami"],
    );
    assert_eq!(extender.filter(&pending, &["n1", "else"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&pending, "n1").status, 200);
    // Without HAMi's webhook the number of GPUs is missing.
    let part = fixture.pod(pod_with("test", "part", &json!({"nvidia.com/gpumem": "4096"})));
    assert_eq!(extender.filter(&part, &["n1"])["NodeNames"], json!([]));
    // The leader is the other one, so only the binding reports it.
    assert_eq!(extender.bind(&part, "n1").status, 500);
    assert!(fixture.event(&part, "GpuRequestRefused").contains("request `nvidia.com/gpu: 1`"));
    fixture.wait_for_units(&extender, "n1", 8);
    assert_eq!(crate::used(&plain, "n1"), 0);
}
