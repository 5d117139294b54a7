//! Charges for code and limits; the monitor's measurement of a process.

use cgpu_shm::atomic::Ordering;
use cgpu_shm::grant::GrantWriter;
use cgpu_shm::slots::Word;
use cgpu_shm::unaccounted::UnaccountedDelta;

use super::*;
use crate::doubles::{Container, count, gpu, implicit, mib};
use crate::{Address, ContextId, Tenant};

/// Allocates memory at 0x20_0000.
fn allocate(tenant: &Tenant, size: Bytes) {
    tenant.charge(gpu(), size).expect("it fits").commit(Address(0x20_0000), None);
}

/// Starts a process with a context of 10 MiB.
fn process(container: &Container) -> (Tenant, ContextId, Context) {
    let (tenant, handle) = (container.tenant(), container.handle());
    let starting = tenant.contexts().begin_create(gpu(), || Some(mib(100))).expect("it fits");
    let context = starting.created(handle, || Some(mib(90)));
    (tenant, handle, context)
}

/// Ends the growth with this much free on the GPU.
fn grown(growing: PendingImplicit<'_>, cause: Cause, physical_free: Bytes) {
    let growth = growing.growth(|| Some(physical_free));
    growing.grown(cause, growth);
}

/// Publishes a monitor's measurement of a process.
fn measure(container: &Container, tenant: &Tenant, bytes: i64) {
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    let slot = tenant.slot_owner().slot();
    let word = Word(tenant.region().slot(slot).state.load(Ordering::Relaxed));
    let ended = tenant.region().cell(gpu(), slot).implicit_epoch.load(Ordering::Relaxed);
    monitor.set_unaccounted(gpu(), slot, UnaccountedDelta::new(word, ended, bytes), bytes > 0);
}

/// A module was charged too much, because a neighbour allocated meanwhile, and the monitor
/// corrected that. The unload once refunded the whole charge: until the next measurement less was
/// charged than used, and a sibling got the difference.
#[test]
fn correction_by_the_monitor_is_not_refunded_twice() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let load = |came: u64| {
        let growing = tenant.implicit().begin(context, mib(4), || Some(mib(80))).expect("it fits");
        grown(growing, Cause::Module(1), mib(80 - came));
    };
    let total = || tenant.view().usage(gpu()).total();
    load(9);
    assert_eq!(total(), mib(19));
    measure(&container, &tenant, -(5 << 20));
    assert_eq!(total(), mib(14));
    tenant.implicit().unloaded(Cause::Module(1), None, Bytes::MAX);
    assert_eq!(total(), mib(10), "the context is still there");
    // A positive delta is not refunded with a module.
    load(4);
    measure(&container, &tenant, 3 << 20);
    assert_eq!(total(), mib(17));
    tenant.implicit().unloaded(Cause::Module(1), None, Bytes::MAX);
    assert_eq!(total(), mib(13));
}

/// A reading between the driver's unload and the refund finds less than is charged. It was once
/// corrected as an excess, and then the module was refunded, too.
#[test]
fn free_memory_is_not_measured_while_a_module_unloads() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let growing = tenant.implicit().begin(context, mib(4), || Some(mib(80))).expect("it fits");
    grown(growing, Cause::Module(1), mib(76));
    let creating =
        || tenant.region().cell(gpu(), tenant.slot_owner().slot()).creating.load(Ordering::Relaxed);
    let other = tenant.implicit().begin_unload(Cause::Module(2));
    assert_eq!(creating(), 0, "it has nothing here");
    let going = tenant.implicit().begin_unload(Cause::Module(1));
    assert_eq!(creating(), 1);
    tenant.implicit().unloaded(Cause::Module(1), None, Bytes::MAX);
    assert_eq!(creating(), 1, "until it is refunded");
    drop((going, other));
    assert_eq!(creating(), 0);
}

#[test]
fn module_is_charged_until_it_is_unloaded() {
    let container = Container::limited(50);
    let (tenant, handle, context) = process(&container);
    let load = |module, known: u64, came: u64| {
        let growing =
            tenant.implicit().begin(context, mib(known), || Some(mib(80))).expect("it fits");
        let growth = growing.growth(|| Some(mib(80 - came)));
        assert!(!growing.exceeds(growth));
        grown(growing, Cause::Module(module), mib(80 - came));
    };
    load(1, 0, 4);
    assert_eq!(implicit(&tenant), mib(14));
    // The known part was too much, and too little.
    load(2, 8, 6);
    load(3, 2, 3);
    assert_eq!(implicit(&tenant), mib(23));
    tenant.implicit().unloaded(Cause::Module(2), None, Bytes::MAX);
    tenant.implicit().unloaded(Cause::Module(2), None, Bytes::MAX);
    assert_eq!(implicit(&tenant), mib(17));
    tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    assert_eq!(implicit(&tenant), Bytes::ZERO);
    tenant.implicit().unloaded(Cause::Module(1), None, Bytes::MAX);
    assert_eq!(implicit(&tenant), Bytes::ZERO);
    assert_eq!(
        tenant.region().cell(gpu(), tenant.slot_owner().slot()).creating.load(Ordering::Relaxed),
        0
    );
}

