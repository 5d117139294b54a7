//! The machine on the real clock with real processes: threads that perform effects, kills at any
//! instant, forks.
//!
//! Children run this program with a variable that selects their role. Each ends with its parent,
//! and after five minutes at the latest.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cgpu_shm::atomic::{AtomicU32, AtomicU64, Ordering};
use cgpu_sim::machine::{CopyKind, Launch, Pitched, StreamKind, WaitCondition, Width};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Bytes, Error, GpuSpec, Kernel, Machine, Nanos, Settings};

/// Variables with a child's role and segment.
const ROLE: &str = "CGPU_SIM_TEST_ROLE";
const STATE: &str = "CGPU_SIM_TEST_STATE";

struct Setup {
    directory: tempfile::TempDir,
    figures: Figures,
}

fn settings(state: &Path) -> Settings {
    Settings {
        state: state.to_owned(),
        gpus: Some(GpuSpec::parse_list("A10:23028,T4:4096").unwrap()),
        time_scale_milli: 1_000,
        figures: Figures::default(),
    }
}

impl Setup {
    fn new() -> Self {
        Self { directory: tempfile::tempdir_in("/dev/shm").unwrap(), figures: Figures::default() }
    }

    /// Calls cost nothing, so that programs hold the segment's lock as often as possible, and
    /// exited processes are reclaimed soon. Children read these figures from the segment.
    fn hasty() -> Self {
        let free =
            Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() };
        Self { figures: Figures { death_delay: Nanos::from_millis(1), ..free }, ..Self::new() }
    }

    fn machine(&self) -> Machine {
        let settings = settings(&self.directory.path().join("segment"));
        Machine::open(&Settings { figures: self.figures, ..settings }).unwrap()
    }

    fn child(&self, role: &str) -> Watched {
        self.start(role, Command::new(std::env::current_exe().unwrap()))
    }

    /// Starts a child as the first process of a PID namespace; `None` if that is not permitted.
    fn child_in_a_namespace(&self, role: &str) -> Option<Watched> {
        let enter = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];
        let can = Command::new("unshare")
            .args(enter)
            .arg("true")
            .status()
            .is_ok_and(|status| status.success());
        let mut command = Command::new("unshare");
        command.args(enter).arg(std::env::current_exe().unwrap());
        can.then(|| self.start(role, command))
    }

    fn start(&self, role: &str, mut command: Command) -> Watched {
        command.args(["--exact", "child_performs_role", "--nocapture"]);
        command.env(ROLE, role).env(STATE, self.directory.path().join("segment"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let end_with_parent = || {
            // SAFETY: requests a signal at the parent's death; touches no memory.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: starts this process's own timer, which survives exec, as a watchdog.
            unsafe { libc::alarm(300) };
            Ok(())
        };
        // SAFETY: both calls are async-signal-safe.
        unsafe { command.pre_exec(end_with_parent) };
        Watched(command.spawn().unwrap())
    }
}

/// A child that is killed on drop.
struct Watched(Child);

impl Watched {
    fn kill(mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "it has ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn finish(mut self) {
        assert!(self.0.wait().unwrap().success());
    }

    fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.0.id()).unwrap();
        // SAFETY: a signal to our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // It has ended already if it was killed or has finished.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn launch(kernel: &str) -> Launch {
    Launch::whole(Kernel::named(kernel))
}

