//! Tests of the emulation: shares follow the policy, the GPU slices time without a monitor, and a
//! run is reproducible.

use std::sync::Mutex;

use cgpu_launch::gate::Kernel;
use cgpu_scheduler::policy::Policy;
use cgpu_shm::units::Bytes;

use super::*;

mod contexts;
mod device;

const WEIGHTED: Policy = Policy::Weighted { conserving: true };
const SECOND: u64 = 1_000;

/// Returns the GPU time of two programs in the second half of two seconds.
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
    let one = |program: &Program<'_>| saturate(program, first);
    let other = |program: &Program<'_>| saturate(program, second);
    let tenants = [Tenant::new(weights[0], &one), Tenant::new(weights[1], &other)];
    let length = Nanos::from_millis(2 * SECOND);
    run(&Setup { figures: Figures::default(), policy, tenants: &tenants, seed, length }).unwrap();
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
fn native_slicing_shares_equally_and_loses_a_tenth() {
    let [one, other] = ran(None, [1, 3], 7);
    println!("{one} and {other} ns");
    assert!(one.abs_diff(other) < 20_000_000, "{one} and {other}");
    assert!((880_000_000..930_000_000).contains(&(one + other)), "{one} and {other}");
}

/// Returns how many kernels of 100 us a program with gaps ran in two seconds beside a saturating
/// one.
fn kernels_run(policy: Option<Policy>, gap: Nanos) -> u64 {
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
    let tenants = [Tenant::new(1, &with_gaps), Tenant::new(1, &saturate)];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Setup { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length })
        .unwrap();
    count.into_inner().unwrap()
}

/// Includes gaps as long as the GPU's slice, where a slice that begins again costs a whole one.
#[test]
fn program_with_gaps_does_as_well_as_by_native_slicing() {
    for micros in [20, 200, 500, 900, 1000, 1050, 1100, 1200, 2000, 5000] {
        let gap = Nanos::from_micros(micros);
        let (native, ours) = (kernels_run(None, gap), kernels_run(Some(Policy::Preemptive), gap));
        println!("gaps of {micros} us: {ours} kernels, {native} by the GPU's own slicing");
        assert!(ours * 100 >= native * 99, "gaps of {micros} us: {ours} kernels of {native}");
    }
}

/// Returns the GPU time, over two seconds beside a saturating program, of one that launches a
/// hundred kernels of 20 us, then pauses without waiting for them.
fn ran_with_pauses(policy: Option<Policy>, pause: Nanos) -> u64 {
    let sum = Mutex::new(0);
    let with_pauses = |program: &Program<'_>| {
        let mut before = None;
        while program.goes_on() {
            for _ in 0..100 {
                program.launch(
                    Kernel::new(1, [64, 1, 1], [256, 1, 1]),
                    0,
                    Nanos::from_micros(20),
                )?;
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
    let tenants = [Tenant::new(1, &with_pauses), Tenant::new(1, &saturate)];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Setup { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length })
        .unwrap();
    sum.into_inner().unwrap()
}

/// A background tenant can queue work beyond its pauses, as without cgpu.
#[test]
fn program_that_runs_ahead_of_its_pauses_does_as_well_as_by_native_slicing() {
    for millis in [5, 10] {
        let pause = Nanos::from_millis(millis);
        let (native, ours) =
            (ran_with_pauses(None, pause), ran_with_pauses(Some(Policy::Preemptive), pause));
        println!("pauses of {millis} ms: {ours} ns, {native} by the GPU's own slicing");
        assert!(ours * 100 >= native * 97, "pauses of {millis} ms: {ours} of {native} ns");
    }
}

/// Returns the GPU time in two seconds, and the gate's report of it, of a program that launches a
/// kernel of 20 us every 33 us and waits after a hundred, beside a saturating one.
fn eager(policy: Option<Policy>) -> (u64, u64) {
    let sums = Mutex::new((0, 0));
    let launch = |program: &Program<'_>| {
        let mut before = None;
        while program.goes_on() {
            for _ in 0..100 {
                program.submit(Work::full(Nanos::from_micros(20)), 0)?;
                program.compute(Nanos(30_500));
            }
            program.synchronize();
            if before.is_none() && program.now() > Nanos::from_millis(SECOND) {
                before = Some((program.ran(), program.reported()));
            }
        }
        let (ran, reported) = before.unwrap();
        *sums.lock().unwrap() = ((program.ran() - ran).0, (program.reported() - reported).0);
        Ok(())
    };
    let saturate = |program: &Program<'_>| {
        while program.goes_on() {
            program.submit(Work::full(Nanos::from_micros(60)), 0)?;
        }
        Ok(())
    };
    let tenants = [Tenant::new(1, &launch), Tenant::new(1, &saturate)];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Setup { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length })
        .unwrap();
    sums.into_inner().unwrap()
}

#[test]
fn host_bound_program_does_as_well_as_by_native_slicing() {
    let ((native, _), (ours, reported)) = (eager(None), eager(Some(Policy::Preemptive)));
    println!("{ours} ns, {native} by the GPU's own slicing, {reported} reported");
    assert!(ours * 100 >= native * 97, "{ours} of {native} ns");
}

#[test]
fn gaps_of_the_host_are_not_charged() {
    let (ran, reported) = eager(Some(Policy::Weighted { conserving: false }));
    println!("{ran} ns, {reported} reported");
    // A launch that is measured alone includes its way from the host between the two events: 3 us
    // of 23.
    assert!(reported.abs_diff(ran) * 5 <= ran, "{reported} reported of {ran} ns");
}

