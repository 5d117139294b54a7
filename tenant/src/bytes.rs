//! Sizes of memory.

use std::fmt;

/// A size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The unit of NVML's and cGPU's figures.
    pub const MIB: Self = Self(1 << 20);

    /// `count` MiB; saturates.
    #[must_use]
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(Self::MIB.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, never beyond the type.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes % Self::MIB.0 == 0 => write!(f, "{} MiB", bytes / Self::MIB.0),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}
