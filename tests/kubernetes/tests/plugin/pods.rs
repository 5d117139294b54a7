//! Pods from the extender to their programs.

use std::collections::BTreeMap;

use cgpu_e2e::{Fixture, OciHost, Runtime};
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::extender::Extender;
use cgpu_kubernetes_tests::objects;
use cgpu_kubernetes_tests::wait::until_holds;
use serde_json::{Value, json};

use crate::host::{COUNT, Host, MEMORY, MIB, NODE, limits};

/// Document 001's four deployments, from the extender to the limits.
#[test]
fn containers_get_what_the_extender_chose() {
    let fixture = Fixture::new("T4:15109,T4:15109");
    let host = Host::new(&fixture, "T4:15109,T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 28, 28);
    host.fixture.eventually("the GPUs on the node", || (host.gpus().len() == 2).then_some(()));
    let extender = Extender::start(&host.server, &fixture.path(""), &[] as &[&str]);
    let mut over_both = objects::pod("test", "both", 2);
    over_both["metadata"]["labels"][COUNT] = json!("2");
    let named = [("a", 2), ("b-0", 8), ("b-1", 8), ("c", 2), ("d", 5)];
    let pods = named.map(|(name, units)| objects::pod("test", name, units));
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    for pod in pods.into_iter().chain([over_both]) {
        let pod = host.server.put("pods", pod);
        let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
        until_holds("the extender knows the node", || {
            extender.filter(&pod, &[NODE])["NodeNames"]
                .as_array()
                .is_some_and(|nodes| !nodes.is_empty())
        });
        let reply = extender.bind(&pod, NODE);
        assert_eq!(reply.status, 200, "{reply:?}");
        let pod = host.server.object(&Key::pod("test", &name)).expect("the pod");
        let made = host.create(&pod, &host.admit(&pod)[0]);
        for (gpu, bytes) in limits(&made) {
            *held.entry(gpu).or_default() += bytes / MIB;
        }
    }
    let part = |units: &[u64]| units.iter().map(|units| 15109 * units / 14).sum::<u64>();
    assert_eq!(
        held,
        [(host.uuid(0), part(&[2, 8, 2, 1])), (host.uuid(1), part(&[8, 5, 1]))].into(),
    );
}

/// A container that runs, where runc is installed.
#[test]
fn program_sees_its_slice() {
    const GPUS: &str = "T4:15109";
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture, GPUS);
    let Some(oci) = OciHost::open("program_sees_its_slice", &fixture, Runtime::Runc, GPUS) else {
        return;
    };
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "6")])], &json!({"0": {"0": 6}}));
    let reported =
        host.engine.configuration(&pod, &host.admit(&pod)[0]).expect("devices that are there");
    let bundle = oci.bundle("p", &[], &["sleep", "600"]);
    let file = bundle.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    for part in ["annotations", "hooks"] {
        config[part] = reported[part].clone();
    }
    config["process"]["env"] = reported["process"]["env"].clone();
    std::fs::write(&file, config.to_string()).expect("a file");
    let container = oci.start_bundle("p", &bundle);
    assert_eq!(container.exec(&["meminfo"]).silent().number("total"), 15109 * 6 / 14 * MIB);
    container.delete();
}
