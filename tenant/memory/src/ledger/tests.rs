//! Refusals, the monitor's measurements, checkpoints, and waits.

use cgpu_shm::grant::GrantWriter;
use cgpu_shm::slots::{DRAIN_PERIOD, Word};
use cgpu_shm::unaccounted::UnaccountedDelta;

use super::*;
use crate::doubles::{Container, gpu, mib};

/// Creates a container with a limit of so many MiB, and a process in it.
fn limited(limit: u64) -> (Container, Ledger) {
    let container = Container::limited(limit);
    let ledger = container.tenant().tables.ledger;
    (container, ledger)
}

fn count(ledger: &Ledger, reason: Reason) -> u32 {
    ledger.region.slot(ledger.claim.slot).counter[reason as usize].load(Ordering::Relaxed)
}

fn charge(ledger: &Ledger, bytes: Bytes) -> bool {
    ledger.charge(gpu(), Column::Used, bytes, Reason::OverLimit).is_ok()
}

fn word(ledger: &Ledger) -> Word {
    ledger.word_of(ledger.claim.slot)
}

/// Returns a monitor's measurement of a process, valid now.
fn measured(ledger: &Ledger, bytes: i64) -> UnaccountedDelta {
    let ended = ledger.region.cell(gpu(), ledger.claim.slot).implicit_epoch.load(Ordering::Relaxed);
    UnaccountedDelta::new(word(ledger), ended, bytes)
}

/// Publishes a measurement of a process, in a new epoch if it has `risen`.
fn publish(container: &Container, ledger: &Ledger, growth: UnaccountedDelta, risen: bool) {
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_unaccounted(gpu(), ledger.claim.slot, growth, risen);
}

fn signed_mib(count: i64) -> i64 {
    count << 20
}

/// Creates a container with a limit of 100 MiB, and unconfirmed 60 MiB of a context.
fn unconfirmed() -> (Container, Ledger) {
    let (container, ledger) = limited(100);
    ledger.force_charge(gpu(), Column::Implicit, mib(60));
    (container, ledger)
}

fn sample(container: &Container) {
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_device_free([].into_iter(), container.clock.now());
}

/// Returns how long a charge takes, and whether it is granted.
fn timed_charge(container: &Container, ledger: &Ledger, bytes: Bytes) -> (Nanos, bool) {
    let begin = container.clock.now();
    let granted = charge(ledger, bytes);
    (container.clock.now() - begin, granted)
}

#[test]
fn charge_beside_unconfirmed_memory_waits_while_the_monitor_samples() {
    let (container, ledger) = unconfirmed();
    assert_eq!(timed_charge(&container, &ledger, mib(50)), (Nanos::ZERO, false), "no monitor");
    sample(&container);
    let (waited, granted) = timed_charge(&container, &ledger, mib(50));
    assert!(!granted && waited >= MAX_SAMPLE_AGE, "{waited:?}");
    assert_eq!(
        timed_charge(&container, &ledger, mib(50)),
        (Nanos::ZERO, false),
        "the monitor has ended"
    );
}

#[test]
fn charge_that_never_fits_or_beside_confirmed_memory_is_refused_at_once() {
    let (container, ledger) = unconfirmed();
    sample(&container);
    assert_eq!(timed_charge(&container, &ledger, mib(101)), (Nanos::ZERO, false));
    publish(&container, &ledger, measured(&ledger, 0), false);
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_confirmed(gpu(), ledger.claim.slot, true);
    assert_eq!(timed_charge(&container, &ledger, mib(50)), (Nanos::ZERO, false));
    // The confirmation was of former contexts.
    ledger.region.cell(gpu(), ledger.claim.slot).implicit_epoch.fetch_add(1, Ordering::Relaxed);
    assert!(timed_charge(&container, &ledger, mib(50)).0 > Nanos::ZERO);
}

#[test]
fn wait_for_confirmation_times_out_once() {
    let (container, ledger) = unconfirmed();
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    // A sample in the future stays recent during all of the wait.
    monitor.set_device_free([].into_iter(), container.clock.now() + Nanos::from_millis(60_000));
    let (waited, granted) = timed_charge(&container, &ledger, mib(50));
    assert!(!granted && waited >= Nanos::from_millis(5000), "{waited:?}");
    assert_eq!(timed_charge(&container, &ledger, mib(50)), (Nanos::ZERO, false));
}

