//! Graphs on a virtual clock in one process: the duration of launches and the order of steps. On
//! the real clock: processes that are killed while they launch.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{
    ContextId, CopyKind, Fill, Flight, Launch, Pitched, Plan, Step, StreamId, StreamKind, Work,
};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Bytes, Error, Footprint, GpuSpec, Kernel, Machine, Nanos, Settings};

struct Setup {
    machine: Machine,
    context: ContextId,
    stream: StreamId,
    _directory: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let settings = Settings {
            state: directory.path().join("segment"),
            gpus: Some(GpuSpec::parse_list("A10:23028,T4:15109").unwrap()),
            time_scale_milli: 1_000,
            figures: Figures::default(),
        };
        let machine =
            Machine::open_with(&settings, Clock::Virtual(VirtualClock::default())).unwrap();
        let context = machine.create_context(0).unwrap();
        let stream = machine.create_stream(context, StreamKind::NonBlocking).unwrap();
        // The first kernel of a context includes a switch.
        machine.launch(stream, spin(1)).unwrap();
        machine.synchronize_stream(stream).unwrap();
        Self { machine, context, stream, _directory: directory }
    }

    fn plan(&self, steps: Vec<(Work, Vec<usize>)>) -> Graph {
        let context = self.context;
        let (works, after): (Vec<Work>, Vec<Vec<usize>>) = steps.into_iter().unzip();
        (Plan::new(after.into_iter().map(|after| Step { context, after }).collect()), works)
    }

    fn launch_on(&self, stream: StreamId, (plan, works): &Graph, flight: &mut Flight) {
        // SAFETY: steps of these tests use only host memory that outlives them.
        unsafe { self.machine.launch_plan(stream, plan, works, flight) }.unwrap();
    }

    /// Returns the time from a launch until the host sees its end.
    fn time(&self, plan: &Graph) -> Nanos {
        let begun = self.machine.now();
        self.launch_on(self.stream, plan, &mut Flight::default());
        self.machine.synchronize_stream(self.stream).unwrap();
        self.machine.check().unwrap();
        self.machine.now() - begun
    }

    /// Returns the overhead of a launch: latency and visibility.
    fn around(&self) -> Nanos {
        self.machine.figures().launch_latency + self.machine.figures().visibility
    }
}

/// A plan and the work of its steps.
type Graph = (Plan, Vec<Work>);

fn spin(micros: u64) -> Launch {
    Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))))
}

fn kernel(micros: u64) -> Work {
    Work::Kernel(spin(micros))
}

fn chain(count: usize, micros: u64) -> Vec<(Work, Vec<usize>)> {
    (0..count).map(|n| (kernel(micros), n.checked_sub(1).into_iter().collect())).collect()
}

#[test]
fn chain_takes_its_kernels_and_one_latency() {
    let setup = Setup::new();
    let plan = setup.plan(chain(50, 20));
    assert_eq!(setup.time(&plan), Nanos::from_micros(50 * 20) + setup.around());
}

#[test]
fn graph_launch_costs_the_host_one_call() {
    let setup = Setup::new();
    let figures = *setup.machine.figures();
    let plan = setup.plan(chain(500, 20));
    let begun = setup.machine.now();
    setup.launch_on(setup.stream, &plan, &mut Flight::default());
    let cost = Nanos(figures.launch_cost.0 + 500 * figures.node_cost.0);
    assert_eq!(setup.machine.now() - begun, cost);
}

#[test]
fn branches_overlap_if_they_fit() {
    let setup = Setup::new();
    let buffer = setup.machine.allocate(setup.context, Bytes(8 << 20)).unwrap();
    let host = vec![1_u8; 8 << 20];
    let from = host.as_ptr().expose_provenance() as u64;
    let up = Work::Copy(CopyKind::HostToDevice, Pitched::line(buffer, from, 8 << 20));
    let figures = *setup.machine.figures();
    let copying = figures.copy_latency + Nanos((8 << 20) * 1_000 / figures.copy_rate);
    // A kernel concurrent with the copy, and one after both.
    let plan = setup.plan(vec![(up, vec![]), (kernel(100), vec![]), (kernel(10), vec![0, 1])]);
    assert_eq!(setup.time(&plan), copying + Nanos::from_micros(10) + setup.around());
}

#[test]
fn small_kernels_of_branches_share_the_gpu() {
    let setup = Setup::new();
    let quarter = Footprint::of_blocks(1, 4, 128);
    let small = |micros| Work::Kernel(Launch { footprint: quarter, ..spin(micros) });
    let plan = setup.plan((0..4).map(|_| (small(100), vec![])).collect());
    assert_eq!(setup.time(&plan), Nanos::from_micros(100) + setup.around());
    // A fifth kernel has to wait.
    let plan = setup.plan((0..5).map(|_| (small(100), vec![])).collect());
    assert_eq!(setup.time(&plan), Nanos::from_micros(200) + setup.around());
    // Kernels in a chain run one after the other, however much space there is.
    let after = |n: usize| n.checked_sub(1).into_iter().collect();
    let plan = setup.plan((0..4).map(|n| (small(100), after(n))).collect());
    assert_eq!(setup.time(&plan), Nanos::from_micros(400) + setup.around());
}

