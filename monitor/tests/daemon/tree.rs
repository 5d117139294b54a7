//! Tests of the control tree as a file system: its files and error numbers.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_client::Client;
use cgpu_shm::paths;
use cgpu_shm::units::Bytes;
use rustix::io::Errno;

use super::fake_container::{FakeContainer, Process};
use super::monitor::{Monitor, eventually};
use super::{Fixture, registration, skip};

const TREE: &str = "tree = \"TREE\"\n";

/// Returns the configuration line for a tree below this root.
pub(super) fn with_tree(root: &Path) -> String {
    TREE.replace("TREE", &root.join("cgpu_km").to_string_lossy())
}

/// Whether FUSE can be used; if not, reports and counts the skipped test.
pub(super) fn has_fuse(test: &str) -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.and_then(|rights| u64::from_str_radix(rights.trim(), 16).ok()).unwrap_or(0);
    const SYS_ADMIN: u64 = 1 << 21;
    let helper = Command::new("fusermount3").arg("--version").output().is_ok();
    if !device {
        skip::skip(test, "fuse", "/dev/fuse cannot be opened");
    } else if rights & SYS_ADMIN == 0 && !helper {
        skip::skip(test, "fuse", "mounting needs CAP_SYS_ADMIN or fusermount3");
    } else {
        return true;
    }
    false
}

