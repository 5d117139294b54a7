//! How fast the simulator itself goes: `cargo run --release -p cgpu-sim --example throughput`.
//!
//! Launches of 1 us kernels per second, from one process and from four on one card, on the real clock with the modelled
//! host time of calls set to nothing; and simulated seconds of two saturating tenants with 60 us kernels per real minute,
//! on the virtual clock.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{Launch, StreamKind};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Error, Kernel, Machine, Nanos, Settings};

const SPAN: Duration = Duration::from_secs(2);
/// Launches between two looks at the clock.
const BATCH: u64 = 1_000;

fn settings(state: &str) -> Settings {
    let figures = Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() };
    Settings {
        figures,
        ..Settings::read(|name| (name == "CGPU_SIM_STATE").then(|| state.to_owned())).unwrap()
    }
}

fn spin(micros: u64) -> Launch {
    Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))))
}

/// Launches per second of one process, its last wait included.
fn rate(state: &str) -> Result<u64, Error> {
    let machine = Machine::open(&settings(state))?;
    let context = machine.create_context(0)?;
    let stream = machine.create_stream(context, StreamKind::NonBlocking)?;
    let begun = Instant::now();
    let mut launches = 0;
    while begun.elapsed() < SPAN {
        for _ in 0..BATCH {
            machine.launch(stream, spin(1))?;
        }
        launches += BATCH;
    }
    machine.synchronize_stream(stream)?;
    Ok(launches * 1_000 / u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Simulated seconds per real minute.
fn dilation(state: &str) -> Result<u64, Error> {
    let clock = VirtualClock::default();
    let machine = Machine::open_with(&settings(state), Clock::Virtual(clock.clone()))?;
    let streams = [(); 2].map(|()| {
        let context = machine.create_context(0)?;
        machine.create_stream(context, StreamKind::NonBlocking)
    });
    let [first, second] = streams;
    let streams = [first?, second?];
    let begun = Instant::now();
    // Both queues are kept between half and whole: the clock moves by half a queue's time, alone or shared.
    let step = Nanos::from_micros(60 * 500);
    for stream in streams {
        for _ in 0..1_000 {
            machine.launch(stream, spin(60))?;
        }
    }
    let mut tails = streams.map(|stream| machine.tail(stream));
    while begun.elapsed() < 2 * SPAN {
        clock.set(clock.now() + step);
        for (stream, tail) in streams.into_iter().zip(&mut tails) {
            // As many as were done meanwhile: what blocks would move the clock.
            while machine.is_done(cgpu_sim::machine::Ticket { number: tail.clone()?.number - 900, stream })? {
                for _ in 0..50 {
                    *tail = Ok(machine.launch(stream, spin(60))?);
                }
            }
        }
    }
    let spent = machine.engine_time(0)?;
    let (simulated, real) = (clock.now().0, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    assert!((spent.busy + spent.switching).0 > simulated / 10 * 9, "the card was idle: {spent:?}");
    Ok(simulated * 60 / real)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(state) = std::env::args().nth(1) {
        println!("{}", rate(&state)?);
        return Ok(());
    }
    let folder = std::env::temp_dir();
    let state = |what: &str| {
        folder.join(format!("cgpu-sim-{what}-{}", std::process::id())).to_string_lossy().into_owned()
    };
    for processes in [1, 4] {
        let state = state("rate");
        let children: Vec<_> = (0..processes)
            .map(|_| Command::new(std::env::current_exe()?).arg(&state).stdout(Stdio::piped()).spawn())
            .collect::<Result<_, _>>()?;
        let mut total = 0;
        for child in children {
            let output = child.wait_with_output()?;
            total += String::from_utf8(output.stdout)?.trim().parse::<u64>()?;
        }
        println!("launches of 1 us kernels, {processes} processes: {total:>9}/s");
        std::fs::remove_file(state)?;
    }
    let state = state("virtual");
    println!("two tenants of 60 us kernels, virtual clock: {:>9} s/min", dilation(&state)?);
    std::fs::remove_file(state)?;
    Ok(())
}
