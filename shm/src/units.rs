//! Quantities and indices, so that bytes are never taken for nanoseconds nor a GPU for a slot.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

use crate::layout::GPUS;

/// A quantity with saturating arithmetic: what other processes write may be anything, and no sum of it may wrap.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);
            /// As much as can be said.
            pub const MAX: Self = Self(u64::MAX);

            /// The bare number.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        /// Saturates.
        impl Add for $name {
            type Output = Self;
            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        /// Saturates at zero.
        impl Sub for $name {
            type Output = Self;
            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl core::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
                all.fold(Self::ZERO, Add::add)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $unit), self.0)
            }
        }
    };
}

quantity! {
    /// Memory of a GPU.
    Bytes, "bytes"
}

quantity! {
    /// A span of time, or an instant of `CLOCK_MONOTONIC`.
    Nanos, "ns"
}

impl Bytes {
    /// Whole mebibytes.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }
}

/// How much slower than the host's the GPUs' clock runs, in thousandths: more than one only on a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale(pub u32);

impl TimeScale {
    /// A real GPU's.
    pub const REAL: Self = Self(1000);

    /// From a factor as people write it (`CGPU_SIM_DILATION`), 10 being ten times slower; none: no number from 0.001 to 10000.
    #[must_use]
    pub fn of_factor(text: &str) -> Option<Self> {
        let factor =
            text.parse::<f64>().ok().filter(|factor| (0.001..=10_000.0).contains(factor))?;
        // Within these bounds it is a small positive number.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let thousandths = (factor * 1000.0).round() as u32;
        Some(Self(thousandths))
    }

    /// What a header says: 0 is [`TimeScale::REAL`].
    #[must_use]
    pub const fn of_word(word: u32) -> Self {
        if word == 0 { Self::REAL } else { Self(word) }
    }

    /// How long what took `device` on a GPU takes for the host. Saturates.
    #[must_use]
    pub fn host(self, device: Nanos) -> Nanos {
        let scaled = u128::from(device.0) * u128::from(self.0) / 1000;
        Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Nanos {
    /// Whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// As the standard library says it.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    /// Saturates after 584 years.
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A GPU's place in a container's table, below [`GPUS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// The GPU at `index`; `None` from [`GPUS`] on.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|&index| usize::from(index) < GPUS).map(Self)
    }

    /// As an index, always below [`GPUS`].
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Every GPU a container can have.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        (0..GPUS).filter_map(Self::new)
    }
}

/// A process's place in a container's table. There are as many as a byte has values, so that any byte is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u8);

impl SlotIndex {
    /// The slot at `index`; `None` from 256 on.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().map(Self)
    }

    /// As an index.
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Every slot.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self)
    }
}

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SlotIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which user of a slot: counts up with every claim, so that a slot's former users are never taken for the present one.
///
/// 56 bits; the low 23, which a lock word carries, are never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    const BITS: u32 = 56;
    const LOW: u64 = (1 << 23) - 1;

    /// The first user of a slot.
    pub const FIRST: Self = Self(1);

    /// From a slot's word; the number zero stands for a slot that was never used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What a lock word carries of it.
    #[inline]
    #[must_use]
    pub const fn low(self) -> u32 {
        // 23 bits fit.
        #[allow(clippy::cast_possible_truncation)]
        let low = (self.0 & Self::LOW) as u32;
        low
    }

    /// The user after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        let next = Self::from_bits(self.0 + 1);
        if next.0 & Self::LOW == 0 { Self(next.0 + 1) } else { next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate() {
        assert_eq!(Bytes::MAX + Bytes(1), Bytes::MAX);
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!([Bytes::MAX, Bytes(1)].into_iter().sum::<Bytes>(), Bytes::MAX);
        assert_eq!(Nanos::from(Duration::MAX), Nanos::MAX);
    }

    #[test]
    fn no_generation_looks_free_in_a_lock_word() {
        for start in [
            Generation::FIRST,
            Generation(Generation::LOW - 1),
            Generation((1 << Generation::BITS) - 2),
        ] {
            let mut generation = start;
            for _ in 0..4 {
                let next = generation.next();
                assert_ne!(next.low(), 0, "after {generation:?}");
                assert_ne!(next, generation);
                assert_eq!(Generation::from_bits(next.get()), next);
                generation = next;
            }
        }
    }

    #[test]
    fn indices_are_in_bounds() {
        assert_eq!(DeviceIndex::new(GPUS), None);
        assert_eq!(DeviceIndex::all().count(), GPUS);
        assert_eq!(SlotIndex::new(256), None);
        assert_eq!(SlotIndex::all().last(), SlotIndex::new(255));
    }
}
