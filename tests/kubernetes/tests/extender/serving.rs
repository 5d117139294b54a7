//! The extender's answers, byte for byte.

use std::collections::BTreeMap;
use std::process::Command;

use cgpu_e2e::{Dist, Outcome};
use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects::{node, pod};
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::{Fixture, NONE, key, running};

/// Returns the cluster of the bodies in `kubernetes/core/tests/golden`.
fn golden_setup() -> Fixture {
    let fixture = Fixture::with(&[node("n1", &[15109]), node("n2", &[15109]), node("n3", &[7680])]);
    fixture.pod(running(pod("test", "a", 10), "n2", 0, 10));
    fixture
}

const FILTER: &str = include_str!("../../../../kubernetes/core/tests/golden/filter-request.json");
const FILTERED: &str = include_str!("../../../../kubernetes/core/tests/golden/filter-reply.json");
const WHOLE_NODES: &str = include_str!("../golden/filter-nodes-request.json");

#[test]
fn filter_of_a_scheduler_is_answered_byte_for_byte() {
    let fixture = golden_setup();
    let extender = fixture.extender();
    let mut connection = extender.connection();
    for _ in 0..3 {
        let reply = connection.request("POST", "/gpushare-scheduler/filter", FILTER);
        assert_eq!((reply.status, reply.text.trim_end()), (200, FILTERED.trim_end()));
    }
    let reply = connection.request("POST", "/gpushare-scheduler/prioritize", FILTER);
    assert_eq!(
        reply.text,
        r#"[{"Host":"n1","Score":10},{"Host":"n2","Score":0},{"Host":"n3","Score":0}]"#
    );
}

/// ACK's way to take GPUs out: a ConfigMap for a node.
#[test]
fn gpus_that_a_config_map_lists_get_no_pods() {
    let fixture = Fixture::with(&[node("n1", &[15109, 15109])]);
    let pod = fixture.server.put("pods", pod("test", "p", 10));
    let extender = fixture.extender();
    let fits = || extender.filter(&pod, &["n1"])["NodeNames"] == json!(["n1"]);
    assert!(fits());
    let list = |gpus: &str| {
        fixture.server.put(
            "configmaps",
            json!({"metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"},
                   "data": {"gpus": gpus}}),
        );
    };
    list("0,1");
    until_holds("no GPU is left", || !fits());
    let reply = extender.filter(&pod, &["n1"]);
    assert!(reply.to_string().contains("2/2 GPUs: unhealthy"), "{reply}");
    list("0");
    until_holds("one is left", fits);
    list("0,1");
    until_holds("no GPU is left", || !fits());
    assert!(fixture.server.remove(&Key::new("configmaps", "kube-system", "unhealthy-gpu-n1")));
    until_holds("both are back", fits);
}

#[test]
fn filter_returns_whole_nodes_unchanged() {
    let fixture = golden_setup();
    let plain = fixture.extender();
    let refused =
        plain.connection().request("POST", "/gpushare-scheduler/filter", WHOLE_NODES).json();
    assert!(refused["Error"].as_str().unwrap().contains("nodeCacheCapable: true"), "{refused}");
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--whole-nodes"]);
    let sent: Value = serde_json::from_str(WHOLE_NODES).unwrap();
    let reply =
        extender.connection().request("POST", "/gpushare-scheduler/filter", WHOLE_NODES).json();
    assert_eq!(reply["Nodes"]["items"], json!([sent["Nodes"]["items"][0]]));
    assert_eq!(reply["NodeNames"], Value::Null);
    assert_eq!(
        reply["FailedNodes"]["n2"],
        "node(s) with no GPUs for the pod (1/1 GPUs: 4 of 8 units free)"
    );
}

