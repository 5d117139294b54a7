//! Causes of claims, planted in objects of `resource.k8s.io/v1`.

use cgpu_kubernetes_core::names::Dialects;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::claim::ClaimFacts;
use super::super::versions::ApiFacts;
use super::super::{Scope, diagnose};
use super::{Cluster as Units, Findings, pod, unscheduled};
use crate::claims::{Claims, overview};

/// A node whose GPUs are claimed, its driver, and a running pod with a claim.
struct Cluster {
    units: Units,
    slices: Vec<Value>,
    classes: Vec<Value>,
    claims: Vec<Value>,
    templates: Vec<Value>,
    events: Vec<Value>,
    api: ApiFacts,
}

/// A device of 40 GiB that shares by weight.
fn device(name: &str) -> Value {
    let amount = |value: &str, default: &str, min: &str, max: Value, step: &str| {
        json!({"value": value, "requestPolicy":
            {"default": default, "validRange": {"min": min, "max": max, "step": step}}})
    };
    json!({
        "name": name, "allowMultipleAllocations": true,
        "attributes": {
            "uuid": {"string": format!("GPU-{name}")}, "index": {"int": 0},
            "type": {"string": "gpu"}, "mode": {"string": "weight"},
            "driverVersion": {"version": "580.1.2"},
        },
        "capacity": {
            "memory": amount("40Gi", "40Gi", "128Mi", Value::Null, "128Mi"),
            "weight": amount("20", "1", "1", json!("20"), "1"),
        },
    })
}

fn slice(node: &str, devices: &[Value]) -> Value {
    json!({"metadata": {"name": format!("{node}-0")},
        "spec": {"driver": "gpu.cgpu.dev", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

fn class(name: &str, selector: &str) -> Value {
    let expression = format!(
        "device.driver == \"gpu.cgpu.dev\" && device.attributes[\"gpu.cgpu.dev\"].{selector}"
    );
    let selectors = json!([{"cel": {"expression": expression}}]);
    json!({"metadata": {"name": name}, "spec": {"selectors": selectors}})
}

/// A claim with one request for the class `cgpu`.
fn claim(name: &str, capacity: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "test", "uid": format!("uid-{name}")},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly":
            {"deviceClassName": "cgpu", "capacity": {"requests": capacity}}}]}},
    })
}

/// Allocates devices, memory and weight to a claim.
fn allocated(mut claim: Value, shares: &[(&str, &str, u32)]) -> Value {
    let result = |(device, memory, weight): &(&str, &str, u32)| {
        json!({"request": "gpu", "driver": "gpu.cgpu.dev", "pool": "two", "device": device,
            "shareID": "s", "consumedCapacity": {"memory": memory, "weight": weight.to_string()}})
    };
    let results: Vec<Value> = shares.iter().map(result).collect();
    claim["status"] = json!({"allocation": {"devices": {"results": results}}});
    claim
}

/// A pod with this claim.
fn pod_of(claim: &str) -> Value {
    let mut pod = pod("p", 0);
    pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": claim}]);
    pod["spec"]["schedulerName"] = json!("default-scheduler");
    pod
}

fn bound(claim: &str) -> Value {
    let mut pod = pod_of(claim);
    pod["spec"]["nodeName"] = json!("two");
    pod
}

fn driver() -> Value {
    json!({
        "metadata": {"name": "driver-x", "namespace": "kube-system", "uid": "uid-driver",
            "labels": {"app.kubernetes.io/name": "cgpu-dra-driver"}},
        "spec": {"nodeName": "two", "containers": [{"name": "driver"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "driver", "state": {"running": {}}}],
        },
    })
}

fn node() -> Value {
    json!({
        "metadata": {"name": "two", "labels": {"gpushare": "true", "cgpu.dev/engine": "dra"}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.1"},
        },
    })
}

fn read<T: DeserializeOwned>(values: Vec<Value>) -> Vec<T> {
    values.into_iter().map(|value| serde_json::from_value(value).unwrap()).collect()
}

