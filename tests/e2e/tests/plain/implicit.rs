//! Implicit memory: contexts, code and variables of modules, heap, stack and printf buffers.

use cgpu_e2e::{Child, Container, ControlGroups, Fixture, MIB, Monitor, Outcome, skip};

const A10: &str = "A10:23028";

/// Bytes of a context of the simulated GPU.
const CONTEXT: u64 = 256 * MIB;

fn holder(fixture: &Fixture, container: &Container, bytes: &str) -> Child {
    let mut command = fixture.program_in(container, "hold");
    command.arg(bytes);
    let mut holder = Child::start(command);
    holder.line();
    holder
}

fn share(fixture: &Fixture, container: &Container, key: &str) -> i64 {
    let gpu = fixture.on_its_gpu(container, 0);
    gpu[key].as_i64().unwrap_or_else(|| panic!("no {key} in {gpu:#}"))
}

#[test]
fn code_of_first_launches_is_shown_and_blocks_new_allocations() {
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 1024);
    // 256 of the context, 700 and at times 64 of the program: 4 are left. Then the launches of 640
    // functions add 40.
    let mut command = fixture.program_in(&container, "implicit_code");
    command.args(["700M", "64M", "640"]);
    let mut program = Child::start(command);
    program.line();
    let growth = 40 * MIB;
    fixture.eventually("the growth in smi", || {
        (share(&fixture, &container, "unaccounted") == growth.cast_signed()).then_some(())
    });
    assert_eq!(share(&fixture, &container, "implicit"), (CONTEXT + growth).cast_signed());
    assert_eq!(share(&fixture, &container, "used"), 700 * MIB.cast_signed());
    let process = &fixture.accounting(&container)["processes"][0]["gpus"][0];
    assert_eq!(process["implicit"], CONTEXT + growth);
    assert_eq!(process["unaccounted"], growth);

    let mut attempt = |bytes: &str| {
        program.write(&format!("try {bytes}\n"));
        let answer: serde_json::Value = serde_json::from_str(&program.line()).expect("JSON");
        (answer["result"].as_u64().expect("a code"), answer["free"].as_u64().expect("bytes"))
    };
    let left = 1024 * MIB - 700 * MIB - CONTEXT - growth;
    assert_eq!(attempt("64M"), (2, left), "what was freed before the growth is no longer there");
    assert_eq!(attempt("28M"), (0, left));
    assert_eq!(attempt("30M"), (2, left));
    let mut other = fixture.program_in(&container, "hold");
    other.arg("30M");
    assert_ne!(Outcome::of(other).code(), Some(0), "others are refused as well");

    // With a limit below the use all allocations are refused, and the unaccounted memory is counted
    // once.
    let id = fixture.accounting(&container)["id"].as_str().expect("an id").to_owned();
    fixture.set(&format!("0/{id}/memsize"), &(980 * MIB).to_string());
    fixture.eventually("the new limit", || (attempt("2M") == (2, 0)).then_some(()));
    for _ in 0..3 {
        assert_eq!(attempt("2M"), (2, 0));
    }
    assert_eq!(
        fixture.accounting(&container)["processes"][0]["counters"]["implicit_over_limit"],
        1
    );
    program.write("end\n");
    program.finish().silent();
}

/// In such a group the driver shows the group's memory as the GPU's.
#[test]
fn contexts_and_code_in_a_limited_control_group_are_measured_as_outside() {
    let test = "contexts_and_code_in_a_limited_control_group_are_measured_as_outside";
    let groups = match ControlGroups::mount("implicit") {
        Ok(groups) => groups,
        Err(reason) => return skip(test, "cgroups", &reason),
    };
    for wall in ["dmem", "misc"] {
        let fixture = Fixture::new(A10).walled(wall);
        let _monitor = Monitor::start(&fixture);
        let folder = groups.create(wall);
        let limits = || {
            let mut command = fixture.program("memory_limits");
            command.arg(&folder);
            command
        };
        let mut set = limits();
        set.args(["0", "1536"]);
        assert_eq!(Outcome::of(set).number("set"), 0);
        let charged = [None, Some(&folder)].map(|folder| {
            let container = fixture.limited(if folder.is_some() { "in" } else { "out" }, 1024);
            let mut command = fixture.program_in(&container, "implicit_code");
            command.args(["200M", "64M", "640"]);
            if let Some(folder) = folder {
                ControlGroups::start_in(&mut command, folder);
            }
            let mut program = Child::start(command);
            program.line();
            fixture.eventually("the growth in smi", || {
                (share(&fixture, &container, "unaccounted") != 0).then_some(())
            });
            let charged =
                ["used", "implicit", "unaccounted"].map(|key| share(&fixture, &container, key));
            let used = Outcome::of(limits()).number("used");
            program.write("end\n");
            program.finish().silent();
            (charged, used)
        });
        let [(outside, none), (inside, used)] = charged;
        assert_eq!(inside, outside, "{wall}");
        assert_eq!(none, 0, "{wall}: what is outside is charged to no group");
        let both = inside[0].cast_unsigned() + inside[1].cast_unsigned();
        assert_eq!(used, both, "{wall}: the driver charges what the shim does");
    }
}