fn error(result: std::io::Result<impl std::fmt::Debug>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A user that is neither root nor the monitor's.
const UNPRIVILEGED: u32 = 65534;

fn as_unprivileged(program: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    let output = command
        .arg("60")
        .arg(program)
        .args(arguments)
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn each_node_reads_writes_and_refuses_as_documented() {
    if !has_fuse("tree") {
        return;
    }
    let fixture = Fixture::new();
    let (a, b) = (fixture.container("a"), fixture.container("b"));
    let monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let one = FakeContainer::start(Process::start(&a, 1, Bytes::from_mib(8000)));
    let two = FakeContainer::start(Process::start(&b, 1, Bytes::from_mib(8000)));
    let mut client = monitor.client();
    client.register(registration(&a)).unwrap();
    client.register(registration(&b)).unwrap();
    let tree = monitor.tree();
    assert_eq!(names(&tree), ["0", "default_memsize", "version"]);
    let gpu = ["a", "b", "free_weight", "max_inst", "policy", "prio_ratio", "work_conserving"];
    assert_eq!(names(&tree.join("0")), gpu);
    let container = ["highprio", "id", "meminfo", "memsize", "percent", "weight"];
    assert_eq!(names(&tree.join("0/a")), container);

    let read = |path: &str| fs::read_to_string(tree.join(path)).unwrap();
    for (path, value) in [
        ("version", concat!(env!("CARGO_PKG_VERSION"), "\n")),
        ("default_memsize", "0\n"),
        ("0/policy", "1\n"),
        ("0/max_inst", "20\n"),
        ("0/free_weight", "18\n"),
        ("0/prio_ratio", "80\n"),
        ("0/work_conserving", "0\n"),
        ("0/a/id", "a\n"),
        ("0/a/memsize", "8388608000\n"),
        ("0/a/weight", "1\n"),
        ("0/a/percent", "0\n"),
        ("0/a/highprio", "0\n"),
    ] {
        assert_eq!(read(path), value, "{path}");
        assert_eq!(client.get(path).unwrap(), value.trim_end(), "{path}, over the socket");
    }
    let meminfo = read("0/a/meminfo");
    assert_eq!(meminfo, client.get("0/a/meminfo").unwrap());
    assert!(
        meminfo.starts_with("Free: 8388608000\nPID: ") && meminfo.ends_with(" Mem: 0\n"),
        "{meminfo}"
    );

    // With and without a newline; what the files write the socket reads.
    for (path, value) in [
        ("default_memsize", "1073741824\n"),
        ("default_memsize", "0"),
        ("0/policy", "5\n"),
        ("0/policy", "2"),
        ("0/policy", "00\n"),
        ("0/policy", "4\n"),
        ("0/policy", "3\n"),
        ("0/policy", "1\n"),
        ("0/max_inst", "25\n"),
        ("0/max_inst", "2"),
        ("0/max_inst", "20\n"),
        ("0/prio_ratio", "20\n"),
        ("0/prio_ratio", "99\n"),
        ("0/work_conserving", "1\n"),
        ("0/work_conserving", "0\n"),
        ("0/a/weight", "19\n"),
        ("0/a/weight", "4\n"),
        ("0/a/memsize", "1073741824\n"),
        ("0/a/percent", "30\n"),
        ("0/a/highprio", "1\n"),
        ("0/a/highprio", "0\n"),
    ] {
        fs::write(tree.join(path), value)
            .unwrap_or_else(|error| panic!("{path} = {value:?}: {error}"));
        let number: u64 = value.trim_end().parse().unwrap();
        assert_eq!(read(path), format!("{number}\n"), "{path}");
        assert_eq!(client.get(path).unwrap(), number.to_string(), "{path}, over the socket");
    }
    fs::write(tree.join("0/a/memsize"), "0").unwrap();
    assert_eq!(read("0/a/memsize"), "8388608000\n");
    fs::write(tree.join("0/max_inst"), "8").unwrap();

    let (invalid, busy, denied) = (Errno::INVAL, Errno::BUSY, Errno::ACCESS);
    for (path, value, errno) in [
        ("default_memsize", "-1", invalid),
        ("0/policy", "6\n", invalid),
        ("0/policy", "-1\n", invalid),
        ("0/policy", "+1\n", invalid),
        ("0/policy", "fair\n", invalid),
        ("0/policy", "1 2\n", invalid),
        ("0/policy", "0x1\n", invalid),
        ("0/policy", "\n", invalid),
        ("0/policy", "99999999999999999999999\n", invalid),
        ("0/policy", "\u{e9}\n", invalid),
        ("0/max_inst", "0\n", invalid),
        ("0/max_inst", "26\n", invalid),
        ("0/max_inst", "4\n", busy),
        ("0/prio_ratio", "19\n", invalid),
        ("0/prio_ratio", "100\n", invalid),
        ("0/work_conserving", "2\n", invalid),
        ("0/a/weight", "0\n", invalid),
        ("0/a/weight", "26\n", invalid),
        ("0/a/weight", "8\n", busy),
        ("0/a/memsize", "x\n", invalid),
        ("0/a/memsize", "24146608129\n", invalid),
        ("0/a/percent", "101\n", invalid),
        ("0/a/highprio", "2\n", invalid),
        ("version", "2\n", denied),
        ("0/free_weight", "2\n", denied),
        ("0/a/id", "2\n", denied),
        ("0/a/meminfo", "2\n", denied),
        ("1/policy", "1\n", Errno::NOENT),
        ("0/missing/weight", "1\n", Errno::NOENT),
        ("0/a/colour", "1\n", Errno::NOENT),
        ("0/colour", "1\n", Errno::NOENT),
        ("colour", "1\n", Errno::NOENT),
        ("0/a/id/x", "1\n", Errno::NOTDIR),
        ("0", "1\n", Errno::ISDIR),
        ("0/a", "1\n", Errno::ISDIR),
    ] {
        let before = fs::read(tree.join(path)).ok();
        assert_eq!(error(fs::write(tree.join(path), value)), errno, "{path} = {value:?}");
        assert_eq!(fs::read(tree.join(path)).ok(), before, "{path} is what it was");
        if !matches!(errno, Errno::NOTDIR | Errno::ISDIR) {
            let refusal = client.set(path, value).unwrap_err().errno().unwrap();
            let names = [
                (invalid, "EINVAL"),
                (busy, "EBUSY"),
                (denied, "EACCES"),
                (Errno::NOENT, "ENOENT"),
            ];
            let name = names.iter().find(|(number, _)| *number == errno).unwrap().1;
            assert_eq!(refusal.to_string(), name, "{path} = {value:?}, over the socket");
        }
    }
    for path in ["2", "0/missing", "0/colour", "00", "0/a/colour"] {
        assert_eq!(error(fs::read(tree.join(path))), Errno::NOENT, "{path}");
    }
    assert_eq!(error(fs::read(tree.join("0"))), Errno::ISDIR);
    // Nodes are created and removed with GPUs and containers only.
    assert_eq!(error(fs::remove_file(tree.join("0/policy"))), Errno::PERM);
    assert_eq!(error(fs::create_dir(tree.join("0/c"))), Errno::PERM);
    assert_eq!(error(fs::remove_dir(tree.join("0/a"))), Errno::PERM);
    assert_eq!(error(fs::rename(tree.join("0/a"), tree.join("0/c"))), Errno::PERM);
    let mode = fs::Permissions::from_mode(0o666);
    assert_eq!(error(fs::set_permissions(tree.join("0/policy"), mode)), Errno::PERM);
    assert!(one.held() > cgpu_shm::units::Nanos::ZERO && two.held() > cgpu_shm::units::Nanos::ZERO);
}

#[test]
fn control_tree_works_with_file_tools() {
    if !has_fuse("tree") {
        return;
    }
    let fixture = Fixture::new();
    fs::set_permissions(fixture.root(), fs::Permissions::from_mode(0o755)).unwrap();
    let a = fixture.container("a");
    let monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let _one = Process::start(&a, 1, Bytes::from_mib(8000));
    monitor.client().register(registration(&a)).unwrap();
    let tree = monitor.tree();
    let policy = tree.join("0/policy");

    // As in the documents of cGPU.
    let shell = |line: &str| {
        let output =
            Command::new("timeout").args(["60", "sh", "-c", line]).current_dir(&tree).output();
        let output = output.unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(shell("echo 2 > 0/policy && cat 0/policy"), (true, "2\n".into()));
    assert_eq!(shell("printf 3 > 0/policy && cat < 0/policy"), (true, "3\n".into()));
    assert_eq!(shell("echo 1 >> 0/policy; head -c 1 0/policy"), (true, "1".into()));
    assert_eq!(
        shell("{ echo 4; echo 5; } > 0/policy; cat 0/policy version | wc -l"),
        (true, "2\n".into())
    );
    assert!(!shell("echo 9 > 0/policy").0);
    assert_eq!(shell("cat 0/policy 0/free_weight"), (true, "5\n19\n".into()));
    assert!(shell("ls -l 0/a").1.contains("-r--r--r--"));
    assert!(shell("cp 0/a/meminfo /dev/stdout").1.starts_with("Free: "));

    // A value that changes between two reads of an open file is not torn.
    let mut file = File::open(tree.join("0/a/memsize")).unwrap();
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes).unwrap();
    monitor.client().set("0/a/memsize", "1").unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!((&bytes[..], rest.as_str()), (&b"8388"[..], "608000\n"));
    monitor.client().set("0/a/memsize", "0").unwrap();

    let mut file = OpenOptions::new().read(true).write(true).truncate(true).open(&policy).unwrap();
    file.write_all(b"2\n").unwrap();
    let mut text = String::new();
    File::open(&policy).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "2\n");
    assert_eq!(error(OpenOptions::new().write(true).open(tree.join("version"))), Errno::ACCESS);

    // A node keeps its inode number, and different nodes have different ones.
    let number = |path: &str| fs::metadata(tree.join(path)).unwrap().ino();
    assert_eq!(number("0/policy"), number("0/policy"));
    assert_ne!(number("0/policy"), number("0/max_inst"));

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let path = |path: &str| tree.join(path).to_string_lossy().into_owned();
    let (read, stderr) = as_unprivileged("cat", &[&path("0/policy"), &path("0/a/meminfo")]);
    assert!(read, "{stderr}");
    let (listed, stderr) = as_unprivileged("ls", &["-l", &path("0/a")]);
    assert!(listed, "{stderr}");
    for node in ["0/policy", "0/a/weight", "default_memsize", "version"] {
        let (written, stderr) = as_unprivileged("sh", &["-c", &format!("echo 1 > {}", path(node))]);
        assert!(!written && stderr.contains("ermission denied"), "{node}: {stderr}");
    }
    assert_eq!(fs::read_to_string(&policy).unwrap(), "2\n");
}

#[test]
fn removed_container_leaves_the_control_tree() {
    if !has_fuse("tree") {
        return;
    }
    let fixture = Fixture::new();
    let a = fixture.container("a");
    let monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let process = Process::start(&a, 1, Bytes::from_mib(8000));
    monitor.client().register(registration(&a)).unwrap();
    let tree = monitor.tree();
    let mut open = File::open(tree.join("0/a/weight")).unwrap();
    drop(process);
    fs::remove_dir_all(&a).unwrap();
    eventually("a tree without the GPU", || names(&tree) == ["default_memsize", "version"]);
    assert_eq!(error(open.read(&mut [0; 8])), Errno::NOENT);
    assert_eq!(error(fs::read(tree.join("0/a/weight"))), Errno::NOENT);
}

#[test]
fn mount_of_a_killed_monitor_is_replaced_and_a_stopped_one_leaves_none() {
    if !has_fuse("tree") {
        return;
    }
    let fixture = Fixture::new();
    let mut monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let tree = monitor.tree();
    let version = || fs::read_to_string(tree.join("version"));
    fs::write(tree.join("default_memsize"), "4096\n").unwrap();
    for _ in 0..3 {
        monitor.kill();
        assert_eq!(error(version()), Errno::NOTCONN);
        monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
        eventually("the tree again", || version().is_ok());
        assert_eq!(fs::read_to_string(tree.join("default_memsize")).unwrap(), "4096\n");
    }
    // An open file does not keep the mount.
    let open = File::open(tree.join("version")).unwrap();
    assert!(monitor.terminate());
    assert_eq!(error(version()), Errno::NOENT);
    assert_eq!(mounts_of(&tree), 0);
    drop(open);
}

fn mounts_of(tree: &Path) -> usize {
    let list = fs::read_to_string("/proc/self/mountinfo").unwrap();
    list.lines().filter(|line| line.contains(&*tree.to_string_lossy())).count()
}

#[test]
fn stopped_monitor_hangs_no_caller() {
    if !has_fuse("tree") {
        return;
    }
    let fixture = Fixture::new();
    // The thread of the files is stopped with the monitor: callers wait, and continue when it does.
    let monitor = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let version = monitor.tree().join("version");
    let pid = monitor.pid();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut reader = Command::new("timeout")
        .args(["60", "cat"])
        .arg(&version)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    reader.kill().unwrap();
    reader.wait().unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(fs::read_to_string(&version).is_ok());
}

#[test]
fn monitor_without_a_mount_point_reports_so_and_continues() {
    let fixture = Fixture::new();
    let monitor = Monitor::start_with(fixture.root(), "tree = \"/proc/cgpu_km\"\n");
    let status = monitor.client().status().unwrap();
    assert!(
        status.warnings[0].starts_with("no control tree at /proc/cgpu_km: "),
        "{:?}",
        status.warnings
    );
    monitor.client().set("default_memsize", "5").unwrap();
    assert_eq!(monitor.client().get("default_memsize").unwrap(), "5");
}

#[test]
fn tree_of_another_root_is_left_alone() {
    if !has_fuse("tree") {
        return;
    }
    let (fixture, other) = (Fixture::new(), Fixture::new());
    let first = Monitor::start_with(fixture.root(), &with_tree(fixture.root()));
    let second = Monitor::start_with(other.root(), &with_tree(fixture.root()));
    let warnings = second.client().status().unwrap().warnings;
    assert!(warnings[0].contains("the tree of another monitor is mounted there"), "{warnings:?}");
    drop(second);
    assert!(fs::read_to_string(first.tree().join("version")).is_ok());
}

#[test]
fn monitor_with_twenty_tenants_uses_under_thirty_mebibytes() {
    let fixture = Fixture::new();
    let dirs: Vec<PathBuf> = (0..20).map(|n| fixture.container(&format!("c{n}"))).collect();
    let tree = if has_fuse("tree") { with_tree(fixture.root()) } else { String::new() };
    let monitor = Monitor::start_with(fixture.root(), &tree);
    let processes: Vec<Process> =
        dirs.iter().map(|dir| Process::start(dir, 1, Bytes::from_mib(500))).collect();
    for dir in &dirs {
        monitor.client().register(registration(dir)).unwrap();
    }
    eventually("all on the GPU", || {
        monitor.client().get("0/free_weight").is_ok_and(|left| left == "0")
    });
    for _ in 0..20 {
        let mut client = Client::connect(&paths::socket(fixture.root())).unwrap();
        client.status().unwrap();
    }
    let resident = monitor.memory("VmRSS");
    println!("resident with {} tenants: {resident} KiB", processes.len());
    assert!(resident < 30 << 10, "{resident} KiB");
}
