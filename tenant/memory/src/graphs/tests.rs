//! Graphs of a fake driver, against an accounting that must neither lose nor keep a byte.

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::doubles::{Container, count, gpu, limited, mib, used};
use crate::{Address, Tenant};

const PAGE: u64 = 2 << 20;

/// What the driver has for one executable graph.
#[derive(Clone, Debug, Default)]
struct Executable {
    needs: u64,
    /// Mapped for it, used or not.
    has: u64,
    runs: Option<usize>,
    /// Whether its allocations have not been freed yet.
    is_live: bool,
}

impl Executable {
    fn is_idle(&self) -> bool {
        self.runs.is_none() && !self.is_live
    }
}

/// A driver that may give one graph the idle memory of others.
#[derive(Debug, Default)]
struct State {
    executables: BTreeMap<usize, Executable>,
    /// Memory of destroyed graphs.
    unowned: u64,
    /// Whether a launch takes idle memory of other graphs.
    reuses_idle: bool,
}

impl State {
    fn reserved(&self) -> u64 {
        self.unowned + self.executables.values().map(|executable| executable.has).sum::<u64>()
    }

    fn launch(&mut self, id: usize, stream: usize, is_live: bool) {
        let reuses_idle = self.reuses_idle;
        let mut executable = self.executables.remove(&id).expect("it is there");
        let mut lacks = executable.needs - executable.has;
        if reuses_idle {
            let idle = self
                .executables
                .values_mut()
                .filter(|other| other.is_idle())
                .map(|other| &mut other.has);
            for others in idle.chain([&mut self.unowned]) {
                let taken = lacks.min(*others);
                *others -= taken;
                lacks -= taken;
            }
        }
        executable =
            Executable { has: executable.needs, runs: Some(stream), is_live, ..executable };
        self.executables.insert(id, executable);
    }

    fn trim(&mut self) {
        self.unowned = 0;
        for executable in self.executables.values_mut().filter(|executable| executable.is_idle()) {
            executable.has = 0;
        }
    }

    fn finish(&mut self, stream: usize) {
        for executable in
            self.executables.values_mut().filter(|executable| executable.runs == Some(stream))
        {
            executable.runs = None;
        }
    }
}

#[derive(Debug, Default)]
struct Fake(Mutex<State>);

impl Fake {
    fn on<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().expect("no panic"))
    }
}

impl PoolDriver for Fake {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        assert_eq!(pool.graphs_gpu(), Some(gpu()));
        Some(Bytes(self.on(|state| state.reserved())))
    }

    fn used(&self, _: PoolId) -> Option<Bytes> {
        None
    }

    fn trim(&self, pool: PoolId) {
        assert_eq!(pool.graphs_gpu(), Some(gpu()));
        self.on(State::trim);
    }

    fn destroy(&self, _: PoolId) -> bool {
        panic!("it is no pool")
    }
}

struct Fixture {
    _container: Container,
    tenant: Tenant,
    driver: &'static Fake,
}

impl Fixture {
    fn new(limit: u64) -> Self {
        let (container, tenant) = limited(limit);
        Self { _container: container, tenant, driver: Box::leak(Box::default()) }
    }

    fn instantiate(&self, id: usize, needs: Bytes) -> Result<(), PoolError<u32>> {
        let mut footprint = Footprint::new();
        footprint.add(gpu(), Address(id as u64 * (1 << 40)), needs).expect("host memory");
        self.instantiate_as(id, &mut footprint, needs, false)
    }

    fn instantiate_as(
        &self,
        id: usize,
        footprint: &mut Footprint,
        needs: Bytes,
        takes: bool,
    ) -> Result<(), PoolError<u32>> {
        let try_allocate = || {
            let has = if takes { needs.0 } else { 0 };
            self.driver.on(|state| {
                state
                    .executables
                    .insert(id, Executable { needs: needs.0, has, ..Executable::default() })
            });
            Ok(GraphId(id))
        };
        self.tenant.graphs().instantiate(footprint, takes, self.driver, try_allocate, |graph| {
            assert_eq!(graph, GraphId(id));
            self.destroy_in_driver(id);
        })
    }

