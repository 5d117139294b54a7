//! Measures the simulator's own cost: `cargo run --release -p cgpu-sim --example cost`.
//!
//! Prints nanoseconds per call on the real clock, with the modelled host time of calls set to zero.

use std::time::Instant;

use cgpu_shm::atomic::AtomicU64;
use cgpu_sim::machine::{Flight, Launch, Plan, Step, StreamKind, Width, Work};
use cgpu_sim::settings::Figures;
use cgpu_sim::{Bytes, Error, Kernel, Machine, Nanos, Settings};

/// Measures many calls, with a pause before each so that the GPU keeps up. Prints the median and
/// the 90th percentile.
fn measure(
    what: &str,
    calls: u32,
    pause: Nanos,
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut spans = Vec::new();
    for _ in 0..calls {
        let resume = Instant::now() + pause.duration();
        while Instant::now() < resume {
            std::hint::spin_loop();
        }
        let begun = Instant::now();
        call()?;
        spans.push(begun.elapsed().as_nanos());
    }
    spans.sort_unstable();
    let at = |percent| spans[(spans.len() - 1) * percent / 100];
    println!("{what:<44} {:>7} ns, p90 {:>7} ns", at(50), at(90));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let state = std::env::temp_dir().join(format!("cgpu-sim-cost-{}", std::process::id()));
    let figures =
        Figures { launch_cost: Nanos::ZERO, call_cost: Nanos::ZERO, ..Figures::default() };
    let machine = Machine::open(&Settings {
        state: state.clone(),
        gpus: None,
        time_scale_milli: 1_000,
        figures,
    })?;
    let context = machine.create_context(0)?;
    let stream = machine.create_stream(context, StreamKind::NonBlocking)?;
    let event = machine.create_event(context, true)?;
    let kernel = |micros| Launch::whole(Kernel::Spin(Some(Nanos::from_micros(micros))));
    let word = AtomicU64::new(0);
    let address = core::ptr::from_ref(&word).expose_provenance() as u64;

    measure("launch of a 2 us kernel, GPU idle", 20_000, Nanos::from_micros(15), || {
        machine.launch(stream, kernel(2)).map(drop)
    })?;
    measure("launch of 60 us kernels, 1 to come", 10_000, Nanos::from_micros(59), || {
        machine.launch(stream, kernel(60)).map(drop)
    })?;
    machine.synchronize_stream(stream)?;
    measure("launch into a queue", 900, Nanos::ZERO, || {
        machine.launch(stream, kernel(60)).map(drop)
    })?;
    measure("query of a busy stream", 1_000, Nanos::ZERO, || {
        machine.is_stream_done(stream).map(drop)
    })?;
    machine.synchronize_stream(stream)?;
    measure("event record, GPU idle", 20_000, Nanos::from_micros(15), || {
        machine.record_event(event, stream).map(drop)
    })?;
    measure("memory write, GPU idle", 10_000, Nanos::from_micros(60), || {
        // SAFETY: the word outlives the wait for the stream below.
        unsafe { machine.write_value(stream, address, Width::Eight, 1) }.map(drop)
    })?;
    machine.synchronize_stream(stream)?;
    for nodes in [1_u32, 10, 1_000] {
        let after = |n: u32| n.checked_sub(1).into_iter().map(|before| before as usize).collect();
        let plan = Plan::new((0..nodes).map(|n| Step { context, after: after(n) }).collect());
        let works = vec![Work::Kernel(kernel(2)); nodes as usize];
        let mut flight = Flight::default();
        let pause = Nanos::from_micros(u64::from(2 * nodes) + 20);
        measure(
            &format!("launch of a graph of {nodes} kernels in a row"),
            20_000 / (nodes + 9),
            pause,
            || {
                // SAFETY: no step uses host memory.
                unsafe { machine.launch_plan(stream, &plan, &works, &mut flight) }.map(drop)
            },
        )?;
        machine.synchronize_stream(stream)?;
    }
    for size in [512, 2 << 20] {
        measure(&format!("allocation and free of {size} bytes"), 20_000, Nanos::ZERO, || {
            machine.free(machine.allocate(context, Bytes(size))?)
        })?;
    }
    let live: Vec<u64> =
        (0..1_000_000).filter_map(|_| machine.allocate(context, Bytes(512)).ok()).collect();
    measure(
        &format!("the same of 512 bytes with {} live", live.len()),
        20_000,
        Nanos::ZERO,
        || machine.free(machine.allocate(context, Bytes(512))?),
    )?;
    drop(machine);
    std::fs::remove_file(state)?;
    Ok(())
}
