//! That the emulation is one: shares as the policy says, the GPU's own slicing without a monitor, and
//! the same run from the same seed.

use std::sync::Mutex;

use cgpu_monitor::controller::policy::Policy;

use super::*;

const WEIGHTED: Policy = Policy::Weighted { conserving: true };
const SECOND: u64 = 1_000;

/// What each of two programs ran in the second half of two seconds.
fn ran(policy: Option<Policy>, weights: [u32; 2], seed: u64) -> [u64; 2] {
    let sums = [const { Mutex::new(0) }; 2];
    let saturate = |program: &Program<'_>, sum: &Mutex<u64>| {
        let mut before = None;
        while program.goes_on() {
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(60))?;
            if before.is_none() && program.now() >= Nanos::from_millis(SECOND) {
                before = Some(program.ran());
            }
        }
        *sum.lock().unwrap() = (program.ran() - before.unwrap()).0;
        Ok(())
    };
    let [first, second] = &sums;
    let tenants = [
        Tenant { weight: weights[0], script: &|program| saturate(program, first) },
        Tenant { weight: weights[1], script: &|program| saturate(program, second) },
    ];
    let length = Nanos::from_millis(2 * SECOND);
    run(&Scene { figures: Figures::default(), policy, tenants: &tenants, seed, length }).unwrap();
    sums.map(|sum| sum.into_inner().unwrap())
}

#[test]
fn shares_are_the_weights_and_a_run_repeats() {
    let [one, three] = ran(Some(WEIGHTED), [1, 3], 7);
    let share = three as f64 / (one + three) as f64;
    println!("{one} and {three} ns");
    assert!((0.73..0.77).contains(&share) && one + three > 960_000_000, "{one} and {three}");
    assert_eq!(ran(Some(WEIGHTED), [1, 3], 7), [one, three]);
    assert_ne!(ran(Some(WEIGHTED), [1, 3], 8), [one, three]);
}

#[test]
fn without_a_monitor_the_gpu_takes_turns_and_loses_a_tenth() {
    let [one, other] = ran(None, [1, 3], 7);
    println!("{one} and {other} ns");
    assert!(one.abs_diff(other) < 20_000_000, "{one} and {other}");
    assert!((880_000_000..930_000_000).contains(&(one + other)), "{one} and {other}");
}

/// How often a program with gaps ran its kernel of 100 us in two seconds beside a saturating one.
fn visits(policy: Option<Policy>, gap: Nanos) -> u64 {
    let count = Mutex::new(0);
    let with_gaps = |program: &Program<'_>| {
        while program.goes_on() {
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(100))?;
            program.synchronize();
            *count.lock().unwrap() += u64::from(program.now() > Nanos::from_millis(SECOND));
            program.sleep_until(program.now() + gap);
        }
        Ok(())
    };
    let saturate = |program: &Program<'_>| {
        while program.goes_on() {
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(60))?;
        }
        Ok(())
    };
    let tenants = [Tenant { weight: 1, script: &with_gaps }, Tenant { weight: 1, script: &saturate }];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Scene { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length }).unwrap();
    count.into_inner().unwrap()
}

/// Also where the gap is about as long as the GPU's slice, and a slice that begins anew costs a whole one.
#[test]
fn a_program_with_gaps_does_as_well_as_by_the_gpus_own_slicing() {
    for micros in [20, 200, 500, 900, 1000, 1050, 1100, 1200, 2000, 5000] {
        let gap = Nanos::from_micros(micros);
        let (native, ours) = (visits(None, gap), visits(Some(Policy::Preemptive), gap));
        println!("gaps of {micros} us: {ours} visits, {native} by the GPU's own slicing");
        assert!(ours * 100 >= native * 99, "gaps of {micros} us: {ours} visits of {native}");
    }
}

/// GPU time of a program that launches a hundred kernels of 20 us, then pauses without waiting for them, over two
/// seconds beside a saturating one.
fn ran_with_pauses(policy: Option<Policy>, pause: Nanos) -> u64 {
    let sum = Mutex::new(0);
    let with_pauses = |program: &Program<'_>| {
        let mut before = None;
        while program.goes_on() {
            for _ in 0..100 {
                program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(20))?;
            }
            if before.is_none() && program.now() > Nanos::from_millis(SECOND) {
                before = Some(program.ran());
            }
            program.sleep_until(program.now() + pause);
        }
        *sum.lock().unwrap() = (program.ran() - before.unwrap()).0;
        Ok(())
    };
    let saturate = |program: &Program<'_>| {
        while program.goes_on() {
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(60))?;
        }
        Ok(())
    };
    let tenants = [Tenant { weight: 1, script: &with_pauses }, Tenant { weight: 1, script: &saturate }];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Scene { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length }).unwrap();
    sum.into_inner().unwrap()
}

