use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn id(pid: u32) -> ProcessId {
    ProcessId::of(pid).unwrap()
}

fn identity(tenant: u64, dir: &Path) -> ContainerIdentity {
    ContainerIdentity {
        searched: true,
        tenant,
        dir: dir.to_owned(),
        file: None,
        closed: false,
        registrants: Vec::new(),
        verified: Vec::new(),
        former: Vec::new(),
    }
}

#[test]
fn mappings_are_read_from_the_kernels_lines() {
    let mut mapped = Mapped::default();
    for line in [
        "7f0000000000-7f0000001000 r-xp 00000000 fe:01 4711             /a folder/libcgpu.so",
        "7f0000001000-7f0000002000 rw-s 00000000 00:1b 12               /dev/shm/x (deleted)",
        "7f0000002000-7f0000003000 rw-p 00000000 00:00 0                [heap]",
        "7f0000003000-7f0000004000 rw-p 00000000 00:00 0 ",
        "no line of that kind",
        "",
    ] {
        mapped.take(line.as_bytes());
    }
    let files = [(rustix::fs::makedev(0xfe, 1), 4711), (rustix::fs::makedev(0, 0x1b), 12)];
    assert_eq!(mapped, Mapped { files: files.into(), shim: true, ..Mapped::default() });
    mapped.take(b"7f00-7f01 r-xp 00000000 fe:01 4712    /usr/lib/libcuda.so.550.54 (deleted)");
    assert!(mapped.driver);
    let mut device = Mapped::default();
    device.take(b"7f00-7f01 rw-s 00000000 00:06 99    /dev/nvidia0");
    assert!(device.driver && !device.shim);
}

#[test]
fn process_belongs_to_the_one_container_that_started_it() {
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    let here = tempfile::tempdir().unwrap();
    let shell =
        Command::new("sh").args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped()).spawn();
    let mut shell = Sleeper(shell.unwrap());
    let mut line = String::new();
    BufReader::new(shell.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child: u32 = line.trim().parse().unwrap();
    let of = |identities: &[ContainerIdentity], pid| {
        ProcessIndex::new(identities).gpu_process(pid).unwrap().owner
    };

    let made =
        ContainerIdentity { registrants: vec![id(shell.0.id())], ..identity(1, here.path()) };
    assert_eq!(of(std::slice::from_ref(&made), child), Some(1));
    assert_eq!(of(std::slice::from_ref(&made), shell.0.id()), Some(1));
    assert_eq!(of(std::slice::from_ref(&made), pid), None);
    // A process that registered both identifies neither.
    let other = ContainerIdentity { tenant: 2, ..made.clone() };
    assert_eq!(of(&[made.clone(), other], child), None);
    // The monitor and its ancestors belong to no container.
    let monitor = ContainerIdentity {
        registrants: vec![id(std::process::id()), id(1)],
        ..identity(3, here.path())
    };
    assert_eq!(of(std::slice::from_ref(&monitor), child), None);
    // A verified process needs no other rule.
    let verified = ContainerIdentity { verified: vec![id(pid)], ..identity(4, here.path()) };
    let index = ProcessIndex::new(std::slice::from_ref(&verified));
    let found = index.gpu_process(pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(4), Shim::Bound));
    // It has left its slot and still belongs to the container.
    let former = ContainerIdentity { former: vec![id(pid)], ..identity(4, here.path()) };
    let found = ProcessIndex::new(std::slice::from_ref(&former)).gpu_process(pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(4), Shim::Absent));
    assert_eq!(of(std::slice::from_ref(&monitor), pid), None);
    // A pid that now belongs to another process identifies neither it nor its children.
    let stale = |id: ProcessId| ProcessId { start_time: id.start_time - 1, ..id };
    let verified = ContainerIdentity { verified: vec![stale(id(pid))], ..verified };
    let found = ProcessIndex::new(std::slice::from_ref(&verified)).gpu_process(pid).unwrap();
    assert_eq!((found.owner, found.shim), (None, Shim::Unknown));
    let made = ContainerIdentity { registrants: vec![stale(id(shell.0.id()))], ..made };
    assert_eq!(of(std::slice::from_ref(&made), child), None);
    assert_eq!(ProcessIndex::new(&[monitor]).gpu_process(u32::MAX), None);
    // The shell's own child must not outlive the test.
    let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn process_that_maps_the_region_counts_as_bound() {
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id();
    let here = tempfile::tempdir().unwrap();
    // The program stands in for the region's file. `spawn` may return before it is mapped.
    let program =
        || fs::metadata(format!("/proc/{pid}/exe")).map(|about| (about.dev(), about.ino()));
    while !program().is_ok_and(|file| Mapped::of(id(pid)).unwrap().files.contains(&file)) {
        std::thread::yield_now();
    }
    let bare = ContainerIdentity { registrants: vec![id(pid)], ..identity(1, here.path()) };
    assert_eq!(
        ProcessIndex::new(std::slice::from_ref(&bare)).gpu_process(pid).unwrap().shim,
        Shim::Absent
    );
    let bound = ContainerIdentity { file: Some(program().unwrap()), ..bare };
    assert_eq!(ProcessIndex::new(&[bound]).gpu_process(pid).unwrap().shim, Shim::Bound);
    assert!(!has_driver_mapped(id(pid)));
}

