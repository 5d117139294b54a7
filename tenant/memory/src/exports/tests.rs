//! Every path, and whole histories of three processes that exit in any order, against a model of
//! the driver.

use cgpu_shm::slots::DRAIN_PERIOD;
use proptest::prelude::*;

use cgpu_shm::atomic::Ordering;

use super::*;
use crate::Tenant;
use crate::doubles::{Container, gpu, mib};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn used(tenant: &Tenant) -> Bytes {
    tenant.exports().refund_unheld();
    tenant.view().usage(gpu()).used
}

fn allocate(tenant: &Tenant, address: u64, size: Bytes, context: Option<Context>) {
    tenant.charge(gpu(), size).expect("it fits").commit(Address(address), context);
}

fn free(tenant: &Tenant, address: u64) {
    tenant.allocations().begin_free(Address(address)).expect("accounted").freed();
}

/// Returns the route of a handle with this number; the first forty differ.
fn route(number: u64) -> Route {
    let mut seen = 0;
    let routes = (0u64..).map(|seed| Route::of_bytes(&seed.to_ne_bytes()));
    let mut distinct = routes.filter(|route| {
        let is_new = seen & route.0 == 0;
        seen |= route.0;
        is_new
    });
    distinct.nth(usize::try_from(number).unwrap() % 40).unwrap()
}

/// Creates a container of 10 MiB with two processes, of which the first has exported 6 MiB.
fn exporter(route: Route) -> (Container, Tenant, Tenant) {
    let container = Container::limited(10);
    let (maker, other) = (container.tenant(), container.tenant());
    allocate(&maker, BASE, mib(6), None);
    maker.exports().export(Address(BASE), route);
    (container, maker, other)
}

/// Sweeps until exited processes and their memory are reclaimed.
fn reclaim_exited(container: &Container, observer: &Tenant) {
    for _ in 0..3 {
        let _ = observer.region().sweep(crate::Clock::now(container.clock), false);
        container.clock.advance(DRAIN_PERIOD);
    }
}

#[test]
fn route_of_a_handle_is_one_bit_below_the_untracked() {
    let bits = |seed: u64| Route::of_bytes(&seed.to_ne_bytes()).0;
    assert!((0..1000).all(|seed| bits(seed).is_power_of_two() && bits(seed) != Route::UNTRACKED.0));
    let all = (0..1000).map(bits).fold(0, |all, bit| all | bit);
    assert_eq!(all, Route::UNTRACKED.0 - 1, "every bit is some handle's");
    assert_eq!(route(3), route(3));
    assert_ne!(route(3), route(4));
}

#[test]
fn exported_memory_open_nowhere_is_refunded_when_freed() {
    let (_container, tenant, _other) = exporter(route(1));
    free(&tenant, BASE);
    assert_eq!(used(&tenant), Bytes::ZERO);
    assert_eq!(
        tenant.region().cell(gpu(), tenant.slot_owner().slot()).exported.load(Ordering::Relaxed),
        0
    );
}

/// Otherwise a process could allocate, let another one open it, free, and repeat that without end.
#[test]
fn memory_open_elsewhere_stays_charged_to_its_exporter() {
    let (_container, maker, holder) = exporter(route(1));
    holder.exports().begin_import(route(1)).opened(Address(0x1000_0000), None);
    free(&maker, BASE);
    assert_eq!(used(&maker), mib(6));
    assert!(holder.charge(gpu(), mib(6)).is_err());
    holder.exports().begin_close(Address(0x1000_0000)).expect("open").closed();
    assert!(holder.exports().begin_close(Address(0x1000_0000)).is_none());
    // Only its maker refunds it, at its next charge or query.
    assert!(maker.charge(gpu(), mib(10)).is_ok());
}

