//! Shares of tenants that can use all they get.

use std::io;

use anyhow::{Result, bail};
use cgpu_shm::clock::read;

use super::load::{Load, TenantSpec};
use super::setup::{Tenant, together};
use super::track::{Track, cycles, error_pct, parts, shares, windows};
use super::{Bench, Figures, Observation, STEP, WARM, observe};
use crate::figure::Reading;
use crate::pair::median;

/// One process with kernels of 60 us without a pause.
pub(super) const SATURATING: TenantSpec = TenantSpec::of(Load::saturating(60));

/// Measures the largest error of a share.
pub(super) fn error(
    bench: &mut Bench,
    key: &str,
    specs: &[TenantSpec],
    settings: &[(&str, &str)],
) -> Result<Reading> {
    let seen = bench.run(specs, settings)?;
    Ok(evaluate(bench, key, specs, &seen))
}

pub(super) fn evaluate(
    bench: &mut Bench,
    key: &str,
    specs: &[TenantSpec],
    seen: &Observation,
) -> Reading {
    let set = parts(&specs.iter().map(|spec| spec.weight).collect::<Vec<_>>());
    let (lengths, cycles) = in_cycles(specs, &seen.tracks);
    let (from, to) = (cycles[0], cycles[cycles.len() - 1]);
    let got = shares(&seen.tracks, &lengths, from, to);
    for (place, (set, got)) in set.iter().zip(&got).enumerate() {
        bench.gallery.share(key, place, *set, *got);
    }
    let busy = seen
        .tracks
        .iter()
        .zip(&lengths)
        .map(|(track, us)| track.rate(from, to) * f64::from(*us) / 1e4);
    eprintln!("    {key}: {} % of the GPU's time, {} cycles", join(busy), cycles.len() - 1);
    let all: f64 = seen.gpu.iter().sum();
    let by_time: Vec<f64> = seen.gpu.iter().map(|time| time / all).collect();
    Reading { value: error_pct(&got, &set), by_time: Some(error_pct(&by_time, &set)) }
}

/// Returns the lengths of the kernels, and the whole cycles of turns.
fn in_cycles(specs: &[TenantSpec], tracks: &[Track]) -> (Vec<u32>, Vec<f64>) {
    let batches: Vec<u32> = specs.iter().map(|spec| spec.load.batch_us()).collect();
    (specs.iter().map(|spec| spec.load.us).collect(), cycles(tracks, &batches, WARM))
}

/// Measures the worst window of a second, in whole cycles. `shown` is the tenant whose share is
/// drawn.
fn worst_second(
    bench: &mut Bench,
    name: &'static str,
    specs: &[TenantSpec],
    shown: usize,
    tracks: &[Track],
) -> f64 {
    let set = parts(&specs.iter().map(|spec| spec.weight).collect::<Vec<_>>());
    let (lengths, cycles) = in_cycles(specs, tracks);
    let mut worst: f64 = 0.0;
    let mut list = Vec::new();
    for (from, to) in windows(&cycles, 1.0) {
        let got = shares(tracks, &lengths, from, to);
        worst = worst.max(error_pct(&got, &set));
        bench.gallery.window(name, from - WARM, 100.0 * got[shown] / set[shown]);
        list.push(format!("{:.2}", 100.0 * got[shown]));
    }
    eprintln!("    {name}, by seconds: {} %", list.join(" "));
    worst
}

