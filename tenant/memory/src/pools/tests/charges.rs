//! What a pool is charged: growth, trims, waits and refusals.

use super::*;

#[test]
fn pool_is_charged_by_what_it_holds() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    assert_eq!(fixture.used(), mib(32), "the chunk, not the allocation");
    fixture.allocate(FIRST, mib(5), mib(32)).expect("it is there");
    assert_eq!(fixture.used(), mib(32), "nothing has grown");
    fixture.driver.free(FIRST);
    fixture.driver.free(FIRST);
    assert_eq!(fixture.used(), mib(32), "what is freed stays reserved");
    fixture.driver.trim(FIRST);
    fixture.tenant.pools().changed(FIRST);
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO);
}

/// The end of a descriptor is not seen. Everything that any exported pool freed later was once
/// taken to be held by it.
#[test]
fn descriptor_of_a_piece_holds_no_more_than_its_pool_had() {
    let fixture = Fixture::new(100);
    let cycle = |export_descriptor: bool| {
        fixture.allocate(FIRST, mib(5), mib(32)).expect("it fits");
        if export_descriptor {
            fixture.tenant.pools().piece_exported(FIRST, mib(5));
            fixture.tenant.pools().piece_exported(FIRST, mib(5));
        }
        fixture.driver.free(FIRST);
        fixture.driver.trim(FIRST);
        fixture.tenant.pools().changed(FIRST);
        fixture.used()
    };
    assert_eq!(cycle(false), Bytes::ZERO);
    assert_eq!(cycle(true), mib(32), "the descriptor may hold that for ever");
    for _ in 0..100 {
        assert_eq!(cycle(false), mib(32), "but no more");
    }
}

#[test]
fn view_reads_the_pools_again() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(40), mib(64)).expect("it fits");
    fixture.driver.free(FIRST);
    fixture.driver.trim(FIRST);
    let view = fixture.tenant.view().memory(gpu(), mib(1000)).expect("a limit is set");
    assert_eq!(view.used, Bytes::ZERO);
}

#[test]
fn growth_beyond_the_reservation_is_charged_and_learned() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(1), mib(64)).expect("it fits");
    fixture.check();
    assert_eq!(fixture.used(), mib(64));
    assert_eq!(fixture.count(Reason::PoolGrew), 0);
    let Lookup::Charged(at) = fixture.tenant.tables.pools.find(FIRST) else {
        panic!("it is charged")
    };
    assert_eq!(fixture.tenant.tables.pools.likely(at, Bytes(1)), Some(mib(64)));
}

#[test]
fn growth_beyond_the_limit_is_undone() {
    let fixture = Fixture::new(100);
    let denied = denied(fixture.allocate(FIRST, mib(1), mib(128)));
    assert_eq!((denied.reason, denied.used), (Reason::PoolGrew, mib(128)));
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO, "freed and trimmed when the call returns");
    assert_eq!(fixture.count(Reason::PoolGrew), 2, "tried again when pools were trimmed");
    fixture.allocate(FIRST, mib(1), mib(32)).expect("nothing is left of the denied one");
    fixture.check();
}

#[test]
fn late_free_of_a_stream_is_waited_for() {
    let fixture = Fixture::new(100);
    fixture.set_trims_until_freed(9);
    denied(fixture.allocate(FIRST, mib(1), mib(128)));
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert!(fixture.container.clock.slept() > Nanos::ZERO);
}

#[test]
fn missing_free_of_a_stream_is_waited_for_a_second() {
    let fixture = Fixture::new(100);
    fixture.set_trims_until_freed(u32::MAX);
    denied(fixture.allocate(FIRST, mib(1), mib(128)));
    let slept = fixture.container.clock.slept();
    assert!(slept >= Nanos::from_millis(990) && slept <= Nanos::from_millis(1010), "{slept}");
    // The rest stays charged and blocks other allocations.
    assert_eq!(fixture.used(), mib(128));
    denied(fixture.allocate(SECOND, mib(1), mib(32)));
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_err());
    fixture.set_trims_until_freed(1);
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_ok(), "the stream has executed the free");
    fixture.check();
}

#[test]
fn allocation_from_a_full_containers_pool_uses_what_it_holds() {
    let fixture = Fixture::new(64);
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    let linear = fixture.tenant.charge(gpu(), mib(32)).expect("it fits");
    fixture.allocate(FIRST, mib(31), mib(32)).expect("the pool holds it");
    assert_eq!(fixture.used(), mib(64));
    denied(fixture.allocate(FIRST, mib(1), mib(32)));
    drop(linear);
    fixture.check();
    assert_eq!(fixture.count(Reason::OverLimit), 1);
}

