//! The shim's cost of a call in instructions. The machine's load does not change that count, so a
//! rise is a defect.
//!
//! `programs/calls` makes each kind of call many times on the null driver, in a function of its
//! own. callgrind counts under that function with and without the shim, and the difference is
//! compared with [`BUDGETS`].

use std::fs;
use std::process::Command;

use cgpu_e2e::{Child, Fixture, skip};

const CALLS: u64 = 20_000;

/// The kinds, by the function of `calls` that makes them, and each call's maximum cost in
/// instructions.
///
/// Counted on x86-64 in the release profile. A change that makes a call cheaper lowers its figure;
/// a commit that raises one says why.
const BUDGETS: &[(&str, u64)] = &[
    ("launches", 11),
    (IN_TURN, 80),
    ("copies", 0),
    ("allocations", 762),
    ("lookups_elsewhere", 33),
    ("lookups_passed", 108),
    ("lookups_hooked", 201),
    ("proc_addresses", 258),
];

/// Of these only a launch with budget is counted: how often a thread requests more depends on time.
const IN_TURN: &str = "launches_in_turn";

/// Adds what another compiler or C library may make of the same source.
fn most(budget: u64) -> u64 {
    budget + (budget / 20).max(3)
}

/// callgrind's output; its manual specifies the format.
struct Profile(String);

impl Profile {
    fn of(command: &Command, fixture: &Fixture) -> Self {
        let file = fixture.path("profile");
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"]);
        valgrind
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(program)
            .args(arguments);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => valgrind.env(name, value),
                None => valgrind.env_remove(name),
            };
        }
        // Valgrind writes a banner to standard error.
        let _ = Child::start(valgrind).finish().exits(0);
        Self(fs::read_to_string(file).expect("callgrind's output"))
    }

    /// Returns the instructions under a function, its callees included.
    fn under(&self, function: &str) -> u64 {
        let mut lines = self.0.lines();
        let mut sum = 0;
        while let Some(line) = lines.next() {
            if line.strip_prefix("cfn=") == Some(function) {
                // `calls=...`, then the cost.
                sum += lines.nth(1).map_or(0, cost);
            }
        }
        assert!(sum > 0, "callgrind has seen no call of {function}");
        sum
    }

    /// Returns the instructions of functions without their callees.
    fn within(&self, of: impl Fn(&str) -> bool) -> u64 {
        let (mut sum, mut inside) = (0, false);
        let mut lines = self.0.lines();
        while let Some(line) = lines.next() {
            if let Some(function) = line.strip_prefix("fn=") {
                inside = of(function);
            } else if line.starts_with("calls=") {
                // The next line is the callee's cost.
                lines.next();
            } else if inside {
                sum += cost(line);
            }
        }
        sum
    }
}

/// Returns the cost on a line `POSITION COST`; other lines have none.
fn cost(line: &str) -> u64 {
    let fields = line
        .split_once(' ')
        .filter(|(position, _)| position.bytes().all(|byte| byte.is_ascii_digit()));
    fields.and_then(|(_, cost)| cost.parse().ok()).unwrap_or(0)
}

#[test]
fn no_call_costs_more_instructions_than_its_budget() {
    let test = "instructions::no_call_costs_more_instructions_than_its_budget";
    if !cfg!(target_arch = "x86_64") {
        return skip(test, "x86-64", "the budgets are those of x86-64");
    }
    if std::env::var("CARGO_PROFILE_RELEASE_LTO").is_ok_and(|lto| lto != "fat") {
        return skip(
            test,
            "lto",
            "CARGO_PROFILE_RELEASE_LTO sets another release profile than that of the budgets",
        );
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip(test, "valgrind", "valgrind is not installed");
    }
    let fixture = Fixture::null_release();
    let container = fixture.limited("a", 1024);
    let calls = |mut command: Command| {
        command.arg(CALLS.to_string());
        command
    };
    let bare = Profile::of(&calls(fixture.program("calls")), &fixture);
    let mut shimmed = calls(fixture.program_in(&container, "calls"));
    shimmed.arg(container.file("grant"));
    let shimmed = Profile::of(&shimmed, &fixture);

    let added = |function: &str| {
        (shimmed.under(function).saturating_sub(bare.under(function)) + CALLS / 2) / CALLS
    };
    let metered = shimmed.within(|name| name.contains("cuLaunchKernel::metered"));
    assert!(metered > 0, "callgrind has not seen the way of a launch that has credit");
    let found: Vec<(&str, u64, u64)> = BUDGETS
        .iter()
        .map(|(kind, budget)| match *kind {
            IN_TURN => (*kind, added("launches") + metered / CALLS, *budget),
            kind => (kind, added(kind), *budget),
        })
        .collect();
    let report: Vec<String> = found
        .iter()
        .map(|(kind, found, budget)| format!("{kind}: {found}, budget {budget}"))
        .collect();
    assert!(
        found.iter().all(|(_, found, budget)| *found <= most(*budget)),
        "instructions added to a call:\n{}",
        report.join("\n")
    );
    eprintln!("{}", report.join("\n"));
}

/// A scan of the live allocations, or a table that gets slower, would raise the count. `cargo xtask
/// bench` measures times, with a million allocations.
#[test]
fn allocation_cost_is_independent_of_live_allocations() {
    const PAIRS: u64 = 4000;
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip(
            "instructions::allocation_cost_is_independent_of_live_allocations",
            "valgrind",
            "valgrind is not installed",
        );
    }
    for spacing in ["4K", "2M"] {
        let each = |live: u32| {
            let fixture = Fixture::null_release();
            let container = fixture.limited("a", 1 << 20);
            let mut command = fixture.program_in(&container, "among");
            command.env("CGPU_NULL_GIB", "4096");
            command.args([live.to_string().as_str(), spacing, PAIRS.to_string().as_str()]);
            Profile::of(&command, &fixture).under("pairs") / PAIRS
        };
        let (alone, among) = (each(0), each(40_000));
        eprintln!("{spacing} apart: {alone} instructions alone, {among} beside 40,000");
        assert!(
            among * 5 <= alone * 6,
            "{spacing} apart: {alone} instructions alone, {among} beside 40,000"
        );
    }
}
