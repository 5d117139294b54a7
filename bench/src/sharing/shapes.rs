//! Programs that launch in many shapes, as with dynamic shapes: their loss against a single shape,
//! and shares where the shape does not predict the cost.
//!
//! The program `load` draws kernels, grids, blocks and shared memory from a seed that is printed.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::load::{Load, Shapes, TenantSpec};
use super::shares::SATURATING;
use super::track::{error_pct, parts};
use super::{Bench, Figures, WARM};

/// Kernels of 10 us, with which a slow path at every launch would show.
const SHORT: Load = Load::saturating(10);

/// Sets of shapes whose throughput is compared with that of one shape.
const SETS: [Shapes; 4] =
    [Shapes::Drawn(1_000), Shapes::Drawn(4_000), Shapes::Drawn(100_000), Shapes::New];

/// Measures the worst throughput of a set relative to one shape, and the largest error of a share
/// in these runs and with loads whose shapes do not predict the cost.
pub(super) fn many(bench: &mut Bench) -> Result<Figures> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    let seed = since.subsec_nanos();
    eprintln!("    seed of the shapes: {seed}");
    let (mut one, mut worst, mut error) = (0.0, f64::INFINITY, 0.0_f64);
    for shapes in [Shapes::One].iter().chain(&SETS) {
        let specs = [TenantSpec::of(Load { shapes: *shapes, seed, ..SHORT }), SATURATING];
        let seen = bench.run(&specs, &[])?;
        let track = &seen.tracks[0];
        let rate = track.rate(WARM, track.length());
        if *shapes == Shapes::One {
            one = rate;
        }
        let off = by_time(&seen.gpu, [1, 1]);
        eprintln!(
            "    {shapes:?}: {rate:.0} launches/s, {:.3} of one shape's; share off by {off:.2} %",
            rate / one
        );
        (worst, error) = (worst.min(rate / one), error.max(off));
    }
    let drawn = |functions| Load { shapes: Shapes::New, functions, seed, ..SHORT };
    let alternating = |run| Load { alternating: run, batch: 20, ..SHORT };
    for (name, load) in [
        ("costs of which half rise with the grid", drawn(2)),
        ("50 functions", drawn(50)),
        ("10 us and 5 ms in turn", alternating(1)),
        ("10 us and 5 ms in runs of 100", alternating(100)),
    ] {
        let seen = bench.run(&[TenantSpec::of(load), SATURATING.weighing(3)], &[])?;
        let off = by_time(&seen.gpu, [1, 3]);
        eprintln!("    {name}: share off by {off:.2} %");
        error = error.max(off);
    }
    Ok(vec![("shapes_throughput_ratio", worst.into()), ("share_error_shapes_pct", error.into())])
}

/// Returns the largest error of a share by GPU time. Completed launches do not measure shares if
/// their costs differ.
fn by_time(seconds: &[f64], weights: [u32; 2]) -> f64 {
    let all: f64 = seconds.iter().sum();
    let got: Vec<f64> = seconds.iter().map(|seconds| seconds / all).collect();
    error_pct(&got, &parts(&weights))
}
