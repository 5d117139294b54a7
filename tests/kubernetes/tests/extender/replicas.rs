//! Several replicas at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::{Extender, bind};
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::{Fixture, key, running};

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
    let replicas =
        [0, 1].map(|_| Extender::start(&fixture.server, fixture.folder(), &flags));
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
        for thread in threads {
            thread.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
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

fn holder(fixture: &Fixture) -> Option<String> {
    let lease =
        fixture.server.object(&Key::new("leases", "kube-system", "cgpu-scheduler-extender"))?;
    lease["spec"]["holderIdentity"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

fn leads(extender: &Extender) -> bool {
    extender.connection().request("GET", "/metrics", "").text.contains("\ncgpu_extender_leader 1\n")
}

#[test]
fn leader_is_replaced_when_its_lease_expires() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let one = Extender::start(&fixture.server, fixture.folder(), &["--identity", "one"]);
    until_holds("one leads", || leads(&one));
    let two = Extender::start(&fixture.server, fixture.folder(), &["--identity", "two"]);
    let stale = |name: &str| {
        let mut pod = running(pod("test", name, 2), "n1", 0, 2);
        pod["spec"]["nodeName"] = json!(null);
        fixture.pod(pod)
    };
    let first = stale("first");
    until_holds("the claim is withdrawn", || fixture.claim(&first).is_empty());
    assert_eq!(holder(&fixture).as_deref(), Some("one"));
    assert!(!leads(&two));
    let pending = fixture.pod(pod("test", "a", 2));
    assert_eq!(two.bind(&pending, "n1").status, 200);
    // It is killed, and the other takes over when the lease has expired.
    one.kill();
    until_holds("two leads", || leads(&two));
    let second = stale("second");
    until_holds("the claim is withdrawn", || fixture.claim(&second).is_empty());
    let lease = fixture
        .server
        .object(&Key::new("leases", "kube-system", "cgpu-scheduler-extender"))
        .unwrap();
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
    let three = Extender::start(
        &fixture.server,
        fixture.folder(),
        &["--identity", "three", "--lease-duration", "3600"],
    );
    until_holds("three leads", || leads(&three));
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
