//! Arrays: the driver reports how much one takes, or an upper bound is computed.
//!
//! An array has an entry in the table of allocations, under an address that no driver returns. So
//! it ends with its context, and is freed, as linear memory is.

pub(crate) mod requirements;
mod shape;

use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::shape::Shape;
use crate::tables::part;

part!(
    /// The sizes of arrays, by their descriptors.
    Arrays
);

impl Arrays<'_> {
    /// Returns how much an array takes on `gpu`, if the driver has reported it recently.
    #[must_use]
    pub fn size(self, gpu: DeviceIndex, shape: &Shape) -> Option<Bytes> {
        self.tables.requirements.lock().find(gpu, shape)
    }

    /// Records how much an array takes on `gpu`, as reported by the driver.
    pub fn takes(self, gpu: DeviceIndex, shape: Shape, bytes: Bytes) {
        self.tables.requirements.lock().keep(gpu, shape, bytes);
    }
}

#[cfg(test)]
mod tests;