    fn destroy_in_driver(&self, id: usize) {
        self.driver.on(|state| {
            let gone = state.executables.remove(&id).expect("it is there");
            state.unowned += gone.has;
        });
    }

    fn destroy(&self, id: usize) {
        let number = self.tenant.graphs().number(GraphId(id));
        self.destroy_in_driver(id);
        if let Some(number) = number {
            self.tenant.graphs().destroyed(GraphId(id), number);
        }
    }

    fn launch(&self, id: usize, stream: usize) -> Result<(), PoolError<u32>> {
        self.send(id, stream, Submission::Launch, false)
    }

    fn send(
        &self,
        id: usize,
        stream: usize,
        submission: Submission,
        is_live: bool,
    ) -> Result<(), PoolError<u32>> {
        let call = || {
            if submission == Submission::Launch {
                self.driver.on(|state| state.launch(id, stream, is_live));
            }
            Ok(())
        };
        // The stream finishes after the first query.
        let is_busy = || {
            self.driver.on(|state| {
                let busy =
                    state.executables.values().any(|executable| executable.runs == Some(stream));
                state.finish(stream);
                busy
            })
        };
        self.tenant.graphs().send(
            GraphId(id),
            submission,
            Lane { stream, context: 0, thread: 0 },
            call,
            is_busy,
        )
    }

    fn used(&self) -> Bytes {
        used(&self.tenant)
    }

    fn count(&self, reason: Reason) -> u32 {
        count(&self.tenant, reason)
    }

    /// Asserts that what is charged is what the driver has reserved.
    fn holds(&self, bytes: Bytes) {
        assert_eq!((self.used(), self.driver.on(|state| Bytes(state.reserved()))), (bytes, bytes));
        assert_eq!(self.tenant.tables.pools.sums(), (bytes, Bytes::ZERO));
    }
}

#[test]
fn graph_is_charged_by_its_reservation() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(30)).expect("it takes nothing yet");
    fixture.holds(Bytes::ZERO);
    fixture.send(1, 1, Submission::Upload, false).expect("it fits");
    fixture.holds(Bytes::ZERO);
    for _ in 0..3 {
        fixture.launch(1, 1).expect("it fits");
        fixture.holds(mib(30));
    }
    fixture.destroy(1);
    assert_eq!(fixture.tenant.graphs().gpu(GraphId(1)), None);
    fixture.holds(mib(30));
    fixture.driver.on(State::trim);
    fixture.tenant.pools().changed(PoolId::of_graphs(gpu()));
    fixture.holds(Bytes::ZERO);
}

#[test]
fn graph_that_has_its_memory_is_launched_without_a_charge() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(60)).expect("it takes nothing yet");
    for _ in 0..3 {
        // The former launch still runs, and two do not fit.
        fixture.launch(1, 1).expect("it has its memory");
    }
    // In another stream it may need other memory.
    assert!(matches!(fixture.launch(1, 2), Err(PoolError::Denied(_))));
    fixture.holds(mib(60));
    fixture.driver.on(|state| state.finish(1));
    fixture.launch(1, 2).expect("it runs no more");
    fixture.holds(mib(60));
    assert_eq!(fixture.count(Reason::OverLimit), 1);
}

#[test]
fn two_graphs_that_have_their_memory_are_launched_without_a_charge() {
    let fixture = Fixture::new(100);
    for id in [1, 2] {
        fixture.instantiate(id, mib(50)).expect("it takes nothing yet");
        fixture.launch(id, id).expect("it fits");
    }
    for round in 0..6 {
        let id = round % 2 + 1;
        fixture.launch(id, id).expect("it has its memory");
        fixture.holds(mib(100));
    }
    assert_eq!(fixture.count(Reason::OverLimit), 0);
}

#[test]
fn memory_passed_from_graph_to_graph_is_charged_first() {
    let fixture = Fixture::new(100);
    fixture.driver.on(|state| state.reuses_idle = true);
    for id in [1, 2] {
        fixture.instantiate(id, mib(60)).expect("it takes nothing yet");
    }
    for round in 0..6 {
        // One after the other in one stream: both do not fit.
        fixture.launch(round % 2 + 1, 1).expect("the other one's memory is trimmed");
        fixture.holds(mib(60));
    }
    // The second one now has the memory of the first one.
    fixture.driver.on(|state| state.finish(1));
    fixture.send(2, 1, Submission::Launch, true).expect("it is there");
    assert!(matches!(fixture.launch(1, 1), Err(PoolError::Denied(_))));
    fixture.holds(mib(60));
    assert_eq!(fixture.count(Reason::GraphGrew), 0);
}

