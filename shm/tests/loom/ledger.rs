//! Charges, refunds, cached bytes and the monitor's corrections.

use cgpu_shm::ledger;
use cgpu_shm::units::Bytes;

use super::*;

#[test]
fn one_of_two_charges_is_admitted_when_only_one_fits() {
    model(|| {
        let (container, owners) = two_processes();
        let other = beside(&container, move |container| container.allocate(owners[1], 2, 3));
        let mine = container.allocate(owners[0], 2, 3);
        assert!(mine != other.join().unwrap());
        assert!(container.account(owners[0]).is_valid(Bytes(3 * STEP)));
    });
}

#[test]
fn refunds_without_the_lock_never_admit_too_much() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 2, 3));
        let other = beside(&container, move |container| {
            container.free(owners[1], 2);
            container.allocate(owners[1], 1, 3);
        });
        container.allocate(owners[0], 2, 3);
        other.join().unwrap();
        let total = container.account(owners[0]).total();
        assert_eq!(total.0, container.gpu_memory.load(SeqCst));
    });
}

/// A process has 2 cached steps and takes them; another wants 2 of 3.
#[test]
fn cached_bytes_are_taken_by_their_owner_or_closed_by_another_process() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 2, 3));
        container.free(owners[1], 2);
        let other = beside(&container, move |container| container.allocate(owners[1], 2, 3));
        let mine = container.allocate(owners[0], 2, 3);
        assert!(mine != other.join().unwrap(), "one of two fits and is admitted");
        assert!(container.account(owners[0]).is_valid(Bytes(3 * STEP)));
    });
}

/// One process frees and allocates the same step again; another wants the step that is always free.
#[test]
fn bytes_that_pass_through_the_cached_part_are_not_counted_twice() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        let other = beside(&container, move |container| {
            container.free(owners[1], 1);
            assert!(container.allocate(owners[1], 1, 2));
        });
        assert!(container.allocate(owners[0], 1, 2));
        other.join().unwrap();
        assert_eq!(container.account(owners[0]).total(), Bytes(2 * STEP));
    });
}

/// A forced charge happens while a process takes its cached bytes. From then on nothing more is
/// admitted.
#[test]
fn forced_charge_closes_cached_bytes() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        container.free(owners[1], 1);
        let other = beside(&container, move |container| container.allocate(owners[1], 1, 2));
        container.force_implicit(owners[0], 2, 2);
        assert!(!container.allocate(owners[0], 1, 2));
        other.join().unwrap();
        assert!(!container.allocate(owners[1], 1, 2));
    });
}

/// A forced charge happens while another process charges, before or after that has summed up.
/// Whichever sees the other, no cached bytes are valid any more.
#[test]
fn forced_charge_closes_a_word_that_a_concurrent_charge_opens() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 1, 2));
        container.free(owners[0], 1);
        let other = beside(&container, move |container| container.allocate(owners[1], 1, 2));
        container.force_implicit(owners[0], 1, 2);
        if other.join().unwrap() {
            assert!(!container.allocate(owners[0], 1, 2));
        }
    });
}

/// A delta is published while a process charges and takes its cached bytes. Once it is published,
/// nothing more is admitted, whichever came first.
#[test]
fn published_delta_invalidates_cached_bytes() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[1], 1, 2));
        container.free(owners[1], 1);
        let other = beside(&container, move |container| {
            // Through the lock, because it is more than is cached; freed, all of it is cached.
            if container.allocate(owners[1], 2, 2) {
                container.free(owners[1], 2);
            }
        });
        container.measure_steps(owners[0], 2);
        other.join().unwrap();
        assert!(!container.allocate(owners[1], 1, 2));
        assert!(!container.allocate(owners[0], 1, 2));
    });
}

/// Exported memory has left the GPU, and its process refunds it. A sum without its bytes no longer
/// subtracts what the monitor has found.
#[test]
fn returned_memory_is_withdrawn_before_it_is_refunded() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 2, 4));
        container.account(owners[0]).own().export(Bytes(2 * STEP));
        ledger::publish_returned(&container.returned, STEP, None);
        let other = beside(&container, move |container| {
            let liveness = |owner| container.liveness(owner);
            let account = container.account(owners[0]);
            account.withdraw(Bytes(STEP), true, || Bytes(4 * STEP), FOREVER, liveness);
            account.own().refund(Column::Used, Bytes(STEP));
        });
        assert!(container.account(owners[1]).total() >= Bytes(STEP));
        other.join().unwrap();
        assert_eq!(container.account(owners[1]).total(), Bytes(STEP));
    });
}

/// The monitor had counted implicit memory that was charged too high as returned memory, and
/// corrects that. A sum that sees the new delta sees the lower figure of returned memory.
#[test]
fn returned_memory_is_lowered_before_the_delta_falls() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 1, 4));
        container.account(owners[0]).own().export(Bytes(STEP));
        container.force_implicit(owners[0], 2, 4);
        ledger::publish_returned(&container.returned, STEP, None);
        let monitor = beside(&container, move |container| {
            ledger::publish_returned(&container.returned, 0, Some(&container.unaccounted_epoch));
            container.measure_steps(owners[0], -1);
        });
        assert!(container.account(owners[1]).total() >= Bytes(2 * STEP));
        monitor.join().unwrap();
        assert_eq!(container.account(owners[1]).total(), Bytes(2 * STEP));
    });
}

/// A process has two contexts, charged 4 steps each and measured to have 6 together. One is
/// destroyed: a sum that sees its bytes gone no longer applies the earlier delta.
#[test]
fn delta_is_invalidated_before_the_implicit_memory_it_corrects_is_refunded() {
    model(|| {
        let (container, owners) = two_processes();
        let liveness = |owner| container.liveness(owner);
        let bytes = |steps| Bytes(steps * STEP);
        container.force_implicit(owners[0], 8, 9);
        container.measure_steps(owners[0], -2);
        let other = beside(&container, move |container| container.account(owners[1]).total());
        container.account(owners[0]).end(bytes(4), || bytes(9), FOREVER, liveness);
        let seen = other.join().unwrap();
        assert!(seen >= bytes(4), "{seen}");
        assert_eq!(container.account(owners[1]).total(), bytes(4));
    });
}

#[test]
fn two_threads_of_one_process_share_a_cell() {
    model(|| {
        let (container, owners) = two_processes();
        assert!(container.allocate(owners[0], 1, 4));
        let other = beside(&container, move |container| container.free(owners[0], 1));
        assert!(container.allocate(owners[0], 2, 4));
        other.join().unwrap();
        assert_eq!(container.account(owners[0]).total(), Bytes(2 * STEP));
    });
}
