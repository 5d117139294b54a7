//! A crash before every single store: the next process finds the state before or after, never
//! between.

use super::*;

#[test]
fn crash_during_enqueue_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    fixture.crash_everywhere(|timeline| {
        timeline
            .launch(fixture.streams[1], Kernel::named("lognormal_60us_0.5"), fixture.now)
            .unwrap();
    });
    fixture.crash_everywhere(|timeline| {
        timeline
            .enqueue(fixture.streams[3], Command::Mark(fixture.events[1]), 5, fixture.now)
            .unwrap();
    });
}

#[test]
fn crash_during_barrier_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    let legacy = fixture.timeline(|timeline| timeline.legacy_stream(fixture.contexts[0]));
    fixture.crash_everywhere(|timeline| {
        timeline.launch(legacy, Kernel::named("spin_5us"), fixture.now).unwrap();
        timeline.launch(fixture.streams[0], Kernel::named("spin_5us"), fixture.now).unwrap();
    });
}

#[test]
fn crash_during_advance_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    for step in 1..=6 {
        let now = fixture.now + Nanos(step * 1_100_000);
        fixture.crash_everywhere(|timeline| {
            timeline.advance(now);
        });
    }
}

/// Concurrent kernels: some with all they need, one with what is left, one interrupted for a more
/// urgent one.
#[test]
fn crash_with_concurrent_kernels_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    let part = |tenths| Footprint::of_blocks(tenths, 10, 128);
    let kernel = Kernel::named("spin_90us");
    let urgent = fixture.timeline(|timeline| {
        timeline.create_stream_with_priority(fixture.contexts[0], false, -2).unwrap()
    });
    let now = fixture.now + Nanos::from_millis(20);
    fixture.timeline(|timeline| {
        timeline.advance(now);
        for (stream, tenths) in [(0, 3), (1, 25)] {
            timeline.launch_in(fixture.streams[stream], kernel, part(tenths), now).unwrap();
        }
        timeline.check().unwrap();
    });
    let soon = now + Nanos::from_micros(130);
    fixture.crash_everywhere(|timeline| {
        timeline.advance(soon);
        timeline.launch_in(urgent, kernel, part(5).cooperative(), soon).unwrap();
    });
    let later = soon + Nanos::from_micros(200);
    fixture.crash_everywhere(|timeline| {
        timeline.advance(later);
    });
    fixture.timeline(|timeline| timeline.launch_in(urgent, kernel, part(8), later)).unwrap();
    fixture.crash_everywhere(|timeline| timeline.destroy_context(fixture.contexts[0], later));
}

#[test]
fn crash_under_mps_leaves_the_state_before_or_after() {
    let figures = Figures { mps: 1, corun: 50_000, ..Figures::default() };
    let fixture = Fixture::on(Setup::with(figures), &[0, 0]);
    let now = fixture.now + Nanos::from_micros(500);
    fixture.crash_everywhere(|timeline| {
        timeline.advance(now);
    });
    fixture.crash_everywhere(|timeline| timeline.destroy_context(fixture.contexts[0], now));
}

#[test]
fn crash_during_forecast_leaves_no_trace() {
    let fixture = Fixture::new();
    let before = fixture.state();
    let tail = fixture.timeline(|timeline| timeline.tail(fixture.streams[0]));
    let mut store = 0;
    let forecast = |timeline: &mut Timeline<'_, Transaction<'_>>| {
        timeline.forecast(&[tail]);
    };
    while fixture.crashes(store, forecast) {
        assert!(fixture.state() == before, "store {store}");
        store += 5;
    }
    assert!(store > 50);
    assert!(fixture.state() == before, "a forecast that nothing disturbs");
}

#[test]
fn crash_during_creation_or_destruction_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    fixture.crash_everywhere(|timeline| {
        timeline.create_context(OWNER, 1).unwrap();
    });
    fixture.crash_everywhere(|timeline| {
        timeline.create_stream(fixture.contexts[1], true).unwrap();
    });
    fixture.crash_everywhere(|timeline| {
        timeline.create_event(fixture.contexts[1], true).unwrap();
    });
    fixture.crash_everywhere(|timeline| timeline.destroy_event(fixture.events[2]));
    fixture.crash_everywhere(|timeline| timeline.destroy_stream(fixture.streams[4]));
    fixture.crash_everywhere(|timeline| timeline.destroy_context(fixture.contexts[0], fixture.now));
}

