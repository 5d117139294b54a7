//! Every path of a charge, and whole histories against a model.

use cgpu_shm::grant::GrantWriter;
use cgpu_shm::lock::Liveness;
use cgpu_shm::units::{Nanos, SlotIndex};

use cgpu_shm::atomic::Ordering;
use cgpu_shm::ledger::Column;

use super::*;
use crate::allocations::table::units::{bytes, units};
use crate::doubles::{Container, ManualClock, count, gpu, implicit, limited, mib, used};
use crate::{Address, CommitOutcome, Context, ContextId, MemoryInfo, Usage};

const MIB: u64 = 1 << 20;

/// Allocates as if the driver had enough memory; returns `false` if the charge is denied.
fn allocate(tenant: &Tenant, address: u64, size: Bytes, context: Option<Context>) -> bool {
    match tenant.charge(gpu(), size) {
        Ok(charge) => {
            assert_eq!(charge.commit(Address(address), context), CommitOutcome::Recorded);
            true
        }
        Err(_) => false,
    }
}

#[test]
fn sizes_are_rounded_as_the_driver_does() {
    for (size, charged) in [
        (0, 0),
        (1, 512),
        (512, 512),
        (513, 1024),
        (MIB - 512, MIB - 512),
        (MIB - 1, MIB),
        (MIB, 2 * MIB),
        (2 * MIB, 2 * MIB),
        (2 * MIB + 1, 4 * MIB),
    ] {
        assert_eq!(units(Bytes(size)).map(bytes), Some(Bytes(charged)), "{size}");
    }
    assert_eq!(units(Bytes((1 << 40) - 2 * MIB)).map(bytes), Some(Bytes((1 << 40) - 2 * MIB)));
    for size in [1 << 40, u64::MAX - 1, u64::MAX] {
        assert_eq!(units(Bytes(size)), None, "{size}");
    }
}

#[test]
fn charge_is_accounted_until_it_is_freed() {
    let (_container, tenant) = limited(10);
    assert_eq!(tenant.view().limit(gpu()), Some(mib(10)));
    assert!(allocate(&tenant, 0x1000, Bytes(1000), None));
    assert_eq!(used(&tenant), Bytes(1024));
    // A free that the driver refuses changes nothing.
    drop(tenant.allocations().begin_free(Address(0x1000)).expect("it is accounted"));
    assert_eq!(used(&tenant), Bytes(1024));
    tenant.allocations().begin_free(Address(0x1000)).expect("it is still there").freed();
    assert_eq!(tenant.view().usage(gpu()).total(), Bytes::ZERO);
    assert!(tenant.allocations().begin_free(Address(0x1000)).is_none());
    assert_eq!(count(&tenant, Reason::FreeRefused), 1);
    assert_eq!(count(&tenant, Reason::UnknownFree), 1);
}

