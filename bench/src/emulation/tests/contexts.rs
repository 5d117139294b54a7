//! A program with several contexts beside a neighbour with one. The GPU gives slices to contexts.

use super::*;

const POLICIES: [Policy; 3] = [Policy::Preemptive, WEIGHTED, Policy::Soft];

/// A container's program has so many contexts.
#[derive(Clone, Copy, Debug)]
struct Load {
    contexts: u32,
    /// Each has a thread of its own. Otherwise one thread launches 30 kernels in each in turn.
    threads: bool,
    micros: u64,
}

/// Runs `neighbour` beside the load for four seconds.
fn beside(policy: Policy, load: Load, neighbour: &Script<'_>) -> Vec<Vec<Observed>> {
    let kernel = Kernel::new(1, [64, 1, 1], [256, 1, 1]);
    let time = Nanos::from_micros(load.micros);
    let around = |program: &Program<'_>| {
        let own = program.thread()..program.thread() + 1;
        while program.goes_on() {
            for number in if load.threads { own.clone() } else { 0..load.contexts } {
                program.set_context(number as usize);
                for _ in 0..30 {
                    program.launch(kernel, number, time)?;
                }
            }
        }
        Ok(())
    };
    let threads = if load.threads { load.contexts } else { 1 };
    let tenants = [
        Tenant { contexts: load.contexts, threads, ..Tenant::new(1, &around) },
        Tenant::new(1, neighbour),
    ];
    let length = Nanos::from_millis(4 * SECOND);
    let setup = Setup {
        figures: Figures::default(),
        policy: Some(policy),
        tenants: &tenants,
        seed: 1,
        length,
    };
    observe(&setup, &[Nanos::from_millis(SECOND), length - Nanos(1)]).unwrap()
}

/// Returns the GPU time of a neighbour that saturates the GPU, after the first second.
fn saturating(policy: Policy, load: Load) -> u64 {
    let seen = beside(policy, load, &|program| {
        let kernel = Kernel::new(1, [64, 1, 1], [256, 1, 1]);
        while program.goes_on() {
            program.launch(kernel, 0, Nanos::from_micros(60))?;
        }
        Ok(())
    });
    (seen[1][1].computed - seen[0][1].computed).0
}

/// Returns the mean time of a neighbour's requests after the first second: 30 ms of work, after a
/// rest of 200 ms.
fn request(policy: Policy, load: Load) -> u64 {
    let times = Mutex::new(Vec::new());
    beside(policy, load, &|program| {
        let kernel = Kernel::new(1, [64, 1, 1], [256, 1, 1]);
        while program.goes_on() {
            let begin = program.now();
            for _ in 0..500 {
                program.launch(kernel, 0, Nanos::from_micros(60))?;
            }
            program.synchronize();
            if begin > Nanos::from_millis(SECOND) {
                times.lock().unwrap().push((program.now() - begin).0);
            }
            program.sleep_until(program.now() + Nanos::from_millis(200));
        }
        Ok(())
    });
    let times = times.into_inner().unwrap();
    // The last one lasts until the end of the run.
    let whole = times.split_last().unwrap().1;
    whole.iter().sum::<u64>() / whole.len() as u64
}

/// The cases of a test, and what is measured beside one context and beside several.
fn compare(micros: u64, measure: impl Fn(Policy, Load) -> u64, holds: impl Fn(u64, u64) -> bool) {
    for (policy, threads) in POLICIES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let [one, several] =
            [1, 16].map(|contexts| measure(policy, Load { contexts, threads, micros }));
        println!("{policy:?}, {micros} us, {threads}: {one} ns beside one context, {several}");
        assert!(
            holds(one, several),
            "{policy:?}, {micros} us, a thread each: {threads}: {several} ns beside several \
             contexts, {one} beside one"
        );
    }
}

/// Without a bound on an open GPU, its queues were as long as the driver allows, and each context
/// had a slice for each of the neighbour's.
#[test]
fn program_with_several_contexts_delays_a_server_no_more_than_with_one() {
    for micros in [60, 5000, 20_000] {
        compare(micros, request, |one, several| several * 100 <= one * 130);
    }
}

/// This is without NVML's figures of processes, as on MIG.
#[test]
fn program_with_several_contexts_costs_a_busy_neighbour_at_most_a_twentieth() {
    for micros in [60, 20_000] {
        compare(micros, saturating, |one, several| several * 100 >= one * 95);
    }
}
