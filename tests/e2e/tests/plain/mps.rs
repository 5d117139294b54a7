//! A GPU on which MPS runs several containers' work at the same time: it has no turns, and says so.

use std::fs;
use std::process::Command;

use cgpu_e2e::{Child, Fixture, Monitor, Outcome, Worker};

use super::watcher::{counted, endpoint, smi};

/// A GPU that all programs use through MPS. The server is whatever process has its name.
struct Setup {
    fixture: Fixture,
    workers: [Worker; 2],
    _monitor: Monitor,
}

impl Setup {
    fn start(policy: &str) -> Self {
        let fixture = Fixture::new("A10:23028");
        let config =
            format!("tree = \"none\"\nmetrics = \"{}\"\n[gpu.0]\npolicy = {policy}\n", endpoint());
        // The first process sets what the GPU does.
        let monitor = Monitor::start_by(&fixture, &config, |command| {
            command.env("CGPU_SIM_MPS", "1");
        });
        let mut workers = ["a", "b"].map(|name| {
            let log = fixture.path(&format!("{name}.log"));
            let container = fixture.limited(name, 4096);
            Worker::start(&fixture, &container.with("CGPU_LOG_FILE", &log.to_string_lossy()))
        });
        workers.iter_mut().for_each(|worker| worker.begin(200.0));
        Self { fixture, workers, _monitor: monitor }
    }

    /// Returns a server of MPS that holds a context.
    fn server(&self, program: impl FnOnce(&Fixture, &std::path::Path) -> Command) -> Child {
        let path = self.fixture.path("nvidia-cuda-mps-server");
        let _ = fs::copy(self.fixture.dist().program("hold"), &path);
        let mut command = program(&self.fixture, &path);
        command.args(["25M", "240"]);
        let mut server = Child::start_for(command, self.fixture.lifetime());
        server.line();
        server
    }

    /// Returns the GPU's policy, how many turns it had, and why MPS sets its policy.
    fn gpu(&self) -> (u64, u64, Option<String>) {
        let gpu = &self.fixture.smi()["gpus"][0];
        let number = |key: &str| gpu[key].as_u64().expect("a number");
        (number("policy"), number("turns"), gpu["mps"].as_str().map(str::to_owned))
    }

    /// Waits until the GPU has had this many more turns.
    fn has_turns(&self, more: u64) {
        let (_, before, _) = self.gpu();
        self.fixture.eventually("turns", || (self.gpu().1 >= before + more).then_some(()));
    }
}

#[test]
fn gpu_has_no_turns_while_mps_runs_two_containers() {
    let setup = Setup::start("2");
    let fixture = &setup.fixture;
    setup.has_turns(5);
    let server = setup.server(|fixture, path| fixture.native(path));
    let why = fixture.eventually("policy 5", || {
        let (policy, _, why) = setup.gpu();
        why.filter(|_| policy == 5)
    });
    assert!(why.contains(&format!("process {}", server.pid())), "{why}");
    let log = fs::read_to_string(fixture.path("a.log")).expect("a log");
    assert!(log.contains("mps=true"), "{log}");
    // A setting is kept for later.
    fixture.set("0/policy", "1");
    let (policy, turns, _) = setup.gpu();
    assert_eq!(policy, 5);
    counted(fixture, "cgpu_gpu_mps{gpu=\"0\"}");
    let text = smi(fixture);
    assert!(text.contains(&format!("GPU 0: policy 5 for now: {why}")), "{text}");
    let doctor =
        Outcome::of(fixture.cgpu(&["doctor", "--root", &fixture.root().to_string_lossy()]));
    assert!(
        doctor.stdout.contains("GPU 0 (mps, by design)") && doctor.stdout.contains(&why),
        "{doctor:?}"
    );
    assert_eq!(setup.gpu().1, turns, "turns were given");
    server.kill();
    fixture.eventually("the policy that was set", || {
        let (policy, _, why) = setup.gpu();
        (policy == 1 && why.is_none()).then_some(())
    });
    setup.has_turns(5);
    setup.workers.into_iter().for_each(|worker| _ = worker.process.kill());
}

/// A tenant has the programs of MPS, too. Its own server runs only its own work at the same time.
#[test]
fn server_of_mps_in_a_container_changes_no_policy() {
    let setup = Setup::start("2");
    let container = setup.fixture.limited("a", 4096);
    let server = setup.server(|fixture, path| fixture.native_in(&container, path));
    let pid = server.pid();
    setup.fixture.eventually("it is known", || {
        let accounting = setup.fixture.accounting(&container);
        let known = |process: &serde_json::Value| process["pid"] == pid;
        accounting["processes"].as_array()?.iter().any(known).then_some(())
    });
    // Samples come once a second.
    for _ in 0..4 {
        setup.has_turns(300);
        let (policy, _, why) = setup.gpu();
        assert_eq!((policy, why), (2, None));
    }
    setup.workers.into_iter().for_each(|worker| _ = worker.process.kill());
    server.kill();
}
