//! Arrays: what one takes is the driver's layout, which the driver tells for the asking, or which is bounded from above.
//!
//! An array stands in the table of allocations, under an address that no driver gives out. So it goes with its context in the
//! same step as linear memory, and is freed in the same way.

use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

use crate::{Address, Tenant};

/// An array as the driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayId {
    /// `CUarray`.
    Array(usize),
    /// `CUmipmappedArray`.
    Mipmapped(usize),
}

impl ArrayId {
    /// Where it stands in the table. Device addresses have 57 bits at most, those of the program's objects 47; addresses in the
    /// table are multiples of 256.
    #[must_use]
    pub fn address(self) -> Address {
        let (kind, handle) = match self {
            Self::Array(handle) => (0b10 << 62, handle as u64),
            Self::Mipmapped(handle) => (0b11 << 62, handle as u64),
        };
        // A handle that does not fit has no place in the table: its array stays charged until the process ends.
        Address(if handle < 1 << 54 { kind | handle << 8 } else { u64::MAX })
    }
}

/// What an array is to be, in the words of the driver's descriptor (`CUDA_ARRAY3D_DESCRIPTOR`).
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
const LAYERED: u32 = 0x01;
/// Depth counts the faces of cubes.
const CUBEMAP: u32 = 0x04;
/// Memory is mapped tile by tile.
const SPARSE: u32 = 0x40;

/// What rows are padded to: eight times the width of a tile.
const PITCH: u64 = 512;
/// Rows of a tile, which is the least that has rows.
const TILE: u64 = 8;
/// What an array as a whole is rounded up to.
const PAGE: u64 = 64 << 10;
/// The greatest block of tiles, in rows and slices.
const BLOCK: (u64, u64) = (256, 32);

impl Shape {
    /// `CUDA_ARRAY3D_DEFERRED_MAPPING`: memory is mapped later.
    pub const DEFERRED: u32 = 0x80;

    /// Whether it has no memory of its own: what is mapped into it is charged where it is made.
    #[must_use]
    pub fn is_mapped_later(&self) -> bool {
        self.flags & (SPARSE | Self::DEFERRED) != 0
    }

    /// What it takes at most in any layout that is known; saturating.
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

    /// Bytes of an element at most.
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

/// Padded to whole blocks; what is smaller than one has a block of the next power of two.
fn padded(length: u64, block: u64) -> u64 {
    let block = length.checked_next_power_of_two().map_or(block, |power| power.min(block));
    length.checked_next_multiple_of(block).unwrap_or(u64::MAX)
}

/// Descriptors whose answers are kept: more than a program of many textures uses at a time.
const KEPT: usize = 64;

/// What the driver said lately.
#[derive(Debug)]
pub(crate) struct Requirements {
    known: Vec<(Gpu, Shape, Bytes)>,
    /// The place of the oldest once all are taken.
    oldest: usize,
}

impl Requirements {
    pub(crate) const fn new() -> Self {
        Self { known: Vec::new(), oldest: 0 }
    }

    fn find(&self, gpu: Gpu, shape: &Shape) -> Option<Bytes> {
        let found = self.known.iter().find(|known| known.0 == gpu && known.1 == *shape);
        found.map(|known| known.2)
    }

    /// Without host memory, it will be asked again.
    fn keep(&mut self, gpu: Gpu, shape: Shape, bytes: Bytes) {
        if self.known.len() < KEPT {
            if self.known.try_reserve(1).is_ok() {
                self.known.push((gpu, shape, bytes));
            }
        } else if let Some(oldest) = self.known.get_mut(self.oldest) {
            *oldest = (gpu, shape, bytes);
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }
}

impl Tenant {
    /// What an array takes on `gpu`, if the driver said so lately.
    #[must_use]
    pub fn array_size(&self, gpu: Gpu, shape: &Shape) -> Option<Bytes> {
        self.requirements.lock().find(gpu, shape)
    }

    /// The driver says what an array takes on `gpu`.
    pub fn array_takes(&self, gpu: Gpu, shape: Shape, bytes: Bytes) {
        self.requirements.lock().keep(gpu, shape, bytes);
    }
}

#[cfg(test)]
mod tests;
