//! GPUs of a node that others have, or that its administrator has taken out.

use cgpu_kubernetes_tests::cluster::{Cluster, NodeSpec, until};
use serde_json::{Value, json};

use crate::pod;

/// An administrator takes the node's four GPUs out, and another device plugin or driver has them. A
/// pod waits with the reason until they are given back.
#[test]
fn gpus_that_are_taken_out_get_no_pods() {
    let test = "gpus_that_are_taken_out_get_no_pods";
    let gpus = "T4:15109,T4:15109,T4:15109,T4:15109";
    let node = "gpu-node";
    let spec = NodeSpec { name: node, address: "192.168.1.214", gpus, is_claimed: false };
    let Some(cluster) = Cluster::start(test, &[spec]) else { return };
    let waits = |name: &str, reason: &str, cause: &str| {
        cluster.apply_text(&pod(name, "", "1", "  terminationGracePeriodSeconds: 1\n"));
        println!("{name}: {}", cluster.reported(name, reason));
        println!("{name}: {}", cluster.diagnosed(name, "never_fits"));
        let report = cluster.inspect(&["doctor", "--node", node, "--root", "/nonexistent"]).stdout;
        println!("{report}");
        assert_eq!(report.matches(&format!("({cause}")).count(), 4, "{report}");
    };
    let runs = |name: &str| {
        cluster.running(&format!("app={name}"), 1);
        cluster.kubectl(&["delete", "pod", name]).exits(0);
    };
    let has_no_units = || {
        until("the kubelet has no units", || {
            let node = cluster.object("node", "", node)?;
            (node["status"]["allocatable"]["aliyun.com/gpu-mem"] == "0").then_some(())
        });
    };
    let map = format!("unhealthy-gpu-{node}");
    let words = ["create", "configmap", &map, "-n", "kube-system", "--from-literal=gpus=0,1,2,3"];
    cluster.kubectl(&words).exits(0);
    waits("cordoned", "4/4 GPUs: unhealthy", "gpu_taken_out");
    cluster.kubectl(&["delete", "configmap", &map, "-n", "kube-system"]).exits(0);
    // The scheduler knows nothing of the map: the extender has it try the pod again.
    runs("cordoned");

    let plugin = |amount: &str| {
        let patch = format!(r#"{{"status":{{"capacity":{{"nvidia.com/gpu":{amount}}}}}}}"#);
        let words = ["patch", "node", node, "--subresource=status", "--type=merge", "-p", &patch];
        cluster.kubectl(&words).exits(0);
    };
    plugin(r#""4""#);
    println!("{}", cluster.reported(node, "the device plugin of nvidia.com/gpu"));
    has_no_units();
    waits("beside", "Insufficient aliyun.com/gpu-mem", "other_owner");
    plugin("null");
    runs("beside");

    let slice = slice_of_nvidias_driver(&cluster, node);
    cluster.apply_text(&slice);
    println!("{}", cluster.reported(node, "the driver gpu.nvidia.com"));
    has_no_units();
    waits("after", "Insufficient aliyun.com/gpu-mem", "other_owner");
    cluster.delete_text(&slice);
    runs("after");
}

/// Returns what NVIDIA's DRA driver publishes if it has all GPUs of a node, too.
fn slice_of_nvidias_driver(cluster: &Cluster, node: &str) -> String {
    let gpus = cluster.object("node", "", node).expect("the node");
    let gpus = gpus["metadata"]["annotations"]["cgpu.dev/gpus"].as_str().expect("an inventory");
    let gpus: Value = serde_json::from_str(gpus).expect("JSON");
    let gpus = gpus["gpus"].as_array().expect("an array");
    let device = |(index, gpu): (usize, &Value)| {
        let attributes = json!({"uuid": {"string": gpu["uuid"]}});
        json!({"name": format!("gpu-{index}"), "attributes": attributes})
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-gpu.nvidia.com")},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": gpus.iter().enumerate().map(device).collect::<Vec<_>>(),
        },
    })
    .to_string()
}
