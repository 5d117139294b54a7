//! Claims whose containers outlive them, and claims that the API server no longer has.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cgpu_e2e::{Child, Fixture};
use cgpu_kubernetes_tests::api_server::{Fault, FaultAction, Key};
use serde_json::json;

use crate::{GPUS, Host, uid};

/// A running container of a share, as `cgpu-runtime` records it.
pub(crate) struct Running {
    process: Child,
    files: [PathBuf; 3],
}

impl Running {
    pub(crate) fn start(fixture: &Fixture, share: &str) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600");
        let process = Child::start_for(command, fixture.lifetime());
        let (root, pid) = (fixture.root(), process.pid());
        let folder = root.join("containers").join(share);
        let [limits, recorded] = ["slices", "records"].map(|name| root.join(name).join(share));
        for folder in [&folder, &root.join("slices")] {
            fs::create_dir_all(folder).expect("a folder");
        }
        // The limits that every container of the share has, where only the host sees them.
        fs::copy(root.join("shares").join(share), &limits).expect("its limits");
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
        let (_, fields) = stat.rsplit_once(')').expect("its name");
        let started: u64 = fields.split_whitespace().nth(19).expect("a time").parse().expect("one");
        let record = json!({"bundle": "/b", "id": "c", "shares": [share],
            "first": {"pid": pid, "started": started}});
        fixture.record(share, &record.to_string());
        Self { process, files: [folder, limits, recorded] }
    }

    /// Ends it as its engine does, which removes what is recorded of it.
    pub(crate) fn end(self) {
        let [folder, limits, recorded] = &self.files;
        self.process.kill();
        fs::remove_file(limits).expect("its limits");
        fs::remove_file(recorded).expect("its record");
        fs::remove_dir_all(folder).expect("its folder");
    }

    /// Ends it together with its engine, so that its folder stays.
    pub(crate) fn end_with_engine(self) {
        self.process.kill();
    }
}

#[test]
fn running_container_holds_its_share_when_its_claim_is_unprepared() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&[]);
    let info = host.registered();
    let old = host.claim("old", &[("gpu-0", "10Gi", 3)]);
    host.prepare(&info, &old).expect("prepared");
    let container = Running::start(&fixture, &format!("{}-0", uid(&old)));
    // The pod is deleted by force, and its claim is unprepared while its container runs.
    assert!(host.server.remove(&Key::new("resourceclaims", "test", "old")));
    host.unprepare(&info, &old);
    let new = host.claim("new", &[("gpu-0", "10Gi", 1)]);
    let refusal = host.prepare(&info, &new).expect_err("oversold");
    assert!(
        refusal.contains(
            "claim test/new waits for room on gpu-0: it consumes 10240 MiB, weight 1; of 15104 \
             MiB, weight 20, 10240 MiB, weight 3 is held by containers that still run"
        ),
        "{refusal}"
    );
    // What is free is given.
    let small = host.claim("small", &[("gpu-0", "4Gi", 1), ("gpu-1", "10Gi", 1)]);
    host.prepare(&info, &small).expect("prepared");
    container.end();
    host.prepare(&info, &new).expect("prepared");

    // A container that ended with its engine has left its folder.
    let container = Running::start(&fixture, &format!("{}-0", uid(&new)));
    host.unprepare(&info, &new);
    let next = host.claim("next", &[("gpu-0", "10Gi", 1)]);
    host.prepare(&info, &next).expect_err("oversold");
    container.end_with_engine();
    host.prepare(&info, &next).expect("prepared");

    // What cannot be read may be anything.
    let container = Running::start(&fixture, &format!("{}-0", uid(&next)));
    host.unprepare(&info, &next);
    let limits = fixture.root().join("slices").join(format!("{}-0", uid(&next)));
    fs::write(&limits, "").expect("a file");
    let refusal = host.prepare(&info, &host.claim("last", &[("gpu-1", "1Gi", 1)])).unwrap_err();
    assert!(refusal.contains("what running containers hold"), "{refusal}");
    container.end();
}

#[test]
fn claim_that_the_api_server_no_longer_has_is_unprepared_when_no_container_holds_it() {
    let fixture = Fixture::new(GPUS);
    let host = Host::new(&fixture);
    let _driver = host.driver(&["--sweep-after", "1"]);
    let info = host.registered();
    let claims = ["gone", "anew", "held", "kept"].map(|name| {
        let claim = host.claim(name, &[("gpu-0", "1Gi", 1)]);
        host.prepare(&info, &claim).expect("prepared");
        claim
    });
    let container = Running::start(&fixture, &format!("{}-0", uid(&claims[2])));
    // Without an answer about the claims, nothing is known of them.
    let looks = |name: &str| {
        let path = format!("/resourceclaims/{name}");
        host.server.journal().iter().filter(|request| request.is("GET", &path)).count()
    };
    let more_looks = |name: &str| {
        let before = looks(name);
        fixture.eventually("more looks", || (looks(name) >= before + 3).then_some(()));
    };
    for (code, reason) in [(503, "ServiceUnavailable"), (404, "another path")] {
        host.server.clear_faults();
        let action = FaultAction::Refuse(code, reason);
        host.server.fault(Fault::times(usize::MAX, "GET", "/resourceclaims/", action));
        for name in ["gone", "held"] {
            host.server.remove(&Key::new("resourceclaims", "test", name));
        }
        host.server.edit(&Key::new("resourceclaims", "test", "anew"), |claim| {
            claim["metadata"]["uid"] = "another".into();
        });
        more_looks("gone");
        assert_eq!(host.files().len(), 12);
    }
    host.server.clear_faults();
    let is_there = |at: usize| host.files().contains(&format!("{}.json", uid(&claims[at])));
    fixture
        .eventually("two claims are unprepared", || (!is_there(0) && !is_there(1)).then_some(()));
    more_looks("kept");
    more_looks("held");
    assert_eq!(host.files().len(), 6);
    container.end();
    fixture.eventually("the third claim is unprepared", || (!is_there(2)).then_some(()));
    more_looks("kept");
    assert!(is_there(3) && host.files().len() == 3);
}
