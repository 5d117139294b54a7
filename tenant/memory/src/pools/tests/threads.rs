//! Pools used by several threads.

use super::*;

#[test]
fn charges_by_threads_equal_what_pools_hold() {
    let fixture = Fixture::new(100);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut state = thread * 2 + 1;
                let mut draw = |below: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % below
                };
                for _ in 0..3000 {
                    let pool = if draw(2) == 0 { FIRST } else { SECOND };
                    let size = Bytes(1 + draw(20 << 20));
                    // Mostly a chunk, at times more than the estimate.
                    let growth = if draw(8) == 0 { mib(48) } else { mib(32) };
                    match draw(8) {
                        0..5 if fixture.allocate(pool, size, growth).is_ok() => {
                            fixture.driver.free(pool)
                        }
                        5 => fixture.tenant.pools().all_changed(None),
                        6 => drop(fixture.tenant.charge(gpu(), size)),
                        _ => {
                            fixture.driver.trim(pool);
                            fixture.tenant.pools().changed(pool);
                        }
                    }
                }
            });
        }
    });
    fixture.tenant.pools().all_changed(None);
    fixture.check();
    assert!(fixture.used() <= mib(100), "{}", fixture.used());
}

#[test]
fn destroyed_pool_is_never_read() {
    // The fake driver panics when a destroyed pool is read.
    let fixture = Fixture::new(100);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for _ in 0..5000 {
                fixture.tenant.pools().all_changed(None);
                fixture.tenant.pools().trim_for(gpu());
            }
        });
        for number in 1..2000 {
            let pool = PoolId(0x1000 + number);
            fixture.tenant.pools().made(pool, Some(gpu()), fixture.driver);
            fixture.allocate(pool, mib(1), mib(32)).expect("it fits");
            if number % 2 == 0 {
                fixture.driver.free(pool);
            }
            match fixture.tenant.pools().begin_destroy(pool) {
                PoolDestroy::Empty(ended) => {
                    fixture.driver.destroy(pool);
                    ended.destroyed();
                }
                PoolDestroy::Outlives => fixture.driver.free(pool),
                other => panic!("{other:?}"),
            }
        }
        reader.join().expect("no panic");
    });
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), Bytes::ZERO);
}