#[test]
fn crash_during_naming_or_loading_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    fixture.crash_everywhere(|timeline| timeline.name_event(fixture.events[1]));
    fixture.crash_everywhere(|timeline| {
        timeline.load_code(fixture.contexts[0], Bytes(3 << 20)).unwrap()
    });
}

#[test]
fn crash_during_reserve_or_release_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    fixture.crash_everywhere(|timeline| {
        timeline.reserve(fixture.contexts[0], Bytes(4 << 20)).unwrap()
    });
    fixture.crash_everywhere(|timeline| timeline.release(fixture.contexts[0], Bytes(2 << 20)));
}

#[test]
fn crash_during_export_or_import_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    let (first, second, other) = (timeline::ExportId(1), timeline::ExportId(2), OWNER + 1);
    let serial = |export| fixture.timeline(|timeline| timeline.serial_of_export(export));
    fixture.crash_everywhere(|timeline| {
        assert_eq!(timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)), Ok(first));
    });
    fixture.crash_everywhere(|timeline| {
        assert_eq!(timeline.export_of(fixture.contexts[0], Bytes(2 << 20)), Ok(second));
        timeline.send_export(second);
    });
    for export in [first, second] {
        let serial = serial(export);
        fixture.crash_everywhere(|timeline| timeline.hold(other, export, serial).unwrap());
        fixture
            .crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(OWNER, export), Ok(false)));
        fixture
            .crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(other, export), Ok(true)));
    }
    // What a descriptor may keep still exists.
    assert_eq!(fixture.timeline(|timeline| timeline.orphaned(0)), Bytes(2 << 20));
    fixture.crash_everywhere(|timeline| timeline.hold(other, second, 2).unwrap());
    fixture.crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(other, second), Ok(true)));
    for lingering in fixture.timeline(|timeline| timeline.lingering()) {
        fixture.crash_everywhere(|timeline| timeline.end_export(lingering));
    }
    assert_eq!(fixture.timeline(|timeline| timeline.orphaned(0)), Bytes::ZERO);
    assert_eq!(serial(first) + serial(second), 0);
}

#[test]
fn crash_during_team_operation_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    let (team, memory, own, other) =
        (timeline::ExportId(1), timeline::ExportId(2), timeline::ExportId(3), OWNER + 1);
    let bindable = |export, serial, at| timeline::Bindable { export, serial, at };
    fixture.crash_everywhere(|timeline| {
        assert_eq!(timeline.create_team(OWNER, 2, Bytes(4 << 20)), Ok(team));
        timeline.send_export(team);
    });
    fixture.crash_everywhere(|timeline| {
        timeline.add_to_team(team, 0).unwrap();
        timeline.add_to_team(team, 1).unwrap();
    });
    fixture.timeline(|timeline| {
        timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)).unwrap()
    });
    fixture.timeline(|timeline| timeline.take_memory(other, 1, Bytes(2 << 20)).unwrap());
    fixture.crash_everywhere(|timeline| {
        assert_eq!(timeline.export_own(other, 1, Bytes(2 << 20)), Ok(own));
    });
    fixture.crash_everywhere(|timeline| {
        timeline.bind(OWNER, team, (0, 4 << 20), bindable(memory, 2, 0)).unwrap();
        timeline.bind(other, team, (2 << 20, 1 << 20), bindable(own, 3, 1 << 20)).unwrap();
    });
    fixture.crash_everywhere(|timeline| {
        timeline.bind(other, team, (0, 1 << 20), bindable(own, 3, 0)).unwrap();
        assert_eq!(timeline.drop_hold(other, own), Ok(false));
    });
    assert_eq!(fixture.timeline(|timeline| timeline.bound(team).len()), 3);
    fixture.crash_everywhere(|timeline| timeline.unbind(team, 1, (0, 1 << 20)).unwrap());
    fixture.crash_everywhere(|timeline| timeline.unbind_of(team, OWNER));
    fixture.timeline(|timeline| {
        timeline.bind(OWNER, team, (0, 4 << 20), bindable(memory, 2, 0)).unwrap()
    });
    // The death of the other process ends its bindings, and the memory with them. The creator's end
    // leaves the team to a descriptor.
    let now = fixture.timeline(|timeline| {
        timeline.attach(other, 2);
        timeline.now()
    });
    fixture.crash_everywhere(|timeline| timeline.detach(other, now));
    assert_eq!(
        fixture.timeline(|timeline| (timeline.bound(team).len(), timeline.serial_of_export(own))),
        (1, 3)
    );
    fixture.crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(OWNER, memory), Ok(false)));
    fixture.crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(OWNER, team), Ok(true)));
    assert_eq!(fixture.timeline(|timeline| timeline.bound(team).len()), 1);
    for lingering in fixture.timeline(|timeline| timeline.lingering()) {
        fixture.crash_everywhere(|timeline| timeline.end_export(lingering));
    }
    let [remaining] = fixture.timeline(|timeline| timeline.lingering())[..] else {
        panic!("the memory's file is left")
    };
    assert_eq!(
        (remaining.export, fixture.timeline(|timeline| timeline.team(team))),
        (memory, None)
    );
}

