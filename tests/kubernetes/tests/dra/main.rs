//! The real DRA driver on simulated GPUs, with a fake kubelet, and the controller of templates,
//! each before a fake API server or a real control plane.

mod chaos;
mod container;
mod dialects;
mod doctor;
mod held;
mod leaks;
mod real;
mod resize;
mod scenarios;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cgpu_e2e::{Child, Fixture, Monitor, Outcome, Worker};
use cgpu_kubelet_api::registration::PluginInfo;
use cgpu_kubernetes_tests::api_server::{ApiServer, Key};
use cgpu_kubernetes_tests::kubelet;
use cgpu_kubernetes_tests::kubelet::driver::{DriverKubelet, PreparedDevice};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.cgpu.dev";
const NODE: &str = "n1";
const GPUS: &str = "T4:15109,A10:23028";

struct Host<'a> {
    fixture: &'a Fixture,
    server: ApiServer,
    kubelet: DriverKubelet,
}

impl<'a> Host<'a> {
    fn new(fixture: &'a Fixture) -> Self {
        let server = ApiServer::start();
        server.put("nodes", json!({"metadata": {"name": NODE, "uid": "uid-n1"}}));
        let kubelet = DriverKubelet::new(&fixture.path("registry"));
        Self { fixture, server, kubelet }
    }

    fn driver(&self, options: &[&str]) -> Child {
        driver(self.fixture, &self.server.kubeconfig(&self.fixture.path("")), options)
    }

    fn registered(&self) -> PluginInfo {
        self.fixture.eventually("the driver's registration", || self.kubelet.register(DRIVER))
    }

    /// Waits until the published devices are as expected.
    fn published(&self, what: &str, is_expected: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        self.fixture.eventually(what, || {
            let slices = self.server.objects("resourceslices");
            let devices = slices.first()?["spec"]["devices"].as_array()?.clone();
            is_expected(&devices).then_some(devices)
        })
    }

    /// Creates a claim with one result for each device, memory and weight.
    fn claim(&self, name: &str, shares: &[(&str, &str, u32)]) -> Value {
        let result = |(at, (device, memory, weight)): (usize, &(&str, &str, u32))| {
            json!({"request": "main", "driver": DRIVER, "pool": NODE, "device": device,
                "shareID": format!("{name}-{at}"),
                "consumedCapacity": {"memory": memory, "weight": weight.to_string()}})
        };
        let results: Vec<Value> = shares.iter().enumerate().map(result).collect();
        self.server.put(
            "resourceclaims",
            json!({"metadata": {"name": name, "namespace": "test"}, "spec": {},
                "status": {"allocation": {"devices": {"results": results}}}}),
        )
    }

    fn prepare(&self, driver: &PluginInfo, claim: &Value) -> Result<Vec<PreparedDevice>, String> {
        let mut answers = self.kubelet.prepare(driver, &[claim]).expect("an answer");
        answers.remove(uid(claim)).expect("the claim")
    }

    fn unprepare(&self, driver: &PluginInfo, claim: &Value) {
        let mut answers = self.kubelet.unprepare(driver, &[claim]).expect("an answer");
        answers.remove(uid(claim)).expect("the claim").expect("unprepared");
    }

    /// The files of claims: records, limits, CDI specifications.
    fn files(&self) -> BTreeSet<String> {
        let folders = [
            self.fixture.path(&format!("plugins/{DRIVER}/claims")),
            self.fixture.root().join("shares"),
            self.fixture.path("cdi"),
        ];
        let names = |folder: &std::path::PathBuf| {
            let entries = std::fs::read_dir(folder).expect("a folder");
            let name = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.expect("a file").file_name().to_str().expect("a name").to_owned()
            };
            entries.map(name).filter(|name| name != ".lock").collect::<Vec<_>>()
        };
        folders.iter().flat_map(names).collect()
    }

    fn limits(&self, share: &str) -> String {
        std::fs::read_to_string(self.fixture.root().join("shares").join(share)).expect("limits")
    }
}

/// Starts the driver of the node.
fn driver(fixture: &Fixture, kubeconfig: &Path, options: &[&str]) -> Child {
    kubelet::driver::start(fixture, kubeconfig, NODE, &fixture.path("plugins"), options)
}

fn uid(claim: &Value) -> &str {
    claim["metadata"]["uid"].as_str().expect("a uid")
}

fn text(device: &Value, attribute: &str) -> String {
    device["attributes"][attribute]["string"].as_str().expect("a text").to_owned()
}

