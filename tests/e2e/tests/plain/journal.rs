//! Journals and injected faults of the simulated GPU, which other tests rely on.

use std::fs;

use cgpu_e2e::{Fixture, Outcome};
use serde_json::Value;

#[test]
fn trace_of_a_run_shows_calls_and_kernels() {
    let fixture = Fixture::new("A10:23028");
    let journal = fixture.path("journal");
    for (container, kernel, count) in [("one", "spin_100us", "40"), ("two", "spin_300us", "20")] {
        let mut run = fixture.cgpu(&[
            "run",
            "--sim",
            "A10:23028",
            "--mem",
            "2GiB",
            "--name",
            container,
            "--root",
        ]);
        run.arg(fixture.root()).arg("--").arg(fixture.dist().program("launch_loop"));
        run.args([kernel, "--count", count]).env("CGPU_SIM_JOURNAL", &journal);
        assert_eq!(Outcome::of(run).code(), Some(0));
    }
    let mut trace = fixture.native(&fixture.dist().file("cgpu-sim"));
    let (out, svg) = (fixture.path("trace.json"), fixture.path("trace.svg"));
    trace.arg("trace").arg(&journal).arg("--json").arg("--out").arg(&out).arg("--svg").arg(&svg);
    let summary = Outcome::of(trace).silent().json();
    let gpu = &summary["gpus"][0];
    assert_eq!(gpu["name"], "A10:23028");
    assert!(gpu["busy_ns"].as_u64() >= Some(40 * 100_000 + 20 * 300_000), "{summary:#}");
    assert_eq!(summary["lost_spans"], 0);
    let kernels = |process: &Value| process["kernels"].as_u64().expect("a number");
    let mut done: Vec<u64> =
        gpu["processes"].as_array().expect("processes").iter().map(kernels).collect();
    done.sort_unstable();
    assert_eq!(done, [20, 40]);

    let events: Value =
        serde_json::from_str(&fs::read_to_string(out).expect("a trace")).expect("JSON");
    let of = |name: &str| {
        events["traceEvents"]
            .as_array()
            .expect("events")
            .iter()
            .filter(|event| event["name"] == name)
            .count()
    };
    assert_eq!((of("spin_100us"), of("spin_300us")), (40, 20));
    // An arrow from each launch to its kernel, besides those of copies.
    assert!(of("enqueued") >= 2 * 60, "{}", of("enqueued"));
    assert!(fs::read_to_string(svg).expect("a picture").contains("2 processes"));
}

#[test]
fn injected_faults_crash_no_program() {
    let programs: [&[&str]; 5] = [
        &["alloc_fill", "64M", "2"],
        &["launch_loop", "spin_20us", "--count", "200", "--streams", "3"],
        &["allocators"],
        &["streams"],
        &["host_functions"],
    ];
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("faulty", 4096);
    for seed in 0..6 {
        for program in programs {
            let mut run = fixture.program_in(&container, program[0]);
            run.args(&program[1..]).env("CGPU_SIM_FAULT", "*:p0.03:999");
            run.env("CGPU_SIM_SEED", seed.to_string());
            let outcome = Outcome::of(run);
            // The program may report an unexpected result and fail; the shim writes nothing and
            // ends no process.
            assert!(outcome.code().is_some(), "seed {seed}: {outcome:?}");
            assert!(!outcome.stderr.contains("cgpu:"), "seed {seed}: {outcome:?}");
        }
    }
    fixture.wait_until_empty(&container);
}