fn address_of<T>(word: &T) -> u64 {
    core::ptr::from_ref(word).expose_provenance() as u64
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let timeout = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < timeout, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Performs a child's role; does nothing as a test.
#[test]
fn child_performs_role() {
    let (Some(role), Some(state)) = (std::env::var_os(ROLE), std::env::var_os(STATE)) else {
        return;
    };
    let machine = Machine::open(&settings(Path::new(&state))).unwrap();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    match role.to_str().unwrap() {
        "saturate" => loop {
            machine.launch(stream, launch("spin_60us")).unwrap();
        },
        // A queue of a second is enough for a child that does not get its processor for a while.
        "saturate slowly" => loop {
            machine.launch(stream, launch("spin_1ms")).unwrap();
        },
        "persist" => {
            machine.launch(stream, launch("persistent")).unwrap();
            machine.synchronize_stream(stream).unwrap();
        }
        // Never waits, and holds the lock much of the time.
        "press" => loop {
            machine.launch(stream, launch("lognormal_2us_1.0")).unwrap();
            for _ in 0..20 {
                machine.is_stream_done(stream).unwrap();
                machine.free_now(machine.allocate(context, Bytes(3 << 20)).unwrap()).unwrap();
            }
        },
        "churn" => churn(&machine, std::process::id().into()),
        "churn briefly" => {
            let until = Instant::now() + Duration::from_millis(300);
            let word = Box::leak(Box::new(AtomicU64::new(0)));
            while Instant::now() < until {
                churn_once(&machine, u64::from(std::process::id()), word);
            }
            machine.check().unwrap();
        }
        role => panic!("no such role: {role}"),
    }
}

fn churn(machine: &Machine, seed: u64) -> ! {
    let word = Box::leak(Box::new(AtomicU64::new(0)));
    for round in 0.. {
        churn_once(machine, seed ^ round << 20, word);
    }
    unreachable!("the range has no end")
}

/// Performs some of every operation, and frees everything.
fn churn_once(machine: &Machine, seed: u64, word: &'static AtomicU64) {
    let gpu = usize::from(cgpu_sim::kernel::mix(seed).is_multiple_of(2));
    let context = match machine.create_context(gpu) {
        Err(Error::OutOfMemory) => return,
        context => context.unwrap(),
    };
    let streams = [StreamKind::Blocking, StreamKind::NonBlocking]
        .map(|k| machine.create_stream(context, k).unwrap());
    let event = machine.create_event(context, true).unwrap();
    let source = *Box::leak(Box::new([5_u8; 4]));
    for round in 0..12 {
        let stream = streams[round % 2];
        machine.launch(stream, launch("lognormal_10us_1.0")).unwrap();
        machine.record_event(event, stream).unwrap();
        machine.wait_event(streams[(round + 1) % 2], event).unwrap();
        // SAFETY: the word is never freed.
        unsafe { machine.write_value(stream, address_of(word), Width::Eight, seed) }.unwrap();
        if let Ok(address) = machine.allocate(context, Bytes(700_000 << (round % 3))) {
            // SAFETY: the bytes are never freed.
            unsafe {
                machine.copy(
                    stream,
                    CopyKind::HostToDevice,
                    Pitched::line(address, address_of(&source), 4),
                )
            }
            .unwrap();
            machine.free(address).unwrap();
        }
    }
    machine.launch(machine.legacy_stream(context).unwrap(), launch("spin_5us")).unwrap();
    if !cgpu_sim::kernel::mix(seed).is_multiple_of(3) {
        machine.synchronize_context(context).unwrap();
    }
    machine.destroy_context(context).unwrap();
}

#[test]
fn two_processes_get_equal_shares_and_lose_a_tenth() {
    let setup = Setup::new();
    let machine = setup.machine();
    let children = [setup.child("saturate slowly"), setup.child("saturate slowly")];
    let busy = |pid| {
        let uses = machine.processes(0).unwrap();
        uses.iter().find(|each| each.pid == pid).map_or(Nanos::ZERO, |each| each.busy)
    };
    eventually("both compute", || {
        children.iter().all(|child| busy(child.pid()) > Nanos::from_millis(20))
    });
    let read = || (machine.now(), children.each_ref().map(|child| busy(child.pid())));
    // While one process waits for a processor, the other has the GPU and loses nothing. One window
    // without that is enough.
    let mut seen = Vec::new();
    let shared = (0..20).any(|_| {
        let (begun, before) = read();
        std::thread::sleep(Duration::from_millis(500));
        let (ended, after) = read();
        let permille = |index: usize| (after[index] - before[index]).0 * 1_000 / (ended - begun).0;
        seen.push([permille(0), permille(1)]);
        seen.last().is_some_and(|both| both.iter().all(|permille| (440..=470).contains(permille)))
    });
    assert!(shared, "{seen:?} of 1000");
    machine.check().unwrap();
}

#[test]
fn memory_writes_become_visible_without_a_call() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let word = AtomicU64::new(0);
    for value in 1..=200 {
        machine.launch(stream, launch("spin_300us")).unwrap();
        // SAFETY: the word outlives the wait for the stream below.
        unsafe { machine.write_value(stream, address_of(&word), Width::Eight, value) }.unwrap();
        if value % 50 == 0 {
            let mut seen = 0;
            eventually("the last value", || {
                let now = word.load(Ordering::Acquire);
                assert!(now >= seen, "writes are seen in order");
                seen = now;
                now == value
            });
        }
    }
    machine.synchronize_stream(stream).unwrap();
}

