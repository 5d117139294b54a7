//! Claims that come and go leave nothing.

use std::collections::BTreeSet;
use std::fs;

use cgpu_e2e::{Child, Fixture};
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::kubelet;
use cgpu_kubernetes_tests::process::memory;
use serde_json::Value;

use crate::{GPUS, Host, NODE};

/// Claims in one call. Each round has others.
const CLAIMS: usize = 20;
const ROUNDS: usize = 150;
/// Rounds in which the driver's threads and buffers reach their size. 1,000 claims follow.
const WARM_UP: usize = 100;
/// What a claim occupies, times 1,000, is more.
const MAX_GROWTH: u64 = 256 << 10;

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count()
}

#[test]
fn thousand_claims_that_come_and_go_leave_nothing() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let kubeconfig = host.server.kubeconfig(&fixture.path(""));
    let mut command =
        kubelet::driver::command(&fixture, &kubeconfig, NODE, &fixture.path("plugins"), &[]);
    // One arena: what each new thread takes for its own would hide a leak.
    command.env("MALLOC_ARENA_MAX", "1");
    let driver = Child::start_for(command, fixture.lifetime());
    let info = host.registered();
    let mut warm = None;
    for round in 0..ROUNDS {
        if round == WARM_UP {
            warm = Some((memory(driver.pid(), "VmRSS"), descriptors(driver.pid())));
        }
        let claims: Vec<Value> = (0..CLAIMS)
            .map(|at| host.claim(&format!("c{round}-{at}"), &[("gpu-0", "128Mi", 1)]))
            .collect();
        let all: Vec<&Value> = claims.iter().collect();
        let answers = host.kubelet.prepare(&info, &all).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
        assert_eq!(host.files().len(), CLAIMS * 3);
        let answers = host.kubelet.unprepare(&info, &all).expect("an answer");
        assert!(answers.values().all(Result::is_ok), "{answers:?}");
        for at in 0..CLAIMS {
            host.server.remove(&Key::new("resourceclaims", "test", &format!("c{round}-{at}")));
        }
    }
    assert_eq!(host.files(), BTreeSet::new());
    let (resident, open) = warm.expect("a measured driver");
    // Connections of the last calls close by and by.
    fixture.eventually("no descriptor more", || (descriptors(driver.pid()) <= open).then_some(()));
    let now = memory(driver.pid(), "VmRSS");
    assert!(now <= resident + MAX_GROWTH, "{resident} bytes after the warm-up, now {now}");
    eprintln!("resident: {resident} bytes after the warm-up, {now} at the end; {open} descriptors");
}
