//! A limit that changes under load, in both directions, for several processes.

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor};
use serde_json::Value;

struct Taker(Child);

impl Taker {
    fn start(fixture: &Fixture, container: &Container) -> Self {
        let mut process = Child::start(fixture.program_in(container, "take"));
        assert_eq!(process.line(), "{\"ready\": true}");
        Self(process)
    }

    fn request(&mut self, command: &str) -> Value {
        self.0.write(&format!("{command}\n"));
        serde_json::from_str(&self.0.line()).expect("JSON")
    }

    fn total(&mut self) -> u64 {
        self.request("info")["total"].as_u64().expect("a total")
    }
}

fn memsize(fixture: &Fixture, container: &Container) -> String {
    format!("0/{}/memsize", fixture.accounting(container)["id"].as_str().expect("an id"))
}

fn limit(fixture: &Fixture, node: &str, mib: u64, takers: &mut [Taker]) {
    fixture.set(node, &(mib * MIB).to_string());
    for taker in takers {
        fixture.eventually("the new limit is seen", || (taker.total() == mib * MIB).then_some(()));
    }
}

fn result(answer: &Value) -> u64 {
    answer["result"].as_u64().expect("a result")
}

#[test]
fn lowered_limit_blocks_until_use_falls_and_raised_limit_applies_at_once() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 8192);
    let mut takers: Vec<Taker> = (0..3).map(|_| Taker::start(&fixture, &container)).collect();
    for taker in &mut takers {
        assert_eq!(result(&taker.request("take 1G")), 0);
    }
    let node = memsize(&fixture, &container);
    limit(&fixture, &node, 2048, &mut takers);
    for taker in &mut takers {
        let answer = taker.request("take 2M");
        assert_eq!((result(&answer), &answer["free"]), (2, &0.into()), "{answer}");
        assert_eq!(answer["held"], 1024 * MIB);
    }
    // Two of three GiB and three contexts still exceed the limit; freed memory is not cached.
    assert_eq!(result(&takers[0].request("give")), 0);
    for taker in &mut takers {
        assert_eq!(result(&taker.request("take 2M")), 2);
    }
    assert_eq!(result(&takers[1].request("give")), 0);
    assert_eq!(result(&takers[1].request("take 2M")), 0, "use is under the limit again");
    assert_eq!(result(&takers[0].request("take 1G")), 2, "but not by so much");
    limit(&fixture, &node, 12 * 1024, &mut takers);
    assert_eq!(result(&takers[0].request("take 5G")), 0, "all may use what was added");
    assert_eq!(result(&takers[2].request("take 4G")), 0);
    assert_eq!(result(&takers[1].request("take 4G")), 2);
    for taker in takers {
        taker.0.finish().silent();
    }
    fixture.wait_until_empty(&container);
}

#[test]
fn changing_limit_holds_while_processes_allocate_and_free() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 16 * 1024);
    let mut watcher = [Taker::start(&fixture, &container)];
    let churns: Vec<Child> = (1..=3)
        .map(|seed: u32| {
            let mut command = fixture.program_in(&container, "churn");
            command.args([seed.to_string().as_str(), "64M"]);
            let mut child = Child::start(command);
            child.line();
            child
        })
        .collect();
    let node = memsize(&fixture, &container);
    for swing in 0..20 {
        let low = 1536 + 32 * swing;
        limit(&fixture, &node, low, &mut watcher);
        let mut before = u64::MAX;
        for _ in 0..5 {
            // What one process frees and another takes, while a sum over both is made, may be
            // missing in the sum or be there twice.
            churns.iter().for_each(|child| child.signal(libc::SIGSTOP));
            let used = fixture.used(&container, 0);
            churns.iter().for_each(|child| child.signal(libc::SIGCONT));
            // Above the limit use only falls: a charge is granted only when it fits.
            assert!(used <= before.max(low * MIB), "{used} after {before} bytes under {low} MiB");
            before = used;
        }
        limit(&fixture, &node, 16 * 1024, &mut watcher);
    }
    for child in churns {
        child.finish().silent();
    }
    let [watcher] = watcher;
    watcher.0.finish().silent();
    fixture.wait_until_empty(&container);
}
