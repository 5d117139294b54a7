//! Pools that the program destroys, and whose handles are reused.

use super::*;

#[test]
fn destroyed_pool_is_charged_until_it_is_empty() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    assert!(matches!(fixture.tenant.pools().begin_destroy(FIRST), PoolDestroy::Outlives));
    assert!(matches!(fixture.tenant.pools().begin_destroy(FIRST), PoolDestroy::Destroyed));
    assert_eq!(fixture.allocate(FIRST, mib(1), mib(32)), Err(PoolError::Destroyed));
    // Trimmed to what is in use.
    assert_eq!(fixture.used(), mib(2));
    fixture.driver.free(FIRST);
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), mib(1));
    // The stream executes this free two trims later.
    fixture.set_trims_until_freed(2);
    fixture.driver.free(FIRST);
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), mib(1));
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert!(fixture.driver.pools.lock().expect("no panic")[&FIRST].destroyed);
    assert_eq!(fixture.count(Reason::PoolOutlived), 1);
    // The handle may be reused.
    assert_eq!(fixture.allocate(FIRST, mib(1), mib(32)), Err(PoolError::Unknown));
    assert!(matches!(fixture.tenant.pools().begin_destroy(FIRST), PoolDestroy::Uncharged));
}

#[test]
fn empty_pool_is_destroyed_at_once_unless_the_driver_refuses() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    fixture.driver.free(FIRST);
    match fixture.tenant.pools().begin_destroy(FIRST) {
        PoolDestroy::Empty(refused) => drop(refused),
        other => panic!("{other:?}"),
    }
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it is still there");
    fixture.driver.free(FIRST);
    match fixture.tenant.pools().begin_destroy(FIRST) {
        PoolDestroy::Empty(ended) => {
            assert_eq!(
                fixture.allocate(FIRST, mib(1), mib(32)),
                Err(PoolError::Unknown),
                "its handle is not used"
            );
            fixture.driver.destroy(FIRST);
            ended.destroyed();
        }
        other => panic!("{other:?}"),
    }
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert_eq!(fixture.count(Reason::PoolOutlived), 0);
}

#[test]
fn reused_handle_is_another_pool() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    let call = || {
        // The pool is destroyed and its handle reused during the call.
        fixture.driver.pools.lock().expect("no panic").remove(&FIRST);
        fixture.tenant.pools().made(FIRST, Some(gpu()), fixture.driver);
        Err(400)
    };
    assert_eq!(
        fixture.tenant.pools().allocate(FIRST, mib(1), call, || (), || false),
        Err(PoolError::Driver(400))
    );
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO);
    // A known pool is left as it is.
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    assert!(fixture.tenant.pools().adopt(FIRST, Some(gpu()), fixture.driver));
    assert_eq!(fixture.used(), mib(32));
}
