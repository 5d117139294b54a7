//! One monitor and many tenants under random failures, drawn by a seed.
//!
//! A round draws events from [`EVENTS`] while processes launch, allocate and free. After each event
//! the GPUs are sampled: no container may hold more than its limit and [`UNASKED`]. At the end of
//! a round what was stopped continues, a monitor runs, and all answers are read. Then the monitor,
//! the ledger and the GPUs must agree with the model, and each container must get its whole limit.
//!
//! `cargo xtask soak chaos` runs it for longer. CGPU_CHAOS_SEED repeats a run; CGPU_CHAOS_TENANTS
//! and CGPU_CHAOS_ROUNDS set its size.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use cgpu_e2e::{Child, Container, Fixture, MIB, Monitor, Outcome, Random, Worker};
use serde_json::Value;

const SEED: u64 = 20_261_127;
const TENANTS: u64 = 64;
const ROUNDS: u64 = 10;

/// Each has the capacity for 20 containers and the memory for 16 limits.
const GPUS: [&str; 4] = ["A10:23028"; 4];

/// Room for two contexts, and for as much again.
const LIMIT: u64 = 1024 * MIB;

/// What the driver takes unasked for a process: code that its first launch loads, and a block for
/// its small allocations. It may be beyond the limit until the monitor has measured it.
const UNASKED: u64 = 4 * MIB;

/// Minimum time between two failures of the monitor. Each new one waits half a second before it
/// counts memory of an exited process as released, and a process waits two seconds for that.
const MONITOR_INTERVAL: Duration = Duration::from_secs(1);

/// Processes that may be stopped at a time. The simulated GPU can replace the lock of seven.
const MAX_STOPPED: usize = 4;

struct Event {
    name: &'static str,
    weight: u64,
    /// Lets it happen; returns false if it cannot happen now.
    happens: fn(&mut Chaos) -> bool,
}

#[rustfmt::skip]
const EVENTS: &[Event] = &[
    Event { name: "a container starts", weight: 20, happens: Chaos::start_container },
    Event { name: "a second process starts", weight: 8, happens: Chaos::start_second },
    Event { name: "a process ends", weight: 10, happens: Chaos::end_process },
    Event { name: "a process is killed", weight: 14, happens: Chaos::kill_process },
    Event { name: "a process is stopped", weight: 6, happens: Chaos::stop_process },
    Event { name: "a process continues", weight: 4, happens: Chaos::continue_process },
    Event { name: "a folder is removed", weight: 5, happens: Chaos::remove_folder },
    Event { name: "a setting changes", weight: 6, happens: Chaos::change_setting },
    Event { name: "the monitor is upgraded", weight: 3, happens: Chaos::upgrade_monitor },
    Event { name: "the monitor is stopped", weight: 3, happens: Chaos::stop_monitor },
    Event { name: "the monitor returns", weight: 10, happens: Chaos::restore_monitor },
    Event { name: "the monitor is killed", weight: 3, happens: Chaos::kill_monitor },
];

enum Service {
    Runs(Monitor),
    Stopped(Monitor),
    Killed,
}

struct Process {
    child: Child,
    /// Lines that it has yet to write.
    owed: usize,
    stopped: bool,
    /// Its input is closed, so that it ends after its last command.
    ending: bool,
}

impl Process {
    fn start(fixture: &Fixture, container: &Container) -> Self {
        let child = Child::start_for(fixture.program_in(container, "worker"), fixture.lifetime());
        // It writes a line when it is ready.
        Self { child, owed: 1, stopped: false, ending: false }
    }

    fn request(&mut self, command: &str) {
        self.child.write(&format!("{command}\n"));
        self.owed += 1;
    }

    /// Reads what it has yet to write. A process that does not go on fails the test here.
    fn answers(&mut self) -> Vec<Value> {
        let lines = (0..std::mem::take(&mut self.owed)).map(|_| self.child.answer());
        let answers: Vec<Value> =
            lines.map(|line| serde_json::from_str(&line).expect("JSON")).collect();
        for granted in answers.iter().filter_map(|answer| answer["granted"].as_u64()) {
            assert!(granted <= LIMIT, "{granted} bytes are granted of {LIMIT}");
        }
        answers
    }
}

struct Tenant {
    container: Container,
    processes: Vec<Process>,
}