#[test]
fn driver_registers_and_publishes_its_gpus() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let driver = host.driver(&[]);
    let info = host.registered();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]);
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    assert!(text(&devices[0], "uuid").starts_with("GPU-"), "{devices:?}");
    assert_eq!(text(&devices[0], "mode"), "weight");
    assert_eq!(text(&devices[0], "resource.kubernetes.io/pcieRoot"), "pci0000:00");
    assert_eq!(devices[0]["capacity"]["memory"]["value"], "15104Mi");
    assert_eq!(devices[0]["capacity"]["weight"]["value"], "20");
    assert_eq!(devices[0]["allowMultipleAllocations"], true);
    assert!(devices[0]["attributes"]["driverVersion"]["version"].is_string(), "{devices:?}");
    let slice = &host.server.objects("resourceslices")[0];
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "uid-n1");

    // The kubelet deletes the slices of a driver that is away. They come back.
    let name = slice["metadata"]["name"].as_str().expect("a name");
    assert!(host.server.remove(&Key::new("resourceslices", "", name)));
    host.published("the slices again", |devices| devices.len() == 2);

    // A clean end removes the sockets.
    driver.signal(15);
    assert_eq!(driver.end().code(), Some(0));
    assert!(!fixture.path("registry/gpu.cgpu.dev@reg.sock").exists());
    assert!(!fixture.path("plugins/gpu.cgpu.dev/dra.sock").exists());
}

/// The kernel's PCI devices: all below one root.
fn pci_devices(folder: &Path) -> PathBuf {
    let links = folder.join("pci");
    std::fs::create_dir_all(&links).expect("a folder");
    for bus in 0..=255 {
        let address = format!("0000:{bus:02x}:00.0");
        let device = folder.join("devices/pci0000:3a").join(&address);
        std::fs::create_dir_all(&device).expect("a folder");
        std::os::unix::fs::symlink(device, links.join(address)).expect("a link");
    }
    links
}

/// As in a container of the chart without the vendor's runtime class.
#[test]
fn monitor_says_what_devices_are_without_nvml() {
    let fixture = Fixture::new("A100:40960,A100:40960/mig=3g.20gb,1g.5gb");
    let host = Host::new(&fixture);
    let _monitor = Monitor::start(&fixture);
    let pci = pci_devices(&fixture.path("sys"));
    let options = ["--pci-devices", pci.to_str().expect("a path")];
    let kubeconfig = host.server.kubeconfig(&fixture.path(""));
    let plugins = fixture.path("plugins");
    let mut command = kubelet::driver::command(&fixture, &kubeconfig, NODE, &plugins, &options);
    command.env_remove("LD_LIBRARY_PATH");
    let _driver = Child::start_for(command, fixture.lifetime());
    let has_root = |device: &Value| {
        device["attributes"]["resource.kubernetes.io/pcieRoot"]["string"] == "pci0000:3a"
    };
    let devices = host.published("the devices' PCIe roots", |devices| {
        devices.len() == 3 && devices.iter().all(has_root)
    });
    assert_eq!(text(&devices[0], "productName"), "NVIDIA A100-SXM4-80GB");
    assert_eq!(text(&devices[2], "migProfile"), "1g.5gb");
}

#[test]
fn claim_survives_restarts_until_it_is_unprepared() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let driver = host.driver(&[]);
    let info = host.registered();
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    let claim = host.claim("c", &[("gpu-0", "2Gi", 3), ("gpu-1", "1Gi", 3)]);
    let prepared = host.prepare(&info, &claim).expect("prepared");
    let shares = [0, 1].map(|at| format!("{}-{at}", uid(&claim)));
    let device = |at: usize| PreparedDevice {
        requests: vec!["main".into()],
        device: format!("{NODE}/gpu-{at}"),
        cdi: vec![format!("cgpu.dev/share={}", shares[at])],
        share: Some(format!("c-{at}")),
    };
    assert_eq!(prepared, [device(0), device(1)]);
    let gpu = text(&devices[1], "uuid");
    assert_eq!(host.limits(&shares[1]), format!("version 1\nweight 3\ngpu {gpu} 1073741824\n"));
    let files = host.files();
    assert_eq!(files.len(), 4, "{files:?}");

    // The next driver restores what a restart of the node has removed, and gives the same answer.
    driver.kill();
    std::fs::remove_dir_all(fixture.root().join("shares")).expect("the limits");
    std::fs::remove_dir_all(fixture.path("cdi")).expect("the specifications");
    let driver = host.driver(&[]);
    let info = host.registered();
    assert_eq!(host.files(), files);
    assert_eq!(host.prepare(&info, &claim), Ok(prepared.clone()));

    // The claim is unprepared from the record alone.
    assert!(host.server.remove(&Key::new("resourceclaims", "test", "c")));
    host.unprepare(&info, &claim);
    assert_eq!(host.files(), BTreeSet::new());
    host.unprepare(&info, &claim);
    drop(driver);
}