#[test]
fn limit_set_from_outside_is_not_lifted_by_the_region() {
    let container = Container::limited(50);
    let mut tenant = container.tenant();
    let outside_limits = mib(10);
    tenant.tables.ledger.outside_limits[gpu().get()] = outside_limits;
    let registered = &tenant.tables.ledger.region.gpu(gpu()).limit;
    for written in [outside_limits, outside_limits + Bytes(1), Bytes::MAX, Bytes::ZERO] {
        registered.store(written.0, Ordering::Relaxed);
        assert_eq!(tenant.tables.ledger.limit(gpu()), outside_limits, "{written}");
    }
    registered.store(outside_limits.0 - 1, Ordering::Relaxed);
    assert_eq!(tenant.tables.ledger.limit(gpu()), outside_limits - Bytes(1), "a lower limit holds");
}

#[test]
fn forced_charge_is_counted_only_beyond_the_limit() {
    let (_container, ledger) = limited(10);
    ledger.force_charge(gpu(), Column::Implicit, mib(10));
    assert_eq!(count(&ledger, Reason::ImplicitOverLimit), 0);
    ledger.force_charge(gpu(), Column::Implicit, Bytes(1));
    assert_eq!(count(&ledger, Reason::ImplicitOverLimit), 1);
    assert_eq!(ledger.total(gpu()), mib(10) + Bytes(1));
}

#[test]
fn cached_memory_serves_a_charge_up_to_what_was_refunded() {
    let (_container, ledger) = limited(10);
    assert!(charge(&ledger, mib(2)));
    ledger.refund(gpu(), Column::Used, mib(2));
    assert!(!ledger.take_cached(gpu(), mib(3)));
    assert_eq!(ledger.total(gpu()), Bytes::ZERO);
    assert!(ledger.take_cached(gpu(), mib(2)));
    assert_eq!(ledger.total(gpu()), mib(2));
}

/// The user is told once that the GPU has more in use than was requested, not at every refusal.
#[test]
fn measured_excess_is_counted_once_per_epoch() {
    let (container, ledger) = limited(10);
    let counted = || count(&ledger, Reason::ImplicitOverLimit);
    assert!(charge(&ledger, mib(8)));
    assert!(!charge(&ledger, mib(4)));
    assert_eq!(counted(), 0, "nothing was measured");
    publish(&container, &ledger, measured(&ledger, signed_mib(2)), true);
    assert!(!charge(&ledger, mib(1)));
    assert_eq!(counted(), 0, "the limit is reached and not exceeded");
    for (epoch, growth) in [(1, 3), (2, 4)] {
        publish(&container, &ledger, measured(&ledger, signed_mib(growth)), true);
        for _ in 0..2 {
            assert!(!charge(&ledger, mib(1)));
            assert_eq!(counted(), epoch);
        }
    }
}

#[test]
fn charged_excess_is_not_counted_as_measured() {
    let (container, ledger) = limited(10);
    ledger.force_charge(gpu(), Column::Implicit, mib(11));
    assert_eq!(count(&ledger, Reason::ImplicitOverLimit), 1);
    // A measurement that has returned to zero.
    publish(&container, &ledger, measured(&ledger, 0), true);
    assert!(!charge(&ledger, mib(1)));
    assert_eq!(count(&ledger, Reason::ImplicitOverLimit), 1);
}

#[test]
fn accounted_memory_is_without_the_measured_delta() {
    let (container, ledger) = limited(50);
    assert!(charge(&ledger, mib(3)));
    ledger.force_charge(gpu(), Column::Implicit, mib(10));
    publish(&container, &ledger, measured(&ledger, signed_mib(4)), true);
    assert_eq!((ledger.accounted(gpu()), ledger.total(gpu())), (mib(13), mib(17)));
}

