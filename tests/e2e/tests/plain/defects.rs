//! Known defects of other implementations, one test each. `docs/internals/testing.md` has the
//! table.

use std::fs;
use std::time::Duration;

use cgpu_e2e::{Child, Fixture, MIB, Monitor, Outcome};

/// A slot was moved into a gap that a process had left, and its owner's use was lost: 16 GiB were
/// granted under a limit of 10.
#[test]
fn exiting_process_moves_no_other_slot() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 10 * 1024);
    let hold = |amount: &str| {
        let mut command = fixture.program_in(&container, "hold");
        command.arg(amount);
        Child::start(command)
    };
    let mut first = hold("1G");
    let mut second = hold("5G");
    let mut third = hold("1G");
    for child in [&mut first, &mut second, &mut third] {
        assert!(!child.line().contains("error"));
    }
    first.kill();
    for _ in 0..20 {
        Outcome::of(fixture.program_in(&container, "init")).silent();
        assert!(fixture.used(&container, 0) >= 6 * 1024 * MIB);
    }
    let mut fourth = hold("5G");
    assert!(fourth.line().contains("\"error\": 2"), "5 and 1 GiB of 10 are in use");
    let mut fifth = hold("2G");
    assert!(!fifth.line().contains("error"));
    drop(second.kill());
    assert!(fixture.used(&container, 0) >= 3 * 1024 * MIB, "the others' use stays");
    third.finish().silent();
    fifth.finish().silent();
    fourth.finish().exits(4);
    fixture.wait_until_empty(&container);
}

/// Names without a suffix were not hooked: a bypass in one line.
#[test]
fn unsuffixed_names_are_limited() {
    let fixture = Fixture::new("A10:23028");
    let outcome =
        Outcome::of(fixture.program_in(&fixture.limited("a", 3072), "unsuffixed")).silent();
    assert_eq!((outcome.number("total"), outcome.number("error")), (3072 * MIB, 2));
    let granted = outcome.number("granted");
    assert!(
        granted <= outcome.number("free_before")
            && granted + 64 * MIB > outcome.number("free_before")
    );
    assert_eq!(outcome.number("free_after"), outcome.number("free_before"));
}

/// Freeing unknown memory answered -1 and freed nothing; use fell below zero, so that all seemed
/// used; null pointers crashed.
#[test]
fn invalid_arguments_get_driver_results_and_change_no_charge() {
    let fixture = Fixture::new("A10:23028");
    let native = Outcome::of(fixture.program("odd_arguments")).silent().stdout;
    for (name, container) in
        [("limited", fixture.limited("a", 4096)), ("native", fixture.container("b"))]
    {
        let shimmed = Outcome::of(fixture.program_in(&container, "odd_arguments")).silent().stdout;
        assert_eq!(shimmed, native, "{name}");
    }
}

/// A process killed during its start kept a lock, and every later start hung for five minutes.
#[test]
fn process_killed_during_its_start_blocks_no_other() {
    let fixture = Fixture::new("A10:23028");
    let container = fixture.limited("a", 8192);
    for round in 0..60 {
        let mut command = fixture.program_in(&container, "hold");
        command.arg("1M");
        let victim = Child::start(command);
        std::thread::sleep(Duration::from_micros(round * 400));
        victim.kill();
        if round % 10 == 9 {
            let mut command = fixture.program_in(&container, "hold");
            command.args(["64M", "0"]);
            Outcome::of(command).silent();
        }
    }
    fixture.wait_until_empty(&container);
}

