//! High priority: at once, within its bound, and nothing while it is idle.

use cgpu_scheduler::policy::{Entitlement, Policy};

use crate::harness::{Forge, Harness, SECOND, utilisation};
use crate::process::{Load, MS};
use crate::{FAIR, Parts, SATURATING, STRICT, WEIGHTED, check_misreporting};

const ALL: [Policy; 7] = [
    Policy::Average { slots: 20 },
    FAIR,
    WEIGHTED,
    STRICT,
    Policy::Fixed { slots: 20 },
    Policy::Soft,
    Policy::Native,
];

const HIGH: Entitlement = Entitlement { high: true, ..Entitlement::of_weight(1) };

fn p99(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    times[times.len() * 99 / 100] as f64
}

/// 64 kernels of 100 us to a request, 30 ms apart.
#[test]
fn requests_of_high_priority_take_as_long_as_alone() {
    const REQUESTS: &[Load] = &[Load::bursts(100, 64, 30_000)];
    let mut alone = Harness::new(FAIR, &[(1, REQUESTS)]);
    alone.run_for(10 * SECOND);
    let alone = p99(alone.containers[0].processes[0].bursts.clone());
    for policy in ALL {
        // Close together, so that its allowance is used; far apart, so that it was silent for long.
        for gap in [&[Load::bursts(100, 64, 13_000)], &[Load::bursts(100, 64, 70_000)]] {
            let mut harness = Harness::new(policy, &[(1, gap), (1, SATURATING)]);
            harness.set_entitlement(0, HIGH);
            harness.run_for(SECOND);
            harness.containers[0].processes[0].bursts.clear();
            let ran = harness.run_and_measure(10 * SECOND);
            let bursts = &harness.containers[0].processes[0].bursts;
            let (mean, ratio) = (
                bursts.iter().sum::<u64>() as f64 / bursts.len() as f64,
                p99(bursts.clone()) / alone,
            );
            println!(
                "{policy:?}: p99 {ratio:.3}, mean {:.3} of alone, GPU used {:.1} %, {} steps/s",
                mean / alone,
                utilisation(&ran, 10 * SECOND),
                harness.steps / 11
            );
            assert!(ratio <= 1.10, "{policy:?}: {ratio:.3}");
        }
    }
}

/// High priority that saturates the GPU alone has used up its allowance: it saves nothing up
/// against a neighbour that wants the GPU briefly now and then.
#[test]
fn occasional_neighbour_is_not_kept_waiting() {
    for policy in [FAIR, WEIGHTED, Policy::Soft, Policy::Native] {
        let alone = {
            let mut harness = Harness::new(policy, &[(1, &[Load::bursts(1000, 1, 20_000)])]);
            harness.run_for(SECOND);
            harness.run_and_measure(10 * SECOND)[0]
        };
        let mut harness =
            Harness::new(policy, &[(1, SATURATING), (1, &[Load::bursts(1000, 1, 20_000)])]);
        harness.set_entitlement(0, HIGH);
        harness.run_for(SECOND);
        let ran = harness.run_and_measure(10 * SECOND);
        println!(
            "{policy:?}: {} of {alone} us, {:.1} % used",
            ran[1] / 1000,
            utilisation(&ran, 10 * SECOND)
        );
        assert!(ran[1] * 10 > alone * 9, "{policy:?}: {} of {alone}", ran[1]);
    }
}

/// On a busy machine a thread, or the monitor, sometimes wakes late. That delays one request and
/// nothing after it.
#[test]
fn late_wakeup_delays_one_request_only() {
    for policy in ALL {
        for lag in [MS, 3 * MS, 10 * MS] {
            let mut harness =
                Harness::new(policy, &[(1, &[Load::bursts(100, 64, 3000)]), (1, SATURATING)]);
            harness.set_entitlement(0, HIGH);
            harness.run_for(SECOND);
            harness.late_by = lag;
            harness.containers[0].processes[0].bursts.clear();
            harness.run_for(10 * SECOND);
            let bursts = &harness.containers[0].processes[0].bursts;
            let longest = bursts.iter().max().copied().unwrap_or(u64::MAX);
            println!(
                "{policy:?}, {} ms late: {} requests, longest {} us",
                lag / MS,
                bursts.len(),
                longest / 1000
            );
            assert!(longest < 10 * MS + 4 * lag, "{policy:?}, {lag} ns late: {longest} ns");
        }
    }
}

#[test]
fn high_priority_takes_no_more_than_its_ratio() {
    for policy in ALL {
        for ratio in [20, 80, 99] {
            let mut harness = Harness::new(policy, &[(1, SATURATING), (1, SATURATING)]);
            harness.scheduler.set_priority_ratio(ratio);
            harness.set_entitlement(0, HIGH);
            harness.run_for(SECOND);
            let parts = harness.run_and_measure(5 * SECOND).map_parts(5 * SECOND);
            println!("{policy:?}, {ratio} %: {parts:.2?}");
            // A larger ordinary share counts instead; with fixed shares, what no other container
            // may have is free.
            let fixed = policy.is_fixed();
            let bound = f64::from(if fixed { ratio.max(95) } else { ratio.max(50) });
            assert!(parts[0] <= bound + 1.0, "{policy:?}, {ratio} %: {parts:.2?}");
            assert!(parts[0] >= bound - 4.0, "{policy:?}, {ratio} %: {parts:.2?}");
            let least = 100.0 - bound - if fixed { 0.3 } else { 1.5 };
            assert!(parts[1] >= least - 0.5, "{policy:?}, {ratio} %: {parts:.2?}");
        }
    }
}

