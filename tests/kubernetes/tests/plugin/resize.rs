//! Running pods that are resized by their annotation, and pods that are deleted by force.

use std::time::{Duration, Instant};

use cgpu_e2e::{Fixture, Monitor, Worker};
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::engine::Container;
use serde_json::{Value, json};

use crate::host::{CORE, Host, MEMORY, MIB, NODE};

const ANNOTATION: &str = "cgpu.dev/resize";
const GPUS: &str = "T4:15109,T4:15109";

impl Host<'_> {
    fn resize(&self, pod: &str, text: Option<&str>) {
        assert!(self.server.edit(&Key::pod("test", pod), |pod| {
            pod["metadata"]["annotations"][ANNOTATION] = json!(text);
            if text.is_none() {
                pod["metadata"]["annotations"].as_object_mut().unwrap().remove(ANNOTATION);
            }
        }));
    }

    fn annotation(&self, pod: &str, name: &str) -> Value {
        let pod = self.server.object(&Key::pod("test", pod)).expect("the pod");
        let text = pod["metadata"]["annotations"][name].as_str().unwrap_or("null");
        serde_json::from_str(text).expect("JSON")
    }

    /// Waits for the answer to an annotation, and for its event; returns the message.
    fn answer(&self, pod: &str, text: &str, outcome: &str) -> String {
        let what = format!("{outcome}: {text}");
        let status = self.fixture.eventually(&what, || {
            let status = self.annotation(pod, "cgpu.dev/resize-status");
            (status["resize"] == text && status["outcome"] == outcome).then_some(status)
        });
        let message = status["message"].as_str().expect("a message").to_owned();
        self.fixture.eventually(&format!("an event: {message}"), || {
            let events = self.server.objects("events");
            let is_it = |event: &&Value| event["message"] == message.as_str();
            events.iter().find(is_it).map(|_| ())
        });
        message
    }

    /// Returns MiB of each GPU, weight and percent of a container, by the monitor.
    fn has(&self, container: &Container) -> (Vec<u64>, Value, Value) {
        let status = self.fixture.smi();
        let containers = status["containers"].as_array().expect("containers");
        let own = containers
            .iter()
            .find(|it| it["dir"].as_str().is_some_and(|dir| dir.ends_with(&container.id)));
        let own = own.unwrap_or_else(|| panic!("{} is not in {status:#}", container.id));
        let gpus = own["gpus"].as_array().expect("GPUs").iter();
        let mib = gpus.map(|gpu| gpu["limit"].as_u64().expect("bytes") / MIB).collect();
        (mib, own["weight"].clone(), own["percent"].clone())
    }

    /// Creates a pod with a running container of 6 units and 30 % on GPU 0.
    fn running(&self, name: &str) -> (Value, Container) {
        let limits: &[(&str, &str)] = &[(MEMORY, "6"), (CORE, "30")];
        let pod = self.pod(name, &[("main", limits)], &json!({"0": {"0": 6}}));
        let container = self.create(&pod, &self.admit(&pod)[0]);
        self.server.edit(&Key::pod("test", name), |pod| pod["status"]["phase"] = "Running".into());
        (pod, container)
    }
}

/// The monitor knows it, and the node says it to `kubectl inspect cgpu`.
#[test]
fn what_holds_the_limits_of_containers_is_on_the_node() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _monitor = Monitor::start(&fixture);
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    let (pod, container) = host.running("p");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    fixture.eventually("what holds its limit", || {
        let node = host.node();
        let text = node["metadata"]["annotations"]["cgpu.dev/held"].as_str()?;
        let held: Value = serde_json::from_str(text).expect("JSON");
        let monitor = &fixture.smi()["containers"][0];
        assert!(monitor["dir"].as_str().is_some_and(|dir| dir.ends_with(&container.id)));
        let wall = &monitor["gpus"][0]["wall"];
        let (state, reason) = (&held[uid]["walls"]["main"], &held[uid]["wallReasons"]["main"]);
        assert!(wall["state"] != "shim" || wall["absent"].is_string(), "{wall}");
        (wall["state"].is_string() && *state == wall["state"] && *reason == wall["absent"])
            .then_some(())
    });
}

