//! Every path, and whole histories of concurrent calls, against a model of the driver.

mod model;

use super::*;
use crate::Tenant;
use crate::doubles::{Container, count, gpu, limited, mib, used};

const MIB: u64 = 1 << 20;

fn referenced(tenant: &Tenant, handle: u64) -> Reference<'_> {
    tenant.physical().reference(PhysicalHandle(handle)).expect("accounted")
}

fn releasing(tenant: &Tenant, handle: u64) -> PendingRelease<'_> {
    tenant.physical().begin_release(PhysicalHandle(handle)).expect("accounted")
}

fn create(tenant: &Tenant, handle: u64, size: Bytes) {
    let charge = tenant.charge(gpu(), size).expect("it fits");
    assert_eq!(charge.created(PhysicalHandle(handle)), CommitOutcome::Recorded);
}

fn map(tenant: &Tenant, handle: u64, address: u64, size: Bytes) {
    referenced(tenant, handle).mapped(Address(address), size);
}

fn release(tenant: &Tenant, handle: u64) {
    releasing(tenant, handle).released();
}

fn unmap(tenant: &Tenant, address: u64, size: Bytes) {
    tenant.physical().begin_unmap().unmapped(Address(address), size);
}

const BASE: u64 = 0x7f00_0000_0000;

#[test]
fn memory_released_while_mapped_stays_charged() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(6));
    map(&tenant, 1, BASE, mib(6));
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(6));
    assert!(tenant.charge(gpu(), mib(6)).is_err());
    assert!(tenant.physical().begin_release(PhysicalHandle(1)).is_none(), "no handle is left");
    // A handle retained by the address may have another value.
    let reference = tenant.physical().reference_at(Address(BASE + 5 * MIB)).expect("mapped there");
    reference.retained(PhysicalHandle(77));
    unmap(&tenant, BASE, mib(6));
    assert_eq!(used(&tenant), mib(6));
    release(&tenant, 77);
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn release_or_unmap_refused_by_the_driver_changes_nothing() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(4));
    map(&tenant, 1, BASE, mib(4));
    drop(releasing(&tenant, 1));
    drop(tenant.physical().begin_unmap());
    drop(referenced(&tenant, 1));
    // A range that contains only a part of a mapping ends nothing.
    unmap(&tenant, BASE, mib(2));
    unmap(&tenant, BASE + 2 * MIB, mib(2));
    assert_eq!(used(&tenant), mib(4));
    release(&tenant, 1);
    unmap(&tenant, BASE, mib(4));
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn unmap_ends_all_mappings_of_its_range() {
    let (_container, tenant) = limited(100);
    for number in 0..40 {
        create(&tenant, number, mib(2));
        map(&tenant, number, BASE + number * 2 * MIB, mib(2));
        release(&tenant, number);
    }
    unmap(&tenant, BASE + 20 * MIB, mib(40));
    assert_eq!(used(&tenant), mib(40));
    assert!(tenant.physical().reference_at(Address(BASE + 20 * MIB)).is_none());
    assert!(tenant.physical().reference_at(Address(BASE + 60 * MIB)).is_some());
    unmap(&tenant, BASE, mib(80));
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn handle_reused_before_the_release_returns_is_the_new_memory() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(2));
    let release = releasing(&tenant, 1);
    create(&tenant, 1, mib(4));
    assert_eq!(used(&tenant), mib(4));
    release.released();
    assert_eq!(used(&tenant), mib(4));
    // Imported and host memory may get the value, too.
    let release = releasing(&tenant, 1);
    tenant.physical().received(PhysicalHandle(1));
    assert_eq!(used(&tenant), Bytes::ZERO);
    release.released();
    create(&tenant, 1, mib(2));
    let release = releasing(&tenant, 1);
    tenant.physical().created_free(PhysicalHandle(1));
    release.released();
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn handle_reused_for_the_same_memory_is_not_the_released_one() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(2));
    map(&tenant, 1, BASE, mib(2));
    let first = releasing(&tenant, 1);
    // The value is reused for other memory, and then for the first again, which is still mapped.
    create(&tenant, 1, mib(4));
    let second = releasing(&tenant, 1);
    tenant
        .physical()
        .reference_at(Address(BASE))
        .expect("mapped there")
        .retained(PhysicalHandle(1));
    assert_eq!(used(&tenant), mib(2));
    first.released();
    second.released();
    unmap(&tenant, BASE, mib(2));
    assert_eq!(used(&tenant), mib(2), "it is held by its handle");
    release(&tenant, 1);
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn address_mapped_again_before_the_unmap_returns_is_the_new_mapping() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(4));
    map(&tenant, 1, BASE, mib(4));
    release(&tenant, 1);
    let unmapping = tenant.physical().begin_unmap();
    create(&tenant, 2, mib(2));
    map(&tenant, 2, BASE + 2 * MIB, mib(2));
    assert_eq!(used(&tenant), mib(2), "the former mapping has ended as a whole");
    unmapping.unmapped(Address(BASE), mib(4));
    release(&tenant, 2);
    assert_eq!(used(&tenant), mib(2));
    unmap(&tenant, BASE + 2 * MIB, mib(2));
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn pending_map_keeps_memory_released_meanwhile() {
    let (_container, tenant) = limited(10);
    create(&tenant, 1, mib(4));
    let mapping = referenced(&tenant, 1);
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(4));
    mapping.mapped(Address(BASE), mib(4));
    let retaining = tenant.physical().reference_at(Address(BASE)).expect("mapped there");
    unmap(&tenant, BASE, mib(4));
    assert_eq!(used(&tenant), mib(4));
    // The driver refuses: nothing is mapped there any more.
    drop(retaining);
    assert_eq!(used(&tenant), Bytes::ZERO);
}

