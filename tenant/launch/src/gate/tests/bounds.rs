//! The bound of work in flight, and the cost of keeping it.

use super::*;

#[test]
fn most_launches_in_a_turn_take_the_fast_path() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        saturate(role, program, us(20), BEGIN + ms(200));
        let launches = 200_000 / 20;
        assert!(program.fast.get() > launches * 8 / 10, "{} of {launches}", program.fast.get());
    });
    harness.gpu(|gpu| {
        let count = |wanted: fn(&Command) -> bool| gpu.log.iter().filter(|did| wanted(did)).count();
        let launches = count(|did| matches!(did, Command::Launch { .. }));
        let markers = count(|did| matches!(did, Command::Record(_)));
        assert!(launches > 9_500, "{launches}");
        assert!(markers < 1_400, "one for each 150 us at most: {markers}");
    });
}

/// Cost of a saturating thread in its turn, for each millisecond of GPU time. It sleeps until a
/// predicted time without polling; a marker is a record and a write, and is queried once.
#[test]
fn saturating_thread_sleeps_and_marks_seldom() {
    for (cost, late) in [(60, 0), (60, 60), (20, 0), (20, 60), (7, 30)] {
        let harness = Harness::new(1);
        harness.gpu(|gpu| gpu.late = us(late));
        let open = AtomicU32::new(0);
        let gate = Gate::new(&harness.regions[0], SLOT, &open);
        harness.run(&[&|role| yours(ms(1_000_000))(role), &|role| {
            role.sleep(us(100));
            saturate(role, &Program::new(&gate, role.platform(0)), us(cost), BEGIN + ms(200));
        }]);
        harness.gpu(|gpu| {
            let each = |wanted: fn(&Command) -> bool| {
                gpu.log.iter().filter(|did| wanted(did)).count() as f64 / 200.0
            };
            let sleeps = each(|did| *did == Command::Sleep);
            let (records, writes) = (
                each(|did| matches!(did, Command::Record(_))),
                each(|did| matches!(did, Command::Write(_))),
            );
            let queries = each(|did| *did == Command::Query);
            let ran = gpu.ran[&0];
            let message = format!(
                "{cost} us, {late} us late: {sleeps} sleeps, {records} records, {writes} writes, \
                 {queries} queries per ms; ran {ran}"
            );
            assert!(sleeps < 4.0, "{message}");
            // The first one also queries whether the stream has run dry, since no launch has waited
            // yet. So does every eighth.
            assert!(
                records < 2.0 && writes <= records && queries <= records * 9.0 / 8.0 + 0.05,
                "{message}"
            );
            assert!(ran > ms(199), "the GPU runs dry: {message}");
        });
    }
}

#[test]
fn throttled_launch_proceeds_after_its_timeout() {
    // A kernel that waits for a later one, and another, and another.
    alone(yours(ms(1_000_000)), |role, program| {
        for _ in 0..5 {
            program.launch(1, STREAM, us(60));
        }
        program.launch(2, STREAM, Nanos::from_millis(3_600_000));
        for _ in 0..200 {
            let before = role.now();
            program.launch(1, STREAM, us(60));
            assert!(role.now() - before <= ms(2) + us(200), "{}", role.now() - before);
        }
        assert!(program.counted(Reason::BoundPassed) > 0);
    });
}

#[test]
fn several_streams_stay_within_the_bound() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        for number in 0..20_000_usize {
            program.launch(
                number % 3,
                Stream { handle: 0x100 + number % 8, per_thread: false },
                us(25),
            );
            role.sleep(us(3));
        }
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!(busy > ms(490), "{busy}");
    });
    let (most, ran) = harness.gpu(|gpu| (gpu.most[&0], gpu.ran[&0]));
    assert!(most < us(1_500), "{most}");
    assert_eq!(ran, us(25 * 20_000));
}

/// A container that may be preempted at any time keeps less queued, and still keeps the GPU busy.
#[test]
fn requested_bound_is_kept() {
    for (bound, most_allowed) in [(us(0), us(560)), (us(250), us(350))] {
        let script = |role: &Role<'_>| {
            role.harness.grantors[0].gpu(gpu()).bound.store(bound.0, Ordering::Relaxed);
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(1_000_000));
        };
        let harness =
            alone(script, |role, program| saturate(role, program, us(60), BEGIN + ms(500)));
        let (most, ran) = harness.gpu(|gpu| (gpu.most[&0], gpu.ran[&0]));
        println!("bound {bound}: at most {most} queued, {ran} run");
        assert!(most <= most_allowed, "{bound}: {most}");
        assert!(ran >= ms(485), "{bound}: {ran}");
    }
}

#[test]
fn thread_with_gaps_takes_the_slow_path_at_most_launches() {
    alone(yours(ms(1_000_000)), |role, program| {
        let mut longest = Nanos::ZERO;
        for round in 0..400 {
            program.launch(1, STREAM, us(20));
            program.driver.synchronize(STREAM);
            role.sleep(us(100));
            if round > 50 {
                let active = Nanos(program.cell().active.load(Ordering::Relaxed));
                longest = longest.max(role.now() - active);
            }
        }
        assert!(longest < us(800), "silent for {longest}: the monitor would take it for idle");
        // 8 ms, and the latency of each launch to the idle GPU.
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!((ms(8)..us(10_500)).contains(&busy), "{busy}");
    });
}

/// Launches longer than the bound have room only on an idle GPU, but it does not become idle.
#[test]
fn launches_longer_than_the_bound_keep_the_gpu_busy() {
    let cases: [&[u64]; 5] = [&[300], &[600], &[1_000], &[10, 600], &[5, 40, 900, 160, 12, 420]];
    for lengths in cases {
        let script = |role: &Role<'_>| {
            role.harness.grantors[0].gpu(gpu()).bound.store(us(250).0, Ordering::Relaxed);
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(1_000_000));
        };
        let harness = alone(script, |role, program| {
            let mut launches = lengths.iter().enumerate().cycle();
            for end in [ms(100), ms(500)] {
                // What is queued while the lengths are still unknown does not count.
                role.harness.gpu(|gpu| gpu.most.clear());
                while role.now() < BEGIN + end {
                    let (function, length) = launches.next().unwrap();
                    program.launch(function, STREAM, us(*length));
                }
            }
        });
        let (most, ran) = harness.gpu(|gpu| (gpu.most[&0], gpu.ran[&0]));
        println!("{lengths:?} us: at most {most} queued, {ran} run");
        // Two launches, and what the bound and a timer that is early add.
        let longest = us(2 * lengths.iter().max().unwrap());
        assert!(most <= longest + us(300), "{lengths:?}: {most}");
        assert!(ran >= ms(485), "{lengths:?}: {ran}");
    }
}
