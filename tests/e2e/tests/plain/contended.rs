//! Programs that contend for a GPU: each behaves and answers as it does alone, and none waits
//! forever.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use cgpu_e2e::{Child, Container, Fixture, Monitor, Outcome, Worker};
use serde_json::Value;

/// Deadline above the duration of these programs on a busy machine. The neighbour launches for as
/// long and is killed before.
const LONG: Duration = Duration::from_secs(150);

struct Contended {
    fixture: Fixture,
    container: Container,
    _monitor: Monitor,
    neighbour: Worker,
}

impl Contended {
    fn new(gpus: &str) -> Self {
        let fixture = Fixture::new(gpus);
        let monitor = Monitor::start(&fixture);
        let (container, other) = (fixture.limited("a", 4096), fixture.limited("b", 4096));
        let neighbour = Worker::start(&fixture, &other);
        let _ = fixture.accounting(&other);
        Self { fixture, container, _monitor: monitor, neighbour }
    }

    fn begin(mut self) -> Self {
        self.neighbour.begin(LONG.as_secs_f64());
        self
    }

    fn start(&self, program: &str, arguments: &[&str]) -> Child {
        let mut command = self.fixture.program_in(&self.container, program);
        command.args(arguments);
        self.start_as(command)
    }

    /// As [`Contended::start`], with a command. It waits until the monitor knows the program:
    /// launches before that are not measured.
    fn start_as(&self, command: Command) -> Child {
        let child = ready(command);
        let pid = child.pid();
        self.fixture.eventually("the monitor knows the program", || {
            let accounting = self.fixture.accounting(&self.container);
            let known = |process: &Value| process["pid"] == pid && process["gpus"][0].is_object();
            accounting["processes"].as_array()?.iter().any(known).then_some(())
        });
        child
    }

    /// Runs `launches` with a driver that has every function. Returns how many launches it made,
    /// and how many of them were measured.
    fn launches(&self, arguments: &[&str]) -> (u64, u64) {
        let mut command = self.fixture.program_in(&self.container, "launches");
        command.args(arguments).env("CGPU_SIM_DRIVER", "13020");
        let mut child = self.start_as(command);
        let made = run_program(&mut child).concat().parse().expect("a number");
        // The previous program may still be listed.
        let pid = child.pid();
        let measured = self.measured_of(|process| process["pid"] == pid);
        child.finish().silent();
        assert!(measured <= made, "{arguments:?}: {measured} of {made}");
        (made, measured)
    }

    fn counted(&self, name: &str) -> u64 {
        let accounting = self.fixture.accounting(&self.container);
        let of = |process: &Value| process["counters"][name].as_u64();
        accounting["processes"].as_array().into_iter().flatten().filter_map(of).sum()
    }

    fn measured(&self) -> u64 {
        self.measured_of(|_| true)
    }

    fn measured_of(&self, which: impl Fn(&Value) -> bool) -> u64 {
        let accounting = self.fixture.accounting(&self.container);
        let processes = accounting["processes"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|process| which(process));
        processes.filter_map(|process| process["gpus"][0]["launches"].as_u64()).sum()
    }

    fn finish(self) {
        drop(self.neighbour.process.kill());
    }
}

fn ready(command: Command) -> Child {
    let mut child = Child::start_for(command, LONG);
    assert_eq!(child.line(), "ready");
    child
}

/// Lets a program do its work and returns its lines. It stays, so that its counters can be read.
fn run_program(child: &mut Child) -> Vec<String> {
    child.write("\n");
    let mut lines = Vec::new();
    loop {
        let line = child.line();
        if line == "over" {
            return lines;
        }
        lines.push(line);
    }
}

