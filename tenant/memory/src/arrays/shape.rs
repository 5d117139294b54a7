//! The shape of an array, and an upper bound of its size.

use cgpu_shm::units::Bytes;

/// The shape of an array, as in the driver's `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// In elements.
    pub width: u64,
    /// In elements; 0: one dimension.
    pub height: u64,
    /// In elements, or layers; 0: two dimensions.
    pub depth: u64,
    /// `CUarray_format`.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
    /// Levels of a mipmapped array; 0: a plain one.
    pub levels: u32,
}

/// Depth counts layers.
pub(super) const LAYERED: u32 = 0x01;
/// Depth counts the faces of cubes.
const CUBEMAP: u32 = 0x04;
/// Memory is mapped tile by tile.
const SPARSE: u32 = 0x40;

/// Rows are padded to a multiple of this, eight times the width of a tile.
const PITCH: u64 = 512;
/// Rows of a tile, the smallest unit with rows.
const TILE: u64 = 8;
/// An array as a whole is rounded up to a multiple of this.
const PAGE: u64 = 64 << 10;
/// The largest block of tiles, in rows and slices.
const BLOCK: (u64, u64) = (256, 32);

impl Shape {
    /// `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later.
    pub const DEFERRED: u32 = 0x80;

    /// Returns whether it has no memory of its own: what is mapped into it is charged where it is
    /// created.
    #[must_use]
    pub fn is_mapped_later(&self) -> bool {
        self.flags & (SPARSE | Self::DEFERRED) != 0
    }

    /// Returns an upper bound of its size in any known layout; saturates.
    #[must_use]
    pub fn bound(&self) -> Bytes {
        let levels = self.levels.clamp(1, u64::BITS);
        let sum = (0..levels).map(|level| self.level(level)).fold(0, u64::saturating_add);
        Bytes(sum.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX))
    }

    fn level(&self, level: u32) -> u64 {
        let half = |length: u64| (length >> level).max(1);
        let layers = self.flags & (LAYERED | CUBEMAP) != 0;
        let row = half(self.width).saturating_mul(self.element());
        let pitch = row.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX);
        let rows = padded(half(self.height).max(TILE), BLOCK.0);
        let slices = if layers { self.depth.max(1) } else { padded(half(self.depth), BLOCK.1) };
        pitch.saturating_mul(rows).saturating_mul(slices)
    }

    /// Returns the bytes of an element at most.
    #[must_use]
    pub fn element(&self) -> u64 {
        let channel = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            // Packed, planar and compressed formats have 16 bytes at most for all channels.
            _ => return 16,
        };
        channel * u64::from(self.channels)
    }
}

/// Rounds up to whole blocks; a length below a block has a block of the next power of two.
fn padded(length: u64, block: u64) -> u64 {
    let block = length.checked_next_power_of_two().map_or(block, |power| power.min(block));
    length.checked_next_multiple_of(block).unwrap_or(u64::MAX)
}
