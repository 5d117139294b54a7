//! The rights in `kubernetes/manifests` against the requests of the real programs: none
//! is missing, and none is unused.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use cgpu_e2e::{Child, Dist, Fixture};
use cgpu_kubernetes_tests::api_server::{ApiServer, Fault, FaultAction, Key, Request};
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::kubelet::driver::DriverKubelet;
use cgpu_kubernetes_tests::objects;
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Need {
    group: String,
    /// With its subresource, as in `pods/binding`.
    resource: String,
    verb: &'static str,
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    resource: String,
    verb: String,
    /// Empty: all namespaces.
    namespace: String,
    /// Empty: any name.
    name: String,
}

impl Need {
    fn of(method: &str, path: &str, query: &str) -> Self {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            other => panic!("no path of a resource: {other:?}"),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, part) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, part] => (*plural, *name, *part),
            other => panic!("no path of a resource: {other:?}"),
        };
        let verb = match method {
            "GET" if query.contains("watch=") => "watch",
            "GET" if name.is_empty() => "list",
            "GET" => "get",
            "POST" => "create",
            "PATCH" => "patch",
            "PUT" => "update",
            "DELETE" => "delete",
            other => panic!("{other}"),
        };
        let resource = if part.is_empty() { plural.to_owned() } else { format!("{plural}/{part}") };
        // A created object has its name in the body, which a rule cannot match.
        let name = if verb == "create" { "" } else { name };
        let text = str::to_owned;
        Self { group: text(group), resource, verb, namespace: text(namespace), name: text(name) }
    }
}

impl Right {
    fn covers(&self, need: &Need) -> bool {
        (&self.group, &self.resource, self.verb.as_str())
            == (&need.group, &need.resource, need.verb)
            && (self.namespace.is_empty() || self.namespace == need.namespace)
            && (self.name.is_empty() || self.name == need.name)
    }
}

fn manifests() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/manifests");
    let objects = ["cgpu.yaml", "cgpu-dra.yaml"].map(|name| {
        let text = fs::read_to_string(folder.join(name)).expect("the manifests");
        serde_saphyr::from_multiple::<Value>(&text).expect("YAML")
    });
    objects.concat()
}

fn rights_of_role(role: &Value) -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it.as_str().map(str::to_owned))
            .collect()
    };
    let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().into_iter().flatten() {
        let mut names = texts(&rule["resourceNames"]);
        if names.is_empty() {
            names.push(String::new());
        }
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    assert!(
                        [&group, &resource, &verb].iter().all(|text| *text != "*"),
                        "a right to anything: {rule}"
                    );
                    rights.extend(names.iter().map(|name| Right {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        namespace: namespace.to_owned(),
                        name: name.clone(),
                    }));
                }
            }
        }
    }
    rights
}

fn rights_of(account: &str) -> BTreeSet<Right> {
    let objects = manifests();
    let is_bound = |binding: &&Value| {
        let subjects = binding["subjects"].as_array();
        subjects.is_some_and(|all| {
            all.iter().any(|it| it["kind"] == "ServiceAccount" && it["name"] == account)
        })
    };
    let mut rights = BTreeSet::new();
    for binding in objects.iter().filter(is_bound) {
        let role = objects.iter().find(|it| {
            it["kind"] == binding["roleRef"]["kind"]
                && it["metadata"]["name"] == binding["roleRef"]["name"]
        });
        rights.extend(rights_of_role(role.expect("the role that is bound")));
    }
    assert!(!rights.is_empty(), "no account {account}");
    rights
}

/// Asserts that every request is allowed, and that every right is used.
fn agree(account: &str, rights: &BTreeSet<Right>, requested: impl IntoIterator<Item = Need>) {
    let requested: BTreeSet<Need> = requested.into_iter().collect();
    let lacking: Vec<&Need> =
        requested.iter().filter(|need| !rights.iter().any(|right| right.covers(need))).collect();
    assert!(lacking.is_empty(), "{account} lacks {lacking:?}");
    let idle: Vec<&Right> =
        rights.iter().filter(|right| !requested.iter().any(|need| right.covers(need))).collect();
    assert!(idle.is_empty(), "{account} never used {idle:?}");
}

fn needs(journal: &[Request]) -> Vec<Need> {
    journal.iter().map(|it| Need::of(&it.method, &it.path, &it.query)).collect()
}

