//! Pools that grow at their own will, against an accounting that must neither lose nor keep a byte.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cgpu_shm::units::Nanos;
use proptest::prelude::*;

use super::growth::least;
use super::table::{PoolTable, Ticket};
use super::*;
use crate::Tenant;
use crate::doubles::{Container, gpu};

fn mib(count: u64) -> Bytes {
    Bytes::from_mib(count)
}

/// What a pool of the fake driver has.
#[derive(Clone, Debug, Default)]
struct Inside {
    reserved: Bytes,
    live: Vec<Bytes>,
    /// Freed in a stream that has not come to it.
    pending: Bytes,
    destroyed: bool,
}

impl Inside {
    fn used(&self) -> Bytes {
        self.live.iter().copied().sum::<Bytes>()
    }

    fn idle(&self) -> Bytes {
        self.reserved - self.used() - self.pending
    }
}

/// A driver whose pools grow as they are told.
#[derive(Debug, Default)]
struct Fake {
    pools: Mutex<BTreeMap<PoolId, Inside>>,
    /// Whether it says what pools hold.
    silent: bool,
    /// How many trims a free in a stream takes.
    slow: Mutex<u32>,
}

impl Fake {
    fn leaked() -> &'static Self {
        Box::leak(Box::default())
    }

    fn on<T>(&self, pool: PoolId, act: impl FnOnce(&mut Inside) -> T) -> T {
        let mut pools = self.pools.lock().expect("no panic");
        let inside = pools.entry(pool).or_default();
        assert!(!inside.destroyed, "{pool:?} is used after its destruction");
        act(inside)
    }

    /// Allocates, growing by `growth` if it is short.
    fn allocate(&self, pool: PoolId, size: Bytes, growth: Bytes) {
        self.on(pool, |inside| {
            if inside.idle() < size {
                inside.reserved = inside.reserved + growth;
            }
            inside.live.push(size);
        });
    }

    /// Frees the latest, in a stream that comes to it at once, or is slow.
    fn free(&self, pool: PoolId) {
        let slow = *self.slow.lock().expect("no panic") > 0;
        self.on(pool, |inside| {
            let size = inside.live.pop().unwrap_or_default();
            if slow {
                inside.pending = inside.pending + size;
            }
        });
    }

    fn held(&self) -> Bytes {
        self.pools.lock().expect("no panic").values().map(|inside| inside.reserved).sum()
    }
}

impl PoolDriver for Fake {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        let reserved = self.on(pool, |inside| inside.reserved);
        (!self.silent).then_some(reserved)
    }

    fn used(&self, pool: PoolId) -> Option<Bytes> {
        let used = self.on(pool, |inside| inside.used());
        (!self.silent).then_some(used)
    }

    fn trim(&self, pool: PoolId) {
        let mut slow = self.slow.lock().expect("no panic");
        *slow = slow.saturating_sub(1);
        let done = *slow == 0;
        drop(slow);
        self.on(pool, |inside| {
            if done {
                inside.pending = Bytes::ZERO;
            }
            // What is still in a stream's hands keeps its chunk.
            if inside.pending == Bytes::ZERO {
                inside.reserved = inside.used();
            }
        });
    }

    fn destroy(&self, pool: PoolId) -> bool {
        self.on(pool, |inside| inside.destroyed = true);
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
        let container = Container::limited(limit);
        let tenant = container.tenant();
        tenant.pools().made(FIRST, Some(gpu()), driver);
        tenant.pools().made(SECOND, Some(gpu()), driver);
        Self { container, tenant, driver }
    }

    /// Allocates; a pool that is short grows by `growth`.
    fn allocate(&self, pool: PoolId, size: Bytes, growth: Bytes) -> Result<(), PoolError<u32>> {
        let call = || {
            self.driver.allocate(pool, size, growth);
            Ok(())
        };
        self.tenant.pools().allocate(pool, size, call, || self.driver.free(pool), || false)
    }

    /// Frees in streams are done after so many trims.
    fn slow(&self, trims: u32) {
        *self.driver.slow.lock().expect("no panic") = trims;
    }

    fn used(&self) -> Bytes {
        self.tenant.view().usage(gpu()).used
    }

    fn count(&self, reason: Reason) -> u32 {
        let region = self.tenant.region();
        let counter = &region.slot(self.tenant.slot_owner().slot()).counter[reason as usize];
        counter.load(cgpu_shm::atomic::Ordering::Relaxed)
    }

    fn check(&self) {
        assert_eq!(self.used(), self.driver.held());
        assert_eq!(self.tenant.tables.pools.sums(), (self.driver.held(), Bytes::ZERO));
    }
}

