//! The chart, its rendering, and the examples: they agree with each other, with the core and with
//! the programs.
//!
//! `kubernetes/manifests` has the rendered chart. Each file contains the sum of the chart's files,
//! which is always checked; the rest is checked where there is a helm (CGPU_HELM, or on the PATH).
//! `BLESS=1 cargo test -p cgpu-kubernetes-tests --test manifests` renders them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, Dist, skip};
use cgpu_kubernetes_core::container_request::Memory;
use cgpu_kubernetes_core::extender;
use cgpu_kubernetes_core::names::{self, Dialect, Dialects, RESOURCES, label};
use cgpu_kubernetes_core::object::Pod;
use cgpu_kubernetes_core::pod_request::PodRequest;
use cgpu_kubernetes_core::resource_request::ResourceRequest;
use cgpu_kubernetes_core::unit::Unit;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod as CorePod, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes")
}

fn documents(text: &str) -> Vec<Value> {
    let read: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let read = read.into_iter().filter(|document| !document.is_null());
    read.flat_map(|it| if it["kind"] == "List" { items(&it) } else { vec![it] }).collect()
}

/// Returns the objects of a List.
fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().expect("objects").clone()
}

fn rendered(file: &str) -> String {
    fs::read_to_string(folder().join(file)).expect("the manifests")
}

/// Returns the FNV-1a hash of all files of the chart, in the order of their names.
fn sum_of_chart() -> String {
    fn files(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() { files(&path, found) } else { found.push(path) }
        }
    }
    let chart = folder().join("chart");
    let mut found = Vec::new();
    files(&chart, &mut found);
    found.sort();
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for path in found {
        let name =
            path.strip_prefix(&chart).expect("below the chart").to_string_lossy().into_owned();
        let text = fs::read(&path).expect("a file");
        for byte in name.bytes().chain([0]).chain(text) {
            sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{sum:016x}")
}

fn helm() -> Option<PathBuf> {
    let reported = std::env::var_os("CGPU_HELM").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    reported.or_else(|| {
        std::env::split_paths(&paths).map(|path| path.join("helm")).find(|path| path.is_file())
    })
}

/// Settings of the manifests: what every cluster applies has no private keys.
const FOR_ALL: [&str; 1] = ["extender.tls.generate=false"];

/// A rendering of the chart that is kept.
struct Rendering {
    /// Below the folder `kubernetes`.
    file: &'static str,
    /// The parts of the chart: more arguments of helm.
    part: &'static [&'static str],
    settings: &'static [&'static str],
}

/// All but what `helm test` runs.
const INSTALLED: &[&str] = &["--skip-tests"];

/// The renderings that install.
const INSTALLATIONS: [&str; 2] = ["manifests/cgpu.yaml", "manifests/cgpu-dra.yaml"];

const RENDERINGS: [Rendering; 5] = [
    Rendering { file: "manifests/cgpu.yaml", part: INSTALLED, settings: &FOR_ALL },
    Rendering {
        file: "manifests/cgpu-dra.yaml",
        part: INSTALLED,
        settings: &[
            "dra.enabled=true",
            "dra.claimLimits.enabled=true",
            "dra.dialects.enabled=true",
            "plugin.enabled=false",
            "extender.enabled=false",
            "scheduler.enabled=false",
            "node.defaultRuntime=false",
        ],
    },
    Rendering {
        file: "../tests/kubernetes/tests/golden/helm-test.yaml",
        part: &["--show-only", "templates/tests/claim.yaml"],
        settings: &["dra.enabled=true"],
    },
    Rendering {
        file: "../tests/kubernetes/tests/golden/helm-test-units.yaml",
        part: &["--show-only", "templates/tests/units.yaml"],
        settings: &[],
    },
    // `tests/admission` evaluates it.
    Rendering {
        file: "../tests/kubernetes/tests/golden/pod-defaults.yaml",
        part: &["--show-only", "templates/pod-defaults.yaml"],
        settings: &["podDefaults.enabled=true"],
    },
];

/// Renders the chart for a cluster of this version with these settings.
fn render(helm: &Path, version: &str, settings: &[&str]) -> String {
    render_part(helm, version, INSTALLED, settings)
}

fn render_part(helm: &Path, version: &str, part: &[&str], settings: &[&str]) -> String {
    let mut command = Command::new(helm);
    command.arg("template").args(part).arg("cgpu").arg(folder().join("chart"));
    command.args(["--namespace", "kube-system", "--kube-version", version]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    Child::start(command).finish().exits(0).stdout
}

#[test]
fn manifests_equal_the_rendered_chart() {
    let head = format!(
        "# Rendered from kubernetes/chart (sum {}). Apply with `kubectl apply -f`, or install the chart.\n\
         # BLESS=1 cargo test -p cgpu-kubernetes-tests --test manifests renders it again.\n",
        sum_of_chart()
    );
    let helm = helm();
    for Rendering { file, part, settings } in RENDERINGS {
        let now =
            helm.as_ref().map(|helm| head.clone() + &render_part(helm, "1.36.0", part, settings));
        if let (Some(now), true) = (&now, std::env::var_os("BLESS").is_some()) {
            fs::write(folder().join(file), now).expect("the manifests");
        }
        let text = rendered(file);
        assert!(
            text.starts_with(&head),
            "{file} is behind the chart: BLESS=1, with helm, renders it"
        );
        assert!(now.is_none_or(|now| now == text), "{file} is not what helm renders");
    }
    if helm.is_none() {
        skip(
            "manifests_equal_the_rendered_chart",
            "helm",
            "no helm: only the chart's sum was compared",
        );
    }
}

/// Returns the containers of all pods in these objects, with the names of their objects.
fn containers(objects: &[Value]) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for container in
            object["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten()
        {
            found.push((name.to_owned(), container.clone()));
        }
    }
    found
}