#[test]
fn unknown_paths_are_not_found() {
    let fixture = golden_setup();
    let extender = fixture.extender();
    let mut connection = extender.connection();
    for (method, path, status, text) in [
        ("GET", "/version", 200, Some(env!("CARGO_PKG_VERSION"))),
        ("GET", "/healthz", 200, Some("ok")),
        ("GET", "/readyz", 200, Some("ok")),
        ("GET", "/gpushare-scheduler/filter", 405, None),
        ("POST", "/version", 405, None),
        ("GET", "/gpushare-scheduler/else", 404, None),
        ("POST", "/gpushare-scheduler/filter", 200, None),
        ("POST", "/gpushare-scheduler/bind", 500, None),
        ("POST", "/gpushare-scheduler/prioritize", 400, None),
    ] {
        let reply = connection.request(method, path, "");
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
        assert!(text.is_none_or(|text| text == reply.text), "{method} {path}: {reply:?}");
    }
    // An invalid request's error is in the body, as gpushare has it.
    let reply = connection.request("POST", "/gpushare-scheduler/filter", "{").json();
    assert!(
        reply["Error"]
            .as_str()
            .unwrap()
            .starts_with("the request is not what kube-scheduler sends")
    );
    let reply = connection.request("GET", "/gpushare-scheduler/inspect/n2", "");
    assert_eq!(
        reply.text,
        r#"{"nodes":[{"name":"n2","totalGPU":14,"usedGPU":10,"devs":[{"id":0,"totalGPU":14,"usedGPU":10,"pods":[{"name":"a","namespace":"test","usedGPU":10}]}]}]}"#
    );
    let reply = connection.request("GET", "/gpushare-scheduler/inspect", "").json();
    assert_eq!(reply["nodes"].as_array().unwrap().len(), 3);
    let metrics = connection.request("GET", "/metrics", "").text;
    for line in [
        "cgpu_extender_nodes 3",
        "cgpu_extender_pods 1",
        r#"cgpu_extender_request_seconds_count{verb="inspect"} 2"#,
        r#"cgpu_extender_binds_total{outcome="Refused"}"#,
    ] {
        // A body that cannot be parsed is no binding.
        assert_eq!(metrics.contains(line), !line.contains("Refused"), "{line} in {metrics}");
    }
}

#[test]
fn extender_without_a_list_is_not_ready_and_rejects_no_pod() {
    let fixture = golden_setup();
    fixture.server.fault(Fault::times(
        1000,
        "GET",
        "/api/v1/nodes",
        FaultAction::Refuse(500, "InternalError"),
    ));
    let extender = Extender::begin(&fixture.server, fixture.folder(), &NONE);
    let mut connection = extender.connection();
    let reply = connection.request("GET", "/readyz", "");
    assert_eq!(
        (reply.status, reply.text.as_str()),
        (503, "the nodes of the cluster have not been listed yet")
    );
    assert_eq!(connection.request("GET", "/healthz", "").status, 200);
    let reply = connection.request("POST", "/gpushare-scheduler/filter", FILTER).json();
    assert_eq!(reply["Error"], "the cluster has not been listed yet; try again");
    assert_eq!(reply["FailedAndUnresolvableNodes"], json!({}));
    fixture.server.clear_faults();
    extender.wait_until_ready();
    assert_eq!(
        connection.request("POST", "/gpushare-scheduler/filter", FILTER).text,
        FILTERED.trim_end()
    );
}

#[test]
fn lists_never_come_from_a_cache() {
    let fixture = golden_setup();
    for number in 0..1100 {
        fixture.pod(pod("many", &format!("p-{number}"), 1));
    }
    let extender = Extender::start(&fixture.server, fixture.folder(), &["--resync", "1"]);
    let lists = |path: &str| {
        let journal = fixture.server.journal().into_iter();
        journal
            .filter(|request| request.is("GET", path) && !request.query.contains("watch=true"))
            .collect::<Vec<_>>()
    };
    until_holds("pods are listed twice, in pages", || lists("/api/v1/pods").len() >= 6);
    assert!(
        lists("/api/v1/pods")
            .iter()
            .chain(&lists("/api/v1/nodes"))
            .all(|list| !list.query.contains("resourceVersion"))
    );
    assert_eq!(
        extender.filter(&fixture.pod(pod("test", "b", 4)), &["n2"])["NodeNames"],
        json!(["n2"])
    );
}