#[test]
fn import_is_not_charged_and_export_stays_charged() {
    let (_container, tenant) = limited(20);
    tenant.physical().received(PhysicalHandle(9));
    map(&tenant, 9, BASE, mib(2));
    release(&tenant, 9);
    unmap(&tenant, BASE, mib(2));
    assert!(
        tenant.physical().reference(PhysicalHandle(9)).is_none()
            && tenant.physical().begin_release(PhysicalHandle(9)).is_none()
    );
    assert_eq!(used(&tenant), Bytes::ZERO);
    // An import that returns a handle of ours is our memory.
    create(&tenant, 1, mib(2));
    tenant.physical().received(PhysicalHandle(1));
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(2));
    release(&tenant, 1);
    assert_eq!(used(&tenant), Bytes::ZERO);
    create(&tenant, 1, mib(2));
    referenced(&tenant, 1).exported();
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(2), "a process may hold it");
    assert_eq!(count(&tenant, Reason::ExportedKept), 1);
    for number in 2..6 {
        create(&tenant, number, mib(2));
        map(&tenant, number, BASE + number * 2 * MIB, mib(2));
        release(&tenant, number);
    }
    tenant.physical().range_exported(Address(BASE + 7 * MIB), mib(2));
    unmap(&tenant, BASE, mib(20));
    assert_eq!(used(&tenant), mib(6), "two of four were in the range");
    assert_eq!(count(&tenant, Reason::ExportedKept), 3);
}

fn exported(tenant: &Tenant) -> Bytes {
    let cell = tenant.region().cell(gpu(), tenant.slot_owner().slot());
    Bytes(cell.exported.load(cgpu_shm::atomic::Ordering::Relaxed))
}

fn bind(tenant: &Tenant, object: u64, offset: u64, handle: u64, size: Bytes) {
    referenced(tenant, handle).bound(PhysicalHandle(object), None, offset, size);
}

/// Ends the bindings of a GPU at the start of the object 100.
fn unbind(tenant: &Tenant, gpu: DeviceIndex, size: Bytes) {
    tenant.physical().begin_unbind().unbound(PhysicalHandle(100), gpu, 0, size);
}

