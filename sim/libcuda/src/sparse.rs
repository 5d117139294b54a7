//! Sparse arrays: memory is mapped tile by tile, from pools of tiles.
//!
//! A tile is 64 KiB; its shapes are Vulkan's standard sparse blocks. Levels that span a tile in
//! each dimension are divided into tiles. Smaller levels share a *tail*, one for each layer. Each
//! mapped tile holds the memory that it came from, and releases it when the stream reaches an
//! operation that unmaps or remaps the tile.
//!
//! The array holds the bytes, not the tiles: if two arrays map the same memory, writes to one are
//! not visible in the other. Unmapped tiles cannot be copied to or from; on a real GPU they read as
//! zeros.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use cgpu_abi::types::*;
use cgpu_sim::Bytes;
use cgpu_sim::machine::{Access, PhysicalId, PhysicalPlace, Side};

use crate::answer::{Answer, INVALID_HANDLE, INVALID_VALUE};
use crate::argument::Out;
use crate::array::{Array, Memory};
use crate::call::Call;
use crate::context::Context;
use crate::deferred;
use crate::driver::{Driver, count, lock};
use crate::layout::{self, Level};
use crate::physical::{self, GRANULARITY};

/// Size of a tile in bytes.
const TILE: u64 = 64 << 10;
/// Stands for the tail in place of a level's number.
const TAIL: u64 = u64::MAX;

/// A tile: level, layer and position in tiles, or number in the tail.
type Tile = (u64, u64, [u64; 3]);

/// Division of an array into tiles.
#[derive(Clone, Debug)]
struct Division {
    /// Extent of a tile, in elements.
    tile: [u64; 3],
    /// Size of an element in bytes.
    element: u64,
    /// Extents of the levels, in elements, without layers.
    levels: Vec<[u64; 3]>,
    layers: u64,
    /// The first level in the tail; the number of levels if there is no tail.
    tail_level: u64,
    /// Size of a tail in bytes; 0 if there is none.
    tail: u64,
    /// Whether all layers share one tail.
    single: bool,
}

impl Division {
    fn new(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: &[Level], chain: bool) -> Answer<Self> {
        let element = layout::element(descriptor)?;
        let layered = descriptor.flags & CUDA_ARRAY3D_LAYERED != 0;
        let deep = descriptor.depth != 0 && !layered;
        let tile = match (deep, element) {
            (false, 1) => [256, 256, 1],
            (false, 2) => [256, 128, 1],
            (false, 4) => [128, 128, 1],
            (false, 8) => [128, 64, 1],
            (false, _) => [64, 64, 1],
            (true, 1) => [64, 32, 32],
            (true, 2) => [32, 32, 32],
            (true, 4) => [32, 32, 16],
            (true, 8) => [32, 16, 16],
            (true, _) => [16, 16, 16],
        };
        let layers = if layered { descriptor.depth as u64 } else { 1 };
        let depth = |level: &Level| if layered { 1 } else { level.extent.2 };
        let extents: Vec<[u64; 3]> = levels
            .iter()
            .map(|level| [level.extent.0 / element, level.extent.1, depth(level)])
            .collect();
        let spans =
            |extent: &[u64; 3]| extent.iter().zip(tile).all(|(extent, tile)| *extent >= tile);
        let tail_level = extents.iter().position(|extent| !spans(extent)).unwrap_or(extents.len());
        let single = !chain && tail_level == 0;
        let bytes: u64 = levels[tail_level..].iter().map(|level| level.slice * depth(level)).sum();
        let tail = (if single { bytes * layers } else { bytes }).next_multiple_of(TILE);
        Ok(Self {
            tile,
            element,
            levels: extents,
            layers,
            tail_level: tail_level as u64,
            tail,
            single,
        })
    }

