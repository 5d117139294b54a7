//! The driver under random failures, drawn by a seed, against a model of what a kubelet was told.
//!
//! After each step the files of the node are compared with the model: no prepared claim is lost,
//! none is there that was not prepared, and no device is oversold. A call that was cut off is
//! repeated, as a kubelet does.
//!
//! `cargo xtask soak dra` runs it for longer. CGPU_CHAOS_SEED repeats a run; CGPU_DRA_CHAOS_STEPS
//! sets its length.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Fixture, MIB, Random};
use cgpu_kubelet_api::registration::PluginInfo;
use cgpu_kubernetes_tests::api_server::Key;
use cgpu_kubernetes_tests::kubelet::driver::PreparedDevice;
use serde_json::Value;

use crate::held::Running;
use crate::{DRIVER, Host, uid};

const SEED: u64 = 20_261_127;
const STEPS: u64 = 1000;

/// Two equal GPUs. What claims can have of each, in MiB and weight.
const GPUS: &str = "T4:15109,T4:15109";
const CAPACITY: (u64, u32) = (15104, 20);
/// Most claims at a time.
const CLAIMS: usize = 24;
/// Size of the file system of the records, in bytes.
const DISK: u64 = 512 << 10;

struct Event {
    name: &'static str,
    weight: u64,
    /// Lets it happen; returns false if it cannot happen now.
    happens: fn(&mut Chaos) -> bool,
}

#[rustfmt::skip]
const EVENTS: &[Event] = &[
    Event { name: "a claim is prepared", weight: 24, happens: |it| it.prepare() },
    Event { name: "many claims are prepared at once", weight: 3, happens: |it| it.prepare_many() },
    Event { name: "a claim is prepared again", weight: 6, happens: |it| it.prepare_again() },
    Event { name: "a claim is unprepared", weight: 12, happens: |it| it.unprepare() },
    Event { name: "an unknown claim is unprepared", weight: 2, happens: |it| it.unprepare_unknown() },
    Event { name: "a container starts", weight: 12, happens: |it| it.start_container() },
    Event { name: "a container ends", weight: 8, happens: |it| it.end_container() },
    Event { name: "a pod is deleted by force", weight: 5, happens: |it| it.delete_by_force() },
    Event { name: "the kubelet restarts", weight: 2, happens: |it| it.restart_kubelet() },
    Event { name: "the driver is killed", weight: 2, happens: |it| it.kill_driver() },
    Event { name: "the driver is killed in a call", weight: 6, happens: |it| it.kill_in_a_call() },
    Event { name: "another instance takes over", weight: 2, happens: |it| it.update_driver() },
    Event { name: "the API server is away", weight: 3, happens: |it| it.lose_api_server() },
    Event { name: "the disk is full", weight: 3, happens: |it| it.fill_disk() },
];

struct Claim {
    object: Value,
    shares: Vec<Part>,
}

/// What a share consumes: GPU, MiB, weight.
type Part = (usize, u64, u32);

struct Prepared {
    claim: Claim,
    answer: Vec<PreparedDevice>,
}

struct Container {
    process: Running,
    share: String,
    part: Part,
}

struct Chaos<'a> {
    host: Host<'a>,
    /// The file system of the records; none: this user cannot mount one.
    disk: Option<Disk>,
    random: Random,
    driver: Child,
    info: PluginInfo,
    claims: u64,
    /// What the kubelet was told is prepared, by uid.
    prepared: BTreeMap<String, Prepared>,
    containers: Vec<Container>,
    occurred: [u64; EVENTS.len()],
}

/// A small file system, which can be filled.
struct Disk(std::path::PathBuf);