impl Cluster {
    fn healthy() -> Self {
        let mut running = bound("runs");
        running["metadata"] = json!({"name": "runs", "namespace": "test", "uid": "uid-runs"});
        running["status"]["phase"] = json!("Running");
        Self {
            units: Units {
                nodes: vec![node()],
                pods: vec![driver(), running],
                classes: None,
                dialects: Dialects::default(),
            },
            slices: vec![slice("two", &[device("gpu-0"), device("gpu-1")])],
            classes: vec![
                class("cgpu", "type == \"gpu\""),
                class("cgpu-cores", "mode == \"cores\""),
                json!({"metadata": {"name": "other"}, "spec": {"selectors":
                    [{"cel": {"expression": "device.driver == \"gpu.example.com\""}}]}}),
            ],
            claims: vec![allocated(claim("runs", json!({})), &[("gpu-0", "10Gi", 5)])],
            templates: vec![json!({"metadata": {"name": "t", "namespace": "test"}})],
            events: Vec::new(),
            api: ApiFacts {
                version: Some("v1.36.2".into()),
                serves_claims: Some(true),
                gate: Some(true),
            },
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Adds a pod with this claim.
    fn claiming(self, claim: Value) -> Self {
        self.with(|it| {
            it.units.pods.push(pod_of(claim["metadata"]["name"].as_str().unwrap()));
            it.claims.push(claim);
        })
    }

    fn claims(&mut self) -> Claims {
        let slices = read(std::mem::take(&mut self.slices));
        let classes = read(std::mem::take(&mut self.classes));
        Claims::new(&slices, classes, read(std::mem::take(&mut self.claims)))
    }

    fn findings(mut self, scope: Scope<'_>) -> Findings {
        let claims = self.claims();
        let name = |it: &Value, field: &str| it["metadata"][field].as_str().unwrap().to_owned();
        let templates =
            self.templates.iter().map(|it| (name(it, "namespace"), name(it, "name"))).collect();
        let facts = ClaimFacts {
            claims,
            templates: Some(templates),
            events: read(self.events),
            api: self.api,
        };
        let mut findings = Findings::default();
        diagnose(&self.units.facts(facts), &scope, &mut findings).unwrap();
        findings
    }

    fn found(self) -> Vec<(&'static str, String)> {
        let findings = self.findings(Scope::default());
        let texts = findings.iter().map(|(_, found)| found.to_owned()).collect::<Vec<_>>();
        findings.names().into_iter().zip(texts).collect()
    }

    fn names(self) -> Vec<&'static str> {
        self.findings(Scope::default()).names()
    }
}

#[test]
fn healthy_claims_have_no_findings() {
    let findings = Cluster::healthy().findings(Scope::default());
    assert_eq!(
        findings.text(),
        "nothing is wrong; examined: API server v1.36.2, kubelets v1.36.1, 1 nodes, 2 pods\n"
    );
    let scope = Scope { pod: Some("runs"), namespace: Some("test"), node: None };
    assert_eq!(Cluster::healthy().findings(scope).names(), [""; 0]);
    // Claims of other drivers are not examined.
    let mut other = claim("c", json!({}));
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = json!("other");
    assert_eq!(Cluster::healthy().claiming(other).names(), [""; 0]);
}

/// A request that no device fits, the cause, and what is found.
#[test]
fn claims_without_a_device_have_a_cause() {
    let with = |change: &dyn Fn(&mut Value)| {
        let mut claim = claim("c", json!({"memory": "1Gi"}));
        change(&mut claim["spec"]["devices"]);
        claim
    };
    let exactly = |field: &'static str, value: Value| {
        with(&move |devices| devices["requests"][0]["exactly"][field] = value.clone())
    };
    let selector =
        |expression: &str| exactly("selectors", json!([{"cel": {"expression": expression}}]));
    let config = |parameters: Value| {
        with(&move |devices| {
            devices["config"] = json!([{"opaque":
                {"driver": "gpu.cgpu.dev", "parameters": parameters.clone()}}]);
        })
    };
    let attribute = "device.attributes[\"gpu.cgpu.dev\"]";
    let memory = "device.capacity[\"gpu.cgpu.dev\"].memory";
    for (claim, cause, found) in [
        (
            exactly("deviceClassName", json!("cpgu")),
            "claim_class_unknown",
            "request gpu: class cpgu",
        ),
        (
            config(json!({"apiVersion": "cgpu.dev/v1alpha1", "kind": "SliceConfig", "weight": 2})),
            "claim_config_refused",
            "the claim: the configuration 1 of gpu.cgpu.dev is invalid: unknown field `weight`, \
             expected one of `apiVersion`, `kind`, `highPriority`",
        ),
        (
            selector(&format!("{attribute}.index == 7")),
            "claim_unselected",
            "request gpu: 2/2 devices: not selected",
        ),
        (
            selector(&format!("{memory}.compareTo(quantity(\"41Gi\")) >= 0")),
            "claim_unselected",
            "request gpu: 2/2 devices: not selected",
        ),
        (
            selector(&format!("{attribute}.driverVersion.isGreaterThan(semver(\"600.0.0\"))")),
            "claim_unselected",
            "request gpu: 2/2 devices: not selected",
        ),
        (
            selector(&format!("{attribute}.migProfile == \"1g.5gb\"")),
            "claim_selector_fails",
            "request gpu: two/gpu-0 has no migProfile: \
             device.attributes[\"gpu.cgpu.dev\"].migProfile == \"1g.5gb\"",
        ),
        (
            claim("c", json!({"memory": "41Gi"})),
            "claim_too_large",
            "request gpu: 2/2 devices: has 40960 MiB, 41984 requested",
        ),
        (
            claim("c", json!({"memory": "1Gi", "cores": "10"})),
            "claim_other_mode",
            "request gpu: 2/2 devices: no cores, mode weight",
        ),
        (
            claim("c", json!({"memory": "1Gi", "weight": "21"})),
            "claim_too_large",
            "request gpu: 2/2 devices: weight at most 20, mode weight",
        ),
        (
            with(&|devices| devices["requests"][0]["exactly"]["count"] = json!(71)),
            "claim_too_few_devices",
            "request gpu: a node has 35 of 71 devices",
        ),
    ] {
        assert_eq!(Cluster::healthy().claiming(claim).found(), [(cause, found.to_owned())]);
    }
    // Expressions that are not known here, or are none.
    for expression in [
        &format!("{attribute}.type.novel()"),
        "cel.bind(a, device, a.driver == \"x\")",
        "device.attributes[\"gpu.cgpu.dev\"].index + \"a\" == \"b\"",
        "device.attributes[",
        "\"\u{1f980}",
        "",
    ] {
        let found = Cluster::healthy().claiming(selector(expression)).found();
        assert_eq!(found[0].0, "claim_selector_unchecked", "{expression}");
        assert!(found[0].1.contains(expression), "{found:?}");
    }
    // The longest and deepest expressions that are evaluated, and longer ones.
    let to = |part: &str, length: usize| part.repeat(length / part.len());
    let around = |open: &str, close: &str, depth: usize| {
        format!("{}true{}", open.repeat(depth), close.repeat(depth))
    };
    for depth in [15, 1000] {
        for expression in [
            around("(", ")", depth),
            around("!(", ")", depth),
            around("[", "][0]", depth),
            around("{1: ", "}[1]", depth),
            format!("{}true", to("true ? true : ", depth * 14)),
        ] {
            let found = Cluster::healthy().claiming(selector(&expression)).found();
            let is_deep = found[0].1.contains("too long or too deeply nested");
            assert_eq!(is_deep, depth == 1000, "{found:?}");
        }
    }
    for length in [2000, 10_000] {
        for expression in [
            format!("device{}", to(".a", length)),
            format!("{}1 == 1", to("1 + ", length)),
            format!("{}true", to("true || ", length)),
            format!("{}true", to("!", length)),
            format!("{}1 == 1", to("-", length)),
            format!("\"{}\" == \"\"", to("a", length)),
        ] {
            let found = Cluster::healthy().claiming(selector(&expression)).found();
            let is_long = found[0].1.contains("too long or too deeply nested");
            assert_eq!(is_long, length == 10_000, "{found:?}");
        }
    }
    // The configuration of a class.
    let refused = Cluster::healthy().claiming(claim("c", json!({}))).with(|it| {
        it.classes[0]["spec"]["config"] =
            json!([{"opaque": {"driver": "gpu.cgpu.dev", "parameters": {}}}]);
    });
    let found = refused.found();
    assert_eq!(found[0].0, "claim_config_refused");
    assert!(found[0].1.starts_with("class cgpu: "), "{found:?}");
}

