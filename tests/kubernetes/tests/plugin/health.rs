//! Errors of GPUs, as NVML reports them.

use cgpu_e2e::{Child, Fixture};
use serde_json::json;

use crate::host::{CORE, Host, MEMORY, MIB, limits};

#[test]
fn gpu_with_an_error_is_unhealthy_until_it_is_quiet() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let plugin = host.plugin(&["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 36, 36);
    // A page fault is a program's own error; an uncorrected memory error is not.
    host.report("0", "31");
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 36);
    host.kubelet.offers(CORE, 100, 200);
    host.wait_for_health([true, false]);
    // The next plugin takes over the recorded errors, and clears them when the GPU was quiet.
    plugin.kill();
    let registrations = host.kubelet.registrations(MEMORY);
    let plugin = host.plugin(&["--recovery", "3600"]);
    host.fixture.eventually("another registration", || {
        (host.kubelet.registrations(MEMORY) > registrations).then_some(())
    });
    host.kubelet.offers(MEMORY, 14, 36);
    plugin.kill();
    let _plugin = host.plugin(&["--recovery", "1"]);
    host.kubelet.offers(MEMORY, 36, 36);
    host.wait_for_health([true, true]);
}

#[test]
fn lost_gpu_leaves_errors_of_others_visible() {
    let fixture = Fixture::new("T4:15109,A10:23028,T4:15109");
    let host = Host::new(&fixture, "T4:15109,A10:23028,T4:15109");
    let mut command = host.command(&["--recovery", "3600"]);
    // The first wait reports the loss. The first GPU's UUID and events then fail: with three GPUs
    // those are the fourth calls.
    command.env(
        "CGPU_SIM_FAULT",
        "nvmlEventSetWait*:1:NVML_ERROR_GPU_IS_LOST,nvmlDeviceGetUUID:4+:NVML_ERROR_GPU_IS_LOST,nvmlDeviceRegisterEvents:4:NVML_ERROR_GPU_IS_LOST",
    );
    let _plugin = Child::start_for(command, fixture.lifetime());
    host.kubelet.offers(MEMORY, 50, 50);
    let healthy = || host.gpus().iter().map(|gpu| gpu["healthy"] == true).collect::<Vec<_>>();
    host.fixture.eventually("the last GPU's error", || {
        host.report("2", "48");
        (healthy() == [true, true, false]).then_some(())
    });
    // A second registration succeeds, so its errors are reported beside the others'.
    host.fixture.eventually("the first GPU's error", || {
        host.report("0", "48");
        (healthy() == [false, true, false]).then_some(())
    });
    host.kubelet.offers(MEMORY, 22, 50);
}

#[test]
fn mig_instances_share_the_health_of_their_gpu() {
    let gpus = "T4:15109,A100:40960/mig=3g.20gb,1g.5gb";
    let fixture = Fixture::new(gpus);
    let host = Host::new(&fixture, gpus);
    let _plugin = host.plugin(&["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 14 + 20 + 5, 14 + 20 + 5);
    assert!(
        host.uuid(0).starts_with("GPU-") && host.uuid(1).starts_with("MIG-"),
        "{:?}",
        host.gpus()
    );
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"1": 2}}));
    let made = host.create(&pod, &host.admit(&pod)[0]);
    let limited = host.uuid(1).replacen("MIG", "GPU", 1);
    assert_eq!(limits(&made), [(limited, 2048 * MIB)].into());
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 14 + 20 + 5);
}