/// Refused operations leave nothing behind.
#[test]
fn invalid_team_operations_are_refused() {
    let fixture = Fixture::new();
    let before = fixture.state();
    let refused = |operation: &dyn Fn(&mut Timeline<'_, Transaction<'_>>) -> Result<(), Error>| {
        fixture.observer.transact(|timeline| operation(timeline)).unwrap_err()
    };
    for (gpus, room) in [(0, 1), (17, 1), (1, 0)] {
        refused(&|timeline| timeline.create_team(OWNER, gpus, Bytes(room)).map(|_| ()));
    }
    assert!(fixture.state() == before);
    let (team, memory) = fixture.timeline(|timeline| {
        let team = timeline.create_team(OWNER, 1, Bytes(8)).unwrap();
        (team, timeline.create_export(OWNER, 1, ExportKind::Memory, Bytes(8)).unwrap())
    });
    let bindable = timeline::Bindable { export: memory, serial: 2, at: 0 };
    let bind = |part, bindable| {
        move |timeline: &mut Timeline<'_, Transaction<'_>>| {
            timeline.bind(OWNER, team, part, bindable)
        }
    };
    assert_eq!(refused(&bind((0, 4), bindable)), Error::NoAllocation, "not complete");
    fixture.timeline(|timeline| timeline.add_to_team(team, 0).unwrap());
    assert_eq!(refused(&bind((0, 4), bindable)), Error::NoGpu);
    assert!(matches!(refused(&|timeline| timeline.add_to_team(team, 1)), Error::Invalid(_)));
    let itself = timeline::Bindable { export: team, serial: 1, at: 0 };
    assert!(matches!(refused(&bind((0, 4), itself)), Error::Invalid(_)));
    for (part, at) in [((0, 9), 0), ((8, 1), 0), ((0, 4), 5), ((u64::MAX, 2), 0), ((0, 0), 0)] {
        assert!(matches!(
            refused(&bind(part, timeline::Bindable { at, ..bindable })),
            Error::Invalid(_)
        ));
    }
    assert_eq!(refused(&|timeline| timeline.add_to_team(memory, 0)), Error::NoAllocation);
    fixture.timeline(|timeline| timeline.check()).unwrap();
}