struct Chaos {
    fixture: Fixture,
    random: Random,
    service: Service,
    uuids: Vec<String>,
    tenants: Vec<Tenant>,
    /// When the monitor was last started, stopped or continued.
    monitor_changed: Instant,
    /// Settings that were answered, by node.
    settings: BTreeMap<String, String>,
    /// Containers of all processes so far, by process ID.
    owners: BTreeMap<u64, usize>,
    /// Descriptors of a monitor without containers.
    descriptors: usize,
    occurred: [u64; EVENTS.len()],
    samples: u64,
}

fn told(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Descriptors of a process, and its mappings of files below a folder.
fn held(pid: u32, folder: &str) -> (usize, Vec<String>) {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
    let links: Vec<String> = links
        .filter_map(|link| fs::read_link(link.ok()?.path()).ok())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let mapped = maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned()));
    let files = links.iter().cloned().chain(mapped).filter(|path| path.starts_with(folder));
    (links.len(), files.collect())
}

impl Chaos {
    fn start(seed: u64, tenants: u64, rounds: u64) -> Self {
        let fixture =
            Fixture::new(&GPUS.join(",")).with_extra_time(Duration::from_secs(60 * rounds));
        let monitor = Monitor::start(&fixture);
        let (descriptors, _) = held(monitor.process.pid(), "");
        let uuids = fixture.eventually("the monitor knows the GPUs", || {
            Some(fixture.uuids()).filter(|uuids| uuids.len() == GPUS.len())
        });
        let tenants = (0..usize::try_from(tenants).expect("few"))
            .map(|index| Tenant {
                container: container(&fixture, &uuids, index),
                processes: Vec::new(),
            })
            .collect();
        let mut chaos = Self {
            fixture,
            random: Random::new(seed),
            service: Service::Runs(monitor),
            uuids,
            tenants,
            monitor_changed: Instant::now(),
            settings: BTreeMap::new(),
            owners: BTreeMap::new(),
            descriptors,
            occurred: [0; EVENTS.len()],
            samples: 0,
        };
        for index in (0..chaos.tenants.len()).step_by(2) {
            chaos.start_process(index);
        }
        let file = chaos.fixture.path("gpus");
        chaos.fixture.eventually("the GPUs are there", || file.exists().then_some(()));
        chaos
    }

    fn round(&mut self) {
        let weights: u64 = EVENTS.iter().map(|event| event.weight).sum();
        for process in self.tenants.iter_mut().flat_map(|tenant| &mut tenant.processes) {
            process.request("run 0.02");
        }
        let before = self.occurred;
        for _ in 0..2 * self.tenants.len() {
            loop {
                let mut drawn = self.random.below(weights);
                let passes = |event: &Event| {
                    let here = drawn < event.weight;
                    drawn = drawn.saturating_sub(event.weight);
                    here
                };
                let which = EVENTS.iter().position(passes).expect("the weights' sum is greater");
                if self.occurs(which) {
                    break;
                }
            }
            std::thread::sleep(Duration::from_micros(self.random.below(20_000)));
        }
        // In a short round those that were not drawn: the monitor's in an order in which each can.
        for (which, count) in before.into_iter().enumerate() {
            if self.occurred[which] == count {
                self.occurs(which);
            }
        }
        self.settle();
        self.check();
    }

    /// Lets an event happen, and samples the GPUs. Returns false if it cannot happen now.
    fn occurs(&mut self, which: usize) -> bool {
        let occurs = (EVENTS[which].happens)(self);
        if occurs {
            println!("chaos: {}", EVENTS[which].name);
            self.occurred[which] += 1;
            self.sample();
        }
        occurs
    }

    /// Starts a process that has work for some time.
    fn start_process(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        if !tenant.container.directory().exists() {
            tenant.container = container(&self.fixture, &self.uuids, index);
        }
        let mut process = Process::start(&self.fixture, &tenant.container);
        self.owners.insert(process.child.pid().into(), index);
        for _ in 0..3 {
            process.request("run 0.05");
            // The others have two processes, of which one may start while the other fills.
            if index.is_multiple_of(2) {
                process.request("fill");
                process.request("free");
            }
        }
        tenant.processes.push(process);
    }

