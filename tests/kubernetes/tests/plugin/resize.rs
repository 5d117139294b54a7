//! Pods that are deleted by force.

use std::time::Duration;

use cgpu_e2e::Fixture;
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::engine::Container;
use serde_json::{Value, json};

use crate::host::{CORE, Host, MEMORY, NODE};

const GPUS: &str = "T4:15109,T4:15109";

impl Host<'_> {
    /// Creates a pod with a running container of 6 units and 30 % on GPU 0.
    fn running(&self, name: &str) -> (Value, Container) {
        let limits: &[(&str, &str)] = &[(MEMORY, "6"), (CORE, "30")];
        let pod = self.pod(name, &[("main", limits)], &json!({"0": {"0": 6}}));
        let container = self.create(&pod, &self.admit(&pod)[0]);
        self.server.edit(&Key::pod("test", name), |pod| pod["status"]["phase"] = "Running".into());
        (pod, container)
    }
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