impl Disk {
    fn mount(folder: &Path) -> Option<Self> {
        fs::create_dir_all(folder).expect("a folder");
        let options = format!("size={DISK}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(folder);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Self(folder.to_owned()))
    }

    fn fill(&self) {
        let bytes = vec![0; 4096];
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        while std::io::Write::write_all(&mut file, &bytes).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("the file");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The driver may still be ending.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

fn told(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

impl<'a> Chaos<'a> {
    fn start(fixture: &'a Fixture, seed: u64) -> Self {
        let disk = Disk::mount(&fixture.path("plugins"));
        let host = Host::new(fixture);
        let driver = host.driver(OPTIONS);
        let info = host.registered();
        Self {
            host,
            disk,
            random: Random::new(seed),
            driver,
            info,
            claims: 0,
            prepared: BTreeMap::new(),
            containers: Vec::new(),
            occurred: [0; EVENTS.len()],
        }
    }

    fn step(&mut self) {
        let all: u64 = EVENTS.iter().map(|event| event.weight).sum();
        loop {
            let mut drawn = self.random.below(all);
            let at = EVENTS.iter().position(|event| {
                let is_it = drawn < event.weight;
                drawn = drawn.saturating_sub(event.weight);
                is_it
            });
            let at = at.expect("an event");
            if (EVENTS[at].happens)(self) {
                self.occurred[at] += 1;
                self.check(EVENTS[at].name);
                return;
            }
        }
    }

    /// Compares the files of the node with the model.
    fn check(&self, after: &str) {
        let mut expected = BTreeSet::new();
        for (uid, Prepared { claim, .. }) in &self.prepared {
            expected.extend([format!("{uid}.json"), format!("cgpu-dra-{uid}.json")]);
            expected.extend((0..claim.shares.len()).map(|at| format!("{uid}-{at}")));
        }
        assert_eq!(self.host.files(), expected, "after: {after}");
        for (gpu, (memory, weight)) in self.used().into_iter().enumerate() {
            assert!(
                memory <= CAPACITY.0 && weight <= CAPACITY.1,
                "after: {after}: gpu-{gpu} is oversold: {memory} MiB, weight {weight}"
            );
        }
    }

    /// What is used of each GPU: by records on the disk, and by running containers beyond them.
    fn used(&self) -> [(u64, u32); 2] {
        let mut used = [(0, 0); 2];
        let mut add = |(gpu, memory, weight): Part| {
            used[gpu].0 += memory;
            used[gpu].1 += weight;
        };
        let mut recorded = BTreeSet::new();
        let folder = self.host.fixture.path(&format!("plugins/{DRIVER}/claims"));
        for entry in fs::read_dir(folder).expect("the records") {
            let path = entry.expect("a file").path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a record");
            let record: Value = serde_json::from_str(&text).expect("a record");
            for share in record["claim"]["shares"].as_array().expect("shares") {
                recorded.insert(share["name"].as_str().expect("a name").to_owned());
                let capacity = &share["access"]["limited"]["capacity"];
                let amount = |name: &str| capacity[name].as_u64().expect("an amount");
                add((
                    usize::from(share["device"] == "gpu-1"),
                    amount("memory") / MIB,
                    u32::try_from(amount("weight")).expect("a weight"),
                ));
            }
        }
        for container in &self.containers {
            if !recorded.contains(&container.share) {
                add(container.part);
            }
        }
        used
    }

    fn fits(&self, claim: &Claim) -> bool {
        let mut used = self.used();
        for (gpu, memory, weight) in &claim.shares {
            used[*gpu].0 += memory;
            used[*gpu].1 += weight;
        }
        used.iter().all(|(memory, weight)| *memory <= CAPACITY.0 && *weight <= CAPACITY.1)
    }

    /// Creates an allocated claim. The scheduler may know of room that is not there yet.
    fn claim(&mut self) -> Claim {
        self.claims += 1;
        let mut shares = Vec::new();
        for gpu in 0..2 {
            if shares.is_empty() && gpu == 1 || self.random.below(3) == 0 {
                let memory = [128, 512, 1024, 2048, 6144][self.below(5)];
                shares.push((gpu, memory, [1, 1, 2, 5][self.below(4)]));
            }
        }
        let texts: Vec<(String, String, u32)> = shares
            .iter()
            .map(|(gpu, memory, weight)| (format!("gpu-{gpu}"), format!("{memory}Mi"), *weight))
            .collect();
        let named: Vec<(&str, &str, u32)> = texts
            .iter()
            .map(|(device, memory, weight)| (device.as_str(), memory.as_str(), *weight))
            .collect();
        let object = self.host.claim(&format!("c{}", self.claims), &named);
        Claim { object, shares }
    }

    fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.random.below(bound)).expect("a small number")
    }

    fn any_prepared(&mut self) -> Option<String> {
        let uids: Vec<String> = self.prepared.keys().cloned().collect();
        let at: Vec<usize> = (0..uids.len()).collect();
        self.random.pick(&at).map(|at| uids[at].clone())
    }

    /// Records the answer to a prepare. It is refused exactly if there is no room. That no device
    /// is oversold is checked after each step.
    fn answered(&mut self, claim: Claim, answer: Result<Vec<PreparedDevice>, String>) {
        match answer {
            Ok(answer) => {
                self.prepared.insert(uid(&claim.object).to_owned(), Prepared { claim, answer });
            }
            Err(refusal) => {
                assert!(refusal.contains("waits for room"), "{refusal}");
                assert!(!self.fits(&claim), "there was room: {refusal}");
                self.forget(&claim.object);
            }
        }
    }

    /// Removes a claim at the API server.
    fn forget(&self, claim: &Value) {
        let name = claim["metadata"]["name"].as_str().expect("a name");
        self.host.server.remove(&Key::new("resourceclaims", "test", name));
    }

    fn prepare(&mut self) -> bool {
        if self.prepared.len() >= CLAIMS {
            return false;
        }
        let claim = self.claim();
        let answer = self.host.prepare(&self.info, &claim.object);
        self.answered(claim, answer);
        true
    }

    /// Which ones of several claims get the room depends on their order.
    fn prepare_many(&mut self) -> bool {
        if self.prepared.len() >= CLAIMS / 2 {
            return false;
        }
        let claims: Vec<Claim> = (0..8).map(|_| self.claim()).collect();
        let objects: Vec<&Value> = claims.iter().map(|claim| &claim.object).collect();
        let mut answers = self.host.kubelet.prepare(&self.info, &objects).expect("an answer");
        for claim in claims {
            let answer = answers.remove(uid(&claim.object)).expect("the claim");
            self.answered(claim, answer);
        }
        true
    }

    fn prepare_again(&mut self) -> bool {
        let Some(uid) = self.any_prepared() else { return false };
        let Prepared { claim, answer } = &self.prepared[&uid];
        assert_eq!(self.host.prepare(&self.info, &claim.object).as_ref(), Ok(answer));
        true
    }

    fn unprepare(&mut self) -> bool {
        let Some(uid) = self.any_prepared() else { return false };
        if self.containers.iter().any(|container| container.share.starts_with(&uid)) {
            return false;
        }
        let Prepared { claim, .. } = self.prepared.remove(&uid).expect("it");
        self.host.unprepare(&self.info, &claim.object);
        self.forget(&claim.object);
        true
    }

    fn unprepare_unknown(&mut self) -> bool {
        let claim = self.claim();
        self.host.unprepare(&self.info, &claim.object);
        self.forget(&claim.object);
        true
    }

    fn start_container(&mut self) -> bool {
        let Some(uid) = self.any_prepared() else { return false };
        let shares = &self.prepared[&uid].claim.shares;
        let at = usize::try_from(self.claims).expect("few") % shares.len();
        let (share, part) = (format!("{uid}-{at}"), shares[at]);
        if self.containers.iter().any(|container| container.share == share) {
            return false;
        }
        let process = Running::start(self.host.fixture, &share);
        self.containers.push(Container { process, share, part });
        true
    }

    fn end_container(&mut self) -> bool {
        if self.containers.is_empty() {
            return false;
        }
        let count = u64::try_from(self.containers.len()).expect("few");
        let at = self.below(count);
        let Container { process, .. } = self.containers.swap_remove(at);
        if self.random.below(4) == 0 {
            process.end_with_engine()
        } else {
            process.end()
        }
        true
    }

    /// The claim is gone and unprepared, while its containers go on.
    fn delete_by_force(&mut self) -> bool {
        let Some(uid) = self.any_prepared() else { return false };
        let Prepared { claim, .. } = self.prepared.remove(&uid).expect("it");
        self.forget(&claim.object);
        self.host.unprepare(&self.info, &claim.object);
        true
    }

    /// The kubelet finds the driver again, and prepares again what is prepared.
    fn restart_kubelet(&mut self) -> bool {
        self.info = self.registered();
        let objects: Vec<&Value> =
            self.prepared.values().map(|prepared| &prepared.claim.object).collect();
        let answers = self.host.kubelet.prepare(&self.info, &objects).expect("an answer");
        for (uid, prepared) in &self.prepared {
            assert_eq!(answers[uid].as_ref(), Ok(&prepared.answer));
        }
        true
    }

    fn replace_driver(&mut self) {
        let next = self.host.driver(OPTIONS);
        std::mem::replace(&mut self.driver, next).kill();
        self.info = self.registered();
    }

    /// Waits until the driver answers.
    fn registered(&self) -> PluginInfo {
        self.host.fixture.eventually("the driver's answer", || {
            let info = self.host.kubelet.register(DRIVER)?;
            self.host.kubelet.prepare(&info, &[]).ok().map(|_| info)
        })
    }

    fn kill_driver(&mut self) -> bool {
        self.driver.signal(9);
        self.replace_driver();
        true
    }

    /// Kills the driver at a random time of a call. The kubelet repeats the call.
    fn kill_in_a_call(&mut self) -> bool {
        let unprepared = if self.random.below(2) == 0 { self.any_prepared() } else { None };
        let removed = unprepared.and_then(|uid| self.prepared.remove(&uid));
        let (claim, prepares) = match removed {
            Some(Prepared { claim, .. }) => (claim, false),
            None if self.prepared.len() >= CLAIMS => return false,
            None => (self.claim(), true),
        };
        let delay = Duration::from_micros(self.random.below(12_000));
        let (host, info, driver) = (&self.host, &self.info, &self.driver);
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let objects = [&claim.object];
                // The answer may be lost.
                if prepares {
                    let _ = host.kubelet.prepare(info, &objects);
                } else {
                    let _ = host.kubelet.unprepare(info, &objects);
                }
            });
            std::thread::sleep(delay);
            driver.signal(9);
            call.join().expect("a call");
        });
        self.replace_driver();
        if prepares {
            let answer = self.host.prepare(&self.info, &claim.object);
            self.answered(claim, answer);
        } else {
            self.host.unprepare(&self.info, &claim.object);
            self.forget(&claim.object);
        }
        true
    }

    /// A rolling update: the next instance waits, and serves when the last one has ended.
    fn update_driver(&mut self) -> bool {
        let next = self.host.driver(OPTIONS);
        // Calls meanwhile reach the first one.
        self.prepare();
        let first = std::mem::replace(&mut self.driver, next);
        first.signal(15);
        assert_eq!(first.end().code(), Some(0));
        self.info = self.registered();
        true
    }

    /// What is prepared is answered and unprepared; another claim is refused.
    fn lose_api_server(&mut self) -> bool {
        let claim = self.claim();
        self.host.server.close();
        self.prepare_again();
        let refusal = self.host.prepare(&self.info, &claim.object).expect_err("no claim is known");
        assert!(refusal.contains("cannot read claim"), "{refusal}");
        if let Some(uid) = self.any_prepared() {
            let Prepared { claim, .. } = self.prepared.remove(&uid).expect("it");
            self.host.unprepare(&self.info, &claim.object);
            self.forget(&claim.object);
        }
        self.host.server.reopen();
        let (host, info) = (&self.host, &self.info);
        let answer = host.fixture.eventually("the API server", || {
            let answer = host.prepare(info, &claim.object);
            let is_away = answer.as_ref().is_err_and(|why| why.contains("cannot read claim"));
            (!is_away).then_some(answer)
        });
        self.answered(claim, answer);
        true
    }

    /// No record can be written: nothing is prepared. What is prepared stays so.
    fn fill_disk(&mut self) -> bool {
        if self.disk.is_none() || self.prepared.len() >= CLAIMS {
            return false;
        }
        let claim = self.claim();
        if !self.fits(&claim) {
            self.forget(&claim.object);
            return false;
        }
        let disk = self.disk.as_ref().expect("a disk");
        disk.fill();
        let refusal = self.host.prepare(&self.info, &claim.object).expect_err("the disk is full");
        assert!(refusal.contains("cannot write the files of claim"), "{refusal}");
        self.check("a refused write");
        self.prepare_again();
        if self.random.below(2) == 0 {
            self.kill_driver();
        }
        self.disk.as_ref().expect("a disk").free();
        let answer = self.host.prepare(&self.info, &claim.object);
        self.answered(claim, answer);
        true
    }
}

/// Options of each instance. A claim is never swept: its pod is there.
const OPTIONS: &[&str] = &["--request-timeout", "2s"];

#[test]
fn nothing_is_lost_doubled_or_oversold_under_random_failures() {
    let (seed, steps) = (told("CGPU_CHAOS_SEED", SEED), told("CGPU_DRA_CHAOS_STEPS", STEPS));
    eprintln!("CGPU_CHAOS_SEED={seed} CGPU_DRA_CHAOS_STEPS={steps}");
    let fixture = Fixture::new(GPUS).with_extra_time(Duration::from_secs(steps / 4));
    let mut chaos = Chaos::start(&fixture, seed);
    for step in 0..steps {
        if step % 100 == 99 {
            eprintln!("step {}: {} prepared", step + 1, chaos.prepared.len());
        }
        chaos.step();
    }
    // All pods end.
    while !chaos.containers.is_empty() {
        chaos.end_container();
    }
    while chaos.unprepare() {}
    chaos.check("the end");
    assert_eq!(chaos.host.files(), BTreeSet::new());
    for (event, times) in EVENTS.iter().zip(chaos.occurred) {
        eprintln!("{times:5} x {}", event.name);
    }
}