    /// Returns one of the tenants with this property.
    fn one_tenant(&mut self, has: impl Fn(usize, &Tenant) -> bool) -> Option<usize> {
        let all = self.tenants.iter().enumerate();
        let some: Vec<usize> =
            all.filter(|(index, tenant)| has(*index, tenant)).map(|(index, _)| index).collect();
        self.random.pick(&some).inspect(|index| println!("chaos: t{index}"))
    }

    /// Returns one of the processes with this property, by tenant and position.
    fn one_process(&mut self, has: impl Fn(&Process) -> bool) -> Option<(usize, usize)> {
        let all = self.tenants.iter().enumerate().flat_map(|(index, tenant)| {
            tenant.processes.iter().enumerate().map(move |(at, process)| (index, at, process))
        });
        let some: Vec<(usize, usize)> =
            all.filter(|(_, _, process)| has(process)).map(|(index, at, _)| (index, at)).collect();
        self.random.pick(&some).inspect(|(index, _)| println!("chaos: t{index}"))
    }

    fn start_container(&mut self) -> bool {
        let free = self.one_tenant(|_, tenant| tenant.processes.is_empty());
        free.map(|index| self.start_process(index)).is_some()
    }

    fn start_second(&mut self) -> bool {
        let alone = self.one_tenant(|index, tenant| index % 2 == 1 && tenant.processes.len() == 1);
        alone.map(|index| self.start_process(index)).is_some()
    }

    fn end_process(&mut self) -> bool {
        let Some((index, at)) = self.one_process(|process| !process.stopped && !process.ending)
        else {
            return false;
        };
        let process = &mut self.tenants[index].processes[at];
        process.child.close_input();
        process.ending = true;
        true
    }

    fn kill_process(&mut self) -> bool {
        let Some((index, at)) = self.one_process(|_| true) else { return false };
        let process = self.tenants[index].processes.remove(at);
        let outcome = process.child.kill();
        let ended = process.ending && outcome.code() == Some(0);
        assert!(ended || outcome.signal() == Some(libc::SIGKILL), "{outcome:?}");
        true
    }

    fn stop_process(&mut self) -> bool {
        let stopped = |tenant: &Tenant| tenant.processes.iter().filter(|one| one.stopped).count();
        if self.tenants.iter().map(stopped).sum::<usize>() == MAX_STOPPED {
            return false;
        }
        let Some((index, at)) = self.one_process(|process| !process.stopped) else { return false };
        let process = &mut self.tenants[index].processes[at];
        process.child.signal(libc::SIGSTOP);
        process.stopped = true;
        true
    }

    fn continue_process(&mut self) -> bool {
        let Some((index, at)) = self.one_process(|process| process.stopped) else { return false };
        let process = &mut self.tenants[index].processes[at];
        process.child.signal(libc::SIGCONT);
        process.stopped = false;
        true
    }

    fn remove_folder(&mut self) -> bool {
        let Some(index) = self.one_tenant(|_, tenant| {
            tenant.processes.is_empty() && tenant.container.directory().exists()
        }) else {
            return false;
        };
        let container = &self.tenants[index].container;
        fs::remove_dir_all(container.directory()).expect("its folder");
        let own = format!("/{}/", container.name());
        self.settings.retain(|node, _| !node.contains(&own));
        true
    }

    fn change_setting(&mut self) -> bool {
        if !matches!(self.service, Service::Runs(_)) {
            return false;
        }
        let gpu = self.random.below(GPUS.len() as u64);
        let (node, values) = self
            .random
            .pick(&[
                ("policy", [1, 2, 4]),
                ("prio_ratio", [30, 60, 99]),
                ("max_inst", [20, 22, 25]),
            ])
            .expect("there are some");
        let value = self.random.pick(&values).expect("there are some").to_string();
        let node = format!("{gpu}/{node}");
        self.fixture.set(&node, &value);
        self.settings.insert(node, value);
        true
    }

    /// Waits until the monitor may fail again.
    fn pace_monitor(&mut self) {
        std::thread::sleep(MONITOR_INTERVAL.saturating_sub(self.monitor_changed.elapsed()));
    }

