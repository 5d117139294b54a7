//! GPUs and their errors, as the monitor reports them where the plugin has no NVML.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use cgpu_e2e::{Child, Fixture, Monitor, contained};
use serde_json::{Value, json};

use crate::host::{Host, MEMORY, MIB, limits};

/// Starts a plugin as in its pod: without the driver's library and without the node's processes, so
/// that the monitor's process has no ID there.
fn contained_plugin(host: &Host<'_>, options: &[&str]) -> Child {
    let mut command = host.command(options);
    command.env_remove("LD_LIBRARY_PATH");
    let command = contained(&command, true).unwrap_or(command);
    Child::start_for(command, host.fixture.lifetime())
}

/// Returns whether the monitor receives errors of GPUs, or None if it does not answer.
fn listens(fixture: &Fixture) -> Option<bool> {
    let mut monitor = UnixStream::connect(fixture.root().join("monitor.sock")).ok()?;
    monitor.write_all(b"{\"op\":\"health\"}\n").ok()?;
    let mut line = String::new();
    BufReader::new(monitor).read_line(&mut line).ok()?;
    let reported: Value = serde_json::from_str(&line).ok()?;
    reported["health"]["listening"].as_bool()
}

#[test]
fn inventory_without_nvml_comes_from_the_monitor() {
    let fixture = Fixture::new("T4:15109");
    let host = Host::new(&fixture, "T4:15109");
    let _monitor = Monitor::start(&fixture);
    let _plugin = contained_plugin(&host, &[]);
    host.kubelet.offers(MEMORY, 14, 14);
    let pod = host.pod("p", &[("main", &[(MEMORY, "2")])], &json!({"0": {"0": 2}}));
    assert_eq!(
        limits(&host.create(&pod, &host.admit(&pod)[0])),
        [(host.uuid(0), 15109 * 2 / 14 * MIB)].into()
    );
}

#[test]
fn nvml_is_reopened_after_its_gpus_are_lost() {
    let fixture = Fixture::new("T4:15109");
    // The event listener counts the GPUs once, the sampler three times a second.
    let _monitor =
        Monitor::start_faulty(&fixture, "nvmlDeviceGetCount*:20+:NVML_ERROR_GPU_IS_LOST");
    fixture.eventually("the monitor listens for errors", || {
        listens(&fixture).filter(|listens| *listens)
    });
    fixture
        .eventually("it has tried to reopen NVML", || listens(&fixture).filter(|listens| !listens));
}

#[test]
fn health_without_nvml_comes_from_the_monitor() {
    let fixture = Fixture::new("T4:15109,A10:23028");
    let host = Host::new(&fixture, "T4:15109,A10:23028");
    let _monitor = Monitor::start(&fixture);
    fixture.eventually("the monitor listens for errors", || {
        listens(&fixture).filter(|listens| *listens)
    });
    let plugin = contained_plugin(&host, &["--recovery", "3600"]);
    host.kubelet.offers(MEMORY, 36, 36);
    // A page fault is a program's own error; an uncorrected memory error is not.
    host.report("0", "31");
    host.report("1", "48");
    host.kubelet.offers(MEMORY, 14, 36);
    host.wait_for_health([true, false]);
    plugin.kill();
    // The monitor records errors while there is no plugin.
    host.report("0", "79");
    let plugin = contained_plugin(&host, &["--recovery", "3600"]);
    host.wait_for_health([false, false]);
    host.kubelet.offers(MEMORY, 0, 36);
    plugin.kill();
    let _plugin = contained_plugin(&host, &["--recovery", "1"]);
    host.wait_for_health([true, true]);
    host.kubelet.offers(MEMORY, 36, 36);
}
