//! Memory that an array takes: tiles, padding, levels, layers. It is more than the sum of its
//! elements.
//!
//! Modelled after the tiled layout that open drivers describe (nouveau, NVK): tiles of 64 bytes by
//! 8 rows, stacked to blocks of up to 16 tiles in height and 32 in depth. The block is the smallest
//! power of two that the array's extent needs. One-dimensional arrays are only padded. The total is
//! rounded up to pages of 64 KiB.

use cgpu_abi::types::*;

use crate::answer::{Answer, INVALID_VALUE, NOT_SUPPORTED};

/// Width of a tile in bytes, and its height in rows.
const TILE: (u64, u64) = (64, 8);
/// Maximum height and depth of a block, in tiles.
const BLOCK: (u64, u64) = (16, 32);
/// Unit of rows of one-dimensional arrays, in bytes.
const ROW: u64 = 512;
/// Unit and alignment of an array's memory, in bytes.
pub(super) const PAGE: u64 = 64 << 10;

/// The layout of one level of an array. All fields are in bytes, except rows and slices of
/// `extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Offset of its first byte.
    pub(crate) offset: u64,
    /// Distance between rows.
    pub(crate) pitch: u64,
    /// Distance between slices or layers.
    pub(crate) slice: u64,
    /// Bytes of a row, rows and slices that the program uses.
    pub(crate) extent: (u64, u64, u64),
}

/// Returns the size of an element in bytes.
pub(crate) fn element(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer<u64> {
    let channel = match descriptor.format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        CU_AD_FORMAT_UNSIGNED_INT32 | CU_AD_FORMAT_SIGNED_INT32 | CU_AD_FORMAT_FLOAT => 4,
        // Planar, block-compressed and normalised formats.
        0x91..=0xb2 | 0xc0..=0xcb => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    };
    match descriptor.num_channels {
        channels @ (1 | 2 | 4) => Ok(channel * u64::from(channels)),
        _ => Err(INVALID_VALUE),
    }
}

/// Checks whether such an array can exist.
pub(crate) fn check(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    const KNOWN: c_uint = 0x1ff;
    element(descriptor)?;
    let CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, flags, .. } = *descriptor;
    let has = |flag| flags & flag != 0;
    let (layered, cube) = (has(CUDA_ARRAY3D_LAYERED), has(CUDA_ARRAY3D_CUBEMAP));
    let maximum = match (height, depth) {
        (_, 0) if layered || cube => return Err(INVALID_VALUE),
        (0, 0) => (131_072, 0, 0),
        (_, 0) => (131_072, 65_536, 0),
        (0, _) if !layered => return Err(INVALID_VALUE),
        _ if layered || cube => (32_768, 32_768, 2_048),
        _ => (16_384, 16_384, 16_384),
    };
    let fits = width > 0 && width <= maximum.0 && height <= maximum.1 && depth <= maximum.2;
    let faces = if layered { depth.is_multiple_of(6) } else { depth == 6 };
    if !fits || flags & !KNOWN != 0 || cube && (width != height || !faces) {
        return Err(INVALID_VALUE);
    }
    if has(CUDA_ARRAY3D_TEXTURE_GATHER) && (height == 0 || depth != 0) {
        return Err(INVALID_VALUE);
    }
    if has(CUDA_ARRAY3D_SPARSE) && has(CUDA_ARRAY3D_DEFERRED_MAPPING) {
        return Err(INVALID_VALUE);
    }
    // A sparse array has two dimensions, with or without layers, or three.
    if has(CUDA_ARRAY3D_SPARSE) && (height == 0 || cube) {
        return Err(INVALID_VALUE);
    }
    if has(CUDA_ARRAY3D_VIDEO_ENCODE_DECODE) {
        // No simulated GPU supports it.
        return Err(NOT_SUPPORTED);
    }
    Ok(())
}

/// Returns the size of a block for so many tiles, at most `maximum`.
fn block(tiles: u64, maximum: u64) -> u64 {
    tiles.next_power_of_two().min(maximum)
}

