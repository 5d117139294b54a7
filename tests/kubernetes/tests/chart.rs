//! helm with the chart on a real API server, and on a whole cluster of a real kubelet and
//! containerd, where the environment names the programs (`docs/internals/testing.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, skip};
use cgpu_kubernetes_tests::cluster::{self, Cluster, NodeSpec, until};
use cgpu_kubernetes_tests::plane::Plane;
use serde_json::{Value, json};

/// Kinds of what the chart makes with any of the settings below.
const KINDS: &str = "deployments,daemonsets,services,configmaps,secrets,serviceaccounts,roles,\
                     rolebindings,clusterroles,clusterrolebindings,networkpolicies,\
                     poddisruptionbudgets,runtimeclasses,deviceclasses,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings,\
                     mutatingadmissionpolicies,mutatingadmissionpolicybindings";

fn helm() -> Option<PathBuf> {
    let named = std::env::var_os("CGPU_HELM").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    named.or_else(|| {
        std::env::split_paths(&paths).map(|path| path.join("helm")).find(|path| path.is_file())
    })
}

/// Returns kind and name of the chart's objects.
fn objects(plane: &Plane) -> Vec<String> {
    let part = ["-l", "app.kubernetes.io/part-of=cgpu", "-o", "json"];
    let text = plane.kubectl(&[&["get", KINDS, "-A"][..], &part].concat()).expect("a list");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let items = list["items"].as_array().expect("objects").iter();
    items.map(|it| format!("{} {}", it["kind"], it["metadata"]["name"])).collect()
}

/// No kubelet runs the pods.
#[test]
fn chart_is_installed_upgraded_and_uninstalled() {
    let test = "chart_is_installed_upgraded_and_uninstalled";
    let Some(helm) = helm() else { return skip(test, "helm", "no helm") };
    let folder = tempfile::tempdir().expect("a folder");
    // The pods of cgpu-node are privileged.
    let arguments = ["--allow-privileged=true".to_owned()];
    let Some(plane) = Plane::start(test, folder.path(), &arguments) else { return };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/chart");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&helm);
        command.env("HOME", folder.path()).args(arguments);
        command.arg("--kubeconfig").arg(plane.kubeconfig()).args(["--namespace", "kube-system"]);
        Child::start(command).finish().exits(0).stdout
    };
    let chart = chart.to_str().expect("a path");
    assert_eq!(objects(&plane), [""; 0]);
    // Without any value.
    run(&["install", "cgpu", chart]);
    let installed = objects(&plane);
    for object in [
        "\"DaemonSet\" \"cgpu-device-plugin\"",
        "\"Deployment\" \"cgpu-scheduler\"",
        "\"Deployment\" \"cgpu-scheduler-extender\"",
        "\"PodDisruptionBudget\" \"cgpu-scheduler\"",
    ] {
        assert!(installed.iter().any(|it| it == object), "{object} of {installed:#?}");
    }
    let certificate = || {
        let get =
            ["get", "secret", "-n", "kube-system", "cgpu-scheduler-extender-tls", "-o", "json"];
        let secret: Value =
            serde_json::from_str(&plane.kubectl(&get).expect("a secret")).expect("JSON");
        secret["data"]["tls.crt"].as_str().expect("a certificate").to_owned()
    };
    let before = certificate();
    let settings = ["dra.enabled", "dra.dialects.enabled", "dra.claimLimits.enabled", "hami"];
    let settings = settings.map(|name| format!("--set={name}=true"));
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    run(&[&["upgrade", "cgpu", chart, "--reuse-values"][..], &settings].concat());
    let upgraded = objects(&plane);
    assert!(installed.iter().all(|it| upgraded.contains(it)), "{installed:#?} {upgraded:#?}");
    assert!(upgraded.iter().any(|it| it == "\"MutatingAdmissionPolicy\" \"cgpu-dialects\""));
    // Running replicas go on with the certificates that they have.
    assert_eq!(certificate(), before);
    println!("{} objects, then {}", installed.len(), upgraded.len());
    run(&["uninstall", "cgpu"]);
    assert_eq!(objects(&plane), [""; 0]);
}

