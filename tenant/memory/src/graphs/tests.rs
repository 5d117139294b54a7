//! Graphs that take memory in every way that is known or feared of drivers, against books that must neither lose nor keep a byte.

use std::collections::BTreeMap;
use std::sync::Mutex;

use cgpu_shm::atomic::Ordering;
use proptest::prelude::*;

use super::*;
use crate::doubles::{Container, gpu};
use crate::{Address, Tenant};

const PAGE: u64 = 2 << 20;

fn mib(count: u64) -> Bytes {
    Bytes::from_mib(count)
}

/// What the driver has for one executable graph.
#[derive(Clone, Debug, Default)]
struct Executable {
    needs: u64,
    /// What is mapped for it, used or not.
    has: u64,
    /// The stream in which it still runs.
    runs: Option<usize>,
    /// The program has not freed yet what it allocated.
    lives: bool,
}

impl Executable {
    fn is_idle(&self) -> bool {
        self.runs.is_none() && !self.lives
    }
}

/// A driver that serves one graph with what it has idle for others, or does not, as it is told.
#[derive(Debug, Default)]
struct Inside {
    executables: BTreeMap<usize, Executable>,
    /// Of graphs that are gone.
    loose: u64,
    thrifty: bool,
}

impl Inside {
    fn reserved(&self) -> u64 {
        self.loose + self.executables.values().map(|executable| executable.has).sum::<u64>()
    }

    fn launch(&mut self, id: usize, stream: usize, lives: bool) {
        let thrifty = self.thrifty;
        let mut executable = self.executables.remove(&id).expect("it is there");
        let mut lacks = executable.needs - executable.has;
        if thrifty {
            let idle =
                self.executables.values_mut().filter(|other| other.is_idle()).map(|other| &mut other.has);
            for others in idle.chain([&mut self.loose]) {
                let taken = lacks.min(*others);
                *others -= taken;
                lacks -= taken;
            }
        }
        executable = Executable { has: executable.needs, runs: Some(stream), lives, ..executable };
        self.executables.insert(id, executable);
    }

    fn trim(&mut self) {
        self.loose = 0;
        for executable in self.executables.values_mut().filter(|executable| executable.is_idle()) {
            executable.has = 0;
        }
    }

    fn finish(&mut self, stream: usize) {
        for executable in self.executables.values_mut().filter(|executable| executable.runs == Some(stream)) {
            executable.runs = None;
        }
    }
}

#[derive(Debug, Default)]
struct Fake(Mutex<Inside>);

impl Fake {
    fn on<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
        act(&mut self.0.lock().expect("no panic"))
    }
}

impl PoolDriver for Fake {
    fn reserved(&self, pool: PoolId) -> Option<Bytes> {
        assert_eq!(pool.graphs_gpu(), Some(gpu()));
        Some(Bytes(self.on(|inside| inside.reserved())))
    }

    fn used(&self, _: PoolId) -> Option<Bytes> {
        None
    }

    fn trim(&self, pool: PoolId) {
        assert_eq!(pool.graphs_gpu(), Some(gpu()));
        self.on(Inside::trim);
    }

    fn destroy(&self, _: PoolId) -> bool {
        panic!("it is no pool")
    }
}

struct World {
    _container: Container,
    tenant: Tenant,
    driver: &'static Fake,
}

