//! `published`: experiments of other projects, as they define them, so that their figures and
//! ours answer the same question. Theirs are from real GPUs.
//!
//! | experiment | definition here |
//! |---|---|
//! | XSched (OSDI 2025), figure 7 | two endless ResNet-152 inferences, whose kernels take 2 to 113 us, at 75:25; then one of them with a request every 30 ms, at high priority |
//! | Tally (ASPLOS 2025) | requests that arrive at random and take half of the GPU, at high priority, beside training |
//! | HAMi, issue 2863 | weights 10:90, launches that are never waited for; counted is what the GPU completed |

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use cgpu_launch::gate::{DriverError, Kernel};
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use super::draws::Draws;
use super::{Figures, Options, Sharing, WEIGHTED, as_seconds, between, seconds};
use crate::emulation::{Observed, Program, Tenant};

pub(super) const XSCHED: &[&str] = &[
    "xsched_75_of_solo",
    "xsched_25_of_solo",
    "xsched_native_of_solo",
    "xsched_priority_p99_ratio",
];
pub(super) const INFERENCE: &[&str] =
    &["inference_p99_added_pct", "inference_p99_added_worst_pct", "training_beside_inference_pct"];
pub(super) const HAMI: &[&str] = &["hami_2863_error_pct"];

/// Time that is not counted, in which the controller learns about the tenants.
const WARM: Nanos = seconds(2);

/// What a model computes: one inference, or one step of training.
struct Network {
    name: &'static str,
    /// Lengths of its kernels, each of a function of its own, in the order of their launches.
    kernels: Vec<Nanos>,
    /// Host time after each.
    host: Nanos,
}

impl Network {
    /// Draws a network with this number of kernels, whose lengths in microseconds spread over
    /// magnitudes.
    fn drawn(name: &'static str, kernels: usize, us: (f64, f64), host: Nanos) -> Self {
        let mut draws = Draws::new(1);
        let mut length = || Nanos((1e3 * draws.over_magnitudes(us.0, us.1)) as u64);
        Self { name, kernels: (0..kernels).map(|_| length()).collect(), host }
    }

    /// Computes once, and waits for it.
    fn compute(&self, program: &Program<'_>) -> Result<(), DriverError> {
        for (function, length) in (1..).zip(&self.kernels) {
            if !program.goes_on() {
                break;
            }
            program.launch(Kernel::new(function, [4_320, 1, 1], [256, 1, 1]), 0, *length)?;
        }
        program.synchronize();
        if self.host > Nanos::ZERO {
            program.sleep_until(program.now() + self.host);
        }
        Ok(())
    }

    fn endlessly(&self, program: &Program<'_>) -> Result<(), DriverError> {
        while program.goes_on() {
            self.compute(program)?;
        }
        Ok(())
    }

    fn length(&self) -> Nanos {
        Nanos(self.kernels.iter().map(|length| length.0).sum())
    }
}

/// Requests for inferences of a network.
struct Service<'a> {
    network: &'a Network,
    /// Arrivals, ascending.
    arrivals: Vec<Nanos>,
}

impl<'a> Service<'a> {
    /// Requests at equal intervals.
    fn periodic(network: &'a Network, interval: Nanos, end: Nanos) -> Self {
        let arrivals = (0..end.0 / interval.0).map(|number| Nanos(number * interval.0)).collect();
        Self { network, arrivals }
    }

    /// Requests that arrive independently of each other and take half of the GPU's time.
    fn at_half_load(network: &'a Network, end: Nanos) -> Self {
        let mean = 2.0 * network.length().0 as f64;
        let (mut draws, mut at, mut arrivals) = (Draws::new(1), 0.0, Vec::new());
        while at < end.0 as f64 {
            arrivals.push(Nanos(at as u64));
            at += draws.interval(mean);
        }
        Self { network, arrivals }
    }