#[test]
fn launches_of_one_graph_run_in_turn() {
    let setup = Setup::new();
    let other = setup.machine.create_stream(setup.context, StreamKind::NonBlocking).unwrap();
    let (seen, begun) = (Arc::new(Mutex::new(Vec::new())), setup.machine.now());
    let note = |what: usize| {
        let seen = Arc::clone(&seen);
        Work::Call(Arc::new(move || seen.lock().unwrap().push(what)))
    };
    let plan = setup.plan(vec![(note(1), vec![]), (kernel(1_000), vec![0]), (note(2), vec![1])]);
    let mut flight = Flight::default();
    for stream in [setup.stream, other, setup.stream, other] {
        setup.launch_on(stream, &plan, &mut flight);
    }
    setup.machine.synchronize_context(setup.context).unwrap();
    assert_eq!(*seen.lock().unwrap(), [1, 2, 1, 2, 1, 2, 1, 2]);
    assert!(setup.machine.now() - begun >= Nanos::from_millis(4));
    setup.machine.check().unwrap();
}

#[test]
fn graph_launch_keeps_stream_order() {
    let setup = Setup::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |what: &'static str| {
        let seen = Arc::clone(&seen);
        move || seen.lock().unwrap().push(what)
    };
    setup.machine.launch(setup.stream, spin(500)).unwrap();
    setup.machine.host_function(setup.stream, Box::new(note("before"))).unwrap();
    let steps = vec![
        (Work::Call(Arc::new(note("one"))), vec![]),
        (Work::Call(Arc::new(note("two"))), vec![0]),
    ];
    let plan = setup.plan(steps);
    setup.launch_on(setup.stream, &plan, &mut Flight::default());
    setup.machine.host_function(setup.stream, Box::new(note("after"))).unwrap();
    setup.machine.synchronize_stream(setup.stream).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["before", "one", "two", "after"]);
}

#[test]
fn graphs_larger_than_any_queue_complete() {
    let setup = Setup::new();
    let plan = setup.plan(chain(6_000, 1));
    assert_eq!(setup.time(&plan), Nanos::from_micros(6_000) + setup.around());
    let wide = (0..3_000).map(|_| (kernel(1), vec![])).collect();
    let plan = setup.plan(wide);
    assert_eq!(setup.time(&plan), Nanos::from_micros(3_000) + setup.around());
    // Repeated launches without waiting fill the rings until the launch blocks.
    let plan = setup.plan(chain(800, 1));
    let mut flight = Flight::default();
    let begun = setup.machine.now();
    (0..20).for_each(|_| setup.launch_on(setup.stream, &plan, &mut flight));
    setup.machine.synchronize_stream(setup.stream).unwrap();
    assert!(setup.machine.now() - begun >= Nanos::from_micros(20 * 800));
    setup.machine.check().unwrap();
}

#[test]
fn graph_can_span_gpus() {
    let setup = Setup::new();
    let other = setup.machine.create_context(1).unwrap();
    let at = |n: usize| if n.is_multiple_of(2) { setup.context } else { other };
    let chain = |n: usize| Step { context: at(n), after: n.checked_sub(1).into_iter().collect() };
    let graph = (Plan::new((0..10).map(chain).collect()), vec![kernel(100); 10]);
    // The other GPU switches to its context once.
    let switch = setup.machine.figures().switch;
    assert_eq!(setup.time(&graph), Nanos::from_micros(1_000) + switch + setup.around());
    // Concurrent: neither GPU waits for the other.
    let free = |n: usize| Step { context: at(n), after: vec![] };
    let graph = (Plan::new((0..10).map(free).collect()), vec![kernel(100); 10]);
    assert_eq!(setup.time(&graph), Nanos::from_micros(500) + setup.around());
}

#[test]
fn many_graphs_share_the_tracks() {
    let setup = Setup::new();
    let graph = setup
        .plan((0..64).map(|n| (kernel(1), if n < 32 { vec![] } else { vec![n - 32] })).collect());
    let mut flights: Vec<Flight> = (0..40).map(|_| Flight::default()).collect();
    for _ in 0..4 {
        for flight in &mut flights {
            let stream =
                setup.machine.create_stream(setup.context, StreamKind::NonBlocking).unwrap();
            setup.launch_on(stream, &graph, flight);
            setup.machine.destroy_stream(stream).unwrap();
        }
    }
    let begun = setup.machine.context_busy(setup.context).unwrap();
    setup.machine.synchronize_context(setup.context).unwrap();
    assert!(setup.machine.context_busy(setup.context).unwrap() > begun);
    assert_eq!(setup.machine.processes(0).unwrap()[0].kernels, 1 + 4 * 40 * 64);
    setup.machine.check().unwrap();
}