/// Measures 75:25 and the figures of the same run.
pub(super) fn three_to_one(bench: &mut Bench) -> Result<Figures> {
    let specs = [SATURATING.weighing(3), SATURATING];
    let mut setup = bench.setup()?;
    let mut first = setup.join(&specs[0])?;
    let alone = first.run(WARM + 2.0, STEP)?;
    let solo = alone.rate(WARM, alone.length());
    let mut tenants = [first, setup.join(&specs[1])?];
    let monitor = setup.fixture.monitor();
    let before = cpu_seconds(monitor)?;
    let seconds = bench.seconds();
    let seen = observe(&setup, &mut tenants, seconds)?;
    let monitor_cpu = cpu_seconds(monitor)? - before;
    let error = evaluate(bench, "share_error_pct_75_25", &specs, &seen);
    let worst = worst_second(bench, "75:25, the 25", &specs, 1, &seen.tracks);
    let tracks = &seen.tracks;
    let rates: Vec<f64> = tracks.iter().map(|track| track.rate(WARM, WARM + seconds)).collect();
    // CPU time of the program's threads for a kernel: here with the gate's slow paths, markers and
    // sleeps, alone without. At the GPU's pace a program waits in the gate during turns, and in the
    // driver when alone. The driver's waits and threads are not counted (`programs/load`), so a
    // sleep in the gate counts in full.
    let per_kernel = |track: &Track| track.cpu / track.between(0.0, track.length());
    let added = (per_kernel(&tracks[0]) - per_kernel(&alone)) * rates[0];
    Ok(vec![
        ("share_error_pct_75_25", error),
        ("share_error_1s_pct_75_25", worst.into()),
        ("aggregate_pct_75_25", (100.0 * rates.iter().sum::<f64>() / solo).into()),
        ("shim_cpu_pct", (100.0 * added).into()),
        ("monitor_cpu_pct", (100.0 * monitor_cpu / (WARM + seconds)).into()),
    ])
}

/// Measures long kernels at 25 beside short ones at 75.
pub(super) fn mixed(bench: &mut Bench) -> Result<Figures> {
    let specs = [TenantSpec::of(Load::saturating(5000)), SATURATING.weighing(3)];
    Ok(vec![("share_error_mixed_pct", error(bench, "share_error_mixed_pct", &specs, &[])?)])
}

/// Measures kernels far longer than a turn beside short ones.
pub(super) fn long_kernels(bench: &mut Bench) -> Result<Figures> {
    let specs = [TenantSpec::of(Load::saturating(50_000)), SATURATING.weighing(3)];
    let seen = bench.run(&specs, &[])?;
    let error = evaluate(bench, "share_error_50ms_pct", &specs, &seen);
    let worst = worst_second(bench, "50 ms kernels at 25", &specs, 0, &seen.tracks);
    Ok(vec![("share_error_50ms_pct", error), ("share_error_1s_pct_50ms", worst.into())])
}

pub(super) fn graph(bench: &mut Bench) -> Result<Figures> {
    one_like(
        bench,
        "share_error_graph_pct",
        TenantSpec::of(Load { graph: true, ..Load::saturating(60) }),
    )
}

pub(super) fn streams(bench: &mut Bench) -> Result<Figures> {
    one_like(
        bench,
        "share_error_streams_pct",
        TenantSpec::of(Load { streams: 8, ..Load::saturating(60) }),
    )
}

pub(super) fn threads(bench: &mut Bench) -> Result<Figures> {
    one_like(
        bench,
        "share_error_threads_pct",
        TenantSpec::of(Load { threads: 8, ..Load::saturating(60) }),
    )
}

pub(super) fn processes(bench: &mut Bench) -> Result<Figures> {
    one_like(bench, "share_error_procs_pct", TenantSpec { processes: 4, ..SATURATING })
}

/// Measures a tenant that copies much. Copies do not pass the gate, but it still gets its share.
pub(super) fn copies(bench: &mut Bench) -> Result<Figures> {
    // One stream copies while the other one computes.
    let load = Load { copy: 1 << 20, streams: 2, ..Load::saturating(60) };
    one_like(bench, "share_error_copies_pct", TenantSpec::of(load))
}

/// Measures a special tenant beside a plain one of the same weight.
fn one_like(bench: &mut Bench, key: &'static str, spec: TenantSpec) -> Result<Figures> {
    Ok(vec![(key, error(bench, key, &[spec, SATURATING], &[])?)])
}

