//! Several replicas at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::preemption::{crowded, preempt, victims, with_priority};
use crate::{Fixture, key, running};

const STOP: i32 = 19;
const CONTINUE: i32 = 18;

/// Asserts that the bound pods of each GPU do not exceed its units.
pub(crate) fn check(fixture: &Fixture, pods: &[Value], gpus: &[(&str, usize)], units: u64) {
    let mut allocated: BTreeMap<(String, String), u64> = BTreeMap::new();
    for pod in pods {
        let Some(node) = fixture.node_of(pod) else { continue };
        let now = fixture.now(pod);
        let text = now["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"]
            .as_str()
            .expect("a claim");
        let split: BTreeMap<String, BTreeMap<String, u64>> =
            serde_json::from_str(text).expect("a claim");
        for (gpu, units) in split.into_values().flatten() {
            *allocated.entry((node.clone(), gpu)).or_default() += units;
        }
    }
    for ((node, gpu), allocated) in &allocated {
        let known = gpus.iter().find(|(name, _)| name == node).expect("a node");
        assert!(
            gpu.parse::<usize>().unwrap() < known.1 && *allocated <= units,
            "{allocated} units of GPU {gpu} of {node}"
        );
    }
}

/// Both lead, as an old and a new leader may for a moment.
#[test]
fn two_leaders_give_each_gpu_once() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109]), node("n2", &[15109, 15109])]);
    let flags = ["--leader-elect", "false", "--watch-timeout", "1"];
    let replicas = [0, 1].map(|_| Extender::start(&fixture.server, fixture.folder(), &flags));
    // 40 pods of 2 units; 28 fit.
    let pods: Vec<Value> =
        (0..40).map(|number| fixture.pod(pod("test", &format!("p-{number}"), 2))).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The watches are late at times, so that claims overlap. Once they are so late that the
        // pods are listed.
        scope.spawn(|| {
            fixture.server.hold_watches(true);
            std::thread::sleep(Duration::from_millis(1500));
            while !done.load(Ordering::Relaxed) {
                fixture.server.hold_watches(false);
                std::thread::sleep(Duration::from_millis(20));
                fixture.server.hold_watches(true);
                std::thread::sleep(Duration::from_millis(60));
            }
            fixture.server.hold_watches(false);
        });
        let mut threads = Vec::new();
        for (number, chunk) in pods.chunks(10).enumerate() {
            let (fixture, mut connection) = (&fixture, replicas[number % 2].connection());
            threads.push(scope.spawn(move || {
                for round in 0..40 {
                    for pod in chunk.iter().filter(|pod| fixture.node_of(pod).is_none()) {
                        let _ = bind(&mut connection, pod, ["n1", "n2"][(round + number) % 2]);
                    }
                }
            }));
        }
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok));
    });
    check(&fixture, &pods, &[("n1", 2), ("n2", 2)], 14);
    let bound = pods.iter().filter(|pod| fixture.node_of(pod).is_some()).count();
    assert_eq!(bound, 28);
    assert!(pods.iter().all(|pod| fixture.node_of(pod).is_some() || fixture.claim(pod).is_empty()));
    for extender in &replicas {
        fixture.wait_for_units(extender, "n1", 28);
        fixture.wait_for_units(extender, "n2", 28);
    }
}

fn lease() -> Key {
    Key::new("leases", "kube-system", "cgpu-scheduler-extender")
}