#[test]
fn bound_memory_stays_charged_until_it_is_unbound_and_released() {
    let (_container, tenant) = limited(20);
    tenant.physical().object_made(PhysicalHandle(100));
    create(&tenant, 1, mib(4));
    create(&tenant, 2, mib(2));
    bind(&tenant, 100, 0, 1, mib(4));
    bind(&tenant, 100, 4 * MIB, 2, mib(2));
    release(&tenant, 1);
    release(&tenant, 2);
    assert_eq!((used(&tenant), exported(&tenant)), (mib(6), Bytes::ZERO));
    // Only whole bindings in the range, and of the GPU, are unbound.
    unbind(&tenant, gpu(), mib(3));
    unbind(&tenant, DeviceIndex::new(1).unwrap(), mib(4));
    assert_eq!(used(&tenant), mib(6));
    unbind(&tenant, gpu(), mib(4));
    assert_eq!(used(&tenant), mib(2));
    // A mapping of the object keeps it, and everything that is bound to it.
    map(&tenant, 100, BASE, mib(6));
    release(&tenant, 100);
    assert_eq!(used(&tenant), mib(2));
    unmap(&tenant, BASE, mib(6));
    assert_eq!(used(&tenant), Bytes::ZERO);
}

/// A process that has the object can access what is bound to it, even after its maker has exited.
#[test]
fn memory_bound_to_a_shared_object_is_exported_while_bound() {
    let (_container, tenant) = limited(20);
    tenant.physical().object_made(PhysicalHandle(100));
    tenant.physical().received(PhysicalHandle(200));
    create(&tenant, 1, mib(4));
    create(&tenant, 2, mib(2));
    bind(&tenant, 100, 0, 1, mib(4));
    bind(&tenant, 200, 0, 2, mib(2));
    assert_eq!(exported(&tenant), mib(2));
    referenced(&tenant, 100).exported();
    referenced(&tenant, 100).exported();
    assert_eq!(exported(&tenant), mib(6));
    unbind(&tenant, gpu(), mib(4));
    assert_eq!(exported(&tenant), mib(2));
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(2));
    // Others still have the object, with our memory bound to it.
    release(&tenant, 2);
    release(&tenant, 200);
    assert_eq!((used(&tenant), exported(&tenant)), (mib(2), mib(2)));
    assert_eq!(count(&tenant, Reason::ExportedKept), 1);
}

#[test]
fn memory_in_tiles_stays_charged_until_the_stream_unmaps_it() {
    use crate::{ArrayId, Tiles};
    let (container, tenant) = limited(20);
    let (array, other) = (ArrayId::Array(0x10), ArrayId::Mipmapped(0x10));
    let tiles = |from, to| Tiles { part: 3, from: [from, 0, 0], to: [to, 2, 1] };
    let tile = |handle, array, tiles, context| {
        let mapping = tenant.physical().begin_tile_map(PhysicalHandle(handle), tiles);
        mapping.expect("known").tiled(array, tiles, context)
    };
    create(&tenant, 1, mib(4));
    create(&tenant, 2, mib(2));
    let context = tenant.contexts().adopt(container.handle(), gpu());
    // The driver refuses.
    drop(tenant.physical().begin_tile_map(PhysicalHandle(1), tiles(0, 4)));
    assert!(tile(1, array, tiles(0, 4), Some(context)).is_empty());
    release(&tenant, 1);
    assert_eq!(used(&tenant), mib(6));
    // Other memory replaces half of it, and is mapped elsewhere, too.
    let replaced = tile(2, array, tiles(0, 2), None);
    assert!(tile(2, other, tiles(9, 10), None).is_empty());
    release(&tenant, 2);
    replaced.unmapped();
    assert_eq!(used(&tenant), mib(6));
    let replaced = tenant.physical().unmap_tiles(array, tiles(2, 4));
    assert_eq!(used(&tenant), mib(6), "the stream has not executed the call");
    replaced.unmapped();
    assert_eq!(used(&tenant), mib(2));
    // One destruction fails, one succeeds, and the handle is reused.
    drop(tenant.physical().begin_array_destroy(array));
    let leaving = tenant.physical().begin_array_destroy(array).expect("it has tiles");
    create(&tenant, 3, mib(2));
    assert!(tile(3, array, tiles(0, 1), Some(context)).is_empty());
    release(&tenant, 3);
    leaving.destroyed();
    assert_eq!(used(&tenant), mib(4));
    tenant.physical().begin_array_destroy(other).expect("it has tiles").destroyed();
    assert_eq!(used(&tenant), mib(2));
    tenant.physical().arrays_gone_with(context.owner());
    assert_eq!(used(&tenant), Bytes::ZERO);
}