/// A container that cannot lose the GPU has more in flight, so that it does not run dry when its
/// thread wakes late. It has no more than others near the end of its allowance, beside another of
/// high priority, or if it does not report when its work ends.
#[test]
fn uncontested_holder_may_have_more_in_flight() {
    const REQUESTS: &[Load] = &[Load::bursts(100, 64, 10_000)];
    // Returns its bounds while it has the GPU, and in how many of the samples.
    let told = |loads: [&[Load]; 2], high: usize, forge: Option<Forge>| {
        let mut harness = Harness::new(FAIR, &[(1, loads[0]), (1, loads[1])]);
        (0..high).for_each(|number| harness.set_entitlement(number, HIGH));
        harness.containers[0].forge = forge;
        harness.run_for(SECOND);
        let mut all = std::collections::BTreeMap::<u64, u32>::new();
        for _ in 0..20_000 {
            harness.run_for(MS / 20);
            let container = &harness.containers[0];
            if container.page.turn & 0xff == 1 {
                *all.entry(container.page.bound / 1000).or_default() += 1;
            }
        }
        println!("{high} of high priority: {all:?}");
        all
    };
    let alone = told([REQUESTS, SATURATING], 1, None);
    assert!(
        alone.contains_key(&2000) && alone[&2000] * 10 > alone.values().sum::<u32>() * 9,
        "{alone:?}"
    );
    let saturating = told([SATURATING, SATURATING], 1, None);
    assert!(saturating.contains_key(&2000) && saturating.contains_key(&0), "{saturating:?}");
    let never = |all: &std::collections::BTreeMap<u64, u32>| {
        all.contains_key(&0) && !all.contains_key(&2000)
    };
    assert!(never(&told([REQUESTS, SATURATING], 2, None)));
    let silent = crate::FORGERIES
        .iter()
        .find(|(name, _)| *name == "nothing in flight")
        .expect("a forgery")
        .1;
    assert!(never(&told([REQUESTS, SATURATING], 1, Some(silent))));
}

#[test]
fn idle_high_priority_takes_nothing() {
    const IDLE: &[Load] = &[Load::saturating(60).during(u64::MAX - 1, u64::MAX)];
    for policy in [FAIR, WEIGHTED, STRICT, Policy::Soft, Policy::Native] {
        let mut harness = Harness::new(policy, &[(1, IDLE), (1, SATURATING)]);
        harness.set_entitlement(0, HIGH);
        harness.run_for(SECOND);
        let used = utilisation(&harness.run_and_measure(SECOND), SECOND);
        println!("{policy:?}: {used:.2} %");
        assert!(used >= 97.0, "{policy:?}: {used:.2} %");
    }
}

#[test]
fn high_priority_gives_no_turns_to_containers_that_overlap_under_mps() {
    for (policy, expected) in [(Policy::Native, true), (Policy::Mps, false)] {
        let mut harness = Harness::new(policy, &[(1, SATURATING), (1, SATURATING)]);
        harness.set_entitlement(0, HIGH);
        harness.run_for(SECOND);
        assert_eq!(harness.scheduler.turns() > 0, expected, "{policy:?}");
    }
}

#[test]
fn two_of_high_priority_share_it() {
    let mut harness = Harness::new(FAIR, &[(1, SATURATING), (1, SATURATING), (1, SATURATING)]);
    harness.set_entitlement(0, HIGH);
    harness.set_entitlement(1, HIGH);
    harness.run_for(SECOND);
    let parts = harness.run_and_measure(10 * SECOND).map_parts(10 * SECOND);
    println!("{parts:.2?}");
    assert!((parts[0] - parts[1]).abs() <= 2.0, "{parts:.2?}");
    assert!((75.0..=81.0).contains(&(parts[0] + parts[1])), "{parts:.2?}");
}

#[test]
fn priority_that_is_taken_away_is_gone_at_once() {
    let mut harness = Harness::new(FAIR, &[(1, SATURATING), (1, SATURATING)]);
    harness.set_entitlement(0, HIGH);
    harness.run_for(2 * SECOND);
    harness.set_entitlement(0, Entitlement::of_weight(1));
    harness.run_for(50 * MS);
    let parts = harness.run_and_measure(SECOND).map_parts(SECOND);
    assert!((parts[0] - parts[1]).abs() <= 3.0, "{parts:.2?}");
}

/// A misreporting container of high priority is bounded like any other, and loses it while it
/// misreports.
#[test]
fn misreporting_high_priority_tenant_stays_within_the_ratio() {
    for (name, forge) in crate::FORGERIES {
        let mut harness = Harness::new(FAIR, &[(1, SATURATING), (1, SATURATING)]);
        harness.set_entitlement(0, HIGH);
        check_misreporting(harness, (name, forge), 3 * SECOND, [100.0, 17.0]);
    }
}
