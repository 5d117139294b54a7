//! What the driver said lately of what arrays take.

use cgpu_shm::units::{Bytes, DeviceIndex};

use super::shape::Shape;

/// Descriptors whose answers are kept: more than a program of many textures uses at a time.
pub(super) const KEPT: usize = 64;

/// What the driver said lately.
#[derive(Debug)]
pub(crate) struct Requirements {
    known: Vec<(DeviceIndex, Shape, Bytes)>,
    /// The place of the oldest once all are taken.
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

    /// Without host memory, it will be asked again.
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
