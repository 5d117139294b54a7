//! An API server that fails, restarts, forgets, and does not answer.

use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::json;

use crate::{CLAIM, Fixture, NONE, STEPS, delay, is_begun, key, running, used};

fn one_node() -> Fixture {
    Fixture::with(&[node("n1", &[15109, 15109])])
}

/// After each fault of a watch the extender's copy becomes that of the API server.
#[test]
fn broken_watch_continues_from_its_version() {
    let mut fixture = one_node();
    let extender = fixture.extender();
    let mut units = 0;
    let mut next = |fixture: &Fixture| {
        units += 1;
        fixture.pod(running(pod("test", &format!("p-{units}"), 1), "n1", 0, 1));
        units
    };
    let lists = |fixture: &Fixture| {
        let journal = fixture.server.journal().into_iter();
        journal
            .filter(|request| request.is("GET", "/pods") && request.query.contains("limit="))
            .count()
    };
    assert_eq!(lists(&fixture), 1);
    fixture.server.break_watches();
    let now = next(&fixture);
    fixture.wait_for_units(&extender, "n1", now);
    fixture.server.fault(Fault::times(
        5,
        "GET",
        "watch=true",
        FaultAction::Refuse(500, "InternalError"),
    ));
    fixture.server.fault(Fault::times(2, "GET", "watch=true", FaultAction::Disconnect));
    fixture.server.break_watches();
    let now = next(&fixture);
    fixture.wait_for_units(&extender, "n1", now);
    fixture.server.double_events(true);
    let now = next(&fixture);
    fixture.wait_for_units(&extender, "n1", now);
    fixture.server.double_events(false);
    fixture.server.close();
    fixture.server.reopen();
    let now = next(&fixture);
    fixture.wait_for_units(&extender, "n1", now);
    // None of these caused a new list.
    assert_eq!(lists(&fixture), 1);
    // The history is compacted while there is no watch.
    fixture.server.fault(Fault::times(
        1_000_000,
        "GET",
        "watch=true",
        FaultAction::Refuse(500, "InternalError"),
    ));
    fixture.server.break_watches();
    let before = fixture.server.journal().len();
    until_holds("both watches are refused", || {
        let journal = fixture.server.journal();
        let refused = |end| {
            journal[before..].iter().any(|request| request.is("GET", end) && request.status == 500)
        };
        refused("/pods") && refused("/nodes")
    });
    next(&fixture);
    fixture.server.remove(&Key::pod("test", "p-1"));
    let now = next(&fixture);
    fixture.server.compact();
    fixture.server.clear_faults();
    fixture.wait_for_units(&extender, "n1", now - 1);
    assert!(lists(&fixture) > 1);
}

#[test]
fn lost_event_is_corrected_by_the_next_list() {
    let fixture = one_node();
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--resync", "1"]);
    let pod = fixture.pod(running(pod("test", "a", 8), "n1", 0, 8));
    fixture.wait_for_units(&extender, "n1", 8);
    fixture.server.lose_events(1);
    fixture.server.remove(&key(&pod));
    fixture.wait_for_units(&extender, "n1", 0);
}

#[test]
fn lost_answers_leave_correct_claims() {
    let fixture = one_node();
    let extender = fixture.extender();
    // The claim was written, but the answer is lost.
    let one = fixture.pod(pod("test", "one", 8));
    fixture.server.fault(Fault::next("PATCH", "/pods/one", FaultAction::DoAndDisconnect));
    let reply = extender.bind(&one, "n1");
    assert_eq!(reply.status, 500);
    assert!(
        reply.json()["Error"]
            .as_str()
            .unwrap()
            .starts_with("the claim was not written: the API server does not answer"),
        "{reply:?}"
    );
    assert_eq!(fixture.claim(&one).len(), CLAIM.len());
    assert_eq!(extender.bind(&one, "n1").status, 200);
    // It was bound, but the answer is lost.
    let two = fixture.pod(pod("test", "two", 8));
    fixture.server.fault(Fault::next("POST", "/binding", FaultAction::DoAndDisconnect));
    assert_eq!(extender.bind(&two, "n1").status, 200);
    assert_eq!(fixture.node_of(&two).as_deref(), Some("n1"));
    // It was not bound, and the answer is lost.
    let three = fixture.pod(pod("test", "three", 6));
    fixture.server.fault(Fault::next("POST", "/binding", FaultAction::Disconnect));
    assert_eq!(extender.bind(&three, "n1").status, 500);
    assert_eq!(extender.bind(&three, "n1").status, 200);
    fixture.wait_for_units(&extender, "n1", 22);
    // Each failure is logged once, by the extender and not by its library.
    let log = extender.end().exits(0).stdout;
    assert!(log.contains("not bound") && !log.contains("kube_client"), "{log}");
}

#[test]
fn claim_that_cannot_be_confirmed_is_withdrawn() {
    let fixture = one_node();
    // The watch is late, so the pods are listed.
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--watch-timeout", "1"]);
    let pending = fixture.pod(pod("test", "a", 8));
    fixture.server.hold_watches(true);
    fixture.server.fault(Fault::next(
        "GET",
        "fieldSelector=spec.nodeName",
        FaultAction::Refuse(500, "InternalError"),
    ));
    let reply = extender.bind(&pending, "n1");
    assert_eq!(
        reply.json()["Error"],
        "the node's pods cannot be listed: the API server answers 500: InternalError, as requested"
    );
    assert_eq!(fixture.claim(&pending), [""; 0]);
    // Too many requests: it retries by itself.
    fixture.server.fault(Fault::times(
        2,
        "GET",
        "fieldSelector=spec.nodeName",
        FaultAction::Refuse(429, "TooManyRequests"),
    ));
    assert_eq!(extender.bind(&pending, "n1").status, 200);
}