#[test]
fn streams_and_captures_are_unchanged_by_the_gate() {
    let steps = "2000";
    let mut answers = BTreeSet::new();
    let contended = Contended::new("A10:23028").begin();
    for seed in ["1", "2", "3", "4", "5", "6"] {
        let fixture = Fixture::new("A10:23028");
        let mut command = fixture.program("random_streams");
        command.args([seed, steps]);
        let mut bare = ready(command);
        let alone = run_program(&mut bare);
        bare.finish().silent();

        let mut child = contended.start("random_streams", &[seed, steps]);
        let gated = run_program(&mut child);
        for (gated, alone) in gated.iter().zip(&alone) {
            assert_eq!(gated, alone, "seed {seed}");
        }
        assert_eq!(gated.len(), alone.len(), "seed {seed}");
        assert!(contended.counted("capturing") > 0 && contended.measured() > 0, "seed {seed}");
        assert_eq!(contended.counted("panicked"), 0);
        child.finish().silent();
        answers
            .extend(alone.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()));
    }
    for code in [0, 900, 901, 902, 903, 904, 905, 906, 907, 908] {
        assert!(answers.contains(&code), "no call answered {code}: {answers:?}");
    }
    contended.finish();
}

fn named<'a>(calls: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    calls.iter().filter(move |call| call["what"] == "call" && call["name"] == *name)
}

/// A global capture forbids these calls to all threads: one of the shim's, or any work on its
/// stream, would have invalidated it.
#[test]
fn shim_makes_no_forbidden_calls_during_a_global_capture() {
    const FORBIDDEN: [&str; 6] = [
        "cuEventQuery",
        "cuEventElapsedTime",
        "cuEventCreate",
        "cuMemHostRegister_v2",
        "cuStreamQuery",
        "cuMemHostGetDevicePointer_v2",
    ];
    let contended = Contended::new("A10:23028").begin();
    let journal = contended.fixture.path("journal");
    let mut command = contended.fixture.program_in(&contended.container, "waiting");
    command.arg("capture").env("CGPU_SIM_JOURNAL", &journal);
    let mut child = contended.start_as(command);
    run_program(&mut child);
    child.finish().silent();
    let text = fs::read_to_string(journal).expect("a journal");
    contended.finish();
    let calls: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let when = |call: &Value, end: &str| {
        call[end].as_u64().unwrap_or_else(|| panic!("no {end} in {call}"))
    };
    let begun = named(&calls, "cuStreamBeginCapture_v2")
        .map(|call| when(call, "to"))
        .next()
        .expect("a begin");
    let ended =
        named(&calls, "cuStreamEndCapture").map(|call| when(call, "from")).next().expect("an end");
    // The other thread launched meanwhile, and the shim made such calls before and after.
    let launched = named(&calls, "cuLaunchKernel")
        .filter(|call| (begun..ended).contains(&when(call, "from")))
        .count();
    assert!(launched > 10, "{launched}");
    assert!(named(&calls, "cuEventElapsedTime").count() > 0);
    for name in FORBIDDEN {
        // One call may have begun before the capture did.
        let forbidden: Vec<_> = named(&calls, name)
            .filter(|call| (begun..ended).contains(&when(call, "from")))
            .skip(1)
            .collect();
        assert!(forbidden.is_empty(), "{forbidden:?}");
    }
}

/// A captured launch is not executed. It is neither charged nor measured, even where the thread has
/// budget left.
#[test]
fn captured_launches_are_not_charged() {
    let contended = Contended::new("A10:23028").begin();
    let mut child = contended.start("captured_launches", &[]);
    let launched: u64 = run_program(&mut child).concat().parse().expect("a number");
    let (measured, passed) = (contended.measured(), contended.counted("capturing"));
    child.finish().silent();
    contended.finish();
    assert!(
        measured > launched / 4 && measured <= launched,
        "{measured} of {launched} are measured"
    );
    // The program captures 40 launches for each 50 that it executes.
    assert!(
        passed * 50 > measured * 40 * 4 / 5,
        "{passed} were seen to be captured, {measured} are measured"
    );
}