#[test]
fn module_known_not_to_fit_is_refused() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    assert_eq!(
        tenant.implicit().begin(context, mib(41), || None).expect_err("over").reason,
        Reason::CodeOverLimit
    );
    drop(tenant.implicit().begin(context, mib(40), || None).expect("it fits"));
    assert_eq!(implicit(&tenant), mib(10));
    assert_eq!(count(&tenant, Reason::CodeOverLimit), 1);
}

#[test]
fn module_beyond_the_limit_is_distinguished_from_a_neighbours_allocation() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let growing =
        tenant.implicit().begin(context, Bytes::ZERO, || Some(mib(80))).expect("nothing is known");
    let growth = |free| growing.growth(|| Some(mib(free)));
    assert!(!growing.exceeds(growth(40)));
    assert!(growing.exceeds(growth(38)));
    let was_returned =
        |after| PendingImplicit::was_returned(growth(38), Some(mib(38)), Some(mib(after)));
    assert!(was_returned(80));
    assert!(!was_returned(39), "a neighbour has it");
    growing.denied();
    assert_eq!(implicit(&tenant), mib(10));
}

#[test]
fn raised_limit_is_charged_by_the_difference() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let heap = Cause::Limit(2);
    for bytes in [8, 4] {
        tenant.implicit().begin(context, mib(bytes), || None).expect("it fits").grown(heap, None);
    }
    assert_eq!(implicit(&tenant), mib(22));
    tenant.implicit().unloaded(heap, Some(context), mib(5));
    assert_eq!(implicit(&tenant), mib(17));
    // At most what was charged is refunded.
    tenant.implicit().unloaded(heap, Some(context), mib(50));
    assert_eq!(implicit(&tenant), mib(10));
}

#[test]
fn measured_delta_is_shown_and_blocks_allocations() {
    let container = Container::limited(50);
    let ((tenant, handle, _), other) = (process(&container), container.tenant());
    allocate(&tenant, mib(20));
    tenant.allocations().begin_free(Address(0x20_0000)).expect("live").freed();
    measure(&container, &tenant, 26 << 20);
    assert_eq!((implicit(&tenant), tenant.view().usage(gpu()).unaccounted), (mib(36), mib(26)));
    assert!(tenant.charge(gpu(), mib(20)).is_err(), "cached memory is compared anew");
    assert!(other.charge(gpu(), mib(16)).is_err());
    assert_eq!(count(&tenant, Reason::ImplicitOverLimit), 0, "it is within the limit");
    drop(other.charge(gpu(), mib(14)).expect("it fits"));

    measure(&container, &tenant, 60 << 20);
    for _ in 0..3 {
        assert!(tenant.charge(gpu(), Bytes(1)).is_err());
    }
    assert_eq!(count(&tenant, Reason::ImplicitOverLimit), 1);
    // The measurement ends with its context.
    tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    assert_eq!(tenant.view().usage(gpu()).total(), Bytes::ZERO);
}

#[test]
fn wrong_size_of_the_first_context_is_corrected_for_the_next() {
    let container = Container::limited(50);
    let (tenant, other) = (container.tenant(), container.tenant());
    // A neighbour's context of 20 MiB starts at the same instant.
    let starting = tenant.contexts().begin_create(gpu(), || Some(mib(100))).expect("it fits");
    starting.created(container.handle(), || Some(mib(70)));
    assert_eq!(implicit(&tenant), mib(30));
    measure(&container, &tenant, -20 << 20);
    assert_eq!(implicit(&tenant), mib(10));
    let starting = other.contexts().begin_create(gpu(), || Some(mib(70))).expect("10 fit");
    assert_eq!(implicit(&other), mib(20));
    starting.created(container.handle(), || Some(mib(60)));
    assert_eq!(implicit(&other), mib(20));
}

/// The negative delta of a process whose exports had been released was once taken for its
/// context's: the size fell to a byte, and later contexts of the container were not charged.
#[test]
fn released_export_does_not_reduce_the_context_size() {
    let container = Container::limited(100);
    let ((tenant, ..), other) = (process(&container), container.tenant());
    allocate(&tenant, mib(30));
    tenant.exports().export(Address(0x20_0000), crate::Route::UNTRACKED);
    measure(&container, &tenant, -30 << 20);
    let before = other.view().usage(gpu()).total();
    let starting = other.contexts().begin_create(gpu(), || Some(mib(70))).expect("it fits");
    assert_eq!(other.view().usage(gpu()).total() - before, mib(10));
    drop(starting);
}

