//! How fast the simulator itself is: `cargo run --release -p cgpu-sim --example speed`.
//!
//! The full model, with the modelled host time of calls set to nothing: what is measured is what the simulator needs
//! itself. Prints one flat JSON object:
//!
//! | key | what |
//! |---|---|
//! | `sim_launches_per_s` | launches of 1 us kernels by one process that never waits |
//! | `sim_launches_per_s_4` | the same of four processes at once, together |
//! | `sim_virtual_seconds_per_minute` | seconds of a card's virtual time per real minute, two tenants saturating it with 60 us kernels |

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cgpu_sim::clock::{Clock, VirtualClock};
use cgpu_sim::machine::{ContextId, Launch, StreamId, StreamKind};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Error, Kernel, Machine, Nanos, Settings};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How long each figure is measured.
const SPAN: Duration = Duration::from_secs(4);
/// Tells a child which segment to launch on.
const STATE: &str = "CGPU_SIM_SPEED_STATE";

fn settings(state: PathBuf, figures: Figures) -> Settings {
    Settings { state, cards: None, dilation_milli: 1_000, figures }
}

fn free_of_charge() -> Figures {
    Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() }
}

fn spin(micros: u64) -> Launch {
    Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))))
}

fn stream(machine: &Machine) -> Result<(ContextId, StreamId), Error> {
    let context = machine.create_context(0)?;
    Ok((context, machine.create_stream(context, StreamKind::NonBlocking)?))
}

/// Launches for a while; how many.
fn launches(state: &Path) -> Outcome<u64> {
    let machine = Machine::open(&settings(state.to_owned(), free_of_charge()))?;
    let (_, stream) = stream(&machine)?;
    let begun = Instant::now();
    let mut count = 0;
    while begun.elapsed() < SPAN {
        for _ in 0..256 {
            machine.launch(stream, spin(1))?;
        }
        count += 256;
    }
    Ok(count)
}

/// Launches of that many processes per second, together.
fn launches_per_second(state: &Path, processes: usize) -> Outcome<f64> {
    let start = || {
        let program = std::env::current_exe()?;
        Command::new(program).env(STATE, state).stdout(Stdio::piped()).spawn()
    };
    let children = (0..processes).map(|_| start()).collect::<Result<Vec<Child>, _>>()?;
    let mut total = 0;
    for child in children {
        let output = child.wait_with_output()?;
        total += String::from_utf8(output.stdout)?.trim().parse::<u32>()?;
    }
    Ok(f64::from(total) / SPAN.as_secs_f64())
}

/// Device seconds that pass per real minute.
fn virtual_seconds_per_minute(state: PathBuf) -> Outcome<f64> {
    let clock = VirtualClock::default();
    let settings = settings(state, Figures::default());
    let open = || Machine::open_with(&settings, Clock::Virtual(clock.clone()));
    let tenants = [open()?, open()?];
    let streams = [stream(&tenants[0])?.1, stream(&tenants[1])?.1];
    let begun = Instant::now();
    // Each fills its queue, then blocks until there is room, which moves the clock.
    while begun.elapsed() < SPAN {
        for (tenant, &stream) in tenants.iter().zip(&streams) {
            for _ in 0..256 {
                tenant.launch(stream, spin(60))?;
            }
        }
    }
    Ok(clock.now().duration().as_secs_f64() * 60.0 / begun.elapsed().as_secs_f64())
}

fn main() -> Outcome<()> {
    if let Some(state) = std::env::var_os(STATE) {
        println!("{}", launches(Path::new(&state))?);
        return Ok(());
    }
    let directory = std::env::temp_dir();
    let state = |name| directory.join(format!("cgpu-sim-speed-{}-{name}", std::process::id()));
    let [alone, four, virtually] = ["alone", "four", "virtual"].map(state);
    println!(
        "{{\"sim_launches_per_s\": {:.0}, \"sim_launches_per_s_4\": {:.0}, \"sim_virtual_seconds_per_minute\": {:.0}}}",
        launches_per_second(&alone, 1)?,
        launches_per_second(&four, 4)?,
        virtual_seconds_per_minute(virtually.clone())?,
    );
    for file in [alone, four, virtually] {
        std::fs::remove_file(file)?;
    }
    Ok(())
}
