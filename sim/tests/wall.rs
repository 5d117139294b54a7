//! Limits of control groups: real groups, in which processes of this test's own use the GPU.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use cgpu_sim::gpu::GpuSpec;
use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{GroupLimit, Wall};
use cgpu_sim::{Bytes, Error, Machine, Settings};
use cgpu_test_groups::ControlGroups;

#[path = "../../shm/tests/skip/mod.rs"]
mod skip;

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 256;

/// A GPU, and control groups for its clients.
struct Fixture {
    groups: ControlGroups,
    machine: Machine,
    directory: tempfile::TempDir,
}

impl Fixture {
    /// `None` where control groups cannot be mounted.
    fn new(name: &str, wall: Wall) -> Option<Self> {
        let groups = mounted(name)?;
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let machine = Machine::open(&settings(directory.path(), wall)).unwrap();
        Some(Self { groups, machine, directory })
    }

    fn limit(&self, folder: &Path, hard: u64) -> Result<(), Error> {
        let hard = if hard == u64::MAX { hard } else { hard * MIB };
        self.machine.limit_group(0, folder, GroupLimit { soft: 0, hard })
    }

    /// Returns hard limit and use, in MiB.
    fn limits(&self, folder: &Path) -> Result<(u64, u64), Error> {
        let path = cgpu_sim::control_group::of_folder(folder).unwrap();
        let (limit, used) = self.machine.group_limit(0, &path)?;
        Ok((limit.hard / MIB, used.0 / MIB))
    }

    /// Starts a client with a context in a group.
    fn client(&self, folder: &Path) -> Client {
        let wall = self.machine.figures().wall;
        Client::start(self.directory.path(), wall, folder)
    }
}

/// `None` where control groups cannot be mounted.
fn mounted(name: &str) -> Option<ControlGroups> {
    ControlGroups::mount(name).inspect_err(|reason| skip::skip("wall", "cgroups", reason)).ok()
}

fn settings(directory: &Path, wall: Wall) -> Settings {
    Settings {
        state: directory.join("segment"),
        gpus: Some(GpuSpec::parse_list("A10:8192").unwrap()),
        time_scale_milli: 1_000,
        figures: Figures { wall, death_delay: cgpu_sim::Nanos(1), ..Figures::default() },
    }
}

