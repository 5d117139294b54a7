//! `share_measured`: the share shown as measured, compared with what the GPU computed for the
//! container in the same time, under each policy, alone and in pairs.

use anyhow::Result;
use cgpu_launch::gate::DriverError;
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use super::patterns::{batch, eager};
use super::{Figures, Options, WEIGHTED, as_seconds, between, seconds};
use crate::emulation::{Observed, Program, Tenant, Work};

/// A container's program.
struct Client {
    name: &'static str,
    cycle: fn(&Program<'_>) -> Result<(), DriverError>,
    /// Its weight, and its percentage where shares are fixed.
    weight: u32,
    percent: u32,
    /// Whether it fills the GPU: beside another such program its share can be measured exactly.
    fills: bool,
}

const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

const SATURATING: Client =
    Client { name: "saturating", cycle: saturate, weight: 1, percent: 40, fills: true };
const HEAVY: Client = Client { name: "saturating, 9 : 1", weight: 9, percent: 50, ..SATURATING };
const LONG: Client =
    Client { name: "5 ms kernels", cycle: long, weight: 1, percent: 30, fills: true };
const EAGER: Client =
    Client { name: "eager", cycle: run_eagerly, weight: 1, percent: 25, fills: false };
const LOADER: Client = Client { name: "loader", cycle: load, weight: 1, percent: 20, fills: false };
const STREAMS: Client = Client { name: "four streams", cycle: streams, ..LONG };
const REQUESTS: Client =
    Client { name: "requests", cycle: serve, weight: 3, percent: 10, fills: false };

const CASES: &[&[Client]] = &[
    &[SATURATING],
    &[EAGER],
    &[SATURATING, SATURATING],
    &[HEAVY, SATURATING],
    &[LONG, SATURATING],
    &[STREAMS, SATURATING],
    &[EAGER, SATURATING],
    &[LOADER, SATURATING],
    &[REQUESTS, SATURATING],
    &[EAGER, LOADER],
];

const POLICIES: &[Policy] = &[
    Policy::Average { slots: 4 },
    Policy::Preemptive,
    WEIGHTED,
    Policy::Weighted { conserving: true },
    Policy::Fixed { slots: 20 },
    Policy::Soft,
    Policy::Native,
];

fn saturate(program: &Program<'_>) -> Result<(), DriverError> {
    program.submit(Work::full(us(60)), 0)
}

fn long(program: &Program<'_>) -> Result<(), DriverError> {
    program.submit(Work::full(us(5_000)), 0)
}

fn streams(program: &Program<'_>) -> Result<(), DriverError> {
    (0..4).try_for_each(|stream| program.submit(Work::full(us(1_000)), stream))
}

fn run_eagerly(program: &Program<'_>) -> Result<(), DriverError> {
    eager(program, us(33))
}

fn load(program: &Program<'_>) -> Result<(), DriverError> {
    batch(program, Work::full(us(100)), 20)?;
    program.sleep_until(program.now() + us(2_000));
    Ok(())
}

fn serve(program: &Program<'_>) -> Result<(), DriverError> {
    batch(program, Work::full(us(100)), 64)?;
    program.sleep_until(program.now() + us(30_000));
    Ok(())
}

/// Time before the first reading, until the controller knows the tenants.
const WARM: Nanos = seconds(3);
/// Time between readings; not a multiple of a round.
const INTERVAL: Nanos = Nanos::from_millis(1_150);
/// Time that a reading covers: the monitor's window, whose edges are multiples of 50 ms.
const WINDOW: Nanos = Nanos::from_millis(950);

/// Errors of the readings in percentage points.
#[derive(Default)]
struct Errors {
    exact: Vec<f64>,
    estimated: Vec<f64>,
    /// Number of readings without a value.
    unmetered: usize,
}

impl Errors {
    fn take(&mut self, seen: &Observed) {
        let truth = 100.0 * as_seconds(seen.computed) / as_seconds(WINDOW);
        match seen.measured {
            None => self.unmetered += 1,
            Some(measured) => {
                let error = (f64::from(measured.share) / 1000.0 - truth).abs();
                let errors = if measured.exact { &mut self.exact } else { &mut self.estimated };
                errors.push(error);
            }
        }
    }

    fn worst(errors: &[f64]) -> f64 {
        errors.iter().copied().fold(0.0, f64::max)
    }

    fn line(&self) -> String {
        let part = |errors: &[f64]| match errors.len() {
            0 => "none".into(),
            count => format!("{count} off by {:.2} at most", Self::worst(errors)),
        };
        let [exact, estimated] = [&self.exact, &self.estimated].map(|errors| part(errors));
        format!("{exact}; estimates: {estimated}; not metered: {}", self.unmetered)
    }
}

pub(super) fn measure(options: &Options) -> Result<Figures> {
    let model = Model { switch: options.switch, ..Model::default() };
    let readings = if options.quick { 3 } else { 10 };
    let mut worst: f64 = 0.0;
    eprintln!("    measured shares, percentage points off the GPU's own count");
    for policy in POLICIES {
        for clients in CASES {
            let errors = errors(model, *policy, clients, readings)?;
            let names: Vec<&str> = clients.iter().map(|client| client.name).collect();
            let must = *policy != Policy::Native && clients.iter().all(|client| client.fills);
            let is_alone = clients.len() == 1 && !policy.is_fixed();
            anyhow::ensure!(
                !must || is_alone || !errors.exact.is_empty(),
                "policy {policy:?}: no exact share"
            );
            eprintln!("    policy {policy:?}, {}: {}", names.join(" + "), errors.line());
            worst = worst.max(Errors::worst(&errors.exact));
        }
    }
    Ok(vec![("share_measured_error_points", worst)])
}

fn errors(model: Model, policy: Policy, clients: &[Client], readings: u32) -> Result<Errors> {
    let scripts: Vec<_> = clients
        .iter()
        .map(|client| {
            move |program: &Program<'_>| {
                while program.goes_on() {
                    (client.cycle)(program)?;
                }
                Ok(())
            }
        })
        .collect();
    let tenants = clients.iter().zip(&scripts).map(|(client, script)| Tenant {
        percent: Some(client.percent),
        ..Tenant::new(client.weight, script)
    });
    let tenants: Vec<Tenant<'_>> = tenants.collect();
    let reading = |number: u32| WARM + Nanos(INTERVAL.0 * u64::from(number));
    let instants: Vec<Nanos> =
        (0..readings).flat_map(|number| [reading(number) - WINDOW, reading(number)]).collect();
    let seen = between(model, Some(policy), &tenants, &instants)?;
    let mut errors = Errors::default();
    seen.iter().step_by(2).flatten().for_each(|seen| errors.take(seen));
    Ok(errors)
}
