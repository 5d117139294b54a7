//! When launches proceed in turns, and what is reported of them.

use super::*;

#[test]
fn shares_follow_the_turns() {
    for (slices, cost) in [([6, 12], 60), ([6, 12], 7), ([6, 6], 400), ([18, 2], 60)] {
        let harness = Harness::new(2);
        let end = BEGIN + ms(1500);
        let opens: [AtomicU32; 2] = Default::default();
        let gates = gates(&harness, &opens);
        let report = Mutex::new(monitor::Report::default());
        let actor = |number: usize| {
            let gate = &gates[number];
            move |role: &Role<'_>| {
                role.sleep(us(10));
                saturate(role, &Program::new(gate, role.platform(number)), us(cost), end);
            }
        };
        let lengths = slices.map(ms);
        harness.run(&[
            &|role| *report.lock().expect("a report") = run_turns(role, &lengths, end),
            &actor(0),
            &actor(1),
        ]);
        let report = report.into_inner().expect("a report");
        let (ran, most) = harness.gpu(|gpu| (gpu.ran.clone(), gpu.most.clone()));
        let total = (ran[&0] + ran[&1]).0 as f64;
        let set = slices[0] as f64 / (slices[0] + slices[1]) as f64;
        let share = ran[&0].0 as f64 / total;
        assert!(
            (share / set - 1.0).abs() < 0.02,
            "{slices:?} {cost} us: {share} of {set}, {ran:?}"
        );
        assert!(total > 0.96 * 1.5e9, "{slices:?} {cost} us: used {total}");
        for tenant in 0..2 {
            // What was reported is what ran, except for the start and what is in flight at the end.
            let error = report.busy[tenant].0.abs_diff(ran[&tenant].0);
            assert!(
                error < 8_000_000,
                "{slices:?} {cost} us: {tenant} reported {:?} of {ran:?}",
                report.busy
            );
            // The bound, a launch, and the other tenant's last launch.
            assert!(
                most[&tenant] < us(500 + 3 * cost.max(20) + 500),
                "{slices:?} {cost} us: {most:?}"
            );
        }
    }
}

/// NTP slews the host's clock by up to 8 %. Measurements do not change, and published times are in
/// the clock that the monitor reads.
#[test]
fn slewed_host_clock_changes_no_length() {
    for millionths in [80_000, -80_000] {
        let harness = Harness::new(2);
        let end = BEGIN + ms(2500);
        harness.gpu(|gpu| gpu.slew = (BEGIN + ms(500), BEGIN + ms(1500), millionths));
        let opens: [AtomicU32; 2] = Default::default();
        let gates = gates(&harness, &opens);
        let clamped = AtomicU32::new(0);
        let actor = |number: usize| {
            let (gate, clamped) = (&gates[number], &clamped);
            move |role: &Role<'_>| {
                role.sleep(us(10));
                let program = Program::new(gate, role.platform(number));
                for admission in 1..=25 {
                    saturate(role, &program, us(60), BEGIN + ms(100 * admission));
                    let cell = program.cell();
                    let last = Nanos(cell.last.load(Ordering::Relaxed));
                    let (now, old) = (role.monotonic(), ms(60));
                    assert!(last <= now && last + old > now, "{last} was published at {now}");
                }
                let odd = [Reason::LengthClamped, Reason::ClockReanchored];
                let counted = odd.into_iter().map(|reason| program.counted(reason)).sum();
                clamped.fetch_add(counted, Ordering::Relaxed);
            }
        };
        let report = Mutex::new(monitor::Report::default());
        harness.run(&[
            &|role| *report.lock().expect("a report") = run_turns(role, &[ms(6), ms(12)], end),
            &actor(0),
            &actor(1),
        ]);
        let report = report.into_inner().expect("a report");
        let ran = harness.gpu(|gpu| gpu.ran.clone());
        for tenant in 0..2 {
            let error = report.busy[tenant].0.abs_diff(ran[&tenant].0);
            assert!(error < 8_000_000, "{tenant} reported {:?} of {ran:?}", report.busy);
        }
        assert_eq!(clamped.into_inner(), 0);
    }
}