#[test]
fn created_and_deleted_objects_are_seen() {
    let fixture = golden_setup();
    let extender = fixture.extender();
    let pending = fixture.pod(pod("test", "b", 8));
    let fits = |nodes: &[&str]| extender.filter(&pending, nodes)["NodeNames"].clone();
    assert_eq!(fits(&["n2", "n4"]), json!([]));
    fixture.server.put("nodes", node("n2", &[15109, 15109]));
    until_holds("the GPU is seen", || fits(&["n2"]) == json!(["n2"]));
    fixture.server.put("nodes", node("n4", &[23028]));
    until_holds("the node is seen", || fits(&["n4"]) == json!(["n4"]));
    fixture.server.remove(&Key::node("n4"));
    until_holds("the node is seen to go", || fits(&["n4"]) == json!([]));
    fixture.server.put("nodes", node("n2", &[15109]));
    until_holds("the GPU is seen to go", || fits(&["n2"]) == json!([]));
    fixture.server.edit(&Key::pod("test", "a"), |pod| pod["status"]["phase"] = json!("Succeeded"));
    until_holds("the pod is seen to end", || fits(&["n2"]) == json!(["n2"]));
    // It does not count, and a change of its labels does not bring it back.
    fixture.server.edit(&Key::pod("test", "a"), |pod| pod["metadata"]["labels"]["x"] = json!("y"));
    fixture.server.remove(&Key::pod("test", "a"));
    fixture.wait_for_units(&extender, "n2", 0);
}