#[test]
fn crash_during_semaphore_operation_leaves_the_state_before_or_after() {
    for counts in [false, true] {
        let fixture = Fixture::new();
        let export = timeline::ExportId(1);
        fixture.crash_everywhere(|timeline| {
            assert_eq!(timeline.create_semaphore(OWNER, counts), Ok(export));
            timeline.send_export(export);
        });
        let semaphore = SemaphoreId::new(export, 1);
        let mut now = fixture.now + Nanos::from_millis(20);
        let waiters = fixture.timeline(|timeline| {
            timeline.advance(now);
            [2, 3, 5].map(|_| timeline.create_stream(fixture.contexts[0], false).unwrap())
        });
        for (stream, value) in waiters.into_iter().zip([1, 2, 3]) {
            fixture.crash_everywhere(|timeline| {
                timeline.enqueue(stream, Command::Acquire(semaphore, value), 0, now).unwrap();
                timeline.advance(now + Nanos::from_micros(10));
            });
            now = now + Nanos::from_micros(10);
        }
        // From outside, and from a stream; one waiter is dropped.
        fixture.crash_everywhere(|timeline| timeline.signal(semaphore, 1, now));
        fixture.crash_everywhere(|timeline| {
            timeline.destroy_context(fixture.contexts[0], now);
        });
        let [signaller, waiter] = fixture.timeline(|timeline| {
            [(); 2].map(|()| timeline.create_stream(fixture.contexts[1], false).unwrap())
        });
        fixture.crash_everywhere(|timeline| {
            timeline.launch(signaller, Kernel::named("spin_5us"), now).unwrap();
            timeline.enqueue(signaller, Command::Signal(semaphore, 7), 0, now).unwrap();
            timeline.enqueue(waiter, Command::Acquire(semaphore, 7), 0, now).unwrap();
            timeline.advance(now + Nanos::from_millis(30));
        });
        let value = fixture.timeline(|timeline| timeline.semaphore_value(semaphore));
        assert_eq!(value, Some(if counts { 7 } else { 0 }));
        fixture
            .crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(OWNER, export), Ok(true)));
        let lingering = fixture.timeline(|timeline| timeline.lingering())[0];
        fixture.crash_everywhere(|timeline| timeline.end_export(lingering));
        assert_eq!(fixture.timeline(|timeline| timeline.semaphore_value(semaphore)), None);
    }
}

#[test]
fn crash_during_checkpoint_leaves_the_state_before_or_after() {
    let fixture = Fixture::with_contexts_on(&[0, 1]);
    let by = OWNER + 1;
    fixture.timeline(|timeline| {
        timeline.attach(by, 2);
        timeline.mark_cuda_process(OWNER);
        timeline.take_memory(OWNER, 1, Bytes(6 << 20)).unwrap();
        timeline
            .take_memory(OWNER, timeline::Site { gpu: 2, domain: Some(1) }, Bytes(2 << 20))
            .unwrap();
        timeline.create_export(OWNER, 0, ExportKind::Memory, Bytes(4 << 20)).unwrap();
    });
    let had = fixture.timeline(|timeline| [0, 1].map(|gpu| timeline.memory(gpu).0));
    fixture.timeline(|timeline| timeline.begin_locking(OWNER, by).unwrap());
    // The locking process dies: the locked one goes on.
    let now = fixture.timeline(|timeline| timeline.now());
    fixture.crash_everywhere(|timeline| timeline.detach(by, now));
    assert_eq!(fixture.timeline(|timeline| timeline.progress(OWNER)), Progress::Running);
    fixture.timeline(|timeline| {
        timeline.begin_locking(OWNER, by).unwrap();
        timeline.step_progress(OWNER, Progress::Locking, Progress::Locked).unwrap();
    });
    for _ in 0..2 {
        fixture.crash_everywhere(|timeline| timeline.checkpoint(OWNER).unwrap());
        assert_eq!(fixture.timeline(|timeline| timeline.checkpointed_gpus(OWNER)), [0, 1, 2]);
        let domain_used = || fixture.timeline(|timeline| timeline.domain_memory(2, 1).0);
        assert_eq!(domain_used(), Bytes::ZERO);
        assert_eq!(
            fixture.timeline(|timeline| [0, 1].map(|gpu| timeline.memory(gpu).0)),
            [Bytes::ZERO; 2]
        );
        fixture.crash_everywhere(|timeline| timeline.restore(OWNER).unwrap());
        assert_eq!(fixture.timeline(|timeline| [0, 1].map(|gpu| timeline.memory(gpu).0)), had);
        assert_eq!(domain_used(), Bytes(2 << 20));
    }
    // One GPU lacks memory: nothing is restored.
    fixture.timeline(|timeline| timeline.checkpoint(OWNER).unwrap());
    fixture.timeline(|timeline| {
        let (used, usable) = timeline.memory(1);
        timeline.attach(by, 2);
        timeline.take_memory(by, 1, usable - used - Bytes(5 << 20)).unwrap();
    });
    let state = fixture.state();
    let restored = fixture.observer.transact(|timeline| timeline.restore(OWNER));
    assert_eq!(restored, Err(Error::OutOfMemory));
    assert!(fixture.state() == state);
    // It dies while it is checkpointed.
    fixture.crash_everywhere(|timeline| timeline.detach(OWNER, now));
    assert_eq!(fixture.timeline(|timeline| timeline.memory(0).0), Bytes::ZERO);
}