fn holder(fixture: &Fixture) -> Option<String> {
    let lease = fixture.server.object(&lease())?;
    lease["spec"]["holderIdentity"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Starts a replica with a lease of 2 s.
fn replica(fixture: &Fixture, name: &str, flags: &[&str]) -> Extender {
    let own = ["--leader-elect", "true", "--lease-duration", "2", "--identity", name];
    Extender::start(&fixture.server, fixture.folder(), &[&own, flags].concat())
}

pub(crate) fn leads(extender: &Extender) -> bool {
    extender.connection().request("GET", "/metrics", "").text.contains("\ncgpu_extender_leader 1\n")
}

#[test]
fn leader_is_replaced_when_its_lease_expires() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let one = replica(&fixture, "one", &[]);
    until_holds("one leads", || leads(&one));
    let two = replica(&fixture, "two", &[]);
    let stale = |name: &str| {
        let mut pod = running(pod("test", name, 2), "n1", 0, 2);
        pod["spec"]["nodeName"] = json!(null);
        fixture.pod(pod)
    };
    let first = stale("first");
    until_holds("the claim is withdrawn", || fixture.claim(&first).is_empty());
    assert_eq!(holder(&fixture).as_deref(), Some("one"));
    assert!(!leads(&two));
    // It is killed, and the other takes over when the lease has expired.
    one.kill();
    until_holds("two leads", || leads(&two));
    let second = stale("second");
    until_holds("the claim is withdrawn", || fixture.claim(&second).is_empty());
    let lease = fixture.server.object(&lease()).unwrap();
    assert_eq!(
        (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]),
        (&json!("two"), &json!(1))
    );
    // It cannot renew: it steps down by itself, and leads again later.
    fixture.server.fault(Fault::times(
        1_000_000,
        "",
        "/leases",
        FaultAction::Refuse(500, "InternalError"),
    ));
    until_holds("two leads no more", || !leads(&two));
    fixture.server.clear_faults();
    until_holds("two leads again", || leads(&two));
    // It ends and releases the lease, so that the next one leads at once.
    two.end().exits(0);
    assert_eq!(holder(&fixture), None);
    let three = replica(&fixture, "three", &["--lease-duration", "3600"]);
    until_holds("three leads", || leads(&three));
}