/// Exported memory that the monitor saw leave the GPU was once subtracted again at its refund.
#[test]
fn returned_memory_is_refunded_once() {
    let container = Container::limited(100);
    let (tenant, ..) = process(&container);
    allocate(&tenant, mib(30));
    tenant.exports().export(Address(0x20_0000), crate::Route::of_bytes(b"handle"));
    let monitor = GrantWriter::open(container.run()).expect("the grant file");
    monitor.set_returned(gpu(), mib(8).0);
    assert_eq!(tenant.view().usage(gpu()).total(), mib(32));
    tenant.allocations().begin_free(Address(0x20_0000)).expect("live").freed();
    assert_eq!(tenant.view().usage(gpu()).total(), mib(10));
}

/// Loads a function, maybe of a library, into a context; returns whether it was not there yet.
fn load(
    tenant: &Tenant,
    context: Context,
    (function, library): (usize, Option<usize>),
    came: u64,
) -> bool {
    let pending = tenant.implicit().begin_load(context, function, library, || Some(mib(80)));
    let pending = pending.expect("it fits");
    pending.map(|pending| pending.loaded(|| Some(mib(80 - came)))).is_some()
}

/// By whatever handle it is loaded first, and once in each context.
#[test]
fn library_is_charged_in_each_context_it_is_loaded_into() {
    let container = Container::limited(50);
    let (tenant, handle, context) = process(&container);
    let load = |what, library, came| load(&tenant, context, (what, library), came);
    tenant.implicit().library_loaded(7, mib(8), None);
    assert_eq!(implicit(&tenant), mib(10));
    // A kernel of it, then itself, then another kernel, which comes with code.
    assert!(load(70, Some(7), 9));
    assert!(!load(70, Some(7), 0) && !load(7, Some(7), 0));
    assert!(load(71, Some(7), 1));
    assert_eq!(implicit(&tenant), mib(20));
    // A library of unknown size is measured; one of known size is refused if it does not fit.
    tenant.implicit().library_loaded(8, Bytes::ZERO, None);
    assert!(load(8, Some(8), 12));
    tenant.implicit().library_loaded(9, mib(20), None);
    assert!(tenant.implicit().begin_load(context, 9, Some(9), || Some(mib(80))).is_err());
    // Unloading another library forgets nothing of these.
    tenant.implicit().library_unloaded(6);
    assert!(!load(8, Some(8), 0) && !load(70, Some(7), 0));
    assert_eq!(count(&tenant, Reason::CodeOverLimit), 1);
    // The two kernels' code stays with the context.
    tenant.implicit().library_unloaded(7);
    assert_eq!(implicit(&tenant), mib(24));
    assert!(load(9, Some(9), 20));
    // A library that is in the context from the start is not loaded again.
    tenant.implicit().library_loaded(10, mib(40), Some(context));
    assert!(!load(10, Some(10), 0));
    // Above the limit nothing is loaded, whatever its size.
    assert!(load(11, None, 7));
    assert_eq!(implicit(&tenant), mib(51));
    assert!(tenant.implicit().begin_load(context, 12, None, || Some(mib(80))).is_err());
    assert!(!load(11, None, 0), "it is there");
    tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    assert_eq!(tenant.view().usage(gpu()).total(), Bytes::ZERO);
}

/// The driver reuses function handles of unloaded modules; the new function's code was once not
/// charged.
#[test]
fn functions_of_an_unloaded_module_are_forgotten() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let load = |function, library, came| load(&tenant, context, (function, library), came);
    tenant.implicit().library_loaded(7, Bytes::ZERO, None);
    assert!(load(1, None, 2) && load(70, Some(7), 2));
    assert!(!load(1, None, 0) && !load(70, Some(7), 0));
    tenant.implicit().module_unloaded(5);
    assert!(load(1, None, 2), "the handle may be reused");
    assert!(!load(70, Some(7), 0), "a library's kernels are not the module's");
    assert_eq!(implicit(&tenant), mib(16));
}

/// Another thread's allocation was charged before the module began to load, and the driver made it
/// meanwhile. The module was once charged for it.
#[test]
fn module_is_not_charged_for_an_allocation_in_flight() {
    let container = Container::limited(50);
    let (tenant, _, context) = process(&container);
    let charge = tenant.charge(gpu(), mib(20)).expect("it fits");
    let growing = tenant.implicit().begin(context, mib(1), || Some(mib(80))).expect("it fits");
    charge.commit(Address(0x20_0000), None);
    grown(growing, Cause::Module(1), mib(60));
    assert_eq!(implicit(&tenant), mib(11));
}