/// Otherwise memory that was opened, exported by a descriptor and closed would be unaccounted.
#[test]
fn descriptor_of_imported_memory_keeps_it_charged_while_its_holder_lives() {
    let (container, maker, holder) = exporter(route(1));
    holder.exports().begin_import(route(1)).opened(Address(0x1000_0000), None);
    holder.exports().pin(Address(0x1000_0000));
    holder.exports().pin(Address(0x2000_0000));
    holder.exports().begin_close(Address(0x1000_0000)).expect("open").closed();
    free(&maker, BASE);
    assert_eq!(used(&maker), mib(6));
    drop(holder);
    reclaim_exited(&container, &maker);
    assert_eq!(used(&maker), Bytes::ZERO);
}

#[test]
fn import_refused_by_the_driver_holds_nothing() {
    let (_container, maker, other) = exporter(route(1));
    let opening = other.exports().begin_import(route(1));
    free(&maker, BASE);
    assert_eq!(used(&maker), mib(6));
    drop(opening);
    assert_eq!(used(&maker), Bytes::ZERO);
}

#[test]
fn free_refused_by_the_driver_changes_nothing() {
    let (_container, maker, holder) = exporter(route(1));
    drop(maker.allocations().begin_free(Address(BASE)));
    holder.exports().begin_import(route(1)).opened(Address(0x1000_0000), None);
    free(&maker, BASE);
    assert_eq!(used(&maker), mib(6), "it is exported as before");
}

#[test]
fn ended_context_releases_what_was_not_exported() {
    let container = Container::limited(50);
    let (maker, holder) = (container.tenant(), container.tenant());
    let id = container.handle();
    let context = maker.contexts().adopt(id, gpu());
    for (index, size) in [(0, 2), (1, 4), (2, 8)] {
        allocate(&maker, BASE + index * 16 * MIB, mib(size), Some(context));
    }
    maker.exports().export(Address(BASE), route(1));
    maker.exports().export(Address(BASE + 16 * MIB), route(2));
    let theirs = container.handle();
    let open_in = holder.contexts().adopt(theirs, gpu());
    holder.exports().begin_import(route(2)).opened(Address(0x1000_0000), Some(open_in));
    maker.contexts().begin_destroy(id).expect("known").destroyed();
    assert_eq!(used(&maker), mib(4), "the one that is open elsewhere");
    // It is closed with the context that it was opened in.
    holder.contexts().begin_destroy(theirs).expect("known").destroyed();
    assert_eq!(used(&maker), Bytes::ZERO);
}

#[test]
fn descriptor_keeps_freed_memory_charged_until_its_exporter_ends() {
    let (container, maker, other) = exporter(Route::UNTRACKED);
    free(&maker, BASE);
    assert_eq!(used(&maker), mib(6));
    drop(maker);
    reclaim_exited(&container, &other);
    let usage = other.view().usage(gpu());
    assert_eq!(
        (usage.used, usage.orphan, usage.draining),
        (mib(6), mib(6), Bytes::ZERO),
        "{usage:?}"
    );
    drop(other);
    let next = container.tenant();
    reclaim_exited(&container, &next);
    assert_eq!(used(&next), Bytes::ZERO, "no process remains that could hold it");
}

/// Memory as the driver knows it: its maker, whether that still has it, which processes have it
/// open.
#[derive(Clone, Debug)]
struct Truth {
    maker: usize,
    address: u64,
    handle: u64,
    size: Bytes,
    exported: bool,
    owned: bool,
    open: Vec<usize>,
}