#[test]
fn claims_that_wait_for_room_have_a_cause() {
    let full = |one: (&'static str, u32), other: (&'static str, u32)| {
        Cluster::healthy().with(|it| {
            it.claims = vec![allocated(
                claim("runs", json!({})),
                &[("gpu-0", one.0, one.1), ("gpu-1", other.0, other.1)],
            )];
        })
    };
    let memory = || claim("c", json!({"memory": "6Gi", "weight": "3"}));
    for (cluster, claim, cause, found) in [
        (
            full(("36Gi", 1), ("38Gi", 1)),
            memory(),
            "claim_no_memory",
            "request gpu: 2/2 devices: 4096 MiB free, 6144 requested",
        ),
        (
            full(("1Gi", 18), ("38Gi", 1)),
            memory(),
            "claim_no_memory",
            "request gpu: 1/2 devices: weight 2 free, 3 requested; 1/2 devices: 2048 MiB free, 6144 requested",
        ),
        (
            full(("1Gi", 18), ("1Gi", 19)),
            memory(),
            "claim_no_weight",
            "request gpu: 2/2 devices: weight 2 free, 3 requested",
        ),
        // A claim without amounts gets all of the memory.
        (
            full(("1Gi", 1), ("2Gi", 1)),
            claim("c", json!({})),
            "claim_no_memory",
            "request gpu: 2/2 devices: 39936 MiB free, 40960 requested",
        ),
    ] {
        assert_eq!(cluster.claiming(claim).found(), [(cause, found.to_owned())]);
    }
    let cores = |consumed: &str| {
        let mut device = device("gpu-0");
        device["attributes"]["mode"] = json!({"string": "cores"});
        device["capacity"]["weight"]["requestPolicy"]["validRange"]["max"] = json!("1");
        device["capacity"]["cores"] = json!({"value": "100", "requestPolicy":
            {"default": "5", "validRange": {"min": "1", "max": "100", "step": "1"}}});
        let mut runs = allocated(claim("runs", json!({})), &[("gpu-0", "1Gi", 1)]);
        runs["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["cores"] =
            json!(consumed);
        Cluster::healthy().with(|it| {
            it.slices = vec![slice("two", &[device])];
            it.claims = vec![runs];
        })
    };
    let some = claim("c", json!({"memory": "1Gi", "cores": "30"}));
    assert_eq!(
        cores("80").claiming(some.clone()).found(),
        [(
            "claim_no_cores",
            "request gpu: 1/1 devices: 20 % of the cores free, 30 requested".to_owned()
        )]
    );
    assert_eq!(cores("70").claiming(some).names(), ["claim_other_obstacle"]);
    let weight = claim("c", json!({"memory": "1Gi", "weight": "2"}));
    assert_eq!(cores("0").claiming(weight).names(), ["claim_other_mode"]);
    // Where shares are off, a claim has a whole device.
    let whole = Cluster::healthy().with(|it| {
        let mut one = device("gpu-0");
        one["allowMultipleAllocations"] = Value::Null;
        it.slices = vec![slice("two", &[one])];
    });
    assert_eq!(whole.claiming(claim("c", json!({}))).names(), ["shares_off", "claim_whole_device"]);
}

#[test]
fn taints_and_several_requests_have_a_cause() {
    let tainted = |taints: Value| {
        Cluster::healthy().with(|it| {
            for device in it.slices[0]["spec"]["devices"].as_array_mut().unwrap() {
                device["taints"] = taints.clone();
            }
        })
    };
    let unhealthy = json!([{"key": "gpu.cgpu.dev/unhealthy", "effect": "NoSchedule"}]);
    let small = || claim("c", json!({"memory": "1Gi"}));
    assert_eq!(
        tainted(unhealthy.clone()).claiming(small()).names(),
        ["gpu_unhealthy", "gpu_unhealthy", "claim_tainted"]
    );
    let mut tolerant = small();
    tolerant["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] =
        json!([{"key": "gpu.cgpu.dev/unhealthy", "operator": "Exists"}]);
    assert_eq!(
        tainted(unhealthy).claiming(tolerant).names(),
        ["gpu_unhealthy", "gpu_unhealthy", "claim_other_obstacle"]
    );
    let owned = || {
        tainted(json!([{"key": "gpu.cgpu.dev/other-owner", "effect": "NoSchedule",
            "value": "gpu.example.com"}]))
    };
    let found = owned().claiming(small()).found();
    assert_eq!(found[0], ("other_owner", "gpu-0 (GPU-gpu-0): gpu.example.com".to_owned()));
    let taint = "taint gpu.cgpu.dev/other-owner=gpu.example.com:NoSchedule";
    assert_eq!(found[2], ("claim_tainted", format!("request gpu: 2/2 devices: {taint}")));
    for (value, cause) in [("gpu.example.com", "claim_other_obstacle"), ("x", "claim_tainted")] {
        let mut tolerant = small();
        tolerant["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] =
            json!([{"key": "gpu.cgpu.dev/other-owner", "operator": "Equal", "value": value}]);
        assert_eq!(owned().claiming(tolerant).names()[2], cause);
    }
    // Two requests that fit on different nodes.
    let mut apart = small();
    let request = |name: &str, index: u32| {
        let expression = format!("device.attributes[\"gpu.cgpu.dev\"].index == {index}");
        json!({"name": name, "exactly": {"deviceClassName": "cgpu",
            "selectors": [{"cel": {"expression": expression}}]}})
    };
    apart["spec"]["devices"]["requests"] = json!([request("a", 0), request("b", 9)]);
    let two = Cluster::healthy().claiming(apart).with(|it| {
        let mut far = device("gpu-0");
        far["attributes"]["index"] = json!({"int": 9});
        it.slices.push(slice("three", &[far]));
        it.slices[0]["spec"]["devices"] = json!([device("gpu-1")]);
    });
    assert_eq!(two.found(), [("claim_scattered", "request a: two; request b: three".to_owned())]);
    // Of several alternatives the nearest is named. With a distinct attribute each device counts
    // once.
    let mut either = small();
    let alternative = |name: &str, class: &str, count: u32| {
        json!({"name": name, "deviceClassName": class, "count": count,
            "capacity": {"requests": {"memory": "1Gi"}}})
    };
    either["spec"]["devices"] = json!({
        "requests": [{"name": "gpu", "firstAvailable":
            [alternative("a", "cgpu", 3), alternative("b", "cgpu-cores", 1)]}],
        "constraints": [{"distinctAttribute": "gpu.cgpu.dev/uuid"}],
    });
    assert_eq!(
        Cluster::healthy().claiming(either).found(),
        [("claim_too_few_devices", "request gpu/a: a node has 2 of 3 devices".to_owned())]
    );
}

#[test]
fn pods_with_claims_have_a_cause() {
    let small = || claim("c", json!({"memory": "1Gi"}));
    let with_pod = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod_of("c");
        change(&mut pod);
        Cluster::healthy().with(|it| {
            it.units.pods.push(pod);
            it.claims.push(small());
        })
    };
    let reference = |reference: Value| {
        with_pod(&move |pod| pod["spec"]["resourceClaims"] = json!([reference.clone()]))
    };
    let missing = reference(json!({"name": "gpu", "resourceClaimName": "none"}));
    assert_eq!(missing.names(), ["claim_missing", "claim_unused"]);
    let template = |name: &str| json!({"name": "gpu", "resourceClaimTemplateName": name});
    assert_eq!(reference(template("none")).names(), ["template_missing", "claim_unused"]);
    assert_eq!(reference(template("t")).names(), ["claim_not_made", "claim_unused"]);
    let event = |uid: &str, reason: &str, time: &str, message: &str| {
        json!({"involvedObject": {"uid": uid}, "reason": reason, "lastTimestamp": time,
            "message": message})
    };
    // A pod with old resource names.
    let awaited = template("cgpu-memory-8192mi-gpus-1");
    assert_eq!(reference(awaited.clone()).names(), ["template_awaited", "claim_unused"]);
    let refused = reference(awaited).with(|it| {
        it.events.push(event("uid-p", "ClaimTemplateRefused", "", "at most 4Gi"));
    });
    assert_eq!(
        refused.found()[0],
        ("template_awaited", "template cgpu-memory-8192mi-gpus-1: at most 4Gi".to_owned())
    );
    let made = with_pod(&|pod| {
        pod["spec"]["resourceClaims"] = json!([template("gone")]);
        pod["status"]["resourceClaimStatuses"] = json!([{"name": "gpu", "resourceClaimName": "c"}]);
    });
    assert_eq!(made.names(), ["claim_other_obstacle"]);
    let waiting = Cluster::healthy().with(|it| {
        it.units
            .pods
            .push(unscheduled(pod_of("c"), "0/1 nodes are available: 1 Insufficient cpu."));
        it.claims.push(small());
    });
    assert_eq!(
        waiting.findings(Scope::default()).text(),
        "Why is this pod pending?\n  pod test/p, claim gpu (claim_other_obstacle)\n    \
         A node has devices for each request of the claim, and it is not allocated for another \
         reason.\n    found: 0/1 nodes are available: 1 Insufficient cpu.\n    \
         do:    Do what the scheduler's message says; constraints, other claims of the pod, CPU \
         and memory are not checked here.\nsomething is wrong; examined: API server v1.36.2, \
         kubelets v1.36.1, 1 nodes, 3 pods\n"
    );
    // On its node.
    let on_node = |change: &dyn Fn(&mut Cluster)| {
        Cluster::healthy().with(|it| {
            it.units.pods.push(bound("c"));
            it.claims.push(allocated(small(), &[("gpu-1", "1Gi", 1)]));
            change(it);
        })
    };
    assert_eq!(on_node(&|_| ()).names(), ["starting"]);
    let failed = "FailedPrepareDynamicResources";
    let failing = on_node(&|it| {
        it.events = vec![
            event("uid-p", failed, "2026-11-27T10:00:00Z", "gpu-1 waits for room"),
            event("uid-p", failed, "2026-11-27T09:00:00Z", "earlier"),
            event("another", failed, "2026-11-27T11:00:00Z", "another pod's"),
            event("uid-p", "Pulled", "2026-11-27T12:00:00Z", "another reason"),
        ];
    });
    assert_eq!(failing.found(), [("prepare_failed", "gpu-1 waits for room".to_owned())]);
    // Its events stay for an hour after the claim was prepared.
    let prepared = on_node(&|it| {
        it.events = vec![event("uid-p", failed, "2026-11-27T10:00:00Z", "gpu-1 waits for room")];
        it.units.pods[2]["status"]["conditions"] =
            json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
    });
    assert_eq!(prepared.names(), ["starting"]);
    let refused = on_node(&|it| {
        it.claims[1]["status"]["allocation"]["devices"]["config"] = json!([{"source": "FromClass",
            "opaque": {"driver": "gpu.cgpu.dev", "parameters": {"kind": "x"}}}]);
    });
    assert_eq!(refused.names(), ["claim_config_refused", "starting"]);
    // While its pod runs.
    let resized = |status: &str, reason: &str| {
        Cluster::healthy().with(|it| {
            it.claims[0]["status"]["devices"] = json!([{"driver": "gpu.cgpu.dev", "pool": "two",
                "device": "gpu-0", "shareID": "s", "conditions": [{"type": "Resized",
                    "status": status, "reason": reason, "message": "make a new claim"}]}]);
        })
    };
    assert_eq!(
        resized("False", "Refused").found(),
        [("not_resized", "Refused: make a new claim".to_owned())]
    );
    assert_eq!(resized("True", "Applied").names(), [""; 0]);
    let unstarted = on_node(&|it| {
        it.units.pods[2]["status"]["containerStatuses"] = json!([{"name": "main", "state":
            {"waiting": {"reason": "CreateContainerError", "message": "no limits"}}}]);
    });
    assert_eq!(unstarted.names(), ["start_refused"]);
}

#[test]
fn nodes_without_devices_for_claims_have_a_cause() {
    let without = || Cluster::healthy().with(|it| it.slices.clear());
    assert_eq!(without().found(), [("no_driver", "its pod is kube-system/driver-x".to_owned())]);
    assert_eq!(
        without().claiming(claim("c", json!({}))).names(),
        ["no_driver", "claim_no_devices"]
    );
    let failing = without().with(|it| {
        it.units.pods[0]["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    assert_eq!(failing.names(), ["driver_failing"]);
    let half =
        Cluster::healthy().with(|it| it.slices[0]["spec"]["pool"]["resourceSliceCount"] = json!(2));
    assert_eq!(half.names(), ["slices_incomplete"]);
    // A node that shares by units, too, is examined as such.
    let both = Cluster::healthy().with(|it| it.units.nodes.push(super::node("one")));
    assert_eq!(both.names(), [""; 0]);
}

#[test]
fn old_parts_and_gates_have_a_cause() {
    let unserved = Cluster::healthy().with(|it| {
        (it.slices, it.classes, it.claims) = (Vec::new(), Vec::new(), Vec::new());
        it.units.pods.truncate(1);
        it.api =
            ApiFacts { version: Some("v1.33.1".into()), serves_claims: Some(false), gate: None };
    });
    assert_eq!(unserved.names(), ["claims_not_served"]);
    let off = Cluster::healthy().with(|it| it.api.gate = Some(false));
    assert_eq!(off.names(), ["shares_off"]);
    let old = Cluster::healthy().with(|it| {
        it.units.nodes[0]["status"]["nodeInfo"] = json!({"kubeletVersion": "v1.33.9+k3s1"})
    });
    assert_eq!(old.names(), ["too_old_for_claims"]);
    // A scheduler without the gate allocates whole devices.
    let whole = Cluster::healthy().with(|it| {
        it.claims[0]["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"] =
            Value::Null;
    });
    assert_eq!(whole.names(), ["shares_off"]);
    // It refuses claims that name an amount.
    let refused = Cluster::healthy().with(|it| {
        let message = "claim test/c, request gpu: has capacity requests, but the \
                       DRAConsumableCapacity feature is disabled";
        it.units.pods.push(unscheduled(pod_of("c"), message));
        it.claims.push(claim("c", json!({"memory": "1Gi"})));
    });
    assert_eq!(refused.names(), ["shares_off"]);
    for (image, gates, expected) in [
        ("registry.k8s.io/kube-scheduler:v1.36.2", "", None),
        ("r:5000/kube-scheduler:v1.33.0@sha256:ab", "", Some("too_old_for_claims")),
        ("kube-scheduler:v1.35.0", "", Some("shares_off")),
        ("kube-scheduler:v1.35.0", "--feature-gates=A=false,DRAConsumableCapacity=true", None),
        ("kube-scheduler", "--feature-gates=DRAConsumableCapacity=false", Some("shares_off")),
        ("kube-scheduler", "--feature-gates=DynamicResourceAllocation=false", Some("shares_off")),
        ("kube-scheduler", "", None),
    ] {
        let part = Cluster::healthy().with(|it| {
            it.units.pods.push(json!({
                "metadata": {"name": "s", "namespace": "kube-system", "uid": "uid-s",
                    "labels": {"component": "kube-scheduler"}},
                "spec": {"containers": [{"name": "s", "image": image, "command": ["s", gates]}]},
                "status": {"phase": "Running"},
            }));
        });
        assert_eq!(part.names(), Vec::from_iter(expected), "{image} {gates}");
    }
}

#[test]
fn tables_show_devices_and_claims() {
    let mut cluster = Cluster::healthy().claiming(claim("c", json!({"memory": "1Gi"})));
    cluster.slices[0]["spec"]["devices"][1]["taints"] =
        json!([{"key": "gpu.cgpu.dev/unhealthy", "effect": "NoSchedule"}]);
    let status = &mut cluster.claims[0]["status"];
    status["reservedFor"] = json!([{"resource": "pods", "name": "runs", "uid": "uid-runs"}]);
    status["devices"] = json!([{"driver": "gpu.cgpu.dev", "pool": "two", "device": "gpu-0",
        "shareID": "s", "data": {"memoryLimitBytes": 10_u64 << 30, "memoryUsedBytes": 3_u64 << 30,
        "weight": 5, "measuredSharePercent": 24.9, "wall": "shim",
        "wallReason": "mig"}}]);
    // Access for administration consumes nothing. A claim of another driver is not shown.
    let mut admin = allocated(claim("admin", json!({})), &[("gpu-0", "1Gi", 1)]);
    admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
    let mut other = allocated(claim("other", json!({})), &[("gpu-0", "1Gi", 1)]);
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = json!("gpu.example.com");
    cluster.claims.extend([admin, other]);
    let claims = cluster.claims();
    let overview = overview::Overview::of(&claims, None);
    let summary = "\
NODE  DEVICE  MEMORY(Claimed/Total MiB)  WEIGHT  CORES(%)  SHARES  TAINTS
two   gpu-0   10240/40960                5/20    -         1
two   gpu-1   0/40960                    0/20    -         0       gpu.cgpu.dev/unhealthy:NoSchedule
Claims: 3, not allocated: 1
";
    assert_eq!(overview.summary(), summary);
    let details = "
CLAIM  NAMESPACE  NODE  DEVICE  MEMORY(MiB)  WEIGHT  CORES(%)  USED/LIMIT(MiB)  WALL                 SHARE(%)  PODS
admin  test       two   gpu-0   admin        1       -         -/-              -                    -         -
c      test       -     -       -            -       -         -                -                    -         -
runs   test       two   gpu-0   10240        5       -         3072/10240       shim (MIG instance)  24.9      runs
";
    assert_eq!(overview.details(), format!("{summary}{details}"));
    let json = serde_json::to_value(&overview).unwrap();
    assert_eq!(json["devices"][0]["memory_mib"], json!({"claimed": 10240, "total": 40960}));
    assert_eq!(json["claims"][2]["shares"][0]["measured_percent"], 24.9);
    // Of one node: without claims that are not allocated.
    let one = overview::Overview::of(&claims, Some("two"));
    assert_eq!(one.summary().lines().last(), Some("Claims: 2, not allocated: 0"));
    assert!(overview::Overview::of(&claims, Some("one")).is_empty());
}