#[test]
fn rights_of_the_extender_are_those_it_uses() {
    let server = ApiServer::start();
    server.put("nodes", objects::node("one", &[15109]));
    let folder = tempfile::tempdir().expect("a folder");
    // The first elects, binds, withdraws; the second takes the lease that the first released.
    let flags = ["--leader-elect", "true", "--lease-duration", "2"];
    let extender = Extender::start(&server, folder.path(), &flags);
    let requested = |method: &str, part: &str| {
        server.journal().iter().any(|it| it.method == method && it.path.contains(part))
    };
    until_holds("the lease is renewed", || {
        requested("PATCH", "/leases/") || requested("PUT", "/leases/")
    });
    let pod = server.put("pods", objects::pod("test", "fine", 2));
    until_holds("a pod is bound", || extender.bind(&pod, "one").status == 200);
    let reply = extender.connection().request("POST", "/gpushare-scheduler/preempt", "{}");
    assert_eq!(reply.status, 200);
    // It requests a pod that its watch did not report. The lost event may be the lease's renewal
    // instead, so this is repeated.
    let mut number = 0;
    until_holds("it requests a pod", || {
        number += 1;
        server.lose_events(1);
        let unheard = server.put("pods", objects::pod("test", &format!("unheard-{number}"), 1));
        let _ = extender.bind(&unheard, "one");
        requested("GET", "/pods/unheard-")
    });
    let mut stale = objects::pod("test", "stale", 2);
    stale["metadata"]["annotations"] = json!({
        "scheduler.framework.gpushare.allocation": "{\"0\":{\"0\":2}}", "cgpu.dev/node": "one",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    });
    server.put("pods", stale);
    let key = Key::new("pods", "test", "stale");
    until_holds("the claim is withdrawn", || {
        server
            .object(&key)
            .is_some_and(|pod| pod["metadata"]["annotations"]["cgpu.dev/node"].is_null())
    });
    // An invalid request has an event, which a second extender counts up.
    let wrong = server
        .put("pods", objects::pod_with("test", "wrong", &json!({"aliyun.com/gpu-mem": "-1"})));
    until_holds("an event is created", || requested("POST", "/events"));
    let _ = extender.end();
    let second = Extender::start(&server, folder.path(), &flags);
    assert_eq!(second.bind(&wrong, "one").status, 500);
    until_holds("the event is counted on", || requested("PATCH", "/events/"));
    let _ = second.end();
    agree(
        "cgpu-scheduler-extender",
        &rights_of("cgpu-scheduler-extender"),
        needs(&server.journal()),
    );
}

#[test]
fn rights_of_the_plugin_are_those_it_uses() {
    let fixture = Fixture::new("T4:15109");
    let server = ApiServer::start();
    server.put(
        "nodes",
        json!({"metadata": {"name": "one"}, "status": {"capacity": {}, "allocatable": {}}}),
    );
    let mut command = fixture.native(&fixture.dist().file("cgpu-device-plugin"));
    command.args(["--node-name", "one", "--kubeconfig"]).arg(server.kubeconfig(&fixture.path("")));
    for (option, folder) in [("--kubelet-dir", "plugins"), ("--cdi-dir", "cdi")] {
        fs::create_dir_all(fixture.path(folder)).expect("a folder");
        command.arg(option).arg(fixture.path(folder));
    }
    fs::create_dir_all(fixture.root()).expect("a folder");
    command.arg("--root").arg(fixture.root());
    let plugin = Child::start_for(command, fixture.lifetime());
    let requested = |method: &str, part: &str, query: &str| {
        server
            .journal()
            .iter()
            .any(|it| it.method == method && it.path.ends_with(part) && it.query.contains(query))
    };
    until_holds("it watches its node, the node's pods and slices", || {
        ["/nodes", "/pods", "/resourceslices"].iter().all(|all| requested("GET", all, "watch="))
    });
    until_holds("the GPUs are published", || {
        requested("PATCH", "/nodes/one", "") && requested("PATCH", "/nodes/one/status", "")
    });
    // Containers of new pods until the plugin requests a pod that its watch did not report: the
    // lost event may be another.
    let mut number = 0;
    until_holds("it requests a pod", || {
        number += 1;
        server.lose_events(1);
        let mut pod = objects::pod("test", &format!("p{number}"), 1);
        pod["spec"]["nodeName"] = json!("one");
        pod["metadata"]["annotations"] = json!({
            "scheduler.framework.gpushare.allocation": "{\"0\":{\"0\":1}}", "cgpu.dev/node": "one",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        });
        let pod = server.put("pods", pod);
        let question = json!({
            "slice": format!("{number}-1"), "namespace": "test", "pod": format!("p{number}"),
            "uid": pod["metadata"]["uid"], "container": "main",
        });
        let answer = until("the plugin answers", || {
            let mut line = UnixStream::connect(fixture.root().join("plugin.sock")).ok()?;
            writeln!(line, "{question}").ok()?;
            let mut answer = String::new();
            BufReader::new(line).read_line(&mut answer).ok()?;
            Some(answer)
        });
        assert!(answer.contains("\"bound\""), "{answer}");
        requested("GET", &format!("/pods/p{number}"), "")
    });
    // The event of a resize is not the lost one.
    server.lose_events(0);
    until_holds("it is written on a pod", || {
        server.journal().iter().any(|it| it.method == "PATCH" && it.path.contains("/pods/p"))
    });
    // A resize that is refused twice, with the same event.
    for text in ["weight=0", "weight=99", "weight=0"] {
        let key = Key::pod("test", "p1");
        server.edit(&key, |pod| pod["metadata"]["annotations"]["cgpu.dev/resize"] = json!(text));
        until_holds("the resize is answered", || {
            let pod = server.object(&key).expect("the pod");
            let answer = pod["metadata"]["annotations"]["cgpu.dev/resize-status"].as_str();
            answer.is_some_and(|answer| answer.contains(&format!("\"{text}\"")))
        });
    }
    until_holds("the event is counted on", || {
        server.journal().iter().any(|it| it.method == "PATCH" && it.path.contains("/events/"))
    });
    let _ = plugin.kill();
    agree("cgpu-device-plugin", &rights_of("cgpu-device-plugin"), needs(&server.journal()));
}