const NODE: &str = "gpu-node";
const ADDRESS: &str = "192.168.1.214";
const CONFIG: &str = "/etc/containerd/config.toml";
const MIB: u64 = 1 << 20;
/// A T4's allocatable memory in MiB.
const T4: u64 = 15109;

fn pod(name: &str, units: u64) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  schedulerName: cgpu-scheduler
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: cheyang/gpu-player:v2
    resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}
"
    )
}

/// Containers of running pods: their ids, and the limit of each in units.
struct Running(Vec<(&'static str, String, u64)>);

impl Running {
    fn start(cluster: &Cluster, pods: &[(&'static str, u64)]) -> Self {
        let started = pods.iter().map(|(name, units)| {
            cluster.apply_text(&pod(name, *units));
            cluster.running(&format!("app={name}"), 1);
            (*name, container(cluster, name), *units)
        });
        Self(started.collect())
    }

    /// Asserts that all are the same containers as ever, and have their limits.
    fn assert_limited(&self, cluster: &Cluster, when: &str) {
        for (name, id, units) in &self.0 {
            assert_eq!(container(cluster, name), *id, "{name} {when}");
            let limit = T4 * units / 14 * MIB;
            let of_limit = |totals: Vec<u64>| totals.iter().filter(|it| **it == limit).count();
            assert_eq!(of_limit(cluster.totals(name)), 1, "{name} {when}");
            // All simulated GPUs are visible in a container; a program fills the first.
            if gpu(cluster, name) == "0" {
                let filled = cluster.kubectl(&["exec", name, "--", "alloc_fill", "64M"]).exits(0);
                let filled: Value = serde_json::from_str(&filled.stdout).expect("JSON");
                let granted = filled["granted"].as_u64().expect("bytes");
                assert!((limit / 2..=limit).contains(&granted), "{name} {when}: {filled}");
                println!("{when}: {name}: {} of {} MiB", granted / MIB, limit / MIB);
            }
        }
    }
}

/// Returns the id of a pod's container, which runs and was never restarted.
fn container(cluster: &Cluster, name: &str) -> String {
    let pod = cluster.object("pod", "default", name).expect("the pod");
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!((&status["restartCount"], &status["ready"]), (&0.into(), &true.into()), "{pod:#}");
    status["containerID"].as_str().expect("an id").to_owned()
}

/// Returns the index of a pod's GPU.
fn gpu(cluster: &Cluster, name: &str) -> String {
    let pod = cluster.object("pod", "default", name).expect("the pod");
    let index = &pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"];
    index.as_str().expect("a GPU").to_owned()
}

/// Returns the pod of the second scheduler that leads.
fn leader(cluster: &Cluster) -> Option<String> {
    let lease = cluster.object("lease", "kube-system", "cgpu-scheduler")?;
    // One that ends leaves it to none.
    let holder = lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
    Some(holder.split('_').next()?.to_owned())
}

/// Definitions of what Prometheus's operator reads, without its schemas.
fn monitoring_definitions() -> String {
    let kinds = ["PodMonitor", "ServiceMonitor", "PrometheusRule"];
    let definition = |kind: &str| {
        let singular = kind.to_lowercase();
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{singular}s.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced",
                "names": {"kind": kind, "singular": singular, "plural": format!("{singular}s")},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema},
                }],
            },
        })
    };
    kinds.map(|kind| definition(kind).to_string()).join("\n---\n")
}

