//! Memory mapped into parts of arrays: it stays charged as long as a tile has it, in stream order.

use cgpu_abi::types::*;
use cgpu_memory::{ArrayId, PhysicalHandle, ReplacedTiles, Tenant, Tiles};

use super::pool::commit_in_order;
use crate::current::current;
use crate::order::Order;
use crate::{driver, process};

/// Granularity in bytes of mappings into the tail of small levels.
const TAIL: u64 = 64 << 10;
/// Level number that stands for the tail; real levels are below.
const TAIL_LEVEL: u64 = 31;

hooks! { call, order;
    cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz(
        list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream,
    ) => {
        // SAFETY: the list is the program's: null, or `count` records.
        unsafe { map(list, count, order(stream), call) }
    };
}

/// Makes the call and accounts for its mappings.
///
/// # Safety
///
/// `list` is null or has `count` readable records.
unsafe fn map(
    list: *const CUarrayMapInfo,
    count: c_uint,
    order: Order,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(tenant) = process::tenant().filter(|_| !list.is_null()) else { return call() };
    let entries: Vec<_> = (0..count as usize)
        .map(|place| {
            // SAFETY: below the number of records, all of which the caller guarantees.
            let at = unsafe { list.add(place) };
            // SAFETY: as above.
            unsafe { at.read() }
        })
        .map(|entry| Entry { array: array(&entry), tiles: tiles(&entry), entry })
        .collect();
    // References are taken before the call: another thread may release the handles meanwhile.
    let held: Vec<_> = entries.iter().map(|entry| entry.refer(tenant)).collect();
    let context = current(tenant);
    let answer = call();
    if answer != CUresult::SUCCESS {
        return answer;
    }
    for (entry, tiling) in entries.iter().zip(held) {
        let untiled = match tiling {
            Some(tiling) => tiling.tiled(entry.array, entry.tiles, context),
            // Unmapped, or replaced by memory that is not accounted.
            None => tenant.physical().unmap_tiles(entry.array, entry.tiles),
        };
        if !untiled.is_empty() {
            commit_in_order(untiled, ReplacedTiles::unmapped, order);
        }
    }
    answer
}

struct Entry {
    array: ArrayId,
    tiles: Tiles,
    entry: CUarrayMapInfo,
}

impl Entry {
    fn refer<'a>(&self, tenant: &'a Tenant) -> Option<cgpu_memory::PendingTileMap<'a>> {
        let maps = self.entry.mem_operation_type == CU_MEM_OPERATION_TYPE_MAP;
        maps.then(|| {
            tenant.physical().begin_tile_map(PhysicalHandle(self.entry.mem_handle), self.tiles)
        })
        .flatten()
    }
}

fn array(entry: &CUarrayMapInfo) -> ArrayId {
    if entry.resource_type == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY {
        ArrayId::Mipmapped(entry.resource)
    } else {
        ArrayId::Array(entry.resource)
    }
}

/// Returns the tiles of a mapping, in units of the array's tiles. An array without tiles is mapped
/// at once: one tile for all.
fn tiles(entry: &CUarrayMapInfo) -> Tiles {
    let properties = driver::get(|to| match array(entry) {
        // SAFETY: the record is writable; the array is an argument of the program's call.
        ArrayId::Array(array) => unsafe { driver::cuArrayGetSparseProperties(to, CUarray(array)) },
        // SAFETY: as above.
        ArrayId::Mipmapped(array) => unsafe {
            driver::cuMipmappedArrayGetSparseProperties(to, CUmipmappedArray(array))
        },
    });
    let Ok(properties) = properties else {
        return Tiles { part: 0, from: [0; 3], to: [1; 3] };
    };
    if entry.subresource_type == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL {
        let [layer, offset, size, _] = entry.subresource;
        let (first, last) = (offset / TAIL, offset.saturating_add(size).div_ceil(TAIL));
        let part = TAIL_LEVEL << 11 | (layer & 0x7ff);
        return Tiles { part, from: [first & 0xffff, 0, 0], to: [last.min(1 << 16), 1, 1] };
    }
    // Eight fields: level, layer, offset and extent.
    let halves = entry.subresource.map(|pair| [pair & 0xffff_ffff, pair >> 32]);
    let [[level, layer], [x, y], [z, width], [height, depth]] = halves;
    let tile = properties.tile_extent.map(|extent| u64::from(extent.max(1)));
    let along = |from: u64, extent: u64, tile: u64| {
        ((from / tile).min(0xffff), (from + extent.max(1)).div_ceil(tile).min(1 << 16))
    };
    let [tile_x, tile_y, tile_z] = tile;
    let [x, y, z] = [along(x, width, tile_x), along(y, height, tile_y), along(z, depth, tile_z)];
    Tiles {
        part: (level & 0x1f) << 11 | (layer & 0x7ff),
        from: [x.0, y.0, z.0],
        to: [x.1, y.1, z.1],
    }
}