#[test]
fn launch_outside_the_turn_is_held() {
    let script = |role: &Role<'_>| {
        let mut epoch = 1;
        for _ in 0..20 {
            set_turn(role.harness, 0, epoch, TurnState::Wait, Nanos::ZERO);
            role.sleep(us(200));
            let before = role.harness.gpu(|gpu| gpu.log.len());
            role.sleep(ms(9));
            role.harness.grantors[0].beat();
            let after = role.harness.gpu(|gpu| {
                gpu.log[before..].iter().filter(|did| matches!(did, Command::Launch { .. })).count()
            });
            assert_eq!(after, 0);
            set_turn(role.harness, 0, epoch + 1, TurnState::Yours, ms(5));
            role.sleep(ms(5));
            epoch += 2;
        }
        set_turn(role.harness, 0, epoch, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |role, program| {
        while role.now() < BEGIN + ms(270) {
            program.launch(1, STREAM, us(60));
            role.sleep(us(3));
        }
        assert_eq!(program.cell().waiting.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn gpu_time_budget_is_exceeded_by_one_launch_at_most() {
    let harness = alone(
        |role| {
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(3));
            for _ in 0..100 {
                role.sleep(ms(1));
                role.harness.grantors[0].beat();
            }
            let ran = role.harness.gpu(|gpu| gpu.ran[&0]);
            assert!((ms(3) - us(150)..ms(3) + us(400)).contains(&ran), "{ran}");
            set_turn(role.harness, 0, 2, TurnState::Open, Nanos::ZERO);
        },
        |role, program| {
            // Known kernels: three measured launches before the turn counts.
            saturate(role, program, us(100), BEGIN + ms(50));
        },
    );
    assert!(harness.notifications() >= 1);
}

/// A host function waits for later launches, on the same stream and on another one, beside a
/// neighbour. The GPU's idle time is neither a kernel's cost nor charged to the turn, so all of it
/// is launched in one turn.
#[test]
fn waiting_for_the_host_uses_up_no_turn() {
    const OTHER: Stream = Stream { handle: 0x20, per_thread: false };
    let harness = Harness::new(2);
    let opens: [AtomicU32; 2] = Default::default();
    let gates = gates(&harness, &opens);
    let end = BEGIN + ms(3000);
    let (rounds, longest) = (Mutex::new(0), Mutex::new(Nanos::ZERO));
    harness.run(&[
        &|role| {
            run_turns(role, &[ms(6), ms(6)], end);
        },
        &|role| {
            role.sleep(us(100));
            let program = Program::new(&gates[0], role.platform(0));
            // The first one waits before its second launch is measured.
            while role.now() < end - ms(100) {
                let begun = role.now();
                program.launch(1, STREAM, us(100));
                program.driver.host(STREAM, ms(40));
                for stream in [STREAM, OTHER] {
                    (0..5).for_each(|_| program.launch(1, stream, us(100)));
                }
                program.driver.synchronize(OTHER);
                let mut longest = longest.lock().expect("no panic");
                *longest = (*longest).max(role.now() - begun);
                program.driver.synchronize(STREAM);
                *rounds.lock().expect("no panic") += 1;
            }
            let cost = gates[0]
                .device(gpu())
                .account
                .lock()
                .gpu_time
                .expect(Kernel::new(1, [1; 3], [32, 1, 1]))
                .cost;
            assert!((80_000..130_000).contains(&cost), "100 us are taken for {cost} ns");
        },
        &|role| {
            role.sleep(us(100));
            saturate(role, &Program::new(&gates[1], role.platform(1)), us(60), end);
        },
    ]);
    let (rounds, longest) = (rounds.into_inner().expect("it"), longest.into_inner().expect("it"));
    println!("{rounds} rounds, launched within {} us", longest.0 / 1000);
    // 40 ms each, with half of the GPU.
    assert!(rounds >= 50, "{rounds} rounds");
    assert!(longest <= ms(40), "{} us", longest.0 / 1000);
}

#[test]
fn end_of_a_turns_work_is_reported_while_its_threads_are_held() {
    let script = |role: &Role<'_>| {
        set_turn(role.harness, 0, 1, TurnState::Yours, ms(100));
        role.sleep(ms(20));
        set_turn(role.harness, 0, 2, TurnState::Wait, Nanos::ZERO);
        let grantor = &role.harness.grantors[0];
        grantor.set_notify_slot(gpu(), Some(SLOT));
        role.sleep(ms(2));
        let cell = role.harness.regions[0].cell(gpu(), SLOT);
        assert_eq!(cell.inflight.load(Ordering::Relaxed), 0);
        assert_eq!(cell.waiting.load(Ordering::Relaxed), 1);
        let (ran, busy) =
            (role.harness.gpu(|gpu| gpu.ran[&0]), Nanos(cell.busy.load(Ordering::Relaxed)));
        assert!(ran.0.abs_diff(busy.0) < 300_000, "ran {ran}, reported {busy}");
        assert_eq!(role.harness.notifications(), 2, "held, drained");
        set_turn(role.harness, 0, 3, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |role, program| saturate(role, program, us(60), BEGIN + ms(30)));
}

#[test]
fn process_that_missed_its_turn_notifies_the_monitor() {
    let script = |role: &Role<'_>| {
        role.harness.grantors[0].set_notify_slot(gpu(), None);
        set_turn(role.harness, 0, 1, TurnState::Wait, Nanos::ZERO);
        role.sleep(ms(5));
        assert_eq!(role.harness.notifications(), 1, "it notified");
        // A thread that wakes late finds this.
        for epoch in [3, 5] {
            set_turn(role.harness, 0, epoch, TurnState::Wait, Nanos::ZERO);
            role.sleep(ms(5));
            assert_eq!(role.harness.notifications(), u32::try_from(epoch.div_ceil(2)).unwrap());
        }
        let cell = role.harness.regions[0].cell(gpu(), SLOT);
        assert!(
            Nanos(cell.active.load(Ordering::Relaxed)) < BEGIN + ms(1),
            "it has launched nothing since"
        );
        // Changes of the gate word other than a turn do not concern it.
        role.harness.grantors[0].wake_gate();
        role.sleep(ms(5));
        assert_eq!(role.harness.notifications(), 3);
        set_turn(role.harness, 0, 6, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |_, program| program.launch(1, STREAM, us(60)));
}