#[test]
fn wait_on_memory_ends_when_the_program_writes() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let gate = AtomicU32::new(0);
    // SAFETY: the word outlives the wait for the stream below.
    unsafe { machine.wait_value(stream, address_of(&gate), Width::Four, WaitCondition::Equal, 9) }
        .unwrap();
    machine.launch(stream, launch("spin_20us")).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!machine.is_stream_done(stream).unwrap());
    gate.store(9, Ordering::Release);
    machine.synchronize_stream(stream).unwrap();
}

#[test]
fn host_functions_run_in_order() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let word = Arc::new(AtomicU64::new(0));
    let (calls, received) = channel();
    for number in 0..20_u64 {
        let calls = calls.clone();
        let word = Arc::clone(&word);
        machine.launch(stream, launch("spin_20us")).unwrap();
        let call = move || {
            std::thread::sleep(Duration::from_millis(1));
            calls.send((number, word.load(Ordering::Acquire))).unwrap();
        };
        machine.host_function(stream, Box::new(call)).unwrap();
    }
    assert_eq!(
        received.iter().take(20).map(|(number, _)| number).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
    machine.synchronize_stream(stream).unwrap();
}

#[test]
fn time_scale_slows_device_time_only() {
    let setup = Setup::new();
    let path = setup.directory.path().join("slow");
    let machine = Machine::open(&Settings { time_scale_milli: 10_000, ..settings(&path) }).unwrap();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let (real, device) = (Instant::now(), machine.now());
    machine.launch(stream, launch("spin_2ms")).unwrap();
    machine.synchronize_stream(stream).unwrap();
    let (real, device) = (real.elapsed(), machine.now() - device);
    assert!(device >= Nanos::from_millis(2));
    assert!(real >= Duration::from_millis(20), "{real:?}");
}

#[test]
fn memory_of_killed_process_is_freed_after_a_delay() {
    let setup = Setup::new();
    let machine = setup.machine();
    let child = setup.child("persist");
    eventually("it has a context", || machine.memory_info(0).unwrap().used > Bytes::ZERO);
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let used = machine.memory_info(0).unwrap().used;
    child.kill();
    assert_eq!(machine.memory_info(0).unwrap().used, used, "memory is not freed at once");
    eventually("the process is reclaimed", || machine.processes(0).unwrap().len() == 1);
    assert_eq!(machine.memory_info(0).unwrap().used, machine.figures().context_memory);
    machine.launch(stream, launch("spin_2ms")).unwrap();
    machine.synchronize_stream(stream).unwrap();
    machine.check().unwrap();
}

#[test]
fn forked_child_needs_its_own_machine() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    // SAFETY: the child takes no lock except the allocator's, which glibc keeps usable after fork,
    // and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: starts this process's own timer, as a watchdog.
        unsafe { libc::alarm(30) };
        let refused = machine.create_context(0) == Err(Error::Forked)
            && machine.allocate(context, Bytes(1)) == Err(Error::Forked)
            && machine.free(1) == Err(Error::Forked)
            && machine.is_inherited();
        drop(machine);
        let own = setup.machine();
        let works =
            own.create_context(0).and_then(|context| own.allocate(context, Bytes(1))).is_ok();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(!(refused && works))) };
    }
    let mut status = 0;
    // SAFETY: our own child, not yet waited for; the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    machine.allocate(context, Bytes(1)).unwrap();
}

#[test]
fn processes_with_random_operations_leave_nothing() {
    let setup = Setup::new();
    let machine = setup.machine();
    let children: Vec<_> = (0..4).map(|_| setup.child("churn briefly")).collect();
    children.into_iter().for_each(Watched::finish);
    // Processes that end without dropping their machine are reclaimed like any other.
    eventually("all is free", || {
        machine.processes(0).unwrap().is_empty() && machine.processes(1).unwrap().is_empty()
    });
    for gpu in 0..2 {
        assert_eq!(machine.memory_info(gpu).unwrap().used, Bytes::ZERO);
    }
    machine.check().unwrap();
}