    fn kill_monitor(&mut self) -> bool {
        self.pace_monitor();
        match std::mem::replace(&mut self.service, Service::Killed) {
            Service::Runs(monitor) | Service::Stopped(monitor) => {
                let outcome = monitor.process.kill();
                assert_eq!(outcome.signal(), Some(libc::SIGKILL), "it had ended: {outcome:?}");
                true
            }
            Service::Killed => false,
        }
    }

    fn stop_monitor(&mut self) -> bool {
        self.pace_monitor();
        let (service, changed) = match std::mem::replace(&mut self.service, Service::Killed) {
            Service::Runs(monitor) => {
                monitor.process.signal(libc::SIGSTOP);
                (Service::Stopped(monitor), true)
            }
            other => (other, false),
        };
        self.service = service;
        changed
    }

    fn upgrade_monitor(&mut self) -> bool {
        self.pace_monitor();
        let (service, changed) = match std::mem::replace(&mut self.service, Service::Killed) {
            Service::Runs(monitor) => (Service::Runs(monitor.upgrade(&self.fixture)), true),
            other => (other, false),
        };
        self.monitor_changed = Instant::now();
        self.service = service;
        changed
    }

    fn restore_monitor(&mut self) -> bool {
        let (service, changed) = match std::mem::replace(&mut self.service, Service::Killed) {
            Service::Runs(monitor) => (monitor, false),
            Service::Stopped(monitor) => {
                monitor.process.signal(libc::SIGCONT);
                (monitor, true)
            }
            Service::Killed => (Monitor::start(&self.fixture), true),
        };
        if changed {
            self.monitor_changed = Instant::now();
        }
        self.service = Service::Runs(service);
        changed
    }

    fn gpus(&self) -> Value {
        let mut command = self.fixture.native(&self.fixture.dist().file("cgpu-sim"));
        command.args(["status", "--json"]);
        Outcome::of(command).silent().json()["gpus"].take()
    }

    /// Asserts that no container holds more of a GPU than its limit and what no process asked for.
    fn sample(&mut self) {
        let mut sums = BTreeMap::new();
        for process in self.gpus().as_array().expect("GPUs").iter().flat_map(processes) {
            let pid = process["pid"].as_u64().expect("a process ID");
            let bytes = process["memory_bytes"].as_u64().expect("bytes");
            if let Some(owner) = self.owners.get(&pid) {
                let (sum, bound) = sums.entry(*owner).or_insert((0, LIMIT));
                (*sum, *bound) = (*sum + bytes, *bound + UNASKED);
            }
        }
        for (owner, (bytes, bound)) in sums {
            assert!(bytes <= bound, "container t{owner} holds {bytes} of {bound} bytes");
        }
        self.samples += 1;
    }

    /// Ends what was disturbed: nothing is stopped, a monitor runs, no process has work, each
    /// container has one process at most.
    fn settle(&mut self) {
        while self.continue_process() {}
        self.restore_monitor();
        for tenant in &mut self.tenants {
            for mut process in std::mem::take(&mut tenant.processes) {
                process.answers();
                if process.ending || !tenant.processes.is_empty() {
                    process.child.finish().silent();
                } else {
                    tenant.processes.push(process);
                }
            }
        }
    }