/// A background tenant may run ahead of its own pauses, as it would without us.
#[test]
fn a_program_that_runs_ahead_of_its_pauses_does_as_well_as_by_the_gpus_own_slicing() {
    for millis in [5, 10] {
        let pause = Nanos::from_millis(millis);
        let (native, ours) = (ran_with_pauses(None, pause), ran_with_pauses(Some(Policy::Preemptive), pause));
        println!("pauses of {millis} ms: {ours} ns, {native} by the GPU's own slicing");
        assert!(ours * 100 >= native * 97, "pauses of {millis} ms: {ours} of {native} ns");
    }
}

/// Kernels of 20 us that a newcomer completes in its second and third second beside a program that queued all it could while it was
/// alone: kernels of so many microseconds on some streams.
fn newcomer(policy: Option<Policy>, micros: u64, streams: u32) -> u64 {
    let ran = Mutex::new(0);
    let queue = |program: &Program<'_>| {
        for stream in (0..streams).cycle() {
            if !program.goes_on() {
                break;
            }
            program.launch(Kernel::new(1, [64, 1, 1], [256, 1, 1]), stream, Nanos::from_micros(micros))?;
        }
        Ok(())
    };
    let come = |program: &Program<'_>| {
        program.sleep_until(Nanos::from_millis(SECOND));
        let mut before = None;
        while program.goes_on() {
            program.launch(Kernel::new(2, [64, 1, 1], [256, 1, 1]), 0, Nanos::from_micros(20))?;
            if before.is_none() && program.now() >= Nanos::from_millis(2 * SECOND) {
                before = Some(program.ran());
            }
        }
        *ran.lock().unwrap() = (program.ran() - before.unwrap()).0;
        Ok(())
    };
    let tenants = [Tenant { weight: 1, script: &queue }, Tenant { weight: 1, script: &come }];
    let length = Nanos::from_millis(4 * SECOND);
    run(&Scene { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length }).unwrap();
    ran.into_inner().unwrap() / 20_000
}

#[test]
fn newcomer_beside_a_queue_filled_while_alone_has_its_share() {
    for (micros, streams) in [(100, 1), (1_000, 4), (5_000, 1), (5_000, 4)] {
        let (native, ours) = (newcomer(None, micros, streams), newcomer(Some(WEIGHTED), micros, streams));
        println!(
            "beside {streams} streams of {micros} us: {ours} kernels, {native} by the GPU's own slicing"
        );
        // Half of two seconds are 50,000.
        assert!(ours >= 47_500, "beside {streams} streams of {micros} us: {ours} kernels, {native} natively");
    }
}

/// What two saturating programs ran in two seconds, of which the first launches programmatically or not.
fn ran_programmatically(programmatic: bool, micros: u64) -> [u64; 2] {
    let sums = [const { Mutex::new(0) }; 2];
    let saturate = |program: &Program<'_>, sum: &Mutex<u64>, programmatic: bool, micros: u64| {
        let mut before = None;
        while program.goes_on() {
            let kernel = Kernel::new(1, [64, 1, 1], [256, 1, 1]);
            program.launch_as(kernel, 0, Nanos::from_micros(micros), programmatic)?;
            if before.is_none() && program.now() >= Nanos::from_millis(SECOND) {
                before = Some(program.ran());
            }
        }
        *sum.lock().unwrap() = (program.ran() - before.unwrap()).0;
        Ok(())
    };
    let [first, second] = &sums;
    let tenants = [
        Tenant { weight: 1, script: &|program| saturate(program, first, programmatic, micros) },
        Tenant { weight: 1, script: &|program| saturate(program, second, false, 60) },
    ];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Scene { figures: Figures::default(), policy: Some(WEIGHTED), tenants: &tenants, seed: 1, length })
        .unwrap();
    sums.map(|sum| sum.into_inner().unwrap())
}

/// Nothing stands between launches that overlap, so their stream is let run dry every 4 ms to see where it is.
#[test]
fn programmatic_launches_cost_a_few_percent() {
    for micros in [5, 20, 60, 300] {
        let (plain, programmatic) = (ran_programmatically(false, micros), ran_programmatically(true, micros));
        println!("kernels of {micros} us: {programmatic:?} ns programmatically, {plain:?} ns otherwise");
        assert!(programmatic[0] * 100 >= plain[0] * 94, "{programmatic:?} of {plain:?} ns");
        assert!(programmatic[1] * 100 >= plain[1] * 99, "{programmatic:?} of {plain:?} ns");
    }
}