#[test]
fn graph_whose_memory_went_to_another_is_charged_again() {
    let fixture = Fixture::new(100);
    fixture.driver.on(|state| state.reuses_idle = true);
    fixture.instantiate(1, mib(60)).expect("it takes nothing yet");
    fixture.instantiate(2, mib(40)).expect("it takes nothing yet");
    fixture.launch(1, 1).expect("it fits");
    fixture.driver.on(|state| state.finish(1));
    // It fits, so nothing is trimmed; but the driver reuses idle memory.
    fixture.send(2, 2, Submission::Launch, true).expect("it fits");
    fixture.holds(mib(60));
    let charge = fixture.tenant.charge(gpu(), mib(40)).expect("it fits");
    assert!(
        matches!(fixture.launch(1, 1), Err(PoolError::Denied(_))),
        "it no longer has its memory"
    );
    fixture.holds_besides(mib(40), mib(40));
    drop(charge);
    fixture.launch(1, 1).expect("it fits");
    fixture.holds(mib(100));
    assert_eq!(fixture.count(Reason::GraphGrew), 0);
}

#[test]
fn graphs_and_other_memory_make_room_for_each_other() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(60)).expect("it takes nothing yet");
    fixture.launch(1, 1).expect("it fits");
    fixture.driver.on(|state| state.finish(1));
    let charge = fixture.tenant.charge(gpu(), mib(70)).expect("an idle graph is trimmed");
    fixture.holds_besides(Bytes::ZERO, mib(70));
    assert!(matches!(fixture.launch(1, 1), Err(PoolError::Denied(_))));
    drop(charge);
    fixture.launch(1, 1).expect("it fits again");
    assert!(fixture.tenant.charge(gpu(), mib(70)).is_err(), "it runs");
    fixture.holds(mib(60));
}

impl Fixture {
    fn holds_besides(&self, graphs: Bytes, others: Bytes) {
        assert_eq!(self.driver.on(|state| Bytes(state.reserved())), graphs);
        assert_eq!(self.used(), graphs + others);
    }
}

#[test]
fn graph_uploaded_without_room_is_not_instantiated() {
    let fixture = Fixture::new(100);
    let made = |id, bytes, uploads| {
        let mut footprint = Footprint::new();
        footprint.add(gpu(), Address(PAGE), bytes).expect("host memory");
        let try_allocate = || {
            fixture.driver.on(|state| {
                let executable =
                    Executable { needs: bytes.0, has: bytes.0, ..Executable::default() };
                state.executables.insert(id, executable)
            });
            Ok::<_, u32>(GraphId(id))
        };
        let undo = |_| fixture.destroy_in_driver(id);
        fixture.tenant.graphs().instantiate(
            &mut footprint,
            uploads,
            fixture.driver,
            try_allocate,
            undo,
        )
    };
    made(1, mib(60), true).expect("it fits");
    fixture.holds(mib(60));
    made(2, mib(70), true).expect("the other one is trimmed");
    fixture.holds(mib(70));
    assert!(matches!(made(3, mib(170), true), Err(PoolError::Denied(_))));
    fixture.holds(mib(70));
    // A driver that uploads although that was not requested.
    assert!(matches!(made(4, mib(170), false), Err(PoolError::Denied(_))));
    fixture.holds(Bytes::ZERO);
    assert_eq!(
        (fixture.count(Reason::PoolGrew), fixture.tenant.graphs().gpu(GraphId(4))),
        (1, None)
    );
}

#[test]
fn graph_refused_by_the_driver_costs_nothing() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(60)).expect("it takes nothing yet");
    let lane = Lane { stream: 1, context: 0, thread: 0 };
    let failed =
        fixture.tenant.graphs().send(GraphId(1), Submission::Launch, lane, || Err(1), || false);
    assert_eq!(failed, Err(PoolError::Driver(1)));
    fixture.holds(Bytes::ZERO);
    let failed = fixture.tenant.graphs().instantiate(
        &mut Footprint::new(),
        false,
        fixture.driver,
        || Err(1),
        |_| panic!("there is nothing to undo"),
    );
    assert_eq!(failed, Err(PoolError::Driver(1)));
}

