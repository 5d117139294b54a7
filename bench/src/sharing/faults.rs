//! What the other tenants lose when one is killed or stopped, or runs an endless kernel.

use anyhow::{Context, Result};

use super::load::{Load, TenantSpec};
use super::response::{reached, solo};
use super::setup::{Tenant, now, sleep_until, soon, together};
use super::shares::SATURATING;
use super::track::Track;
use super::{Bench, Figures, WARM};

pub(super) fn holder_killed(bench: &mut Bench) -> Result<Figures> {
    Ok(vec![("holder_kill_recover_ms", recovery(bench, libc::SIGKILL)?.into())])
}

pub(super) fn holder_stopped(bench: &mut Bench) -> Result<Figures> {
    Ok(vec![("holder_stop_recover_ms", recovery(bench, libc::SIGSTOP)?.into())])
}

/// Sends a tenant `signal` at an arbitrary point of a turn. Returns the milliseconds until the
/// other one has the GPU, as the worst of several.
fn recovery(bench: &Bench, signal: i32) -> Result<f64> {
    let step = 0.001;
    let mut setup = bench.setup()?;
    let mut stays = setup.join(&TenantSpec::of(Load { batch: 8, ..Load::saturating(60) }))?;
    let solo = solo(&mut stays)?;
    let mut worst: f64 = 0.0;
    for round in 0..if bench.quick { 3 } else { 10 } {
        let mut goes = setup.join(&SATURATING)?;
        let start = soon();
        stays.begin(start, 2.0, step)?;
        goes.begin(start, 2.0, step)?;
        // The point in a turn changes with the round.
        sleep_until(start + 0.7 + f64::from(round) * 0.0037);
        goes.signal(signal)?;
        let gone = now() - start;
        let track = stays.end(step)?;
        goes.signal(libc::SIGKILL)?;
        let back = reached(&track, gone, |moment| track.rate(moment, moment + 0.02) >= 0.95 * solo);
        worst = worst.max(1000.0 * (back.context("the GPU was never given back")? - gone));
    }
    Ok(worst)
}

/// Kills the monitor and starts it again under load. Measures the worst loss of a tenant in the 2 s
/// around it.
pub(super) fn monitor_restarted(bench: &mut Bench) -> Result<Figures> {
    let mut setup = bench.setup()?;
    let mut tenants = [setup.join(&SATURATING)?, setup.join(&SATURATING)?];
    let mut killed = 0.0;
    let tracks = together(&mut tenants, 6.0, 0.01, |start| {
        sleep_until(start + 3.0);
        killed = now() - start;
        setup.fixture.replace_monitor()
    })?;
    let loss = |track: &Track| {
        100.0 * (1.0 - track.rate(killed - 1.0, killed + 1.0) / track.rate(WARM, killed - 1.0))
    };
    Ok(vec![("monitor_restart_loss_pct", tracks.iter().map(loss).fold(0.0, f64::max).into())])
}

/// Measures the work of a tenant beside an endless kernel, relative to native time slicing.
pub(super) fn persistent_kernel(bench: &mut Bench) -> Result<Figures> {
    let mut setup = bench.setup()?;
    let natives = (setup.native(&Load::persistent())?, setup.native(&SATURATING.load)?);
    let native = beside_forever(natives)?;
    let tenants = (setup.join(&TenantSpec::of(Load::persistent()))?, setup.join(&SATURATING)?);
    Ok(vec![(
        "persistent_kernel_neighbour_pct",
        (100.0 * beside_forever(tenants)? / native).into(),
    )])
}

fn beside_forever((mut forever, mut other): (Tenant, Tenant)) -> Result<f64> {
    forever.begin(soon(), 1.0, 0.1)?;
    let track = other.run(1.0 + WARM + 3.0, 0.01)?;
    forever.signal(libc::SIGKILL)?;
    Ok(track.rate(1.0 + WARM, track.length()))
}
