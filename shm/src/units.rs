//! Quantities and indices as types, so that bytes and nanoseconds, GPUs and slots are never mixed
//! up.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

use crate::layout::{GPUS, SLOTS};

/// A quantity with saturating arithmetic: other processes may write any value, and no sum may wrap.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Zero.
            pub const ZERO: Self = Self(0);
            /// The greatest value.
            pub const MAX: Self = Self(u64::MAX);

            /// Returns the number.
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
    /// A duration, or a time of `CLOCK_MONOTONIC`.
    Nanos, "ns"
}

impl Bytes {
    /// Converts from mebibytes. Saturates.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }
}

/// Host time per GPU time, in thousandths. More than 1000 only on a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale(pub u32);

impl TimeScale {
    /// The scale of a real GPU.
    pub const REAL: Self = Self(1000);

    /// Parses a factor (`CGPU_SIM_TIME_SCALE`), where 10 is ten times slower; `None` if it is not a
    /// number from 0.001 to 10000.
    #[must_use]
    pub fn of_factor(text: &str) -> Option<Self> {
        let factor =
            text.parse::<f64>().ok().filter(|factor| (0.001..=10_000.0).contains(factor))?;
        // A small positive number within these bounds.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let thousandths = (factor * 1000.0).round() as u32;
        Some(Self(thousandths))
    }

    /// Decodes a header's word: 0 is [`TimeScale::REAL`].
    #[must_use]
    pub const fn of_word(word: u32) -> Self {
        if word == 0 { Self::REAL } else { Self(word) }
    }

    /// Converts GPU time to host time. Saturates.
    #[must_use]
    pub fn host(self, device: Nanos) -> Nanos {
        let scaled = u128::from(device.0) * u128::from(self.0) / 1000;
        Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl Nanos {
    /// Converts from microseconds. Saturates.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Converts from milliseconds. Saturates.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Converts to the standard library's type.
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

/// Index of a GPU in a container's table, below [`GPUS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(u8);

impl DeviceIndex {
    /// Returns the GPU at `index`; `None` from [`GPUS`] on.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().filter(|&index| usize::from(index) < GPUS).map(Self)
    }

    /// Returns the index, always below [`GPUS`].
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Returns its entry of an array.
    #[inline]
    #[must_use]
    pub const fn of<T>(self, array: &[T; GPUS]) -> &T {
        // Always in bounds.
        #[allow(clippy::indexing_slicing)]
        &array[self.get()]
    }

    /// Returns every GPU that a container can have.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        (0..GPUS).filter_map(Self::new)
    }
}

/// Index of a process in a container's table. There are 256 slots, so any byte is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u8);

impl SlotIndex {
    /// Returns the slot at `index`; `None` from 256 on.
    #[must_use]
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().map(Self)
    }

    /// Returns the index.
    #[inline]
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Returns its entry of an array.
    #[inline]
    #[must_use]
    pub const fn of<T>(self, array: &[T; SLOTS]) -> &T {
        // Always in bounds.
        #[allow(clippy::indexing_slicing)]
        &array[self.get()]
    }

    /// Returns every slot.
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

/// The number of a slot's process: counts up with every claim, so that former processes of a slot
/// are never taken for the present one.
///
/// It has 56 bits; the low 23, which a lock word carries, are never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u64);

impl Generation {
    const BITS: u32 = 56;
    const LOW: u64 = (1 << 23) - 1;

    /// The first process of a slot.
    pub const FIRST: Self = Self(1);

    /// Decodes a slot's word; 0: the slot was never used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Returns the number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the bits that a lock word carries.
    #[inline]
    #[must_use]
    pub const fn low(self) -> u32 {
        // 23 bits fit.
        #[allow(clippy::cast_possible_truncation)]
        let low = (self.0 & Self::LOW) as u32;
        low
    }

    /// Returns the next generation.
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
    fn generation_is_never_zero_in_a_lock_word() {
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
    fn indices_stay_in_bounds() {
        assert_eq!(DeviceIndex::new(GPUS), None);
        assert_eq!(DeviceIndex::all().count(), GPUS);
        assert_eq!(SlotIndex::new(256), None);
        assert_eq!(SlotIndex::all().last(), SlotIndex::new(255));
    }
}