#[test]
fn launch_beyond_its_bound_is_charged_and_blocks_allocations() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(60)).expect("it takes nothing yet");
    fixture
        .driver
        .on(|state| state.executables.get_mut(&1).expect("it is there").needs = mib(140).0);
    fixture.launch(1, 1).expect("it cannot be undone");
    fixture.holds(mib(140));
    assert_eq!(
        (fixture.count(Reason::GraphGrew), fixture.count(Reason::ImplicitOverLimit)),
        (1, 1)
    );
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_err());
    fixture.driver.on(|state| state.finish(1));
    assert!(fixture.tenant.charge(gpu(), Bytes(1)).is_ok());
}

#[test]
fn updated_graph_is_charged_by_its_new_bound() {
    let fixture = Fixture::new(100);
    let footprint = |bytes| {
        let mut footprint = Footprint::new();
        footprint.add(gpu(), Address(PAGE), bytes).expect("host memory");
        footprint
    };
    let bounds = |id| {
        fixture
            .tenant
            .tables
            .graphs
            .shares(GraphId(id))
            .map(|share| share.bytes)
            .collect::<Vec<_>>()
    };
    fixture.instantiate(1, mib(10)).expect("it takes nothing yet");
    fixture.tenant.graphs().updated(GraphId(1), &mut footprint(mib(20)), fixture.driver);
    assert_eq!(bounds(1), [mib(20)]);
    fixture.tenant.graphs().part_updated(GraphId(1), &mut footprint(mib(30)), fixture.driver);
    assert_eq!(bounds(1), [mib(50)]);
    // A graph without memory.
    fixture.tenant.graphs().part_updated(GraphId(2), &mut footprint(mib(30)), fixture.driver);
    assert_eq!(bounds(2), [mib(30)]);
    fixture.tenant.graphs().updated(GraphId(2), &mut Footprint::new(), fixture.driver);
    assert_eq!((bounds(2), fixture.tenant.graphs().gpu(GraphId(2))), (Vec::new(), None));
}

#[test]
fn reused_handle_is_another_graph() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(10)).expect("it takes nothing yet");
    let former = fixture.tenant.graphs().number(GraphId(1)).expect("it is known");
    // The driver has destroyed it and another thread reuses the handle, before the destroying call
    // has returned here.
    fixture.instantiate(1, mib(20)).expect("it takes nothing yet");
    fixture.tenant.graphs().destroyed(GraphId(1), former);
    assert_eq!(fixture.tenant.graphs().gpu(GraphId(1)), Some(gpu()));
    fixture.destroy(1);
    assert_eq!(fixture.tenant.graphs().gpu(GraphId(1)), None);
    assert_eq!(fixture.tenant.graphs().number(GraphId(1)), None);
}

#[test]
fn pool_of_graphs_cannot_be_destroyed() {
    let fixture = Fixture::new(100);
    fixture.instantiate(1, mib(10)).expect("it takes nothing yet");
    let ending = fixture.tenant.pools().begin_destroy(PoolId::of_graphs(gpu()));
    assert!(matches!(ending, crate::PoolDestroy::Uncharged), "{ending:?}");
    fixture.launch(1, 1).expect("it fits");
    fixture.holds(mib(10));
}

#[test]
fn pending_launch_keeps_its_memory() {
    for trims in [false, true] {
        let fixture = Fixture::new(100);
        fixture.driver.on(|state| state.reuses_idle = true);
        for id in [1, 2] {
            fixture.instantiate(id, mib(40)).expect("it takes nothing yet");
        }
        fixture.launch(1, 1).expect("it fits");
        fixture.driver.on(|state| state.finish(1));
        let lane = Lane { stream: 1, context: 0, thread: 0 };
        let call = || -> Result<(), u32> {
            // Before the driver executes this launch, another thread trims, or launches with the
            // memory that this one relies on; a third one charges the rest.
            if trims {
                fixture.driver.on(State::trim);
                fixture.tenant.pools().changed(PoolId::of_graphs(gpu()));
            } else {
                fixture.launch(2, 2).expect("it fits");
            }
            assert!(fixture.tenant.charge(gpu(), mib(61)).is_err());
            fixture.driver.on(|state| state.launch(1, 1, false));
            Ok(())
        };
        fixture
            .tenant
            .graphs()
            .send(GraphId(1), Submission::Launch, lane, call, || false)
            .expect("it has its memory");
        fixture.holds(if trims { mib(40) } else { mib(80) });
        assert_eq!(fixture.count(Reason::GraphGrew), 0);
    }
}