#[test]
fn device_is_not_oversold_by_a_force_deleted_pod() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&[]);
    let info = host.registered();
    let old = host.claim("old", &[("gpu-0", "10Gi", 1)]);
    host.prepare(&info, &old).expect("prepared");
    // The pod is deleted by force: its claim is gone, and the scheduler gives its room away, while
    // its container still runs.
    assert!(host.server.remove(&Key::new("resourceclaims", "test", "old")));
    let new = host.claim("new", &[("gpu-0", "10Gi", 1)]);
    let refusal = host.prepare(&info, &new).unwrap_err();
    assert!(refusal.contains("claim test/new waits for room on gpu-0"), "{refusal}");
    host.unprepare(&info, &old);
    host.prepare(&info, &new).expect("prepared");

    // A claim that was made anew under its name is another one.
    let claim = host.claim("other", &[("gpu-1", "1Gi", 1)]);
    host.server.edit(&Key::new("resourceclaims", "test", "other"), |claim| {
        claim["metadata"]["uid"] = "another".into();
    });
    let refusal = host.prepare(&info, &claim).unwrap_err();
    assert!(refusal.contains("it was made anew"), "{refusal}");
}

#[test]
fn prepared_claim_is_answered_without_an_api_server() {
    let fixture = Fixture::new(GPUS);
    let mut host = Host::new(&fixture);
    let driver = host.driver(&["--request-timeout", "2s"]);
    let info = host.registered();
    let (one, other) =
        (host.claim("one", &[("gpu-0", "1Gi", 1)]), host.claim("other", &[("gpu-0", "1Gi", 1)]));
    let prepared = host.prepare(&info, &one);
    assert!(prepared.is_ok(), "{prepared:?}");
    host.server.close();
    assert_eq!(host.prepare(&info, &one), prepared);
    let refusal = host.prepare(&info, &other).unwrap_err();
    assert!(refusal.contains("cannot read claim test/other"), "{refusal}");
    // Also by a driver that starts meanwhile, and has not listed its slices.
    driver.kill();
    let _driver = host.driver(&["--request-timeout", "2s"]);
    let info = host.registered();
    assert_eq!(host.prepare(&info, &one), prepared);
    host.unprepare(&info, &one);
    host.server.reopen();
    host.fixture.eventually("the API server", || host.prepare(&info, &other).ok());
}

#[test]
fn second_instance_serves_when_the_first_has_ended() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let first = host.driver(&[]);
    let info = host.registered();
    let claim = host.claim("c", &[("gpu-0", "1Gi", 1)]);
    host.prepare(&info, &claim).expect("prepared");
    // A waiting instance that ends leaves the sockets of the other.
    let waiting = host.driver(&[]);
    waiting.signal(15);
    waiting.end();
    host.registered();
    let second = host.driver(&[]);
    first.signal(15);
    assert_eq!(first.end().code(), Some(0));
    let info = host.registered();
    assert_eq!(host.files().len(), 3);
    host.unprepare(&info, &claim);
    second.kill();
}

#[test]
fn gpu_with_an_error_is_tainted_until_it_is_quiet() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let driver = host.driver(&["--recovery", "3600"]);
    let info = host.registered();
    host.published("two GPUs", |devices| devices.len() == 2);
    let claim = host.claim("c", &[("gpu-1", "1Gi", 1)]);
    host.prepare(&info, &claim).expect("prepared");
    let mut command = fixture.native(&fixture.dist().file("cgpu-sim"));
    command.args(["xid", "1", "48"]);
    Outcome::of(command).exits(0);
    let is_tainted = |devices: &[Value]| {
        devices.len() == 2
            && devices[0]["taints"].is_null()
            && devices[1]["taints"][0]["key"] == "gpu.cgpu.dev/unhealthy"
    };
    host.published("a taint", is_tainted);
    fixture.eventually("the health of the devices", || {
        let health = host.kubelet.health(&info).ok()?;
        (health == [("gpu-0".into(), true), ("gpu-1".into(), false)].into()).then_some(())
    });
    // What is prepared stays. The next driver takes over the recorded error, and clears it when the
    // GPU was quiet.
    assert_eq!(host.files().len(), 3);
    driver.kill();
    let driver = host.driver(&["--recovery", "3600"]);
    host.registered();
    host.published("the taint of the last driver", is_tainted);
    driver.kill();
    let _driver = host.driver(&["--recovery", "1"]);
    host.published("no taint", |devices| devices.iter().all(|device| device["taints"].is_null()));
    host.unprepare(&host.registered(), &claim);
}

