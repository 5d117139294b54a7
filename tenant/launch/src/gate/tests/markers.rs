//! Measurement by markers, and without them where no marker may be placed.

use super::*;

#[test]
fn work_behind_a_long_kernel_is_not_counted_as_run() {
    alone(yours(ms(100)), |role, program| {
        let length = ms(5);
        // So that its length is known.
        for _ in 0..4 {
            program.launch(1, STREAM, length);
            role.sleep(length);
        }
        role.sleep(length);
        let start = role.now();
        program.launch(1, STREAM, length);
        program.launch(1, STREAM, length);
        role.sleep(length);
        // The second one has just begun.
        program.launch(1, STREAM, length);
        let ends = Nanos(program.cell().ends.load(Ordering::Relaxed));
        assert!(
            ends >= start + ms(14),
            "three of 5 ms end {} us after the first began",
            (ends - start).0 / 1000
        );
        assert_eq!(program.counted(Reason::Unmarked), 0);
    });
}

#[test]
fn capturing_stream_gets_no_markers_and_no_queries() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        saturate(role, program, us(60), BEGIN + ms(10));
        role.harness.gpu(|gpu| {
            gpu.capturing = true;
            gpu.log.clear();
        });
        saturate(role, program, us(60), BEGIN + ms(30));
        assert!(program.counted(Reason::Capturing) > 0);
    });
    assert!(harness.gpu(|gpu| gpu.log.iter().all(|did| matches!(did, Command::Launch { .. }))));
}

#[test]
fn markers_are_never_placed_between_programmatic_launches() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        for chain in 0..300 {
            program.launch(1, STREAM, us(30));
            for _ in 0..chain % 7 {
                role.sleep(us(5));
                program.launch_as(2, STREAM, us(30), true);
            }
            role.sleep(us(100));
        }
    });
    harness.gpu(|gpu| {
        // A first chain may be interrupted: its kernel was unknown.
        let first = gpu
            .log
            .iter()
            .position(|did| matches!(did, Command::Launch { programmatic: true, .. }));
        let rest = &gpu.log[first.expect("a chain")..];
        let between = rest.windows(2).filter(|pair| {
            !matches!(pair[0], Command::Launch { .. } | Command::Query)
                && matches!(pair[1], Command::Launch { programmatic: true, .. })
        });
        assert_eq!(between.count(), 0);
        assert!(
            rest.iter().any(|did| matches!(did, Command::Record(_))),
            "between chains there are markers"
        );
    });
}

#[test]
fn programmatic_stream_is_measured_where_it_runs_dry() {
    for cost in [5, 60, 700] {
        alone(yours(ms(1_000_000)), |role, program| {
            let end = BEGIN + ms(200);
            while role.now() < end {
                program.launch_as(1, STREAM, us(cost), true);
                role.sleep(us(3));
            }
            let (ran, most) = role.harness.gpu(|gpu| (gpu.ran[&0], gpu.most[&0]));
            assert!(ran > ms(160), "{cost} us: the GPU stood idle, {ran}");
            let learned = program.gate.device(gpu()).account.lock().gpu_time.expect(Kernel::new(
                1,
                [1; 3],
                [32, 1, 1],
            ));
            assert!(
                (cost * 9 / 10..cost + 20).contains(&(u64::from(learned.cost) / 1000)),
                "{cost} us: {learned:?}"
            );
            assert!(most < ms(80), "{cost} us: {most}");
            let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
            assert!(busy > ms(150) && busy < ms(210), "{cost} us: {busy}");
        });
    }
}