#[test]
fn rights_of_the_driver_are_those_it_uses() {
    let fixture = Fixture::new("T4:15109");
    let server = ApiServer::start();
    server.put("nodes", json!({"metadata": {"name": "one"}}));
    let command = || {
        let mut command = fixture.native(&fixture.dist().file("cgpu-dra-driver"));
        command.args(["--node-name", "one", "--kubeconfig"]);
        command.arg(server.kubeconfig(&fixture.path("")));
        for (option, folder) in
            [("--plugins-dir", "plugins"), ("--registry-dir", "registry"), ("--cdi-dir", "cdi")]
        {
            command.arg(option).arg(fixture.path(folder));
        }
        command.arg("--root").arg(fixture.root());
        command
    };
    // Another release had more slices.
    let extra = json!({
        "metadata": {"name": "extra"},
        "spec": {"driver": "gpu.cgpu.dev", "nodeName": "one", "pool": {"generation": 1}},
    });
    server.put("resourceslices", extra);
    let driver = Child::start_for(command(), fixture.lifetime());
    let requested = |method: &str, part: &str, query: &str| {
        server
            .journal()
            .iter()
            .any(|it| it.method == method && it.path.contains(part) && it.query.contains(query))
    };
    until_holds("it publishes its GPUs", || {
        requested("POST", "/resourceslices", "") && requested("DELETE", "/resourceslices/extra", "")
    });
    until_holds("it watches its slices", || requested("GET", "/resourceslices", "watch="));
    let name = Key::new("resourceslices", "", "one-gpu.cgpu.dev-0");
    until_holds("it corrects a slice", || {
        server.edit(&name, |slice| slice["spec"]["devices"] = json!([]));
        requested("PUT", "/resourceslices/", "")
    });
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let info = until("its registration", || kubelet.register("gpu.cgpu.dev"));
    let result = json!({"request": "main", "driver": "gpu.cgpu.dev", "pool": "one",
        "device": "gpu-0", "shareID": "s", "consumedCapacity": {"memory": "1Gi", "weight": "1"}});
    let claim = server.put(
        "resourceclaims",
        json!({"metadata": {"name": "c", "namespace": "test"},
            "status": {"allocation": {"devices": {"results": [result]}}}}),
    );
    let answers = kubelet.prepare(&info, &[&claim]).expect("an answer");
    assert!(answers.values().all(Result::is_ok), "{answers:?}");
    until_holds("it writes the claim's status", || requested("PATCH", "/resourceclaims/c/", ""));
    let _ = driver.kill();
    // Another owner has an event, which the next instance counts up.
    server.edit(&Key::node("one"), |node| {
        node["status"] = json!({"capacity": {"nvidia.com/gpu": "1"}});
    });
    for method in ["POST", "PATCH"] {
        let driver = Child::start_for(command(), fixture.lifetime());
        until_holds("the event", || requested(method, "/events", ""));
        let _ = driver.kill();
    }
    let mut rights = rights_of("cgpu-dra-driver");
    // The API server asks for these itself, when a status is written.
    rights.retain(|right| right.resource != "resourceclaims/driver");
    agree("cgpu-dra-driver", &rights, needs(&server.journal()));
}

