//! Amounts of a device's capacities.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Memory of a device in steps of [`MEMORY_STEP`].
pub const MEMORY: &str = "memory";
/// Weight among the shares of a device; its value is the number of places.
pub const WEIGHT: &str = "weight";
/// Percent of a device's compute.
pub const CORES: &str = "cores";

/// Step of memory in bytes.
pub const MEMORY_STEP: u64 = 128 << 20;

/// What a device has, or what a share consumes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    /// Bytes of memory.
    pub memory: u64,
    /// Weight.
    pub weight: u32,
    /// Percent of compute; 0 where weights decide.
    pub cores: u32,
}

impl Capacity {
    /// Nothing.
    pub const NONE: Self = Self { memory: 0, weight: 0, cores: 0 };

    /// Returns the sum; saturates.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(other.memory),
            weight: self.weight.saturating_add(other.weight),
            cores: self.cores.saturating_add(other.cores),
        }
    }

    /// Returns the difference; saturates at zero.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(other.memory),
            weight: self.weight.saturating_sub(other.weight),
            cores: self.cores.saturating_sub(other.cores),
        }
    }

    /// Returns whether all of it fits in `free`.
    #[must_use]
    pub fn fits(self, free: Self) -> bool {
        self.memory <= free.memory && self.weight <= free.weight && self.cores <= free.cores
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB, weight {}", self.memory >> 20, self.weight)?;
        if self.cores > 0 { write!(f, ", {} % of the cores", self.cores) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_fits_if_every_amount_does() {
        let free = Capacity { memory: 2, weight: 2, cores: 2 };
        assert!(free.fits(free));
        for more in [
            Capacity { memory: 1, ..Capacity::NONE },
            Capacity { weight: 1, ..Capacity::NONE },
            Capacity { cores: 1, ..Capacity::NONE },
        ] {
            assert!(!free.and(more).fits(free), "{more:?}");
            assert_eq!(free.and(more).without(free), more);
        }
        let most = Capacity { memory: u64::MAX, weight: u32::MAX, cores: u32::MAX };
        assert_eq!(most.and(most), most);
        assert_eq!(Capacity::NONE.without(most), Capacity::NONE);
    }
}
