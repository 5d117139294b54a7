//! A real API server, scheduler and controller of claims, where the environment names them
//! (envtest's variables). The kubelet is the fake one, so no container runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Deref;
use std::path::Path;

use cgpu_e2e::{Fixture, Monitor, Outcome};
use cgpu_kubernetes_tests::kubelet::driver::DriverKubelet;
use cgpu_kubernetes_tests::plane::Plane;
use cgpu_kubernetes_tests::wait::{until, until_holds};
use serde_json::{Value, json};

use crate::dialects::controller;
use crate::{DRIVER, NODE, driver, uid};

/// Two GPUs, and one that is partitioned.
pub(crate) const GPUS: &str = "A100:40960,A100:40960,A100:40960/mig=3g.20gb,1g.5gb";
/// The classes of the chart, which is not rendered here.
const CLASSES: [(&str, &str); 2] = [("cgpu", "gpu"), ("cgpu-mig", "mig")];

/// A control plane with our classes of devices, and a node that has no kubelet.
pub(crate) struct ControlPlane(Plane);

impl Deref for ControlPlane {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        &self.0
    }
}

impl ControlPlane {
    /// Starts it; none: a program is missing.
    pub(crate) fn start(test: &str, folder: &Path) -> Option<Self> {
        Self::start_with(test, folder, ["", ""])
    }

    /// Starts it with feature gates of the API server and of the scheduler.
    pub(crate) fn start_with(test: &str, folder: &Path, gates: [&str; 2]) -> Option<Self> {
        let [api_gates, scheduler_gates] = gates.map(|gates| format!("--feature-gates={gates}"));
        let mut plane = Plane::start(test, folder, &[api_gates])?;
        let config = format!("--kubeconfig={}", plane.kubeconfig().display());
        plane.start_scheduler(&[config, "--leader-elect=false".to_owned(), scheduler_gates]);
        let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        plane.add_node(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
            "status": {"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}]}}));
        for (name, kind) in CLASSES {
            let expression = format!(
                "device.driver == \"{DRIVER}\" && device.attributes[\"{DRIVER}\"].type == \"{kind}\""
            );
            plane.apply(&json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            }));
        }
        Some(Self(plane))
    }

    /// The claims that are allocated and not being deleted.
    pub(crate) fn allocated(&self) -> Vec<Value> {
        self.claims().into_iter().filter(is_allocated).collect()
    }

    pub(crate) fn claims(&self) -> Vec<Value> {
        self.list("resourceclaims")
    }
}

pub(crate) fn is_allocated(claim: &Value) -> bool {
    claim["status"]["allocation"].is_object() && claim["metadata"]["deletionTimestamp"].is_null()
}

/// Memory in MiB and weight of each device.
pub(crate) type Sums = BTreeMap<String, (u64, u64)>;

fn add(sums: &mut Sums, device: &str, memory: u64, weight: u64) {
    let sum = sums.entry(device.to_owned()).or_default();
    *sum = (sum.0 + memory, sum.1 + weight);
}

/// What the API server says that claims consume.
pub(crate) fn consumed(claims: &[Value]) -> Sums {
    let mut sums = Sums::new();
    for claim in claims {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        let is_limited =
            |result: &&Value| result["driver"] == DRIVER && result["adminAccess"] != json!(true);
        for result in results.into_iter().flatten().filter(is_limited) {
            let capacity = &result["consumedCapacity"];
            let text = |name: &str| capacity[name].as_str().expect("an amount").to_owned();
            let memory = text("memory");
            let memory = match memory.strip_suffix("Gi") {
                Some(gib) => gib.parse::<u64>().expect("GiB") * 1024,
                None => memory.strip_suffix("Mi").expect("MiB").parse().expect("MiB"),
            };
            let device = result["device"].as_str().expect("a device");
            add(&mut sums, device, memory, text("weight").parse().expect("a weight"));
        }
    }
    sums
}

/// What the limits files of the node give.
pub(crate) fn given(fixture: &Fixture, devices: &BTreeMap<String, String>) -> Sums {
    let mut sums = Sums::new();
    for entry in fs::read_dir(fixture.root().join("shares")).expect("limits").flatten() {
        let text = fs::read_to_string(entry.path()).expect("limits");
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let weight = field("weight ").and_then(|text| text.parse().ok()).expect("a weight");
        let (uuid, bytes) = field("gpu GPU-").and_then(|gpu| gpu.split_once(' ')).expect("a GPU");
        let memory: u64 = bytes.parse().expect("bytes");
        add(&mut sums, &devices[uuid], memory >> 20, weight);
    }
    sums
}