#[test]
fn end_discards_the_measurement_and_shrink_only_a_reduction() {
    let end: fn(&Ledger) = |ledger| ledger.end(gpu(), mib(2));
    let shrink: fn(&Ledger) = |ledger| ledger.shrink(gpu(), mib(2));
    for (case, act, growth, total) in [
        ("the end of a context discards a reduction", end, -4, 8),
        ("the end of a context discards growth", end, 4, 8),
        // The monitor may have subtracted what is unloaded now.
        ("shrink does not subtract a reduction twice", shrink, -4, 8),
        ("shrink keeps growth", shrink, 4, 12),
    ] {
        let (container, ledger) = limited(50);
        ledger.force_charge(gpu(), Column::Implicit, mib(10));
        publish(&container, &ledger, measured(&ledger, signed_mib(growth)), true);
        let before = Bytes(mib(10).0.saturating_add_signed(signed_mib(growth)));
        assert_eq!(ledger.total(gpu()), before, "{case}");
        act(&ledger);
        assert_eq!(ledger.total(gpu()), mib(total), "{case}");
    }
}

#[test]
fn shrink_discards_a_reduction_that_is_published_later() {
    let (container, ledger) = limited(50);
    ledger.force_charge(gpu(), Column::Implicit, mib(10));
    let measured_before = measured(&ledger, signed_mib(-4));
    ledger.shrink(gpu(), mib(2));
    publish(&container, &ledger, measured_before, false);
    assert_eq!(ledger.total(gpu()), mib(8));
}

/// Starts a process with 10 MiB, of which it exported 4 MiB, and 4 MiB of implicit memory.
fn exporter(container: &Container) -> Ledger {
    let ledger = container.tenant().tables.ledger;
    assert!(charge(&ledger, mib(10)));
    ledger.force_charge(gpu(), Column::Implicit, mib(4));
    ledger.export(gpu(), mib(4));
    ledger
}

fn exported(ledger: &Ledger) -> Bytes {
    Bytes(ledger.region.cell(gpu(), ledger.claim.slot).exported.load(Ordering::Relaxed))
}

#[test]
fn withdrawn_memory_counts_until_it_is_refunded() {
    let container = Container::limited(50);
    let (ledger, other) = (exporter(&container), exporter(&container));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_returned(gpu(), mib(5).0);
    assert_eq!(ledger.total(gpu()), mib(23));
    other.withdraw_kept(gpu(), mib(3));
    assert_eq!(exported(&other), mib(1));
    assert_eq!(ledger.total(gpu()), mib(26));
    other.refund(gpu(), Column::Used, mib(3));
    assert_eq!(
        ledger.total(gpu()),
        mib(23),
        "the monitor may have seen exactly this leave the GPU"
    );
    other.withdraw_kept(gpu(), mib(1));
    ledger.withdraw_kept(gpu(), mib(4));
    assert_eq!(ledger.total(gpu()), mib(25), "nothing is left of it");
}

/// Otherwise a process that keeps exporting and freeing would never be measured.
#[test]
fn withdraw_keeps_a_reduction_that_is_published_later() {
    let container = Container::limited(50);
    let ledger = exporter(&container);
    let measured_before = measured(&ledger, signed_mib(-2));
    ledger.withdraw(gpu(), mib(4));
    publish(&container, &ledger, measured_before, false);
    assert_eq!(ledger.total(gpu()), mib(12));
}

#[test]
fn handles_opened_by_any_process_are_seen_by_all() {
    let container = Container::limited(50);
    let [first, second] = [(); 2].map(|()| container.tenant().tables.ledger);
    assert_eq!(first.opened(), 0);
    first.set_opened_handles(0b101);
    second.set_opened_handles(0b10);
    assert_eq!((first.opened(), second.opened()), (0b111, 0b111));
    first.add_routes(0b1000);
    first.add_routes(0b1);
    let slot = second.region.slot(first.claim.slot);
    assert_eq!(
        slot.exported_handles.load(Ordering::Relaxed),
        0b1001,
        "readable after it has exited"
    );
}

#[test]
fn context_creations_of_all_processes_are_counted() {
    let container = Container::limited(50);
    let [first, second] = [(); 2].map(|()| container.tenant().tables.ledger);
    let begun = [&first, &second, &first].map(|ledger| ledger.begin_creation(gpu()));
    assert_eq!(begun, [0, 1, 2], "others in progress");
    assert_eq!(second.creations(gpu()), 3);
    for left in [2, 1, 1] {
        first.end_creation(gpu());
        assert_eq!(second.creations(gpu()), left, "no end lowers another process's count");
    }
}