/// The next driver knows the GPUs from the slices of the last one.
#[test]
fn driver_that_starts_while_gpus_are_lost_serves_what_is_prepared() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let driver = host.driver(&[]);
    let info = host.registered();
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    let claim = host.claim("c", &[("gpu-1", "1Gi", 1)]);
    let prepared = host.prepare(&info, &claim);
    assert!(prepared.is_ok(), "{prepared:?}");
    driver.kill();
    let kubeconfig = host.server.kubeconfig(&fixture.path(""));
    let mut command =
        kubelet::driver::command(&fixture, &kubeconfig, NODE, &fixture.path("plugins"), &[]);
    command.env("CGPU_SIM_FAULT", "nvmlDeviceGetMemoryInfo*:1+:NVML_ERROR_GPU_IS_LOST");
    let driver = Child::start_for(command, fixture.lifetime());
    let lost = host.published("two lost GPUs", |devices| {
        devices.len() == 2 && devices.iter().all(|device| !device["taints"].is_null())
    });
    for (lost, device) in lost.iter().zip(&devices) {
        for field in ["name", "attributes", "capacity"] {
            assert_eq!(lost[field], device[field], "{field}");
        }
    }
    let info = host.registered();
    assert_eq!(host.prepare(&info, &claim), prepared);
    driver.kill();
    let _driver = host.driver(&["--recovery", "1"]);
    host.published("no taint", |devices| devices.iter().all(|device| device["taints"].is_null()));
}

/// Returns the other owners of devices, as their taints name them.
fn other_owners(devices: &[Value]) -> Vec<Option<&str>> {
    fn owner(device: &Value) -> Option<&str> {
        let is_owner = |taint: &&Value| {
            taint["key"] == "gpu.cgpu.dev/other-owner" && taint["effect"] == "NoSchedule"
        };
        device["taints"].as_array()?.iter().find(is_owner)?["value"].as_str()
    }
    devices.iter().map(owner).collect()
}

#[test]
fn gpus_of_a_device_plugin_are_refused_unless_it_has_others() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    host.server.put(
        "nodes",
        json!({"metadata": {"name": NODE, "uid": "uid-n1"},
            "status": {"capacity": {"cpu": "8", "nvidia.com/gpu": "2"}}}),
    );
    let driver = host.driver(&[]);
    let info = host.registered();
    host.published("taints", |devices| other_owners(devices) == [Some("nvidia.com.gpu"); 2]);
    let claim = host.claim("c", &[("gpu-1", "1Gi", 1)]);
    let refusal = host.prepare(&info, &claim).unwrap_err();
    assert!(refusal.contains("gpu-1 is given out by the device plugin of nvidia.com/gpu"));
    assert!(refusal.contains("--disjoint-resources=nvidia.com/gpu"), "{refusal}");
    assert_eq!(host.files(), BTreeSet::new());

    driver.kill();
    let _driver = host.driver(&["--disjoint-resources", "nvidia.com/gpu"]);
    let info = host.registered();
    host.published("no taint", |devices| other_owners(devices) == [None; 2]);
    host.prepare(&info, &claim).expect("prepared");
}

#[test]
fn gpu_of_another_driver_is_refused_while_that_offers_it() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&[]);
    let info = host.registered();
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    let prepared = host.claim("prepared", &[("gpu-1", "1Gi", 1)]);
    host.prepare(&info, &prepared).expect("prepared");
    host.server.put(
        "resourceslices",
        json!({"metadata": {"name": "z-of-another"}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {
                "uuid": {"string": text(&devices[1], "uuid")}}}]}}),
    );
    host.published("a taint", |devices| other_owners(devices) == [None, Some("gpu.nvidia.com")]);
    host.prepare(&info, &prepared).expect("what is prepared stays");
    let claim = host.claim("c", &[("gpu-1", "1Gi", 1)]);
    let refusal = host.prepare(&info, &claim).unwrap_err();
    assert!(refusal.contains("gpu-1 is given out by the driver gpu.nvidia.com, too"), "{refusal}");
    let other = host.claim("other", &[("gpu-0", "1Gi", 1)]);
    host.prepare(&info, &other).expect("a GPU without another owner");
    assert!(host.server.remove(&Key::new("resourceslices", "", "z-of-another")));
    host.published("no taint", |devices| other_owners(devices) == [None; 2]);
    host.prepare(&info, &claim).expect("prepared");
}

