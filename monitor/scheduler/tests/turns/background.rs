//! Containers that compute occasionally: each gets at least its share of what it does alone, and at
//! least what native slicing gives it, without harm to others.

use cgpu_scheduler::policy::{Entitlement, Policy};

use crate::harness::{Forge, Harness, SECOND, share_error, utilisation};
use crate::process::{Load, MS};
use crate::{FAIR, Parts, SATURATING, WEIGHTED, check_misreporting};

const TIME: u64 = 4 * SECOND;

fn ran(policy: Policy, tenants: &[(u32, &[Load])]) -> Vec<u64> {
    let mut harness = Harness::new(policy, tenants);
    harness.run_for(SECOND);
    harness.run_and_measure(TIME)
}

/// Kernels of this length, so many to a burst, with the host's own work in between, beside so many
/// containers that saturate the GPU.
#[test]
fn gaps_cost_no_container_its_share() {
    // What a saturating container gets beside others of its kind.
    let among = |saturating: usize| ran(FAIR, &vec![(1, SATURATING); saturating + 1])[0] as f64;
    let least = [1, 2, 3].map(among);
    for (kernel_us, burst, gap_us, saturating) in [
        (100, 1, 20, 1),
        (100, 1, 200, 1),
        (100, 1, 1_000, 1),
        (100, 1, 5_000, 1),
        (500, 1, 1_000, 1),
        (60, 10, 3_000, 1),
        (100, 1, 5_000, 2),
        (100, 1, 1_000, 3),
    ] {
        let gappy = [Load::bursts(kernel_us, burst, gap_us)];
        let mut tenants: Vec<(u32, &[Load])> = vec![(1, &gappy)];
        tenants.extend(vec![(1, SATURATING); saturating]);
        let solo = ran(FAIR, &[(1, &gappy), (1, &[])])[0];
        let (turns, native) = (ran(FAIR, &tenants), ran(Policy::Native, &tenants));
        let part = |ran: u64| ran as f64 * 100.0 / solo as f64;
        let neighbours = &turns[1..];
        let neighbour = *neighbours.iter().min().unwrap() as f64 * 100.0 / least[saturating - 1];
        let apart = share_error(neighbours, &vec![1; saturating]);
        let name = format!("{burst} x {kernel_us} us, gaps of {gap_us} us, beside {saturating}");
        println!(
            "{name}: {:.1} % of solo (native {:.1} %); neighbours {neighbour:.1} % of \
             their share, apart {apart:.2} %; GPU used {:.1} % (native {:.1} %)",
            part(turns[0]),
            part(native[0]),
            utilisation(&turns, TIME),
            utilisation(&native, TIME),
        );
        let set = 100.0 / (saturating as f64 + 1.0);
        assert!(part(turns[0]) >= 0.95 * set, "{name}: {:.1} % of solo", part(turns[0]));
        assert!(turns[0] as f64 >= 0.98 * native[0] as f64, "{name}: native slicing gives more");
        assert!(neighbour >= 99.0 && apart <= 2.0, "{name}: {neighbour:.1} %, apart {apart:.2} %");
    }
}

/// Weights are kept beside a background tenant, both as reported and as run.
#[test]
fn background_tenant_leaves_weights_unchanged() {
    const SPARSE: &[Load] = &[Load::bursts(100, 1, 2_000)];
    let mut harness = Harness::new(WEIGHTED, &[(2, SPARSE), (3, SATURATING), (1, SATURATING)]);
    harness.run_for(SECOND);
    let ran = harness.run_and_measure(2 * TIME);
    println!("{:.2?}", ran.map_parts(2 * TIME));
    assert!(share_error(&ran[1..], &[3, 1]) <= 1.0, "{ran:?}");
    assert!(utilisation(&ran[1..], 2 * TIME) >= 67.0, "{ran:?}");
    let charged = harness.share(0).account.charged.0 as f64;
    let all = harness.ran()[0] as f64;
    assert!((charged / all - 1.0).abs() <= 0.1, "charged {charged}, ran {all}");
}

/// Many short kernels and then a long gap: beside others every kernel would wait for a slice of
/// theirs, so the container has turns.
#[test]
fn short_gaps_among_long_ones_are_better_off_in_turns() {
    let both = [Load::bursts(100, 12, 0).during(0, u64::MAX), Load::bursts(100, 1, 30)];
    let solo = ran(FAIR, &[(1, &both), (1, &[])])[0];
    let turns = ran(FAIR, &[(1, &both), (1, SATURATING)]);
    println!(
        "{:.1} % of solo, neighbour {:.1} %",
        turns[0] as f64 * 100.0 / solo as f64,
        utilisation(&turns[1..], TIME)
    );
    assert!(turns[0] as f64 >= 0.95 * 0.5 * solo as f64);
    // The gate requests seven tenths of the 2 ms that it may have in flight, and a grant ends
    // between two such pieces: at least 48 in small pieces, 47.6 in these.
    assert!(utilisation(&turns[1..], TIME) >= 47.0);
}

/// Saturates the GPU, and reports that it computes a little every two milliseconds.
const MODEST: Forge = |report, _, now| {
    (report.busy, report.spent, report.last) =
        (report.busy / 20, report.spent / 20, now.saturating_sub(2 * MS));
    (report.active, report.inflight, report.ends) = (now, 0, 0);
};

