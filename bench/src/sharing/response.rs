//! Response times of changes, and tenants that cannot use the GPU without pauses.

use anyhow::{Context, Result};

use super::load::{Load, TenantSpec};
use super::setup::{Setup, Tenant, now, sleep_until, soon, together};
use super::shares::SATURATING;
use super::track::{Track, error_pct, parts, shares};
use super::{Bench, Figures, STEP, WARM};

/// Returns the first time from `from` on at which `good` holds.
pub(super) fn reached(track: &Track, from: f64, good: impl Fn(f64) -> bool) -> Option<f64> {
    let steps = ((track.length() - from) / STEP) as usize;
    (0..steps).map(|step| from + step as f64 * STEP).find(|moment| good(*moment))
}

/// Measures, under policy 1 with a neighbour that becomes idle, the milliseconds until the other
/// tenant has the GPU, and how much of it.
pub(super) fn idle_reclaim(bench: &mut Bench) -> Result<Figures> {
    let mut setup = bench.setup()?;
    let mut stays = setup.join(&TenantSpec::of(Load { batch: 8, ..Load::saturating(60) }))?;
    let solo = solo(&mut stays)?;
    let mut goes = setup.join(&SATURATING)?;
    let (mut worst, mut least) = (0.0_f64, f64::INFINITY);
    for _ in 0..3 {
        let start = soon();
        stays.begin(start, 3.5, STEP)?;
        goes.begin(start, 1.5, STEP)?;
        goes.end(STEP)?;
        let idle = now() - start;
        let track = stays.end(STEP)?;
        let back = reached(&track, idle, |moment| track.rate(moment, moment + 0.02) >= 0.97 * solo);
        worst = worst.max(1000.0 * (back.context("the GPU was never given back")? - idle));
        least = least.min(100.0 * track.rate(idle + 0.1, idle + 1.1) / solo);
    }
    Ok(vec![("idle_reclaim_ms", worst.into()), ("idle_reclaim_pct", least.into())])
}

/// Measures, after a change of a weight, the milliseconds until the shares follow, and their error
/// in the next second.
pub(super) fn reaction(bench: &mut Bench) -> Result<Figures> {
    let small = TenantSpec::of(Load { batch: 8, ..Load::saturating(60) });
    let mut setup = bench.setup()?;
    let mut tenants = [setup.join(&small)?, setup.join(&small.weighing(2))?];
    let node = format!("0/{}/weight", id(&setup, &tenants[1])?);
    let (mut slowest, mut worst) = (0.0_f64, 0.0_f64);
    for weight in [4_u32, 1, 6, 2] {
        let mut written = 0.0;
        let tracks = together(&mut tenants, 3.0, STEP, |start| {
            sleep_until(start + 1.0);
            written = now() - start;
            setup.write(&node, &weight.to_string())
        })?;
        let set = parts(&[1, weight]);
        let error = |from: f64, to: f64| error_pct(&shares(&tracks, &[60, 60], from, to), &set);
        // Two rounds take at most 50 ms with these weights.
        let there = reached(&tracks[0], written, |moment| error(moment, moment + 0.1) <= 10.0);
        slowest = slowest.max(1000.0 * (there.context("the new weight never showed")? - written));
        worst = worst.max(error(written + 0.05, written + 1.05));
    }
    Ok(vec![("reaction_ms", slowest.into()), ("reaction_error_1s_pct", worst.into())])
}

/// Returns a tenant's id in the control tree.
fn id(setup: &Setup, tenant: &Tenant) -> Result<String> {
    let status = setup.fixture.status()?;
    let container = status.containers.iter().find(|container| container.name == tenant.name);
    Ok(container.with_context(|| format!("the monitor does not know {}", tenant.name))?.id.clone())
}

/// Measures kernels of 100 us with host work between them, beside a saturating tenant under policy
/// 1: throughput relative to the set share and to the GPU's own time slicing.
pub(super) fn gaps(bench: &mut Bench) -> Result<Figures> {
    let (mut of_set, mut of_native) = (f64::INFINITY, f64::INFINITY);
    for gap_us in [20, 200, 1000, 5000] {
        let load = Load::requests(1, 100, gap_us);
        let mut setup = bench.setup()?;
        let mut natives = [setup.native(&load)?, setup.native(&SATURATING.load)?];
        let native = together(&mut natives, WARM + 3.0, 0.01, |_| Ok(()))?;
        drop(natives);
        let mut tenant = setup.join(&TenantSpec::of(load))?;
        let solo = solo(&mut tenant)?;
        let mut tenants = [tenant, setup.join(&SATURATING)?];
        let tracks = together(&mut tenants, WARM + bench.seconds() / 2.0, 0.01, |_| Ok(()))?;
        let rate = |track: &Track| track.rate(WARM, track.length());
        let (got, slicing) = (rate(&tracks[0]), rate(&native[0]));
        eprintln!(
            "    gap {gap_us} us: {:.0} % of solo, {:.0} % by the GPU's own slicing; the neighbour \
             {:.0} and {:.0} %",
            100.0 * got / solo,
            100.0 * slicing / solo,
            rate(&tracks[1]) * 60.0 / 1e4,
            rate(&native[1]) * 60.0 / 1e4,
        );
        bench.gallery.gap(gap_us, got / solo, slicing / solo);
        of_set = of_set.min(100.0 * got / (0.5 * solo));
        of_native = of_native.min(100.0 * got / slicing);
    }
    Ok(vec![("gap_throughput_pct", of_set.into()), ("gap_over_native_pct", of_native.into())])
}

/// Measures requests of 64 kernels at high priority beside a saturating tenant: the 99th percentile
/// relative to running alone.
pub(super) fn priority(bench: &mut Bench) -> Result<Figures> {
    let mut setup = bench.setup()?;
    let mut requests = setup.join(&TenantSpec::of(Load::requests(64, 100, 3000)).urgent())?;
    let slowest = |track: &Track| {
        let at = |part| track.quantile(part).context("no request ended");
        let (half, most, all) = (at(0.5)?, at(0.99)?, at(1.0)?);
        eprintln!(
            "    requests of 6.4 ms: half within {:.2} ms, 99 of 100 within {:.2}, all within \
             {:.2}",
            half * 1e3,
            most * 1e3,
            all * 1e3
        );
        anyhow::Ok(most)
    };
    let alone = requests.run(bench.seconds() / 2.0, 0.01)?;
    let mut tenants = [requests, setup.join(&SATURATING)?];
    let mut tracks = together(&mut tenants, bench.seconds(), 0.01, |_| Ok(()))?;
    let beside = tracks.swap_remove(0);
    let ratio = slowest(&beside)? / slowest(&alone)?;
    bench.gallery.latencies("alone", alone.latencies);
    bench.gallery.latencies("beside a saturating container", beside.latencies);
    Ok(vec![("priority_p99_ratio", ratio.into())])
}

/// Returns the kernels per second alone.
pub(super) fn solo(tenant: &mut Tenant) -> Result<f64> {
    let track = tenant.run(WARM + 2.0, 0.01)?;
    Ok(track.rate(WARM, track.length()))
}