#[test]
fn fragmented_pool_grows_though_it_seems_to_hold_enough() {
    let fixture = Fixture::new(64);
    fixture.allocate(FIRST, mib(1), mib(60)).expect("it fits");
    let call = || -> Result<(), u32> {
        // Fragmented, so it grows all the same.
        fixture.driver.on(FIRST, |pool_state| pool_state.reserved = pool_state.reserved + mib(32));
        fixture.driver.allocate(FIRST, mib(30), Bytes::ZERO);
        Ok(())
    };
    let made = fixture.tenant.pools().allocate(
        FIRST,
        mib(30),
        call,
        || fixture.driver.free(FIRST),
        || false,
    );
    assert_eq!(made, Ok(()), "with what a trim has freed");
    fixture.check();
    assert_eq!(fixture.used(), mib(33));
    assert_eq!(fixture.count(Reason::PoolGrew), 1);
}

#[test]
fn charge_that_does_not_fit_trims_the_pools_of_the_gpu() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(32), mib(32)).expect("it fits");
    fixture.allocate(SECOND, mib(60), mib(60)).expect("it fits");
    fixture.driver.free(SECOND);
    assert_eq!(fixture.used(), mib(92));
    fixture.allocate(FIRST, mib(40), mib(40)).expect("the other pool is trimmed");
    fixture.check();
    assert_eq!(fixture.used(), mib(72));
    fixture.driver.free(FIRST);
    drop(fixture.tenant.charge(gpu(), mib(68)).expect("and for linear memory, too"));
    fixture.check();
    assert_eq!(fixture.used(), mib(32));
    assert_eq!(fixture.count(Reason::OverLimit), 0);
}

#[test]
fn busy_stream_is_waited_for_before_a_refusal() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(70), mib(70)).expect("it fits");
    fixture.set_trims_until_freed(9);
    fixture.driver.free(FIRST);
    let call = || -> Result<(), u32> {
        fixture.driver.allocate(SECOND, mib(60), mib(60));
        Ok(())
    };
    let is_busy = || *fixture.driver.trims_until_freed.lock().expect("no panic") > 0;
    fixture
        .tenant
        .pools()
        .allocate(SECOND, mib(60), call, || (), is_busy)
        .expect("the stream executes the free");
    fixture.check();
    assert_eq!(fixture.used(), mib(60));
    // An idle stream is not waited for.
    let slept = fixture.container.clock.slept();
    denied(fixture.allocate(FIRST, mib(60), mib(60)));
    assert_eq!(fixture.container.clock.slept(), slept);
}

#[test]
fn last_part_of_a_limit_is_reserved_without_a_chunk() {
    let fixture = Fixture::new(40);
    fixture.allocate(FIRST, mib(32), mib(32)).expect("it fits");
    fixture.allocate(FIRST, mib(8), mib(8)).expect("the driver takes no more than that");
    fixture.check();
    assert_eq!(fixture.used(), mib(40));
}

#[test]
fn allocation_refused_by_the_driver_costs_nothing() {
    let fixture = Fixture::new(100);
    // The second call grows the pool before it fails.
    for (grown, code) in [(Bytes::ZERO, 2), (mib(32), 700)] {
        let call = || {
            fixture.driver.on(FIRST, |pool_state| pool_state.reserved = grown);
            Err(code)
        };
        let free = || panic!("nothing to free");
        let refused = fixture.tenant.pools().allocate(FIRST, mib(40), call, free, || false);
        assert_eq!(refused, Err(PoolError::Driver(code)));
        assert_eq!(fixture.used(), fixture.driver.held(), "the driver answered {code}");
        fixture.check();
    }
    let too_large = denied(fixture.allocate(FIRST, Bytes(u64::MAX), mib(1)));
    assert_eq!(too_large.reason, Reason::TooLarge);
}

#[test]
fn pool_of_other_memory_costs_nothing() {
    let fixture = Fixture::new(10);
    let host = PoolId(0x300);
    fixture.tenant.pools().made(host, None, fixture.driver);
    fixture.allocate(host, mib(500), mib(512)).expect("it is the host's");
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert_eq!(fixture.tenant.pools().gpu(host), None);
    assert!(matches!(fixture.tenant.pools().begin_destroy(host), PoolDestroy::Uncharged));
    assert_eq!(fixture.allocate(host, mib(1), mib(1)), Err(PoolError::Unknown));
}

#[test]
fn unreadable_pool_is_charged_the_estimated_growth() {
    let driver = Box::leak(Box::new(Fake { unreadable: true, ..Fake::default() }));
    let fixture = Fixture::with(100, driver);
    for _ in 0..3 {
        fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    }
    assert_eq!(fixture.used(), mib(96));
    denied(fixture.allocate(FIRST, mib(8), mib(8)));
    assert_eq!(fixture.count(Reason::PoolUnread), 3);
    match fixture.tenant.pools().begin_destroy(FIRST) {
        PoolDestroy::Empty(ended) => ended.destroyed(),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.used(), Bytes::ZERO);
}