fn denied<E: std::fmt::Debug>(answer: Result<(), PoolError<E>>) -> Denied {
    match answer {
        Err(PoolError::Denied(denied)) => denied,
        other => panic!("expected a denial, found {other:?}"),
    }
}

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

/// The end of a descriptor is not seen. It was taken to hold whatever any exported pool gave back
/// from then on, again and again.
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
    assert_eq!(cycle(true), mib(32), "it may hold that, for good");
    for _ in 0..100 {
        assert_eq!(cycle(false), mib(32), "and no more");
    }
}

#[test]
fn shown_memory_is_read_again() {
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
fn growth_past_the_limit_is_undone() {
    let fixture = Fixture::new(100);
    let denied = denied(fixture.allocate(FIRST, mib(1), mib(128)));
    assert_eq!((denied.reason, denied.used), (Reason::PoolGrew, mib(128)));
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO, "freed and trimmed when the call returns");
    assert_eq!(fixture.count(Reason::PoolGrew), 2, "tried again when pools were trimmed");
    fixture.allocate(FIRST, mib(1), mib(32)).expect("nothing is held against it");
    fixture.check();
}

#[test]
fn late_free_of_a_stream_is_waited_for() {
    let fixture = Fixture::new(100);
    fixture.slow(9);
    denied(fixture.allocate(FIRST, mib(1), mib(128)));
    fixture.check();
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert!(fixture.container.clock.slept() > Nanos::ZERO);
}

#[test]
fn missing_free_of_a_stream_is_waited_for_a_second() {
    let fixture = Fixture::new(100);
    fixture.slow(u32::MAX);
    denied(fixture.allocate(FIRST, mib(1), mib(128)));
    let slept = fixture.container.clock.slept();
    assert!(slept >= Nanos::from_millis(990) && slept <= Nanos::from_millis(1010), "{slept}");
    // What is left is shown, and blocks what needs more.
    assert_eq!(fixture.used(), mib(128));
    denied(fixture.allocate(SECOND, mib(1), mib(32)));
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_err());
    fixture.slow(1);
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_ok(), "it has come to it");
    fixture.check();
}

#[test]
fn pool_of_a_full_container_serves_what_it_holds() {
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
        // In too many pieces: it grows all the same.
        fixture.driver.on(FIRST, |inside| inside.reserved = inside.reserved + mib(32));
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
    assert_eq!(made, Ok(()), "with what a trim has given back");
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
    fixture.allocate(FIRST, mib(40), mib(40)).expect("the other pool does without");
    fixture.check();
    assert_eq!(fixture.used(), mib(72));
    fixture.driver.free(FIRST);
    drop(fixture.tenant.charge(gpu(), mib(68)).expect("so it is for linear memory"));
    fixture.check();
    assert_eq!(fixture.used(), mib(32));
    assert_eq!(fixture.count(Reason::OverLimit), 0);
}