#[test]
fn status_says_what_a_claim_gets_and_uses() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&["--status-interval", "1"]);
    let info = host.registered();
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    let claim = host.claim("c", &[("gpu-0", "2Gi", 3)]);
    let key = Key::new("resourceclaims", "test", "c");
    let foreign = json!({"driver": "x.example", "pool": "p", "device": "d"});
    host.server.edit(&key, |claim| claim["status"]["devices"] = json!([foreign]));
    host.prepare(&info, &claim).expect("prepared");
    let status = |what: &str, is_expected: &dyn Fn(&Value) -> bool| {
        fixture.eventually(what, || {
            let claim = host.server.object(&key).expect("the claim");
            let devices = claim["status"]["devices"].as_array().expect("devices").clone();
            assert_eq!(devices[0], foreign);
            devices.get(1).filter(|own| is_expected(&own["data"])).cloned()
        })
    };
    let gpu = text(&devices[0], "uuid");
    let first = status("the first status", &|_| true);
    assert_eq!(
        first,
        json!({"driver": DRIVER, "pool": NODE, "device": "gpu-0", "shareID": "c-0",
            "data": {"uuid": gpu, "memoryLimitBytes": 2_u64 << 30, "weight": 3}})
    );

    // A container of the share, as cgpu-runtime makes it.
    let container = fixture.limited("a", 2048).on_gpu(&gpu, 2048);
    let record = json!({"bundle": "/b", "shares": [format!("{}-0", uid(&claim))]});
    fixture.record("a", &record.to_string());
    let _monitor = Monitor::start(&fixture);
    let mut worker = Worker::start(&fixture, &container);
    worker.begin(600.0);
    let used = status("a busy container", &|data| {
        data["measuredSharePercent"].as_f64().is_some_and(|percent| percent > 50.0)
    });
    assert!(used["data"]["memoryUsedBytes"].as_u64().expect("bytes") > 0, "{used}");
    drop(worker);
    status("an idle container", &|data| {
        data["measuredSharePercent"].as_f64().is_some_and(|percent| percent < 10.0)
    });
}

/// A cluster of many nodes must not be kept busy by statuses.
#[test]
fn unchanged_statuses_are_not_written_again() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&["--status-interval", "1"]);
    let info = host.registered();
    let claims = ["a", "b", "c"].map(|name| host.claim(name, &[("gpu-0", "1Gi", 1)]));
    let all: Vec<&Value> = claims.iter().collect();
    host.kubelet.prepare(&info, &all).expect("an answer");
    let written = || {
        let journal = host.server.journal();
        journal.iter().filter(|request| request.path.ends_with("/status")).count()
    };
    fixture.eventually("all statuses", || (written() == 3).then_some(()));
    // Until another claim had its turn, three more intervals pass.
    for (at, name) in ["d", "e", "f"].into_iter().enumerate() {
        let claim = host.claim(name, &[("gpu-1", "1Gi", 1)]);
        host.prepare(&info, &claim).expect("prepared");
        fixture.eventually("its status", || (written() == 4 + at).then_some(()));
    }
}

#[test]
fn claims_of_many_pods_are_prepared_at_once() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&[]);
    let info = host.registered();
    let gpu = |at: usize| if at.is_multiple_of(2) { "gpu-0" } else { "gpu-1" };
    let claims: Vec<Value> =
        (0..64).map(|at| host.claim(&format!("c{at}"), &[(gpu(at), "128Mi", 1)])).collect();
    let all: Vec<&Value> = claims.iter().collect();
    let answers = host.kubelet.prepare(&info, &all).expect("an answer");
    // A GPU has places for 20.
    assert_eq!(answers.values().filter(|answer| answer.is_ok()).count(), 40);
    assert_eq!(host.files().len(), 40 * 3);
    let answers = host.kubelet.unprepare(&info, &all).expect("an answer");
    assert!(answers.values().all(Result::is_ok), "{answers:?}");
    assert_eq!(host.files(), BTreeSet::new());
}
