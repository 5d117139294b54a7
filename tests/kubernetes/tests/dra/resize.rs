//! Claims that are resized by their annotation while their containers run.

use cgpu_e2e::{Container, Fixture, Monitor, Worker};
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::kubelet::driver::DriverKubelet;
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::real::{self, ControlPlane, is_allocated};
use crate::{DRIVER, GPUS, Host, driver, text, uid};

const GIB: u64 = 1 << 30;
const ANNOTATION: &str = "cgpu.dev/resize";

impl Host<'_> {
    fn annotate(&self, claim: &str, value: Option<&str>) {
        let found = self.server.edit(&Key::new("resourceclaims", "test", claim), |claim| {
            let annotations = &mut claim["metadata"]["annotations"];
            *annotations = match value {
                Some(value) => json!({ANNOTATION: value}),
                None => json!({}),
            };
        });
        assert!(found, "no claim {claim}");
    }

    /// Waits for a condition of the claim's first device, and returns the device.
    fn condition(&self, claim: &str, reason: &str, message: &str) -> Value {
        let what = format!("{reason}: {message}");
        self.fixture.eventually(&what, || {
            let claim = self.server.object(&Key::new("resourceclaims", "test", claim))?;
            let device = claim["status"]["devices"].get(0)?.clone();
            let condition = &device["conditions"][0];
            let says = condition["message"].as_str()?.contains(message);
            let is_it = condition["reason"] == reason && condition["type"] == "Resized" && says;
            is_it.then_some(device)
        })
    }

    /// A container with these shares, as cgpu-runtime makes it, and with a limit on each GPU.
    fn running(&self, shares: &[String], limits: &str, mib: u64) -> Container {
        let container = self.fixture.limited("a", mib);
        std::fs::write(container.file("limits"), limits).expect("limits");
        let record = json!({"bundle": "/b", "shares": shares});
        self.fixture.record("a", &record.to_string());
        container
    }
}

#[test]
fn running_container_is_resized_within_its_claim() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let options = ["--resize-interval", "1", "--status-interval", "1"];
    let driver = host.driver(&options);
    let info = host.registered();
    let devices = host.published("two GPUs", |devices| devices.len() == 2);
    let claim = host.claim("c", &[("gpu-0", "4Gi", 3)]);
    host.prepare(&info, &claim).expect("prepared");
    let (share, gpu) = (format!("{}-0", uid(&claim)), text(&devices[0], "uuid"));
    let limits =
        |weight: u32, bytes: u64| format!("version 1\nweight {weight}\ngpu {gpu} {bytes}\n");
    let container = host.running(std::slice::from_ref(&share), &limits(3, 4 * GIB), 4096);
    let container = container.with("CUDA_VISIBLE_DEVICES", &gpu);
    let _monitor = Monitor::start(&fixture);
    let mut worker = Worker::start(&fixture, &container);
    worker.fills(4 * GIB);

    // Memory and weight are lowered, in the running container too. The claim and the room that it
    // takes stay.
    host.annotate("c", Some("memory=1Gi,weight=1"));
    let device = host.condition("c", "Applied", "1024 MiB, weight 1 of gpu-0");
    assert_eq!(device["conditions"][0]["status"], "True");
    assert_eq!(
        (&device["data"]["memoryLimitBytes"], &device["data"]["weight"]),
        (&GIB.into(), &1.into())
    );
    assert_eq!(host.limits(&share), limits(1, GIB));
    worker.fills(GIB);
    assert_eq!(fixture.accounting(&container)["weight"], 1);
    let other = host.claim("other", &[("gpu-0", "12Gi", 1)]);
    let refusal = host.prepare(&info, &other).unwrap_err();
    assert!(refusal.contains("4096 MiB, weight 3 is held"), "{refusal}");

    // Up to what was claimed, and no further.
    host.annotate("c", Some("main: memory=4Gi"));
    host.condition("c", "Applied", "4096 MiB, weight 3 of gpu-0");
    worker.fills(4 * GIB);
    host.annotate("c", Some("memory=2Gi"));
    host.condition("c", "Applied", "2048 MiB");
    host.annotate("c", Some("memory=5Gi"));
    let device = host.condition("c", "Refused", "make a new claim");
    assert_eq!(device["conditions"][0]["status"], "False");
    assert_eq!(host.limits(&share), limits(3, 2 * GIB));
    worker.fills(2 * GIB);

    // The next driver knows it, and a repeated prepare changes nothing.
    driver.kill();
    std::fs::remove_file(fixture.root().join("shares").join(&share)).expect("limits");
    let _driver = host.driver(&options);
    let info = host.registered();
    assert_eq!(host.limits(&share), limits(3, 2 * GIB));
    host.prepare(&info, &claim).expect("prepared");
    assert_eq!(host.limits(&share), limits(3, 2 * GIB));
    host.annotate("c", None);
    host.condition("c", "Applied", "4096 MiB, weight 3");
    worker.fills(4 * GIB);
    worker.finish();
}

#[test]
fn annotation_counts_when_a_claim_is_prepared() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&["--resize-interval", "1", "--status-interval", "1"]);
    let info = host.registered();
    let claim = host.claim("c", &[("gpu-0", "4Gi", 3)]);
    host.annotate("c", Some("memory=1Gi"));
    host.prepare(&info, &claim).expect("prepared");
    let limits = host.limits(&format!("{}-0", uid(&claim)));
    assert!(limits.contains("weight 3\n") && limits.ends_with(" 1073741824\n"), "{limits}");
    // No monitor runs: only containers that start from now on have it.
    host.condition("c", "Waiting", "no monitor");
    let _monitor = Monitor::start(&fixture);
    host.condition("c", "Applied", "1024 MiB");
    host.unprepare(&info, &claim);

    // One that is not understood changes nothing, and is no reason to start no container.
    let claim = host.claim("d", &[("gpu-0", "4Gi", 3)]);
    host.annotate("d", Some("memory=1Gi,wieght=1"));
    host.prepare(&info, &claim).expect("prepared");
    let limits = host.limits(&format!("{}-0", uid(&claim)));
    assert!(limits.ends_with(" 4294967296\n"), "{limits}");
    host.condition("d", "Refused", "`wieght=1` is not memory=AMOUNT");
}