#[test]
fn crash_during_accounting_leaves_the_state_before_or_after() {
    let fixture = Fixture::with_contexts_on(&[0]);
    let other = OWNER + 1;
    fixture.timeline(|timeline| timeline.attach(other, 2));
    fixture.crash_everywhere(|timeline| {
        timeline.set_identity(other, [1, 2, 3]);
        timeline.set_accounting_mode(1, true);
        timeline.create_context(other, 1).unwrap();
    });
    let context = fixture.timeline(|timeline| timeline.contexts(other)[0]);
    fixture.crash_everywhere(|timeline| timeline.reserve(context, Bytes(4 << 20)).unwrap());
    fixture.crash_everywhere(|timeline| timeline.detach(other, fixture.now));
    assert_eq!(fixture.timeline(|timeline| timeline.accounts(1)).len(), 1);
    fixture.crash_everywhere(|timeline| {
        timeline.set_accounting_mode(1, false);
    });
}

#[test]
fn crash_in_a_locality_domain_leaves_the_state_before_or_after() {
    let fixture = Fixture::new();
    let (export, other) = (timeline::ExportId(1), OWNER + 1);
    let there = timeline::Site { gpu: 2, domain: Some(1) };
    let (used, room) = fixture.timeline(|timeline| timeline.domain_memory(2, 1));
    assert_eq!(used, Bytes::ZERO);
    fixture.crash_everywhere(|timeline| {
        timeline.take_memory(OWNER, there, room - Bytes(8 << 20)).unwrap()
    });
    fixture.crash_everywhere(|timeline| {
        assert_eq!(
            timeline.create_export(OWNER, there, timeline::ExportKind::Memory, Bytes(8 << 20)),
            Ok(export)
        );
        timeline.send_export(export);
    });
    assert_eq!(fixture.timeline(|timeline| timeline.domain_memory(2, 1)), (room, room));
    let full = fixture.observer.transact(|timeline| timeline.take_memory(other, there, Bytes(1)));
    assert_eq!(full, Err(Error::OutOfMemory));
    // The other domain and the GPU have room.
    fixture.timeline(|timeline| {
        timeline.take_memory(other, timeline::Site { domain: Some(0), ..there }, room).unwrap()
    });
    fixture.crash_everywhere(|timeline| timeline.give_memory(OWNER, there, Bytes(2 << 20)));
    fixture.crash_everywhere(|timeline| timeline.hold(other, export, 1).unwrap());
    fixture.crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(OWNER, export), Ok(false)));
    fixture.crash_everywhere(|timeline| assert_eq!(timeline.drop_hold(other, export), Ok(true)));
    assert_eq!(fixture.timeline(|timeline| timeline.orphaned(2)), Bytes(8 << 20));
    let now = fixture.timeline(|timeline| {
        timeline.attach(other, 2);
        timeline.now()
    });
    for process in [OWNER, other] {
        fixture.crash_everywhere(|timeline| timeline.detach(process, now));
    }
    assert_eq!(fixture.timeline(|timeline| timeline.domain_memory(2, 1)), (Bytes(8 << 20), room));
    for lingering in fixture.timeline(|timeline| timeline.lingering()) {
        fixture.crash_everywhere(|timeline| timeline.end_export(lingering));
    }
    assert_eq!(fixture.timeline(|timeline| timeline.memory(2).0), Bytes::ZERO);
}

