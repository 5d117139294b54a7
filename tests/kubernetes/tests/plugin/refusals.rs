//! Containers that must not start.

use std::fs;
use std::time::Duration;

use cgpu_e2e::Fixture;
use cgpu_kubernetes_tests::kubelet::Admitted;
use serde_json::{Value, json};

use crate::host::{Host, MEMORY, MIB, NODE, container, limits};

#[test]
fn pod_without_a_valid_claim_is_not_started() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let refused = |pod: &Value, admitted: &Admitted, why: &str| {
        let refusal = host.engine.create(pod, admitted).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    };
    let bypassed = host.pod("bypassed", main, &Value::Null);
    refused(
        &bypassed,
        &host.admit(&bypassed)[0],
        "container `main` of test/bypassed gets no slice of a GPU: no GPU was chosen for test/bypassed: it bypassed the scheduler extender",
    );
    // Amounts that do not agree, whichever was edited.
    let edited = host.pod("edited", main, &json!({"0": {"0": 3}}));
    refused(&edited, &host.admit(&edited)[0], "was given 3 units, but requests 2");
    let small = host.pod("small", main, &json!({"0": {"0": 2}}));
    let mut admitted = host.admit(&small)[0].clone();
    let larger = host.pod("larger", &[("main", &[(MEMORY, "3")])], &json!({"0": {"0": 3}}));
    let of_larger = host.admit(&larger);
    admitted.variables.clone_from(&of_larger[0].variables);
    admitted.devices.clone_from(&of_larger[0].devices);
    refused(&small, &admitted, "requests 2 units, but the kubelet counted 3 for it");
    let mut other = small.clone();
    other["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    refused(&other, &host.admit(&small)[0], "which was deleted");
    // The pod's author sets a limit, disables cgpu, or names another's slice: none of it counts.
    let mut willing =
        json!({"nodeName": NODE, "containers": [container("main", &[(MEMORY, "2")])]});
    willing["containers"][0]["env"] = json!([
        {"name": "CGPU_DISABLE", "value": "true"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "14"}, {"name": "CGPU_SLICE", "value": "a-2"}]);
    let willing = host.put("willing", &willing, &json!({"0": {"0": 2}}));
    let made = host.create(&willing, &host.admit(&willing)[0]);
    assert_eq!(limits(&made), [(host.uuid(0), 15109 * 2 / 14 * MIB)].into());
    // Variables alone are no claim on a node where claims are kept.
    let mut pending = json!({"nodeName": NODE, "containers": [container("main", &[])]});
    pending["containers"][0]["env"] =
        json!([{"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "2"}]);
    let pending = host.put("pending", &pending, &Value::Null);
    refused(&pending, &host.admit(&pending)[0], "set aliyun.com/gpu-mem");
    // An engine that starts containers by another runtime.
    let elsewhere = host.pod("elsewhere", main, &json!({"0": {"0": 2}}));
    let refusal =
        host.engine.create_by_another(&elsewhere, &host.admit(&elsewhere)[0]).unwrap_err();
    assert!(refusal.contains("but is not started by cgpu-runtime"), "{refusal}");
}

/// A program that starts containers past the kubelet can name any pod and any slice.
#[test]
fn slice_that_the_kubelet_gave_to_another_container_is_refused() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    let _plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let [one, other] = ["one", "other"].map(|name| host.pod(name, main, &json!({"0": {"0": 2}})));
    let admitted = [&one, &other].map(|pod| host.admit(pod)[0].clone());
    let refusal = host.engine.create(&one, &admitted[1]).unwrap_err();
    assert!(refusal.contains("the kubelet has not given the slice"), "{refusal}");
    for (pod, admitted) in [&other, &one].into_iter().zip([&admitted[1], &admitted[0]]) {
        assert_eq!(
            limits(&host.create(pod, admitted)),
            [(host.uuid(0), 15109 * 2 / 14 * MIB)].into()
        );
    }
}

/// The label of a node was changed while pods of the other engine run.
#[test]
fn node_with_prepared_claims_offers_no_units() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    let shares = fixture.root().join("shares");
    fs::create_dir_all(&shares).expect("a folder");
    fs::write(shares.join("u-0"), "version 1\n").expect("a limits file");
    let plugin = host.plugin(&[]);
    fixture.eventually("the plugin reads its node", || {
        host.server.journal().iter().any(|it| it.path.ends_with("/nodes")).then_some(())
    });
    // A plugin that does not wait registers within this time.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(host.kubelet.registrations(MEMORY), 0);
    assert_eq!(host.gpus(), Vec::<Value>::new());
    fs::remove_file(shares.join("u-0")).expect("unprepared");
    host.kubelet.offers(MEMORY, 14, 14);
    let told = plugin.kill().stderr;
    assert!(told.contains("claims are prepared on this node"), "{told}");
}
