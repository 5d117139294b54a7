//! Launches on an open GPU where the monitor bounds the work in flight.

use super::*;

/// A monitor of an open GPU with a bound; it lives for `time`.
fn open(bound: Nanos, time: Nanos) -> impl Fn(&Role<'_>) + Sync {
    move |role| {
        role.harness.grantors[0].gpu(gpu()).bound.store(bound.0, Ordering::Relaxed);
        set_turn(role.harness, 0, 1, TurnState::Open, Nanos::ZERO);
        while role.now() < BEGIN + time {
            role.sleep(ms(100));
            role.harness.grantors[0].beat();
        }
    }
}

/// Returns the work that ran, and the most in flight after a launch.
fn ran_and_most(harness: &Harness) -> (Nanos, Nanos) {
    harness.gpu(|gpu| (gpu.ran[&0], gpu.most[&0]))
}

#[test]
fn work_in_flight_on_an_open_gpu_is_bounded_and_the_gpu_stays_busy() {
    for (kernel, bound) in [(us(20), ms(20)), (ms(1), ms(20)), (ms(5), ms(20)), (ms(5), ms(200))] {
        let harness = alone(open(bound, ms(1000)), |role, program| {
            saturate(role, program, kernel, BEGIN + ms(900));
        });
        let (ran, most) = ran_and_most(&harness);
        // A launch proceeds when the one that ends makes room; two of unknown length may be in
        // flight.
        assert!(most <= Nanos(bound.0 * 6 / 5 + 2 * kernel.0), "{kernel}: {most} of {bound}");
        assert!(ran >= ms(895), "{kernel}: {ran}");
    }
}

#[test]
fn program_that_pauses_for_less_than_the_bound_loses_nothing() {
    let paused = |pause: Nanos| {
        let harness = alone(open(ms(20), ms(1100)), |role, program| {
            while role.now() < BEGIN + ms(1000) {
                saturate(role, program, us(100), role.now() + ms(80));
                role.sleep(pause);
            }
        });
        ran_and_most(&harness).0
    };
    assert!(paused(ms(15)) >= ms(985), "{}", paused(ms(15)));
    assert!(paused(ms(40)) < ms(900), "{}", paused(ms(40)));
}

#[test]
fn launches_on_an_open_gpu_seldom_take_the_slow_path() {
    alone(open(ms(200), ms(1000)), |role, program| {
        saturate(role, program, us(20), BEGIN + ms(100));
        let (before, mut launches) = (program.fast.get(), 0);
        while role.now() < BEGIN + ms(900) {
            program.launch(1, STREAM, us(20));
            launches += 1;
            role.sleep(us(25));
        }
        let slow = launches - (program.fast.get() - before);
        assert!(slow * 100 <= launches, "{slow} of {launches}");
    });
}

#[test]
fn gpu_is_open_without_a_bound_when_the_monitor_is_gone() {
    let harness = alone(open(ms(20), ms(100)), |role, program| {
        saturate(role, program, ms(1), BEGIN + ms(1500));
        assert!(program.gate.open.load(Ordering::Relaxed) != 0);
    });
    let (_, most) = ran_and_most(&harness);
    assert!(most > ms(200), "{most}");
}

/// Streams of all contexts are measured, although the thread's current context is another.
#[test]
fn work_in_flight_of_several_contexts_is_bounded_and_the_gpu_stays_busy() {
    for (kernel, bound) in [(us(20), ms(20)), (ms(1), ms(20)), (ms(5), ms(20)), (ms(5), ms(200))] {
        let harness = alone(open(bound, ms(1000)), |role, program| {
            while role.now() < BEGIN + ms(900) {
                for context in 0..8 {
                    program.context.set(ContextKey(CONTEXT.0 + context));
                    for _ in 0..30 {
                        let handle = 0x10 + context;
                        program.launch(1, Stream { handle, per_thread: false }, kernel);
                        role.sleep(us(3));
                    }
                }
            }
        });
        let (ran, most) = ran_and_most(&harness);
        // Short launches in a context that the thread has left have no marker.
        assert!(most <= Nanos(bound.0 * 5 / 2), "{kernel}: {most} of {bound}");
        assert!(ran >= ms(890), "{kernel}: {ran}");
    }
}

#[test]
fn first_launch_on_an_idle_bounded_gpu_notifies_the_monitor() {
    let harness = alone(open(ms(20), ms(500)), |role, program| {
        for _ in 0..3 {
            saturate(role, program, us(60), role.now() + ms(10));
            role.sleep(ms(50));
        }
    });
    assert_eq!(harness.notifications(), 3);
}

/// A lane has markers for all that may be in flight. Otherwise its last batch would be reported
/// only when all of it has run.
#[test]
fn reports_keep_up_with_a_full_queue() {
    alone(open(ms(200), ms(1100)), |role, program| {
        saturate(role, program, ms(1), BEGIN + ms(300));
        let mut most = Nanos::ZERO;
        while role.now() < BEGIN + ms(1000) {
            program.launch(1, STREAM, ms(1));
            let busy = Nanos(program.cell().busy.load(Ordering::Relaxed));
            most = most.max(role.now() - BEGIN - busy);
        }
        assert!(most < ms(40), "reported {most} late");
    });
}