/// Waits until the monitor at this address has the series of a pod's container with its names, and
/// returns it.
fn series(cluster: &mut Cluster, address: &str, pod: &str) -> String {
    let id = container(cluster, pod);
    // As `cgpu smi` shows it.
    let id = id.trim_start_matches("containerd://")[..12].to_owned();
    let labels = format!("namespace=\"default\",pod=\"{pod}\",container_name=\"main\"}} 1");
    let url = format!("http://{address}/metrics");
    until(&format!("{url} has {pod}"), || {
        let printed = cluster.node(NODE).run("curl", &["--silent", "--max-time", "10", &url]);
        let begin = format!("cgpu_container_info{{container=\"{id}\",");
        let mut lines = printed.stdout.lines();
        lines.find(|line| line.starts_with(&begin) && line.ends_with(&labels)).map(str::to_owned)
    })
}

/// The whole chart as it comes: `cgpu-node` installs on the node, pods of the second scheduler
/// place pods. An upgrade and the removal of the chart leave running pods as they are.
#[test]
fn pods_run_through_installation_upgrade_and_removal_of_the_chart() {
    let test = "pods_run_through_installation_upgrade_and_removal_of_the_chart";
    if !cluster::is_available(test) {
        return;
    }
    let Some(helm) = helm() else { return skip(test, "helm", "no helm") };
    let gpus = "T4:15109,T4:15109";
    let node_spec = NodeSpec { name: NODE, address: ADDRESS, gpus, is_claimed: false };
    let Some(mut cluster) = Cluster::start_bare(test, &[node_spec]) else { return };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/chart");
    let chart = chart.to_str().expect("a path");
    let read = |cluster: &mut Cluster, file: &str| {
        let printed = cluster.node(NODE).run("cat", &[file]);
        (printed.code() == Some(0)).then_some(printed.stdout)
    };
    let before = read(&mut cluster, CONFIG).expect("containerd's configuration");

    // Without any value.
    cluster.kubectl(&["label", "node", NODE, "gpushare=true"]).exits(0);
    cluster.helm(&helm, &["install", "cgpu", chart]).exits(0);
    cluster.rolled_out("daemonset", "cgpu-node");
    cluster.rolled_out("daemonset", "cgpu-device-plugin");
    for name in ["cgpu-scheduler-extender", "cgpu-scheduler"] {
        cluster.rolled_out("deployment", name);
    }
    cluster.serve_extender();
    let configured = read(&mut cluster, CONFIG).expect("a configuration");
    assert!(configured.contains("/usr/bin/cgpu-runtime"), "{configured}");
    cluster.node(NODE).run("systemctl", &["is-active", "cgpu-monitor"]).exits(0);

    let tested = cluster.helm(&helm, &["test", "cgpu", "--logs", "--timeout", "4m"]);
    assert!(tested.code() == Some(0), "{tested:?}\n{}", cluster.diagnostics());
    assert!(tested.stdout.contains("two pods share GPU"), "{tested:?}");
    println!("{}", tested.stdout);

    let mut running = Running::start(&cluster, &[("first", 4), ("second", 8)]);
    running.assert_limited(&cluster, "after the installation");
    println!("{}", cluster.node(NODE).run("cgpu", &["smi"]).exits(0).stdout);
    println!("{}", series(&mut cluster, "127.0.0.1:9445", "first"));
    // Of the two schedulers the other takes over.
    let first = leader(&cluster).expect("a leader");
    cluster.kubectl(&["delete", "pod", "-n", "kube-system", &first]).exits(0);
    let second = until("another scheduler leads", || leader(&cluster).filter(|it| *it != first));
    println!("the scheduler {second} leads after {first}");
    // Its connections lead to the extender that follows, which passes on what it is asked.
    let [_, follower] = cluster.leader_and_follower();
    cluster.serve_extender_by(|pod| pod == follower);
    let passed_on = |cluster: &Cluster| {
        let metric = cluster.metric(&follower, "cgpu_extender_passed_on_total");
        metric.expect("the follower's metric")
    };
    let earlier = passed_on(&cluster);
    // Like those before, it is on the fullest GPU where it fits.
    running.0.extend(Running::start(&cluster, &[("third", 1)]).0);
    let after = passed_on(&cluster);
    println!("the extender {follower} passed on {earlier}, then {after} requests");
    assert!(after >= earlier + 2, "{earlier}, {after}");
    cluster.serve_extender();
    println!("{}", cluster.inspect(&["-d"]).exits(0).stdout);
    assert_eq!(["first", "second", "third"].map(|name| gpu(&cluster, name)), ["0"; 3]);

    // Other values for each part, and metrics for Prometheus. The address is written into a file of
    // the node that it has from the installation, so that goes first.
    cluster.node(NODE).run("rm", &["/etc/cgpu/monitor.toml"]).exits(0);
    cluster.apply_text(&monitoring_definitions());
    let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=100s"];
    cluster.kubectl(&wait).exits(0);
    let node_pod = |cluster: &Cluster| {
        let selector = "app.kubernetes.io/name=cgpu-node";
        let get = ["get", "pods", "-n", "kube-system", "-l", selector, "-o", "name"];
        cluster.kubectl(&get).exits(0).stdout
    };
    let old = node_pod(&cluster);
    let values = [
        "--set=extender.placement=spread",
        "--set=node.overLimit=report",
        "--set=metrics.address=0.0.0.0:9555",
        "--set=metrics.podMonitor.enabled=true",
        "--set=metrics.serviceMonitor.enabled=true",
        "--set=metrics.rules.enabled=true",
        "--set=metrics.dashboard.enabled=true",
    ];
    cluster.helm(&helm, &[&["upgrade", "cgpu", chart][..], &values].concat()).exits(0);
    cluster.rolled_out("daemonset", "cgpu-node");
    for name in ["cgpu-scheduler-extender", "cgpu-scheduler"] {
        cluster.rolled_out("deployment", name);
    }
    assert_ne!(node_pod(&cluster), old);
    cluster.serve_extender();
    running.assert_limited(&cluster, "after the upgrade");
    running.0.extend(Running::start(&cluster, &[("fourth", 1)]).0);
    let settings = cluster.object("configmap", "kube-system", "cgpu-scheduler").expect("settings");
    assert!(settings["data"]["scheduler.yaml"].to_string().contains("LeastAllocated"));
    cluster.node(NODE).run("systemctl", &["is-active", "cgpu-monitor"]).exits(0);

    for name in ["first", "fourth"] {
        println!("{}", series(&mut cluster, &format!("{ADDRESS}:9555"), name));
    }
    let of_metrics = [
        ("configmap", "cgpu-dashboard"),
        ("podmonitor", "cgpu-node"),
        ("servicemonitor", "cgpu-scheduler-extender"),
        ("prometheusrule", "cgpu"),
    ];
    for (kind, name) in of_metrics {
        let object = cluster.object(kind, "kube-system", name);
        let part = object.map(|it| it["metadata"]["labels"]["app.kubernetes.io/part-of"].clone());
        assert_eq!(part, Some("cgpu".into()), "{kind} {name}");
    }

    cluster.helm(&helm, &["uninstall", "cgpu"]).exits(0);
    for (kind, name) in of_metrics {
        assert_eq!(cluster.object(kind, "kube-system", name), None, "{kind}");
    }
    until("the node's parts are removed", || {
        let left = cluster.node(NODE).run("ls", &["/usr/bin/cgpu"]);
        (left.code() != Some(0) && node_pod(&cluster).is_empty()).then_some(())
    });
    // The engine restarts under the hook that removes them.
    let reason = "reason=FailedPreStopHook";
    let events = ["get", "events", "-n", "kube-system", "--field-selector", reason, "-o", "wide"];
    println!("{}", cluster.kubectl(&events).exits(0).stdout);
    assert_eq!(read(&mut cluster, CONFIG), Some(before));
    cluster.node(NODE).run("systemctl", &["is-active", "cgpu-monitor"]).exits(3);
    running.assert_limited(&cluster, "after the removal");
    // They end as others do.
    cluster.kubectl(&["delete", "pods", "--all", "--timeout=100s"]).exits(0);
}