#[test]
fn crash_during_process_end_leaves_the_state_before_or_after() {
    let fixture = Fixture::with_contexts_on(&[1]);
    fixture.crash_everywhere(|timeline| timeline.die(OWNER, fixture.now));
    let gone = fixture.now + Figures::default().death_delay;
    fixture.crash_everywhere(|timeline| {
        timeline.advance(gone);
    });
    fixture.timeline(|timeline| {
        assert_eq!(timeline.process_state(OWNER), ProcessState::Free);
        assert_eq!(timeline.memory(1).0, Bytes::ZERO);
    });
}

#[test]
fn crash_in_a_limited_control_group_leaves_the_state_before_or_after() {
    for wall in [timeline::Wall::Dmem, timeline::Wall::Misc] {
        let figures = Figures { wall, ..Figures::default() };
        let fixture = Fixture::on(Setup::with(figures), &[0]);
        let other = OWNER + 1;
        let limit = |mib: u64| timeline::GroupLimit { soft: 1 << 20, hard: mib << 20 };
        let (leaf, side, pod) = ([33, 30], [35, 30], [30]);
        fixture.timeline(|timeline| timeline.attach(other, 2));
        fixture.crash_everywhere(|timeline| {
            timeline.limit_group(0, &leaf, limit(900)).unwrap();
            timeline.limit_group(0, &pod, limit(1_800)).unwrap();
        });
        fixture.crash_everywhere(|timeline| {
            timeline.join_group(OWNER, &leaf).unwrap();
            timeline.reserve(fixture.contexts[0], Bytes(64 << 20)).unwrap();
        });
        fixture.crash_everywhere(|timeline| {
            timeline.join_group(other, &side).unwrap();
            timeline.create_context(other, 0).unwrap();
            timeline.take_memory(other, 0, Bytes(6 << 20)).unwrap();
        });
        fixture.crash_everywhere(|timeline| timeline.give_memory(other, 0, Bytes(2 << 20)));
        // Memory of both, which passes on and is orphaned, stays in its group.
        let kind = ExportKind::Memory;
        let (export, size) = (timeline::ExportId(1), Bytes(8 << 20));
        let used =
            |path: &[u64]| fixture.timeline(|timeline| timeline.group_limit(0, path)).unwrap().1;
        let before = used(&leaf);
        fixture.crash_everywhere(|timeline| {
            assert_eq!(timeline.create_export(OWNER, 0, kind, size), Ok(export));
            timeline.send_export(export);
        });
        fixture.timeline(|timeline| timeline.hold(other, export, 1).unwrap());
        fixture.crash_everywhere(|timeline| {
            assert_eq!(timeline.drop_hold(OWNER, export), Ok(false));
        });
        fixture.crash_everywhere(|timeline| {
            assert_eq!(timeline.drop_hold(other, export), Ok(true));
        });
        assert_eq!(used(&leaf), before + size);
        let lingering = fixture.timeline(|timeline| timeline.lingering())[0];
        fixture.crash_everywhere(|timeline| timeline.end_export(lingering));
        assert_eq!(used(&leaf), before);
        // Checkpointed memory is in no group.
        fixture.timeline(|timeline| {
            timeline.begin_locking(OWNER, other).unwrap();
            timeline.step_progress(OWNER, Progress::Locking, Progress::Locked).unwrap();
        });
        fixture.crash_everywhere(|timeline| timeline.checkpoint(OWNER).unwrap());
        assert_eq!(used(&leaf), Bytes::ZERO);
        fixture.timeline(|timeline| timeline.limit_group(0, &leaf, limit(8)).unwrap());
        let state = fixture.state();
        let restored = fixture.observer.transact(|timeline| timeline.restore(OWNER));
        assert_eq!(restored, Err(Error::OutOfMemory));
        assert!(fixture.state() == state);
        fixture.timeline(|timeline| timeline.limit_group(0, &leaf, limit(900)).unwrap());
        fixture.crash_everywhere(|timeline| timeline.restore(OWNER).unwrap());
        assert_eq!(used(&leaf), before);
        fixture.crash_everywhere(|timeline| timeline.set_controller(&[36, 30], false).unwrap());
        fixture.crash_everywhere(|timeline| timeline.detach(other, fixture.now));
        fixture.crash_everywhere(|timeline| {
            timeline.clear_limits();
            timeline.groups_deleted(&[33, 36]);
            timeline.limit_group(0, &side, limit(3)).unwrap();
        });
    }
}