#[test]
fn markers_go_on_the_stream_that_was_just_used() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        for number in 0..3000_usize {
            program.launch(
                number % 3,
                Stream { handle: 0x100 + number % 8, per_thread: number % 2 == 0 },
                us(25),
            );
            role.sleep(us(4));
        }
    });
    harness.gpu(|gpu| {
        let mut next = None;
        for did in gpu.log.iter().rev() {
            match did {
                Command::Launch { stream, .. } => next = Some(*stream),
                // Before the launch on the same stream, or right behind it.
                Command::Record(stream) | Command::Write(stream)
                    if next.is_some_and(|next| next != *stream) =>
                {
                    let position = gpu
                        .log
                        .iter()
                        .rposition(|other| core::ptr::eq(other, did))
                        .expect("it is there");
                    let before = gpu.log[..position].iter().rev().find_map(|did| match did {
                        Command::Launch { stream, .. } => Some(*stream),
                        _ => None,
                    });
                    assert_eq!(before, Some(*stream));
                }
                _ => {}
            }
        }
    });
}

#[test]
fn events_are_queried_without_memory_writes() {
    let harness = Harness::new(1);
    harness.gpu(|gpu| gpu.cannot_write = true);
    let open = AtomicU32::new(0);
    let gate = Gate::new(&harness.regions[0], SLOT, &open);
    harness.run(&[
        &|role| set_turn(role.harness, 0, 1, TurnState::Yours, ms(1_000_000)),
        &|role| {
            role.sleep(us(100));
            let program = Program::new(&gate, role.platform(0));
            saturate(role, &program, us(60), BEGIN + ms(100));
            let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
            assert!((ms(97)..ms(101)).contains(&busy), "{busy}");
        },
    ]);
}

#[test]
fn launches_proceed_when_the_driver_refuses_markers() {
    let harness = alone(yours(ms(1_000_000)), |role, program| {
        saturate(role, program, us(20), BEGIN + ms(10));
        role.harness.gpu(|gpu| gpu.refuses = true);
        let before = role.harness.gpu(|gpu| gpu.ran[&0]);
        saturate(role, program, us(20), BEGIN + ms(310));
        let ran = role.harness.gpu(|gpu| gpu.ran[&0]) - before;
        assert!(ran > ms(290), "{ran}");
        assert!((1..=5).contains(&program.counted(Reason::MarkerFailed)));
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!(busy > ms(280), "charged by estimate: {busy}");
    });
    drop(harness);
}

#[test]
fn work_queued_in_the_open_is_measured_as_backlog() {
    let script = |role: &Role<'_>| {
        set_turn(role.harness, 0, 1, TurnState::Open, Nanos::ZERO);
        role.sleep(ms(2));
        set_turn(role.harness, 0, 2, TurnState::Wait, Nanos::ZERO);
        role.sleep(us(300));
        let cell = role.harness.regions[0].cell(gpu(), SLOT);
        assert!(cell.inflight.load(Ordering::Relaxed) > 0);
        assert!(Nanos(cell.ends.load(Ordering::Relaxed)) > role.now() + us(200));
        for _ in 0..100 {
            role.sleep(ms(1));
            role.harness.grantors[0].beat();
        }
        let busy = Nanos(cell.busy.load(Ordering::Relaxed));
        assert!((ms(57)..ms(66)).contains(&busy), "{busy}");
        assert_eq!(cell.inflight.load(Ordering::Relaxed), 0);
        set_turn(role.harness, 0, 3, TurnState::Open, Nanos::ZERO);
    };
    alone(script, |role, program| {
        // 60 ms of work at once.
        (0..1000).for_each(|_| program.launch(1, STREAM, us(60)));
        role.sleep(ms(2));
        program.launch(1, STREAM, us(60));
    });
}

#[test]
fn destroyed_context_forgets_its_events() {
    alone(yours(ms(1_000_000)), |role, program| {
        saturate(role, program, us(60), BEGIN + ms(20));
        program.gate.forget_context(CONTEXT);
        assert_eq!(program.gate.device(gpu()).account.lock().gpu_time.work().launches, 0);
        saturate(role, program, us(60), BEGIN + ms(40));
        let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
        assert!((ms(38)..ms(42)).contains(&busy), "{busy}");
    });
}
