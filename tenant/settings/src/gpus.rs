//! The GPUs that a process sees, as the driver reports them.

use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

/// The first digits of a UUID: users abbreviate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UuidStart {
    bytes: [u8; 16],
    digits: usize,
}

impl UuidStart {
    /// Reads 1 to 32 digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut start = Self { bytes: [0; 16], digits: 0 };
        for character in text.chars().filter(|&character| character != '-') {
            let digit = u8::try_from(character.to_digit(16)?).ok()?;
            let byte = start.bytes.get_mut(start.digits / 2)?;
            *byte |= if start.digits.is_multiple_of(2) { digit << 4 } else { digit };
            start.digits += 1;
        }
        (start.digits > 0).then_some(start)
    }

    pub(crate) fn whole(uuid: Uuid) -> Self {
        Self { bytes: uuid.0, digits: 32 }
    }

    /// Returns whether `uuid` begins with these digits.
    pub(crate) fn begins(&self, uuid: Uuid) -> bool {
        let nibble = |bytes: &[u8; 16], digit: usize| {
            bytes
                .get(digit / 2)
                .map(|byte| if digit.is_multiple_of(2) { byte >> 4 } else { byte & 15 })
        };
        (0..self.digits).all(|digit| nibble(&self.bytes, digit) == nibble(&uuid.0, digit))
    }
}

/// A GPU, as the shim reads it from NVML or the driver before anything is virtualized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The UUID, as `cuDeviceGetUuid_v2` and NVML return it (a MIG instance's own).
    pub uuid: Uuid,
    /// The memory that NVML reports (`nvmlDeviceGetMemoryInfo`, `total`), or without NVML the
    /// driver.
    pub total: Bytes,
    /// Sort key in PCI order, like NVML's index: for example
    /// `domain << 16 | bus << 8 | device << 3`. The low four bits are the number of a MIG instance,
    /// from 1, and zero for a whole GPU.
    pub order: u64,
}

impl GpuInfo {
    /// Mask of a MIG instance's number in `order`: 1 to 7 on all GPUs so far.
    pub const INSTANCE: u64 = 15;

    /// Returns whether it is a MIG instance.
    #[must_use]
    pub const fn is_instance(&self) -> bool {
        self.order & Self::INSTANCE != 0
    }

    /// Returns the order of the GPU, or of the GPU that it is an instance of.
    pub(crate) fn whole_order(&self) -> u64 {
        self.order & !Self::INSTANCE
    }
}

/// The GPUs that the starting process has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// [`Inventory::gpus`].
    pub gpus: Vec<GpuInfo>,
    /// [`Inventory::partitioned`].
    pub partitioned: Vec<Uuid>,
    /// [`Inventory::complete`].
    pub complete: bool,
}

impl Found {
    /// The value before any search.
    pub const NOTHING: Found = Found { gpus: Vec::new(), partitioned: Vec::new(), complete: false };

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns a view for the start.
    #[must_use]
    pub fn as_inventory(&self) -> Inventory<'_> {
        Inventory { gpus: &self.gpus, partitioned: &self.partitioned, complete: self.complete }
    }
}

/// The GPUs known at start.
#[derive(Clone, Copy, Debug)]
pub struct Inventory<'a> {
    /// The GPUs, in any order.
    pub gpus: &'a [GpuInfo],
    /// Partitioned GPUs, whose MIG instances are in `gpus` instead.
    pub partitioned: &'a [Uuid],
    /// Whether these are all the container's GPUs (NVML's list, or the driver's without
    /// `CUDA_VISIBLE_DEVICES`). If not, a position in `NVIDIA_VISIBLE_DEVICES` may be that of a GPU
    /// that the program hides from itself, and lists that need positions are refused.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_start_matches_digit_by_digit() {
        let uuid = "GPU-8f0e6a8c-0102-0304-0506-0708090a0b0c".parse().expect("a UUID");
        for (text, begins) in [
            ("8", true),
            ("8f0", true),
            ("8F0E6A8C-01", true),
            ("9", false),
            ("8f1", false),
            ("0", false),
        ] {
            assert_eq!(UuidStart::parse(text).expect("digits").begins(uuid), begins, "{text}");
        }
    }
}