#[test]
fn rights_of_the_controller_are_those_it_uses() {
    let fixture = Fixture::new("T4:15109");
    let server = ApiServer::start();
    let claims = json!([{"name": "c", "resourceClaimTemplateName": "cgpu-gpus-1"}]);
    server.put(
        "pods",
        json!({"metadata": {"name": "p", "namespace": "test",
            "labels": {"cgpu.dev/translated": "true"}}, "spec": {"resourceClaims": claims}}),
    );
    // The second refusal is counted.
    let refusal = FaultAction::Refuse(403, "Forbidden");
    server.fault(Fault::times(2, "POST", "/resourceclaimtemplates", refusal));
    let mut command = fixture.native(&fixture.dist().file("cgpu-dra-controller"));
    command.arg("--kubeconfig").arg(server.kubeconfig(&fixture.path("")));
    command.args(["--retention", "1"]);
    let controller = Child::start_for(command, fixture.lifetime());
    let template = Key::new("resourceclaimtemplates", "test", "cgpu-gpus-1");
    until_holds("the template is made", || server.object(&template).is_some());
    assert!(server.remove(&Key::pod("test", "p")));
    until_holds("the template is removed", || server.object(&template).is_none());
    let requested = |part: &str| {
        server.journal().iter().any(|it| it.path.ends_with(part) && it.query.contains("watch="))
    };
    until_holds("it watches", || requested("/pods") && requested("/resourceclaimtemplates"));
    let _ = controller.kill();
    agree("cgpu-dra-controller", &rights_of("cgpu-dra-controller"), needs(&server.journal()));
}

#[test]
fn rights_of_inspect_are_those_of_the_role_for_people() {
    let server = ApiServer::start();
    server.put("nodes", objects::node("one", &[15109]));
    server.put("pods", objects::pod("test", "fine", 2));
    let folder = tempfile::tempdir().expect("a folder");
    let config = server.kubeconfig(folder.path());
    for arguments in
        [&[][..], &["-d", "one"], &["-o", "json"], &["doctor"], &["doctor", "fine", "-n", "test"]]
    {
        let mut command = Command::new(Dist::find().file("kubectl-inspect-gpushare"));
        command.args(arguments).arg("--kubeconfig").arg(&config);
        let _ = Child::start(command).finish();
    }
    let objects = manifests();
    let role = objects
        .iter()
        .find(|it| it["kind"] == "ClusterRole" && it["metadata"]["name"] == "cgpu-inspect");
    // Every account may read the version. Metrics and the ConfigMaps of kube-system are read where
    // the user has the right.
    let optional = ["/version", "/metrics", "/api/v1/namespaces/kube-system/configmaps"];
    let mut requests = server.journal();
    requests.retain(|request| !optional.contains(&request.path.as_str()));
    agree("cgpu-inspect", &rights_of_role(role.expect("the role")), needs(&requests));
}

#[test]
fn rights_of_the_node_are_those_its_script_uses() {
    let script =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/node.sh"))
            .expect("the script");
    let requested =
        script.lines().filter_map(|line| line.split("request \"").nth(1)?.split('"').next());
    let requested: Vec<Need> = requested
        .map(|path| {
            let path = path
                .replace("$NAMESPACE", NAMESPACE)
                .replace("$DAEMONSET", "cgpu-node")
                .replace("$NODE_NAME", "one");
            Need::of("GET", &path, "")
        })
        .collect();
    assert_eq!(requested.len(), 2, "{requested:?}");
    agree("cgpu-node", &rights_of("cgpu-node"), requested);
}

/// No account may read secrets, write workloads, or act on everything.
#[test]
fn no_account_has_rights_over_foreign_objects() {
    for object in
        manifests().iter().filter(|it| it["kind"] == "Role" || it["kind"] == "ClusterRole")
    {
        for right in rights_of_role(object) {
            let read = ["get", "list", "watch"].contains(&right.verb.as_str());
            let written = ["pods", "pods/binding", "nodes", "nodes/status", "events", "leases"];
            let claims = right.group == "resource.k8s.io" && right.resource != "resourceclaims";
            assert!(read || claims || written.contains(&right.resource.as_str()), "{right:?}");
            assert_ne!(right.resource, "secrets");
        }
    }
}
