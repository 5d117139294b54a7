//! The examples of claims.

use cgpu_kubernetes_tests::cluster::{Cluster, NodeSpec, until};
use serde_json::Value;

use crate::{MIB, example};

/// Two GPUs below one PCIe root, and one that is partitioned.
const CLAIMED: &str = "A100:40960,A100:40960,A100:40960/mig=3g.20gb,1g.5gb";

/// The examples of claims: of each container its pod and name, the sizes of its GPUs in MiB, and
/// its weight.
type Claimed = (&'static str, &'static str, &'static [u64], u32);
const CLAIMS: [(&str, &[Claimed]); 6] = [
    ("memory", &[("trainer", "trainer", &[6144], 1)]),
    ("weights", &[("slow", "slow", &[4096], 1), ("fast", "fast", &[4096], 3)]),
    ("two-gpus", &[("both", "both", &[6144, 6144], 2)]),
    ("whole-gpu", &[("alone", "alone", &[40960], 1), ("beside", "beside", &[2048], 1)]),
    ("mig", &[("mig", "mig", &[5120], 1)]),
    (
        "shared-claim",
        &[
            ("first", "server", &[8192], 2),
            ("first", "helper", &[8192], 2),
            ("second", "second", &[8192], 2),
        ],
    ),
];

fn claimed_example(cluster: &Cluster, file: &str) -> String {
    let text = std::fs::read_to_string(example(&format!("dra/{file}.yaml"))).expect("an example");
    let text = text.replace("image: IMAGE", "image: cheyang/gpu-player:v2");
    cluster.apply_text(&text);
    text
}

/// Waits until all containers of a pod are ready.
fn is_ready(cluster: &Cluster, name: &str) {
    until(&format!("{name} is ready"), || {
        let pod = cluster.object("pod", "default", name)?;
        let conditions = pod["status"]["conditions"].as_array()?;
        conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True").then_some(())
    });
}

fn inside(cluster: &Cluster, pod: &str, container: &str, command: &[&str]) -> String {
    let words = [&["exec", pod, "-c", container, "--"][..], command].concat();
    cluster.kubectl(&words).exits(0).stdout
}

/// Returns the sizes of a container's GPUs in MiB, and its weight.
fn limits(cluster: &Cluster, pod: &str, container: &str) -> (Vec<u64>, u32) {
    let text = inside(cluster, pod, container, &["cat", "/run/cgpu/limits"]);
    let lines = || text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let gpus = lines().filter(|line| line[0] == "gpu").map(|line| number(line[2]) / MIB).collect();
    let weight = lines().find(|line| line[0] == "weight").map_or(1, |line| number(line[1]));
    (gpus, u32::try_from(weight).expect("a weight"))
}

fn claims(cluster: &Cluster) -> Vec<Value> {
    let printed = cluster.kubectl(&["get", "resourceclaims", "-o", "json"]).exits(0);
    let list: Value = serde_json::from_str(&printed.stdout).expect("JSON");
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Waits until every device of every claim has this field in its status.
fn is_reported(cluster: &Cluster, field: &str) {
    data_is(cluster, field, |data| data[field].is_number());
}

/// Waits until this holds of the data of each device of each claim.
fn data_is(cluster: &Cluster, what: &str, is_it: impl Fn(&Value) -> bool) {
    until(&format!("claims have {what}"), || {
        let devices: Option<Vec<Value>> = claims(cluster)
            .iter()
            .map(|claim| claim["status"]["devices"].as_array().cloned())
            .collect::<Option<Vec<_>>>()
            .map(|lists| lists.concat());
        devices?.iter().all(|device| is_it(&device["data"])).then_some(())
    });
}

/// Deletes what a text describes, and waits until nothing of it is left on the node.
fn is_gone(cluster: &mut Cluster, node: &str, text: &str) {
    cluster.delete_text(text);
    until("no claim is left", || claims(cluster).is_empty().then_some(()));
    let node = cluster.node(node);
    until("nothing is left on the node", || {
        let folders = ["/run/cgpu/shares", "/run/cgpu/containers", "/var/run/cdi"];
        let listed = node.run("find", &[&folders[..], &["-mindepth", "1"]].concat());
        listed.stdout.is_empty().then_some(())
    });
}

/// Returns how many kernels programs in both pods complete in the same 20 s, less than 5 s apart.
fn launches(cluster: &Cluster, pods: [&str; 2]) -> [u64; 2] {
    let script = "(printf 'run 5\\nrun 20\\nrun 5\\n' | worker 1000) > /tmp/ran 2>&1 &";
    for pod in pods {
        inside(cluster, pod, pod, &["sh", "-c", script]);
    }
    pods.map(|pod| {
        until("the program ends", || {
            let text = inside(cluster, pod, pod, &["cat", "/tmp/ran"]);
            let lines: Vec<&str> = text.lines().collect();
            let [_ready, _first, both, _last] = lines[..] else { return None };
            serde_json::from_str::<Value>(both).expect("JSON")["launches"].as_u64()
        })
    })
}

#[test]
fn examples_of_claims_run_as_they_claim() {
    let node = "claimed";
    let node_spec =
        NodeSpec { name: node, address: "192.168.1.214", gpus: CLAIMED, is_claimed: true };
    let test = "examples_of_claims_run_as_they_claim";
    let Some(mut cluster) = Cluster::start(test, &[node_spec]) else { return };
    for (file, containers) in CLAIMS {
        let text = claimed_example(&cluster, file);
        for (pod, container, sizes, weight) in containers {
            is_ready(&cluster, pod);
            let expected = (sizes.to_vec(), *weight);
            assert_eq!(limits(&cluster, pod, container), expected, "{file}: {pod}");
        }
        is_reported(&cluster, "memoryUsedBytes");
        // The simulated driver of a cluster has no limits for control groups.
        data_is(&cluster, "wall", |data| data["wall"] == "shim" && data["wallReason"].is_string());
        if file == "weights" {
            let [slow, fast] = launches(&cluster, ["slow", "fast"]);
            println!("slow {slow}, fast {fast}");
            // Three times as much, if the programs need not wait for a processor. A busy machine
            // has had from 1.9 to 4.9: a turn is partly over before they launch.
            assert!(fast > slow, "slow {slow}, fast {fast}");
            is_reported(&cluster, "measuredSharePercent");
        }
        is_gone(&mut cluster, node, &text);
    }
}

/// A claim of two containers and two pods, through restarts of everything on the node.
#[test]
fn shared_claim_survives_restarts() {
    let node = "claimed";
    let node_spec =
        NodeSpec { name: node, address: "192.168.1.214", gpus: CLAIMED, is_claimed: true };
    let Some(mut cluster) = Cluster::start("shared_claim_survives_restarts", &[node_spec]) else {
        return;
    };
    let text = claimed_example(&cluster, "shared-claim");
    let containers = [("first", "server"), ("first", "helper"), ("second", "second")];
    let same = |cluster: &Cluster, after: &str| {
        for (pod, container) in containers {
            is_ready(cluster, pod);
            assert_eq!(limits(cluster, pod, container), (vec![8192], 2), "{pod} after {after}");
        }
    };
    same(&cluster, "the start");
    let free = |cluster: &Cluster| {
        let printed = inside(cluster, "second", "second", &["meminfo"]);
        let first = printed.lines().next().expect("a GPU");
        serde_json::from_str::<Value>(first).expect("JSON")["free"].as_u64().expect("a number")
    };
    let idle = free(&cluster);
    let hold = "(sleep 600 | hold 1000M 600) > /tmp/held 2>&1 & sleep 2";
    for (pod, container) in containers {
        inside(&cluster, pod, container, &["sh", "-c", hold]);
    }
    until("three containers hold memory", || (free(&cluster) + 3000 * MIB < idle).then_some(()));

    cluster.node(node).stop_containerd();
    cluster.node(node).start_containerd();
    cluster.node(node).stop_kubelet();
    cluster.node(node).start_kubelet();
    let driver = "app.kubernetes.io/name=cgpu-dra-driver";
    cluster.kubectl(&["delete", "pods", "-n", "kube-system", "-l", driver]).exits(0);
    same(&cluster, "new engine, kubelet and driver");

    // The memory of a container that ends is free, while the others with its file go on.
    let _ = cluster.kubectl(&["exec", "first", "-c", "helper", "--", "sh", "-c", "kill -TERM 1"]);
    until("its container is replaced", || {
        let pod = cluster.object("pod", "default", "first")?;
        let statuses = pod["status"]["containerStatuses"].as_array()?;
        statuses.iter().any(|status| status["restartCount"] == 1).then_some(())
    });
    same(&cluster, "another container");
    // Each also has a context.
    until("its memory is free", || (free(&cluster) + 2900 * MIB > idle).then_some(()));
    assert!(free(&cluster) + 2000 * MIB < idle, "the others' memory is free");
    is_gone(&mut cluster, node, &text);
}