    /// Answers the requests one after another beside a neighbour.
    fn serve(&self, beside: Option<&Network>, end: Nanos, model: Model) -> Result<Served> {
        let latencies = Mutex::new(Vec::new());
        let requests = |program: &Program<'_>| {
            for arrival in &self.arrivals {
                program.sleep_until(*arrival);
                if !program.goes_on() {
                    break;
                }
                self.network.compute(program)?;
                if *arrival >= WARM && program.goes_on() {
                    let latency = as_seconds(program.now() - *arrival);
                    latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
                }
            }
            Ok(())
        };
        let neighbour =
            |program: &Program<'_>| beside.map_or(Ok(()), |network| network.endlessly(program));
        let mut tenants =
            vec![Tenant { high_priority: Some(PRIORITY_RATIO), ..Tenant::new(1, &requests) }];
        if beside.is_some() {
            tenants.push(Tenant::new(1, &neighbour));
        }
        let observed = between(model, Some(WEIGHTED_CONSERVING), &tenants, &[WARM, end])?;
        drop(tenants);
        let mut latencies = latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
        latencies.sort_by(f64::total_cmp);
        ensure!(latencies.len() >= 200, "only {} requests were answered", latencies.len());
        Ok(Served { latencies, observed: observed.into_iter().flatten().collect() })
    }
}

/// What a service and its neighbour did.
struct Served {
    /// From the arrival to the end, ascending, in seconds.
    latencies: Vec<f64>,
    observed: Vec<Observed>,
}

impl Served {
    fn p99(&self) -> f64 {
        self.latencies[self.latencies.len() * 99 / 100]
    }
}

/// Percentage of the GPU that high priority may take: nearly all, as in these experiments.
const PRIORITY_RATIO: u32 = 95;

/// Policy 2, in which unused time goes to the others.
const WEIGHTED_CONSERVING: Policy = Policy::Weighted { conserving: true };

const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

fn model(options: &Options) -> Model {
    Model { switch: options.switch, ..Model::default() }
}

