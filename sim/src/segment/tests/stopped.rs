//! Clients that are stopped or panic in the middle of an operation block no other, and no operation
//! is applied twice.

use super::*;

/// Stops a client before each of its stores: others find the state before and go on. When it
/// continues, its operation is applied once.
#[test]
fn stopped_client_is_preempted_and_its_operation_applied_once() {
    let operation = |fixture: &Fixture| {
        let stream = fixture.streams[1];
        let now = fixture.now;
        move |timeline: &mut Timeline<'_, Transaction<'_>>| {
            timeline.launch(stream, Kernel::named("lognormal_60us_0.5"), now).unwrap();
        }
    };
    let undisturbed = Fixture::new();
    let before = undisturbed.state();
    undisturbed.timeline(operation(&undisturbed));
    let after = undisturbed.state();
    drop(undisturbed);
    let mut store = 0;
    loop {
        let fixture = Fixture::new();
        let child = fixture.client(store, libc::SIGSTOP, operation(&fixture));
        if outcome(child) == Outcome::Finished {
            break;
        }
        assert!(fixture.state() == before, "stopped before store {store}");
        // Others change the state meanwhile, and change it back.
        fixture.timeline(|timeline| timeline.reserve(fixture.contexts[0], Bytes(4096)).unwrap());
        send(child, libc::SIGCONT);
        assert_eq!(outcome(child), Outcome::Finished);
        fixture.timeline(|timeline| timeline.release(fixture.contexts[0], Bytes(4096)));
        assert!(fixture.state() == after, "continued after store {store}");
        store += 1;
    }
    assert!(store > 10);
}

/// More processes are stopped inside operations, one after the other, than there are areas; those
/// that continue free theirs.
#[test]
fn areas_are_reused_after_preempted_clients_leave() {
    let fixture = Fixture::new();
    let reserve = |timeline: &mut Timeline<'_, Transaction<'_>>| {
        timeline.reserve(fixture.contexts[0], Bytes(4096)).unwrap();
    };
    let (used, _) = fixture.timeline(|timeline| timeline.memory(0));
    for round in 0..3 * areas::AREAS as u64 {
        let child = fixture.client(round % 5, libc::SIGSTOP, reserve);
        assert_eq!(outcome(child), Outcome::Stopped);
        fixture.timeline(|timeline| timeline.check()).unwrap();
        // One in three is killed while it is stopped.
        let signal = if round % 3 == 0 { libc::SIGKILL } else { libc::SIGCONT };
        send(child, signal);
        assert_eq!(
            outcome(child),
            if round % 3 == 0 { Outcome::Killed } else { Outcome::Finished }
        );
        let done = round + 1 - round / 3 - 1;
        let (now_used, _) = fixture.timeline(|timeline| timeline.memory(0));
        assert_eq!(now_used, used + Bytes(done * 4096), "round {round}");
    }
    let stopped: Vec<_> = (1..areas::AREAS)
        .map(|_| {
            let child = fixture.client(2, libc::SIGSTOP, reserve);
            assert_eq!(outcome(child), Outcome::Stopped);
            fixture.timeline(|timeline| timeline.check()).unwrap();
            child
        })
        .collect();
    let last = fixture.client(2, libc::SIGSTOP, reserve);
    assert_eq!(outcome(last), Outcome::Stopped);
    let full = fixture.observer.transact(|_| Ok(())).unwrap_err().to_string();
    assert!(full.contains("7 processes are stopped"), "{full}");
    for child in stopped.into_iter().chain([last]) {
        send(child, libc::SIGCONT);
        assert_eq!(outcome(child), Outcome::Finished);
    }
    fixture.timeline(|timeline| timeline.check()).unwrap();
}

/// Kills the preempting process at various instants.
#[test]
fn death_of_the_preempting_process_loses_no_operation() {
    for round in 0..12_u64 {
        let fixture = Fixture::new();
        let (used, _) = fixture.timeline(|timeline| timeline.memory(0));
        let reserve = |timeline: &mut Timeline<'_, Transaction<'_>>| {
            timeline.reserve(fixture.contexts[0], Bytes(4096)).unwrap();
        };
        let stopped = fixture.client(3, libc::SIGSTOP, reserve);
        assert_eq!(outcome(stopped), Outcome::Stopped);
        let preempting = fixture.client(u64::MAX - 1, libc::SIGKILL, reserve);
        std::thread::sleep(std::time::Duration::from_micros(19_000 + 1_000 * round));
        send(preempting, libc::SIGKILL);
        let preempted_in_time = outcome(preempting) == Outcome::Finished;
        let (between, _) = fixture.timeline(|timeline| timeline.memory(0));
        assert!(between == used + Bytes(4096) || (between == used && !preempted_in_time));
        send(stopped, libc::SIGCONT);
        assert_eq!(outcome(stopped), Outcome::Finished);
        let (at_last, _) = fixture.timeline(|timeline| timeline.memory(0));
        assert_eq!(at_last, between + Bytes(4096), "round {round}");
        fixture.timeline(|timeline| timeline.check()).unwrap();
    }
}

#[test]
fn panic_inside_an_operation_rolls_it_back() {
    let fixture = Fixture::new();
    let before = fixture.state();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
        fixture.timeline(|timeline| {
            timeline.create_context(OWNER, 0).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(fixture.state(), before);
}

#[test]
fn long_operation_with_seams_stays_within_the_log() {
    let fixture = Fixture::new();
    for _ in 0..20_000 {
        fixture.timeline(|timeline| timeline.create_event(fixture.contexts[0], true)).unwrap();
    }
    fixture.timeline(|timeline| timeline.destroy_context(fixture.contexts[0], fixture.now));
    fixture.timeline(|timeline| timeline.check()).unwrap();
}
