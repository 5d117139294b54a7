use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::clock::thread_cpu;
use cgpu_shm::units::Nanos;
use cgpu_shm::uuid::Uuid;
use parking_lot::Mutex;

use super::super::mapped::{Identity, MapsReader};
use super::super::maps::{Maps, OpenMaps};
use super::super::{GpuSample, Sample, identify};
use super::*;

const GPU: Uuid = Uuid([7; 16]);

pub(in super::super) struct Sleeper(pub(in super::super) Child);

impl Sleeper {
    pub(in super::super) fn start() -> Self {
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
        unnamed: Vec::new(),
    }
}

/// Identifies a process, and reads what it has mapped.
fn gpu_process(identities: &[ContainerIdentity], pid: u32) -> Option<GpuProcess> {
    let index = ProcessIndex::new(identities);
    let process = index.process(pid)?;
    let mapped = process.membership().map(|_| mapped(process.id, &regions(identities)));
    Some(process.on_gpu(GPU, mapped))
}

fn mapped(id: ProcessId, regions: &BTreeSet<Identity>) -> Mapped {
    let mut reader = MapsReader::open(id).unwrap();
    assert!(reader.read(u64::MAX, regions).unwrap());
    reader.mapped
}

fn maps_file(pid: u32, file: Identity) -> bool {
    mapped(id(pid), &BTreeSet::from([file])).region
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
    let of = |identities: &[ContainerIdentity], pid| gpu_process(identities, pid).unwrap().owner;

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
    let found = gpu_process(std::slice::from_ref(&verified), pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(4), Shim::Bound));
    // Its slot is no accounting on a GPU that its region does not name.
    for (gpu, shim) in [(GPU, Shim::Loaded), (Uuid([8; 16]), Shim::Bound)] {
        let unnamed = ContainerIdentity { unnamed: vec![gpu], ..verified.clone() };
        assert_eq!(gpu_process(&[unnamed], pid).unwrap().shim, shim);
    }
    // It has left its slot and still belongs to the container.
    let former = ContainerIdentity { former: vec![id(pid)], ..identity(4, here.path()) };
    let found = gpu_process(std::slice::from_ref(&former), pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(4), Shim::Absent));
    assert_eq!(of(std::slice::from_ref(&monitor), pid), None);
    // A pid that now belongs to another process identifies neither it nor its children.
    let stale = |id: ProcessId| ProcessId { start_time: id.start_time - 1, ..id };
    let verified = ContainerIdentity { verified: vec![stale(id(pid))], ..verified };
    let found = gpu_process(std::slice::from_ref(&verified), pid).unwrap();
    assert_eq!((found.owner, found.shim), (None, Shim::Unknown));
    let made = ContainerIdentity { registrants: vec![stale(id(shell.0.id()))], ..made };
    assert_eq!(of(std::slice::from_ref(&made), child), None);
    assert_eq!(gpu_process(&[monitor], u32::MAX), None);
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
    while !program().is_ok_and(|file| maps_file(pid, file)) {
        std::thread::yield_now();
    }
    let bare = ContainerIdentity { registrants: vec![id(pid)], ..identity(1, here.path()) };
    assert_eq!(gpu_process(std::slice::from_ref(&bare), pid).unwrap().shim, Shim::Absent);
    let bound = ContainerIdentity { file: Some(program().unwrap()), ..bare };
    assert_eq!(gpu_process(&[bound], pid).unwrap().shim, Shim::Bound);
    assert!(!mapped(id(pid), &BTreeSet::new()).driver);
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
    let hangs = Instant::now() + Duration::from_secs(120);
    while !mapped(id(pid), &BTreeSet::new()).shim {
        assert!(Instant::now() < hangs, "nothing is preloaded into sleep");
        std::thread::yield_now();
    }
    let open = ContainerIdentity { registrants: vec![id(pid)], ..identity(1, here.path()) };
    let shim = |identity: ContainerIdentity| gpu_process(&[identity], pid).unwrap().shim;
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

/// Compiles a C program, and starts it. Returns the path of the program, too.
fn start(here: &Path, text: &str) -> (Sleeper, PathBuf) {
    let (source, program) = (here.join("program.c"), here.join("program"));
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-pthread").arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let mut command = Command::new(&program);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    (Sleeper(child.unwrap()), program)
}

