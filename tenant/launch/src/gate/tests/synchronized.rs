//! Programs that synchronize with their launches.

use super::*;

/// Gives the program the turn throughout. The process notifies the monitor if `notifies`.
fn turn(notifies: bool) -> impl Fn(&Role<'_>) + Sync {
    move |role| {
        role.harness.grantors[0].set_notify_slot(gpu(), notifies.then_some(SLOT));
        set_turn(role.harness, 0, 1, TurnState::Yours, ms(50));
    }
}

/// Launches 20 kernels of 100 us a few times, synchronizes with each batch, and reports that if the
/// gate requests it. Returns the published work in flight after the last one, and how long ago its
/// work ended.
fn wait(notifies: bool, stream: Option<Stream>) -> (Nanos, Nanos, Harness) {
    let seen = Mutex::new((Nanos::ZERO, Nanos::ZERO));
    let harness = alone(turn(notifies), |role, program| {
        for _ in 0..4 {
            for _ in 0..20 {
                program.launch(1, STREAM, us(100));
                role.sleep(us(3));
            }
            program.driver.synchronize(STREAM);
            if program.gate.wants_completion(&program.thread) {
                program.gate.after_synchronize(
                    &program.thread,
                    (CONTEXT, stream),
                    &program.driver,
                    &program.driver,
                );
            }
            let cell = program.cell();
            let read = |word: &cgpu_shm::atomic::AtomicU64| Nanos(word.load(Ordering::Relaxed));
            *seen.lock().unwrap() = (read(&cell.inflight), role.monotonic() - read(&cell.last));
            role.sleep(ms(2));
        }
    });
    let (inflight, ago) = *seen.lock().unwrap();
    (inflight, ago, harness)
}

#[test]
fn synchronized_program_has_nothing_in_flight_and_the_monitor_is_notified() {
    for stream in [None, Some(STREAM)] {
        let (inflight, ago, harness) = wait(true, stream);
        assert_eq!(inflight, Nanos::ZERO, "{stream:?}");
        assert!(ago < us(150), "{stream:?}: its work ended {ago} ago");
        assert!(
            harness.notifications() >= 4,
            "{stream:?}: {} notifications",
            harness.notifications()
        );
    }
}

#[test]
fn work_in_other_streams_may_still_be_there() {
    let other = Stream { handle: 0x20, per_thread: false };
    let (inflight, _, _) = wait(true, Some(other));
    assert!(inflight > Nanos::ZERO);
}

#[test]
fn synchronization_is_not_reported_unless_requested() {
    let (inflight, _, harness) = wait(false, None);
    assert!(inflight > Nanos::ZERO, "it is not measured");
    assert!(harness.notifications() <= 1, "{} notifications", harness.notifications());
}
