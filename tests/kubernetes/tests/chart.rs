//! helm with the chart on a real API server, where the environment names the programs
//! (`docs/internals/testing.md`). No kubelet runs the pods.

use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_e2e::{Child, skip};
use cgpu_kubernetes_tests::plane::Plane;
use serde_json::Value;

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