#[test]
fn process_whose_main_thread_has_exited_is_recognised() {
    let here = tempfile::tempdir().unwrap();
    let (process, program) = start(here.path(), NO_MAIN_THREAD);
    let pid = process.0.id();
    let hangs = Instant::now() + Duration::from_secs(100);
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ") {
        assert!(Instant::now() < hangs, "its main thread runs");
        std::thread::yield_now();
    }
    let id = ProcessId::of(pid).expect("it is alive");
    assert!(id.lives());
    let about = fs::metadata(&program).unwrap();
    assert!(maps_file(pid, (about.dev(), about.ino())));
    let own = std::process::id();
    assert_eq!(pid_namespace(pid), pid_namespace(own));
    assert_eq!(Cgroups::of(pid), Cgroups::of(own));
    assert!(openat(CWD, folder(pid).join("root"), OFlags::PATH, Mode::empty()).is_ok());
    let known = ContainerIdentity { registrants: vec![id], ..identity(1, here.path()) };
    let found = gpu_process(std::slice::from_ref(&known), pid).unwrap();
    assert_eq!((found.owner, found.shim), (Some(1), Shim::Absent));
    drop(process);
    assert_eq!(ProcessId::of(pid), None);
    assert!(!id.lives());
}

/// A program that maps its own file as often as the kernel allows, less a few times, in four
/// processes. It writes their ids.
const MANY_MAPPINGS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int file = open(argv[0], O_RDONLY);
    for (int i = 0; i < 58000; i++)
        if (mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
    for (int i = 0; i < 3; i++)
        if (!fork()) { prctl(PR_SET_PDEATHSIG, 9); break; }
    alarm(300);
    printf("%d\n", getpid());
    fflush(stdout);
    for (;;) pause();
}
"#;

/// Returns maps whose readings a sample waits for, however long they take, and the CPU time that
/// they take, in nanoseconds.
fn awaited_maps(open: OpenMaps) -> (Maps, Arc<AtomicU64>) {
    let used = Arc::<AtomicU64>::default();
    let sum = Arc::clone(&used);
    let wake = move || _ = sum.fetch_add(thread_cpu().0, Ordering::Relaxed);
    (Maps::new(open, Duration::from_secs(60), wake), used)
}

/// Four processes with many mappings, in one container. Its time is that of the samples, so that
/// only CPU time is measured.
struct SlowProcesses {
    _process: Sleeper,
    pids: Vec<u32>,
    container: ContainerIdentity,
    maps: Maps,
    used: Arc<AtomicU64>,
}

impl SlowProcesses {
    fn start(here: &Path) -> Self {
        let (mut process, _) = start(here, MANY_MAPPINGS);
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let pids: Vec<u32> = lines.take(4).map(|line| line.unwrap().parse().unwrap()).collect();
        assert_eq!(pids.len(), 4, "it cannot have as many mappings");
        let registrants = pids.iter().map(|pid| id(*pid)).collect();
        let container = ContainerIdentity { registrants, ..identity(1, here) };
        let (maps, used) = awaited_maps(MapsReader::open);
        Self { _process: process, pids, container, maps, used }
    }

    fn sample(&mut self, second: u64) -> Vec<Shim> {
        let gpu = GpuSample {
            processes: Some(self.pids.iter().map(|pid| (*pid, None)).collect()),
            ..GpuSample::default()
        };
        let at = Nanos::from_millis(second * 1000);
        let sample = Sample { at, gpus: vec![gpu], ..Sample::default() };
        let sample = identify(sample, std::slice::from_ref(&self.container), &mut self.maps);
        sample.gpus[0].gpu_processes.iter().map(|process| process.shim).collect()
    }
}

/// Processes that keep their maps from being read, by id.
static HELD: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A process that keeps its maps from being read.
pub(in super::super) struct Holder(pub(in super::super) u32);

impl Holder {
    pub(in super::super) fn new(pid: u32) -> Self {
        HELD.lock().insert(pid);
        Self(pid)
    }