/// A process that follows commands: `context`, `take MIB`, `free` (the last one), `info`.
struct Client {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Client {
    fn start(directory: &Path, wall: Wall, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "client", "--nocapture", "--quiet"])
            .env("CGPU_TEST_CLIENT", directory)
            .env("CGPU_TEST_WALL", format!("{wall:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = ControlGroups::start_in(&mut command, folder).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
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
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the process of a [`Client`].
#[test]
fn client() {
    let Some(directory) = std::env::var_os("CGPU_TEST_CLIENT") else { return };
    // SAFETY: arms a timer of this process, the watchdog.
    unsafe { libc::alarm(60) };
    let misc = std::env::var("CGPU_TEST_WALL").is_ok_and(|wall| wall == "Misc");
    let wall = if misc { Wall::Misc } else { Wall::Dmem };
    let machine = Machine::open(&settings(Path::new(&directory), wall)).unwrap();
    let mut context = None;
    let mut held = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let answer = match line.split(' ').collect::<Vec<_>>()[..] {
            ["context"] => machine.create_context(0).map(|created| context = Some(created)),
            ["take", size] => {
                let size = Bytes(size.parse::<u64>().unwrap() * MIB);
                machine.allocate(context.unwrap(), size).map(|address| held.push(address))
            }
            ["free"] => machine.free(held.pop().unwrap()),
            ["info"] => {
                let info = machine.visible_memory(0).unwrap();
                println!("answer {} {}", info.usable().0 / MIB, info.free.0 / MIB);
                continue;
            }
            _ => panic!("{line}"),
        };
        match answer {
            Ok(()) => println!("answer done"),
            Err(Error::OutOfMemory) => println!("answer full"),
            Err(error) => panic!("{line}: {error}"),
        }
    }
}

#[test]
fn dmem_limits_of_all_ancestors_hold() {
    let Some(fixture) = Fixture::new("dmem", Wall::Dmem) else { return };
    let (pod, leaf) = (fixture.groups.create("pod"), fixture.groups.create("pod/leaf"));
    let other = fixture.groups.create("pod/other");
    let mut client = fixture.client(&leaf);
    assert_eq!(client.command("context"), "done");
    let whole = client.command("info");
    // Memory from before the limit is charged.
    fixture.limit(&leaf, 1_000).unwrap();
    assert_eq!(fixture.limits(&leaf), Ok((1_000, CONTEXT)));
    assert_eq!(client.command("info"), format!("1000 {}", 1_000 - CONTEXT));
    assert_eq!(client.command("take 800"), "full");
    assert_eq!(client.command("take 500"), "done");
    // A limit of the pod alone holds, and is not shown.
    fixture.limit(&leaf, u64::MAX).unwrap();
    fixture.limit(&pod, 1_100).unwrap();
    let mut second = fixture.client(&other);
    assert_eq!(second.command("context"), "done");
    let shown = second.command("info");
    assert_eq!(shown.split(' ').next(), whole.split(' ').next());
    assert_eq!(second.command("take 100"), "full");
    assert_eq!(client.command("free"), "done");
    assert_eq!(second.command("take 100"), "done");
    assert_eq!(fixture.limits(&pod), Ok((1_100, 2 * CONTEXT + 100)));
    assert_eq!(fixture.limits(&other).unwrap().1, CONTEXT + 100);
    // Below the use: accepted.
    fixture.limit(&other, 10).unwrap();
    assert_eq!(second.command("info"), "10 0");
    assert_eq!(second.command("free"), "done");
    assert_eq!(second.command("take 2"), "full");
    drop(second);
    // The exited process is no longer charged.
    let begun = std::time::Instant::now();
    while fixture.limits(&other).unwrap().1 != 0 {
        assert!(begun.elapsed().as_secs() < 20);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fixture.machine.check().unwrap();
}

#[test]
fn dmem_folder_without_controller_inherits() {
    let Some(fixture) = Fixture::new("bare", Wall::Dmem) else { return };
    let (pod, leaf) = (fixture.groups.create("pod"), fixture.groups.create("pod/leaf"));
    fixture.machine.set_controller(&leaf, false).unwrap();
    assert!(matches!(fixture.limit(&leaf, 500), Err(Error::Invalid(_))));
    fixture.limit(&pod, 600).unwrap();
    assert_eq!(fixture.limits(&leaf), Ok((600, 0)));
    let mut client = fixture.client(&fixture.groups.create("pod/leaf/below"));
    assert_eq!(client.command("context"), "done");
    assert_eq!(client.command("info"), format!("600 {}", 600 - CONTEXT));
    assert_eq!(client.command("take 400"), "full");
    fixture.machine.set_controller(&leaf, true).unwrap();
    fixture.limit(&leaf, 500).unwrap();
    assert_eq!(fixture.limits(&leaf), Ok((500, CONTEXT)));
}

#[test]
fn dmem_soft_limit_of_a_deleted_folder_stays_on_its_ancestors() {
    let Some(fixture) = Fixture::new("soft", Wall::Dmem) else { return };
    let (pod, leaf) = (fixture.groups.create("pod"), fixture.groups.create("pod/leaf"));
    let other = fixture.groups.create("other");
    let soft_of = |folder: &Path| {
        let path = cgpu_sim::control_group::of_folder(folder).unwrap();
        fixture.machine.group_limit(0, &path).unwrap().0
    };
    let set = |folder: &Path, soft| {
        fixture.machine.limit_group(0, folder, GroupLimit { soft, hard: 500 * MIB }).unwrap();
    };
    set(&leaf, 70 * MIB);
    assert_eq!(soft_of(&pod), GroupLimit { soft: 70 * MIB, ..GroupLimit::NONE });
    set(&leaf, 0);
    assert_eq!(soft_of(&pod), GroupLimit::NONE);
    set(&leaf, 30 * MIB);
    ControlGroups::remove(&leaf);
    set(&other, 0);
    assert_eq!(soft_of(&pod), GroupLimit { soft: 30 * MIB, ..GroupLimit::NONE });
    let limits = fixture.machine.group_uses(0).unwrap();
    let hard = limits.iter().filter(|group| group.limit.hard != u64::MAX);
    assert_eq!(hard.count(), 1, "the deleted folder's is gone: {limits:?}");
}

#[test]
fn misc_limit_of_the_nearest_group_holds_alone() {
    let Some(fixture) = Fixture::new("misc", Wall::Misc) else { return };
    let (pod, leaf) = (fixture.groups.create("pod"), fixture.groups.create("pod/leaf"));
    assert!(matches!(fixture.limits(&leaf), Err(Error::Unsupported(_))));
    let mut client = fixture.client(&leaf);
    assert_eq!(client.command("context"), "done");
    // Memory from before the limit is not charged.
    fixture.limit(&pod, 300).unwrap();
    assert_eq!(fixture.limits(&pod), Ok((300, 0)));
    assert_eq!(client.command("take 200"), "done");
    assert_eq!(client.command("info"), "300 100");
    assert_eq!(client.command("take 200"), "full");
    assert!(matches!(fixture.limit(&pod, 100), Err(Error::State(_))));
    // The parent does not bound a limited child.
    fixture.limit(&leaf, 1_000).unwrap();
    assert_eq!(client.command("info"), "1000 1000");
    assert_eq!(client.command("take 900"), "done");
    assert_eq!(
        [&pod, &leaf].map(|folder| fixture.limits(folder)),
        [Ok((300, 200)), Ok((1_000, 900))]
    );
    // Cleared: what was charged is from before the next limit.
    fixture.limit(&leaf, u64::MAX).unwrap();
    assert!(matches!(fixture.limits(&leaf), Err(Error::Unsupported(_))));
    fixture.limit(&leaf, 100).unwrap();
    assert_eq!(fixture.limits(&leaf), Ok((100, 0)));
    fixture.machine.check().unwrap();
    // The limit outlives its folder.
    drop(client);
    ControlGroups::remove(&leaf);
    fixture.limit(&pod, 300).unwrap();
    assert_eq!(fixture.machine.group_uses(0).unwrap().len(), 2);
}

#[test]
fn misc_limits_end_with_the_last_client_without_persistence() {
    for persistence in [0, 1] {
        let Some(groups) = mounted("persistence") else { return };
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut settings = settings(directory.path(), Wall::Misc);
        settings.figures.persistence = persistence;
        let machine = Machine::open(&settings).unwrap();
        let leaf = groups.create("leaf");
        machine.limit_group(0, &leaf, GroupLimit { soft: 0, hard: 500 * MIB }).unwrap();
        // A client that is killed leaves the GPU, too.
        let mut client = Client::start(directory.path(), Wall::Misc, &leaf);
        assert_eq!(client.command("context"), "done");
        drop(machine);
        let machine = Machine::open(&settings).unwrap();
        assert_eq!(machine.group_uses(0).unwrap()[0].used, Bytes(CONTEXT * MIB));
        drop(machine);
        drop(client);
        let machine = Machine::open(&settings).unwrap();
        let path = cgpu_sim::control_group::of_folder(&leaf).unwrap();
        assert_eq!(machine.group_limit(0, &path).is_ok(), persistence == 1);
    }
}

#[test]
fn moved_process_is_charged_in_its_new_group() {
    for wall in [Wall::Dmem, Wall::Misc] {
        let Some(fixture) = Fixture::new(&format!("moved-{wall:?}"), wall) else { return };
        let (first, second) = (fixture.groups.create("first"), fixture.groups.create("second"));
        fixture.limit(&first, 500).unwrap();
        fixture.limit(&second, 400).unwrap();
        let mut client = fixture.client(&first);
        assert_eq!(client.command("context"), "done");
        ControlGroups::move_to(client.child.id(), &second);
        assert_eq!(client.command("info"), "400 400");
        assert_eq!(client.command("take 500"), "full");
        assert_eq!(client.command("take 300"), "done");
        let uses = [&first, &second].map(|folder| fixture.limits(folder).unwrap().1);
        assert_eq!(uses, [CONTEXT, 300], "{wall:?}");
        fixture.machine.check().unwrap();
    }
}

#[test]
fn root_group_and_other_folders_are_refused() {
    let Some(fixture) = Fixture::new("root", Wall::Dmem) else { return };
    for folder in [fixture.groups.root(), Path::new("/proc")] {
        assert!(matches!(fixture.limit(folder, 500), Err(Error::Invalid(_))));
    }
    assert!(matches!(fixture.limit(Path::new("/nowhere"), 500), Err(Error::System(_))));
}