/// A process with the shim may have a slot in a region that cannot be read.
#[test]
fn shim_of_a_process_with_an_unreadable_region_is_unknown() {
    let here = tempfile::tempdir().unwrap();
    // Any library under the shim's name, preloaded.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let Some(library) = paths.find(|path| path.contains("/libgcc_s")) else { return };
    let program = here.path().join("libcgpu.so");
    fs::copy(library, &program).unwrap();
    let mut command = Command::new("sleep");
    command.arg("600").env("LD_PRELOAD", &program).stdin(Stdio::null());
    let sleeper = Sleeper(command.spawn().unwrap());
    let pid = sleeper.0.id();
    let hangs = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !Mapped::of(id(pid)).unwrap().shim {
        assert!(std::time::Instant::now() < hangs, "nothing is preloaded into sleep");
        std::thread::yield_now();
    }
    let open = ContainerIdentity { registrants: vec![id(pid)], ..identity(1, here.path()) };
    let shim =
        |identity: ContainerIdentity| ProcessIndex::new(&[identity]).gpu_process(pid).unwrap().shim;
    assert_eq!(shim(open.clone()), Shim::Loaded);
    assert_eq!(shim(ContainerIdentity { closed: true, ..open.clone() }), Shim::Unknown);
    let about = fs::metadata(&program).unwrap();
    assert_eq!(
        shim(ContainerIdentity { closed: true, file: Some((about.dev(), about.ino())), ..open }),
        Shim::Bound
    );
}

/// A program whose main thread exits, while another one goes on.
const NO_MAIN_THREAD: &str = r"
#include <pthread.h>
#include <unistd.h>
static void *wait_for_signals(void *none) { for (;;) pause(); return none; }
int main(void) {
    pthread_t thread;
    alarm(120);
    if (pthread_create(&thread, 0, wait_for_signals, 0)) return 1;
    pthread_exit(0);
}
";

#[test]
fn process_whose_main_thread_has_exited_is_recognised() {
    let here = tempfile::tempdir().unwrap();
    let (source, program) = (here.path().join("program.c"), here.path().join("program"));
    fs::write(&source, NO_MAIN_THREAD).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-pthread").arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let process = Sleeper(Command::new(&program).stdin(Stdio::null()).spawn().unwrap());
    let pid = process.0.id();
    let hangs = std::time::Instant::now() + std::time::Duration::from_secs(100);
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        assert!(std::time::Instant::now() < hangs, "its main thread runs");
        std::thread::yield_now();
    }
    let id = ProcessId::of(pid).expect("it is alive");
    assert!(id.lives());
    let about = fs::metadata(&program).unwrap();
    assert!(Mapped::of(id).unwrap().files.contains(&(about.dev(), about.ino())));
    let own = std::process::id();
    assert_eq!(pid_namespace(pid), pid_namespace(own));
    assert_eq!(Cgroups::of(pid), Cgroups::of(own));
    assert!(openat(CWD, folder(pid).join("root"), OFlags::PATH, Mode::empty()).is_ok());
    let known = ContainerIdentity { registrants: vec![id], ..identity(1, here.path()) };
    let found = ProcessIndex::new(std::slice::from_ref(&known)).gpu_process(pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(1), Shim::Absent));
    drop(process);
    assert_eq!(ProcessId::of(pid), None);
    assert!(!id.lives());
}
