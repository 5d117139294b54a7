//! Shares on a GPU whose clock is faster or slower than the host's, in virtual time.

use std::sync::Mutex;

use anyhow::{Result, anyhow};
use cgpu_launch::gate::{DriverError, Kernel};
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;
use cgpu_sim::timeline::ClockRate;

use super::{Bench, Figures};
use crate::emulation::{Program, Setup, Tenant, run};
use crate::figure::Reading;

/// A clock rate and an idle period.
struct Case {
    name: &'static str,
    ppm: f64,
    /// Start and length of the idle period in seconds.
    pause: Option<(u64, u64)>,
}

const CASES: &[Case] = &[
    Case { name: "100 ppm slow", ppm: -100.0, pause: None },
    Case { name: "100 ppm fast", ppm: 100.0, pause: None },
    Case { name: "2 ppm slow, an idle hour", ppm: -2.0, pause: Some((60, 3_600)) },
    Case { name: "2 ppm fast, an idle hour", ppm: 2.0, pause: Some((60, 3_600)) },
];

/// Seconds of work, and the last of them that count.
const WORK: u64 = 120;
const COUNTED: u64 = 20;

fn seconds(seconds: u64) -> Nanos {
    Nanos::from_millis(1_000 * seconds)
}

/// Measures `share_error_drift_pct`.
pub(super) fn measure(bench: &mut Bench) -> Result<Figures> {
    let mut worst = Vec::new();
    for case in CASES {
        let error = error_of(case, bench.switch)?;
        eprintln!("    {}: {error:.2} % off", case.name);
        worst.push(error);
    }
    let error = worst.into_iter().fold(0.0, f64::max);
    Ok(vec![("share_error_drift_pct", Reading::from(error))])
}

/// Returns the larger relative error of the shares 25:75, in percent.
fn error_of(case: &Case, switch_us: u32) -> Result<f64> {
    let idle = case.pause.map_or(0, |(_, idle)| idle);
    let end = WORK + idle;
    let sums = [const { Mutex::new(0) }; 2];
    let saturate = |program: &Program<'_>, sum: &Mutex<u64>| -> Result<(), DriverError> {
        let (mut pause, mut before) = (case.pause, None);
        while program.goes_on() {
            if let Some((at, idle)) = pause.filter(|(at, _)| program.now() >= seconds(*at)) {
                program.synchronize();
                program.sleep_until(seconds(at + idle));
                pause = None;
            }
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(60))?;
            if before.is_none() && program.now() >= seconds(end - COUNTED) {
                before = Some(program.ran());
            }
        }
        if let (Some(before), Ok(mut sum)) = (before, sum.lock()) {
            *sum = (program.ran() - before).0;
        }
        Ok(())
    };
    let [first, second] = &sums;
    let figures = Model {
        switch: Nanos::from_micros(u64::from(switch_us)),
        clock_rate: ClockRate((case.ppm * 1_000.0) as i64),
        ..Model::default()
    };
    let one = |program: &Program<'_>| saturate(program, first);
    let three = |program: &Program<'_>| saturate(program, second);
    let tenants = [Tenant::new(1, &one), Tenant::new(3, &three)];
    let policy = Some(Policy::Weighted { conserving: true });
    run(&Setup { figures, policy, tenants: &tenants, seed: 1, length: seconds(end) })?;
    let [one, three] = sums.map(|sum| sum.into_inner().unwrap_or(0) as f64);
    if one == 0.0 || three == 0.0 {
        return Err(anyhow!("{}: a tenant did nothing", case.name));
    }
    let share = three / (one + three);
    Ok(((share / 0.75 - 1.0).abs()).max(((1.0 - share) / 0.25 - 1.0).abs()) * 100.0)
}
