//! Cost that the shim adds to single calls.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::contended::Contended;
use crate::figure::{Measured, Wanted};
use crate::pair::{Built, Side, median};

/// A figure that is the difference of one field of one probe.
struct Difference {
    key: &'static str,
    probe: &'static str,
    field: &'static str,
    /// Whether it is measured under contention, in the tenant's turn, which the benchmark grants.
    contended: bool,
}

const fn open(key: &'static str, probe: &'static str, field: &'static str) -> Difference {
    Difference { key, probe, field, contended: false }
}

const fn turn(key: &'static str, probe: &'static str, field: &'static str) -> Difference {
    Difference { key, probe, field, contended: true }
}

const DIFFERENCES: &[Difference] = &[
    open("launch_open_added_ns", "launch", "ns"),
    turn("launch_turn_added_ns", "launch_each", "p50_ns"),
    turn("launch_turn_added_p99_ns", "launch_each", "p99_ns"),
    open("memcpy_added_ns", "memcpy", "ns"),
    open("alloc_free_added_ns", "alloc:1", "ns"),
    open("alloc_free_added_ns_live10k", "alloc:10000", "ns"),
    open("alloc_free_added_ns_live1m", "alloc:1000000", "ns"),
    open("alloc_free_added_ns_live1m_random", "alloc_random:1000000", "ns"),
    open("alloc_free_added_ns_2mib", "alloc_2mib:1", "ns"),
    open("alloc_free_added_ns_live10k_2mib", "alloc_2mib:10000", "ns"),
    open("alloc_free_added_ns_live1m_2mib", "alloc_2mib:1000000", "ns"),
    open("getproc_added_ns", "getproc", "ns"),
];

/// Measures every wanted figure of the section.
pub(crate) fn measure(built: &Built, wanted: &Wanted, measured: &mut Measured) {
    let rounds = if wanted.quick { 5 } else { 15 };
    let mut take = |key: &'static str, measure: &dyn Fn() -> Result<f64>| {
        if wanted.has(key) {
            match measure() {
                Ok(value) => measured.record(key, value),
                Err(error) => measured.fail(&[key], &error),
            }
        }
    };
    for difference in DIFFERENCES {
        take(difference.key, &|| added(built, difference, rounds));
    }
    take("dlsym_added_ns", &|| {
        // The figure is the larger of two.
        let foreign = added(built, &open("dlsym_added_ns", "dlsym:foreign", "ns"), rounds)?;
        let driver = added(built, &open("dlsym_added_ns", "dlsym:driver", "ns"), rounds)?;
        Ok(foreign.max(driver))
    });
    take("launch_threads_scaling", &|| scaling(built, rounds));
    take("alloc_free_added_cpu_ns_procs8", &|| processes(built, rounds.min(7)));
    for (key, probe) in [("launch_instructions", "launch"), ("dlsym_instructions", "dlsym:driver")]
    {
        if !wanted.has(key) {
            continue;
        }
        match instructions(built, probe) {
            Ok(Some(count)) => measured.record(key, count),
            Ok(None) => eprintln!("  {key}: left out, valgrind is not installed"),
            Err(error) => measured.fail(&[key], &error),
        }
    }
}

fn number(value: &Value, field: &str) -> Result<f64> {
    value[field].as_f64().with_context(|| format!("the probe printed no number '{field}': {value}"))
}

fn region() -> Result<tempfile::TempDir> {
    // Regions of containers are in memory, too.
    let memory = std::path::Path::new("/dev/shm");
    Ok(if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? })
}

fn added(built: &Built, difference: &Difference, rounds: usize) -> Result<f64> {
    let region = region()?;
    let _contended = difference.contended.then(|| Contended::start(region.path())).transpose()?;
    let mut differences = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let bare =
            number(&built.run(difference.probe, Side::Bare, region.path())?, difference.field)?;
        let shimmed =
            number(&built.run(difference.probe, Side::Shimmed, region.path())?, difference.field)?;
        differences.push(shimmed - bare);
    }
    Ok(median(&mut differences))
}

fn scaling(built: &Built, rounds: usize) -> Result<f64> {
    let region = region()?;
    let mut ratios = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let bare = number(&built.run("launch_threads", Side::Bare, region.path())?, "scaling")?;
        let shimmed =
            number(&built.run("launch_threads", Side::Shimmed, region.path())?, "scaling")?;
        ratios.push(shimmed / bare);
    }
    Ok(median(&mut ratios))
}

fn processes(built: &Built, rounds: usize) -> Result<f64> {
    let region = region()?;
    let mean = |values: Vec<Value>| -> Result<f64> {
        let numbers =
            values.iter().map(|value| number(value, "cpu_ns")).collect::<Result<Vec<_>>>()?;
        Ok(numbers.iter().sum::<f64>() / numbers.len() as f64)
    };
    let mut differences = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let bare = mean(built.run_many("alloc:1", Side::Bare, region.path(), 8)?)?;
        let shimmed = mean(built.run_many("alloc:1", Side::Shimmed, region.path(), 8)?)?;
        differences.push(shimmed - bare);
    }
    Ok(median(&mut differences))
}

/// Returns the instructions added to one call. Counts of two lengths give the cost of a call
/// without that of the start.
fn instructions(built: &Built, probe: &str) -> Result<Option<f64>> {
    let region = region()?;
    let mut per_call = Vec::new();
    for side in [Side::Shimmed, Side::Bare] {
        let mut counts = Vec::new();
        for calls in [10_000, 110_000] {
            match built.instructions(&format!("{probe}#{calls}"), side, region.path())? {
                Some(count) => counts.push(count),
                None => return Ok(None),
            }
        }
        per_call.push((counts[1] - counts[0]) / 100_000.0);
    }
    Ok(Some(per_call[0] - per_call[1]))
}
