//! The cards that a process sees, as the driver shows them.

use crate::Bytes;

/// A card's UUID, the 16 bytes of `cuDeviceGetUuid_v2` (the MIG instance's own for a MIG device).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// One card, as the shim reads it from NVML or the driver before anything is virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// The card's UUID.
    pub uuid: Uuid,
    /// The card's memory as NVML gives it (`nvmlDeviceGetMemoryInfo`, `total`); the driver's own total where NVML is missing.
    pub total: Bytes,
    /// The card's place in PCI order: any number that orders the cards as NVML's index does, such as
    /// `domain << 16 | bus << 8 | device << 3`.
    pub order: u64,
}

/// The cards known at start.
#[derive(Clone, Copy, Debug)]
pub struct Inventory<'a> {
    /// The cards, in any order.
    pub cards: &'a [CardInfo],
    /// Whether these are all the container's cards (NVML's list, or the driver's with no `CUDA_VISIBLE_DEVICES`). If not, a
    /// place in `NVIDIA_VISIBLE_DEVICES` cannot be told from a card that the program hid from itself, and lists that need it
    /// are refused.
    pub complete: bool,
}

/// A card that the container's books are kept for: its place in the region. Cheap to copy; the shim keeps one per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Card(pub(crate) u8);

impl Card {
    /// The card's place in the region, below `CGPU_CARDS`.
    #[must_use]
    pub fn get(self) -> usize {
        usize::from(self.0)
    }
}
