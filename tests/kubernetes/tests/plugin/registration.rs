//! The plugin's registration with the kubelet, and restarts of either.

use cgpu_e2e::{Fixture, Outcome};
use serde_json::json;

use crate::host::{Host, MEMORY, MIB, limits};

#[test]
fn units_beyond_the_message_limit_are_refused() {
    let gpus = |count: usize| vec!["A100:81920"; count].join(",");
    let fixture = Fixture::new(&gpus(2));
    let host = Host::new(&fixture, &gpus(2));
    let plugin = host.plugin(&["--memory-unit", "MiB"]);
    host.kubelet.offers(MEMORY, 163_840, 163_840);
    let pod = host.pod("p", &[("main", &[(MEMORY, "20000")])], &json!({"0": {"1": 20000}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(limits(&made), [(host.uuid(1), 20000 * MIB)].into());
    drop(plugin);

    let fixture = Fixture::new(&gpus(8));
    let host = Host::new(&fixture, &gpus(8));
    let outcome = Outcome::of(host.command(&["--memory-unit", "MiB"])).exits(1);
    assert!(
        outcome.stderr.contains(
            "the node's 8 GPUs have 655360 units of MiB, whose message of 12403852 bytes exceeds the kubelet's limit of 4194304; count in units of 128MiB instead"
        ),
        "{outcome:?}"
    );
    assert_eq!(host.kubelet.registrations(MEMORY), 0);
    let _plugin = host.plugin(&["--memory-unit", "128MiB"]);
    host.kubelet.offers(MEMORY, 5120, 5120);
    let pod = host.pod("p", &[("main", &[(MEMORY, "24")])], &json!({"0": {"7": 24}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    assert_eq!(limits(&made), [(host.uuid(7), 24 * 128 * MIB)].into());
}

#[test]
fn restart_of_kubelet_or_plugin_keeps_slices() {
    let fixture = Fixture::new("T4:15109");
    let mut host = Host::new(&fixture, "T4:15109");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let main: &[(&str, &[(&str, &str)])] = &[("main", &[(MEMORY, "2")])];
    let old = host.pod("old", main, &json!({"0": {"0": 2}}));
    let of_old = host.admit(&old);
    host.create(&old, &of_old[0]);
    let waiting = host.pod("waiting", main, &json!({"0": {"0": 2}}));
    let of_waiting = host.admit(&waiting);

    host.kubelet.restart();
    host.kubelet.offers(MEMORY, 14, 14);
    assert_eq!(host.kubelet.registrations(MEMORY), 2);
    assert_eq!(host.admit(&old), of_old);
    // Only its socket was removed.
    std::fs::remove_file(fixture.path("plugins/cgpu-mem.sock")).expect("the plugin's socket");
    host.fixture.eventually("the plugin registers again", || {
        (host.kubelet.registrations(MEMORY) == 3).then_some(())
    });
    host.kubelet.offers(MEMORY, 14, 14);

    // The next plugin reads the allocations from the pods.
    host.wait_for_annotation("old", "ALIYUN_COM_GPU_MEM_ASSIGNED", "true");
    plugin.kill();
    host.fixture.eventually("the kubelet's knowledge", || {
        (host.kubelet.offer(MEMORY)?.healthy == 0).then_some(())
    });
    let refusal = host.engine.create(&waiting, &of_waiting[0]).unwrap_err();
    assert!(refusal.contains("the node's device plugin does not answer at"), "{refusal}");
    let plugin = host.plugin(&[]);
    host.kubelet.offers(MEMORY, 14, 14);
    host.create(&waiting, &of_waiting[0]);
    host.create(&old, &of_old[0]);
    let thief = host.pod("thief", main, &json!({"0": {"0": 2}}));
    let mut stolen = host.admit(&thief)[0].clone();
    stolen.variables.clone_from(&of_old[0].variables);
    stolen.devices.clone_from(&of_old[0].devices);
    let refusal = host.engine.create(&thief, &stolen).unwrap_err();
    assert!(refusal.contains("belongs to container `main` of pod"), "{refusal}");

    // SIGTERM leaves no files.
    plugin.signal(15);
    assert_eq!(plugin.end().code(), Some(0));
    for left in [
        fixture.path("plugins/cgpu-mem.sock"),
        fixture.path("plugins/cgpu-core.sock"),
        fixture.root().join("plugin.sock"),
    ] {
        assert!(!left.exists(), "{} is left", left.display());
    }
}