/// Measures policy 3, alone and beside another tenant: the error in percentage points.
pub(super) fn cap(bench: &mut Bench, key: &'static str, percent: u32) -> Result<Figures> {
    let capped = SATURATING.capped(percent);
    let rest = SATURATING.capped(100 - percent);
    let (mut by_work, mut by_time) = (0.0_f64, 0.0_f64);
    for specs in [&[capped][..], &[capped, rest]] {
        let seen = bench.run(specs, &[("0/policy", "3")])?;
        let (_, cycles) = in_cycles(specs, &seen.tracks);
        let (from, to) = (cycles[0], cycles[cycles.len() - 1]);
        for (place, (spec, track)) in specs.iter().zip(&seen.tracks).enumerate() {
            let got = track.rate(from, to) * f64::from(spec.load.us) / 1e6;
            let set = f64::from(spec.percent.unwrap_or(100)) / 100.0;
            let name = if specs.len() == 1 { "alone" } else { "beside" };
            eprintln!("    {key}, {name}: {:.2} for {:.0} %", 100.0 * got, 100.0 * set);
            bench.gallery.share(&format!("cap {percent} {name}"), place, set, got);
            by_work = by_work.max(100.0 * (got - set).abs());
            by_time = by_time.max(100.0 * (seen.gpu[place] / seen.seconds - set).abs());
        }
    }
    Ok(vec![(key, Reading { value: by_work, by_time: Some(by_time) })])
}

/// Measures policy 4: the smallest share relative to 1/N, and all work relative to policy 1.
pub(super) fn soft(bench: &mut Bench) -> Result<Figures> {
    let specs = [SATURATING; 3];
    let work = |seen: &Observation| -> Vec<f64> {
        seen.tracks.iter().map(|track| track.rate(WARM, track.length()) * 60.0 / 1e6).collect()
    };
    let soft = work(&bench.run(&specs, &[("0/policy", "4")])?);
    let fair = work(&bench.run(&specs, &[("0/policy", "1")])?);
    let least = soft.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(vec![
        ("soft_least_pct", (100.0 * least * specs.len() as f64).into()),
        ("soft_aggregate_ratio", (soft.iter().sum::<f64>() / fair.iter().sum::<f64>()).into()),
    ])
}

/// Measures one tenant alone with the shim relative to without it.
pub(super) fn solo(bench: &mut Bench) -> Result<Figures> {
    Ok(vec![("solo_pct", over_native(bench, 1, &[])?.into())])
}

/// Measures two tenants under policy 5 relative to the same two without the shim.
pub(super) fn native_policy(bench: &mut Bench) -> Result<Figures> {
    Ok(vec![("policy_5_pct", over_native(bench, 2, &[("0/policy", "5")])?.into())])
}

/// Returns the work of tenants with the shim in percent of that without it, alternating.
fn over_native(bench: &mut Bench, tenants: usize, settings: &[(&str, &str)]) -> Result<f64> {
    let load = Load::saturating(20);
    let mut setup = bench.setup()?;
    let mut shimmed =
        (0..tenants).map(|_| setup.join(&TenantSpec::of(load))).collect::<Result<Vec<_>>>()?;
    let mut native = (0..tenants).map(|_| setup.native(&load)).collect::<Result<Vec<_>>>()?;
    settings.iter().try_for_each(|(path, value)| setup.write(path, value))?;
    let mut ratios = Vec::new();
    for _ in 0..if bench.quick { 3 } else { 5 } {
        let rate = |tenants: &mut [Tenant]| -> Result<f64> {
            let tracks = together(tenants, 1.2, 0.01, |_| Ok(()))?;
            Ok(tracks.iter().map(|track| track.rate(0.2, 1.2)).sum())
        };
        ratios.push(100.0 * rate(&mut shimmed)? / rate(&mut native)?);
    }
    Ok(median(&mut ratios))
}

/// Formats percentages.
fn join(percents: impl Iterator<Item = f64>) -> String {
    percents.map(|percent| format!("{percent:.2}")).collect::<Vec<_>>().join(" + ")
}

/// Returns the CPU seconds of a process, with its threads that have exited.
pub(super) fn cpu_seconds(process: u32) -> Result<f64> {
    let mut clock = 0;
    // SAFETY: the call writes a clock to `clock`, which lives for it.
    let found = unsafe { libc::clock_getcpuclockid(process.try_into()?, &raw mut clock) };
    if found != 0 {
        bail!("no CPU clock of process {process}: {}", io::Error::from_raw_os_error(found));
    }
    Ok(read(clock).0 as f64 / 1e9)
}
