//! Bindings: claim, confirm, bind.

use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::objects::{node, pod, pod_with};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::{CLAIM, Fixture, STEPS, delay, is_begun, key, running};

fn two_gpus() -> Fixture {
    Fixture::with(&[node("n1", &[15109, 15109])])
}

#[test]
fn binding_claims_confirms_and_binds_on_condition() {
    let fixture = two_gpus();
    fixture.pod(running(pod("test", "a", 2), "n1", 1, 2));
    let pending = fixture.pod(pod("test", "b", 8));
    let extender = fixture.extender();
    let reply = extender.bind(&pending, "n1");
    assert_eq!((reply.status, reply.text.as_str()), (200, r#"{"Error":""}"#));

    let bound = fixture.now(&pending);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let annotations = &bound["metadata"]["annotations"];
    assert_eq!(annotations["scheduler.framework.gpushare.allocation"], r#"{"0":{"1":8}}"#);
    for (name, value) in [("IDX", "1"), ("DEV", "14"), ("POD", "8"), ("ASSIGNED", "false")] {
        assert_eq!(annotations[format!("ALIYUN_COM_GPU_MEM_{name}")], value);
    }
    assert_eq!(annotations["cgpu.dev/node"], "n1");
    assert!(annotations["ALIYUN_COM_GPU_MEM_ASSUME_TIME"].as_str().unwrap().len() == 19);

    let journal = fixture.server.journal();
    let at = |is: &dyn Fn(&cgpu_kubernetes_tests::api_server::Request) -> bool| {
        journal.iter().position(is).expect("a request")
    };
    let claim = at(&|request| request.is("PATCH", "/namespaces/test/pods/b"));
    let binding = at(&|request| request.is("POST", "/namespaces/test/pods/b/binding"));
    assert!(claim < binding);
    // The watch showed the claim.
    assert_eq!(lists(&fixture), 0);
    let condition = &journal[claim].body["metadata"];
    assert_eq!(condition["uid"], pending["metadata"]["uid"]);
    assert_eq!(condition["resourceVersion"], pending["metadata"]["resourceVersion"]);
    let body = &journal[binding].body;
    assert_eq!(body["metadata"]["uid"], pending["metadata"]["uid"]);
    assert_ne!(body["metadata"]["resourceVersion"], pending["metadata"]["resourceVersion"]);
    assert_eq!(body["target"], json!({"apiVersion": "v1", "kind": "Node", "name": "n1"}));
    fixture.wait_for_units(&extender, "n1", 10);
}

#[test]
fn pod_of_several_gpus_and_containers_gets_its_request() {
    let fixture = Fixture::with(&[node("n1", &[15109, 23028, 15109])]);
    let mut pending = pod_with(
        "test",
        "m",
        &json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "40"}),
    );
    pending["metadata"]["labels"]["aliyun.com/gpu-count"] = json!("2");
    pending["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "side", "resources": {"limits": {"aliyun.com/gpu-mem": 2}}}));
    let pending = fixture.pod(pending);
    let extender = fixture.extender();
    assert_eq!(extender.bind(&pending, "n1").status, 200);
    let annotations = fixture.now(&pending)["metadata"]["annotations"].clone();
    let allocation: Value = serde_json::from_str(
        annotations["scheduler.framework.gpushare.allocation"].as_str().unwrap(),
    )
    .unwrap();
    assert_eq!(allocation, json!({"0": {"0": 4, "2": 4}, "1": {"0": 1, "2": 1}}));
    assert_eq!(annotations["ALIYUN_COM_GPU_MEM_IDX"], Value::Null);
    fixture.wait_for_units(&extender, "n1", 10);
}

#[test]
fn pod_that_does_not_fit_is_not_bound() {
    let fixture = two_gpus();
    fixture.pod(running(pod("test", "a", 10), "n1", 0, 10));
    fixture.pod(running(pod("test", "b", 8), "n1", 1, 8));
    let pending = fixture.pod(pod("test", "c", 8));
    let extender = fixture.extender();
    let reply = extender.bind(&pending, "n1");
    assert_eq!(reply.status, 500);
    let error = reply.json()["Error"].as_str().unwrap().to_owned();
    assert_eq!(
        error,
        "test/c does not fit on node `n1`: 2/2 GPUs: 6 of 8 units free, 10 on all GPUs together"
    );
    assert_eq!(fixture.event(&pending, "GpuNotBound"), format!("on node `n1`: {error}"));
    assert_eq!(fixture.claim(&pending), [""; 0]);
    let reply = extender.bind(&pending, "n9").json();
    assert_eq!(reply["Error"], "the node `n9` is not known");
}

#[test]
fn pod_without_gpus_is_bound_without_a_claim() {
    let fixture = two_gpus();
    let plain = fixture.pod(pod_with("test", "plain", &json!({"cpu": "1"})));
    let extender = fixture.extender();
    assert_eq!(extender.filter(&plain, &["n1", "else"])["NodeNames"], json!(["n1", "else"]));
    assert_eq!(extender.bind(&plain, "else").status, 200);
    assert_eq!(fixture.node_of(&plain).as_deref(), Some("else"));
    assert_eq!(fixture.claim(&plain), [""; 0]);
}

/// kube-scheduler often writes to the pod's status, so its watch and the extender's differ.
#[test]
fn concurrent_write_does_not_stop_a_binding() {
    let fixture = two_gpus();
    let extender = fixture.extender();
    // Before the claim: a conflict.
    let one = fixture.pod(pod("test", "one", 2));
    fixture.server.fault(Fault::times(
        2,
        "PATCH",
        "/pods/one",
        FaultAction::Refuse(409, "Conflict"),
    ));
    assert_eq!(extender.bind(&one, "n1").status, 200);
    // Between claim and binding, while the watch is late.
    let two = fixture.pod(pod("test", "two", 2));
    fixture.server.hold_watches(true);
    let mut connection = extender.connection();
    let reply = std::thread::scope(|scope| {
        let requested = scope.spawn(|| bind(&mut connection, &two, "n1"));
        until_holds("the claim is written", || fixture.claim(&two).len() == CLAIM.len());
        fixture.server.edit(&key(&two), |pod| {
            pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False"}])
        });
        fixture.server.hold_watches(false);
        requested.join().unwrap()
    });
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(fixture.node_of(&two).as_deref(), Some("n1"));
    fixture.wait_for_units(&extender, "n1", 4);
}

/// Returns the number of lists of pods that are unbound or on a node.
fn lists(fixture: &Fixture) -> usize {
    let is_list = |query: &str| query.contains("spec.nodeName");
    fixture.server.journal().iter().filter(|request| is_list(&request.query)).count()
}

/// Another scheduler claims the same room before ours does, and the watch has not reported it when
/// ours chooses. It reports both claims in their order, or is so late that the pods are listed.
#[test]
fn conflicting_claim_is_withdrawn() {
    for is_late in [false, true] {
        let fixture = Fixture::with(&[node("n1", &[15109])]);
        let timeout = if is_late { "1" } else { "60" };
        let flags = ["--watch-timeout", timeout];
        let extender = Extender::start(&fixture.server, fixture.folder(), &flags);
        let (ours, theirs) =
            (fixture.pod(pod("test", "ours", 8)), fixture.pod(pod("test", "theirs", 8)));
        fixture.wait_for_units(&extender, "n1", 0);
        fixture.server.hold_watches(true);
        fixture.server.edit(&key(&theirs), |pod| {
            let claimed = running(pod.clone(), "n1", 0, 8);
            pod["metadata"]["annotations"] = claimed["metadata"]["annotations"].clone();
        });
        let mut connection = extender.connection();
        let reply = std::thread::scope(|scope| {
            let requested = scope.spawn(|| bind(&mut connection, &ours, "n1"));
            until_holds("our claim is written", || fixture.claim(&ours).len() == CLAIM.len());
            fixture.server.hold_watches(is_late);
            requested.join().unwrap()
        });
        assert_eq!(reply.status, 500);
        assert_eq!(
            reply.json()["Error"],
            "another scheduler claimed GPU 0 of node `n1` at the same time"
        );
        assert_eq!(fixture.claim(&ours), [""; 0]);
        assert_eq!(fixture.node_of(&ours), None);
        assert_eq!(lists(&fixture) > 0, is_late);
    }
}

/// One list of the unbound pods serves all bindings that wait. A watch that cannot continue (410)
/// is followed by a list, which shows the claims.
#[test]
fn bindings_are_confirmed_while_the_watch_is_late_or_gone() {
    let fixture = two_gpus();
    let bind_all = |extender: &Extender, names: [&str; 4], meanwhile: &dyn Fn()| {
        let pods = names.map(|name| fixture.pod(pod("test", name, 2)));
        fixture.server.hold_watches(true);
        std::thread::scope(|scope| {
            let bindings = pods.each_ref().map(|pod| {
                let mut connection = extender.connection();
                scope.spawn(move || bind(&mut connection, pod, "n1").status)
            });
            for pod in &pods {
                until_holds("it is claimed", || fixture.claim(pod).len() == CLAIM.len());
            }
            meanwhile();
            for binding in bindings {
                assert_eq!(binding.join().unwrap(), 200);
            }
        });
    };
    let hasty = Extender::start(&fixture.server, fixture.folder(), &["--watch-timeout", "1"]);
    bind_all(&hasty, ["a", "b", "c", "d"], &|| ());
    let unbound = |fixture: &Fixture| {
        let is_one = |query: &str| query.ends_with("spec.nodeName%3D");
        fixture.server.journal().iter().filter(|request| is_one(&request.query)).count()
    };
    assert!((1..4).contains(&unbound(&fixture)), "{}", unbound(&fixture));
    fixture.server.hold_watches(false);
    hasty.end().exits(0);
    let extender = fixture.extender();
    fixture.wait_for_units(&extender, "n1", 8);
    let before = lists(&fixture);
    bind_all(&extender, ["e", "f", "g", "h"], &|| {
        fixture.server.compact();
        fixture.server.hold_watches(false);
    });
    assert_eq!(lists(&fixture), before);
    fixture.wait_for_units(&extender, "n1", 16);
}

#[test]
fn pod_deleted_during_a_binding_leaves_nothing() {
    let fixture = two_gpus();
    let extender = fixture.extender();
    for (number, (method, contains)) in STEPS.into_iter().enumerate() {
        let pending = fixture.pod(pod("test", &format!("p-{number}"), 8));
        let before = fixture.server.journal().len();
        delay(&fixture, method, contains);
        let mut connection = extender.connection();
        let reply = std::thread::scope(|scope| {
            let requested = scope.spawn(|| bind(&mut connection, &pending, "n1"));
            until_holds("it is under way", || is_begun(&fixture, before, method, contains));
            fixture.server.remove(&key(&pending));
            fixture.server.hold_watches(false);
            requested.join().unwrap()
        });
        assert_eq!(reply.status, 500, "{method} {contains}: {reply:?}");
        // Another pod of the same name has another UID.
        let again = fixture.pod(pod("test", &format!("p-{number}"), 8));
        assert_ne!(again["metadata"]["uid"], pending["metadata"]["uid"]);
        let reply = extender.bind(&pending, "n1");
        assert_eq!(reply.status, 500, "{method} {contains}: {reply:?}");
        assert_eq!(fixture.claim(&again), [""; 0]);
        fixture.wait_for_units(&extender, "n1", 0);
        fixture.server.remove(&key(&again));
    }
    for name in ["x", "y"] {
        assert_eq!(extender.bind(&fixture.pod(pod("test", name, 14)), "n1").status, 200);
    }
}

#[test]
fn bound_pod_is_bound_once() {
    let fixture = two_gpus();
    fixture.server.put("nodes", node("n2", &[15109]));
    let extender = fixture.extender();
    let pending = fixture.pod(pod("test", "a", 8));
    assert_eq!(extender.bind(&pending, "n1").status, 200);
    // A client that missed the answer may repeat the request; another node is refused.
    assert_eq!(extender.bind(&pending, "n1").status, 200);
    until_holds("it is seen to be bound", || {
        extender.bind(&pending, "n2").json()["Error"] == "test/a is already bound to node `n1`"
    });
    let bindings =
        fixture.server.journal().iter().filter(|request| request.is("POST", "/binding")).count();
    assert_eq!(bindings, 1);
    assert!(fixture.server.remove(&Key::pod("test", "a")));
    fixture.wait_for_units(&extender, "n1", 0);
}

/// HAMi's annotations restrict the GPUs of a pod, and one says which GPU comes first.
#[test]
fn annotations_of_hami_choose_the_gpu() {
    let mut two = node("n1", &[15109, 15109]);
    two["metadata"]["annotations"]["cgpu.dev/gpus"] = json!(
        json!({"unit": "GiB", "gpus": [
            {"uuid": "GPU-a", "mib": 15109, "product": "Tesla T4"},
            {"uuid": "GPU-b", "mib": 15109, "product": "NVIDIA A10"},
        ]})
        .to_string()
    );
    let fixture = Fixture::with(&[two]);
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--hami"]);
    for (name, annotations, gpu) in [
        ("plain", json!({}), "0"),
        ("type", json!({"nvidia.com/use-gputype": "a10"}), "1"),
        ("uuid", json!({"nvidia.com/use-gpuuuid": "GPU-b"}), "1"),
        ("spread", json!({"hami.io/gpu-scheduler-policy": "spread"}), "0"),
    ] {
        let mut pending = pod("test", name, 2);
        pending["metadata"]["annotations"] = annotations;
        let pending = fixture.pod(pending);
        until_holds(&format!("{name} is bound"), || extender.bind(&pending, "n1").status == 200);
        let annotations = &fixture.now(&pending)["metadata"]["annotations"];
        assert_eq!(annotations["ALIYUN_COM_GPU_MEM_IDX"], gpu, "{name}");
    }
}
