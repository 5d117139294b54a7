//! The driver's memory limits for containers' control groups: real groups (version 2), and a
//! simulated driver with both of its back ends.

mod figures;
mod lasting;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use cgpu_client::message::{Registered, Registration};
use cgpu_client::process::{Process, groups_of};
use cgpu_client::wall::{WallState, WallStatus};
use cgpu_shm::paths;
use cgpu_shm::region::Region;
use cgpu_sim::gpu::GpuSpec;
use cgpu_sim::machine::PhysicalPlace;
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{GroupLimit, Wall};
use cgpu_sim::{Bytes, Machine, Settings};
use cgpu_test_groups::ControlGroups;
use rustix::process::Signal;

use super::metrics::free_address;
use super::monitor::{Monitor, eventually};
use super::{registration, skip, status};

const MIB: u64 = 1 << 20;
const GPUS: &str = "A10:8192";
/// What a context takes, in MiB.
const CONTEXT: u64 = 256;
/// An engine's id. The monitor shows the first twelve digits.
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A host with a simulated GPU, control groups and a monitor.
struct Fixture {
    host: super::Fixture,
    groups: ControlGroups,
    machine: Machine,
    wall: Wall,
    nvml: PathBuf,
}

fn figures_of(wall: Wall) -> Figures {
    Figures { wall, death_delay: cgpu_sim::Nanos(1), ..Figures::default() }
}

fn settings(state: &Path, figures: Figures) -> Settings {
    Settings {
        state: state.to_owned(),
        gpus: Some(GpuSpec::parse_list(GPUS).unwrap()),
        time_scale_milli: 1_000,
        figures,
    }
}

/// Returns the simulated NVML beside the tests, as `cargo xtask test` builds it.
fn simulated_nvml() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let beside = program.ancestors().nth(3)?.join("test");
    let folder = std::env::var_os("CGPU_DIST").map_or(beside, PathBuf::from);
    Some(folder.join("sim/libnvidia-ml.so.1")).filter(|file| file.exists())
}

impl Fixture {
    /// None: the test is skipped.
    fn new(name: &str, wall: Wall) -> Option<Self> {
        Self::with(name, figures_of(wall))
    }

    /// As [`Fixture::new`], with a simulated GPU with these figures.
    fn with(name: &str, figures: Figures) -> Option<Self> {
        let wall = figures.wall;
        let Some(nvml) = simulated_nvml() else {
            skip::skip("daemon", "nvml", "the simulated NVML was not built: cargo xtask test");
            return None;
        };
        let groups = match ControlGroups::mount(&format!("{name}-{wall:?}")) {
            Ok(groups) => groups,
            Err(reason) => {
                skip::skip("daemon", "groups", &reason);
                return None;
            }
        };
        let host = super::Fixture::new();
        let machine = Machine::open(&settings(&host.root().join("gpus"), figures)).unwrap();
        Some(Self { host, groups, machine, wall, nvml })
    }

    /// Runs a test with each back end.
    fn each(name: &str, test: impl Fn(&Self)) {
        for wall in [Wall::Dmem, Wall::Misc] {
            let Some(fixture) = Self::new(name, wall) else { return };
            test(&fixture);
        }
    }

    fn root(&self) -> &Path {
        self.host.root()
    }

    /// Starts a monitor without a margin, so that limits are exact.
    fn monitor(&self) -> Monitor {
        self.monitor_with("wall_margin_mib = 0\n")
    }

    fn monitor_with(&self, more: &str) -> Monitor {
        self.monitor_in(more, Vec::new())
    }