fn count(extender: &Extender, metric: &str) -> u64 {
    let text = extender.connection().request("GET", "/metrics", "").text;
    let line = text.lines().find_map(|line| line.strip_prefix(metric));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn follower_passes_requests_on_to_the_leader() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let leader = replica(&fixture, "leader", &["--lease-duration", "3600"]);
    let follower = replica(&fixture, "follower", &["--call-timeout", "60"]);
    let pending = fixture.pod(pod("test", "a", 8));
    assert_eq!(follower.filter(&pending, &["n1"])["NodeNames"], json!(["n1"]));
    let body = json!({"Pod": pending, "Nodes": null, "NodeNames": ["n1"]}).to_string();
    let mut connection = follower.connection();
    let reply = connection.request("POST", "/gpushare-scheduler/prioritize", &body);
    assert_eq!((reply.status, reply.text.as_str()), (200, r#"[{"Host":"n1","Score":10}]"#));
    assert_eq!(bind(&mut connection, &pending, "n1").status, 200);
    assert_eq!(fixture.node_of(&pending).as_deref(), Some("n1"));
    // An error of the leader is passed back as it is; the connection stays open.
    let large = fixture.pod(pod("test", "b", 8));
    let reply = bind(&mut connection, &large, "n1");
    assert_eq!(reply.status, 500);
    assert!(reply.text.contains("does not fit on node `n1`"), "{reply:?}");
    assert_eq!(connection.request("GET", "/version", "").status, 200);
    assert_eq!(count(&follower, "cgpu_extender_passed_on_total"), 4);
    assert_eq!(count(&leader, r#"cgpu_extender_request_seconds_count{verb="bind"}"#), 2);
    assert_eq!(count(&leader, "cgpu_extender_passed_on_total"), 0);
}

#[test]
fn follower_passes_preemption_on_to_the_leader() {
    let fixture = crowded();
    let _leader = replica(&fixture, "leader", &["--lease-duration", "3600"]);
    let follower = replica(&fixture, "follower", &["--call-timeout", "60"]);
    let high = fixture.pod(with_priority(pod("test", "high", 14), 9));
    let [a, c] = ["a", "c"].map(|name| fixture.now(&pod("test", name, 7)));
    assert_eq!(victims(&fixture, &preempt(&follower, &high, &[&a, &c])), ["b", "a"]);
    assert_eq!(count(&follower, "cgpu_extender_passed_on_total"), 1);
    // An error of the leader is passed back as it is.
    let refuse = FaultAction::Refuse(403, "Forbidden");
    fixture.server.fault(Fault::next("GET", "/poddisruptionbudgets", refuse));
    assert_eq!(preempt(&follower, &high, &[&a, &c]).status, 503);
    assert_eq!(count(&follower, "cgpu_extender_passed_on_total"), 2);
}

/// Asserts that requests get an error, and that their connections are closed.
fn refuses(follower: &Extender, pending: &Value, reason: &str) {
    let body = json!({"Pod": pending, "Nodes": null, "NodeNames": ["n1"]}).to_string();
    let victims = json!({
        "Pod": pending, "NodeNameToVictims": null,
        "NodeNameToMetaVictims": {"n1": {"Pods": [], "NumPDBViolations": 0}},
    });
    for (verb, status) in [("filter", 200), ("prioritize", 503), ("preempt", 503), ("bind", 500)] {
        let mut connection = follower.connection();
        let path = format!("/gpushare-scheduler/{verb}");
        let reply = match verb {
            "bind" => bind(&mut connection, pending, "n1"),
            "preempt" => connection.request("POST", &path, &victims.to_string()),
            _ => connection.request("POST", &path, &body),
        };
        assert_eq!(reply.status, status, "{verb}: {reply:?}");
        assert!(reply.text.contains(reason), "{verb}: {reply:?}");
        assert!(connection.try_request("GET", "/version", "").is_err(), "{verb}");
    }
}

#[test]
fn follower_without_a_leader_answers_an_error_and_closes_the_connection() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let leader = replica(&fixture, "leader", &["--lease-duration", "3600"]);
    let follower = replica(&fixture, "follower", &["--call-timeout", "2"]);
    let pending = fixture.pod(pod("test", "a", 8));
    // The leader hangs: the follower answers within the scheduler's time.
    leader.signal(STOP);
    refuses(&follower, &pending, "did not answer within 1.6s");
    leader.signal(CONTINUE);
    assert_eq!(follower.filter(&pending, &["n1"])["NodeNames"], json!(["n1"]));
    // It is killed, and the lease is still its own.
    leader.kill();
    refuses(&follower, &pending, "cannot be reached");
    assert_eq!(follower.connection().request("GET", "/readyz", "").status, 200);
    // The lease has no holder, and the follower cannot take it.
    fixture.server.fault(Fault::times(
        1_000_000,
        "PATCH",
        "/leases",
        FaultAction::Refuse(409, "Conflict"),
    ));
    fixture.server.edit(&lease(), |lease| lease["spec"]["holderIdentity"] = json!(""));
    until_holds("no replica leads", || {
        follower.filter(&pending, &["n1"])["Error"] == "no replica leads now; try again"
    });
    refuses(&follower, &pending, "no replica leads now");
    fixture.server.clear_faults();
    until_holds("the follower leads", || leads(&follower));
    assert_eq!(follower.bind(&pending, "n1").status, 200);
}

/// A request that was passed on by a replica with an old lease is not passed on again.
#[test]
fn request_is_passed_on_once() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let _leader = replica(&fixture, "leader", &["--lease-duration", "3600"]);
    let follower = replica(&fixture, "follower", &[]);
    let header = [("cgpu-passed-on", "true".to_owned())];
    let reply = follower
        .connection()
        .request_with("POST", "/gpushare-scheduler/bind", &header, "{}")
        .unwrap();
    assert_eq!(reply.status, 500);
    assert!(reply.text.contains("this replica does not lead any more"), "{reply:?}");
}

#[test]
fn replica_that_has_not_listed_does_not_lead() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    fixture.server.fault(Fault::times(
        1_000_000,
        "GET",
        "/api/v1/nodes",
        FaultAction::Refuse(500, "InternalError"),
    ));
    let flags = ["--leader-elect", "true", "--lease-duration", "2"];
    let late = Extender::begin(&fixture.server, fixture.folder(), &flags);
    let listed = |path: &str| fixture.server.journal().iter().any(|it| it.is("GET", path));
    until_holds("it lists", || listed("/nodes") && listed("/pods"));
    let pending = fixture.pod(pod("test", "a", 2));
    assert_eq!(late.bind(&pending, "n1").status, 500);
    assert_eq!(holder(&fixture), None);
    fixture.server.clear_faults();
    late.wait_until_ready();
    assert!(leads(&late));
}

#[test]
fn replica_without_election_leads_at_once() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--leader-elect", "false"]);
    until_holds("it leads", || leads(&extender));
    assert!(fixture.server.objects("leases").is_empty());
    let gone = fixture.pod(pod("test", "a", 2));
    fixture.server.remove(&key(&gone));
    until("it ends", || Some(()));
    extender.end().exits(0);
}
