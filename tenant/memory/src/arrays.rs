//! Arrays: what one takes is the driver's layout, which the driver tells for the asking, or which
//! is bounded from above.
//!
//! An array stands in the table of allocations, under an address that no driver gives out. So it
//! goes with its context in the same step as linear memory, and is freed in the same way.

pub(crate) mod requirements;
mod shape;

use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::shape::Shape;
use crate::tables::Tables;

/// What arrays take, by their descriptors.
#[derive(Clone, Copy, Debug)]
pub struct Arrays<'a> {
    tables: &'a Tables,
}

impl<'a> Arrays<'a> {
    #[inline]
    pub(crate) fn new(tables: &'a Tables) -> Self {
        Self { tables }
    }

    /// What an array takes on `gpu`, if the driver said so lately.
    #[must_use]
    pub fn size(self, gpu: DeviceIndex, shape: &Shape) -> Option<Bytes> {
        self.tables.requirements.lock().find(gpu, shape)
    }

    /// The driver says what an array takes on `gpu`.
    pub fn takes(self, gpu: DeviceIndex, shape: Shape, bytes: Bytes) {
        self.tables.requirements.lock().keep(gpu, shape, bytes);
    }
}

#[cfg(test)]
mod tests;