#[test]
fn busy_stream_is_waited_for_before_a_refusal() {
    let fixture = Fixture::new(100);
    fixture.allocate(FIRST, mib(70), mib(70)).expect("it fits");
    fixture.slow(9);
    fixture.driver.free(FIRST);
    let call = || -> Result<(), u32> {
        fixture.driver.allocate(SECOND, mib(60), mib(60));
        Ok(())
    };
    let is_busy = || *fixture.driver.slow.lock().expect("no panic") > 0;
    fixture
        .tenant
        .pools()
        .allocate(SECOND, mib(60), call, || (), is_busy)
        .expect("it comes to the free");
    fixture.check();
    assert_eq!(fixture.used(), mib(60));
    // Not for what would not come.
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
    let refused = fixture.tenant.pools().allocate(
        FIRST,
        mib(40),
        || Err(2),
        || panic!("nothing to free"),
        || false,
    );
    assert_eq!(refused, Err(PoolError::Driver(2)));
    assert_eq!(fixture.used(), Bytes::ZERO);
    // One that grew the pool before it failed.
    let call = || {
        fixture.driver.on(FIRST, |inside| inside.reserved = mib(32));
        Err(700)
    };
    let refused = fixture.tenant.pools().allocate(
        FIRST,
        mib(40),
        call,
        || panic!("nothing to free"),
        || false,
    );
    assert_eq!(refused, Err(PoolError::Driver(700)));
    fixture.check();
    let too_large = denied(fixture.allocate(FIRST, Bytes(u64::MAX), mib(1)));
    assert_eq!(too_large.reason, Reason::TooLarge);
}

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
    // Freed in a stream that has not come to it.
    fixture.slow(2);
    fixture.driver.free(FIRST);
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), mib(1));
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), Bytes::ZERO);
    assert!(fixture.driver.pools.lock().expect("no panic")[&FIRST].destroyed);
    assert_eq!(fixture.count(Reason::PoolOutlived), 1);
    // Its handle may be given out again.
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
        // Destroyed and made again, unseen, while the call is under way.
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
    // One that is known is left as it is.
    fixture.allocate(FIRST, mib(1), mib(32)).expect("it fits");
    assert!(fixture.tenant.pools().adopt(FIRST, Some(gpu()), fixture.driver));
    assert_eq!(fixture.used(), mib(32));
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
fn unreadable_pool_is_charged_the_likely_growth() {
    let silent: &'static Fake = Box::leak(Box::new(Fake { silent: true, ..Fake::default() }));
    let fixture = Fixture::with(100, silent);
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

/// What may happen to pools between two looks at the accounting.
#[derive(Clone, Debug)]
enum Step {
    Allocate { pool: usize, size: u64, growth: u64 },
    Refused { pool: usize, size: u64 },
    Free { pool: usize },
    Trim { pool: usize },
    Slow { trims: u32 },
    Linear { size: u64 },
    Destroy { pool: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let pool = 0..3_usize;
    let size = prop_oneof![1..1_u64 << 20, 1_u64 << 20..48_u64 << 20];
    let growth = prop_oneof![5 => Just(32_u64), 3 => 1_u64..80];
    prop_oneof![
        8 => (pool.clone(), size.clone(), growth)
            .prop_map(|(pool, size, growth)| Step::Allocate { pool, size, growth }),
        1 => (pool.clone(), size.clone()).prop_map(|(pool, size)| Step::Refused { pool, size }),
        5 => pool.clone().prop_map(|pool| Step::Free { pool }),
        1 => pool.clone().prop_map(|pool| Step::Trim { pool }),
        1 => (0..4_u32).prop_map(|trims| Step::Slow { trims }),
        2 => size.prop_map(|size| Step::Linear { size }),
        1 => pool.prop_map(|pool| Step::Destroy { pool }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// After every step the accounting is what the driver holds, and within the limit.
    #[test]
    fn any_history_is_charged_to_the_byte(steps in prop::collection::vec(step(), 1..120)) {
        let fixture = Fixture::new(100);
        let mut ids = [FIRST, SECOND, PoolId(0x300)];
        fixture.tenant.pools().made(ids[2], Some(gpu()), fixture.driver);
        for step in steps {
            match step {
                Step::Allocate { pool, size, growth } => {
                    let growth = mib(growth).max(least(Bytes(size)));
                    let answer = fixture.allocate(ids[pool], Bytes(size), growth);
                    prop_assert!(matches!(answer, Ok(()) | Err(PoolError::Denied(_))), "{:?}", answer);
                }
                Step::Refused { pool, size } => {
                    let answer = fixture.tenant.pools().allocate(ids[pool], Bytes(size), || Err(2), || (), || false);
                    prop_assert!(answer.is_err());
                }
                Step::Free { pool } => fixture.driver.free(ids[pool]),
                Step::Trim { pool } => {
                    fixture.driver.trim(ids[pool]);
                    fixture.tenant.pools().changed(ids[pool]);
                }
                Step::Slow { trims } => fixture.slow(trims),
                Step::Linear { size } => drop(fixture.tenant.charge(gpu(), Bytes(size))),
                Step::Destroy { pool } => {
                    if let PoolDestroy::Empty(ended) = fixture.tenant.pools().begin_destroy(ids[pool]) {
                        fixture.driver.destroy(ids[pool]);
                        ended.destroyed();
                    }
                    ids[pool] = PoolId(ids[pool].0 + 1);
                    fixture.tenant.pools().made(ids[pool], Some(gpu()), fixture.driver);
                }
            }
            fixture.check();
            prop_assert!(fixture.used() <= mib(100));
        }
    }
}

/// A call under way, as the table alone sees it.
#[derive(Clone, Copy, Debug)]
struct Call {
    reservation: Reservation,
    grows: Bytes,
    /// Once it has returned: its look.
    look: Option<(Ticket, Option<Bytes>)>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// In any order of calls, looks and what is written down of them, the accounting says at least
    /// what the driver holds, where no pool grows by more than was charged; and exactly that once
    /// all is quiet.
    #[test]
    fn readings_in_any_order_lose_no_growth(steps in prop::collection::vec((0..7_u8, 0..64_usize, 0..33_u64), 1..200)) {
        let driver = Fake::leaked();
        let pools = PoolTable::new();
        pools.made(FIRST, Some(gpu()), driver).expect("memory");
        let Lookup::Charged(at) = pools.find(FIRST) else { panic!("it is charged") };
        let (mut truth, mut ledger) = (Bytes::ZERO, Bytes::ZERO);
        let mut calls: Vec<Call> = Vec::new();
        let mut readings: Vec<(Ticket, Option<Bytes>)> = Vec::new();
        let read = |look: &mut (Ticket, Option<Bytes>), truth| _ = look.1.get_or_insert(truth);
        let apply = |ledger: &mut Bytes, balance: Balance| {
            // A reading may be older than its ticket says: then too much is charged, until the next
            // one.
            let added = pools.add(at, balance.shortfall, false);
            *ledger = *ledger - balance.surplus + balance.shortfall - added.surplus;
            assert_eq!(added.shortfall, Bytes::ZERO);
        };
        for (step, which, amount) in steps {
            let some = which % calls.len().max(1);
            match step {
                0 => {
                    let reservation = Reservation::charged(mib(32), mib(1));
                    ledger = ledger + reservation.charged;
                    prop_assert!(pools.start(at, reservation));
                    calls.push(Call { reservation, grows: mib(amount), look: None });
                }
                // The driver grows the pool; then the call returns.
                1 => if let Some(call) = calls.get_mut(some) {
                    truth = truth + std::mem::take(&mut call.grows);
                },
                2 => if let Some(call) = calls.get_mut(some) && call.look.is_none() {
                    truth = truth + std::mem::take(&mut call.grows);
                    call.look = pools.begin_reading(at).map(|ticket| (ticket, None));
                },
                3 => for call in &mut calls {
                    if let Some(look) = &mut call.look && which % 2 == 0 {
                        read(look, truth);
                    }
                },
                4 => if calls.get(some).is_some_and(|call| call.look.is_some_and(|look| look.1.is_some())) {
                    let call = calls.swap_remove(some);
                    let (ticket, reading) = call.look.expect("it has returned");
                    apply(&mut ledger, pools.record_reading(at, ticket, reading, Some(call.reservation)));
                },
                // Others look, for whatever reason, and may be late to say so.
                5 => match readings.pop() {
                    Some(mut look) => {
                        read(&mut look, truth);
                        apply(&mut ledger, pools.record_reading(at, look.0, look.1, None));
                    }
                    None => readings.extend(pools.begin_reading(at).map(|ticket| (ticket, (which % 2 == 0).then_some(truth)))),
                },
                _ => truth = truth - mib(amount),
            }
            prop_assert!(ledger >= truth, "{} booked, {} held", ledger, truth);
        }
        for mut call in calls {
            truth = truth + call.grows;
            let mut look = call.look.take().unwrap_or_else(|| (pools.begin_reading(at).expect("it is there"), None));
            read(&mut look, truth);
            apply(&mut ledger, pools.record_reading(at, look.0, look.1, Some(call.reservation)));
        }
        let last = pools.begin_reading(at).expect("it is there");
        apply(&mut ledger, pools.record_reading(at, last, Some(truth), None));
        prop_assert_eq!(ledger, truth);
        prop_assert_eq!(pools.sums(), (truth, Bytes::ZERO));
    }
}

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
                    // Mostly a chunk, at times more than was thought.
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
    // The fake driver panics if it is asked about a destroyed pool.
    let fixture = Fixture::new(100);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
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
        looking.join().expect("no panic");
    });
    fixture.tenant.pools().all_changed(None);
    assert_eq!(fixture.used(), Bytes::ZERO);
}