#[test]
fn first_context_is_measured_by_one_process_at_a_time() {
    let container = Container::limited(50);
    let [first, second] = [(); 2].map(|()| container.tenant().tables.ledger);
    let lock = &second.region.gpu(gpu()).learning;
    let guard = first.lock_learning(gpu()).expect("it is free");
    assert_eq!(lock.owner(), Some(first.slot_owner()));
    drop(guard);
    assert!(second.lock_learning(gpu()).is_some());
    assert_eq!(lock.owner(), None);
}

#[test]
fn process_is_alone_when_no_other_one_is_left_on_the_gpu() {
    let (container, ledger) = limited(50);
    assert!(ledger.is_alone());
    let other = container.tenant();
    assert!(!ledger.is_alone());
    drop(other);
    ledger.sweep();
    assert!(!ledger.is_alone(), "its memory may still be on the GPU");
    container.clock.advance(DRAIN_PERIOD);
    ledger.sweep();
    assert!(ledger.is_alone());
}

fn start_as(container: &Container, pid: u32) -> Ledger {
    let ledger = container.tenant().tables.ledger;
    ledger.region.slot(ledger.claim.slot).pid.store(pid, Ordering::Relaxed);
    ledger
}

#[test]
fn process_is_found_by_its_id_while_it_lives() {
    let container = Container::limited(50);
    let (tool, worker) = (start_as(&container, 7), start_as(&container, 8));
    assert_eq!(tool.slot_of(8), Some((worker.claim.slot, word(&worker))));
    assert_eq!(tool.slot_of(9), None);
    drop(worker);
    assert_eq!(tool.slot_of(8), None, "it is draining");
}

#[test]
fn former_owner_of_a_slot_is_neither_checkpointed_nor_restored() {
    let container = Container::limited(50);
    let (tool, worker) = (start_as(&container, 7), start_as(&container, 8));
    assert!(charge(&worker, mib(6)));
    let now = (worker.claim.slot, word(&worker));
    let former = (worker.claim.slot, Word(word(&worker).0 + (1 << 8)));
    tool.mark_checkpointed(gpu(), former);
    assert_eq!(tool.total(gpu()), mib(6));
    tool.mark_checkpointed(gpu(), now);
    assert_eq!(tool.total(gpu()), Bytes::ZERO);
    tool.clear_checkpointed(gpu(), former);
    assert_eq!(tool.total(gpu()), Bytes::ZERO);
    tool.clear_checkpointed(gpu(), now);
    assert_eq!(tool.total(gpu()), mib(6));
}

/// Creates a container of 10 MiB with a checkpointed process of 6 MiB. Two others use the limit,
/// one of which has exited.
fn occupied(living: Bytes, exited: Bytes) -> (Container, Ledger, Ledger) {
    let container = Container::limited(10);
    let (tool, worker) = (start_as(&container, 7), start_as(&container, 8));
    assert!(charge(&worker, mib(6)));
    tool.mark_checkpointed(gpu(), (worker.claim.slot, word(&worker)));
    let exiting = start_as(&container, 9);
    assert!(charge(&exiting, exited) && charge(&tool, living));
    drop(exiting);
    (container, tool, worker)
}

#[test]
fn restore_waits_for_draining_memory() {
    let (container, tool, worker) = occupied(mib(4), mib(6));
    assert_eq!(tool.restore_checkpointed(gpu(), worker.claim.slot), Ok(true));
    assert!(container.clock.slept() >= DRAIN_PERIOD);
    assert_eq!(tool.total(gpu()), mib(10));
    assert_eq!(
        tool.restore_checkpointed(gpu(), worker.claim.slot),
        Ok(false),
        "it is restored already"
    );
}

#[test]
fn restore_that_never_fits_does_not_wait() {
    let (container, tool, worker) = occupied(mib(5), mib(5));
    let refused = Refused::OverLimit { used: mib(10), wanted: mib(6), limit: mib(10) };
    assert_eq!(tool.restore_checkpointed(gpu(), worker.claim.slot), Err(refused));
    assert_eq!(container.clock.slept(), Nanos::ZERO);
}

