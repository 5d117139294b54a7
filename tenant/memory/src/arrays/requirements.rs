//! The sizes of arrays that the driver reported recently.

use cgpu_shm::units::{Bytes, DeviceIndex};

use super::shape::Shape;

/// Number of sizes kept: more than the descriptors that a program with many textures uses at a
/// time.
pub(super) const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Requirements {
    known: Vec<(DeviceIndex, Shape, Bytes)>,
    /// Index of the oldest one, once all are in use.
    oldest: usize,
}

impl Requirements {
    pub(crate) const fn new() -> Self {
        Self { known: Vec::new(), oldest: 0 }
    }

    pub(super) fn find(&self, gpu: DeviceIndex, shape: &Shape) -> Option<Bytes> {
        let found = self.known.iter().find(|known| known.0 == gpu && known.1 == *shape);
        found.map(|known| known.2)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Without host memory, the driver is called again next time.
    pub(super) fn keep(&mut self, gpu: DeviceIndex, shape: Shape, bytes: Bytes) {
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