#[test]
fn sigterm_ends_after_pending_requests() {
    let fixture = golden_setup();
    let flags = ["--leader-elect", "true"];
    let extender = Extender::start(&fixture.server, fixture.folder(), &flags);
    until_holds("it leads", || crate::replicas::leads(&extender));
    let pending = fixture.pod(pod("test", "b", 8));
    let wait = FaultAction::Wait(std::time::Duration::from_millis(700));
    fixture.server.fault(Fault::next("POST", "/binding", wait));
    let mut connection = extender.connection();
    let bound = std::thread::scope(|scope| {
        let requested =
            scope.spawn(|| cgpu_kubernetes_tests::extender::bind(&mut connection, &pending, "n1"));
        until_holds("the binding is under way", || {
            fixture.server.journal().iter().any(|request| request.is("POST", "/binding"))
        });
        extender.terminate();
        requested.join().unwrap()
    });
    assert_eq!((bound.status, bound.text.as_str()), (200, r#"{"Error":""}"#));
    let outcome = extender.end().exits(0);
    assert!(outcome.stdout.contains(r#""message":"ended""#), "{outcome:?}");
    assert_eq!(fixture.node_of(&pending).as_deref(), Some("n1"));
    let lease = fixture
        .server
        .object(&Key::new("leases", "kube-system", "cgpu-scheduler-extender"))
        .unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "");
}

#[test]
fn invalid_start_is_reported() {
    let program = Dist::find().file("cgpu-scheduler-extender");
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(&program);
        command
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .env("HOME", "/nonexistent");
        command.args(arguments).envs(variables.iter().copied());
        Outcome::of(command)
    };
    let outcome = run(&["--help"], &[]).exits(0);
    for word in [
        "[env: PORT=]",
        "[default: 39999]",
        "LOG_LEVEL",
        "THREADNESS",
        "--kubeconfig",
        "--tls-cert",
        "--leader-elect",
    ] {
        assert!(outcome.stdout.contains(word), "{word} in {}", outcome.stdout);
    }
    let outcome = run(&[], &[]).exits(1);
    assert!(
        outcome.stderr.starts_with(
            "cgpu-scheduler-extender: cannot access a cluster: there is no kubeconfig"
        ),
        "{outcome:?}"
    );
    let outcome = run(&["--kubeconfig", "/nonexistent"], &[]).exits(1);
    assert!(outcome.stderr.contains("/nonexistent"), "{outcome:?}");
    let outcome = run(&["--server", "localhost:1"], &[]).exits(1);
    assert!(outcome.stderr.contains("expected one such as https://"), "{outcome:?}");
    run(&["--port", "70000"], &[]).exits(2);
    run(&[], &[("PORT", "x")]).exits(2);
    run(&["--tls-cert", "x"], &[]).exits(2);
    let outcome =
        run(&["--server", "http://127.0.0.1:1", "--tls-cert", "/none", "--tls-key", "/none"], &[])
            .exits(1);
    assert!(outcome.stderr.contains("/none has no certificate in PEM"), "{outcome:?}");
}

/// The requests of a kube-scheduler 1.36.2 while document 001's four deployments were started on
/// two nodes with a GPU each, the fourth was deleted, and a pod got its room. They were recorded at
/// `--log-level trace` in the tests of `cluster`. Each line has a verb and a body. Where one node
/// is left, it requests no priorities.
const RECORDED: &str = include_str!("../golden/kube-scheduler-1.36.2.txt");

#[test]
fn recorded_calls_of_a_scheduler_are_answered() {
    let nodes = ["sd-cluster-04", "sd-cluster-05"];
    let fixture = Fixture::with(&nodes.map(|name| node(name, &[15109])));
    let extender = fixture.extender();
    let mut connection = extender.connection();
    let mut units = BTreeMap::from(nodes.map(|name| (name, 0)));
    let mut scores = Vec::new();
    let mut requested = 0;
    for line in RECORDED.lines() {
        let (verb, body) = line.split_once(' ').unwrap();
        let sent: Value = serde_json::from_str(body).unwrap();
        let mut request =
            || connection.request("POST", &format!("/gpushare-scheduler/{verb}"), body);
        match verb {
            "filter" => {
                let pending = fixture.pod(sent["Pod"].clone());
                if pending["metadata"]["name"] == "late" {
                    let fourth = fixture
                        .server
                        .objects("pods")
                        .into_iter()
                        .find(|pod| wanted(pod) == 5)
                        .unwrap();
                    fixture.server.remove(&key(&fourth));
                    let room = units.get_mut("sd-cluster-04").unwrap();
                    *room -= 5;
                    fixture.wait_for_units(&extender, "sd-cluster-04", *room);
                }
                let answer = request().json();
                assert_eq!(answer["NodeNames"], sent["NodeNames"], "{answer}");
                assert_eq!((&answer["FailedNodes"], &answer["Error"]), (&json!({}), &json!("")));
            }
            "prioritize" => scores.push(request().text),
            _ => {
                assert_eq!(request().json(), json!({"Error": ""}), "{line}");
                let bound = fixture
                    .server
                    .objects("pods")
                    .into_iter()
                    .find(|pod| pod["metadata"]["uid"] == sent["PodUID"]);
                let bound = bound.unwrap();
                assert_eq!(bound["spec"]["nodeName"], sent["Node"]);
                let (node, used) =
                    units.iter_mut().find(|(name, _)| sent["Node"] == **name).unwrap();
                *used += wanted(&bound);
                fixture.wait_for_units(&extender, node, *used);
            }
        }
        requested += 1;
    }
    assert_eq!((requested, units.into_values().collect::<Vec<_>>()), (15, vec![11, 12]));
    // Both are empty at first; then the fuller one is better.
    let text = |hosts: [(&str, u32); 2]| {
        json!(hosts.map(|(host, score)| json!({"Host": host, "Score": score}))).to_string()
    };
    let fuller = text([("sd-cluster-05", 10), ("sd-cluster-04", 0)]);
    assert_eq!(
        scores,
        [text([("sd-cluster-04", 10), ("sd-cluster-05", 10)]), fuller.clone(), fuller]
    );
}

fn wanted(pod: &Value) -> u64 {
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    limits["aliyun.com/gpu-mem"].as_str().unwrap().parse().unwrap()
}