#[test]
fn four_hundred_kills_do_not_affect_other_processes() {
    let setup = Setup::hasty();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let kernels = |pid: u32| {
        let uses = (0..2).flat_map(|gpu| machine.processes(gpu).unwrap());
        uses.filter(|each| each.pid == pid).map(|each| each.kernels).sum::<u64>()
    };
    let survivor = setup.child("saturate slowly");
    eventually("it computes", || kernels(survivor.pid()) > 0);
    let mut victims: Vec<_> = (0..2).map(|_| setup.child("press")).collect();
    victims.push(setup.child("churn"));
    let mut kills = 0;
    while kills < 400 || machine.deaths_in_lock() < 50 {
        assert!(
            kills < 4_000,
            "of {kills} processes only {} were killed inside the lock",
            machine.deaths_in_lock()
        );
        let victim = victims.remove(0);
        let pid = victim.pid();
        eventually("it has begun", || {
            (0..2).any(|gpu| machine.processes(gpu).unwrap().iter().any(|each| each.pid == pid))
        });
        std::thread::sleep(Duration::from_micros(cgpu_sim::kernel::mix(kills) % 5_000));
        victim.kill();
        kills += 1;
        // The other processes continue, and so does this one.
        let before = kernels(survivor.pid());
        machine.launch(stream, launch("spin_20us")).unwrap();
        machine.synchronize_stream(stream).unwrap();
        machine.check().unwrap();
        eventually("the survivor continues", || kernels(survivor.pid()) > before);
        // Nothing of the killed process remains.
        eventually("the process is reclaimed", || {
            (0..2).all(|gpu| machine.processes(gpu).unwrap().iter().all(|each| each.pid != pid))
        });
        machine.check().unwrap();
        victims.push(setup.child(if kills % 3 == 0 { "churn" } else { "press" }));
    }
    println!("{kills} kills, {} inside the lock", machine.deaths_in_lock());
    victims.into_iter().for_each(Watched::kill);
    survivor.kill();
    eventually("killed processes are reclaimed", || {
        machine.processes(0).unwrap().len() == 1 && machine.processes(1).unwrap().is_empty()
    });
    assert_eq!(machine.memory_info(0).unwrap().used, machine.figures().context_memory);
    assert_eq!(machine.memory_info(1).unwrap().used, Bytes::ZERO);
    machine.check().unwrap();
}

/// A stopped process may hold the segment's lock. The GPU must not stop, and the process must be
/// able to continue later.
#[test]
fn stopped_process_does_not_block_others() {
    let setup = Setup::new();
    let machine = setup.machine();
    let context = machine.create_context(0).unwrap();
    let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
    let children: Vec<_> = (0..3).map(|_| setup.child("churn")).collect();
    eventually("all have begun", || {
        machine.processes(0).unwrap().len() + machine.processes(1).unwrap().len() > 3
    });
    for round in 0..60 {
        let child = &children[round % children.len()];
        std::thread::sleep(Duration::from_micros(
            2_000 + cgpu_sim::kernel::mix(round as u64) % 3_000,
        ));
        child.signal(libc::SIGSTOP);
        machine.launch(stream, launch("spin_20us")).unwrap();
        machine.synchronize_stream(stream).unwrap();
        machine.check().unwrap();
        child.signal(libc::SIGCONT);
    }
    children.into_iter().for_each(Watched::kill);
    eventually("killed processes are reclaimed", || {
        machine.memory_info(1).unwrap().used == Bytes::ZERO
    });
    machine.check().unwrap();
}

/// NVML lists a program in another PID namespace by its id in the caller's.
#[test]
fn process_of_another_pid_namespace_is_listed_by_our_id() {
    let setup = Setup::new();
    let machine = setup.machine();
    let Some(inside) = setup.child_in_a_namespace("persist") else {
        eprintln!("skipped: cannot create a PID namespace (unshare)");
        return;
    };
    let children = |pid: u32| -> Vec<u32> {
        let list =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        list.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
    };
    eventually("it is listed", || machine.processes(0).unwrap().len() == 1);
    let listed = machine.processes(0).unwrap()[0].pid;
    assert_eq!(children(inside.pid()), [listed]);
    // Its id in its own namespace is 1.
    let status = std::fs::read_to_string(format!("/proc/{listed}/status")).unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
    assert!(ids.trim().ends_with("\t1"), "{ids}");
    inside.kill();
    // An ended process has no id any more; listing processes reclaims it.
    eventually("the process is reclaimed", || {
        machine.processes(0).unwrap().is_empty()
            && machine.memory_info(0).unwrap().used == Bytes::ZERO
    });
}