/// The same, and it never reports its turn.
const DEAF: Forge = |report, random, now| {
    MODEST(report, random, now);
    report.turn = 0;
};

#[test]
fn fake_background_tenant_gains_no_share() {
    for (name, forge) in [("modest", MODEST), ("deaf", DEAF)] {
        let harness = Harness::new(FAIR, &[(1, SATURATING), (1, SATURATING)]);
        // As much as by the GPU's own slicing: beside others its gate charges what its kernels cost
        // alone.
        check_misreporting(harness, (name, forge), 2 * TIME, [50.5, 45.0]);
    }
}

#[test]
fn high_priority_turn_has_no_background_tenants() {
    const REQUESTS: &[Load] = &[Load::bursts(100, 64, 13_000)];
    const SPARSE: &[Load] = &[Load::bursts(100, 1, 1_000)];
    let slow = |tenants: &[(u32, &[Load])]| {
        let mut harness = Harness::new(FAIR, tenants);
        harness.set_entitlement(0, Entitlement { high: true, ..Entitlement::of_weight(1) });
        harness.run_for(SECOND);
        harness.containers[0].processes[0].bursts.clear();
        harness.run_for(TIME);
        let mut bursts = harness.containers[0].processes[0].bursts.clone();
        bursts.sort_unstable();
        bursts[bursts.len() * 99 / 100] as f64
    };
    let (alone, beside) =
        (slow(&[(1, REQUESTS)]), slow(&[(1, REQUESTS), (1, SPARSE), (1, SATURATING)]));
    println!("{:.3} of alone", beside / alone);
    assert!(beside <= 1.10 * alone, "{:.3}", beside / alone);
}

/// It never waits for its work, so its queue fills while the other one's slice runs.
#[test]
fn host_bound_program_does_as_much_as_by_native_slicing() {
    for policy in [FAIR, Policy::Soft] {
        for host_us in [26, 33, 44] {
            let eager = [Load::host_bound(20, host_us)];
            let tenants: [(u32, &[Load]); 2] = [(1, &eager), (1, SATURATING)];
            let (turns, native) = (ran(policy, &tenants), ran(Policy::Native, &tenants));
            let kept = |at: usize| turns[at] as f64 / native[at] as f64;
            println!("{policy:?}, 20 of {host_us} us: {:.3}, neighbour {:.3}", kept(0), kept(1));
            assert!(kept(0) >= 0.98 && kept(1) >= 0.98, "{policy:?} {host_us}: {turns:?}");
        }
    }
}

/// Inference beside training: requests of several processes, each of which rests between them.
#[test]
fn requests_of_several_processes_take_no_longer_than_by_native_slicing() {
    const SERVERS: &[Load] = &[Load::bursts(60, 32, 20_000); 4];
    for count in [2, 4] {
        let run = |policy| {
            let mut harness = Harness::new(policy, &[(1, &SERVERS[..count]), (1, SATURATING)]);
            harness.containers[1].processes[0].bounded = true;
            harness.run_for(SECOND);
            let servers = |harness: &mut Harness| -> Vec<u64> {
                let processes = &mut harness.containers[0].processes;
                processes.iter_mut().flat_map(|one| std::mem::take(&mut one.bursts)).collect()
            };
            servers(&mut harness);
            let parts = harness.run_and_measure(TIME).map_parts(TIME);
            let times = servers(&mut harness);
            (times.iter().sum::<u64>() as f64 / times.len() as f64 / MS as f64, parts)
        };
        for policy in [FAIR, Policy::Soft] {
            let ((mean, parts), (native, sliced)) = (run(policy), run(Policy::Native));
            println!(
                "{policy:?}, {count}: {mean:.2} ms {parts:.1?}, native {native:.2} {sliced:.1?}"
            );
            assert!(mean <= native, "{policy:?}, {count}: {mean:.2} ms, {native:.2}");
        }
    }
}

/// A server computes for 3.8 ms, waits for it with calls that its gate does not see, and rests for
/// 5 ms. The GPU gives slices to contexts, so beside turns of many processes it has few.
#[test]
fn server_keeps_its_share_beside_a_container_of_many_processes() {
    const SERVER: &[Load] = &[Load::bursts(60, 64, 5_000)];
    for (weights, kernel_us) in [([3, 1], 60), ([3, 1], 1_000), ([1, 1], 60), ([1, 1], 3_000)] {
        let beside = |policy, processes| {
            let neighbour = vec![Load::saturating(kernel_us); processes];
            let tenants: [(u32, &[Load]); 2] = [(weights[0], &neighbour), (weights[1], SERVER)];
            let mut harness = Harness::new(policy, &tenants);
            let all = harness.containers.iter_mut().flat_map(|one| &mut one.processes);
            all.for_each(|process| process.bounded = true);
            harness.run_for(SECOND);
            harness.run_and_measure(TIME).map_parts(TIME)[1]
        };
        let (one, four) = (beside(WEIGHTED, 1), beside(WEIGHTED, 4));
        let native = beside(Policy::Native, 4);
        println!("{weights:?} {kernel_us} us: {one:.1}, {four:.1}; native {native:.1}");
        assert!(four >= 0.75 * one && four > native, "{weights:?} {kernel_us}: {one:.1} {four:.1}");
    }
}
