//! Stale grant pages, and times in them that are far from now.

use super::*;

#[test]
fn gate_opens_after_a_second_without_a_heartbeat() {
    alone(
        |role| {
            set_turn(role.harness, 0, 1, TurnState::Wait, Nanos::ZERO);
            for _ in 0..10 {
                role.sleep(ms(200));
                role.harness.grantors[0].beat();
            }
        },
        |role, program| {
            program.launch(1, STREAM, us(60));
            let waited = role.now() - BEGIN;
            assert!((ms(3000)..ms(3200)).contains(&waited), "{waited}");
            assert_eq!(program.counted(Reason::StaleMonitor), 1);
            let before = role.now();
            (0..1000).for_each(|_| program.launch(1, STREAM, us(60)));
            assert_eq!(role.now(), before, "open from then on");
            assert_eq!(program.cell().waiting.load(Ordering::Relaxed), 0);
        },
    );
}

/// Times in the grant page far in the past or the future: a turn still begins and ends as long as
/// the monitor lives.
#[test]
fn times_far_from_now_neither_block_nor_open_the_gate() {
    for (granted, until, bound) in [
        (Nanos::MAX, Nanos::ZERO, Nanos::ZERO),
        (Nanos::MAX, Nanos::MAX, Nanos::MAX),
        (Nanos(u64::MAX / 2), Nanos(1), Nanos(1)),
        (ms(50), Nanos::MAX, Nanos(u64::MAX - 1)),
        (ms(50), Nanos(1), Nanos(u64::MAX / 2 + 1)),
    ] {
        let harness = Harness::new(1);
        let open = AtomicU32::new(0);
        let gate = Gate::new(&harness.regions[0], SLOT, &open);
        let set_turn = |epoch, state, granted| {
            harness.grantors[0].gpu(gpu()).bound.store(bound.0, Ordering::Relaxed);
            harness.grantors[0].set_turn(gpu(), Turn::new(epoch, state), granted, until);
            harness.grantors[0].wake_gate();
        };
        let beat_for = |role: &Role<'_>, time: Nanos| {
            for _ in 0..time.0 / ms(200).0 {
                role.sleep(ms(200));
                harness.grantors[0].beat();
            }
        };
        harness.run(&[
            &|role| {
                set_turn(1, TurnState::Yours, granted);
                beat_for(role, ms(1000));
                set_turn(2, TurnState::Wait, granted);
                beat_for(role, ms(5000));
                // A turn with no budget is as good as none.
                set_turn(3, TurnState::Yours, Nanos::ZERO);
                beat_for(role, ms(3000));
                set_turn(4, TurnState::Yours, granted);
                beat_for(role, ms(2000));
                set_turn(5, TurnState::Open, granted);
            },
            &|role| {
                role.sleep(us(100));
                let program = Program::new(&gate, role.platform(0));
                // 30 ms of work: within each grant.
                for _ in 0..500 {
                    let before = role.now();
                    program.launch(1, STREAM, us(60));
                    assert!(role.now() - before < ms(10), "{granted} {until} {bound}");
                }
                role.sleep(BEGIN + ms(1500) - role.now());
                program.launch(1, STREAM, us(60));
                assert!(
                    role.now() >= BEGIN + ms(9000),
                    "{} under {granted} {until} {bound}",
                    role.now() - BEGIN
                );
                assert!(role.now() < BEGIN + ms(9100));
                assert_eq!(program.counted(Reason::StaleMonitor), 0);
            },
        ]);
    }
}

/// A process that was stopped for an hour, or whose clock has jumped by one, obeys a living monitor
/// and does not take its heartbeat for stale.
#[test]
fn stopped_process_obeys_a_living_monitor_when_it_resumes() {
    const HOUR: Nanos = Nanos::from_millis(3_600_000);
    let back = BEGIN + ms(10) + HOUR;
    alone(
        |role| {
            set_turn(role.harness, 0, 1, TurnState::Yours, ms(50));
            role.sleep(ms(10));
            role.sleep(HOUR);
            role.harness.grantors[0].beat();
            set_turn(role.harness, 0, 2, TurnState::Wait, Nanos::ZERO);
            for _ in 0..10 {
                role.sleep(ms(200));
                role.harness.grantors[0].beat();
            }
            set_turn(role.harness, 0, 3, TurnState::Yours, ms(50));
        },
        |role, program| {
            (0..20).for_each(|_| program.launch(1, STREAM, us(60)));
            role.sleep(back + ms(1) - role.now());
            program.launch(1, STREAM, us(60));
            assert!(role.now() >= back + ms(2000), "{} after it came back", role.now() - back);
            let before = role.now();
            (0..200).for_each(|_| program.launch(1, STREAM, us(60)));
            assert!(role.now() - before < ms(20), "work from before the stop delays nothing");
            assert_eq!(program.counted(Reason::StaleMonitor), 0);
        },
    );
}
