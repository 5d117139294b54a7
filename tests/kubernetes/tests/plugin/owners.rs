//! Other owners of the node's GPUs, before the plugin starts and while it runs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use cgpu_e2e::Fixture;
use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use serde_json::{Value, json};

use crate::host::{Host, MEMORY, NODE};

const GPUS: &str = "T4:15109,T4:15109";
const HAMI_GPUS: &str = "nvidia.com/gpu";

/// Sets what the kubelet counts of a resource.
fn count(host: &Host<'_>, resource: &str, amount: &str) {
    let edited = host.server.edit(&Key::node(NODE), |node| {
        for amounts in ["capacity", "allocatable"] {
            node["status"][amounts][resource] = json!(amount);
        }
    });
    assert!(edited);
}

/// Waits for these other owners in the node's annotation.
fn wait_for_owners(host: &Host<'_>, owners: [Option<&str>; 2]) {
    host.fixture.eventually("the other owners on the node", || {
        let gpus = host.gpus();
        let found: Vec<Option<&str>> = gpus.iter().map(|gpu| gpu["other_owner"].as_str()).collect();
        (found == owners).then_some(())
    });
}

/// Waits for an event about the node, and returns its message.
fn event(host: &Host<'_>, contains: &str) -> String {
    let mut message = String::new();
    host.fixture.eventually("an event on the node", || {
        let events = host.server.objects("events");
        let of_node = |it: &&Value| {
            it["involvedObject"]["kind"] == "Node"
                && it["involvedObject"]["name"] == NODE
                && it["reason"] == "GpuOtherOwner"
                && it["type"] == "Warning"
        };
        let messages = events.iter().filter(of_node).filter_map(|it| it["message"].as_str());
        let found = messages.into_iter().find(|message| message.contains(contains))?;
        found.clone_into(&mut message);
        Some(())
    });
    message
}

/// NVIDIA's device plugin would give whole GPUs to pods while others share them.
#[test]
fn node_with_gpus_of_another_device_plugin_offers_no_units() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    count(&host, HAMI_GPUS, "1");
    let plugin = host.plugin(&[]);
    wait_for_owners(&host, [Some(HAMI_GPUS); 2]);
    // A plugin that does not wait registers within this time.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(host.kubelet.registrations(MEMORY), 0);
    let message = event(&host, "the device plugin of nvidia.com/gpu");
    assert!(message.contains("plugin.arguments={--disjoint-resources=nvidia.com/gpu}"));
    assert!(message.contains("devicePlugin.enabled=false"), "{message}");
    // As the kubelet leaves it when that plugin has ended.
    count(&host, HAMI_GPUS, "0");
    host.kubelet.offers(MEMORY, 28, 28);
    wait_for_owners(&host, [None; 2]);
    assert!(plugin.kill().stderr.contains(&message));
    // It has other GPUs.
    count(&host, "nvidia.com/mig-1g.10gb", "1");
    let known = host.kubelet.registrations(MEMORY);
    let _plugin = host.plugin(&["--disjoint-resources=nvidia.com/mig-1g.10gb"]);
    fixture
        .eventually("it registers", || (host.kubelet.registrations(MEMORY) > known).then_some(()));
    wait_for_owners(&host, [None; 2]);
}

#[test]
fn device_plugin_that_starts_later_stops_new_pods() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let earlier = host.pod("earlier", main, &json!({"0": {"0": 2}}));
    let admitted = host.admit(&earlier);
    host.create(&earlier, &admitted[0]);
    count(&host, HAMI_GPUS, "2");
    host.kubelet.offers(MEMORY, 0, 28);
    wait_for_owners(&host, [Some(HAMI_GPUS); 2]);
    event(&host, "the device plugin of nvidia.com/gpu");
    let later = host.pod("later", main, &json!({"0": {"1": 2}}));
    host.kubelet.admit(&later).unwrap_err();
    // A container of a pod that has its part already starts again.
    host.create(&earlier, &admitted[0]);
    count(&host, HAMI_GPUS, "0");
    host.kubelet.offers(MEMORY, 28, 28);
    let node = host.node();
    assert!(!node["metadata"]["annotations"]["cgpu.dev/gpus"].to_string().contains("other_owner"));
}

/// A driver says which GPUs it has, so the others stay.
#[test]
fn gpu_of_another_driver_takes_no_new_pods() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    let slice = |driver: &str, uuid: &str| {
        json!({"metadata": {"name": format!("{NODE}-{driver}")}, "spec": {
            "driver": driver, "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": uuid}}}]}})
    };
    // Other GPUs, and cgpu's own driver, whose claims are seen on the node.
    host.server.put("resourceslices", slice("gpu.example.com", "GPU-of-another"));
    host.server.put("resourceslices", slice("gpu.cgpu.dev", &host.uuid(0)));
    host.server.put("resourceslices", slice("gpu.nvidia.com", &host.uuid(1)));
    wait_for_owners(&host, [None, Some("gpu.nvidia.com")]);
    host.kubelet.offers(MEMORY, 14, 28);
    let message = event(&host, "the driver gpu.nvidia.com");
    assert!(message.contains("resources.gpus.enabled=false"), "{message}");
    let slices = Key::new("resourceslices", "", &format!("{NODE}-gpu.nvidia.com"));
    assert!(host.server.remove(&slices));
    wait_for_owners(&host, [None; 2]);
    host.kubelet.offers(MEMORY, 28, 28);
}

/// With HAMi's names both plugins have the resource `nvidia.com/gpu`, and the kubelet keeps that
/// of the plugin which registered last.
#[test]
fn device_plugin_of_nvidia_is_found_beside_hami_names() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let socket = fixture.path("plugins").join("nvidia-gpu.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let plugin = host.plugin(&["--hami"]);
    wait_for_owners(&host, [Some(HAMI_GPUS); 2]);
    // A plugin that does not wait registers within this time, and takes the resource.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(host.kubelet.registrations(HAMI_GPUS), 0);
    assert!(event(&host, HAMI_GPUS).contains("hami=false"));
    // It has ended, and has left its socket behind.
    drop(listener);
    host.kubelet.offers(HAMI_GPUS, 50, 50);
    wait_for_owners(&host, [None; 2]);
    // What the kubelet counts then is its own.
    count(&host, HAMI_GPUS, "50");
    fs::remove_file(&socket).expect("a socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    host.kubelet.offers(HAMI_GPUS, 0, 50);
    drop(listener);
    host.kubelet.offers(HAMI_GPUS, 50, 50);
    let _ = plugin.kill();
}

/// API servers before 1.34 do not serve slices.
#[test]
fn units_are_offered_where_no_slices_are_served() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    for code in [403, 404] {
        let refused = FaultAction::Refuse(code, "refused");
        host.server.fault(Fault::times(1, "GET", "/resourceslices", refused));
        let plugin = host.plugin(&[]);
        host.kubelet.offers(MEMORY, 14, 14);
        let _ = plugin.kill();
        host.kubelet.offers(MEMORY, 0, 14);
    }
}