    /// Compares the model with the monitor, the ledger and the GPUs.
    fn check(&mut self) {
        let fixture = &self.fixture;
        for (node, value) in &self.settings {
            let root = fixture.root();
            let outcome =
                Outcome::of(fixture.cgpu(&["get", node, "--root", &root.to_string_lossy()]));
            assert_eq!(outcome.silent().stdout.trim(), value, "{node}");
        }
        let mine: BTreeSet<String> = self
            .tenants
            .iter()
            .map(|tenant| tenant.container.directory())
            .filter(|folder| folder.exists())
            .map(|folder| folder.to_string_lossy().into_owned())
            .collect();
        fixture.eventually("the monitor knows each container and no other", || {
            let smi = fixture.smi();
            let its = smi["containers"].as_array()?;
            let its: BTreeSet<String> =
                its.iter().filter_map(|one| Some(one["dir"].as_str()?.to_owned())).collect();
            (smi["monitor"] == true && its == mine).then_some(())
        });
        let vacant =
            |tenant: &&Tenant| tenant.processes.is_empty() && tenant.container.file("use").exists();
        for tenant in self.tenants.iter().filter(vacant) {
            fixture.wait_until_empty(&tenant.container);
        }
        let pids = |tenant: &Tenant| {
            tenant.processes.iter().map(|one| u64::from(one.child.pid())).collect::<Vec<_>>()
        };
        let living: BTreeSet<u64> = self.tenants.iter().flat_map(pids).collect();
        fixture.eventually("the GPUs have the living processes and no others", || {
            let gpus = self.gpus();
            let listed = gpus.as_array()?.iter().flat_map(processes);
            let listed: Option<BTreeSet<u64>> = listed.map(|one| one["pid"].as_u64()).collect();
            (listed? == living).then_some(())
        });
        let Service::Runs(monitor) = &self.service else { panic!("no monitor") };
        let (pid, folder) = (monitor.process.pid(), fixture.root().join("containers"));
        fixture.wait_until_none("files of removed containers in the monitor", || {
            let (_, files) = held(pid, &folder.to_string_lossy());
            files.into_iter().filter(|file| !fs::exists(file).unwrap_or(false)).collect()
        });
        // All at once: each GPU has room for all limits.
        for process in self.tenants.iter_mut().flat_map(|tenant| &mut tenant.processes) {
            for command in ["fill", "free", "run 0.001"] {
                process.request(command);
            }
        }
        for tenant in &mut self.tenants {
            for process in &mut tenant.processes {
                let name = tenant.container.name();
                let [filled, _, ran] = &process.answers()[..] else { panic!("three answers") };
                let granted = filled["granted"].as_u64().expect("bytes");
                let all = filled["result"] == 2 && Worker::is_all(granted, LIMIT);
                assert!(all, "{name}: {filled} of {LIMIT}");
                assert!(ran["seconds"].as_f64() > Some(0.0), "{name}: {ran}");
            }
        }
    }

    /// Ends everything. The monitor must then have what it had before there was a container.
    fn end(mut self) {
        for tenant in &mut self.tenants {
            for process in std::mem::take(&mut tenant.processes) {
                process.child.finish().silent();
            }
        }
        self.check();
        while self.remove_folder() {}
        let fixture = &self.fixture;
        fixture.eventually("the monitor knows no container", || {
            fixture.smi()["containers"].as_array()?.is_empty().then_some(())
        });
        let Service::Runs(monitor) = self.service else { panic!("no monitor") };
        let (pid, folder) = (monitor.process.pid(), fixture.root().join("containers"));
        fixture.wait_until_none("files and descriptors of containers in the monitor", || {
            let (descriptors, mut files) = held(pid, &folder.to_string_lossy());
            if descriptors > self.descriptors {
                files.push(format!("{descriptors} descriptors, {} before", self.descriptors));
            }
            files
        });
        monitor.process.signal(libc::SIGTERM);
        let outcome = monitor.process.finish();
        assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    }
}

/// Creates the folder of a tenant's container, and its limit on its GPU.
fn container(fixture: &Fixture, uuids: &[String], index: usize) -> Container {
    let container = fixture.limited(&format!("t{index}"), LIMIT / MIB);
    container.on_gpu(&uuids[index % uuids.len()], LIMIT / MIB)
}

fn processes(gpu: &Value) -> &[Value] {
    gpu["processes"].as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn random_failures_of_tenants_and_monitor_lose_nothing() {
    let seed = told("CGPU_CHAOS_SEED", SEED);
    let tenants = told("CGPU_CHAOS_TENANTS", TENANTS);
    let rounds = told("CGPU_CHAOS_ROUNDS", ROUNDS);
    println!("chaos: seed {seed}");
    let start = Instant::now();
    let mut chaos = Chaos::start(seed, tenants, rounds);
    for round in 0..rounds {
        chaos.round();
        println!("chaos: round {} of {rounds}, {} s", round + 1, start.elapsed().as_secs());
    }
    let names = EVENTS.iter().zip(chaos.occurred);
    let list: Vec<String> = names.map(|(event, count)| format!("{} {count}", event.name)).collect();
    println!(
        "chaos: {tenants} tenants, {} events in {} s, {} samples, {} processes: {}",
        chaos.occurred.iter().sum::<u64>(),
        start.elapsed().as_secs(),
        chaos.samples,
        chaos.owners.len(),
        list.join(", ")
    );
    chaos.end();
}