#[test]
fn charge_that_finds_memory_already_gone_is_not_counted_as_waiting() {
    let container = Container::limited(10);
    let (survivor, exiting) = (start_as(&container, 7), start_as(&container, 8));
    assert!(charge(&exiting, mib(6)));
    drop(exiting);
    survivor.sweep();
    container.clock.advance(DRAIN_PERIOD);
    assert!(charge(&survivor, mib(8)));
    assert_eq!(container.clock.slept(), Nanos::ZERO);
    assert_eq!(count(&survivor, Reason::WaitedForDraining), 0);
}

#[test]
fn driver_is_retried_once_after_the_last_memory_has_drained() {
    let container = Container::limited(10);
    let (survivor, exiting) = (start_as(&container, 7), start_as(&container, 8));
    assert!(charge(&exiting, mib(6)));
    drop(exiting);
    let mut budget = WaitBudget::default();
    assert!(survivor.should_retry(gpu(), &mut budget), "it drains");
    assert!(container.clock.slept() > Nanos::ZERO);
    container.clock.advance(DRAIN_PERIOD);
    let slept = container.clock.slept();
    assert!(survivor.should_retry(gpu(), &mut budget), "it has drained since");
    assert!(!survivor.should_retry(gpu(), &mut budget), "the driver was called since");
    assert_eq!(container.clock.slept(), slept);
}

/// A monitor that stops after it was last seen alive is noticed in time.
#[test]
fn memory_that_drains_is_waited_for_past_a_monitor_that_stops() {
    let container = Container::limited(10);
    let (survivor, exiting) = (start_as(&container, 7), start_as(&container, 8));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.adopt(1);
    assert!(charge(&exiting, mib(6)));
    drop(exiting);
    let mut budget = WaitBudget::default();
    while container.clock.slept() < DRAIN_PERIOD {
        monitor.beat();
        survivor.sweep();
        assert!(budget.sleep_for_drain(survivor.clock));
    }
    let drained = || {
        survivor.sweep();
        survivor.usage(gpu()).draining == Bytes::ZERO
    };
    while !drained() {
        assert!(budget.sleep_for_drain(survivor.clock), "{}", container.clock.slept());
    }
}

#[test]
fn backoff_starts_short_and_times_out() {
    let (container, ledger) = limited(10);
    let mut budget = WaitBudget::default();
    let mut backoffs = Vec::new();
    loop {
        let before = container.clock.slept();
        if !ledger.sleep_backoff(&mut budget) {
            break;
        }
        backoffs.push(container.clock.slept() - before);
    }
    assert_eq!(
        (backoffs.first(), backoffs.last()),
        (Some(&DRIVER_CALL_TIME), Some(&DRAIN_POLL_INTERVAL))
    );
    assert!(backoffs.is_sorted());
    let slept = container.clock.slept();
    assert!(slept >= TRIM_TIMEOUT && slept < TRIM_TIMEOUT + DRAIN_POLL_INTERVAL, "{slept}");
    ledger.sleep_briefly();
    assert_eq!(container.clock.slept() - slept, DRIVER_CALL_TIME);
}

/// A program that only reads free memory must see that an exited process's memory is free.
#[test]
fn scan_if_due_finds_exited_processes_at_intervals() {
    let (container, ledger) = limited(10);
    let exits = || {
        let exiting = start_as(&container, 8);
        assert!(charge(&exiting, mib(1)));
    };
    let draining = || ledger.usage(gpu()).draining;
    exits();
    ledger.scan_if_due();
    assert_eq!(draining(), mib(1), "the first scan is due");
    // A claim sweeps, too, so this process exits after its claim.
    exits();
    ledger.scan_if_due();
    assert_eq!(draining(), mib(1), "the next one is not");
    container.clock.advance(SCAN_INTERVAL);
    ledger.scan_if_due();
    assert_eq!(draining(), mib(2));
}

/// A copy of the file `use`, which any process of the container can make and restore.
struct Copied {
    path: std::path::PathBuf,
    bytes: Vec<u8>,
}

impl Copied {
    fn of(container: &Container) -> Self {
        let path = container.run().join("use");
        let bytes = std::fs::read(&path).expect("the region");
        Self { path, bytes }
    }

    fn restore(&self) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&self.path).expect("the region");
        file.write_all_at(&self.bytes, 0).expect("the region");
    }
}

