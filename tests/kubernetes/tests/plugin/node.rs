//! The node at the API server, and an API server that is down.

use std::fs;
use std::os::unix::fs::symlink;

use cgpu_e2e::Fixture;
use cgpu_kubernetes_tests::api_server::Key;
use serde_json::{Value, json};

use crate::host::{CORE, COUNT, Host, MEMORY, NODE};

#[test]
fn labels_decide_what_is_offered() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::labelled(&fixture, "T4:15109", &json!({"ack.node.gpu.schedule": "cgpu"}));
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    host.kubelet.offers(CORE, 0, 0);
    let label = |labels: Value| {
        assert!(host.server.edit(&Key::node(NODE), |node| node["metadata"]["labels"] = labels));
    };
    label(json!({"ack.node.gpu.schedule": "topology"}));
    host.kubelet.offers(MEMORY, 0, 0);
    label(json!({"gpushare": "false"}));
    host.kubelet.offers(CORE, 0, 0);
    label(json!({"gpushare": "true", "cgpu.disable.isolation": "true"}));
    host.kubelet.offers(MEMORY, 14, 14);
    host.kubelet.offers(CORE, 100, 100);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(made.limits, None);
    assert_eq!(made.variables["CGPU_DISABLE"], "true");
    assert_eq!(made.variables["NVIDIA_VISIBLE_DEVICES"], host.uuid(0));

    // What is removed from the node by hand is written again.
    let edited = host.server.edit(&Key::node(NODE), |node| {
        node["metadata"]["annotations"] = json!({});
        node["status"]["allocatable"] = json!({});
    });
    assert!(edited);
    host.fixture.eventually("the GPUs on the node", || {
        (host.gpus().len() == 1 && host.node()["status"]["allocatable"][COUNT] == "1").then_some(())
    });
}

#[test]
fn containers_start_while_the_api_server_is_down() {
    let fixture = Fixture::new("T4:15109");
    let mut host = Host::new(&fixture, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    let admitted = host.admit(&pod);
    host.create(&pod, &admitted[0]);
    host.wait_for_annotation("p", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    host.server.close();
    host.create(&pod, &admitted[0]);
    host.server.reopen();
    let other = host.pod("q", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    host.create(&other, &host.admit(&other)[0]);
    host.wait_for_annotation("q", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
}

/// From NVML and the kernel's folder of PCI devices.
#[test]
fn products_and_places_of_gpus_are_on_the_node() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let folder = fixture.path("sys");
    let links = folder.join("pci");
    fs::create_dir_all(&links).expect("a folder");
    for (bus, numa) in [("07", "0"), ("08", "1")] {
        let address = format!("0000:{bus}:00.0");
        let device = folder.join(format!("devices/pci0000:{bus}")).join(&address);
        fs::create_dir_all(&device).expect("a folder");
        fs::write(device.join("numa_node"), numa).expect("a file");
        symlink(&device, links.join(&address)).expect("a link");
    }
    let _plugin = host.plugin(&["--pci-devices", links.to_str().expect("a path")]);
    let expected = [("Tesla T4", 0, "pci0000:07"), ("NVIDIA A10", 1, "pci0000:08")];
    fixture.eventually("products and places", || {
        let gpus = host.gpus();
        let is_known = |(gpu, (product, numa, root)): (&Value, &(&str, i32, &str))| {
            gpu["product"] == *product && gpu["numa_node"] == *numa && gpu["pcie_root"] == *root
        };
        (gpus.len() == 2 && gpus.iter().zip(&expected).all(is_known)).then_some(())
    });
}

#[test]
fn place_of_simulated_gpus_is_that_of_their_list() {
    let list = "T4:15109@0.1,T4:15109@1.2";
    let fixture = Fixture::new(list);
    let host = Host::new(&fixture, list);
    let _plugin = host.plugin(&[]);
    fixture.eventually("the places", || {
        let gpus = host.gpus();
        let is_known = |(gpu, (numa, root)): (&Value, (i32, &str))| {
            gpu["numa_node"] == numa && gpu["pcie_root"] == root
        };
        let expected = [(0, "pci0000:01"), (1, "pci0000:0a")];
        (gpus.len() == 2 && gpus.iter().zip(expected).all(is_known)).then_some(())
    });
}
