//! The policy that sets scheduler and RuntimeClass of pods that request units.

use cgpu_kubernetes_tests::wait::until;
use serde_json::{Value, json};

use crate::interpreter::Policy;
use crate::real::{ADMINISTRATOR, ApiServer, started};

fn objects() -> Vec<Value> {
    crate::objects_of("tests/kubernetes/tests/golden/pod-defaults.yaml")
}

/// Changes to a pod with one container and no requests, and the scheduler and RuntimeClass that it
/// then has.
const CASES: [(&str, &str, &str, Option<&str>); 7] = [
    (
        "/containers/0/resources/limits",
        r#"{"aliyun.com/gpu-mem": "2"}"#,
        "cgpu-scheduler",
        Some("cgpu"),
    ),
    (
        "/initContainers",
        r#"[{"name": "i", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": "2"}}}]"#,
        "cgpu-scheduler",
        Some("cgpu"),
    ),
    ("/containers/0/resources/limits", r#"{"cpu": "2"}"#, "default-scheduler", None),
    ("", "{}", "default-scheduler", None),
    ("/schedulerName", r#""mine""#, "mine", Some("cgpu")),
    ("/runtimeClassName", r#""other""#, "cgpu-scheduler", Some("other")),
    ("/nodeName", r#""n1""#, "default-scheduler", Some("cgpu")),
];

/// Returns the pod of a case. Those whose change is no request have one of units.
fn pod(path: &str, value: &str) -> Value {
    let value: Value = serde_json::from_str(value).expect("JSON");
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "new", "namespace": "default"},
        "spec": {"schedulerName": "default-scheduler",
                 "containers": [{"name": "main", "image": "i", "resources": {}}]},
    });
    if ["/schedulerName", "/runtimeClassName", "/nodeName"].contains(&path) {
        pod["spec"]["containers"][0]["resources"]["limits"] = json!({"aliyun.com/gpu-mem": "2"});
    }
    match path.rsplit_once('/') {
        Some((parent, last)) => {
            pod["spec"].pointer_mut(parent).expect("a parent")[last] = value;
        }
        None => assert_eq!(value, json!({})),
    }
    pod
}

fn assert_defaults(pod: &Value, scheduler: &str, class: Option<&str>, case: &Value) {
    let spec = &pod["spec"];
    assert_eq!(
        (spec["schedulerName"].as_str(), spec["runtimeClassName"].as_str()),
        (Some(scheduler), class),
        "{case:#}"
    );
}

#[test]
fn pods_with_units_get_scheduler_and_runtime_class() {
    let objects = objects();
    let policy = Policy::of(&objects[0]);
    for (path, value, scheduler, class) in CASES {
        let pod = pod(path, value);
        assert_defaults(&policy.mutated(&pod), scheduler, class, &pod);
    }
    assert_eq!(objects[1]["spec"]["policyName"], objects[0]["metadata"]["name"]);
}

#[test]
fn real_api_server_sets_scheduler_and_runtime_class_as_the_interpreter() {
    let test = "real_api_server_sets_scheduler_and_runtime_class_as_the_interpreter";
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = started(test, folder.path()) else { return };
    let class = crate::manifests().into_iter().find(|it| it["kind"] == "RuntimeClass");
    let mut other = class.clone().expect("a class");
    other["metadata"]["name"] = json!("other");
    for class in [class.expect("a class"), other] {
        server.create("/apis/node.k8s.io/v1/runtimeclasses", &class);
    }
    objects().iter().for_each(|object| server.create_policy(object));
    let create = |server: &ApiServer, namespace: &str, pod: &Value| {
        let mut pod = pod.clone();
        pod["metadata"]["namespace"] = json!(namespace);
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        server.send(ADMINISTRATOR, "POST", &path, &pod)
    };
    let (path, value, ..) = CASES[0];
    until("the policy counts", || {
        let reply = create(&server, "default", &pod(path, value));
        (reply.status == 201 && reply.json()["spec"]["runtimeClassName"] == "cgpu").then_some(())
    });
    for (path, value, scheduler, class) in CASES {
        let pod = pod(path, value);
        let reply = create(&server, "default", &pod);
        assert_eq!(reply.status, 201, "{pod:#}: {reply:?}");
        let admitted = reply.json();
        assert_defaults(&admitted, scheduler, class, &pod);
        // The API server adds what the RuntimeClass says: only nodes that have cgpu-runtime.
        let selected = &admitted["spec"]["nodeSelector"]["gpushare"];
        assert_eq!(selected.as_str(), class.map(|_| "true"), "{admitted:#}");
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "claims", "labels": {"cgpu.dev/engine": "dra"}}});
    server.create("/api/v1/namespaces", &namespace);
    until("pods of the other engine are unchanged", || {
        let reply = create(&server, "claims", &pod(path, value));
        let admitted = reply.json();
        (reply.status == 201).then(|| {
            assert_defaults(&admitted, "default-scheduler", None, &admitted);
        })
    });
}