#[test]
fn restart_during_a_binding_loses_nothing() {
    let fixture = one_node();
    let mut extender = fixture.extender();
    for (number, (method, contains)) in STEPS.into_iter().enumerate() {
        let pending = fixture.pod(pod("test", &format!("p-{number}"), 7));
        let before = fixture.server.journal().len();
        delay(&fixture, method, contains);
        let mut connection = extender.connection();
        let body = json!({"PodName": pending["metadata"]["name"], "PodNamespace": "test", "PodUID": pending["metadata"]["uid"], "Node": "n1"}).to_string();
        let requested = std::thread::spawn(move || {
            connection.try_request("POST", "/gpushare-scheduler/bind", &body).is_err()
        });
        until_holds("it is under way", || is_begun(&fixture, before, method, contains));
        extender.kill();
        fixture.server.hold_watches(false);
        assert!(requested.join().unwrap(), "no answer");
        extender = fixture.extender();
        // kube-scheduler sends the request to the successor.
        assert_eq!(extender.bind(&pending, "n1").status, 200, "{method} {contains}");
    }
    fixture.wait_for_units(&extender, "n1", 21);
    assert_eq!(
        extender.filter(&fixture.pod(pod("test", "more", 8)), &["n1"])["NodeNames"],
        json!([])
    );
}

#[test]
fn unbound_claims_are_withdrawn_after_a_minute() {
    let fixture = one_node();
    // A claim of over a minute ago, a new one, and one on a node that does not exist.
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let claimed = |name: &str, node: &str, since: u128| {
        let mut pod = running(pod("test", name, 7), node, 0, 7);
        pod["spec"]["nodeName"] = json!(null);
        pod["status"]["phase"] = json!("Pending");
        pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] = json!(since.to_string());
        fixture.pod(pod)
    };
    let old = claimed("old", "n1", now - 61_000_000_000);
    let new = claimed("new", "n1", now);
    let lost = claimed("lost", "n9", now);
    let bound = fixture.pod(running(pod("test", "bound", 3), "n1", 1, 3));
    // The first attempt has a conflict.
    fixture.server.fault(Fault::next("PATCH", "/pods/old", FaultAction::Refuse(409, "Conflict")));
    let extender = fixture.extender();
    until_holds("both are withdrawn", || {
        fixture.claim(&old).is_empty() && fixture.claim(&lost).is_empty()
    });
    assert_eq!(fixture.claim(&new).len(), 6);
    assert_eq!(fixture.claim(&bound).len(), 6);
    fixture.wait_for_units(&extender, "n1", 10);
}

#[test]
fn concurrent_bindings_under_faults_give_no_gpu_twice() {
    let mut fixture = Fixture::with(&[node("n1", &[15109, 15109]), node("n2", &[15109])]);
    let extender = fixture.extender();
    let pods: Vec<_> =
        (0..24).map(|number| fixture.pod(pod("test", &format!("p-{number}"), 4))).collect();
    for (every, method, contains, action) in [
        (5, "PATCH", "/pods/", FaultAction::Refuse(409, "Conflict")),
        (7, "PATCH", "/pods/", FaultAction::DoAndDisconnect),
        (6, "POST", "/binding", FaultAction::DoAndDisconnect),
        (9, "POST", "/binding", FaultAction::Refuse(500, "InternalError")),
    ] {
        for times in 1..4 {
            let after = every * times;
            fixture.server.fault(Fault { after, ..Fault::next(method, contains, action.clone()) });
        }
    }
    std::thread::scope(|scope| {
        for chunk in pods.chunks(6) {
            let (fixture, mut connection) = (&fixture, extender.connection());
            scope.spawn(move || {
                for round in 0..12 {
                    fixture.server.break_watches();
                    for (number, pod) in
                        chunk.iter().enumerate().filter(|(_, pod)| fixture.node_of(pod).is_none())
                    {
                        let node = if (number + round) % 3 == 0 { "n2" } else { "n1" };
                        let _ = bind(&mut connection, pod, node);
                    }
                }
            });
        }
    });
    fixture.server.clear_faults();
    // Three pods of four units fit on each GPU of 14: nine in all.
    let mut connection = extender.connection();
    for pod in pods.iter().filter(|pod| fixture.node_of(pod).is_none()) {
        let _ = ["n1", "n2"].map(|node| bind(&mut connection, pod, node));
    }
    crate::replicas::check(&fixture, &pods, &[("n1", 2), ("n2", 1)], 14);
    let bound = pods.iter().filter(|pod| fixture.node_of(pod).is_some()).count();
    let claimed = pods
        .iter()
        .filter(|pod| fixture.node_of(pod).is_none() && !fixture.claim(pod).is_empty())
        .count();
    // A claim whose binding's answer was lost is withdrawn after a minute; here it still counts.
    assert!(bound + claimed >= 9 && bound <= 9, "{bound} bound, {claimed} claimed");
    fixture.server.reopen();
    assert!(used(&extender, "n1") != u64::MAX);
    drop(Extender::start(&fixture.server, fixture.folder(), &NONE).end().exits(0));
}