/// Opens a container's doorbell like the monitor.
fn doorbell(container: &Container) -> std::fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    options.open(container.run().join("doorbell")).expect("the doorbell")
}

#[test]
fn process_that_restores_old_bytes_of_its_region_stays_within_its_limit() {
    let (container, ledger) = limited(10);
    let mut bell = doorbell(&container);
    let copied = Copied::of(&container);
    let mut admitted = 0;
    for _ in 0..4 {
        admitted += (0..20).filter(|_| charge(&ledger, mib(1))).count();
        copied.restore();
    }
    assert_eq!(admitted, 10);
    assert!(ledger.tampered.load(Ordering::Relaxed) > 0);
    let mut rung = [0; 8];
    let read = std::io::Read::read(&mut bell, &mut rung).expect("a byte");
    assert_eq!(rung[..read], [Bell::Tampered as u8], "the monitor is told once");
}

#[test]
fn cached_bytes_written_by_the_tenant_admit_no_more_than_the_limit() {
    let (container, ledger) = limited(10);
    assert!(charge(&ledger, mib(10)));
    ledger.refund(gpu(), Column::Used, mib(10));
    let copied = Copied::of(&container);
    let mut admitted = 0;
    for _ in 0..40 {
        admitted += usize::from(ledger.take_cached(gpu(), mib(1)));
        copied.restore();
    }
    assert_eq!(admitted, 10);
    assert!(ledger.tampered.load(Ordering::Relaxed) > 0);
}

#[test]
fn refund_of_more_than_the_cell_has_is_counted_as_tampered() {
    let (container, ledger) = limited(10);
    let copied = Copied::of(&container);
    assert!(charge(&ledger, mib(4)));
    ledger.refund(gpu(), Column::Used, mib(1));
    assert_eq!(count(&ledger, Reason::Tampered), 0);
    copied.restore();
    ledger.refund(gpu(), Column::Used, mib(1));
    assert_eq!(count(&ledger, Reason::Tampered), 1);
}

#[test]
fn lower_limit_refuses_and_is_not_counted_as_tampered() {
    let (container, ledger) = limited(10);
    assert!(charge(&ledger, mib(8)));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.gpu(gpu()).limit.store(mib(4).0, Ordering::Relaxed);
    assert!(!charge(&ledger, mib(1)));
    monitor.gpu(gpu()).limit.store(mib(9).0, Ordering::Relaxed);
    assert!(charge(&ledger, mib(1)));
    assert_eq!(count(&ledger, Reason::Tampered), 0);
}

/// The monitor lowers what is charged too high; the private count must not bring it back.
#[test]
fn memory_that_the_monitor_found_missing_can_be_allocated() {
    let (container, ledger) = limited(10);
    ledger.force_charge(gpu(), Column::Implicit, mib(6));
    publish(&container, &ledger, measured(&ledger, signed_mib(-4)), false);
    assert!(charge(&ledger, mib(8)), "2 MiB of 10 are implicit");
    assert!(!charge(&ledger, mib(1)));
    ledger.end(gpu(), mib(6));
    assert!(charge(&ledger, mib(2)));
    assert_eq!(count(&ledger, Reason::Tampered), 0);
}

#[test]
fn exported_memory_that_has_returned_can_be_allocated() {
    let (container, ledger) = limited(10);
    assert!(charge(&ledger, mib(8)));
    ledger.export(gpu(), mib(6));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_returned(gpu(), mib(6).0);
    assert!(charge(&ledger, mib(8)), "the process has freed 6 MiB, and no process holds them");
    assert!(!charge(&ledger, mib(1)));
    assert_eq!(count(&ledger, Reason::Tampered), 0);
}

/// Threads that charge and free at once never look like a tenant that writes to its region.
#[test]
fn threads_at_the_limit_are_not_counted_as_tampered() {
    let (_container, ledger) = limited(10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let ledger = &ledger;
            scope.spawn(move || {
                for round in 0..5000 {
                    let bytes = Bytes(512 << ((round + thread) % 13));
                    if charge(ledger, bytes) {
                        ledger.refund(gpu(), Column::Used, bytes);
                    }
                }
            });
        }
    });
    assert_eq!(count(&ledger, Reason::Tampered), 0);
    assert_eq!(ledger.total(gpu()), Bytes::ZERO);
}