impl World {
    fn new(limit: u64) -> Self {
        let container = Container::limited(limit);
        let tenant = container.tenant();
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
            self.driver.on(|inside| {
                inside.executables.insert(id, Executable { needs: needs.0, has, ..Executable::default() })
            });
            Ok(GraphId(id))
        };
        self.tenant.graphs().instantiate(footprint, takes, self.driver, try_allocate, |graph| {
            assert_eq!(graph, GraphId(id));
            self.destroy_in_driver(id);
        })
    }

    fn destroy_in_driver(&self, id: usize) {
        self.driver.on(|inside| {
            let gone = inside.executables.remove(&id).expect("it is there");
            inside.loose += gone.has;
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
        self.send(id, stream, Sending::Launch, false)
    }

    fn send(&self, id: usize, stream: usize, sending: Sending, lives: bool) -> Result<(), PoolError<u32>> {
        let call = || {
            if sending == Sending::Launch {
                self.driver.on(|inside| inside.launch(id, stream, lives));
            }
            Ok(())
        };
        // Who asks has waited long enough.
        let is_busy = || {
            self.driver.on(|inside| {
                let busy = inside.executables.values().any(|executable| executable.runs == Some(stream));
                inside.finish(stream);
                busy
            })
        };
        self.tenant.graphs().send(GraphId(id), sending, Lane { stream, context: 0, thread: 0 }, call, is_busy)
    }

    fn used(&self) -> Bytes {
        self.tenant.view().usage(gpu()).used
    }

    fn count(&self, reason: Reason) -> u32 {
        let slot = self.tenant.region().slot(self.tenant.name().slot());
        slot.counter[reason as usize].load(Ordering::Relaxed)
    }

    /// The books are what the driver has reserved.
    fn holds(&self, bytes: Bytes) {
        assert_eq!((self.used(), self.driver.on(|inside| Bytes(inside.reserved()))), (bytes, bytes));
        assert_eq!(self.tenant.tables.pools.sums(), (bytes, Bytes::ZERO));
    }
}

#[test]
fn graph_is_charged_by_its_reservation() {
    let world = World::new(100);
    world.instantiate(1, mib(30)).expect("it takes nothing yet");
    world.holds(Bytes::ZERO);
    world.send(1, 1, Sending::Upload, false).expect("it fits");
    world.holds(Bytes::ZERO);
    for _ in 0..3 {
        world.launch(1, 1).expect("it fits");
        world.holds(mib(30));
    }
    world.destroy(1);
    assert_eq!(world.tenant.graphs().gpu(GraphId(1)), None);
    world.holds(mib(30));
    world.driver.on(Inside::trim);
    world.tenant.pools().changed(PoolId::of_graphs(gpu()));
    world.holds(Bytes::ZERO);
}

#[test]
fn graph_with_memory_is_launched_without_a_charge() {
    let world = World::new(100);
    world.instantiate(1, mib(60)).expect("it takes nothing yet");
    for _ in 0..3 {
        // It still runs, and there is no room for another one like it.
        world.launch(1, 1).expect("it has its memory");
    }
    // In another stream it may need other memory; what runs is waited for.
    assert!(matches!(world.launch(1, 2), Err(PoolError::Denied(_))));
    world.holds(mib(60));
    world.driver.on(|inside| inside.finish(1));
    world.launch(1, 2).expect("it runs no more");
    world.holds(mib(60));
    assert_eq!(world.count(Reason::OverLimit), 1);
}

#[test]
fn two_graphs_with_memory_are_launched_without_a_charge() {
    let world = World::new(100);
    for id in [1, 2] {
        world.instantiate(id, mib(50)).expect("it takes nothing yet");
        world.launch(id, id).expect("it fits");
    }
    for round in 0..6 {
        let id = round % 2 + 1;
        world.launch(id, id).expect("it has its memory");
        world.holds(mib(100));
    }
    assert_eq!(world.count(Reason::OverLimit), 0);
}

#[test]
fn memory_passed_from_graph_to_graph_is_charged_first() {
    let world = World::new(100);
    world.driver.on(|inside| inside.thrifty = true);
    for id in [1, 2] {
        world.instantiate(id, mib(60)).expect("it takes nothing yet");
    }
    for round in 0..6 {
        // One after the other in one stream, which has no room for both.
        world.launch(round % 2 + 1, 1).expect("with what the other one gives back");
        world.holds(mib(60));
    }
    // The second one now has what the first one had, which must not be thought to have it still.
    world.driver.on(|inside| inside.finish(1));
    world.send(2, 1, Sending::Launch, true).expect("it is there");
    assert!(matches!(world.launch(1, 1), Err(PoolError::Denied(_))));
    world.holds(mib(60));
    assert_eq!(world.count(Reason::GraphGrew), 0);
}

#[test]
fn graph_whose_memory_went_to_another_is_charged_again() {
    let world = World::new(100);
    world.driver.on(|inside| inside.thrifty = true);
    world.instantiate(1, mib(60)).expect("it takes nothing yet");
    world.instantiate(2, mib(40)).expect("it takes nothing yet");
    world.launch(1, 1).expect("it fits");
    world.driver.on(|inside| inside.finish(1));
    // There is room for it, so that nothing need be trimmed; but the driver takes what it has idle.
    world.send(2, 2, Sending::Launch, true).expect("it fits");
    world.holds(mib(60));
    let charge = world.tenant.charge(gpu(), mib(40)).expect("it fits");
    assert!(matches!(world.launch(1, 1), Err(PoolError::Denied(_))), "it has not got its memory any more");
    world.holds_besides(mib(40), mib(40));
    drop(charge);
    world.launch(1, 1).expect("it fits");
    world.holds(mib(100));
    assert_eq!(world.count(Reason::GraphGrew), 0);
}

#[test]
fn graphs_and_other_memory_make_room_for_each_other() {
    let world = World::new(100);
    world.instantiate(1, mib(60)).expect("it takes nothing yet");
    world.launch(1, 1).expect("it fits");
    world.driver.on(|inside| inside.finish(1));
    let charge = world.tenant.charge(gpu(), mib(70)).expect("a graph that does not run does without");
    world.holds_besides(Bytes::ZERO, mib(70));
    assert!(matches!(world.launch(1, 1), Err(PoolError::Denied(_))));
    drop(charge);
    world.launch(1, 1).expect("it fits again");
    assert!(world.tenant.charge(gpu(), mib(70)).is_err(), "it runs");
    world.holds(mib(60));
}

impl World {
    fn holds_besides(&self, graphs: Bytes, others: Bytes) {
        assert_eq!(self.driver.on(|inside| Bytes(inside.reserved())), graphs);
        assert_eq!(self.used(), graphs + others);
    }
}

#[test]
fn eager_graph_without_room_is_not_instantiated() {
    let world = World::new(100);
    let made = |id, bytes, uploads| {
        let mut footprint = Footprint::new();
        footprint.add(gpu(), Address(PAGE), bytes).expect("host memory");
        let try_allocate = || {
            world.driver.on(|inside| {
                let executable = Executable { needs: bytes.0, has: bytes.0, ..Executable::default() };
                inside.executables.insert(id, executable)
            });
            Ok::<_, u32>(GraphId(id))
        };
        let undo = |_| world.destroy_in_driver(id);
        world.tenant.graphs().instantiate(&mut footprint, uploads, world.driver, try_allocate, undo)
    };
    made(1, mib(60), true).expect("it fits");
    world.holds(mib(60));
    // Trimmed, and so made.
    made(2, mib(70), true).expect("the other one does without");
    world.holds(mib(70));
    assert!(matches!(made(3, mib(170), true), Err(PoolError::Denied(_))));
    world.holds(mib(70));
    // A driver that takes it although nobody asked for that.
    assert!(matches!(made(4, mib(170), false), Err(PoolError::Denied(_))));
    world.holds(Bytes::ZERO);
    assert_eq!((world.count(Reason::PoolGrew), world.tenant.graphs().gpu(GraphId(4))), (1, None));
}

#[test]
fn graph_refused_by_the_driver_costs_nothing() {
    let world = World::new(100);
    world.instantiate(1, mib(60)).expect("it takes nothing yet");
    let lane = Lane { stream: 1, context: 0, thread: 0 };
    let failed = world.tenant.graphs().send(GraphId(1), Sending::Launch, lane, || Err(1), || false);
    assert_eq!(failed, Err(PoolError::Driver(1)));
    world.holds(Bytes::ZERO);
    let failed = world.tenant.graphs().instantiate(
        &mut Footprint::new(),
        false,
        world.driver,
        || Err(1),
        |_| panic!("there is nothing to undo"),
    );
    assert_eq!(failed, Err(PoolError::Driver(1)));
}

#[test]
fn launch_beyond_its_bound_is_shown_and_blocks_allocations() {
    let world = World::new(100);
    world.instantiate(1, mib(60)).expect("it takes nothing yet");
    world.driver.on(|inside| inside.executables.get_mut(&1).expect("it is there").needs = mib(140).0);
    world.launch(1, 1).expect("nobody can undo it");
    world.holds(mib(140));
    assert_eq!((world.count(Reason::GraphGrew), world.count(Reason::ImplicitOverLimit)), (1, 1));
    assert!(world.tenant.charge(gpu(), Bytes(1)).is_err());
    world.driver.on(|inside| inside.finish(1));
    assert!(world.tenant.charge(gpu(), Bytes(1)).is_ok());
}

#[test]
fn updated_graph_is_charged_by_its_new_bound() {
    let world = World::new(100);
    let footprint = |bytes| {
        let mut footprint = Footprint::new();
        footprint.add(gpu(), Address(PAGE), bytes).expect("host memory");
        footprint
    };
    let bounds =
        |id| world.tenant.tables.graphs.shares(GraphId(id)).map(|share| share.bytes).collect::<Vec<_>>();
    world.instantiate(1, mib(10)).expect("it takes nothing yet");
    world.tenant.graphs().updated(GraphId(1), &mut footprint(mib(20)), world.driver);
    assert_eq!(bounds(1), [mib(20)]);
    world.tenant.graphs().part_updated(GraphId(1), &mut footprint(mib(30)), world.driver);
    assert_eq!(bounds(1), [mib(50)]);
    // One that had no memory.
    world.tenant.graphs().part_updated(GraphId(2), &mut footprint(mib(30)), world.driver);
    assert_eq!(bounds(2), [mib(30)]);
    world.tenant.graphs().updated(GraphId(2), &mut Footprint::new(), world.driver);
    assert_eq!((bounds(2), world.tenant.graphs().gpu(GraphId(2))), (Vec::new(), None));
}

#[test]
fn reused_handle_is_another_graph() {
    let world = World::new(100);
    world.instantiate(1, mib(10)).expect("it takes nothing yet");
    let former = world.tenant.graphs().number(GraphId(1)).expect("it is known");
    // Destroyed, and made again by another thread before the first one has said so.
    world.instantiate(1, mib(20)).expect("it takes nothing yet");
    world.tenant.graphs().destroyed(GraphId(1), former);
    assert_eq!(world.tenant.graphs().gpu(GraphId(1)), Some(gpu()));
    world.destroy(1);
    assert_eq!(world.tenant.graphs().gpu(GraphId(1)), None);
    assert_eq!(world.tenant.graphs().number(GraphId(1)), None);
}

#[test]
fn pool_of_graphs_cannot_be_destroyed() {
    let world = World::new(100);
    world.instantiate(1, mib(10)).expect("it takes nothing yet");
    let ending = world.tenant.pools().begin_destroy(PoolId::of_graphs(gpu()));
    assert!(matches!(ending, crate::PoolDestroy::Uncharged), "{ending:?}");
    world.launch(1, 1).expect("it fits");
    world.holds(mib(10));
}

/// Two launches of one thread each, whose calls overlap in each way that two can.
#[test]
fn pending_launch_keeps_its_memory() {
    for trims in [false, true] {
        let world = World::new(100);
        world.driver.on(|inside| inside.thrifty = true);
        for id in [1, 2] {
            world.instantiate(id, mib(40)).expect("it takes nothing yet");
        }
        world.launch(1, 1).expect("it fits");
        world.driver.on(|inside| inside.finish(1));
        let lane = Lane { stream: 1, context: 0, thread: 0 };
        let call = || -> Result<(), u32> {
            // Before the driver gets to this launch, another thread trims, or launches with the memory that this one counts on;
            // and a third one tries for the rest.
            if trims {
                world.driver.on(Inside::trim);
                world.tenant.pools().changed(PoolId::of_graphs(gpu()));
            } else {
                world.launch(2, 2).expect("it fits");
            }
            assert!(world.tenant.charge(gpu(), mib(61)).is_err());
            world.driver.on(|inside| inside.launch(1, 1, false));
            Ok(())
        };
        world
            .tenant
            .graphs()
            .send(GraphId(1), Sending::Launch, lane, call, || false)
            .expect("it has its memory");
        world.holds(if trims { mib(40) } else { mib(80) });
        assert_eq!(world.count(Reason::GraphGrew), 0);
    }
}

proptest! {
    #[test]
    fn charges_equal_reservations_and_fitting_launches_are_not_refused(
        steps in prop::collection::vec((0..9_u8, 1..6_usize, 0..3_usize, 1..30_u64), 1..120),
    ) {
        let world = World::new(100);
        let mut linear = Vec::new();
        for (step, id, stream, pages) in steps {
            let there = world.driver.on(|inside| inside.executables.contains_key(&id));
            match step {
                0 if !there => world.instantiate(id, Bytes(pages * PAGE)).expect("it takes nothing yet"),
                1 | 2 if there => {
                    let lives = world.driver.on(|inside| inside.executables[&id].lives);
                    if !lives && world.send(id, stream, Sending::Launch, step == 2 && pages < 5).is_err() {
                        let (stays, needs) = world.driver.on(|inside| {
                            (inside.reserved(), inside.executables[&id].needs)
                        });
                        let others = linear.iter().map(|charge: &crate::Charge<'_>| charge.bytes()).sum::<Bytes>();
                        prop_assert!(others + Bytes(stays + needs) > mib(100), "it would have fitted");
                    }
                }
                3 if there && pages < 8 => world.destroy(id),
                4 => world.driver.on(|inside| inside.finish(stream)),
                5 if there => world.driver.on(|inside| inside.executables.get_mut(&id).expect("there").lives = false),
                6 => {
                    world.driver.on(Inside::trim);
                    world.tenant.pools().changed(PoolId::of_graphs(gpu()));
                }
                7 => world.driver.on(|inside| inside.thrifty = pages % 2 == 0),
                8 if pages % 2 == 0 => linear.extend(world.tenant.charge(gpu(), Bytes(pages * PAGE))),
                8 => drop(linear.pop()),
                _ => {}
            }
            let others = linear.iter().map(|charge| charge.bytes()).sum::<Bytes>();
            let reserved = world.driver.on(|inside| Bytes(inside.reserved()));
            prop_assert_eq!(world.used(), reserved + others);
            prop_assert!(world.used() <= mib(100));
            prop_assert_eq!(world.tenant.tables.pools.sums(), (reserved, Bytes::ZERO));
        }
        prop_assert_eq!(world.count(Reason::GraphGrew), 0);
    }
}

#[test]
fn launches_from_threads_leave_nothing_charged() {
    let world = World::new(100);
    std::thread::scope(|scope| {
        for id in 1..=4_usize {
            let world = &world;
            scope.spawn(move || {
                world.instantiate(id, mib(24)).expect("it takes nothing yet");
                for round in 0..2_000 {
                    let _ = world.launch(id, id);
                    assert!(world.used() <= mib(100));
                    match (round + id) % 16 {
                        0..4 => world.driver.on(|inside| inside.finish(id)),
                        4 => drop(world.tenant.charge(gpu(), mib(30))),
                        5 => world.driver.on(|inside| inside.thrifty = !inside.thrifty),
                        _ => {}
                    }
                }
                world.driver.on(|inside| inside.finish(id));
                world.destroy(id);
            });
        }
    });
    assert_eq!(world.count(Reason::GraphGrew), 0);
    world.driver.on(Inside::trim);
    world.tenant.pools().changed(PoolId::of_graphs(gpu()));
    world.holds(Bytes::ZERO);
}