#[test]
fn concurrent_starts_leave_correct_context_charges() {
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start(&fixture);
    let containers: Vec<Container> =
        (0..6).map(|index| fixture.limited(&format!("c{index}"), 2048)).collect();
    let start = |container| {
        let mut command = fixture.program_in(container, "hold");
        command.arg("64M");
        Child::start(command)
    };
    let mut children: Vec<Child> = containers.iter().map(start).collect();
    for child in &mut children {
        child.line();
    }
    for container in &containers {
        fixture.eventually("what a context takes, to the byte", || {
            (share(&fixture, container, "implicit") == CONTEXT.cast_signed()).then_some(())
        });
    }
    let later: Vec<Child> =
        containers.iter().map(|container| holder(&fixture, container, "1400M")).collect();
    for container in &containers {
        fixture.eventually("two contexts", || {
            (share(&fixture, container, "implicit") == 2 * CONTEXT.cast_signed()).then_some(())
        });
    }
    for child in children.into_iter().chain(later) {
        child.finish().silent();
    }
}

/// The context of a neighbour that starts in the same second must not block an allocation that
/// fits.
#[test]
fn containers_started_together_can_fill_their_limits() {
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start(&fixture);
    // The monitor knows these before their programs begin.
    let start = |index: usize| {
        let mut command =
            fixture.cgpu(&["run", "--mem", "320MiB", "--name", &format!("c{index}"), "--root"]);
        command.arg(fixture.root()).arg("--").arg(fixture.dist().program("hold")).arg("48M");
        Child::start(command)
    };
    let mut children: Vec<Child> = (0..6).map(start).collect();
    for child in &mut children {
        let line = child.line();
        assert!(line.contains("\"held\": 50331648"), "{line}");
    }
    for child in children {
        child.finish().silent();
    }
}

#[test]
fn destroyed_context_ends_its_unaccounted_delta() {
    let fixture = Fixture::new(A10);
    let _monitor = Monitor::start(&fixture);
    let container = fixture.limited("a", 2048);
    let mut command = fixture.program_in(&container, "implicit_code");
    command.args(["16M", "16M", "64"]);
    let mut program = Child::start(command);
    program.line();
    fixture.eventually("the growth in smi", || {
        (share(&fixture, &container, "unaccounted") == 4 * MIB.cast_signed()).then_some(())
    });
    program.kill();
    fixture.wait_until_empty(&container);
    assert_eq!(share(&fixture, &container, "unaccounted"), 0);
}

/// Runs a program with and without a monitor, and with code loaded eagerly. Each has its own GPU,
/// because the programs check all of its memory.
fn everywhere(program: &str) {
    // The larger limit exceeds the clamp on a figure that may include a neighbour's memory.
    for (limit, monitored, loading) in
        [(1024, false, "LAZY"), (1024, true, "LAZY"), (1024, true, "EAGER"), (3072, false, "LAZY")]
    {
        let fixture = Fixture::new(A10);
        let _monitor = monitored.then(|| Monitor::start(&fixture));
        let container = fixture.limited("a", limit).with("CUDA_MODULE_LOADING", loading);
        Outcome::of(fixture.program_in(&container, program)).silent();
    }
}

#[test]
fn larger_heaps_stacks_and_buffers_are_charged_and_refused() {
    everywhere("implicit_limits");
}

#[test]
fn variables_of_modules_are_charged_and_refused() {
    everywhere("implicit_modules");
}

#[test]
fn variables_of_libraries_are_charged_and_refused_at_load() {
    everywhere("implicit_libraries");
}

#[test]
fn contexts_beyond_limit_are_refused_like_the_driver() {
    let fixture = Fixture::new(A10);
    let container = fixture.limited("a", 1100);
    let outcome = Outcome::of(fixture.program_in(&container, "implicit_contexts")).silent();
    assert_eq!(outcome.number("contexts"), 4);
    assert_eq!(outcome.number("free"), 1100 * MIB - 4 * CONTEXT);
    fixture.wait_until_empty(&container);
    // As on a GPU of that size, where slightly less than its size can be allocated.
    let small = Fixture::new("A10:1600");
    let native = Outcome::of(small.program("implicit_contexts")).silent();
    assert!(native.number("contexts") >= 1);
}
