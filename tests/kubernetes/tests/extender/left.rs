//! Pods that were deleted by force: what their node reports of their containers.

use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::json;

use crate::{Fixture, key, running};

#[test]
fn room_of_a_pod_that_is_deleted_by_force_is_given_when_its_node_says_so() {
    let fixture = Fixture::with(&[node("n1", &[15109])]);
    let old = fixture.pod(running(pod("test", "old", 10), "n1", 0, 10));
    let uid = old["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let options = ["--lost-after", "1", "--sweep", "1"];
    let extender = Extender::start(&fixture.server, fixture.folder(), &options);
    let report = |held: bool| {
        let part = json!({"mib": 10792, "percent": 0, "containers": 1});
        let text = json!({uid.clone(): {"pod": "test/old", "gpus": {"0": part}}}).to_string();
        fixture.server.edit(&Key::node("n1"), |node| {
            node["metadata"]["annotations"]["cgpu.dev/held"] =
                json!(if held { text.clone() } else { "{}".to_owned() });
        });
    };
    let ready = |status: &str| {
        fixture.server.edit(&Key::node("n1"), |node| {
            node["status"]["conditions"] = json!([{"type": "Ready", "status": status}]);
        });
    };
    report(true);
    fixture.wait_for_units(&extender, "n1", 10);
    fixture.server.remove(&key(&old));
    let marker = fixture.pod(running(pod("test", "marker", 1), "n1", 0, 1));
    // The deletion is known with the pod after it, and the room is still held.
    fixture.wait_for_units(&extender, "n1", 11);
    let next = fixture.pod(pod("test", "next", 8));
    let fits = |extender: &Extender| extender.filter(&next, &["n1"])["NodeNames"] == json!(["n1"]);
    assert!(!fits(&extender));
    assert_eq!(extender.bind(&next, "n1").status, 500);
    // An extender that starts now knows it as well.
    let second = Extender::start(&fixture.server, fixture.folder(), &options);
    until_holds("the second extender counts", || crate::used(&second, "n1") == 11);
    // The node is gone: after the deadline its report does not count, until it is back.
    ready("Unknown");
    until_holds("the deadline", || fits(&extender) && fits(&second));
    ready("True");
    until_holds("the node is back", || !fits(&extender) && !fits(&second));
    report(false);
    until_holds("its container has ended", || fits(&extender));
    assert_eq!(extender.bind(&next, "n1").status, 200);
    assert_eq!(fixture.node_of(&marker).as_deref(), Some("n1"));
}