/// Each context has its own page that the GPU writes. No events are queried, and a destroyed
/// context takes no other's page.
#[test]
fn each_context_has_its_own_completion_page() {
    let contended = Contended::new("A10:23028").begin();
    let journal = contended.fixture.path("journal");
    let mut command = contended.fixture.program_in(&contended.container, "context_turns");
    command.env("CGPU_SIM_JOURNAL", &journal);
    let mut child = contended.start_as(command);
    run_program(&mut child);
    let failed = contended.counted("marker_failed");
    child.finish().silent();
    let text = fs::read_to_string(journal).expect("a journal");
    contended.finish();
    let calls: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let count = |name: &str| named(&calls, name).count();
    let (pages, writes, queries) =
        (count("cuMemHostRegister_v2"), count("cuStreamWriteValue64_v2"), count("cuEventQuery"));
    assert!(pages == 3 && writes > 20, "{pages} pages, {writes} writes");
    assert_eq!((queries, failed), (0, 0), "queried events, and refusals");
}

/// Every function that computes is measured and charged, in each flavour. A thread reports launches
/// when it next requests budget; launches from before the contention are not counted.
#[test]
fn every_computing_function_is_measured() {
    const SECONDS: &str = "0.4";
    let flavours = |names: &[&str], own: &str| -> Vec<String> {
        names.iter().flat_map(|name| [(*name).to_owned(), format!("{name}{own}")]).collect()
    };
    let mut names = flavours(
        &[
            "cuLaunchKernel",
            "cuLaunchKernelEx",
            "cuLaunchCooperativeKernel",
            "cuGraphLaunch",
            "cuMemsetD8Async",
            "cuMemsetD16Async",
            "cuMemsetD32Async",
            "cuMemsetD2D8Async",
            "cuMemsetD2D16Async",
            "cuMemsetD2D32Async",
            "cuMemcpyDtoDAsync_v2",
            "cuMemcpyAsync",
            "cuMemcpyBatchAsync",
            "cuMemcpyBatchAsync_v2",
            "cuMemcpyWithAttributesAsync",
            "cuMemcpy3DBatchAsync",
            "cuMemcpy3DBatchAsync_v2",
            "cuMemcpy3DWithAttributesAsync",
        ],
        "_ptsz",
    );
    names.extend(flavours(
        &[
            "cuMemsetD8_v2",
            "cuMemsetD16_v2",
            "cuMemsetD32_v2",
            "cuMemsetD2D8_v2",
            "cuMemsetD2D16_v2",
            "cuMemsetD2D32_v2",
            "cuMemcpyDtoD_v2",
            "cuMemcpy",
        ],
        "_ptds",
    ));
    names.extend(
        ["cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchCooperativeKernelMultiDevice"]
            .map(str::to_owned),
    );
    let contended = Contended::new("A10:23028").begin();
    // On a busy machine many of a function's first launches may pass before the contention is seen.
    let is_counted = |name: &str| {
        let (made, measured) = contended.launches(&[name, SECONDS]);
        measured >= made / 2
    };
    for name in &names {
        assert!((0..10).any(|_| is_counted(name)), "most of {name} are not measured");
    }
    contended.finish();
}

/// The copy engines do copies from the host; a batch with no others is not gated.
#[test]
fn batch_from_the_host_is_not_gated() {
    let contended = Contended::new("A10:23028").begin();
    for name in [
        "cuMemcpyBatchAsync_v2",
        "cuMemcpy3DBatchAsync_ptsz",
        "cuMemcpyWithAttributesAsync",
        "cuMemcpyAsync",
    ] {
        let (made, measured) = contended.launches(&[name, "0.2", "host"]);
        assert!(made > 0 && measured == 0, "{name}: {measured} of {made}");
    }
    contended.finish();
}

/// A batch waits as a whole if any of its copies is within the GPU.
#[test]
fn batch_with_copies_from_the_host_is_one_launch() {
    let contended = Contended::new("A10:23028").begin();
    for name in ["cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync_v2"] {
        let is_one = || {
            let (made, measured) = contended.launches(&[name, "0.4", "mixed"]);
            measured >= made / 2
        };
        assert!((0..10).any(|_| is_one()), "most of {name} are not measured");
    }
    contended.finish();
}

