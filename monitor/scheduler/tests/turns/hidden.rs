//! Containers that hide their work: long kernels of which they report nothing.

use cgpu_scheduler::policy::Policy;

use crate::harness::{Forge, Harness, SECOND};
use crate::process::Load;
use crate::{FAIR, Parts, SATURATING, WEIGHTED};

/// What a container reports of its work, which its gate launches in its turns.
const HIDING: [(&str, Forge); 4] = [
    ("nothing in flight", |report, _, now| {
        (report.inflight, report.ends, report.active) = (0, 0, now);
    }),
    ("nothing in flight, a hundredth used", |report, _, now| {
        (report.inflight, report.ends, report.active) = (0, 0, now);
        (report.busy, report.spent) = (report.busy / 100, report.spent / 100);
    }),
    ("silent", |report, _, _| {
        (report.inflight, report.ends, report.busy, report.spent) = (0, 0, 0, 0);
        (report.active, report.last) = (0, 0);
    }),
    ("impossible", |report, _, now| (report.active, report.ends) = (u64::MAX, now)),
];

/// Returns each container's part of the time, where the first one reports like this.
fn parts(policy: Policy, weights: &[u32], kernel_us: u64, forge: Option<Forge>) -> Vec<f64> {
    let long = [Load::saturating(kernel_us).during(SECOND, u64::MAX)];
    let tenants: Vec<(u32, &[Load])> = weights
        .iter()
        .enumerate()
        .map(|(number, &weight)| (weight, if number == 0 { &long[..] } else { SATURATING }))
        .collect();
    let mut harness = Harness::new(policy, &tenants);
    harness.containers[0].forge = forge;
    for container in &mut harness.containers {
        container.processes[0].bounded = true;
    }
    harness.run_for(4 * SECOND);
    harness.run_and_measure(30 * SECOND).map_parts(30 * SECOND)
}

/// Its kernels run whenever its gate is open. Each time the GPU was contended again they counted as
/// a queue from before, of which all but some was forgiven: it had 38 % where 20 were set.
#[test]
fn container_that_hides_that_it_waits_gains_no_share() {
    let never_waits: Forge = |report, _, _| report.waiting = 0;
    let parts = parts(WEIGHTED, &[1, 4], 90_000, Some(never_waits));
    println!("{parts:.1?}");
    assert!(parts[0] <= 22.0 && parts[1] >= 72.0, "{parts:.1?}");
}

/// What it costs is what the GPU's own slices do: a tenth for switches.
#[test]
fn hidden_work_costs_its_neighbours_at_most_a_tenth() {
    for (policy, weights) in
        [(FAIR, &[1, 1][..]), (FAIR, &[1, 1, 1]), (WEIGHTED, &[1, 4]), (WEIGHTED, &[3, 1])]
    {
        for kernel_us in [3_000, 12_000, 25_000, 90_000] {
            let honest = parts(policy, weights, kernel_us, None);
            for (name, forge) in HIDING {
                let hidden = parts(policy, weights, kernel_us, Some(forge));
                let kept = honest[1..].iter().zip(&hidden[1..]).map(|(honest, kept)| kept / honest);
                let kept = kept.fold(9.0, f64::min);
                let case = format!("{weights:?} {kernel_us} us {name}");
                println!("{case}: {honest:.1?}, then {hidden:.1?}: {kept:.3}");
                assert!(kept >= 0.9, "{case}: a neighbour keeps {kept:.3} of its work");
            }
        }
    }
}

/// A kernel beside the turn of a container that computes nothing is charged half, and uses all.
#[test]
fn container_is_not_taken_to_hide_work_by_what_others_report() {
    let claims_turns: Forge = |report, _, now| {
        (report.inflight, report.ends, report.active, report.waiting) = (0, 0, now, 1);
    };
    let claims_work: Forge = |report, _, now| {
        (report.inflight, report.ends) = (SECOND, now + SECOND);
        (report.active, report.waiting) = (now, 1);
    };
    let idle = [Load::saturating(60).during(u64::MAX - 1, u64::MAX)];
    for kernel_us in [60, 20_000, 110_000, 200_000] {
        for forges in [&[claims_turns][..], &[claims_work], &[claims_turns, claims_work]] {
            let long = [Load::saturating(kernel_us)];
            let mut tenants: Vec<(u32, &[Load])> = vec![(1, &long)];
            tenants.extend(forges.iter().map(|_| (1, &idle[..])));
            let mut harness = Harness::new(FAIR, &tenants);
            harness.containers[0].processes[0].bounded = true;
            for (container, forge) in harness.containers[1..].iter_mut().zip(forges) {
                container.forge = Some(*forge);
            }
            harness.run_for(4 * SECOND);
            let before = harness.ran();
            harness.run_for(20 * SECOND);
            let part = (harness.ran()[0] - before[0]) as f64 / (20 * SECOND) as f64;
            let entitled = 1.0 / (forges.len() + 1) as f64;
            let case = format!("{kernel_us} us beside {}", forges.len());
            println!("{case}: {part:.3} of {entitled:.3}");
            assert!(!harness.share(0).hides_work, "{case}");
            assert!(part >= 0.9 * entitled, "{case}: {part:.3}");
        }
    }
}