/// Returns the maximum number of levels of an array.
pub(crate) fn max_levels(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> c_uint {
    let layered = descriptor.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let depth = if layered { 0 } else { descriptor.depth };
    descriptor.width.max(descriptor.height).max(depth).max(1).ilog2() + 1
}

/// Returns the levels of a checked array, and their total size in bytes.
pub(crate) fn levels(
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
    count: c_uint,
) -> Answer<(Vec<Level>, u64)> {
    let element = element(descriptor)?;
    let layers = if descriptor.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0 {
        descriptor.depth
    } else {
        0
    };
    let mut levels = Vec::new();
    let mut offset = 0;
    for level in 0..count {
        let at = |extent: usize| (extent as u64 >> level).max(1);
        let (width, rows) = (at(descriptor.width) * element, at(descriptor.height));
        let slices = if layers == 0 { at(descriptor.depth) } else { layers as u64 };
        let flat = descriptor.height == 0;
        let pitch = width.next_multiple_of(if flat { ROW } else { TILE.0 });
        let height = if flat {
            1
        } else {
            rows.next_multiple_of(TILE.1 * block(rows.div_ceil(TILE.1), BLOCK.0))
        };
        let depth =
            if layers == 0 { slices.next_multiple_of(block(slices, BLOCK.1)) } else { slices };
        let slice = pitch * height;
        levels.push(Level { offset, pitch, slice, extent: (width, rows, slices) });
        offset += slice * depth;
    }
    Ok((levels, offset.next_multiple_of(PAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(width: usize, height: usize, depth: usize, flags: c_uint) -> CUDA_ARRAY3D_DESCRIPTOR {
        let format = CU_AD_FORMAT_FLOAT;
        CUDA_ARRAY3D_DESCRIPTOR { width, height, depth, format, num_channels: 1, flags }
    }

    #[test]
    fn arrays_take_more_than_their_elements() {
        for (descriptor, count, bytes) in [
            (array(1, 0, 0, 0), 1, 64 << 10),
            (array(100_000, 0, 0, 0), 1, 448 << 10),
            // 4096 bytes by 1024 rows are whole blocks.
            (array(1024, 1024, 0, 0), 1, 4 << 20),
            // One more row adds a block of 128 rows.
            (array(1024, 1025, 0, 0), 1, (4 << 20) + (512 << 10)),
            (array(1000, 17, 0, 0), 1, 128 << 10),
            (array(64, 64, 33, 0), 1, 64 * 4 * 64 * 64),
            (
                array(64, 64, 33, CUDA_ARRAY3D_LAYERED),
                1,
                (64_u64 * 4 * 64 * 33).next_multiple_of(64 << 10),
            ),
            // 4 MiB, 1, 1/4, ...
            (array(1024, 1024, 0, 0), 11, (4096 + 1024 + 256 + 64 + 64) << 10),
        ] {
            check(&descriptor).unwrap();
            assert_eq!(levels(&descriptor, count).unwrap().1, bytes, "{descriptor:?} {count}");
        }
    }

    #[test]
    fn impossible_arrays_are_refused() {
        for (descriptor, failure) in [
            (array(0, 0, 0, 0), INVALID_VALUE),
            (array(131_073, 0, 0, 0), INVALID_VALUE),
            (array(1, 65_537, 0, 0), INVALID_VALUE),
            (array(16_385, 1, 1, 0), INVALID_VALUE),
            (array(8, 0, 8, 0), INVALID_VALUE),
            (array(8, 8, 6, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER), INVALID_VALUE),
            (array(8, 9, 6, CUDA_ARRAY3D_CUBEMAP), INVALID_VALUE),
            (array(8, 8, 0, CUDA_ARRAY3D_LAYERED), INVALID_VALUE),
            (array(8, 8, 0, 1 << 20), INVALID_VALUE),
            (array(8, 0, 0, CUDA_ARRAY3D_SPARSE), INVALID_VALUE),
            (array(8, 8, 6, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_CUBEMAP), INVALID_VALUE),
            (array(8, 8, 0, CUDA_ARRAY3D_VIDEO_ENCODE_DECODE), NOT_SUPPORTED),
        ] {
            assert_eq!(check(&descriptor), Err(failure), "{descriptor:?}");
        }
        let planes = CUDA_ARRAY3D_DESCRIPTOR { format: 0xb0, ..array(8, 8, 0, 0) };
        assert_eq!(check(&planes), Err(NOT_SUPPORTED));
    }
}
