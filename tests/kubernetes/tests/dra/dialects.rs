//! The real controller of templates before a fake API server.

use std::path::Path;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Fixture};
use cgpu_kubernetes_tests::api_server::{ApiServer, Fault, FaultAction, Key};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

const TEMPLATES: &str = "resourceclaimtemplates";

/// Starts the controller.
pub(crate) fn controller(fixture: &Fixture, kubeconfig: &Path, options: &[&str]) -> Child {
    let mut command = fixture.native(&fixture.dist().file("cgpu-dra-controller"));
    command.arg("--kubeconfig").arg(kubeconfig).args(options);
    Child::start_for(command, fixture.lifetime())
}

/// A pod as the policy leaves it.
fn pod(name: &str, templates: &[&str]) -> Value {
    let claim = |(at, template): (usize, &&str)| json!({"name": format!("cgpu-{at}"), "resourceClaimTemplateName": template});
    let claims: Vec<Value> = templates.iter().enumerate().map(claim).collect();
    json!({
        "metadata": {"name": name, "namespace": "test", "labels": {"cgpu.dev/translated": "true"}},
        "spec": {"containers": [], "resourceClaims": claims}, "status": {"phase": "Pending"},
    })
}

fn names(server: &ApiServer) -> Vec<String> {
    let name = |template: Value| template["metadata"]["name"].as_str().expect("a name").to_owned();
    server.objects(TEMPLATES).into_iter().map(name).collect()
}

#[test]
fn templates_of_translated_pods_are_made_and_removed() {
    let fixture = Fixture::new("T4:15109");
    let server = ApiServer::start();
    let [eight, two, author] =
        ["cgpu-memory-8192mi-gpus-1", "cgpu-memory-2048mi-cores-30-gpus-2", "cgpu-gpus-1"];
    server.put("pods", pod("early", &[eight, "of-its-author", "cgpu-gpus-99"]));
    let mut plain = pod("plain", &["cgpu-memory-1024mi-gpus-1"]);
    plain["metadata"]["labels"] = json!({});
    server.put("pods", plain);
    server.put("pods", pod("own", &[author]));
    // Its author has made it.
    server.put(TEMPLATES, json!({"metadata": {"name": author, "namespace": "test"}, "spec": {}}));
    let started = Instant::now();
    let config = server.kubeconfig(&fixture.path(""));
    let first = controller(&fixture, &config, &["--retention", "3600"]);
    let is_there = |name: &str| server.object(&Key::new(TEMPLATES, "test", name)).is_some();
    until_holds("the template of a pod", || is_there(eight));
    server.put("pods", pod("late", &[two, eight]));
    until_holds("the template of a later pod", || is_there(two));
    let template = server.object(&Key::new(TEMPLATES, "test", two)).expect("a template");
    assert_eq!(
        template["spec"],
        json!({"spec": {"devices": {
            "requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "cgpu", "allocationMode": "ExactCount", "count": 2,
                "capacity": {"requests": {"memory": "2048Mi", "cores": "30"}},
            }}],
            "constraints": [{"requests": ["gpu"], "distinctAttribute": "gpu.cgpu.dev/uuid"}],
        }}})
    );
    // It comes back while a pod names it.
    assert!(server.remove(&Key::new(TEMPLATES, "test", two)));
    until_holds("the template again", || is_there(two));
    first.signal(15);
    assert_eq!(first.end().code(), Some(0));

    // The next instance knows what the last one has made.
    assert!(server.remove(&Key::pod("test", "late")));
    assert!(server.remove(&Key::pod("test", "own")));
    let _second = controller(&fixture, &config, &["--retention", "2"]);
    until_holds("the unused template is removed", || !is_there(two));
    assert!(started.elapsed() >= Duration::from_secs(2));
    // A pod that ends needs none.
    server.edit(&Key::pod("test", "early"), |pod| pod["status"]["phase"] = json!("Succeeded"));
    until_holds("the template of an ended pod is removed", || !is_there(eight));
    assert_eq!(names(&server), [author]);
}

#[test]
fn refusal_of_a_template_is_an_event_of_its_pods() {
    let fixture = Fixture::new("T4:15109");
    let server = ApiServer::start();
    let refusal = FaultAction::Refuse(403, "Forbidden");
    server.fault(Fault::times(2, "POST", TEMPLATES, refusal));
    let name = "cgpu-memory-8192mi-gpus-1";
    let pod = server.put("pods", pod("p", &[name]));
    let _controller = controller(&fixture, &server.kubeconfig(&fixture.path("")), &[]);
    until_holds("an event", || {
        server.objects("events").iter().any(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "ClaimTemplateRefused"
                && event["involvedObject"]["uid"] == pod["metadata"]["uid"]
                && message.contains(name)
                && message.contains("Forbidden, as requested")
        })
    });
    // It tries again.
    until_holds("the template", || names(&server) == [name]);
}