#[test]
fn percentage_of_a_running_container_is_resized() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _monitor = Monitor::start(&fixture);
    fixture.set("0/policy", "3");
    let _driver = host.driver(&["--resize-interval", "1", "--status-interval", "1"]);
    let info = host.registered();
    let devices = host.published("a GPU that is shared by cores", |devices| {
        devices.len() == 2 && text(&devices[0], "mode") == "cores"
    });
    let claim = host.claim("c", &[("gpu-0", "4Gi", 1)]);
    host.server.edit(&Key::new("resourceclaims", "test", "c"), |claim| {
        let result = &mut claim["status"]["allocation"]["devices"]["results"][0];
        result["consumedCapacity"]["cores"] = "40".into();
    });
    host.prepare(&info, &claim).expect("prepared");
    let (share, gpu) = (format!("{}-0", uid(&claim)), text(&devices[0], "uuid"));
    let limits = host.limits(&share);
    let container = host.running(&[share], &limits, 4096).with("CUDA_VISIBLE_DEVICES", &gpu);
    let worker = Worker::start(&fixture, &container);
    let percent = || fixture.accounting(&container)["percent"].clone();
    fixture.eventually("the claimed cores", || (percent() == 40).then_some(()));
    host.annotate("c", Some("cores=10"));
    host.condition("c", "Applied", "10 % of the cores");
    assert_eq!(percent(), 10);
    host.annotate("c", Some("cores=41"));
    host.condition("c", "Refused", "make a new claim");
    assert_eq!(percent(), 10);
    worker.finish();
}

#[test]
fn container_keeps_one_weight_on_all_of_its_gpus() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&["--resize-interval", "1", "--status-interval", "1"]);
    let info = host.registered();
    let claim = host.claim("c", &[("gpu-0", "2Gi", 3), ("gpu-1", "2Gi", 3)]);
    host.server.edit(&Key::new("resourceclaims", "test", "c"), |claim| {
        claim["status"]["allocation"]["devices"]["results"][1]["request"] = "second".into();
    });
    host.prepare(&info, &claim).expect("prepared");
    let shares = [0, 1].map(|at| format!("{}-{at}", uid(&claim)));
    let before = [0, 1].map(|at| host.limits(&shares[at]));
    let gpus = before.each_ref().map(|limits| limits.lines().last().expect("a GPU"));
    let both = format!("version 1\nweight 3\n{}\n{}\n", gpus[0], gpus[1]);
    let container = host.running(&shares, &both, 2048);
    let _monitor = Monitor::start(&fixture);
    let worker = Worker::start(&fixture, &container);
    host.annotate("c", Some("second: weight=1"));
    host.condition("c", "Refused", "a container has one weight on all of its GPUs");
    assert_eq!([0, 1].map(|at| host.limits(&shares[at])), before);
    assert_eq!(fixture.accounting(&container)["weight"], 3);
    host.annotate("c", Some("weight=1; second: weight=1,memory=1Gi"));
    host.condition("c", "Applied", "second has 1024 MiB, weight 1 of gpu-1");
    let accounting = fixture.accounting(&container);
    assert_eq!(accounting["weight"], 1);
    let limits = [0, 1].map(|at| accounting["gpus"][at]["limit"].as_u64());
    assert_eq!(limits, [Some(2 * GIB), Some(GIB)]);
    worker.finish();
}

#[test]
fn real_api_server_takes_the_outcome_of_a_resize() {
    let fixture = Fixture::new(real::GPUS);
    let test = "real_api_server_takes_the_outcome_of_a_resize";
    let Some(plane) = ControlPlane::start(test, &fixture.path("")) else { return };
    let _monitor = Monitor::start(&fixture);
    let _driver = driver(&fixture, &plane.kubeconfig(), &["--resize-interval", "1"]);
    let kubelet = DriverKubelet::new(&fixture.path("registry"));
    let info = fixture.eventually("the driver", || kubelet.register(DRIVER));
    plane.apply(&real::pod(0));
    let claim = fixture.eventually("a claim", || plane.claims().into_iter().find(is_allocated));
    let mut answers = kubelet.prepare(&info, &[&claim]).expect("an answer");
    answers.remove(uid(&claim)).expect("the claim").expect("prepared");
    let name = claim["metadata"]["name"].as_str().expect("a name");
    for (annotation, status, message) in [
        ("memory=1Gi", "True", "has 1024 MiB, weight 1 of"),
        ("memory=14Gi", "False", "make a new claim"),
        ("memory=13Gi", "True", "has 13312 MiB, weight 1 of"),
    ] {
        let annotation = format!("{ANNOTATION}={annotation}");
        plane
            .kubectl(&["annotate", "--overwrite", "resourceclaim", name, &annotation])
            .expect("annotated");
        until_holds(message, || {
            let condition = &plane.claims()[0]["status"]["devices"][0]["conditions"][0];
            let said = condition["message"].as_str().unwrap_or_default();
            condition["status"] == status && said.contains(message)
        });
    }
}