#[test]
fn copies_and_fills_of_a_graph_are_in_order() {
    let setup = Setup::new();
    let first = setup.machine.allocate(setup.context, Bytes(4096)).unwrap();
    let second = setup.machine.allocate(setup.context, Bytes(4096)).unwrap();
    let mut host = vec![0_u8; 4096];
    let to = host.as_mut_ptr().expose_provenance() as u64;
    let fill = Fill { to: first, value: 0xab, size: 1, elements: 4096, rows: 1, pitch: 0 };
    let plan = setup.plan(vec![
        (Work::Fill(fill), vec![]),
        (Work::Copy(CopyKind::DeviceToDevice, Pitched::line(second, first, 4096)), vec![0]),
        (Work::Copy(CopyKind::DeviceToHost, Pitched::line(to, second, 4096)), vec![1]),
    ]);
    setup.time(&plan);
    assert!(host.iter().all(|&byte| byte == 0xab));
}

#[test]
fn refused_launch_changes_nothing() {
    let setup = Setup::new();
    let buffer = setup.machine.allocate(setup.context, Bytes(1 << 20)).unwrap();
    let fill = Fill { to: buffer, value: 1, size: 1, elements: 1 << 20, rows: 1, pitch: 0 };
    let (plan, works) = setup.plan(vec![(kernel(10), vec![]), (Work::Fill(fill), vec![0])]);
    setup.machine.free(buffer).unwrap();
    let mut flight = Flight::default();
    // SAFETY: no host memory.
    let refused = unsafe { setup.machine.launch_plan(setup.stream, &plan, &works, &mut flight) };
    assert_eq!(refused, Err(Error::NoAllocation));
    assert!(setup.machine.is_context_done(setup.context).unwrap());
    assert_eq!(flight.last(), None);
}

#[test]
fn destroyed_context_ends_its_graphs() {
    let setup = Setup::new();
    let plan = setup.plan(chain(100, 1_000));
    setup.launch_on(setup.stream, &plan, &mut Flight::default());
    setup.machine.destroy_context(setup.context).unwrap();
    setup.machine.check().unwrap();
    let context = setup.machine.create_context(0).unwrap();
    let stream = setup.machine.create_stream(context, StreamKind::Blocking).unwrap();
    let plan = Plan::new(vec![Step { context, after: vec![] }]);
    setup.launch_on(stream, &(plan, vec![kernel(5)]), &mut Flight::default());
    setup.machine.synchronize_stream(stream).unwrap();
}

/// Variable with the segment's path, for child processes.
const STATE: &str = "CGPU_SIM_TEST_GRAPHS";

fn hasty(state: std::path::PathBuf) -> Settings {
    let figures =
        Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() };
    let figures = Figures { death_delay: Nanos::from_millis(1), ..figures };
    let gpus = Some(GpuSpec::parse_list("A10:23028").unwrap());
    Settings { state, gpus, time_scale_milli: 1_000, figures }
}

/// Launches a graph with branches from several streams until it is killed. Run by child processes;
/// does nothing as a test.
#[test]
fn child_performs_role() {
    let Some(state) = std::env::var_os(STATE) else { return };
    let machine = Machine::open(&hasty(state.into())).unwrap();
    let context = machine.create_context(0).unwrap();
    let streams: Vec<StreamId> =
        (0..3).map(|_| machine.create_stream(context, StreamKind::Blocking).unwrap()).collect();
    let after = |n: usize| if n < 8 { vec![] } else { vec![n - 8, n - 5] };
    let plan = Plan::new((0..200).map(|n| Step { context, after: after(n) }).collect());
    let call = || Work::Call(Arc::new(|| ()));
    let works: Vec<Work> = (0..200).map(|n| if n % 20 == 0 { call() } else { kernel(1) }).collect();
    let mut flights = [Flight::default(), Flight::default()];
    for round in 0.. {
        // SAFETY: no step uses host memory.
        unsafe { machine.launch_plan(streams[round % 3], &plan, &works, &mut flights[round % 2]) }
            .unwrap();
    }
}

#[test]
fn processes_killed_during_launches_leave_nothing() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let state = directory.path().join("segment");
    let machine = Machine::open(&hasty(state.clone())).unwrap();
    let before = machine.memory_info(0).unwrap().used;
    for round in 0..40_u64 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_performs_role"]).env(STATE, &state);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let watchdog = || {
            // SAFETY: requests a signal at the parent's death; touches no memory.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: starts this process's own timer, which survives exec.
            unsafe { libc::alarm(60) };
            Ok(())
        };
        // SAFETY: both calls are async-signal-safe.
        unsafe { command.pre_exec(watchdog) };
        let mut child = command.spawn().unwrap();
        while machine.processes(0).unwrap().iter().all(|process| process.kernels == 0) {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 317 % 5_000));
        child.kill().unwrap();
        child.wait().unwrap();
        machine.check().unwrap();
        while !machine.processes(0).unwrap().is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(machine.memory_info(0).unwrap().used, before);
    machine.check().unwrap();
}