#[test]
fn running_pod_is_resized_as_its_annotation_says() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _monitor = Monitor::start(&fixture);
    let plugin = host.plugin(&["--allow-growth"]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    let (_, container) = host.running("p");
    let own = 15109 * 6 / 14;
    fixture.eventually("the container", || {
        (host.has(&container) == (vec![own], json!(1), json!(30))).then_some(())
    });

    // Less, more than it requested, and as it requested.
    let text = "main: memory=2Gi,weight=3,percent=10";
    let start = Instant::now();
    host.resize("p", Some(text));
    assert_eq!(
        host.answer("p", text, "Applied"),
        "container `main` has 2048 MiB of GPU 0, weight 3, 10 % of the compute"
    );
    println!("resized after {:?}", start.elapsed());
    assert_eq!(host.has(&container), (vec![2048], json!(3), json!(10)));
    let text = "memory=10Gi,grow=true";
    host.resize("p", Some(text));
    host.answer("p", text, "Applied");
    assert_eq!(host.has(&container), (vec![10240], json!(1), json!(30)));
    assert_eq!(host.annotation("p", "cgpu.dev/sizes"), json!({"main": {"memory": 10240}}));

    // What is refused changes nothing.
    for (text, message) in [
        ("memory=11Gi", "add grow=true"),
        ("memory=16Gi,grow=true", "GPU 0 has 15109 MiB"),
        ("memory=-1", "which is negative"),
        ("weight=21", "cannot have weight 21: GPU 0 has 20 left for it"),
        ("weight=26", "expected 1 to 25"),
    ] {
        host.resize("p", Some(text));
        let told = host.answer("p", text, "Refused");
        assert!(told.contains(message), "{text}: {told}");
        assert_eq!(host.has(&container), (vec![10240], json!(1), json!(30)), "{text}");
        assert_eq!(host.annotation("p", "cgpu.dev/sizes"), json!({"main": {"memory": 10240}}));
    }

    // The room that it has grown into is its own, and another's is not for it.
    let other = host.pod("q", &[("main", &[(MEMORY, "4")])], &json!({"0": {"0": 4}}));
    let text = "memory=12Gi,grow=true";
    host.resize("p", Some(text));
    let told = host.answer("p", text, "Refused");
    assert!(told.contains("no room on GPU 0: the pod would hold 12 of 14 units"), "{told}");
    host.server.remove(&Key::pod("test", other["metadata"]["name"].as_str().unwrap()));

    // The next plugin keeps it, and `cgpu set` does not last.
    plugin.kill();
    let plugin = host.plugin(&["--allow-growth"]);
    let path = format!("0/{}/memsize", &container.id);
    fixture.set(&path, &(3 * MIB).to_string());
    fixture.eventually("its size", || (host.has(&container).0 == [10240]).then_some(()));
    host.resize("p", None);
    fixture.eventually("what it requested", || {
        let status = host.annotation("p", "cgpu.dev/resize-status");
        (status.is_null() && host.has(&container).0 == [own]).then_some(())
    });
    assert_eq!(host.annotation("p", "cgpu.dev/sizes"), Value::Null);
    plugin.kill();

    // Where growth is not allowed, the annotation is refused.
    let _plugin = host.plugin(&[]);
    let text = "memory=7Gi,grow=true";
    host.resize("p", Some(text));
    assert!(host.answer("p", text, "Refused").contains("--allow-growth"));
}

#[test]
fn limit_below_what_is_used_is_refused_or_waits() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _monitor = Monitor::start(&fixture);
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    let (_, container) = host.running("p");
    let own = 15109 * 6 / 14;
    let mut worker = Worker::start(&fixture, &fixture.container(&container.id));
    let granted = worker.request("fill")["granted"].as_u64().expect("bytes");
    assert!((4096 * MIB..own * MIB).contains(&granted), "{granted}");

    host.resize("p", Some("memory=2Gi"));
    let told = host.answer("p", "memory=2Gi", "Refused");
    assert!(told.starts_with("container `main` uses "), "{told}");
    assert!(told.ends_with("more than 2048 MiB; shrink=wait waits until it uses less"), "{told}");
    let text = "memory=2Gi,shrink=wait";
    host.resize("p", Some(text));
    let told = host.answer("p", text, "Waiting");
    assert!(told.ends_with("its limit is lowered when it uses less"), "{told}");
    assert_eq!(host.has(&container).0, [own]);
    assert_eq!(host.annotation("p", "cgpu.dev/sizes"), Value::Null);

    worker.request("free");
    host.answer("p", text, "Applied");
    assert_eq!(host.has(&container).0, [2048]);
    assert_eq!(host.annotation("p", "cgpu.dev/sizes"), json!({"main": {"memory": 2048}}));
    worker.fills(2048 * MIB);
    worker.finish();
}

#[test]
fn pod_that_is_deleted_by_force_holds_its_room_while_its_container_lives() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.kubelet.offers(CORE, 200, 200);
    let (pod, container) = host.running("p");
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let held = || -> Value {
        let node = host.server.object(&Key::node(NODE)).expect("the node");
        let text = node["metadata"]["annotations"]["cgpu.dev/held"].as_str().unwrap_or("{}");
        serde_json::from_str(text).expect("JSON")
    };
    let part = json!({"mib": 15109 * 6 / 14, "percent": 30, "containers": 1});
    let expected = json!({"pod": "test/p", "gpus": {"0": part}});
    fixture.eventually("the report", || (held()[uid] == expected).then_some(()));
    assert!(host.engine.is_alive(&container));
    // The kubelet gives its ids to another pod, whose container does not start yet.
    host.server.remove(&Key::pod("test", "p"));
    host.kubelet.end(&pod);
    let next = host.pod("next", &[("main", &[(MEMORY, "12")])], &json!({"0": {"0": 12}}));
    let admitted = host.admit(&next);
    let refusal = host.engine.create(&next, &admitted[0]).unwrap_err();
    let expected_refusal = "6475 MiB are given to 1 containers, so that 12950 MiB more do not fit";
    assert!(refusal.contains(expected_refusal), "{refusal}");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(held()[uid], expected);
    host.engine.delete(&container);
    fixture.eventually("its end", || held()[uid].is_null().then_some(()));
    host.create(&next, &admitted[0]);
}
