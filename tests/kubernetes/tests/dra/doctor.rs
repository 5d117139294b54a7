//! `cgpu doctor kubernetes` and `kubectl inspect gpushare` with a real control plane: a claim of
//! each kind that its scheduler does not allocate.

use std::process::Command;

use cgpu_e2e::{Child, Dist, Fixture};
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::driver;
use crate::real::{ControlPlane, GPUS};

fn inspect(plane: &ControlPlane, arguments: &[&str]) -> String {
    let mut command = Command::new(Dist::find().file("kubectl-inspect-gpushare"));
    command.args(arguments).arg("--kubeconfig").arg(plane.kubeconfig());
    Child::start(command).finish().stdout
}

/// Returns the causes of a pod, with what was found.
fn causes(plane: &ControlPlane, pod: &str) -> Vec<(String, String)> {
    let text =
        inspect(plane, &["doctor", pod, "-n", "default", "--json", "--root", "/nonexistent"]);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = report["causes"].as_array().expect("causes").iter();
    causes.map(|it| (text(&it["cause"]), text(&it["found"]))).collect()
}

/// A pod with a claim of its own name.
fn pod(name: &str, devices: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name}, "spec": {"devices": devices}},
        bare_pod(name, &json!({"name": "gpu", "resourceClaimName": name})),
    ]})
}

fn bare_pod(name: &str, reference: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
    "spec": {
        "containers": [{"name": "main", "image": "IMAGE",
            "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [reference],
    }})
}

fn request(class: &str, capacity: &Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly":
        {"deviceClassName": class, "capacity": {"requests": capacity}}}]})
}

fn with(mut devices: Value, field: &str, value: Value) -> Value {
    devices["requests"][0]["exactly"][field] = value;
    devices
}

fn selecting(class: &str, expression: &str) -> Value {
    let selectors = json!([{"cel": {"expression": expression}}]);
    with(request(class, &json!({"memory": "1Gi"})), "selectors", selectors)
}

