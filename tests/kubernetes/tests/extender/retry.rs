//! Pods that no node fitted, and that one fits later without an event for kube-scheduler.

use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::{Fixture, key, running};

const RETRIED: &str = "cgpu.dev/retried";

#[test]
fn pod_that_fits_later_is_changed_once_for_the_scheduler_to_try_it_again() {
    let fixture = Fixture::with(&[node("n1", &[15109]), node("n2", &[15109])]);
    let first = fixture.pod(running(pod("test", "first", 10), "n1", 0, 10));
    fixture.pod(running(pod("test", "second", 10), "n2", 0, 10));
    let [fits, elsewhere, large, gone, bound] =
        [("fits", 8), ("elsewhere", 8), ("large", 15), ("gone", 8), ("bound", 2)]
            .map(|(name, units)| fixture.pod(pod("test", name, units)));
    let extender = fixture.extender();
    let refused = |pod: &Value, nodes: &[&str]| {
        assert_eq!(extender.filter(pod, nodes)["NodeNames"], json!([]));
    };
    refused(&fits, &["n1", "n2"]);
    // The scheduler's own filters permit it no other node.
    refused(&elsewhere, &["n2"]);
    refused(&large, &["n1", "n2"]);
    refused(&gone, &["n1"]);
    assert_eq!(extender.filter(&bound, &["n1"])["NodeNames"], json!(["n1"]));
    assert!(fixture.server.remove(&key(&gone)));

    assert!(fixture.server.remove(&key(&first)));
    let retried = |pod: &Value| {
        let pods = fixture.server.objects("pods");
        let pod = pods.iter().find(|one| key(one) == key(pod)).expect("the pod").clone();
        pod["metadata"]["annotations"][RETRIED].as_str().map(ToOwned::to_owned)
    };
    until_holds("the pod that fits is changed", || retried(&fits).is_some());
    let time = retried(&fits);
    // It is tried again, does not fit the node that is left for it, and then fits by a report.
    let list = |gpus: &str| {
        fixture.server.put(
            "configmaps",
            json!({"metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
                   "data": {"gpus": gpus}}),
        );
    };
    list("0");
    let current = |pod: &Value| {
        let pods = fixture.server.objects("pods");
        pods.iter().find(|one| key(one) == key(pod)).expect("the pod").clone()
    };
    until_holds("no GPU of it is left", || {
        extender.filter(&current(&fits), &["n1"])["NodeNames"] == json!([])
    });
    assert_eq!(retried(&fits), time, "nothing fits it now");
    assert!(fixture.server.remove(&Key::new("configmaps", "kube-system", "unhealthy-gpu-n1")));
    until_holds("it is changed once more", || retried(&fits) != time);
    for pod in [&elsewhere, &large, &bound] {
        assert_eq!(retried(pod), None, "{pod:#}");
    }
    assert_eq!(extender.bind(&current(&fits), "n1").status, 200);
}