fn texts(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

/// Checks that our programs accept their flags, and that the scripts exist.
fn check_commands(objects: &[Value]) {
    let dist = Dist::find();
    for (object, container) in containers(objects) {
        let command = texts(&container["command"]);
        let Some(file) = command[0].strip_prefix("/opt/cgpu/") else {
            assert_eq!(command[0], "kube-scheduler", "{object}");
            continue;
        };
        if file.starts_with("deploy/") {
            assert!(folder().join("..").join(file).is_file(), "{file}");
            continue;
        }
        let mut program = Command::new(dist.file(file));
        // Unknown flags are reported before the help.
        program.args(texts(&container["args"])).arg("--help");
        Child::start(program).finish().exits(0);
    }
}

/// Checks a scheduler's configuration of the extender.
fn check_scheduler(configuration: &Value, hami: bool) {
    let extenders = configuration["extenders"].as_array().expect("extenders");
    let [reported] = extenders.as_slice() else { panic!("{extenders:?}") };
    let url = reported["urlPrefix"].as_str().expect("an address");
    let path = url.split("//").nth(1).and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    for name in ["filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"] {
        let call =
            format!("{}/{}", path.expect("a path"), reported[name].as_str().expect("a verb"));
        assert!(extender::Call::of("POST", &call).is_some(), "{call}");
    }
    assert_eq!(
        (&reported["nodeCacheCapable"], &reported["ignorable"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(reported["enableHTTPS"], json!(url.starts_with("https:")));
    // Two steps of the extender's score, each of ten points times its weight, outweigh the 1300
    // points of all plugins of the scheduler.
    assert_eq!(reported["weight"], 100);
    let managed: BTreeMap<&str, bool> = reported["managedResources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|it| (it["name"].as_str().expect("a name"), it["ignoredByScheduler"] == true))
        .collect();
    let dialects = Dialects { hami };
    let priority = hami.then_some(names::HAMI_PRIORITY);
    let ours: Vec<&str> = RESOURCES
        .iter()
        .filter(|it| dialects.includes(it.dialect))
        .map(|it| it.name)
        .chain(priority)
        .collect();
    assert_eq!(managed.len(), ours.len(), "{managed:?}");
    for name in ours {
        // The scheduler also counts what the kubelet counts; the rest is on no node.
        let counted = [names::MEMORY, names::CORE, "nvidia.com/gpu"].contains(&name);
        assert_eq!(managed.get(name), Some(&!counted), "{name}");
    }
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let fits = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == name;
    objects.iter().find(fits).unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn configuration(objects: &[Value]) -> Value {
    let text = find(objects, "ConfigMap", "cgpu-scheduler")["data"]["scheduler.yaml"]
        .as_str()
        .expect("a text");
    documents(text).remove(0)
}

/// Returns an object as parsed by the API's types, which drop unknown fields.
fn known<T: DeserializeOwned + Serialize>(object: &Value) -> Value {
    let typed: T =
        serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    serde_json::to_value(typed).expect("JSON")
}

fn check_fields(object: &Value) {
    let read = match object["kind"].as_str().expect("a kind") {
        "ClusterRole" => known::<ClusterRole>(object),
        "ClusterRoleBinding" => known::<ClusterRoleBinding>(object),
        "ConfigMap" => known::<ConfigMap>(object),
        "DaemonSet" => known::<DaemonSet>(object),
        "Deployment" => known::<Deployment>(object),
        "DeviceClass" => known::<DeviceClass>(object),
        "MutatingAdmissionPolicy" => known::<MutatingAdmissionPolicy>(object),
        "MutatingAdmissionPolicyBinding" => known::<MutatingAdmissionPolicyBinding>(object),
        "NetworkPolicy" => known::<NetworkPolicy>(object),
        "Pod" => known::<CorePod>(object),
        "PodDisruptionBudget" => known::<PodDisruptionBudget>(object),
        "ResourceClaim" => known::<ResourceClaim>(object),
        "ResourceClaimTemplate" => known::<ResourceClaimTemplate>(object),
        "Role" => known::<Role>(object),
        "RoleBinding" => known::<RoleBinding>(object),
        "RuntimeClass" => known::<RuntimeClass>(object),
        "Secret" => known::<Secret>(object),
        "Service" => known::<Service>(object),
        "ServiceAccount" => known::<ServiceAccount>(object),
        "ValidatingAdmissionPolicy" => known::<ValidatingAdmissionPolicy>(object),
        "ValidatingAdmissionPolicyBinding" => known::<ValidatingAdmissionPolicyBinding>(object),
        // Of Prometheus's operator.
        "PodMonitor" | "PrometheusRule" | "ServiceMonitor" => return,
        other => panic!("no test for objects of kind {other}"),
    };
    assert_eq!(&read, object);
}

fn check(objects: &[Value], hami: bool) {
    objects.iter().for_each(check_fields);
    for object in objects {
        assert!(object["apiVersion"].is_string() && object["kind"].is_string(), "{object}");
        assert!(object["metadata"]["name"].is_string(), "{object}");
    }
    check_commands(objects);
    if objects
        .iter()
        .any(|it| it["kind"] == "ConfigMap" && it["metadata"]["name"] == "cgpu-scheduler")
    {
        check_scheduler(&configuration(objects), hami);
    }
    // Every pod's service account exists, and so does every bound role except the cluster's own.
    for object in objects {
        if let Some(account) = object["spec"]["template"]["spec"]["serviceAccountName"].as_str() {
            find(objects, "ServiceAccount", account);
        }
        let role = &object["roleRef"];
        if let (Some(kind), Some(name)) = (role["kind"].as_str(), role["name"].as_str())
            && !name.starts_with("system:")
            && !name.starts_with("extension-")
        {
            find(objects, kind, name);
        }
    }
}

#[test]
fn manifests_use_only_known_names() {
    for Rendering { file, .. } in RENDERINGS {
        check(&documents(&rendered(file)), false);
    }
    let objects = documents(&rendered("manifests/cgpu.yaml"));
    let class = find(&objects, "RuntimeClass", "cgpu");
    assert_eq!(class["handler"], "cgpu");
    for name in ["cgpu-node", "cgpu-device-plugin"] {
        let pod = &find(&objects, "DaemonSet", name)["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], json!({label::SHARED: "true"}), "{name}");
        assert_eq!(pod["priorityClassName"], "system-node-critical", "{name}");
    }
    let replicas = &find(&objects, "Deployment", "cgpu-scheduler-extender")["spec"]["replicas"];
    assert_eq!(replicas, &json!(2));
    let reported = documents(
        &fs::read_to_string(folder().join("examples/control-plane.yaml")).expect("a file"),
    );
    check_scheduler(&reported[0], false);
}

#[test]
fn other_settings_render_only_known_names() {
    let Some(helm) = helm() else {
        return skip("other_settings_render_only_known_names", "helm", "no helm");
    };
    let [tls, client] =
        ["extender.tls.secretName=cgpu-tls", "extender.tls.clientSecretName=cgpu-client"];
    for (version, settings, hami) in [
        ("1.23.0", &["memoryUnit=128MiB", "hami=true"][..], true),
        (
            "1.30.0",
            &[tls, client, "extender.service.type=NodePort", "extender.placement=spread"],
            false,
        ),
        (
            "1.36.0",
            &["scheduler.enabled=false", "node.enabled=false", "runtimeClass.create=false"],
            false,
        ),
        (
            "1.36.0",
            &[
                "plugin.runtimeClassName=nvidia",
                "plugin.arguments={--recovery=60}",
                "node.engine=crio",
            ],
            false,
        ),
        ("1.34.0", &["dra.enabled=true"], false),
        (
            "1.36.0",
            &["dra.enabled=true", "dra.vendorCdiKind=", "dra.arguments={--recovery=60}"],
            false,
        ),
    ] {
        let objects = documents(&render(&helm, version, settings));
        check(&objects, hami);
        if settings.contains(&tls) {
            let port = &find(&objects, "Service", "cgpu-scheduler-extender")["spec"]["ports"][0]["nodePort"];
            assert_eq!(port, &json!(32766));
        }
        if settings.contains(&"scheduler.enabled=false") {
            assert!(objects.iter().all(|it| it["metadata"]["name"] != "cgpu-scheduler"));
            assert!(
                objects
                    .iter()
                    .all(|it| it["kind"] != "RuntimeClass" && it["metadata"]["name"] != "cgpu-node")
            );
        } else {
            let version = if version == "1.23.0" { "v1beta3" } else { "v1" };
            let reported = configuration(&objects);
            assert_eq!(reported["apiVersion"], format!("kubescheduler.config.k8s.io/{version}"));
        }
    }
}

/// Alibaba Cloud's name for the unit wins.
#[test]
fn unit_has_the_name_of_alibaba_cloud_too() {
    let test = "unit_has_the_name_of_alibaba_cloud_too";
    let Some(helm) = helm() else { return skip(test, "helm", "no helm") };
    let settings = ["gpuMemoryUnit=128MiB", "dra.enabled=true", "dra.dialects.enabled=true"];
    let objects = documents(&render(&helm, "1.36.0", &settings));
    let plugin = find(&objects, "DaemonSet", "cgpu-device-plugin").to_string();
    assert!(plugin.contains("--memory-unit=128MiB"), "{plugin}");
    let policy = find(&objects, "MutatingAdmissionPolicy", "cgpu-dialects");
    assert_eq!(policy["spec"]["variables"][0]["expression"], "128");
}

/// The objects for Prometheus and Grafana name ports, labels and files that exist.
#[test]
fn metrics_are_collected_from_what_the_chart_installs() {
    let test = "metrics_are_collected_from_what_the_chart_installs";
    let Some(helm) = helm() else { return skip(test, "helm", "no helm") };
    let settings = [
        "metrics.address=0.0.0.0:9555",
        "metrics.allow=10.0.0.0/8",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
        "metrics.serviceMonitor.enabled=true",
        "metrics.rules.enabled=true",
        "metrics.dashboard.enabled=true",
        "metrics.from[0].namespaceSelector.matchLabels.team=monitoring",
    ];
    let objects = documents(&render(&helm, "1.36.0", &settings));
    check(&objects, false);
    let node = &find(&objects, "DaemonSet", "cgpu-node")["spec"]["template"];
    let container = &node["spec"]["containers"][0];
    let variable = |name: &str| {
        let mut all = container["env"].as_array().expect("variables").iter();
        all.find(|it| it["name"] == name).expect("a variable")["value"].clone()
    };
    assert_eq!(variable("METRICS"), "0.0.0.0:9555");
    assert_eq!(variable("METRICS_ALLOW"), "10.0.0.0/8");
    assert_eq!(container["ports"], json!([{"name": "metrics", "containerPort": 9555}]));
    let monitor = find(&objects, "PodMonitor", "cgpu-node");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let includes = |labels: &Value, selector: &Value| {
        let selector = selector["matchLabels"].as_object().expect("labels");
        assert!(selector.iter().all(|(name, value)| labels[name] == *value), "{labels}");
    };
    includes(&node["metadata"]["labels"], &monitor["spec"]["selector"]);
    // The alerts expect the job `cgpu`.
    let job = monitor["spec"]["jobLabel"].as_str().expect("a label");
    assert_eq!(node["metadata"]["labels"][job], "cgpu");
    let service = find(&objects, "Service", "cgpu-scheduler-extender");
    let monitor = &find(&objects, "ServiceMonitor", "cgpu-scheduler-extender")["spec"];
    includes(&service["metadata"]["labels"], &monitor["selector"]);
    let endpoint = &monitor["endpoints"][0];
    assert_eq!(endpoint["port"], service["spec"]["ports"][0]["name"]);
    let secret = endpoint["tlsConfig"]["ca"]["secret"]["name"].as_str().expect("a secret");
    assert!(find(&objects, "Secret", secret)["data"]["ca.crt"].is_string());
    let peers =
        &find(&objects, "NetworkPolicy", "cgpu-scheduler-extender")["spec"]["ingress"][0]["from"];
    let mut peers = peers.as_array().expect("peers").iter();
    assert!(peers.any(|it| it["namespaceSelector"]["matchLabels"]["team"] == "monitoring"));
    let kept =
        |file: &str| fs::read_to_string(folder().join("../deploy").join(file)).expect("a file");
    let rules = &find(&objects, "PrometheusRule", "cgpu")["spec"];
    assert_eq!(rules, &documents(&kept("prometheus-alerts.yaml"))[0]);
    let dashboard = &find(&objects, "ConfigMap", "cgpu-dashboard");
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let text = dashboard["data"]["cgpu.json"].as_str().expect("a dashboard");
    assert_eq!(read(text), read(&kept("grafana-dashboard.json")));
}

/// The scheduler's own plugin prefers full or empty nodes as the extender does.
#[test]
fn scheduler_scores_nodes_as_the_extender_does() {
    let strategy = |objects: &[Value]| {
        let profiles = configuration(objects)["profiles"].clone();
        assert_eq!(profiles.as_array().map(Vec::len), Some(1), "{profiles}");
        let plugin = &profiles[0]["pluginConfig"][0];
        assert_eq!(plugin["name"], "NodeResourcesFit", "{profiles}");
        plugin["args"]["scoringStrategy"]["type"].clone()
    };
    assert_eq!(strategy(&documents(&rendered("manifests/cgpu.yaml"))), "MostAllocated");
    let Some(helm) = helm() else {
        return skip("scheduler_scores_nodes_as_the_extender_does", "helm", "no helm: no `spread`");
    };
    let spread = ["extender.placement=spread"];
    for version in ["1.23.0", "1.36.0"] {
        let objects = documents(&render(&helm, version, &spread));
        assert_eq!(strategy(&objects), "LeastAllocated", "{version}");
        let (_, extender) = containers(&objects)
            .into_iter()
            .find(|(name, _)| name == "cgpu-scheduler-extender")
            .expect("the extender");
        assert!(texts(&extender["args"]).contains(&"--node-placement=spread".to_owned()));
    }
}

/// Returns the secrets that the scheduler and the extender mount.
fn tls_secrets(objects: &[Value]) -> [Option<String>; 2] {
    ["cgpu-scheduler", "cgpu-scheduler-extender"].map(|name| {
        let pod = &find(objects, "Deployment", name)["spec"]["template"]["spec"];
        let mut volumes = pod["volumes"].as_array().into_iter().flatten();
        let secret = volumes.find_map(|volume| volume["secret"]["secretName"].as_str());
        secret.map(str::to_owned)
    })
}

/// A node that fails or is drained leaves a scheduler and an extender.
#[test]
fn scheduler_and_extender_have_two_replicas() {
    let objects = documents(&rendered("manifests/cgpu.yaml"));
    for name in ["cgpu-scheduler", "cgpu-scheduler-extender"] {
        let deployment = &find(&objects, "Deployment", name)["spec"];
        assert_eq!(deployment["replicas"], 2);
        let pods = &deployment["template"];
        let affinity = &pods["spec"]["affinity"]["podAntiAffinity"];
        let apart = &affinity["preferredDuringSchedulingIgnoredDuringExecution"][0];
        let budget = &find(&objects, "PodDisruptionBudget", name)["spec"];
        assert_eq!(budget["minAvailable"], 1);
        for selector in [&apart["podAffinityTerm"]["labelSelector"], &budget["selector"]] {
            let label = &selector["matchLabels"]["app.kubernetes.io/name"];
            assert_eq!(label, name);
            assert_eq!(label, &pods["metadata"]["labels"]["app.kubernetes.io/name"]);
        }
    }
    assert_eq!(configuration(&objects)["leaderElection"]["leaderElect"], true);
}

#[test]
fn scheduler_shows_a_certificate_by_default() {
    let Some(helm) = helm() else {
        return skip("scheduler_shows_a_certificate_by_default", "helm", "no helm");
    };
    let [server, client] = ["extender.tls.secretName=s", "extender.tls.clientSecretName=c"];
    let generated = ["cgpu-scheduler-client-tls", "cgpu-scheduler-extender-tls"];
    for (settings, secrets, certificates) in [
        (&[][..], generated.map(Some), true),
        (&["extender.service.type=NodePort"], generated.map(Some), true),
        (&[server, client], [Some("c"), Some("s")], true),
        (&[server], [Some("s"), Some("s")], false),
        (&FOR_ALL, [None, None], false),
    ] {
        let objects = documents(&render(&helm, "1.36.0", settings));
        check(&objects, false);
        assert_eq!(tls_secrets(&objects), secrets.map(|name| name.map(str::to_owned)));
        let extender = &configuration(&objects)["extenders"][0];
        let is_tls = secrets[1].is_some();
        assert_eq!(extender["enableHTTPS"], json!(is_tls), "{settings:?}");
        let url = extender["urlPrefix"].as_str().expect("an address");
        assert_eq!(url.starts_with("https://"), is_tls, "{settings:?}");
        let tls = &extender["tlsConfig"];
        assert_eq!((tls["caFile"].is_string(), tls["keyFile"].is_string()), (is_tls, certificates));
        let (_, container) = containers(&objects)
            .into_iter()
            .find(|(name, _)| name == "cgpu-scheduler-extender")
            .expect("the extender");
        let arguments = texts(&container["args"]);
        assert_eq!(arguments.iter().any(|it| it == "--tls-client-ca=/tls/ca.crt"), certificates);
        let made = objects.iter().filter(|it| it["kind"] == "Secret").count();
        assert_eq!(made, if secrets == generated.map(Some) { 2 } else { 0 }, "{settings:?}");
    }
    // Without a network policy, only certificates keep other clients out.
    let [node_port, own] = ["extender.service.type=NodePort", "scheduler.enabled=false"];
    let port = "every client of a node reaches a NodePort";
    let policy = "no network policy without scheduler.enabled";
    for (settings, words) in [
        (&[node_port, FOR_ALL[0]][..], port),
        (&[node_port, server], port),
        (&[node_port, own, FOR_ALL[0]], port),
        (&[own, FOR_ALL[0]], policy),
        (&[own, server], policy),
    ] {
        let refusal = refusal_of(&helm, settings);
        assert!(refusal.contains(words), "{settings:?}: {refusal}");
        assert!(refusal.contains("extender.tls needs client certificates"), "{refusal}");
    }
}

/// A node has one engine.
#[test]
fn driver_and_device_plugin_run_on_different_nodes() {
    let Some(helm) = helm() else {
        return skip("driver_and_device_plugin_run_on_different_nodes", "helm", "no helm");
    };
    let objects = documents(&render(&helm, "1.36.0", &["dra.enabled=true"]));
    let on = |name: &str| {
        let pod = &find(&objects, "DaemonSet", name)["spec"]["template"]["spec"];
        let affinity = &pod["affinity"]["nodeAffinity"];
        let terms =
            &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        terms[0]["matchExpressions"][0].clone()
    };
    let label =
        |operator: &str| json!({"key": "cgpu.dev/engine", "operator": operator, "values": ["dra"]});
    assert_eq!([on("cgpu-dra-driver"), on("cgpu-device-plugin")], ["In", "NotIn"].map(label));
    for name in ["cgpu", "cgpu-mig", "cgpu-cores"] {
        find(&objects, "DeviceClass", name);
    }
    // The API of claims is not there.
    let mut command = Command::new(&helm);
    command.args(["template", "cgpu"]).arg(folder().join("chart"));
    command.args(["--kube-version", "1.33.0", "--set", "dra.enabled=true"]);
    assert_ne!(Child::start(command).finish().code(), Some(0));
}

/// helm makes the objects of a test when it is wanted, the template before the pod that uses it.
#[test]
fn objects_of_helm_test_are_hooks() {
    let objects = documents(&rendered(RENDERINGS[2].file));
    let weight = |kind: &str| {
        let annotations = &find(&objects, kind, "cgpu-test")["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "test", "{kind}");
        assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation", "{kind}");
        annotations["helm.sh/hook-weight"].as_str().map_or(0, |it| it.parse().expect("a weight"))
    };
    assert!(weight("ResourceClaimTemplate") < weight("Pod"));
    let pod = &find(&objects, "Pod", "cgpu-test")["spec"];
    let image = &pod["containers"][0]["image"];
    let driver = documents(&rendered("manifests/cgpu-dra.yaml"));
    let driver = &find(&driver, "DaemonSet", "cgpu-dra-driver")["spec"]["template"]["spec"];
    assert_eq!(image, &driver["containers"][0]["image"]);
    assert_eq!(pod["resourceClaims"][0]["resourceClaimTemplateName"], "cgpu-test");
}

/// `docs/kubernetes.md` has the reason of each right.
#[test]
fn pods_have_only_the_rights_that_the_page_explains() {
    let objects: Vec<Value> =
        INSTALLATIONS.iter().flat_map(|file| documents(&rendered(file))).collect();
    let confined = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    let user = json!({"runAsNonRoot": true, "runAsUser": 65534, "runAsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"}});
    let mut user_of_files = user.clone();
    user_of_files["fsGroup"] = json!(65534);
    let bare = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]}});
    let mut root = bare.clone();
    root["runAsUser"] = json!(0);
    let all = json!({"privileged": true});
    let mut found = 0;
    for (kind, name, pod, container, host, limited) in [
        ("DaemonSet", "cgpu-node", &Value::Null, &all, true, false),
        ("DaemonSet", "cgpu-device-plugin", &confined, &root, true, true),
        ("DaemonSet", "cgpu-dra-driver", &confined, &root, true, true),
        ("Deployment", "cgpu-scheduler-extender", &user_of_files, &bare, false, true),
        ("Deployment", "cgpu-scheduler", &user, &bare, false, false),
        ("Deployment", "cgpu-dra-controller", &user, &bare, false, true),
    ] {
        let fits = |it: &&Value| it["kind"] == kind && it["metadata"]["name"] == name;
        for object in objects.iter().filter(fits) {
            found += 1;
            let spec = &object["spec"]["template"]["spec"];
            assert_eq!(spec["securityContext"], *pod, "{name}");
            assert_eq!(spec["hostPID"].as_bool().unwrap_or(false), host, "{name}");
            assert!(spec["hostNetwork"].is_null() && spec["hostIPC"].is_null(), "{name}");
            let [only] = spec["containers"].as_array().expect("containers").as_slice() else {
                panic!("{spec}")
            };
            assert_eq!(only["securityContext"], *container, "{name}");
            assert_eq!(only["resources"]["limits"]["memory"].is_string(), limited, "{name}");
            assert!(spec["initContainers"].is_null(), "{name}");
        }
    }
    let has_pods = |it: &&Value| it["spec"]["template"]["spec"].is_object();
    // No workload is missing in the table.
    assert_eq!(objects.iter().filter(has_pods).count(), found);
}

/// The extender's clients are the scheduler, the other replicas, and no other pods.
#[test]
fn network_policy_selects_pods_of_scheduler_and_extender() {
    let objects = documents(&rendered(INSTALLATIONS[0]));
    let labels = |name: &str| {
        find(&objects, "Deployment", name)["spec"]["template"]["metadata"]["labels"].clone()
    };
    let policy = &find(&objects, "NetworkPolicy", "cgpu-scheduler-extender")["spec"];
    let selects = |selector: &Value, name: &str| {
        let wanted = selector["matchLabels"].as_object().expect("labels");
        wanted.iter().all(|(label, value)| labels(name)[label] == *value)
    };
    let [extender, scheduler] = ["cgpu-scheduler-extender", "cgpu-scheduler"];
    assert!(selects(&policy["podSelector"], extender));
    assert!(!selects(&policy["podSelector"], scheduler));
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let [rule] = policy["ingress"].as_array().expect("rules").as_slice() else {
        panic!("{policy}")
    };
    let [one, other] = rule["from"].as_array().expect("peers").as_slice() else { panic!("{rule}") };
    assert!(selects(&one["podSelector"], scheduler) && !selects(&one["podSelector"], extender));
    assert!(selects(&other["podSelector"], extender) && !selects(&other["podSelector"], scheduler));
    let container =
        &find(&objects, "Deployment", extender)["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(rule["ports"], json!([{"port": container["ports"][0]["name"]}]));

    let test = "network_policy_selects_pods_of_scheduler_and_extender";
    let Some(helm) = helm() else { return skip(test, "helm", "no helm") };
    // No selector names a scheduler on the host's network.
    for setting in ["scheduler.enabled=false", "extender.service.type=NodePort"] {
        let objects = documents(&render(&helm, "1.36.0", &[setting]));
        assert!(objects.iter().all(|it| it["kind"] != "NetworkPolicy"), "{setting}");
    }
}

/// helm waits for a hook to end before the next, so both pods are one.
#[test]
fn helm_test_of_units_is_one_hook_of_two_pods() {
    let read: Vec<Value> =
        serde_saphyr::from_multiple(&rendered(RENDERINGS[3].file)).expect("YAML");
    let [hook] = read.as_slice() else { panic!("{read:?}") };
    assert_eq!(hook["metadata"]["annotations"]["helm.sh/hook"], "test");
    let objects = items(hook);
    let pods: Vec<&Value> = objects.iter().filter(|it| it["kind"] == "Pod").collect();
    assert_eq!(pods.len(), 2);
    // helm asks for the log of a pod of the hook's name.
    assert_eq!(pods[0]["metadata"]["name"], hook["metadata"]["name"]);
    let names = json!(pods.iter().map(|it| &it["metadata"]["name"]).collect::<Vec<_>>());
    assert_eq!(find(&objects, "Role", "cgpu-test-units")["rules"][0]["resourceNames"], names);
    for pod in pods {
        assert_eq!(pod["spec"]["schedulerName"], "cgpu-scheduler");
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits[names::MEMORY], "1");
    }
}

/// Bounds of claims are those of the settings, and of a namespace's labels before them.
#[test]
fn claim_limits_of_the_settings_are_in_the_policy() {
    let Some(helm) = helm() else {
        return skip("claim_limits_of_the_settings_are_in_the_policy", "helm", "no helm");
    };
    let settings = [
        "dra.enabled=true",
        "dra.claimLimits.enabled=true",
        "dra.claimLimits.memory=8Gi",
        "dra.claimLimits.weight=2",
    ];
    let objects = documents(&render(&helm, "1.36.0", &settings));
    let policy = find(&objects, "ValidatingAdmissionPolicy", "cgpu-claims");
    let variables = policy["spec"]["variables"].as_array().expect("variables");
    let bounds = variables.iter().find(|it| it["name"] == "bounds").expect("bounds");
    let bounds = bounds["expression"].as_str().expect("an expression");
    for (name, bound) in [("memory", "8Gi"), ("weight", "2"), ("cores", "")] {
        let label = format!("\"cgpu.dev/max-{name}\"");
        let entry = format!(
            "\"{name}\": {label} in variables.labels ? variables.labels[{label}] : \"{bound}\""
        );
        assert!(bounds.contains(&entry), "{bounds}");
    }
}

#[test]
fn contradictory_settings_are_refused_with_words() {
    let Some(helm) = helm() else {
        return skip("contradictory_settings_are_refused_with_words", "helm", "no helm");
    };
    let driver = "dra.enabled=true";
    for (settings, words) in [
        (&[driver, "dra.claimLimits.memory=8Gi"][..], "dra.claimLimits.enabled is false"),
        (&["dra.claimLimits.enabled=true"], "needs dra.enabled"),
        (
            &[driver, "dra.vendorCdiKind=", "plugin.runtimeClassName=nvidia"],
            "an empty dra.vendorCdiKind is for simulated GPUs",
        ),
        (&[driver, "dra.arguments={--vendor-cdi-kind=a/b}"], "set dra.vendorCdiKind instead"),
        (&["extender.tls.clientSecretName=c"], "needs extender.tls.secretName"),
    ] {
        let refusal = refusal_of(&helm, settings);
        assert!(refusal.contains(words), "{settings:?}: {refusal}");
    }
}

/// The policies translate by the settings that the other engine has.
#[test]
fn dialects_of_the_settings_are_in_the_policies() {
    let Some(helm) = helm() else {
        return skip("dialects_of_the_settings_are_in_the_policies", "helm", "no helm");
    };
    let [driver, dialects] = ["dra.enabled=true", "dra.dialects.enabled=true"];
    for unit in Unit::ALL {
        for hami in [false, true] {
            let [size, names] = [format!("memoryUnit={unit}"), format!("hami={hami}")];
            let objects = documents(&render(&helm, "1.36.0", &[driver, dialects, &size, &names]));
            check(&objects, hami);
            let policies: Vec<&Value> = ["MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"]
                .map(|kind| find(&objects, kind, "cgpu-dialects"))
                .into();
            let variable = |policy: &Value, name: &str| {
                let variables = policy["spec"]["variables"].as_array().expect("variables");
                let found = variables.iter().find(|it| it["name"] == name).expect("a variable");
                found["expression"].as_str().expect("an expression").to_owned()
            };
            assert_eq!(variable(policies[0], "unit"), unit.mib().to_string());
            for policy in policies {
                assert_eq!(variable(policy, "hami"), hami.to_string());
                // All names that are read are replaced.
                for resource in RESOURCES {
                    let name = format!("\"{}\"", resource.name);
                    assert!(variable(policy, "names").contains(&name), "{name}");
                }
            }
            for kind in ["MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding"] {
                assert_eq!(
                    find(&objects, kind, "cgpu-dialects")["spec"]["matchResources"],
                    json!({"namespaceSelector": {"matchLabels": {"cgpu.dev/engine": "dra"}}})
                );
            }
        }
    }
    assert!(refusal_of(&helm, &[dialects]).contains("needs dra.enabled"));
    let mut command = Command::new(&helm);
    command.args(["template", "cgpu"]).arg(folder().join("chart"));
    command.args(["--kube-version", "1.35.0", "--set", driver, "--set", dialects]);
    let outcome = Child::start(command).finish();
    assert!(outcome.stderr.contains("Kubernetes 1.36"), "{outcome:?}");
}

/// Returns why the chart does not accept these settings.
fn refusal_of(helm: &Path, settings: &[&str]) -> String {
    let mut command = Command::new(helm);
    command.args(["template", "cgpu"]).arg(folder().join("chart"));
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    let outcome = Child::start(command).finish();
    assert_ne!(outcome.code(), Some(0), "{settings:?}");
    outcome.stderr
}

#[test]
fn admission_policies_need_their_api() {
    let Some(helm) = helm() else {
        return skip("admission_policies_need_their_api", "helm", "no helm");
    };
    for (version, settings, policies) in
        [("1.29.5", &[][..], 0), ("1.30.0", &[], 6), ("1.36.0", &["admissionPolicies=false"], 0)]
    {
        let objects = documents(&render(&helm, version, settings));
        let is_policy = |it: &&Value| it["apiVersion"] == "admissionregistration.k8s.io/v1";
        assert_eq!(objects.iter().filter(is_policy).count(), policies, "{version} {settings:?}");
    }
}

#[test]
fn unknown_settings_are_refused() {
    let Some(helm) = helm() else {
        return skip("unknown_settings_are_refused", "helm", "no helm");
    };
    for setting in [
        "memoryUnit=GB",
        "gpuMemoryUnit=GB",
        "metrics.address=everywhere",
        "metrics.podMonitor.enabled=true",
        "node.engine=docker",
        "extender.placement=random",
        "extender.replicas=0",
        "dra.vendorCdiKind=nvidia",
        "dra.claimLimits.memory=8GB",
    ] {
        let mut command = Command::new(&helm);
        command.arg("template").arg(folder().join("chart")).args(["--set", setting]);
        let outcome = Child::start(command).finish();
        assert_ne!(outcome.code(), Some(0), "{setting}");
    }
}

/// Returns the pods that a file's objects make, with all replicas.
fn pods(file: &str) -> Vec<Pod> {
    let text = fs::read_to_string(folder().join("examples").join(file)).expect("an example");
    let mut pods = Vec::new();
    for object in documents(&text) {
        let template = &object["spec"]["template"];
        for number in 0..object["spec"]["replicas"].as_u64().unwrap_or(1) {
            let mut pod: Pod = serde_json::from_value(template.clone()).expect("a pod");
            let name = object["metadata"]["name"].as_str().expect("a name");
            pod.metadata.name = format!("{name}-{number}");
            pod.metadata.uid = format!("uid-{name}-{number}");
            pods.push(pod);
        }
    }
    pods
}

fn demands(file: &str, dialects: Dialects) -> Vec<ResourceRequest> {
    let resource_request = |pod: &Pod| {
        PodRequest::of(pod, dialects)
            .expect("a request for GPUs")
            .resource_request()
            .expect("it is understood")
    };
    let demands: Vec<ResourceRequest> = pods(file).iter().map(resource_request).collect();
    for resource_request in &demands {
        assert!(resource_request.notes.is_empty(), "{:?}", resource_request.notes);
    }
    demands
}

/// Returns the GPUs, and memory and percent of each, that the only container requests.
fn requested(file: &str, dialects: Dialects) -> Vec<(usize, Memory, u32)> {
    let of = |resource_request: ResourceRequest| {
        let [need] = resource_request.needs.as_slice() else { panic!("{resource_request:?}") };
        (resource_request.gpus, need.memory, need.percent)
    };
    demands(file, dialects).into_iter().map(of).collect()
}

#[test]
fn examples_request_what_their_documents_say() {
    let plain = Dialects::default();
    let units = |gpus, units| (gpus, Memory::Units(units), 0);
    // 8 GiB over 4 GPUs are 2 GiB of each.
    assert_eq!(requested("000-four-gpus.yaml", plain), [units(4, 2)]);
    let four = [units(1, 2), units(1, 8), units(1, 8), units(1, 2), units(1, 5)];
    assert_eq!(requested("001-four-deployments.yaml", plain), four);
    // 16 units of 128 MiB are 2 GiB.
    assert_eq!(requested("003-units-of-128-mib.yaml", plain), [units(1, 16)]);
    assert_eq!(16 * Unit::Mib128.mib(), 2048);
    // 3000 MiB and 30 percent; where two names give memory, the amount counts.
    let hami = Dialects { hami: true };
    assert_eq!(
        requested("004-hami.yaml", hami),
        [(1, Memory::Mib(3000), 30), (1, Memory::Mib(3000), 0)]
    );
    assert!(pods("004-hami.yaml").iter().all(|pod| PodRequest::of(pod, plain).is_none()));
}

/// The policy that replaces HAMi's webhook names HAMi's resources. `cluster` applies it to an
/// API server.
#[test]
fn policy_for_hami_covers_its_resources() {
    let text = fs::read_to_string(folder().join("examples").join("hami-one-gpu.yaml"))
        .expect("an example");
    let [policy, binding] = &documents(&text)[..] else { panic!("two objects") };
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let lacking = policy["spec"]["variables"][0]["expression"].as_str().expect("an expression");
    for resource in RESOURCES.iter().filter(|resource| resource.dialect == Dialect::Hami) {
        assert!(lacking.contains(&format!("\"{}\"", resource.name)), "{}", resource.name);
    }
    assert_eq!(
        policy["spec"]["matchConditions"][0]["expression"],
        lacking.replacen(".map(", ".exists(", 1)
    );
}

/// Each file of claims can be applied by itself: pods find their claims in it.
#[test]
fn examples_of_claims_use_only_known_names() {
    for entry in fs::read_dir(folder().join("examples/dra")).expect("examples").flatten() {
        let objects = documents(&fs::read_to_string(entry.path()).expect("an example"));
        check(&objects, false);
        let claims = objects.iter().filter_map(|object| match object["kind"].as_str() {
            Some("ResourceClaim") => Some(&object["spec"]),
            Some("ResourceClaimTemplate") => Some(&object["spec"]["spec"]),
            _ => None,
        });
        for request in claims.flat_map(|spec| spec["devices"]["requests"].as_array()).flatten() {
            let class = request["exactly"]["deviceClassName"].as_str().expect("a class");
            assert!(["cgpu", "cgpu-mig"].contains(&class), "{class}");
        }
        for pod in objects.iter().filter(|object| object["kind"] == "Pod") {
            for claim in pod["spec"]["resourceClaims"].as_array().expect("claims") {
                match (&claim["resourceClaimName"], &claim["resourceClaimTemplateName"]) {
                    (Value::String(name), _) => find(&objects, "ResourceClaim", name),
                    (_, Value::String(name)) => find(&objects, "ResourceClaimTemplate", name),
                    names => panic!("{names:?}"),
                };
            }
        }
    }
}

#[test]
fn every_example_has_a_test() {
    let tests = include_str!("manifests.rs");
    for entry in fs::read_dir(folder().join("examples")).expect("examples").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(
            !name.ends_with(".yaml")
                || tests.contains(&format!("\"{name}\""))
                || tests.contains(&format!("examples/{name}\"")),
            "{name}"
        );
    }
}