/// Names of the published devices, by their UUIDs' digits.
pub(crate) fn devices(plane: &ControlPlane) -> BTreeMap<String, String> {
    let text = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
    let list: Value = serde_json::from_str(&text).expect("JSON");
    let devices = list["items"].as_array().into_iter().flatten();
    let devices = devices.flat_map(|slice| slice["spec"]["devices"].as_array()).flatten();
    let named = |device: &Value| {
        let uuid = device["attributes"]["uuid"]["string"].as_str().expect("a UUID");
        (uuid[4..].to_owned(), device["name"].as_str().expect("a name").to_owned())
    };
    devices.map(named).collect()
}

#[test]
fn examples_are_allocated_and_prepared_as_claimed() {
    let fixture = Fixture::new(GPUS);
    let test = "examples_are_allocated_and_prepared_as_claimed";
    let Some(plane) = ControlPlane::start(test, &fixture.path("")) else { return };
    let _driver = driver(&fixture, &plane.kubeconfig(), &[]);
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let info = until("the driver", || kubelet.register(DRIVER));
    let names = until("the devices", || Some(devices(&plane)).filter(|names| names.len() == 4));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/examples/dra");
    for example in fs::read_dir(folder).expect("examples").flatten() {
        let text = fs::read_to_string(example.path()).expect("an example");
        plane.apply_text(&text);
        let claims = until("each claim is allocated", || {
            let claims = plane.claims();
            (!claims.is_empty() && claims.iter().all(is_allocated)).then_some(claims)
        });
        let all: Vec<&Value> = claims.iter().collect();
        let answers = kubelet.prepare(&info, &all).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{:?}: {answers:?}", example.file_name());
        assert_eq!(given(&fixture, &names), consumed(&claims), "{:?}", example.file_name());
        until_holds("each claim's status has its devices", || {
            let has_status = |claim: &Value| {
                let devices = claim["status"]["devices"].as_array();
                let results = claim["status"]["allocation"]["devices"]["results"].as_array();
                devices.map(Vec::len) == results.map(Vec::len)
            };
            plane.claims().iter().all(has_status)
        });
        let file = example.path().to_string_lossy().into_owned();
        plane
            .kubectl(&["delete", "--force", "--grace-period=0", "--wait=false", "-f", &file])
            .expect("deleted");
        until_holds("the claims are deleted", || plane.claims().is_empty());
        let answers = kubelet.unprepare(&info, &all).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
        assert_eq!(given(&fixture, &names), Sums::new());
    }
}

/// Pods are deleted by force, and their claims unprepared later, when the scheduler has given their
/// room away.
#[test]
fn sums_are_equal_after_churn_on_the_real_scheduler() {
    let fixture = Fixture::new(GPUS);
    let test = "sums_are_equal_after_churn_on_the_real_scheduler";
    let Some(plane) = ControlPlane::start(test, &fixture.path("")) else { return };
    let _driver = driver(&fixture, &plane.kubeconfig(), &[]);
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let info = until("the driver", || kubelet.register(DRIVER));
    let names = until("the devices", || Some(devices(&plane)).filter(|names| names.len() == 4));
    // Claims that are prepared, with their ages since they were deleted.
    let mut prepared: BTreeMap<String, (Value, Option<usize>)> = BTreeMap::new();
    let mut refused = 0;
    for step in 0..60 {
        if step % 3 < 2 {
            plane.apply(&pod(step));
        } else {
            // The oldest one.
            let nth = step / 3;
            let pod = format!("p{}", nth / 2 * 3 + nth % 2);
            let _ = plane.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]);
        }
        let allocated = plane.allocated();
        let known: BTreeSet<&str> = allocated.iter().map(uid).collect();
        for (_, age) in prepared.values_mut().filter(|(claim, _)| !known.contains(uid(claim))) {
            *age.get_or_insert(0) += 1;
        }
        let new: Vec<&Value> =
            allocated.iter().filter(|claim| !prepared.contains_key(uid(claim))).collect();
        let answers = kubelet.prepare(&info, &new).expect("an answer");
        for claim in new {
            match &answers[uid(claim)] {
                Ok(_) => drop(prepared.insert(uid(claim).to_owned(), (claim.clone(), None))),
                Err(why) => refused += usize::from(why.contains("waits for room")),
            }
        }
        // What runs never exceeds a device.
        for (device, (memory, weight)) in given(&fixture, &names) {
            let most = match device.as_str() {
                "gpu-2-mig-0" => 20 * 1024,
                "gpu-2-mig-1" => 5 * 1024,
                _ => 40960,
            };
            assert!(memory <= most && weight <= 20, "{device}: {memory} MiB, weight {weight}");
        }
        let ended: Vec<Value> = prepared
            .extract_if(.., |_, (_, age)| age.is_some_and(|age| age > 3))
            .map(|(_, (claim, _))| claim)
            .collect();
        let ended: Vec<&Value> = ended.iter().collect();
        let answers = kubelet.unprepare(&info, &ended).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
    }
    assert!(refused > 0, "no room was given away early");
    until_holds("the sums are equal", || {
        let allocated = plane.allocated();
        let known: BTreeSet<&str> = allocated.iter().map(uid).collect();
        let gone: Vec<Value> = prepared
            .extract_if(.., |uid, _| !known.contains(uid.as_str()))
            .map(|(_, (claim, _))| claim)
            .collect();
        let gone: Vec<&Value> = gone.iter().collect();
        let _ = kubelet.unprepare(&info, &gone).expect("an answer");
        let all: Vec<&Value> = allocated.iter().collect();
        let answers = kubelet.prepare(&info, &all).expect("an answer");
        for claim in all.iter().filter(|claim| answers[uid(claim)].is_ok()) {
            prepared.entry(uid(claim).to_owned()).or_insert(((*claim).clone(), None));
        }
        answers.values().all(Result::is_ok) && given(&fixture, &names) == consumed(&allocated)
    });
}