/// Returns the kernels of 20 us that a new tenant completes in its second and third second beside a
/// program that queued all it could while alone: kernels of `micros` us on `streams` streams.
fn newcomer(policy: Option<Policy>, micros: u64, streams: u32) -> u64 {
    let ran = Mutex::new(0);
    let queue = |program: &Program<'_>| {
        for stream in (0..streams).cycle() {
            if !program.goes_on() {
                break;
            }
            program.launch(
                Kernel::new(1, [64, 1, 1], [256, 1, 1]),
                stream,
                Nanos::from_micros(micros),
            )?;
        }
        Ok(())
    };
    let newcomer = |program: &Program<'_>| {
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
    let tenants = [Tenant::new(1, &queue), Tenant::new(1, &newcomer)];
    let length = Nanos::from_millis(4 * SECOND);
    run(&Setup { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length })
        .unwrap();
    ran.into_inner().unwrap() / 20_000
}

#[test]
fn newcomer_beside_a_queue_filled_while_alone_has_its_share() {
    for (micros, streams) in [(100, 1), (1_000, 4), (5_000, 1), (5_000, 4)] {
        let (native, ours) =
            (newcomer(None, micros, streams), newcomer(Some(WEIGHTED), micros, streams));
        println!(
            "beside {streams} streams of {micros} us: {ours} kernels, {native} by the GPU's own \
             slicing"
        );
        // Half of two seconds is 50,000 kernels.
        assert!(
            ours >= 47_500,
            "beside {streams} streams of {micros} us: {ours} kernels, {native} natively"
        );
    }
}

/// Returns the GPU time of two saturating programs in two seconds. The first one launches with
/// programmatic serialization or without.
fn ran_programmatically(programmatic: bool, micros: u64) -> [u64; 2] {
    let sums = [const { Mutex::new(0) }; 2];
    let saturate = |program: &Program<'_>, sum: &Mutex<u64>, programmatic: bool, micros: u64| {
        let mut before = None;
        while program.goes_on() {
            let kernel = Kernel::new(1, [64, 1, 1], [256, 1, 1]);
            program.launch_as(kernel, 0, Work::full(Nanos::from_micros(micros)), programmatic)?;
            if before.is_none() && program.now() >= Nanos::from_millis(SECOND) {
                before = Some(program.ran());
            }
        }
        *sum.lock().unwrap() = (program.ran() - before.unwrap()).0;
        Ok(())
    };
    let [first, second] = &sums;
    let one = |program: &Program<'_>| saturate(program, first, programmatic, micros);
    let other = |program: &Program<'_>| saturate(program, second, false, 60);
    let tenants = [Tenant::new(1, &one), Tenant::new(1, &other)];
    let length = Nanos::from_millis(3 * SECOND);
    run(&Setup {
        figures: Figures::default(),
        policy: Some(WEIGHTED),
        tenants: &tenants,
        seed: 1,
        length,
    })
    .unwrap();
    sums.map(|sum| sum.into_inner().unwrap())
}

/// Overlapping launches have no markers between them, so their stream is drained every 4 ms to
/// measure it.
#[test]
fn programmatic_launches_cost_a_few_percent() {
    for micros in [5, 20, 60, 300] {
        let (plain, programmatic) =
            (ran_programmatically(false, micros), ran_programmatically(true, micros));
        println!(
            "kernels of {micros} us: {programmatic:?} ns programmatically, {plain:?} ns otherwise"
        );
        assert!(programmatic[0] * 100 >= plain[0] * 94, "{programmatic:?} of {plain:?} ns");
        assert!(programmatic[1] * 100 >= plain[1] * 99, "{programmatic:?} of {plain:?} ns");
    }
}

const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// The monitor admits a container when its program starts. Until then the other one is alone.
#[test]
fn tenant_that_starts_later_takes_no_gpu_time_before() {
    let saturate = |program: &Program<'_>| {
        while program.goes_on() {
            program.submit(Work::full(us(60)), 0)?;
        }
        Ok(())
    };
    let at = Nanos::from_millis;
    let newcomer = |program: &Program<'_>| {
        program.sleep_until(at(SECOND));
        saturate(program)
    };
    let tenants = [Tenant::new(1, &saturate), Tenant::new(1, &newcomer)];
    let policy = Some(Policy::Weighted { conserving: false });
    let length = at(3 * SECOND);
    let setup = Setup { figures: Figures::default(), policy, tenants: &tenants, seed: 1, length };
    let observed = observe(&setup, &[at(SECOND), at(2 * SECOND), length]).unwrap();
    let alone = observed[0][0].computed;
    assert!(alone > at(990) && observed[0][1].computed == Nanos::ZERO, "{observed:?}");
    let beside =
        [0, 1].map(|tenant| (observed[2][tenant].computed - observed[1][tenant].computed).0);
    assert!(
        beside.iter().all(|computed| (480_000_000..500_000_000).contains(computed)),
        "{observed:?}"
    );
    // Reports match the GPU's count.
    for tenant in [0, 1] {
        let reported = (observed[2][tenant].reported - observed[1][tenant].reported).0;
        assert!(reported.abs_diff(beside[tenant]) < 10_000_000, "{observed:?}");
    }
}