#[test]
fn charge_refused_by_the_driver_is_refunded() {
    let (_container, tenant) = limited(10);
    let charge = tenant.charge(gpu(), mib(10)).expect("it fits");
    assert_eq!(charge.bytes(), mib(10));
    assert_eq!(used(&tenant), mib(10));
    assert!(tenant.charge(gpu(), Bytes(1)).is_err(), "a reservation counts");
    drop(charge);
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn limit_holds_to_the_byte() {
    let (_container, tenant) = limited(10);
    assert!(allocate(&tenant, 0x20_0000, mib(8), None));
    assert!(allocate(&tenant, 0xa0_0000, Bytes(MIB - 512), None));
    assert!(allocate(&tenant, 0xb0_0000, Bytes(MIB - 512), None));
    assert!(allocate(&tenant, 0xc0_0000, Bytes(1024), None));
    let denied = tenant.charge(gpu(), Bytes(1)).expect_err("full");
    let expected =
        Denied { reason: Reason::OverLimit, wanted: Bytes(512), used: mib(10), limit: mib(10) };
    assert_eq!(denied, expected);
    assert_eq!(count(&tenant, Reason::OverLimit), 1);
    let denied = tenant.charge(gpu(), Bytes(u64::MAX)).expect_err("no GPU has so much");
    assert_eq!(denied.reason, Reason::TooLarge);
}

#[test]
fn processes_of_a_container_share_its_limit() {
    let container = Container::limited(10);
    let (first, second) = (container.tenant(), container.tenant());
    assert!(allocate(&first, 0x20_0000, mib(6), None));
    assert!(!allocate(&second, 0x20_0000, mib(6), None));
    assert!(allocate(&second, 0x20_0000, mib(4), None), "addresses are each process's own");
    assert_eq!(first.view().usage(gpu()), second.view().usage(gpu()));
}

#[test]
fn reused_address_replaces_the_former_allocation() {
    let (_container, tenant) = limited(10);
    assert!(allocate(&tenant, 0x20_0000, mib(6), None));
    assert!(allocate(&tenant, 0x20_0000, mib(2), None));
    assert_eq!(used(&tenant), mib(2));
    assert_eq!(count(&tenant, Reason::AddressReplaced), 1);
}

#[test]
fn address_reused_before_the_free_returns_is_the_new_allocation() {
    let (_container, tenant) = limited(10);
    assert!(allocate(&tenant, 0x20_0000, mib(2), None));
    let taken = tenant.allocations().begin_free(Address(0x20_0000)).expect("it is accounted");
    // The driver has freed it and returns the address to another thread.
    assert!(allocate(&tenant, 0x20_0000, mib(4), None));
    taken.freed();
    assert_eq!(used(&tenant), mib(4));
    let taken = tenant.allocations().begin_free(Address(0x20_0000)).expect("it is accounted");
    assert!(allocate(&tenant, 0x20_0000, mib(6), None));
    // A free that failed, of an address that has been reused.
    drop(taken);
    assert_eq!(used(&tenant), mib(6));
    tenant.allocations().begin_free(Address(0x20_0000)).expect("the new allocation").freed();
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn ended_context_refunds_its_memory() {
    let (container, tenant) = limited(100);
    let handle = container.handle();
    let starting =
        tenant.contexts().begin_create(gpu(), || Some(mib(90))).expect("its size is not known");
    let context = starting.created(handle, || Some(mib(60)));
    assert_eq!(implicit(&tenant), mib(30));
    assert!(allocate(&tenant, 0x20_0000, mib(2), Some(context)));
    assert!(allocate(&tenant, 0x40_0000, mib(4), None));
    // The driver refuses to destroy it.
    drop(tenant.contexts().begin_destroy(handle).expect("known"));
    assert_eq!(tenant.view().usage(gpu()).total(), mib(36));
    let late = tenant.charge(gpu(), mib(2)).expect("it fits");
    tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    assert_eq!(tenant.view().usage(gpu()).total(), mib(6), "what belongs to no context stays");
    assert_eq!(late.commit(Address(0x60_0000), Some(context)), CommitOutcome::Refunded);
    assert_eq!(tenant.view().usage(gpu()).total(), mib(4));
    assert!(tenant.contexts().find(handle).is_none());
    assert!(tenant.contexts().begin_destroy(handle).is_none());
    assert!(
        tenant.allocations().begin_free(Address(0x20_0000)).is_none(),
        "it ended with its context"
    );
    assert_eq!(count(&tenant, Reason::StaleContext), 1);
}

#[test]
fn later_contexts_are_charged_in_advance_in_every_process() {
    let container = Container::limited(100);
    let (first, second) = (container.tenant(), container.tenant());
    let starting =
        first.contexts().begin_create(gpu(), || Some(mib(100))).expect("its size is not known");
    starting.created(container.handle(), || Some(mib(60)));
    let starting = second.contexts().begin_create(gpu(), || Some(mib(60))).expect("40 + 40 fit");
    assert_eq!(implicit(&second), mib(80), "charged before the driver call");
    starting.created(container.handle(), || Some(mib(20)));
    assert_eq!(implicit(&second), mib(80));
    let denied = first.contexts().begin_create(gpu(), || None).expect_err("120 do not fit");
    assert_eq!(denied.reason, Reason::ContextOverLimit);
    let context = container.handle();
    second.contexts().adopt(context, gpu());
    assert_eq!(implicit(&second), mib(120), "an existing context cannot be refused");
    assert_eq!(count(&second, Reason::ImplicitOverLimit), 1);
    assert_eq!(second.charge(gpu(), Bytes(1)).expect_err("over").reason, Reason::OverLimit);
    second.contexts().begin_destroy(context).expect("known").destroyed();
    assert_eq!(implicit(&second), mib(80));
}

#[test]
fn context_that_is_not_created_costs_nothing() {
    let (container, tenant) = limited(100);
    tenant
        .contexts()
        .begin_create(gpu(), || Some(mib(100)))
        .expect("fits")
        .created(container.handle(), || Some(mib(70)));
    drop(tenant.contexts().begin_create(gpu(), || Some(mib(70))).expect("fits"));
    assert_eq!(implicit(&tenant), mib(30));
    // A second retain of a primary context finds it known.
    let known = container.handle();
    let context = tenant.contexts().adopt(known, gpu());
    let starting = tenant.contexts().begin_create(gpu(), || Some(mib(40))).expect("fits");
    assert_eq!(starting.created(known, || Some(mib(40))), context);
    assert_eq!(tenant.contexts().adopt(known, gpu()), context);
    assert_eq!(implicit(&tenant), mib(60));
    let cell = tenant.region().cell(gpu(), tenant.slot_owner().slot());
    assert_eq!(cell.creating.load(Ordering::Relaxed), 0);
}

#[test]
fn context_adopted_by_several_threads_is_charged_once() {
    let (container, tenant) = limited(100);
    tenant
        .contexts()
        .begin_create(gpu(), || Some(mib(50)))
        .expect("fits")
        .created(container.handle(), || Some(mib(49)));
    for _ in 0..200 {
        let handle = container.handle();
        std::thread::scope(|scope| {
            let threads = [0; 3].map(|_| scope.spawn(|| tenant.contexts().adopt(handle, gpu())));
            let seen = threads.map(|thread| thread.join().expect("no panic"));
            assert!(seen.iter().all(|context| *context == seen[0]));
        });
        assert_eq!(implicit(&tenant), mib(2));
        tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    }
}

#[test]
fn getters_agree_to_the_byte() {
    let (_container, tenant) = limited(50);
    let used = Bytes(3 * 512);
    assert!(allocate(&tenant, 0x1000, used, None));
    let view = tenant.view().memory(gpu(), mib(90)).expect("a limit is set");
    assert_eq!(view, MemoryInfo { total: mib(50), free: mib(50) - used, used });
    // Neighbours use so much that less than the limit is free.
    let view = tenant.view().memory(gpu(), mib(10)).expect("a limit is set");
    assert_eq!(view, MemoryInfo { total: mib(50), free: mib(10), used: mib(40) });
    assert_eq!(view.free + view.used, view.total);
    // Over the limit nothing is free, and nothing wraps.
    tenant.tables.ledger.force_charge(gpu(), Column::Implicit, mib(60));
    let view = tenant.view().memory(gpu(), mib(90)).expect("a limit is set");
    assert_eq!(view, MemoryInfo { total: mib(50), free: Bytes::ZERO, used: mib(50) });
}

#[test]
fn charge_waits_for_the_memory_of_exited_processes() {
    let container = Container::limited(10);
    let survivor = container.tenant();
    let exiting = container.tenant();
    assert!(allocate(&exiting, 0x20_0000, mib(6), None));
    assert!(allocate(&survivor, 0x20_0000, mib(2), None));
    drop(exiting);
    // No wait if the charge would not fit afterwards.
    assert!(!allocate(&survivor, 0x40_0000, mib(9), None));
    assert_eq!(container.clock.slept(), Nanos::ZERO);
    assert_eq!(survivor.view().usage(gpu()).draining, mib(6));
    assert!(allocate(&survivor, 0x40_0000, mib(8), None));
    let slept = container.clock.slept();
    assert!(slept >= Nanos::from_millis(490) && slept <= Nanos::from_millis(510), "{slept}");
    assert_eq!(survivor.view().usage(gpu()).draining, Bytes::ZERO);
    assert_eq!(count(&survivor, Reason::WaitedForDraining), 1);
}

/// A clock whose sleeps update a monitor's heartbeat.
struct HeartbeatClock {
    clock: &'static ManualClock,
    monitor: GrantWriter,
}

impl Clock for HeartbeatClock {
    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn sleep(&self, time: Nanos) {
        self.monitor.beat();
        self.clock.sleep(time);
    }
}

#[test]
fn charge_waits_two_seconds_for_memory_that_a_monitor_still_measures() {
    let container = Container::limited(10);
    let exiting = container.tenant();
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.adopt(1);
    let clock: &'static HeartbeatClock =
        Box::leak(Box::new(HeartbeatClock { clock: container.clock, monitor }));
    let Ok(Start::On(survivor)) = container.start_by(clock) else { panic!("it starts") };
    assert!(allocate(&exiting, 0x20_0000, mib(6), None));
    drop(exiting);
    assert!(!allocate(&survivor, 0x40_0000, mib(8), None));
    let slept = container.clock.slept();
    assert!(slept >= Nanos::from_millis(1990) && slept <= Nanos::from_millis(2010), "{slept}");
    assert_eq!(survivor.view().usage(gpu()).draining, mib(6));
    // The monitor reports that the memory has drained.
    let region = survivor.region();
    for slot in SlotIndex::all() {
        clock.monitor.set_drained(slot, region.slots().word(slot).expect("a slot"));
    }
    assert!(allocate(&survivor, 0x40_0000, mib(8), None));
    assert_eq!(container.clock.slept(), slept);
}

#[test]
fn driver_without_memory_is_retried_while_memory_drains() {
    let container = Container::limited(50);
    let survivor = container.tenant();
    let mut budget = WaitBudget::default();
    assert!(!survivor.should_retry(gpu(), &mut budget), "nothing drains");
    assert_eq!(container.clock.slept(), Nanos::ZERO);
    let exiting = container.tenant();
    assert!(allocate(&exiting, 0x20_0000, mib(6), None));
    drop(exiting);
    let mut budget = WaitBudget::default();
    let mut retries = 0;
    while survivor.should_retry(gpu(), &mut budget) {
        retries += 1;
        assert!(retries < 1000, "it ends");
    }
    let slept = container.clock.slept();
    assert!(slept >= Nanos::from_millis(490) && slept <= Nanos::from_millis(510), "{slept}");
    assert_eq!(survivor.view().usage(gpu()).draining, Bytes::ZERO);
    assert_eq!(count(&survivor, Reason::DriverRefused), 2, "once for each call of the program");
}

#[test]
fn lowered_limit_refuses_until_use_has_fallen() {
    let (container, tenant) = limited(50);
    assert!(allocate(&tenant, 0x20_0000, mib(20), None));
    assert!(allocate(&tenant, 0x200_0000, mib(20), None));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.gpu(gpu()).limit.store(mib(30).0, Ordering::Relaxed);
    assert_eq!(tenant.view().limit(gpu()), Some(mib(30)));
    assert_eq!(
        tenant.view().memory(gpu(), mib(60)),
        Some(MemoryInfo { total: mib(30), free: Bytes::ZERO, used: mib(30) })
    );
    assert!(!allocate(&tenant, 0x400_0000, Bytes(1), None));
    tenant.allocations().begin_free(Address(0x20_0000)).expect("live").freed();
    assert!(allocate(&tenant, 0x400_0000, mib(10), None));
}

#[test]
fn charge_under_a_held_lock_times_out() {
    let container = Container::limited(50);
    let (stopped, tenant) = (container.tenant(), container.tenant());
    let lock = &stopped.region().gpu(gpu()).lock;
    let held = lock.acquire(stopped.slot_owner(), Nanos::ZERO, |_| Liveness::Alive);
    let denied = tenant.charge(gpu(), mib(1)).expect_err("its owner lives");
    assert_eq!(denied.reason, Reason::LockHeld);
    drop(held);
    assert!(tenant.charge(gpu(), mib(1)).is_ok());
}

mod model;
