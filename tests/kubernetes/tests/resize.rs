//! A real control plane, kubelet and containerd with a simulated GPU, where the environment names
//! the programs (`docs/internals/testing.md`): a running pod is resized, and keeps its room when it
//! is deleted by force.

use std::time::Instant;

use cgpu_e2e::Child;
use cgpu_kubernetes_tests::cluster::{Cluster, NodeSpec, until};
use serde_json::{Value, json};

const NODE: &str = "gpu-node";
const MIB: u64 = 1 << 20;
/// A T4's allocatable memory in MiB, of 14 units.
const T4: u64 = 15109;
/// What the pod requests of the GPU's compute.
const PERCENT: u64 = 30;
/// The argument of the container's first process, which no signal but KILL ends.
const LONG: &str = "86399";

fn pod(name: &str, units: u64, command: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 800, "containers": [{
            "name": "main", "image": "cheyang/gpu-player:v2", "command": ["sh", "-c", command],
            "resources": {"limits": {"aliyun.com/gpu-mem": units}},
        }]},
    })
}

/// A `worker` in a pod.
struct Worker(Child);

impl Worker {
    fn start(cluster: &Cluster, pod: &str) -> Self {
        let mut child = cluster.start_in_pod(pod, &["worker", "1000"]);
        assert_eq!(child.answer(), r#"{"ready": true}"#);
        Self(child)
    }

    fn answers(&mut self, command: &str) -> Value {
        self.0.write(&format!("{command}\n"));
        serde_json::from_str(&self.0.answer()).expect("JSON")
    }

    fn number(&mut self, command: &str, key: &str) -> u64 {
        let answer = self.answers(command);
        answer[key].as_u64().unwrap_or_else(|| panic!("{key} in {answer}"))
    }

    /// Waits until the program sees a GPU of this size.
    fn sees(&mut self, mib: u64) {
        until(&format!("a GPU of {mib} MiB"), || {
            (self.number("info", "total") == mib * MIB).then_some(())
        });
    }
}

fn annotation(cluster: &Cluster, kind: &str, name: &str, annotation: &str) -> Value {
    let namespace = if kind == "pod" { "default" } else { "" };
    let object = cluster.object(kind, namespace, name).expect("the object");
    let text = object["metadata"]["annotations"][annotation].as_str().unwrap_or("null");
    serde_json::from_str(text).expect("JSON")
}

fn resize(cluster: &Cluster, text: &str) -> Instant {
    let start = Instant::now();
    let words = ["annotate", "--overwrite", "pod", "trainer", &format!("cgpu.dev/resize{text}")];
    cluster.kubectl(&words).exits(0);
    start
}

/// Waits for the answer to an annotation, and for its event, and returns the message.
fn answer(cluster: &Cluster, text: &str, outcome: &str, reason: &str) -> String {
    let status = until(&format!("{outcome}: {text}"), || {
        let status = annotation(cluster, "pod", "trainer", "cgpu.dev/resize-status");
        (status["resize"] == text && status["outcome"] == outcome).then_some(status)
    });
    let message = status["message"].as_str().expect("a message");
    let event = cluster.reported("trainer", message);
    assert_eq!(event, format!("{reason}: {message}"));
    println!("{event}");
    message.to_owned()
}

/// Returns weight and percent of the only container, by the monitor of the node.
fn shares(cluster: &mut Cluster) -> [Value; 2] {
    let printed = cluster.node(NODE).run("cgpu", &["smi", "--json"]).exits(0).stdout;
    let status: Value = serde_json::from_str(&printed).expect("JSON");
    ["weight", "percent"].map(|share| status["containers"][0][share].clone())
}

/// Changes the shares of a running program, under policy 3 its pace with them.
fn weight_and_percent_change(cluster: &mut Cluster, worker: &mut Worker) {
    cluster.node(NODE).run("cgpu", &["set", "0/policy", "3"]).exits(0);
    assert_eq!(shares(cluster), [json!(1), json!(PERCENT)]);
    let before = worker.number("run 5", "launches");
    let text = "weight=3,percent=10";
    let start = resize(cluster, &format!("={text}"));
    until("other shares", || (shares(cluster) == [json!(3), json!(10)]).then_some(()));
    println!("other shares after {:?}", start.elapsed());
    let message = answer(cluster, text, "Applied", "GpuResized");
    assert!(message.ends_with("weight 3, 10 % of the compute"), "{message}");
    let after = worker.number("run 5", "launches");
    println!("{before} launches with {PERCENT} %, {after} with 10 %");
    assert!(after < before, "{before}, {after}");
    resize(cluster, "=weight=21,percent=10");
    let message = answer(cluster, "weight=21,percent=10", "Refused", "GpuResizeRefused");
    assert!(message.contains("GPU 0 has 20 left for it"), "{message}");
    assert_eq!(shares(cluster), [json!(3), json!(10)]);
    resize(cluster, "-");
    until("what it requested", || (shares(cluster) == [json!(1), json!(PERCENT)]).then_some(()));
    cluster.node(NODE).run("cgpu", &["set", "0/policy", "1"]).exits(0);
}

#[test]
fn running_pod_is_resized_and_holds_its_room_when_deleted_by_force() {
    let test = "running_pod_is_resized_and_holds_its_room_when_deleted_by_force";
    let node_spec =
        NodeSpec { name: NODE, address: "192.168.1.214", gpus: "T4:15109", is_claimed: false };
    let Some(mut cluster) = Cluster::start(test, &[node_spec]) else { return };
    let stays = format!("trap '' TERM; while :; do sleep {LONG}; done");
    let mut trainer = pod("trainer", 6, &stays);
    trainer["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] =
        json!(PERCENT);
    cluster.apply_text(&trainer.to_string());
    cluster.running("app=trainer", 1);
    let requested = T4 * 6 / 14;
    let mut launching = Worker::start(&cluster, "trainer");
    let mut worker = Worker::start(&cluster, "trainer");
    worker.sees(requested);
    weight_and_percent_change(&mut cluster, &mut worker);
    launching.0.write("run 20\n");
    let sizes = || annotation(&cluster, "pod", "trainer", "cgpu.dev/sizes");

    // Less than it uses: refused, or once it uses less.
    let granted = worker.number("fill", "granted");
    assert!((4096 * MIB..requested * MIB).contains(&granted), "{granted}");
    resize(&cluster, "=memory=2Gi");
    let told = answer(&cluster, "memory=2Gi", "Refused", "GpuResizeRefused");
    assert!(told.contains("of GPU 0, more than 2048 MiB"), "{told}");
    assert_eq!((worker.number("info", "total"), sizes()), (requested * MIB, Value::Null));
    resize(&cluster, "=memory=2Gi,shrink=wait");
    answer(&cluster, "memory=2Gi,shrink=wait", "Waiting", "GpuResizeWaits");
    assert_eq!(worker.number("info", "total"), requested * MIB);
    worker.answers("free");
    let start = Instant::now();
    worker.sees(2048);
    println!("shrunk {:?} after the memory was free", start.elapsed());
    answer(&cluster, "memory=2Gi,shrink=wait", "Applied", "GpuResized");
    let granted = worker.number("fill", "granted");
    assert!((1024 * MIB..2048 * MIB).contains(&granted), "{granted}");

    // More than it requested, while the memory of the old limit is full.
    let start = resize(&cluster, "=memory=10Gi,grow=true");
    worker.sees(10240);
    println!("grown after {:?}", start.elapsed());
    answer(&cluster, "memory=10Gi,grow=true", "Applied", "GpuResized");
    let more = worker.number("fill", "granted");
    assert!((7000 * MIB..10240 * MIB).contains(&(granted + more)), "{granted} + {more}");
    assert_eq!(sizes(), json!({"main": {"memory": 10240}}));
    worker.answers("free");
    let start = resize(&cluster, "=memory=9Gi,grow=true");
    worker.sees(9216);
    println!("shrunk after {:?}", start.elapsed());
    answer(&cluster, "memory=9Gi,grow=true", "Applied", "GpuResized");

    // The scheduler counts 6 of 14 units, and the extender what it has grown into.
    cluster.apply_text(&pod("large", 6, &stays).to_string());
    println!("{}", cluster.reported("large", "1/1 GPUs: 5 of 6 units free"));
    cluster.kubectl(&["delete", "pod", "large"]).exits(0);
    cluster.apply_text(&pod("other", 4, "trap 'exit 0' TERM; sleep 1000 & wait").to_string());
    cluster.running("app=other", 1);
    resize(&cluster, "=memory=12Gi,grow=true");
    let told = answer(&cluster, "memory=12Gi,grow=true", "Refused", "GpuResizeRefused");
    assert!(told.contains("no room on GPU 0: the pod would hold 12 of 14 units"), "{told}");
    assert_eq!(sizes(), json!({"main": {"memory": 9216}}));
    assert_eq!(worker.number("info", "total"), 9216 * MIB);
    let launches = launching.0.answer();
    println!("while it was resized: {launches}");
    let launches: Value = serde_json::from_str(&launches).expect("JSON");
    assert!(launches["launches"].as_u64() > Some(0), "{launches}");
    cluster.kubectl(&["delete", "pod", "other"]).exits(0);

    // A container that restarts has its size.
    let process = format!("[d]o sleep {LONG}");
    let kill = ["-KILL", "-f", &process];
    cluster.node(NODE).run("pkill", &kill).exits(0);
    until("its container is replaced", || {
        let pod = cluster.object("pod", "default", "trainer")?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["ready"] == true).then_some(())
    });
    let mut worker = Worker::start(&cluster, "trainer");
    worker.sees(9216);

    // Deleted by force, it has no object, and its container lives.
    let uid = cluster.object("pod", "default", "trainer").expect("the pod")["metadata"]["uid"]
        .as_str()
        .expect("a uid")
        .to_owned();
    let held = |cluster: &Cluster| {
        let mut held = annotation(cluster, "node", NODE, "cgpu.dev/held")[&uid].clone();
        // What holds its limits depends on the driver.
        if let Some(fields) = held.as_object_mut() {
            fields.retain(|name, _| ["pod", "gpus"].contains(&name.as_str()));
        }
        held
    };
    let expected = json!({
        "pod": "default/trainer", "gpus": {"0": {"mib": 9216, "percent": PERCENT, "containers": 1}},
    });
    until("the node reports it", || (held(&cluster) == expected).then_some(()));
    // The kubelet has the container killed after two seconds, whatever the grace period of its pod:
    // containerd's shim for it stands still meanwhile.
    let find = format!("ps -o ppid= -p $(pgrep -o -f '{process}')");
    let shim = cluster.node(NODE).run("sh", &["-c", &find]).exits(0).stdout;
    let signal = |name: &str| format!("kill -{name} {}", shim.trim());
    cluster.node(NODE).run("sh", &["-c", &signal("STOP")]).exits(0);
    cluster.kubectl(&["delete", "pod", "trainer", "--grace-period=0", "--force"]).exits(0);
    assert!(cluster.object("pod", "default", "trainer").is_none());
    cluster.apply_text(&pod("next", 12, &stays).to_string());
    println!("{}", cluster.reported("next", "1/1 GPUs: 5 of 12 units free"));
    cluster.node(NODE).run("pgrep", &["-f", &process]).exits(0);
    assert_eq!(held(&cluster), expected);
    let next = cluster.object("pod", "default", "next").expect("the pod");
    assert!(next["spec"]["nodeName"].is_null(), "{next:#}");
    let start = Instant::now();
    cluster.node(NODE).run("pkill", &kill).exits(0);
    cluster.node(NODE).run("sh", &["-c", &signal("CONT")]).exits(0);
    until("nothing is held", || held(&cluster).is_null().then_some(()));
    println!("its room is free {:?} after its container was killed", start.elapsed());
    cluster.running("app=next", 1);
    println!("the next pod runs {:?} after it", start.elapsed());
    assert_eq!(cluster.totals("next"), [T4 * 12 / 14 * MIB]);
}
