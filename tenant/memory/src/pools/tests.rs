//! Pools of a fake driver, against an accounting that must neither lose nor keep a byte.

mod charges;
mod destruction;
mod history;
mod readings;
mod threads;

use std::collections::BTreeMap;
use std::sync::Mutex;

use cgpu_shm::units::Nanos;

use super::*;
use crate::Tenant;
use crate::doubles::{Container, count, gpu, limited, mib, used};

#[derive(Clone, Debug, Default)]
struct FakePool {
    reserved: Bytes,
    live: Vec<Bytes>,
    /// Freed in a stream that has not executed the free yet.
    freeing: Bytes,
    destroyed: bool,
}

impl FakePool {
    fn used(&self) -> Bytes {
        self.live.iter().copied().sum::<Bytes>()
    }

    fn idle(&self) -> Bytes {
        self.reserved - self.used() - self.freeing
    }
}

/// A driver whose pools grow by what each call says.
#[derive(Debug, Default)]
struct Fake {
    pools: Mutex<BTreeMap<PoolId, FakePool>>,
    /// Whether it does not report what pools hold.
    unreadable: bool,
    /// Trims until the stream executes its frees.
    trims_until_freed: Mutex<u32>,
}

impl Fake {
    fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    fn on<T>(&self, pool: PoolId, act: impl FnOnce(&mut FakePool) -> T) -> T {
        let mut pools = self.pools.lock().expect("no panic");
        let pool_state = pools.entry(pool).or_default();
        assert!(!pool_state.destroyed, "{pool:?} is used after its destruction");
        act(pool_state)
    }

    /// Allocates; a pool without room grows by `growth`.
    fn allocate(&self, pool: PoolId, size: Bytes, growth: Bytes) {
        self.on(pool, |pool_state| {
            if pool_state.idle() < size {
                pool_state.reserved = pool_state.reserved + growth;
            }
            pool_state.live.push(size);
        });
    }

    /// Frees the latest allocation, at once or after the trims.
    fn free(&self, pool: PoolId) {
        let slow = *self.trims_until_freed.lock().expect("no panic") > 0;
        self.on(pool, |pool_state| {
            let size = pool_state.live.pop().unwrap_or_default();
            if slow {
                pool_state.freeing = pool_state.freeing + size;
            }
        });
    }

    fn held(&self) -> Bytes {
        self.pools.lock().expect("no panic").values().map(|pool_state| pool_state.reserved).sum()
    }
}

impl PoolDriver for Fake {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        let reserved = self.on(pool, |pool_state| pool_state.reserved);
        (!self.unreadable).then_some(reserved)
    }

    fn used(&self, pool: PoolId) -> Option<Bytes> {
        let used = self.on(pool, |pool_state| pool_state.used());
        (!self.unreadable).then_some(used)
    }

    fn trim(&self, pool: PoolId) {
        let mut trims = self.trims_until_freed.lock().expect("no panic");
        *trims = trims.saturating_sub(1);
        let done = *trims == 0;
        drop(trims);
        self.on(pool, |pool_state| {
            if done {
                pool_state.freeing = Bytes::ZERO;
            }
            // Memory that a stream still uses keeps its chunk.
            if pool_state.freeing == Bytes::ZERO {
                pool_state.reserved = pool_state.used();
            }
        });
    }

    fn destroy(&self, pool: PoolId) -> bool {
        self.on(pool, |pool_state| pool_state.destroyed = true);
        true
    }
}

const FIRST: PoolId = PoolId(0x100);
const SECOND: PoolId = PoolId(0x200);

struct Fixture {
    container: Container,
    tenant: Tenant,
    driver: &'static Fake,
}

impl Fixture {
    fn new(limit: u64) -> Self {
        Self::with(limit, Fake::leaked())
    }

    fn with(limit: u64, driver: &'static Fake) -> Self {
        let (container, tenant) = limited(limit);
        tenant.pools().made(FIRST, Some(gpu()), driver);
        tenant.pools().made(SECOND, Some(gpu()), driver);
        Self { container, tenant, driver }
    }

    /// Allocates under a charge; a pool without room grows by `growth`.
    fn allocate(&self, pool: PoolId, size: Bytes, growth: Bytes) -> Result<(), PoolError<u32>> {
        let call = || {
            self.driver.allocate(pool, size, growth);
            Ok(())
        };
        self.tenant.pools().allocate(pool, size, call, || self.driver.free(pool), || false)
    }

    fn set_trims_until_freed(&self, trims: u32) {
        *self.driver.trims_until_freed.lock().expect("no panic") = trims;
    }

    fn used(&self) -> Bytes {
        used(&self.tenant)
    }

    fn count(&self, reason: Reason) -> u32 {
        count(&self.tenant, reason)
    }

    fn check(&self) {
        assert_eq!(self.used(), self.driver.held());
        assert!(self.tenant.tables.ledger.is_counted(gpu()));
        assert_eq!(self.tenant.tables.pools.sums(), (self.driver.held(), Bytes::ZERO));
    }
}

fn denied<E: std::fmt::Debug>(answer: Result<(), PoolError<E>>) -> Denied {
    match answer {
        Err(PoolError::Denied(denied)) => denied,
        other => panic!("expected a denial, found {other:?}"),
    }
}