    /// Starts a monitor with these variables.
    fn monitor_in(&self, more: &str, also: Vec<(&'static str, PathBuf)>) -> Monitor {
        let config = format!("nvml = {:?}\n{more}", self.nvml);
        let wall = if self.wall == Wall::Misc { "misc" } else { "dmem" };
        let own = [
            ("CGPU_SIM_STATE", self.root().join("gpus")),
            ("CGPU_SIM_GPUS", GPUS.into()),
            ("CGPU_SIM_WALL", wall.into()),
            // The first version with such limits.
            ("CGPU_SIM_DRIVER", "13040".into()),
        ];
        let variables = own.into_iter().chain(also).collect();
        Monitor::start_in_environment(self.root(), &config, variables)
    }

    /// Returns a container's control group, as an engine names it.
    fn folder(&self, id: &str) -> PathBuf {
        self.groups.create(&format!("docker/{id}"))
    }

    /// Makes a container as `cgpu-runtime` does, with a limit in MiB and this first process.
    fn container(&self, id: &str, limit: u64, pid: u32) -> PathBuf {
        let dir = paths::containers(self.root()).join(id);
        super::make(&dir);
        let write = |path: Option<PathBuf>, text: String| {
            let path = path.unwrap();
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let first = Process::find(pid.cast_signed()).unwrap();
        let groups = groups_of(pid.cast_signed());
        let record = serde_json::json!({ "bundle": "/b", "first": first, "groups": groups });
        write(paths::host_record(&dir), record.to_string());
        let (gpu, bytes) = (self.uuid(), limit * MIB);
        write(paths::host_limits(&dir), format!("version 1\ngpu {gpu} {bytes}\n"));
        dir
    }

    fn uuid(&self) -> String {
        let gpu = &GpuSpec::parse_list(GPUS).unwrap()[0];
        cgpu_shm::uuid::Uuid(gpu.uuid(0)).to_string()
    }

    fn register(&self, monitor: &Monitor, dir: &Path, pid: u32) -> Registered {
        let pid = Some(pid.cast_signed());
        // On a busy machine the driver may take longer than a reply waits.
        loop {
            let again = Registration { pid, ..registration(dir) };
            let registered = monitor.client().register(again).unwrap();
            let reasons = registered.walls.iter().filter_map(|wall| wall.reason.as_deref());
            if !reasons.into_iter().any(|reason| reason.contains("has not answered")) {
                return registered;
            }
        }
    }

    /// Returns the hard limit of a group in MiB, as the driver has it.
    fn hard(&self, folder: &Path) -> Option<u64> {
        let path = cgpu_sim::control_group::of_folder(folder).unwrap();
        let (limit, _) = self.machine.group_limit(0, &path).ok()?;
        (limit.hard != u64::MAX).then_some(limit.hard / MIB)
    }

    /// Sets a limit as another program does.
    fn set(&self, folder: &Path, hard: Option<u64>) {
        let hard = hard.map_or(u64::MAX, |mib| mib * MIB);
        self.machine.limit_group(0, folder, GroupLimit { soft: 0, hard }).unwrap();
    }

    fn client(&self, folder: &Path) -> Client {
        Client::start(&self.root().join("gpus"), self.wall, folder)
    }

    fn recorded(&self) -> usize {
        fs::read_dir(paths::walls(self.root())).map_or(0, Iterator::count)
    }
}

/// Returns what the status says of a container's wall.
fn wall(monitor: &Monitor, id: &str) -> WallStatus {
    let status = status(monitor);
    let container = status.containers.into_iter().find(|one| id.starts_with(&one.id)).unwrap();
    container.gpus.into_iter().find_map(|share| share.wall).unwrap_or_default()
}

/// A process that follows commands: `join DIR` (as the shim does), `map DIR` (the region alone),
/// `context`, `take MIB`, `free` (the last one), `keep MIB` (for a program without CUDA, in the
/// group).
struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(state: &Path, wall: Wall, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "wall::client", "--nocapture", "--quiet"])
            .env("CGPU_TEST_CLIENT", state)
            .env("CGPU_TEST_WALL", format!("{wall:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = ControlGroups::start_in(&mut command, folder).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.to, "{command}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the client has ended");
            if let Some(answer) = line.split("answer ").nth(1) {
                return answer.trim().to_owned();
            }
        }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// Not a test by itself: the process of a [`Client`].
#[test]
fn client() {
    let Some(state) = std::env::var_os("CGPU_TEST_CLIENT") else { return };
    // SAFETY: arms a timer of this process, the watchdog.
    unsafe { libc::alarm(200) };
    let misc = std::env::var("CGPU_TEST_WALL").is_ok_and(|wall| wall == "Misc");
    let wall = if misc { Wall::Misc } else { Wall::Dmem };
    let machine = Machine::open(&settings(Path::new(&state), figures_of(wall))).unwrap();
    let (mut regions, mut holders) = (Vec::new(), Vec::new());
    let mut context = None;
    let mut process = None;
    let mut held = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let answer = match line.split(' ').collect::<Vec<_>>()[..] {
            ["join", dir] => {
                process = Some(figures::join(Path::new(dir)));
                Ok(())
            }
            ["context"] => machine.create_context(0).map(|created| context = Some(created)),
            ["take", size] => {
                let size = Bytes(size.parse::<u64>().unwrap() * MIB);
                machine.allocate(context.unwrap(), size).map(|address| held.push(address))
            }
            ["free"] => machine.free(held.pop().unwrap()),
            ["map", dir] => {
                regions.push(Region::open(Path::new(dir)).unwrap());
                Ok(())
            }
            ["keep", size] => {
                let size = Bytes(size.parse::<u64>().unwrap() * MIB);
                let physical = machine.create_physical(PhysicalPlace::On(0.into()), size, true);
                physical.and_then(|physical| machine.export_physical(physical)).map(|descriptor| {
                    holders
                        .push(Command::new("sleep").arg("200").stdin(descriptor).spawn().unwrap());
                })
            }
            _ => panic!("{line}"),
        };
        match answer {
            Ok(()) => println!("answer done"),
            Err(cgpu_sim::Error::OutOfMemory) => println!("answer full"),
            Err(error) => panic!("{line}: {error}"),
        }
    }
    drop(process);
}

#[test]
fn limit_is_set_before_the_registration_is_answered() {
    Fixture::each("set", |fixture| {
        let metrics = free_address();
        let monitor = fixture.monitor_with(&format!("metrics = \"{metrics}\"\n"));
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        let registered = fixture.register(&monitor, &dir, client.pid());
        // The margin is that of one process that starts.
        assert_eq!(fixture.hard(&folder), Some(1512));
        let [wall_of] = &registered.walls[..] else { panic!("{registered:?}") };
        assert_eq!((wall_of.state, &wall_of.reason), (WallState::Driver, &None));
        assert_eq!(wall_of.uuid, fixture.uuid());
        // It holds without the shim.
        assert_eq!(client.command("context"), "done");
        assert_eq!(client.command("take 1300"), "full");
        assert_eq!(client.command("take 1200"), "done");
        eventually("a margin for its context", || fixture.hard(&folder) == Some(2024));
        eventually("its use", || {
            let wall = wall(&monitor, ID);
            let used = Some((CONTEXT + 1200) * MIB);
            (wall.hard, wall.used, wall.margin) == (Some(2024 * MIB), used, 1024 * MIB)
                && wall.excess == (CONTEXT + 1200) * MIB
        });
        // The process has no shim.
        eventually("a process without the shim", || {
            wall(&monitor, ID).state == WallState::DriverExceptManaged
        });
        figures::shows(
            metrics,
            &[
                ("cgpu_wall_state{state=\"driver_except_managed\",reason=\"\"}", 1),
                ("cgpu_wall_hard_bytes{}", 2024),
                ("cgpu_wall_used_bytes{}", CONTEXT + 1200),
                ("cgpu_wall_excess_bytes{}", CONTEXT + 1200),
            ],
        );
    });
}

/// As where the monitor hangs while a container starts, which then is not waited for.
#[test]
fn container_that_had_memory_before_its_registration_is_partial() {
    let Some(fixture) = Fixture::new("before", Wall::Misc) else { return };
    let monitor = fixture.monitor();
    let folder = fixture.folder(ID);
    let mut client = fixture.client(&folder);
    assert_eq!(client.command("context"), "done");
    assert_eq!(client.command("take 800"), "done");
    let dir = fixture.container(ID, 1500, client.pid());
    fixture.register(&monitor, &dir, client.pid());
    eventually("memory that is not charged", || wall(&monitor, ID).state == WallState::Partial);
    assert_eq!(client.command("free"), "done");
    client.end();
}

/// The ledger is full, and each process loads code, which the shim learns of later.
#[test]
fn late_code_of_many_processes_is_granted() {
    const LIMIT: u64 = 5000;
    const PROCESSES: u64 = 10;
    const CODE: u64 = 128;
    Fixture::each("code", |fixture| {
        let monitor = fixture.monitor_with("");
        let folder = fixture.folder(ID);
        let mut clients: Vec<Client> = (0..PROCESSES).map(|_| fixture.client(&folder)).collect();
        let dir = fixture.container(ID, LIMIT, clients[0].pid());
        fixture.register(&monitor, &dir, clients[0].pid());
        for client in &mut clients {
            assert_eq!(client.command("context"), "done");
            let own = LIMIT / PROCESSES - CONTEXT;
            assert_eq!(client.command(&format!("take {own}")), "done");
        }
        // Two margins of 512, and a quarter of each other process.
        let quarters = (PROCESSES - 1) * (LIMIT / PROCESSES / 4);
        eventually("all margins", || fixture.hard(&folder) >= Some(LIMIT + 512 + quarters));
        for client in &mut clients {
            assert_eq!(client.command(&format!("take {CODE}")), "done", "{:?}", fixture.wall);
        }
    });
}

/// The limit rises with each context, and one process takes what the others leave.
#[test]
fn margins_of_processes_that_have_ended_are_bounded() {
    const LIMIT: u64 = 1024;
    const MARGIN: u64 = 512;
    const OTHERS: u64 = 5;
    Fixture::each("margins", |fixture| {
        let monitor = fixture.monitor_with("");
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, LIMIT, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(client.command("context"), "done");
        let mut others: Vec<Client> = (0..OTHERS).map(|_| fixture.client(&folder)).collect();
        for other in &mut others {
            // The limit follows the number of processes.
            while other.command("context") != "done" {
                sleep(Duration::from_millis(100));
            }
        }
        let mut fill = || while client.command("take 64") == "done" {};
        let used = || wall(&monitor, ID).used.unwrap_or_default() / MIB;
        // One margin for it, one for a process that starts, and a quarter for each other.
        let bound = LIMIT + 2 * MARGIN + OTHERS * MARGIN / 4;
        for _ in 0..3 {
            fill();
            sleep(Duration::from_millis(1500));
        }
        let with_others = used();
        drop(others);
        fill();
        sleep(Duration::from_millis(2500));
        println!("{:?}: {with_others} MiB, then {} of {LIMIT}", fixture.wall, used());
        assert!(with_others > LIMIT && with_others <= bound, "{with_others} MiB");
        assert!(used() > LIMIT && used() <= bound, "{} MiB", used());
    });
}

#[test]
fn limit_of_another_program_stays_if_lower_and_is_replaced_if_higher() {
    Fixture::each("others", |fixture| {
        let monitor = fixture.monitor();
        let folder = fixture.folder(ID);
        let client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(wall(&monitor, ID).changed, None);
        fixture.set(&folder, Some(3000));
        eventually("the limit again", || fixture.hard(&folder) == Some(1000));
        eventually("a report", || wall(&monitor, ID).changed.is_some());
        fixture.set(&folder, None);
        eventually("the limit again", || fixture.hard(&folder) == Some(1000));
        fixture.set(&folder, Some(700));
        eventually("a report", || {
            wall(&monitor, ID).changed.is_some_and(|changed| changed.contains("700 MiB"))
        });
        sleep(Duration::from_millis(2500));
        assert_eq!(fixture.hard(&folder), Some(700));
        assert_eq!(wall(&monitor, ID).hard, Some(700 * MIB));
    });
}

#[test]
fn limit_below_the_use_follows_it_down() {
    Fixture::each("resize", |fixture| {
        let monitor = fixture.monitor();
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, 2000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(fixture.hard(&folder), Some(2000));
        let shims = figures::join(&dir);
        let shims_limit = || shims.region.grant().limit(shims.gpu, Bytes::ZERO).0 / MIB;
        assert_eq!(client.command("context"), "done");
        assert_eq!(client.command("take 500"), "done");
        assert_eq!(client.command("take 300"), "done");
        monitor
            .client()
            .set(&format!("0/{}/memsize", &ID[..12]), &(300 * MIB).to_string())
            .unwrap();
        // When the request is answered, the shim refuses by the new limit, and the driver by the
        // use.
        assert_eq!((shims_limit(), fixture.hard(&folder)), (300, Some(CONTEXT + 800)));
        assert_eq!(client.command("take 1"), "full");
        assert_eq!(client.command("free"), "done");
        eventually("a limit that follows", || fixture.hard(&folder) == Some(CONTEXT + 500));
        assert_eq!(client.command("free"), "done");
        eventually("the limit", || fixture.hard(&folder) == Some(300));
        assert_eq!(wall(&monitor, ID).changed, None);
    });
}

/// The shim's limit is changed first (`changed_limit_reaches_the_grant_page`), and the driver's
/// before the request is answered: a program that knows of the new limit is not refused by the old
/// one.
#[test]
fn new_limit_is_the_drivers_when_its_request_is_answered() {
    Fixture::each("answer", |fixture| {
        let mut monitor = fixture.monitor();
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(client.command("context"), "done");
        let memsize = format!("0/{}/memsize", &ID[..12]);
        let resize = |monitor: &Monitor, limit: u64| {
            monitor.client().set(&memsize, &(limit * MIB).to_string()).unwrap();
        };
        for wanted in [2000, 1500, 4000, 900, 3000] {
            resize(&monitor, wanted);
            assert_eq!(fixture.hard(&folder), Some(wanted));
        }
        assert_eq!(client.command("take 2500"), "done");
        // As if the monitor had been killed between the two limits.
        let record = paths::walls(fixture.root()).join(ID);
        for wanted in [6000, 3500] {
            let (before, hard) = (fs::read(&record).unwrap(), fixture.hard(&folder));
            resize(&monitor, wanted);
            monitor.kill();
            fs::write(&record, before).unwrap();
            fixture.set(&folder, hard);
            monitor.restart();
            eventually("the limit", || fixture.hard(&folder) == Some(wanted));
            eventually("a wall", || wall(&monitor, ID).hard == Some(wanted * MIB));
            assert_eq!(wall(&monitor, ID).changed, None);
        }
    });
}

#[test]
fn restarted_monitor_knows_its_own_limit_and_restores_it() {
    Fixture::each("restart", |fixture| {
        let mut monitor = fixture.monitor();
        let folder = fixture.folder(ID);
        let client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        monitor.kill();
        // As if it had been killed after it set a lower limit, before it read that back.
        let record = paths::walls(fixture.root()).join(ID);
        let text = fs::read_to_string(&record).unwrap();
        let begun = text.replace("\"setting\":null", &format!("\"setting\":{}", 600 * MIB));
        assert_ne!(begun, text);
        fs::write(&record, begun).unwrap();
        fixture.set(&folder, Some(600));
        monitor.restart();
        eventually("the limit", || fixture.hard(&folder) == Some(1000));
        eventually("a wall", || wall(&monitor, ID).hard == Some(1000 * MIB));
        assert_eq!(wall(&monitor, ID).changed, None);
        monitor.kill();
        fixture.set(&folder, None);
        monitor.restart();
        eventually("the limit again", || fixture.hard(&folder) == Some(1000));
        monitor.succeed();
        eventually("a wall", || wall(&monitor, ID).hard == Some(1000 * MIB));
        assert_eq!(fixture.hard(&folder), Some(1000));
    });
}

#[test]
fn container_that_is_found_late_has_its_limit_from_then_on() {
    Fixture::each("late", |fixture| {
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        assert_eq!(client.command("context"), "done");
        assert_eq!(client.command("take 800"), "done");
        fixture.container(ID, 1500, client.pid());
        let monitor = fixture.monitor();
        eventually("the limit", || fixture.hard(&folder) == Some(1500));
        // One back end does not charge what was there before.
        eventually("its state", || {
            let wall = wall(&monitor, ID);
            let expected = match fixture.wall {
                Wall::Misc => WallState::Partial,
                _ => WallState::DriverExceptManaged,
            };
            wall.state == expected && wall.hard == Some(1500 * MIB)
        });
        assert_eq!(client.command("free"), "done");
        assert_eq!(client.command("take 1600"), "full");
    });
}

#[test]
fn reasons_without_a_limit_are_told() {
    let Some(fixture) = Fixture::new("reasons", Wall::Dmem) else { return };
    let metrics = free_address();
    let monitor = fixture.monitor_with(&format!("metrics = \"{metrics}\"\nwall_margin_mib = 0\n"));
    let folder = fixture.folder(ID);
    fixture.machine.set_controller(&folder, false).unwrap();
    let client = fixture.client(&folder);
    let dir = fixture.container(ID, 1000, client.pid());
    let registered = fixture.register(&monitor, &dir, client.pid());
    figures::shows(metrics, &[("cgpu_wall_state{state=\"shim\",reason=\"not_found\"}", 1)]);
    assert_eq!(registered.walls[0].state, WallState::Shim);
    assert!(registered.walls[0].reason.as_ref().unwrap().contains("does not know"));
    assert_eq!(wall(&monitor, ID).absent.as_deref(), Some("not_found"));
    // From then on it has one.
    fixture.machine.set_controller(&folder, true).unwrap();
    eventually("the limit", || fixture.hard(&folder) == Some(1000));
    // Its process is moved to a group with others.
    ControlGroups::move_to(client.pid(), &fixture.groups.create("user.slice"));
    eventually("a reason", || wall(&monitor, ID).absent.as_deref() == Some("no_own_group"));
    assert_eq!(fixture.hard(&folder), None);
    // A group of its own that the program names.
    let made = fixture.groups.create("cgpu/made");
    ControlGroups::move_to(client.pid(), &made);
    let (pid, cgroup) = (Some(client.pid().cast_signed()), Some(made.clone()));
    monitor.client().register(Registration { pid, cgroup, ..registration(&dir) }).unwrap();
    assert_eq!(fixture.hard(&made), Some(1000));
}

/// The limit would be none. `cgpu-runtime` refuses the start with the reason. A container that runs
/// keeps its limit, also if the monitor starts again.
#[test]
fn margin_that_cannot_apply_is_told() {
    Fixture::each("margin", |fixture| {
        let mut monitor = fixture.monitor_with("wall_margin_mib = 600\n");
        let folder = fixture.folder(ID);
        let client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        let registered = fixture.register(&monitor, &dir, client.pid());
        assert_eq!(registered.walls[0].error, None);
        assert_eq!(fixture.hard(&folder), Some(1600));
        let file = fixture.root().join("monitor.toml");
        let config = fs::read_to_string(&file).unwrap();
        let is_kept = |monitor: &Monitor, margin: i64, why: &str| {
            // Its margin is that without a configured one.
            eventually("the limit", || fixture.hard(&folder) == Some(1512));
            let registered = fixture.register(monitor, &dir, client.pid());
            let error = format!("wall_margin_mib in monitor.toml is {margin}, {why}");
            assert_eq!(registered.walls[0].error, Some(error));
            eventually("a wall", || {
                let wall = wall(monitor, ID);
                assert_eq!(wall.changed, None);
                (wall.state, wall.hard) == (WallState::Driver, Some(1512 * MIB))
            });
            assert_eq!(fixture.hard(&folder), Some(1512));
            let warning = format!(
                "no container starts on GPU 0: wall_margin_mib in monitor.toml is {margin}"
            );
            let warnings = status(monitor).warnings;
            assert!(warnings.len() == 1 && warnings[0].starts_with(&warning), "{warnings:?}");
        };
        for (margin, why) in [(8193, "but the GPU has 8192 MiB"), (-1, "below zero")] {
            let text = config.replace("_margin_mib = 600", &format!("_margin_mib = {margin}"));
            fs::write(&file, text).unwrap();
            monitor.signal(Signal::HUP);
            // The file is read when the error of the registration is the new one.
            eventually("the new configuration", || {
                let error = fixture.register(&monitor, &dir, client.pid()).walls[0].error.clone();
                error.is_some_and(|error| error.contains(why))
            });
            is_kept(&monitor, margin, why);
            monitor.kill();
            monitor.restart();
            is_kept(&monitor, margin, why);
        }
    });
}

#[test]
fn limit_is_removed_at_the_end_of_its_container() {
    Fixture::each("end", |fixture| {
        let monitor = fixture.monitor();
        let folder = fixture.folder(ID);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(ID, 1000, client.pid());
        let pid = Some(client.pid().cast_signed());
        for pid in [None, pid] {
            fixture.register(&monitor, &dir, client.pid());
            assert_eq!(fixture.hard(&folder), Some(1000));
            monitor.client().release(&dir, pid).unwrap();
            assert_eq!((fixture.hard(&folder), fixture.recorded()), (None, 0));
            sleep(Duration::from_millis(1500));
            assert_eq!(fixture.hard(&folder), None);
        }
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(fixture.hard(&folder), Some(1000));
        // Its first process ends, and no program tells the monitor.
        client.end();
        eventually("no limit", || fixture.hard(&folder).is_none() && fixture.recorded() == 0);
        assert!(monitor.client().release(Path::new("/no/such"), None).is_err());
    });
}

/// A container that `cgpu-runtime` does not delete: its group goes soon after its first process.
/// The back end keeps the limits of groups that are gone.
#[test]
fn limit_is_removed_as_soon_as_the_first_process_has_ended() {
    const ROUNDS: usize = 10;
    let Some(fixture) = Fixture::new("soon", Wall::Misc) else { return };
    let monitor = fixture.monitor();
    let is_removed = |number: usize| {
        let id = format!("{number:064}");
        let folder = fixture.folder(&id);
        let mut client = fixture.client(&folder);
        let dir = fixture.container(&id, 1000, client.pid());
        fixture.register(&monitor, &dir, client.pid());
        assert_eq!(fixture.hard(&folder), Some(1000));
        client.end();
        // The monitor looks at its containers every 100 ms.
        sleep(Duration::from_millis(20));
        let hard = fixture.hard(&folder);
        ControlGroups::remove(&folder);
        fs::remove_dir_all(&dir).unwrap();
        hard.is_none()
    };
    // A busy machine may take longer in most.
    let removed = (0..ROUNDS).filter(|number| is_removed(*number)).count();
    assert!(removed > ROUNDS / 4, "{removed} of {ROUNDS}");
    // No call can remove the others, since it names a group by its folder. They are counted.
    let uses = fixture.machine.group_uses(0).unwrap();
    let left = uses.iter().filter(|group| group.limit != GroupLimit::NONE).count() as u64;
    eventually("all that are left", || {
        fixture.recorded() == 0 && status(&monitor).gpus[0].walls_left == left
    });
}

#[test]
fn many_containers_leave_nothing() {
    Fixture::each("many", |fixture| {
        let monitor = fixture.monitor();
        let waiting = fixture.groups.create("waiting");
        let client = fixture.client(&waiting);
        for number in 0..100 {
            let id = format!("{number:064}");
            let folder = fixture.folder(&id);
            ControlGroups::move_to(client.pid(), &folder);
            let dir = fixture.container(&id, 1000, client.pid());
            let registered = fixture.register(&monitor, &dir, client.pid());
            assert_eq!(fixture.hard(&folder), Some(1000), "{registered:?}");
            monitor.client().release(&dir, None).unwrap();
            assert_eq!(fixture.hard(&folder), None, "{id}");
            ControlGroups::move_to(client.pid(), &waiting);
            ControlGroups::remove(&folder);
            fs::remove_dir_all(&dir).unwrap();
        }
        assert_eq!(fixture.recorded(), 0);
        eventually("no container", || status(&monitor).containers.is_empty());
    });
}
