//! Compares the layouts of `include/cgpu.h` and `layout.rs`: a C program and Rust both print
//! theirs.
//!
//! Fields have the same names, so neither side can have a field that the other lacks.
#![cfg(not(loom))]

mod skip;

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cgpu_shm::devices::{PARTITIONED, STEP, UNKNOWN};
use cgpu_shm::grant::TurnState;
use cgpu_shm::grant_snapshot::ESTIMATE;
use cgpu_shm::layout::*;
use cgpu_shm::lock::SLEEPERS;
use cgpu_shm::slots::State;

/// Returns the size of the field that `of` points to in a `T`.
fn size_in<T, F>(_of: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! rust {
    ($out:ident, $($c:ident = $type:ident { $($field:ident),* $(,)? })*) => {
        $(
            writeln!($out, "{} {}", stringify!($c), size_of::<$type>()).unwrap();
            $(
                writeln!(
                    $out,
                    "{}.{} {} {}",
                    stringify!($c),
                    stringify!($field),
                    std::mem::offset_of!($type, $field),
                    size_in(|record: &$type| &record.$field),
                )
                .unwrap();
            )*
            // No field is left out: the pattern has no `..`.
            let _ = |record: &$type| {
                let $type { $($field: _),* } = record;
            };
        )*
    };
}

fn rust_layout() -> String {
    let mut out = String::new();
    for (name, value) in [
        ("CGPU_LAYOUT_VERSION", u64::from(LAYOUT_VERSION)),
        ("CGPU_USE_MAGIC", u64::from(USE_MAGIC)),
        ("CGPU_GRANT_MAGIC", u64::from(GRANT_MAGIC)),
        ("CGPU_GPUS", GPUS as u64),
        ("CGPU_SLOTS", SLOTS as u64),
        ("CGPU_COUNTERS", COUNTERS as u64),
        ("CGPU_EXPORT_TABLES", EXPORT_TABLES as u64),
        ("CGPU_UNKNOWN_FUNCTIONS", UNKNOWN_FUNCTIONS as u64),
        ("CGPU_INTERVALS", INTERVALS as u64),
        ("CGPU_NAME", NAME as u64),
        ("CGPU_DEVICES", DEVICES as u64),
        ("CGPU_DEVICE_STEP", STEP),
        ("CGPU_ESTIMATE", u64::from(ESTIMATE)),
        ("CGPU_DEVICE_UNKNOWN", u64::from(UNKNOWN)),
        ("CGPU_DEVICE_PARTITIONED", u64::from(PARTITIONED)),
        ("CGPU_LOCK_BASE", LOCK_BASE),
        ("CGPU_LOCK_REGION", LOCK_REGION),
        ("CGPU_LOCK_SLEEPERS", u64::from(SLEEPERS)),
        ("CGPU_SLOT_FREE", State::Free as u64),
        ("CGPU_SLOT_LIVE", State::Live as u64),
        ("CGPU_SLOT_DRAINING", State::Draining as u64),
        ("CGPU_SLOT_ORPHAN", State::Orphan as u64),
        ("CGPU_EXPORTED_UNSEEN", EXPORTED_UNSEEN),
        ("CGPU_TURN_OPEN", TurnState::Open as u64),
        ("CGPU_TURN_YOURS", TurnState::Yours as u64),
        ("CGPU_TURN_WAIT", TurnState::Wait as u64),
    ] {
        writeln!(out, "{name} {value}").unwrap();
    }
    rust! { out,
        cgpu_gpu = Gpu {
            uuid, total, limit, ordinal, reserved0, withdrawn, context, agreed, lock, learning,
            reserved3,
        }
        cgpu_named_count = NamedCount { name, count }
        cgpu_use_header = UseHeader {
            version, magic, size, gpus, high_water, created, name, time_scale, reserved0,
            export_table, unknown_function, reserved, gpu,
        }
        cgpu_slot = Slot {
            state, pid, reserved0, since, comm, acked, opened_handles, exported_handles, counter,
        }
        cgpu_interval = Interval { start, end }
        cgpu_cell = Cell {
            held, implicit, peak, limit_word, waiting, creating, implicit_epoch, charges,
            checkpointed, exported, busy, inflight, launches, active, turn, first, last, spent,
            sequence, interval, ends,
        }
        cgpu_use = Use { header, slot, cell }
        cgpu_grant_gpu = GrantGpu {
            turn, budget, until, limit, notify_slot, policy, weight, share, busy, beside,
            unaccounted_epoch, bound, confirmed, returned, measured, reserved0,
        }
        cgpu_device = Device { uuid, total, free, order, reserved0 }
        cgpu_grant = Grant {
            version, magic, size, heartbeat, monitor, reserved0, gate, reserved1, notify_requested,
            devices, sampled, pid_namespace, reserved2, device, gpu, drained, process, unaccounted,
        }
    }
    out
}

fn compile(arguments: &[&str], program: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.c");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let done = Command::new(&compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(arguments)
        .arg(&source)
        .args(["-x", "none", "-o"])
        .arg(program)
        .output()
        .unwrap_or_else(|error| panic!("a C compiler is needed (`cc`, or CC): {error}"));
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn header_layout(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let program: PathBuf = directory.path().join("layout");
    compile(arguments, &program);
    let printed = Command::new(&program).output().unwrap();
    assert!(printed.status.success());
    String::from_utf8(printed.stdout).unwrap()
}

#[test]
fn c_and_rust_have_the_same_layout() {
    assert_eq!(header_layout(&["-std=c11"]), rust_layout());
}

#[test]
fn header_compiles_as_cpp_with_the_same_layout() {
    let found = Command::new("c++").arg("--version").output().is_ok();
    if !found {
        skip::skip(
            "header_compiles_as_cpp_with_the_same_layout",
            "c++",
            "there is no c++ beside the C compiler",
        );
        return;
    }
    assert_eq!(header_layout(&["-x", "c++", "-std=c++17", "-lstdc++"]), rust_layout());
}

/// The program lists every field by hand, so a new one could be forgotten.
#[test]
fn c_program_names_every_field_of_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = fs::read_to_string(root.join("../include/cgpu.h")).unwrap();
    let program = fs::read_to_string(root.join("tests/layout.c")).unwrap();
    let mut record = String::new();
    let mut fields = 0;
    for line in header.lines() {
        if let Some(name) = line.strip_prefix("struct ") {
            record = name.trim_end_matches(" {").into();
        } else if line.starts_with("    ")
            && !line.trim_start().starts_with('*')
            && line.contains(';')
            && !record.is_empty()
        {
            let declared = line.split(';').next().unwrap();
            let field = declared.split_whitespace().last().unwrap().split('[').next().unwrap();
            assert!(
                program.contains(&format!("FIELD({record}, {field});")),
                "{record}.{field} is not in layout.c"
            );
            fields += 1;
        } else if line.starts_with("};") {
            record.clear();
        }
    }
    assert!(fields > 70, "found only {fields} fields in the header");
}