/// Puts the namespace under the policies for old resource names, which are read from the manifests.
fn translate(plane: &ControlPlane) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kubernetes/manifests/cgpu-dra.yaml");
    let text = fs::read_to_string(path).expect("the manifests");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    for object in objects.iter().filter(|object| object["metadata"]["name"] == "cgpu-dialects") {
        plane.apply(object);
    }
    plane.kubectl(&["label", "namespace", "default", "cgpu.dev/engine=dra"]).expect("a label");
    let file = plane.kubeconfig().with_file_name("probe.json");
    fs::write(&file, old_pod("probe", &[("main", "1")], &[], None).to_string()).expect("a file");
    let file = file.to_string_lossy().into_owned();
    until_holds("the policies count", || {
        let options = ["create", "--dry-run=server", "--validate=false", "-o", "json", "-f", &file];
        let pod = plane.kubectl(&options);
        pod.is_some_and(|pod| pod.contains("cgpu-memory-1024mi-gpus-1"))
    });
}

/// A pod whose containers and init containers request these GiB in the old names.
fn old_pod(
    name: &str,
    containers: &[(&str, &str)],
    init_containers: &[(&str, &str)],
    gpus: Option<&str>,
) -> Value {
    let of = |(name, units): &(&str, &str)| {
        json!({"name": name, "image": "IMAGE",
            "resources": {"limits": {"aliyun.com/gpu-mem": units}}})
    };
    let [containers, init_containers] =
        [containers, init_containers].map(|list| list.iter().map(of).collect::<Vec<_>>());
    let labels = gpus.map(|gpus| json!({"aliyun.com/gpu-count": gpus}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": containers, "initContainers": init_containers}})
}

#[test]
fn pods_with_old_names_are_allocated_and_prepared_as_requested() {
    let fixture = Fixture::new(GPUS);
    let test = "pods_with_old_names_are_allocated_and_prepared_as_requested";
    let Some(plane) = ControlPlane::start(test, &fixture.path("")) else { return };
    let _monitor = Monitor::start(&fixture);
    let mut set = fixture.cgpu(&["set", "1/policy", "3", "--root"]);
    set.arg(fixture.root());
    Outcome::of(set).exits(0);
    let _driver = driver(&fixture, &plane.kubeconfig(), &[]);
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let info = until("the driver", || kubelet.register(DRIVER));
    let names = until("the devices", || Some(devices(&plane)).filter(|names| names.len() == 4));
    until_holds("a GPU with fixed percentages", || {
        let slices = plane.kubectl(&["get", "resourceslices", "-o", "json"]).expect("slices");
        slices.contains("\"string\": \"cores\"")
    });
    translate(&plane);
    let mut one = old_pod("one", &[("main", "6")], &[], None);
    let variable = |(name, value): (&str, &str)| json!({"name": name, "value": value});
    let variables = [("ALIYUN_COM_GPU_SCHD_WEIGHT", "3"), ("ALIYUN_COM_GPU_HIGH_PRIO", "1")];
    one["spec"]["containers"][0]["env"] = variables.map(variable).into_iter().collect();
    let mut four = old_pod("four", &[("main", "2")], &[], None);
    let amounts = json!({"aliyun.com/gpu-mem": "2", "aliyun.com/gpu-core.percentage": "30"});
    four["spec"]["containers"][0]["resources"]["limits"] = amounts;
    let pods = [
        one,
        four,
        old_pod("two", &[("main", "8")], &[], Some("2")),
        // The init container has the claim of the second container.
        old_pod("three", &[("main", "3"), ("side", "5")], &[("init", "5")], None),
    ];
    pods.iter().for_each(|pod| plane.apply(pod));
    // The pods wait for their templates. Kubernetes tries to make their claims all the time.
    until_holds("a claim was tried", || {
        let events = plane.kubectl(&["get", "events", "-o", "json"]).expect("events");
        events.contains("FailedResourceClaimCreation")
    });
    let _controller = controller(&fixture, &plane.kubeconfig(), &["--retention", "3"]);
    let claims = until("each claim is allocated", || {
        let claims = plane.claims();
        (claims.len() == 5 && claims.iter().all(is_allocated)).then_some(claims)
    });
    let memory = |claim: &Value| {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        let result = |result: &Value| {
            let memory = result["consumedCapacity"]["memory"].as_str().expect("memory").to_owned();
            (result["device"].as_str().expect("a device").to_owned(), memory)
        };
        results.expect("results").iter().map(result).collect::<BTreeMap<_, _>>()
    };
    let mut amounts: Vec<Vec<String>> =
        claims.iter().map(|claim| memory(claim).into_values().collect()).collect();
    amounts.sort();
    // The two shares of a claim are of different GPUs.
    let amount = |gib: &str| format!("{gib}Gi");
    let expected = [vec!["2"], vec!["3"], vec!["4", "4"], vec!["5"], vec!["6"]];
    assert_eq!(amounts, expected.map(|claim| claim.into_iter().map(amount).collect::<Vec<_>>()));
    let all: Vec<&Value> = claims.iter().collect();
    let answers = kubelet.prepare(&info, &all).expect("an answer");
    assert!(answers.values().all(Result::is_ok), "{answers:?}");
    assert_eq!(given(&fixture, &names), consumed(&claims));
    let shares = fs::read_dir(fixture.root().join("shares")).expect("limits").flatten();
    let limits = shares.map(|entry| fs::read_to_string(entry.path()).expect("limits"));
    let weighted: Vec<String> = limits.filter(|text| text.contains("weight 3\n")).collect();
    assert!(weighted.len() == 1 && weighted[0].contains("high_priority 1\n"), "{weighted:?}");
    // A percentage is on the GPU that has them.
    let with_cores =
        claims.iter().map(|claim| &claim["status"]["allocation"]["devices"]["results"]);
    let on: Vec<&Value> = with_cores
        .filter(|results| results[0]["consumedCapacity"]["cores"] == "30")
        .map(|results| &results[0]["device"])
        .collect();
    assert_eq!(on, ["gpu-1"]);
    // A template stays while a pod names it, and no longer.
    let templates = || {
        let text = plane.kubectl(&["get", "resourceclaimtemplates", "-o", "name"]);
        text.expect("templates").lines().count()
    };
    assert_eq!(templates(), 5);
    plane.kubectl(&["delete", "pod", "one", "--force", "--grace-period=0"]).expect("deleted");
    until_holds("a template is removed", || templates() == 4);
    plane.apply(&old_pod("again", &[("main", "6")], &[], None));
    until_holds("a pod gets it again", || {
        let claims = plane.claims();
        claims.len() == 5 && claims.iter().all(is_allocated) && templates() == 5
    });
}

/// A pod with a claim of its own, of which three fill a GPU.
pub(crate) fn pod(at: usize) -> Value {
    let capacity = json!({"requests": {"memory": "13Gi", "weight": (at % 6 + 1).to_string()}});
    let request = json!({"name": "gpu", "exactly":
        {"deviceClassName": "cgpu", "capacity": capacity}});
    let claim = format!("t{at}");
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": claim},
            "spec": {"spec": {"devices": {"requests": [request]}}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("p{at}")},
            "spec": {
                "containers": [{"name": "main", "image": "IMAGE",
                    "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": claim}],
            }},
    ]})
}