    /// Opens the maps of a process. Takes until it no longer keeps them from being read.
    pub(in super::super) fn open(id: ProcessId) -> io::Result<MapsReader> {
        let hangs = Instant::now() + Duration::from_secs(30);
        while HELD.lock().contains(&id.pid) {
            if Instant::now() >= hangs {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        MapsReader::open(id)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        HELD.lock().remove(&self.0);
    }
}

#[test]
fn process_that_keeps_its_maps_from_being_read_delays_no_other() {
    let here = tempfile::tempdir().unwrap();
    let [of_a, second_of_a, of_b] = [(); 3].map(|()| Sleeper::start());
    let pids = [&of_a, &second_of_a, &of_b].map(|process| process.0.id());
    let container = |tenant, pids: &[u32]| ContainerIdentity {
        registrants: pids.iter().map(|pid| id(*pid)).collect(),
        ..identity(tenant, here.path())
    };
    let containers = [container(1, &pids[..2]), container(2, &pids[2..])];
    let mut maps = Maps::new(Holder::open, Duration::ZERO, || ());
    // A sample at a time, in milliseconds. It ends although the reading goes on.
    let shims = |maps: &mut Maps, millis: u64| {
        let processes = Some(pids.iter().map(|pid| (*pid, None)).collect());
        let at = Nanos::from_millis(millis);
        let gpus = vec![GpuSample { processes, ..GpuSample::default() }];
        let sample = identify(Sample { at, gpus, ..Sample::default() }, &containers, maps);
        let shim = |pid: u32| {
            let found = sample.gpus[0].gpu_processes.iter().find(|one| one.id.pid == pid);
            found.unwrap().shim
        };
        pids.map(shim)
    };
    let hangs = Instant::now() + Duration::from_secs(100);
    let await_shims = |maps: &mut Maps, millis, expected: [Shim; 3]| {
        while shims(maps, millis) != expected {
            assert!(Instant::now() < hangs, "{:?} at {millis} ms", shims(maps, millis));
            std::thread::yield_now();
        }
    };
    let holders = [pids[0], pids[1]].map(Holder::new);
    await_shims(&mut maps, 1000, [Shim::Unknown, Shim::Unknown, Shim::Absent]);
    // The second process of its container is read once the first one has kept it waiting.
    let [first, second] = holders;
    drop(second);
    await_shims(&mut maps, 1999, [Shim::Unknown, Shim::Unknown, Shim::Absent]);
    await_shims(&mut maps, 2000, [Shim::Unknown, Shim::Absent, Shim::Absent]);
    assert_eq!(maps.held(Nanos::from_millis(5999)), BTreeSet::new());
    assert_eq!(maps.held(Nanos::from_millis(6000)), BTreeSet::from([1]));
    drop(first);
    await_shims(&mut maps, 6000, [Shim::Absent; 3]);
    assert_eq!(maps.held(Nanos::from_millis(6001)), BTreeSet::new());
}

#[test]
fn processes_that_keep_their_maps_from_being_read_have_few_threads() {
    let processes: Vec<Sleeper> = (0..8).map(|_| Sleeper::start()).collect();
    let _holders: Vec<Holder> = processes.iter().map(|one| Holder::new(one.0.id())).collect();
    let mut maps = Maps::new(Holder::open, Duration::ZERO, || ());
    let known = processes.iter().map(|one| (id(one.0.id()), (1, false))).collect();
    let counts: Vec<usize> = (1..=8)
        .map(|second| {
            maps.renew(Nanos::from_millis(second * 1000), &known);
            maps.pending()
        })
        .collect();
    assert_eq!(counts, [1, 2, 3, 4, 4, 4, 4, 4]);
}

#[test]
fn processes_with_many_mappings_cost_the_prober_little() {
    let here = tempfile::tempdir().unwrap();
    let mut processes = SlowProcesses::start(here.path());
    let (start, seconds) = (thread_cpu(), 40);
    for second in 1..=seconds {
        processes.sample(second);
    }
    let readers = Nanos(processes.used.load(Ordering::Relaxed));
    assert!(readers > Nanos::ZERO, "nothing was read");
    let used = thread_cpu() - start + readers;
    assert!(used.0 * 20 < seconds * 1_000_000_000, "{used:?} in {seconds} s");
}

#[test]
fn process_with_long_maps_does_not_hide_that_it_has_no_shim() {
    let here = tempfile::tempdir().unwrap();
    let long = here.path().join("x".repeat(250));
    fs::create_dir(&long).unwrap();
    let mut processes = SlowProcesses::start(&long);
    let length = fs::read(format!("/proc/{}/maps", processes.pids[0])).unwrap().len();
    assert!(length > 16 << 20, "{length} bytes");
    let mut found = (1..=100).map(|second| processes.sample(second));
    assert!(found.any(|shims| shims == [Shim::Absent; 4]));
}