    fn properties(&self) -> Answer<CUDA_ARRAY_SPARSE_PROPERTIES> {
        let narrow = |number: u64| c_uint::try_from(number).map_err(|_| INVALID_VALUE);
        let [width, height, depth] = self.tile;
        Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
            tile_extent: [narrow(width)?, narrow(height)?, narrow(depth)?],
            miptail_first_level: narrow(if self.tail == 0 { 0 } else { self.tail_level })?,
            miptail_size: self.tail,
            flags: if self.single { CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL } else { 0 },
            reserved: [0; 4],
        })
    }

    /// Returns the tiles of a box of a level. The box must consist of whole tiles, or end where the
    /// level does.
    fn tiles_of(
        &self,
        level: u64,
        layer: u64,
        offset: [u64; 3],
        extent: [u64; 3],
    ) -> Answer<Vec<Tile>> {
        let whole = *self.levels.get(count(level)?).ok_or(INVALID_VALUE)?;
        if level >= self.tail_level || layer >= self.layers {
            return Err(INVALID_VALUE);
        }
        for axis in 0..3 {
            let (tile, end) = (self.tile[axis], offset[axis].saturating_add(extent[axis]));
            let ends = end.is_multiple_of(tile) || end == whole[axis];
            if extent[axis] == 0 || end > whole[axis] || !ends || !offset[axis].is_multiple_of(tile)
            {
                return Err(INVALID_VALUE);
            }
        }
        Ok(self.overlapped(level, layer, offset, extent))
    }

    /// Returns the tiles that a box of a level overlaps.
    fn overlapped(&self, level: u64, layer: u64, offset: [u64; 3], extent: [u64; 3]) -> Vec<Tile> {
        let [x, y, z] = [0, 1, 2].map(|axis| {
            offset[axis] / self.tile[axis]..(offset[axis] + extent[axis]).div_ceil(self.tile[axis])
        });
        z.flat_map(|z| y.clone().map(move |y| (z, y)))
            .flat_map(|(z, y)| x.clone().map(move |x| (level, layer, [x, y, z])))
            .collect()
    }

    /// Returns the tiles of a part of a tail.
    fn tiles_of_tail(&self, layer: u64, offset: u64, size: u64) -> Answer<Vec<Tile>> {
        let layers = if self.single { 1 } else { self.layers };
        let end = offset.checked_add(size).filter(|&end| end <= self.tail && size != 0);
        let end = end
            .filter(|_| layer < layers && (offset | size).is_multiple_of(TILE))
            .ok_or(INVALID_VALUE)?;
        Ok((offset / TILE..end / TILE).map(|number| (TAIL, layer, [number, 0, 0])).collect())
    }
}

/// A sparse array's memory. All its tiles are released on drop.
#[derive(Debug)]
pub(crate) struct Sparse {
    division: Division,
    /// Address of the bytes, in memory that takes none of the GPU's.
    first: u64,
    whole: Bytes,
    /// The memory that each mapped tile holds.
    tiles: Mutex<HashMap<Tile, PhysicalId>>,
}

impl Sparse {
    pub(crate) fn new(
        driver: &Driver,
        context: &Context,
        descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
        (levels, bytes): (&[Level], u64),
        chain: bool,
    ) -> Answer<Self> {
        let division = Division::new(descriptor, levels, chain)?;
        let whole = Bytes(bytes.next_multiple_of(GRANULARITY));
        let machine = &driver.machine;
        let first = machine.reserve_addresses(whole, 0, 0)?;
        let sparse = Self { division, first, whole, tiles: Mutex::default() };
        let bytes = machine.create_physical(PhysicalPlace::Host, whole, false)?;
        let mapped = machine.map(first, whole, bytes).and_then(|()| {
            machine.set_access(first, whole, &[(Side::Gpu(context.gpu), Access::ReadWrite)])
        });
        // The mapping keeps the memory.
        machine.release_physical(bytes)?;
        mapped?;
        Ok(sparse)
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Checks that all of a box of a level is mapped. The box is in bytes, rows and slices or
    /// layers, and not empty.
    pub(crate) fn check_mapped(
        &self,
        level: usize,
        position: [u64; 3],
        extent: [u64; 3],
    ) -> Answer {
        let division = &self.division;
        // Without depth, slices are layers.
        let layered = division.tile[2] == 1;
        let (layers, z) = if layered {
            (position[2]..position[2] + extent[2], (0, 1))
        } else {
            (0..1, (position[2], extent[2]))
        };
        let left = position[0] / division.element;
        let right = (position[0] + extent[0]).div_ceil(division.element);
        let tiles = lock(&self.tiles);
        let is_mapped = |tile: &Tile| tiles.contains_key(tile);
        for layer in layers {
            let needed = if level as u64 >= division.tail_level {
                let layer = if division.single { 0 } else { layer };
                division.tiles_of_tail(layer, 0, division.tail)?
            } else {
                let (offset, extent) = ([left, position[1], z.0], [right - left, extent[1], z.1]);
                division.overlapped(level as u64, layer, offset, extent)
            };
            if !needed.iter().all(is_mapped) {
                return Err(INVALID_VALUE);
            }
        }
        Ok(())
    }

    fn tiles(&self) -> MutexGuard<'_, HashMap<Tile, PhysicalId>> {
        lock(&self.tiles)
    }
}