/// Returns what kube-scheduler says about a pod that it did not place.
fn unplaced(plane: &ControlPlane, pod: &str) -> String {
    until("the scheduler's message", || {
        let text = plane.kubectl(&["get", "pod", pod, "-o", "json"])?;
        let pod: Value = serde_json::from_str(&text).ok()?;
        let conditions = pod["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|it| it["type"] == "PodScheduled")?;
        (condition["status"] == "False").then(|| condition["message"].to_string())
    })
}

fn assert_cause(plane: &ControlPlane, name: &str, expected: &str, part: &str) {
    let message = unplaced(plane, name);
    let causes = causes(plane, name);
    let is_expected = |(cause, found): &(String, String)| cause == expected && found.contains(part);
    assert!(causes.len() == 1 && is_expected(&causes[0]), "{name}: {causes:?}; {message}");
}

#[test]
fn doctor_explains_each_claim_that_the_scheduler_does_not_allocate() {
    let fixture = Fixture::new(GPUS);
    let test = "doctor_explains_each_claim_that_the_scheduler_does_not_allocate";
    let Some(plane) = ControlPlane::start(test, &fixture.path("")) else { return };
    let driver = driver(&fixture, &plane.kubeconfig(), &[]);
    until_holds("the devices", || {
        let text = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
        text.contains("gpu-2-mig-1")
    });
    let attribute = "device.attributes[\"gpu.cgpu.dev\"]";
    let memory = "device.capacity[\"gpu.cgpu.dev\"].memory";
    let mut distinct = with(
        selecting("cgpu-mig", &format!("{attribute}.migProfile == \"1g.5gb\"")),
        "count",
        json!(2),
    );
    distinct["constraints"] = json!([{"distinctAttribute": "gpu.cgpu.dev/uuid"}]);
    let version = format!("{attribute}.driverVersion.isGreaterThan(semver(\"999.0.0\"))");
    let large = format!("{memory}.compareTo(quantity(\"80Gi\")) >= 0");
    for (name, devices, cause, part) in [
        ("class", request("cpgu", &json!({})), "claim_class_unknown", "class cpgu"),
        (
            "index",
            selecting("cgpu", &format!("{attribute}.index == 7")),
            "claim_unselected",
            "4/4 devices: not selected",
        ),
        ("version", selecting("cgpu", &version), "claim_unselected", "not selected"),
        ("quantity", selecting("cgpu", &large), "claim_unselected", "not selected"),
        (
            "key",
            selecting("cgpu", &format!("{attribute}.migProfile == \"1g.5gb\"")),
            "claim_selector_fails",
            "gpu-0 has no migProfile",
        ),
        (
            "large",
            request("cgpu", &json!({"memory": "64Gi"})),
            "claim_too_large",
            "2/4 devices: has 40960 MiB, 65536 requested",
        ),
        (
            "cores",
            request("cgpu", &json!({"memory": "1Gi", "cores": "10"})),
            "claim_other_mode",
            "no cores, mode weight",
        ),
        (
            "weight",
            request("cgpu", &json!({"memory": "1Gi", "weight": "21"})),
            "claim_too_large",
            "weight at most 20",
        ),
        ("count", distinct, "claim_too_few_devices", "a node has 1 of 2 devices"),
    ] {
        plane.apply(&pod(name, &devices));
        assert_cause(&plane, name, cause, part);
    }
    for (name, reference, cause) in [
        ("claimless", json!({"name": "gpu", "resourceClaimName": "none"}), "claim_missing"),
        (
            "templateless",
            json!({"name": "gpu", "resourceClaimTemplateName": "none"}),
            "template_missing",
        ),
    ] {
        plane.apply(&bare_pod(name, &reference));
        // The scheduler says nothing about such a pod.
        let found = causes(&plane, name);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, cause);
    }
    // The scheduler does not know the configuration of drivers.
    let mut refused = request("cgpu", &json!({"memory": "1Gi"}));
    let parameters = json!({"apiVersion": "cgpu.dev/v1alpha1", "kind": "SliceConfig", "weight": 3});
    refused["config"] = json!([{"opaque": {"driver": "gpu.cgpu.dev", "parameters": parameters}}]);
    plane.apply(&pod("config", &refused));
    until_holds("the claim is allocated", || plane.allocated().len() == 1);
    until_holds("the configuration is the cause", || {
        causes(&plane, "config").first().is_some_and(|(cause, _)| cause == "claim_config_refused")
    });

    // The GPUs' memory and the instances' weights are given away.
    for (name, class, memory, weight) in [
        ("full-0", "cgpu", "38Gi", "1"),
        ("full-1", "cgpu", "38Gi", "1"),
        ("full-2", "cgpu-mig", "1Gi", "20"),
        ("full-3", "cgpu-mig", "1Gi", "20"),
    ] {
        plane.apply(&pod(name, &request(class, &json!({"memory": memory, "weight": weight}))));
    }
    until_holds("they are allocated", || plane.allocated().len() == 5);
    plane.apply(&pod("memory", &request("cgpu", &json!({"memory": "3Gi"}))));
    assert_cause(&plane, "memory", "claim_no_memory", "2/4 devices: 2048 MiB free, 3072 requested");
    plane.apply(&pod("place", &request("cgpu-mig", &json!({"memory": "1Gi"}))));
    assert_cause(&plane, "place", "claim_no_weight", "2/4 devices: weight 0 free, 1 requested");

    let table = inspect(&plane, &["-d"]);
    for part in ["n1    gpu-1", "38912", "full-3", "not allocated: 11"] {
        assert!(table.contains(part), "{part}: {table}");
    }

    // No kubelet removes the slices of a driver that is away.
    let _ = driver.kill();
    let text = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
    let mut slices: Value = serde_json::from_str(&text).expect("JSON");
    for slice in slices["items"].as_array_mut().expect("slices") {
        for device in slice["spec"]["devices"].as_array_mut().expect("devices") {
            device["taints"] = json!([{"key": "gpu.cgpu.dev/unhealthy", "effect": "NoSchedule"}]);
        }
        slice["spec"]["pool"]["generation"] = json!(1000);
        plane.apply(slice);
    }
    plane.apply(&pod("taint", &request("cgpu", &json!({"memory": "1Gi"}))));
    let message = unplaced(&plane, "taint");
    let causes = causes(&plane, "taint");
    assert!(causes.iter().any(|(cause, _)| cause == "claim_tainted"), "{causes:?}; {message}");
}

/// Where a part of the control plane does not share devices, the doctor names it.
#[test]
fn doctor_names_the_part_that_does_not_share_devices() {
    let test = "doctor_names_the_part_that_does_not_share_devices";
    let off = "DRAConsumableCapacity=false";
    for (gates, subject, part) in [
        ([off, off], "API server v1.", "do not allow several allocations"),
        (["", off], "kube-scheduler", "DRAConsumableCapacity"),
    ] {
        let fixture = Fixture::new(GPUS);
        let Some(plane) = ControlPlane::start_with(test, &fixture.path(""), gates) else { return };
        let _driver = driver(&fixture, &plane.kubeconfig(), &[]);
        until_holds("the devices", || {
            let text = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
            text.contains("gpu-2-mig-1")
        });
        plane.apply(&pod("small", &request("cgpu", &json!({"memory": "1Gi"}))));
        let text = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
        let slices: Value = serde_json::from_str(&text).expect("JSON");
        let generation = &slices["items"][0]["spec"]["pool"]["generation"];
        assert!(generation.as_i64().is_some_and(|it| it <= 2), "it is written again: {generation}");
        until_holds("the doctor names it", || {
            let text = inspect(&plane, &["doctor", "--json", "--root", "/nonexistent"]);
            let report: Value = serde_json::from_str(&text).expect("JSON");
            report["causes"].as_array().is_some_and(|causes| {
                causes.iter().any(|it| {
                    let text = |field: &str| it[field].as_str().unwrap_or_default();
                    text("cause") == "shares_off"
                        && text("subject").starts_with(subject)
                        && text("found").contains(part)
                })
            })
        });
    }
}