/// Replacing the library crashed the programs that had it loaded.
#[test]
fn replaced_or_removed_library_does_not_affect_running_programs() {
    let fixture = Fixture::new("A10:23028");
    let library = fixture.path("libcgpu.so");
    fs::copy(fixture.dist().file("libcgpu.so"), &library).expect("a copy");
    let container = fixture.limited("a", 4096);
    let mut command = fixture.program_in(&container, "take");
    command.env("LD_PRELOAD", &library);
    let mut program = Child::start(command);
    program.line();
    let fresh = fixture.path("fresh");
    fs::copy(fixture.dist().file("libcgpu.so"), &fresh).expect("a copy");
    fs::rename(&fresh, &library).expect("it is replaced");
    let mut take = |amount: &str| {
        program.write(&format!("take {amount}\n"));
        program.line()
    };
    assert!(take("1G").contains("\"result\": 0"));
    fs::remove_file(&library).expect("it is removed");
    assert!(take("1G").contains("\"result\": 0"));
    assert!(take("2G").contains("\"result\": 2"));
    program.finish().silent();
}

/// With an old driver a symbol was undefined, or there was silently no limit.
#[test]
fn limit_holds_with_every_driver_version() {
    for version in ["10010", "10020", "11000", "11040", "11080", "12000", "12040", "12080", "13000"]
    {
        let fixture = Fixture::new("A10:23028");
        let container = fixture.limited("a", 2048).with("CGPU_SIM_DRIVER", version);
        let mut command = fixture.program_in(&container, "alloc_fill");
        command.arg("64M");
        let outcome = Outcome::of(command).silent();
        assert_eq!(
            (outcome.number("total"), outcome.number("error")),
            (2048 * MIB, 2),
            "{version}"
        );
        assert!(outcome.number("granted") <= 2048 * MIB, "{version}");
    }
}

/// Two halves of the GPU by NVML's total, some of which the driver reserves: they cannot both be
/// filled to the last byte. Elsewhere the result was undefined.
#[test]
fn two_half_gpu_limits_get_ordinary_refusals_at_the_end() {
    let fixture = Fixture::new("A10:23028");
    let _monitor = Monitor::start(&fixture);
    let half = |name: &str| {
        let container = fixture
            .container(name)
            .with("ALIYUN_COM_GPU_MEM_CONTAINER", "11")
            .with("ALIYUN_COM_GPU_MEM_DEV", "22");
        let mut program = Child::start(fixture.program_in(&container, "take"));
        program.line();
        (container, program, 0_u64)
    };
    let mut halves = [half("a"), half("b")];
    let mut refused = 0;
    for chunk in ["256M", "16M", "2M", "512"] {
        let mut open = [true, true];
        while open.contains(&true) {
            for ((container, program, held), open) in
                halves.iter_mut().zip(&mut open).filter(|(_, open)| **open)
            {
                program.write(&format!("take {chunk}\n"));
                let answer: serde_json::Value =
                    serde_json::from_str(&program.line()).expect("JSON");
                assert_eq!(answer["total"], 11514 * MIB, "{}", container.name());
                match answer["result"].as_u64() {
                    // Small allocations fill a block that is already charged; one is enough.
                    Some(0) if chunk == "512" => *open = false,
                    Some(0) => {}
                    Some(2) => {
                        *open = false;
                        refused += 1;
                    }
                    other => panic!("expected an ordinary refusal, got {other:?}"),
                }
                *held = answer["held"].as_u64().expect("a number");
            }
        }
    }
    assert!(refused >= 6, "both run full, again and again");
    let held: u64 = halves.iter().map(|(_, _, held)| held).sum();
    let smallest = halves.iter().map(|(_, _, held)| *held).min().expect("two");
    // The driver reserves an eightieth, each container has a context, and the last chunk is 2 MiB.
    assert!(held + (23028 / 80 + 2 * 256 + 2 * 256) * MIB > 23028 * MIB, "{held}");
    assert!(smallest > 10 * 1024 * MIB, "{smallest}");
    for (container, mut program, _) in halves {
        program.write("give\n");
        assert!(program.line().contains("\"result\": 0"));
        program.write("take 512\n");
        assert!(program.line().contains("\"result\": 0"), "room was made");
        program.finish().silent();
        fixture.wait_until_empty(&container);
    }
}