impl Drop for Sparse {
    fn drop(&mut self) {
        let Some(driver) = Driver::get() else { return };
        drop(Kept(self.tiles().drain().map(|(_, id)| id).collect()));
        // Nothing is mapped if the creation failed.
        let _ = driver.machine.unmap(self.first, self.whole);
        let _ = driver.machine.free_addresses(self.first, self.whole);
    }
}

/// Memory held by tiles, once for each tile. It is released on drop.
struct Kept(Vec<PhysicalId>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(driver) = Driver::get() {
            for id in self.0.drain(..) {
                // Cannot fail: held since it was mapped.
                let _ = driver.machine.drop_physical_reference(id);
            }
        }
    }
}

/// Returns the low and the high half of a word, C's order of two integers.
fn halves(word: u64) -> (u64, u64) {
    (word & u64::from(u32::MAX), word >> 32)
}

fn named(division: &Division, info: &CUarrayMapInfo) -> Answer<Vec<Tile>> {
    let [first, second, third, fourth] = info.subresource;
    match info.subresource_type {
        CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL => {
            let ((level, layer), (x, y)) = (halves(first), halves(second));
            let ((z, width), (height, depth)) = (halves(third), halves(fourth));
            division.tiles_of(level, layer, [x, y, z], [width, height, depth])
        }
        CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL => {
            division.tiles_of_tail(halves(first).0, second, third)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Performs an operation on a sparse array. Returns what is to be released when the stream reaches
/// it.
fn map_tiles(
    driver: &Driver,
    array: &Array,
    sparse: &Sparse,
    info: &CUarrayMapInfo,
) -> Answer<Kept> {
    let named = named(&sparse.division, info)?;
    let mut tiles = sparse.tiles();
    if info.mem_operation_type == CU_MEM_OPERATION_TYPE_UNMAP {
        if info.mem_handle != 0 {
            return Err(INVALID_VALUE);
        }
        return Ok(Kept(named.iter().filter_map(|tile| tiles.remove(tile)).collect()));
    }
    let (id, memory) = physical::id_of(driver, info.mem_handle)?;
    let end = info.offset.checked_add(named.len() as u64 * TILE).ok_or(INVALID_VALUE)?;
    let on_gpu = matches!(memory.place, PhysicalPlace::On(site) if site.gpu == array.context.gpu);
    if !on_gpu
        || !physical::is_tile_pool(driver, info.mem_handle)
        || !info.offset.is_multiple_of(TILE)
        || end > memory.size.0
    {
        return Err(INVALID_VALUE);
    }
    let mut over = Vec::new();
    for tile in named {
        driver.machine.add_physical_reference(id)?;
        over.extend(tiles.insert(tile, id));
    }
    Ok(Kept(over))
}

/// Maps memory to arrays, or unmaps it. Mapped memory can be used by later work of the stream;
/// unmapped memory is released when the stream reaches the operation.
pub(crate) fn cuMemMapArrayAsync(
    call: &Call,
    map_info_list: Out<CUarrayMapInfo>,
    number: c_uint,
    stream: CUstream,
) -> Answer {
    let driver = call.driver()?;
    let (stream, context) = driver.stream(stream, call.per_thread)?;
    let mask = 1_u32.checked_shl(context.device().cast_unsigned());
    for info in map_info_list.read_all(count(number)?)? {
        let kind =
            matches!(info.resource_type, CU_RESOURCE_TYPE_ARRAY | CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
        let operation = matches!(
            info.mem_operation_type,
            CU_MEM_OPERATION_TYPE_MAP | CU_MEM_OPERATION_TYPE_UNMAP
        );
        if !kind
            || !operation
            || info.mem_handle_type != 0
            || info.flags != 0
            || info.reserved != [0; 2]
        {
            return Err(INVALID_VALUE);
        }
        let array = driver.arrays.get(info.resource).ok_or(INVALID_HANDLE)?;
        if Some(info.device_bit_mask) != mask || array.context.gpu != context.gpu {
            return Err(INVALID_VALUE);
        }
        match &array.memory {
            Memory::Deferred(mapped, bytes) => {
                if let Some(over) =
                    deferred::map(driver, &array, &info, (&mut lock(mapped), *bytes))?
                {
                    driver.machine.host_function(stream, Box::new(move || drop(over)))?;
                }
            }
            Memory::Sparse(sparse) => {
                let over = map_tiles(driver, &array, sparse, &info)?;
                if !over.0.is_empty() {
                    driver.machine.host_function(stream, Box::new(move || drop(over)))?;
                }
            }
            _ => return Err(INVALID_VALUE),
        }
    }
    Ok(())
}
pub(crate) use cuMemMapArrayAsync as cuMemMapArrayAsync_ptsz;

fn put_properties(to: Out<CUDA_ARRAY_SPARSE_PROPERTIES>, driver: &Driver, handle: usize) -> Answer {
    let to = to.required()?;
    let array = driver.arrays.get(handle).ok_or(INVALID_HANDLE)?;
    // Levels have no properties of their own.
    let Memory::Sparse(sparse) = &array.memory else { return Err(INVALID_VALUE) };
    to.put(sparse.division.properties()?)?;
    Ok(())
}

pub(crate) fn cuArrayGetSparseProperties(
    call: &Call,
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    array: CUarray,
) -> Answer {
    put_properties(sparse_properties, call.driver()?, array.0)
}

pub(crate) fn cuMipmappedArrayGetSparseProperties(
    call: &Call,
    sparse_properties: Out<CUDA_ARRAY_SPARSE_PROPERTIES>,
    mipmap: CUmipmappedArray,
) -> Answer {
    put_properties(sparse_properties, call.driver()?, mipmap.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn division(
        width: usize,
        height: usize,
        depth: usize,
        flags: c_uint,
        levels: c_uint,
    ) -> Division {
        let flags = flags | CUDA_ARRAY3D_SPARSE;
        let format = CU_AD_FORMAT_FLOAT;
        let descriptor =
            CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels: 1, flags };
        let (all, _) = layout::levels(&descriptor, levels).unwrap();
        Division::new(&descriptor, &all, levels > 1).unwrap()
    }

    #[test]
    fn levels_that_span_no_tile_share_a_tail() {
        // 1024, 512, 256, 128 span tiles of 128 by 128; 64 and below are 16 + 4 + 1 ... KiB.
        let flat = division(1024, 1024, 0, 0, 11);
        assert_eq!((flat.tile, flat.tail_level, flat.tail), ([128, 128, 1], 4, 64 << 10));
        assert!(!flat.single);
        let layers = division(1024, 1024, 3, CUDA_ARRAY3D_LAYERED, 11);
        assert_eq!((layers.tail, layers.layers, layers.single), (64 << 10, 3, false));
        let deep = division(64, 64, 20, 0, 1);
        assert_eq!((deep.tile, deep.tail_level, deep.tail), ([32, 32, 16], 1, 0));
        let small = division(64, 64, 0, 0, 1);
        assert_eq!((small.tail_level, small.tail, small.single), (0, 64 << 10, true));
    }

    #[test]
    fn boxes_must_be_whole_tiles() {
        let flat = division(1000, 1024, 0, 0, 1);
        assert_eq!(
            flat.tiles_of(0, 0, [0; 3], [256, 128, 1]).unwrap(),
            [(0, 0, [0; 3]), (0, 0, [1, 0, 0])]
        );
        // The last tile of a row ends where the row does.
        assert_eq!(flat.tiles_of(0, 0, [896, 128, 0], [104, 128, 1]).unwrap(), [(0, 0, [7, 1, 0])]);
        for (layer, offset, extent) in [
            (0, [0; 3], [100, 128, 1]),
            (0, [64, 0, 0], [128, 128, 1]),
            (0, [0; 3], [0, 128, 1]),
            (0, [0; 3], [1024, 128, 1]),
            (0, [0; 3], [128, 128, 2]),
            (0, [u64::MAX - 127, 0, 0], [128, 128, 1]),
            (1, [0; 3], [128, 128, 1]),
        ] {
            assert_eq!(
                flat.tiles_of(0, layer, offset, extent),
                Err(INVALID_VALUE),
                "{layer} {offset:?} {extent:?}"
            );
        }
        assert_eq!(flat.tiles_of_tail(0, 0, TILE), Err(INVALID_VALUE), "there is none");
        let small = division(64, 64, 9, CUDA_ARRAY3D_LAYERED, 1);
        assert_eq!(small.tiles_of_tail(0, TILE, TILE).unwrap(), [(TAIL, 0, [1, 0, 0])]);
        assert_eq!(small.tiles_of_tail(1, 0, TILE), Err(INVALID_VALUE), "all layers share one");
        assert_eq!(small.tiles_of_tail(0, 1, TILE), Err(INVALID_VALUE));
    }
}