/// Returns one of the elements that `may` admits.
fn pick(memory: &mut [Truth], which: usize, may: impl Fn(&Truth) -> bool) -> Option<&mut Truth> {
    let count = memory.iter().filter(|truth| may(truth)).count();
    memory.iter_mut().filter(|truth| may(truth)).nth(which.checked_rem(count)?)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize, u64),
    Export(usize),
    Open(usize, usize),
    Close(usize),
    Free(usize),
    Exit(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let process = 0..3usize;
    let step = prop_oneof![
        3 => (process.clone(), 1..4u64).prop_map(|(process, size)| Step::Allocate(process, size)),
        3 => any::<usize>().prop_map(Step::Export),
        4 => (process.clone(), any::<usize>())
            .prop_map(|(process, which)| Step::Open(process, which)),
        2 => any::<usize>().prop_map(Step::Close),
        3 => any::<usize>().prop_map(Step::Free),
        1 => process.prop_map(Step::Exit),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever three processes export to each other, and in whatever order they exit: what is on
    /// the GPU is charged once.
    #[test]
    fn charges_equal_the_memory_that_is_there(steps in steps()) {
        let container = Container::limited(100);
        let observer = container.tenant();
        let mut processes: Vec<Option<Tenant>> = (0..3).map(|_| Some(container.tenant())).collect();
        let mut memory: Vec<Truth> = Vec::new();
        let mut made = 0;
        for step in steps {
            match step {
                Step::Allocate(process, size) => {
                    let Some(tenant) = &processes[process] else { continue };
                    if made == 12 {
                        continue;
                    }
                    made += 1;
                    let address = BASE + made * 64 * MIB;
                    allocate(tenant, address, mib(2 * size), None);
                    memory.push(Truth {
                        maker: process,
                        address,
                        handle: made,
                        size: mib(2 * size),
                        exported: false,
                        owned: true,
                        open: Vec::new(),
                    });
                }
                Step::Export(which) => {
                    let Some(truth) = pick(&mut memory, which, |truth| truth.owned) else {
                        continue;
                    };
                    processes[truth.maker]
                        .as_ref()
                        .unwrap()
                        .exports()
                        .export(Address(truth.address), route(truth.handle));
                    truth.exported = true;
                }
                Step::Open(process, which) => {
                    let Some(tenant) = &processes[process] else { continue };
                    let is_good =
                        |truth: &Truth| truth.owned && truth.exported && truth.maker != process;
                    let Some(truth) = pick(&mut memory, which, is_good) else { continue };
                    tenant
                        .exports()
                        .begin_import(route(truth.handle))
                        .opened(Address(truth.address + 1024 * MIB), None);
                    truth.open.push(process);
                }
                Step::Close(which) => {
                    let is_open = |truth: &Truth| !truth.open.is_empty();
                    let Some(truth) = pick(&mut memory, which, is_open) else { continue };
                    let process = truth.open.swap_remove(0);
                    let tenant = processes[process].as_ref().unwrap();
                    tenant
                        .exports()
                        .begin_close(Address(truth.address + 1024 * MIB))
                        .expect("open")
                        .closed();
                }
                Step::Free(which) => {
                    let Some(truth) = pick(&mut memory, which, |truth| truth.owned) else {
                        continue;
                    };
                    free(processes[truth.maker].as_ref().unwrap(), truth.address);
                    truth.owned = false;
                }
                Step::Exit(process) => {
                    if processes[process].take().is_none() {
                        continue;
                    }
                    for truth in &mut memory {
                        truth.owned &= truth.maker != process;
                        truth.open.retain(|holder| *holder != process);
                    }
                    reclaim_exited(&container, &observer);
                }
            }
            memory.retain(|truth| truth.owned || !truth.open.is_empty());
            for tenant in processes.iter().flatten() {
                tenant.exports().refund_unheld();
            }
            reclaim_exited(&container, &observer);
            let there: Bytes = memory.iter().map(|truth| truth.size).sum();
            // The exports of an exited process are refunded together.
            let usage = observer.view().usage(gpu());
            prop_assert!(
                usage.orphan > Bytes::ZERO || usage.used == there,
                "{:?}: {:?}, {:?}",
                step,
                usage,
                memory
            );
            prop_assert!(observer.view().usage(gpu()).used >= there, "{:?}: {:?}", step, memory);
        }
        // Everything is refunded after the last one.
        processes.clear();
        reclaim_exited(&container, &observer);
        reclaim_exited(&container, &observer);
        prop_assert_eq!(observer.view().usage(gpu()).used, Bytes::ZERO);
        prop_assert!(observer.region().is_valid());
    }
}
