//! Bounds, addresses in the table, recently reported sizes.

use super::requirements::{KEPT, Requirements};
use super::shape::LAYERED;
use super::*;
use crate::doubles::{count, gpu, limited, used};
use crate::{ArrayId, CommitOutcome, Reason};

const MIB: u64 = 1 << 20;

fn flat(width: u64, height: u64, format: u32, channels: u32) -> Shape {
    Shape { width, height, depth: 0, format, channels, flags: 0, levels: 0 }
}

#[test]
fn bound_covers_every_tiled_layout() {
    // Tiles of 64 bytes by 8 rows, in blocks of up to 32 tiles in height and depth. Half of that
    // once gave too small a bound.
    for (width, height, depth) in
        [(1, 0, 0), (65, 1, 0), (1000, 2000, 0), (77, 9, 5), (640, 129, 33), (4096, 4096, 7)]
    {
        for (format, channels, element) in
            [(0x01, 1, 1), (0x10, 2, 4), (0x20, 4, 16), (0xb0, 3, 2), (0x9b, 4, 1)]
        {
            let shape = Shape { depth, ..flat(width, height, format, channels) };
            for high in (0..=5).filter(|high| *high == 0 || 4 << high < height) {
                for deep in (0..=5).filter(|deep| *deep == 0 || 1 << deep < 2 * depth) {
                    let pitch = (width * element).next_multiple_of(64);
                    let rows = height.max(1).next_multiple_of(8 << high);
                    let tiled = pitch * rows * depth.max(1).next_multiple_of(1 << deep);
                    assert!(
                        shape.bound().0 >= tiled,
                        "{shape:?}: {} below {tiled}",
                        shape.bound().0
                    );
                }
            }
        }
    }
}

#[test]
fn levels_and_layers_add_up() {
    let plain = flat(1024, 1024, 0x20, 4);
    assert_eq!(plain.bound(), Bytes(16 * MIB));
    let layers = Shape { depth: 5, flags: LAYERED, ..plain };
    assert_eq!(layers.bound(), Bytes(80 * MIB), "layers are not padded to a block");
    assert_eq!(Shape { depth: 5, ..plain }.bound(), Bytes(128 * MIB), "slices are");
    let levels = Shape { levels: 3, ..plain };
    assert_eq!(levels.bound(), Bytes(16 * MIB + 4 * MIB + MIB));
    let most =
        Shape { width: u64::MAX, height: u64::MAX, depth: u64::MAX, levels: u32::MAX, ..plain };
    assert_eq!(most.bound(), Bytes(u64::MAX));
}

#[test]
fn array_ends_with_its_context_and_is_freed_like_memory() {
    let (container, tenant) = limited(100);
    let handle = container.handle();
    let context = tenant.contexts().adopt(handle, gpu());
    let arrays =
        [ArrayId::Array(0x5555_0000_1230), ArrayId::Mipmapped(0x5555_0000_1230), ArrayId::Array(1)];
    for array in arrays {
        let charge = tenant.charge(gpu(), Bytes(3 * MIB)).expect("it fits");
        assert_eq!(charge.commit(array.address(), Some(context)), CommitOutcome::Recorded);
    }
    assert_eq!(used(&tenant), Bytes(12 * MIB), "each has an address of its own");
    tenant.allocations().begin_free(arrays[0].address()).expect("accounted").freed();
    assert_eq!(used(&tenant), Bytes(8 * MIB));
    tenant.contexts().begin_destroy(handle).expect("known").destroyed();
    assert_eq!(used(&tenant), Bytes::ZERO);
    assert!(
        tenant.allocations().begin_free(arrays[1].address()).is_none(),
        "it ended with its context"
    );
}

#[test]
fn array_with_an_unrepresentable_handle_stays_charged() {
    let (_container, tenant) = limited(100);
    let charge = tenant.charge(gpu(), Bytes(2 * MIB)).expect("it fits");
    assert_eq!(
        charge.commit(ArrayId::Array(usize::MAX).address(), None),
        CommitOutcome::Unrecorded
    );
    assert_eq!(used(&tenant), Bytes(2 * MIB));
    assert_eq!(count(&tenant, Reason::Unrecorded), 1);
}

#[test]
fn latest_requirements_are_kept() {
    let mut requirements = Requirements::new();
    let shape = |width| flat(width, 1, 0x20, 1);
    for width in 0..KEPT as u64 + 10 {
        requirements.keep(gpu(), shape(width), Bytes(width));
    }
    assert_eq!(requirements.len(), KEPT);
    for width in 0..KEPT as u64 + 10 {
        let expected = (width >= 10).then_some(Bytes(width));
        assert_eq!(requirements.find(gpu(), &shape(width)), expected, "{width}");
    }
    let other = Shape { flags: LAYERED, ..shape(40) };
    assert_eq!(requirements.find(gpu(), &other), None);
    assert_eq!(requirements.find(DeviceIndex::new(1).expect("a GPU"), &shape(40)), None);
}