proptest! {
    #[test]
    fn charges_equal_reservations_and_fitting_launches_are_not_refused(
        steps in prop::collection::vec((0..9_u8, 1..6_usize, 0..3_usize, 1..30_u64), 1..120),
    ) {
        let fixture = Fixture::new(100);
        let mut linear = Vec::new();
        for (step, id, stream, pages) in steps {
            let there = fixture.driver.on(|state| state.executables.contains_key(&id));
            match step {
                0 if !there => {
                    fixture.instantiate(id, Bytes(pages * PAGE)).expect("it takes nothing yet")
                }
                1 | 2 if there => {
                    let is_live = fixture.driver.on(|state| state.executables[&id].is_live);
                    if !is_live
                        && fixture
                            .send(id, stream, Submission::Launch, step == 2 && pages < 5)
                            .is_err()
                    {
                        let (stays, needs) = fixture
                            .driver
                            .on(|state| (state.reserved(), state.executables[&id].needs));
                        let others = linear
                            .iter()
                            .map(|charge: &crate::Charge<'_>| charge.bytes())
                            .sum::<Bytes>();
                        prop_assert!(
                            others + Bytes(stays + needs) > mib(100),
                            "it would have fitted"
                        );
                    }
                }
                3 if there && pages < 8 => fixture.destroy(id),
                4 => fixture.driver.on(|state| state.finish(stream)),
                5 if there => fixture
                    .driver
                    .on(|state| state.executables.get_mut(&id).expect("there").is_live = false),
                6 => {
                    fixture.driver.on(State::trim);
                    fixture.tenant.pools().changed(PoolId::of_graphs(gpu()));
                }
                7 => fixture.driver.on(|state| state.reuses_idle = pages % 2 == 0),
                8 if pages % 2 == 0 => {
                    linear.extend(fixture.tenant.charge(gpu(), Bytes(pages * PAGE)))
                }
                8 => drop(linear.pop()),
                _ => {}
            }
            let others = linear.iter().map(|charge| charge.bytes()).sum::<Bytes>();
            let reserved = fixture.driver.on(|state| Bytes(state.reserved()));
            prop_assert_eq!(fixture.used(), reserved + others);
            prop_assert!(fixture.used() <= mib(100));
            prop_assert_eq!(fixture.tenant.tables.pools.sums(), (reserved, Bytes::ZERO));
        }
        prop_assert_eq!(fixture.count(Reason::GraphGrew), 0);
    }
}

#[test]
fn launches_from_threads_leave_nothing_charged() {
    let fixture = Fixture::new(100);
    std::thread::scope(|scope| {
        for id in 1..=4_usize {
            let fixture = &fixture;
            scope.spawn(move || {
                fixture.instantiate(id, mib(24)).expect("it takes nothing yet");
                for round in 0..2_000 {
                    let _ = fixture.launch(id, id);
                    assert!(fixture.used() <= mib(100));
                    match (round + id) % 16 {
                        0..4 => fixture.driver.on(|state| state.finish(id)),
                        4 => drop(fixture.tenant.charge(gpu(), mib(30))),
                        5 => fixture.driver.on(|state| state.reuses_idle = !state.reuses_idle),
                        _ => {}
                    }
                }
                fixture.driver.on(|state| state.finish(id));
                fixture.destroy(id);
            });
        }
    });
    assert_eq!(fixture.count(Reason::GraphGrew), 0);
    fixture.driver.on(State::trim);
    fixture.tenant.pools().changed(PoolId::of_graphs(gpu()));
    fixture.holds(Bytes::ZERO);
}
