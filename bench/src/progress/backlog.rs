//! `backlog`: a new tenant beside one that filled its queues while it was alone.

use anyhow::Result;
use cgpu_launch::gate::DriverError;
use cgpu_shm::units::Nanos;
use cgpu_sim::settings::Figures as Model;

use super::{Figures, Options, SHARINGS, Sharing, as_seconds, between, seconds};
use crate::emulation::{Program, Tenant, Work};

/// Time that the first tenant is alone.
const ALONE: Nanos = seconds(1);
/// Seconds observed after the new tenant's start. The last one counts.
const WATCHED: u64 = 3;
/// Kernels of the new tenant, which launches as many as it can.
const SHORT: Work = Work::full(Nanos::from_micros(20));

/// Launches that the first tenant queues.
struct Queue {
    length: Nanos,
    streams: u32,
}

const fn queue(micros: u64, streams: u32) -> Queue {
    Queue { length: Nanos::from_micros(micros), streams }
}

const QUEUES: [Queue; 6] = [
    queue(100, 1),
    queue(100, 4),
    queue(1_000, 1),
    queue(1_000, 4),
    queue(5_000, 1),
    queue(5_000, 4),
];
/// Index of the longest queues, which a quick run measures.
const QUICK: usize = 4;

pub(super) fn measure(options: &Options) -> Result<Figures> {
    let model = Model { switch: options.switch, ..Model::default() };
    let queues = if options.quick { &QUEUES[QUICK..] } else { &QUEUES[..] };
    let alone = [Tenant::new(1, &saturate)];
    let solo = between(model, None, &alone, &[seconds(0), seconds(1)])?[0][0].kernels as f64;
    eprintln!(
        "    backlog: the newcomer's work over its fair share in its first {WATCHED} seconds"
    );
    let mut worst = f64::INFINITY;
    for queue in queues {
        let mut line = format!("    {} us on {} streams:", queue.length.0 / 1_000, queue.streams);
        for (name, sharing) in SHARINGS {
            let got = got(queue, model, sharing)?.map(|kernels| kernels / (solo / 2.0));
            line += &format!(" {name} {}", got.map(|ratio| format!("{ratio:.2}")).join(" "));
            if sharing.is_some() {
                worst = worst.min(got[got.len() - 1]);
            }
        }
        eprintln!("{line}");
    }
    Ok(vec![("backlog_newcomer_ratio", worst)])
}

fn newcomer(program: &Program<'_>) -> Result<(), DriverError> {
    program.sleep_until(ALONE);
    saturate(program)
}

fn saturate(program: &Program<'_>) -> Result<(), DriverError> {
    while program.goes_on() {
        program.submit(SHORT, 0)?;
    }
    Ok(())
}

/// Returns the new tenant's kernels in each observed second.
fn got(queue: &Queue, model: Model, sharing: Sharing) -> Result<[f64; WATCHED as usize]> {
    let fill = |program: &Program<'_>| {
        while program.goes_on() {
            (0..queue.streams)
                .try_for_each(|stream| program.submit(Work::full(queue.length), stream))?;
        }
        Ok(())
    };
    let tenants = [Tenant::new(1, &fill), Tenant::new(1, &newcomer)];
    let instants: Vec<Nanos> = (0..=WATCHED).map(|second| ALONE + seconds(second)).collect();
    let seen = between(model, sharing, &tenants, &instants)?;
    let kernels = |second: usize| seen[second][1].kernels as f64 / as_seconds(seconds(1));
    Ok(std::array::from_fn(kernels))
}