/// A launch that waits for a later launch of its own program gets it, by each mechanism, beside the
/// neighbour.
#[test]
fn launch_waiting_for_a_later_launch_completes() {
    for how in ["host", "peer", "fork", "capture"] {
        let contended = Contended::new("A10:23028").begin();
        let mut child = contended.start("waiting", &[how]);
        run_program(&mut child);
        assert!(contended.measured() > 0, "{how}");
        child.finish().silent();
        contended.finish();
    }
}

#[test]
fn endless_kernel_does_not_block_other_tenants() {
    let mut contended = Contended::new("A10:23028");
    let mut child = contended.start("waiting", &["persistent"]);
    child.write("\n");
    assert_eq!(child.line(), "launched");
    // The neighbour finishes its runs. Benchmarks measure how fast.
    for _ in 0..2 {
        contended.neighbour.begin(1.0);
        assert!(contended.neighbour.rate() > 0.0);
    }
    child.kill();
    contended.neighbour.begin(1.0);
    assert!(contended.neighbour.rate() > 0.0);
    contended.finish();
}

#[test]
fn collectives_in_opposite_orders_complete() {
    let fixture = Fixture::new("A10:23028,A10:23028");
    let _monitor = Monitor::start(&fixture);
    let start = |name: &str, how: &str| {
        let container = fixture.limited(name, 8192);
        let mut command = fixture.program_in(&container, "waiting");
        command.args([how, "200"]);
        (ready(command), container)
    };
    let (mut forth, one) = start("a", "forth");
    let (mut back, other) = start("b", "back");
    let _ = (fixture.accounting(&one), fixture.accounting(&other));
    forth.write("\n");
    back.write("\n");
    assert_eq!((forth.line(), back.line()), ("over".to_owned(), "over".to_owned()));
    for child in [forth, back] {
        let _: Outcome = child.finish().silent();
    }
}

/// Each rank's kernel spins in its container's turn until the other's has started, which may wait
/// for a turn. `collective_containers_pct` of the bench is what that costs.
#[test]
fn collective_over_two_containers_goes_on_beside_others() {
    let fixture = Fixture::new("A10:23028,A10:23028");
    let _monitor = Monitor::start(&fixture);
    let on = |name: &str, gpu: &str| {
        let container = fixture.limited(name, 1024).with("NVIDIA_VISIBLE_DEVICES", gpu);
        container.with("CUDA_VISIBLE_DEVICES", gpu)
    };
    let start = |container: &Container, arguments: &[&str]| {
        let mut command = fixture.program_in(container, "launch_loop");
        command.args(arguments);
        Child::start_for(command, LONG)
    };
    let endless = ["spin_60us", "--seconds", "140", "--sync-every", "32"];
    let _others = ["0", "1"].map(|gpu| {
        let other = on(&format!("other-{gpu}"), gpu);
        let child = start(&other, &endless);
        let _ = fixture.accounting(&other);
        child
    });
    // The monitor knows the containers before their ranks start.
    let containers = ["0", "1"].map(|gpu| {
        let container = on(&format!("rank-{gpu}"), gpu);
        Outcome::of(fixture.program_in(&container, "init")).silent();
        let _ = fixture.accounting(&container);
        container
    });
    let rank = ["wait_peer_1", "--count", "1000", "--sync-every", "1"];
    let ranks = containers.each_ref().map(|container| start(container, &rank));
    for (rank, container) in ranks.into_iter().zip(&containers) {
        assert_eq!(rank.finish().number("launches"), 1000);
        let accounting = fixture.accounting(container);
        let turns = accounting["gpus"][0]["turns"].as_u64();
        assert!(turns > Some(5), "{accounting:#}");
    }
}