/// Returns the GPU time per second that two endless networks compute.
fn rates(networks: &[(&Network, u32)], sharing: Sharing, options: &Options) -> Result<Vec<f64>> {
    let end = seconds(if options.quick { 6 } else { 22 });
    let scripts =
        networks.iter().map(|(network, _)| move |program: &Program<'_>| network.endlessly(program));
    let scripts: Vec<_> = scripts.collect();
    let tenants = networks.iter().zip(&scripts);
    let tenants: Vec<Tenant<'_>> =
        tenants.map(|((_, weight), script)| Tenant::new(*weight, script)).collect();
    let observed = between(model(options), sharing, &tenants, &[WARM, end])?;
    let per_second = |seen: &Observed| as_seconds(seen.computed) / as_seconds(end - WARM);
    Ok(observed[0].iter().map(per_second).collect())
}

pub(super) fn xsched(options: &Options) -> Result<Figures> {
    let network = Network::drawn("ResNet-152", 515, (2.0, 113.0), Nanos::ZERO);
    let solo = rates(&[(&network, 1)], None, options)?[0];
    let both = [(&network, 3), (&network, 1)];
    let shared = rates(&both, Some(WEIGHTED), options)?;
    let native = rates(&both, None, options)?;
    let [three, one] = [shared[0] / solo, shared[1] / solo];
    let native = [native[0] / solo, native[1] / solo];
    eprintln!("    two ResNet-152: {three:.3} and {one:.3}; native {native:.3?}");
    let end = seconds(if options.quick { 12 } else { 62 });
    let service = Service::periodic(&network, us(30_000), end);
    let alone = service.serve(None, end, model(options))?.p99();
    let beside = service.serve(Some(&network), end, model(options))?.p99();
    eprintln!("    p99 {:.2} ms alone, {:.2} ms beside", 1e3 * alone, 1e3 * beside);
    Ok(vec![
        ("xsched_75_of_solo", three),
        ("xsched_25_of_solo", one),
        ("xsched_native_of_solo", native[0].min(native[1])),
        ("xsched_priority_p99_ratio", beside / alone),
    ])
}

pub(super) fn inference(options: &Options) -> Result<Figures> {
    let services = [
        Network::drawn("inference of 3 ms", 100, (10.0, 70.0), Nanos::ZERO),
        Network::drawn("inference of 12 ms", 300, (10.0, 90.0), Nanos::ZERO),
    ];
    let trainings = [
        Network::drawn("kernels up to 0.2 ms", 500, (5.0, 200.0), us(2_000)),
        Network::drawn("kernels up to 1 ms", 500, (5.0, 1_000.0), us(2_000)),
        Network::drawn("kernels up to 5 ms", 200, (20.0, 5_000.0), us(2_000)),
    ];
    let trainings = if options.quick { &trainings[..1] } else { &trainings[..] };
    let end = seconds(if options.quick { 12 } else { 62 });
    let (mut added, mut least) = (Vec::new(), f64::INFINITY);
    for network in &services {
        let service = Service::at_half_load(network, end);
        let alone = service.serve(None, end, model(options))?;
        for training in trainings {
            let solo = rates(&[(training, 1)], None, options)?[0];
            let beside = service.serve(Some(training), end, model(options))?;
            let used = |tenant: usize| {
                as_seconds(beside.observed[tenant].computed) / as_seconds(end - WARM)
            };
            let left = 100.0 * used(1) / (solo * (1.0 - used(0)));
            let more = 100.0 * (beside.p99() / alone.p99() - 1.0);
            eprintln!(
                "    {} beside training with {}: p99 {:.2} ms, {:.2} alone ({more:+.1} %); \
                 training {left:.1} % of what was left",
                network.name,
                training.name,
                1e3 * beside.p99(),
                1e3 * alone.p99(),
            );
            added.push(more);
            least = least.min(left);
        }
    }
    let mean = added.iter().sum::<f64>() / added.len() as f64;
    Ok(vec![
        ("inference_p99_added_pct", mean),
        ("inference_p99_added_worst_pct", added.into_iter().fold(f64::MIN, f64::max)),
        ("training_beside_inference_pct", least),
    ])
}

pub(super) fn hami(options: &Options) -> Result<Figures> {
    let endless = |program: &Program<'_>| {
        while program.goes_on() {
            program.launch(Kernel::new(1, [4_320, 1, 1], [256, 1, 1]), 0, us(100))?;
        }
        Ok(())
    };
    let tenants = [Tenant::new(10, &endless), Tenant::new(90, &endless)];
    let end = seconds(if options.quick { 6 } else { 32 });
    let observed = between(model(options), Some(WEIGHTED), &tenants, &[WARM, end])?;
    let [ten, ninety] = [0, 1].map(|tenant| observed[0][tenant].kernels as f64);
    ensure!(ten > 0.0, "the tenant of weight 10 did nothing");
    eprintln!("    10:90 gave 1:{:.3}", ninety / ten);
    Ok(vec![("hami_2863_error_pct", 100.0 * (ninety / ten / 9.0 - 1.0).abs())])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { quick: true, switch: us(100), seed: 1 };

    #[test]
    fn two_networks_have_what_xsched_has_published() {
        let network = Network::drawn("ResNet-152", 515, (2.0, 113.0), Nanos::ZERO);
        let both = [(&network, 3), (&network, 1)];
        let solo = rates(&both[..1], None, &OPTIONS).unwrap()[0];
        let shared = rates(&both, Some(WEIGHTED), &OPTIONS).unwrap();
        let parts = [shared[0] / solo, shared[1] / solo];
        assert!(parts[0] >= 0.71 && parts[1] >= 0.24, "{parts:?}");
        assert!((2.85..3.15).contains(&(parts[0] / parts[1])), "{parts:?}");
    }

    #[test]
    fn launches_that_are_never_waited_for_have_weights_of_10_to_90() {
        let figures = hami(&OPTIONS).unwrap();
        let (key, off) = figures[0];
        assert_eq!(key, HAMI[0]);
        assert!(off < 2.0, "1:9 is off by {off} %");
    }
}
