//! A process's used and cached memory on a GPU, in one word.
//!
//! ```text
//!   63     62 ............ 43   42 ................. 0
//!   open   cached, in 512 B     used, in bytes
//! ```
//!
//! *Cached* bytes have been freed by the process, and it may take them again without the lock.
//! Other processes count them as in use until they need them and *close* the word. It is one word
//! because a process moves bytes between the two parts while another may be closing it: the second
//! compare-and-swap sees the first.

use crate::units::Bytes;

/// The parts of a cell's `held`. All zeros: nothing held, closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held(pub u64);

/// Unit of the cached part, in bytes: the driver's smallest allocation step.
pub const STEP: u64 = 512;

const USED_BITS: u32 = 43;
const OPEN: u64 = 1 << 63;
/// Greatest used part: 8 TiB less a byte.
const MOST_USED: u64 = (1 << USED_BITS) - 1;
/// Greatest cached part, in steps: 512 MiB less a step. Bytes freed beyond it are not cached.
const MOST_CACHED: u64 = (OPEN >> USED_BITS) - 1;

impl Held {
    /// Bytes in use.
    #[inline]
    #[must_use]
    pub const fn used(self) -> Bytes {
        Bytes(self.0 & MOST_USED)
    }

    /// Bytes that the process may take without the lock.
    #[inline]
    #[must_use]
    pub const fn cached(self) -> Bytes {
        Bytes(self.steps() * STEP)
    }

    /// Used and cached bytes together: what other processes may not take.
    #[inline]
    #[must_use]
    pub fn claim(self) -> Bytes {
        self.used() + self.cached()
    }

    /// Whether freed bytes stay with the process.
    #[inline]
    #[must_use]
    pub const fn is_open(self) -> bool {
        self.0 & OPEN != 0
    }

    /// Takes `bytes` out of the cached part, if it has as many.
    #[inline]
    #[must_use]
    pub const fn take(self, bytes: Bytes) -> Option<Self> {
        let steps = bytes.0.div_ceil(STEP);
        // Within the cached part, so the subtraction below cannot wrap. The used part may overflow.
        if steps > self.steps() || self.used().0 + bytes.0 > MOST_USED {
            return None;
        }
        Some(Self(self.0 - (steps << USED_BITS) + bytes.0))
    }

    /// Adds `bytes` that a charge admitted; `None` if the used part overflows.
    #[inline]
    #[must_use]
    pub const fn raised(self, bytes: Bytes) -> Option<Self> {
        match self.used().0.checked_add(bytes.0) {
            Some(used) if used <= MOST_USED => Some(Self(self.0 + bytes.0)),
            _ => None,
        }
    }

    /// As [`Held::raised`], clamped to the greatest used part.
    #[must_use]
    pub fn raised_at_most(self, bytes: Bytes) -> Self {
        Self(self.0 + bytes.0.min(MOST_USED - self.used().0))
    }

    /// Subtracts `bytes` from the used part, or all of it, and returns the number subtracted. In an
    /// open word they become cached as far as there is room.
    #[inline]
    #[must_use]
    pub fn lowered(self, bytes: Bytes) -> (Self, Bytes) {
        let back = bytes.0.min(self.used().0);
        let kept = if self.is_open() { (back / STEP).min(MOST_CACHED - self.steps()) } else { 0 };
        (Self(self.0 - back + (kept << USED_BITS)), Bytes(back))
    }

    /// Opens the word: bytes freed from now on are cached.
    #[inline]
    #[must_use]
    pub const fn opened(self) -> Self {
        Self(self.0 | OPEN)
    }

    /// Closes the word and drops the cached part.
    #[inline]
    #[must_use]
    pub const fn closed(self) -> Self {
        Self(self.0 & MOST_USED)
    }

    /// Closes the word and keeps only the `exported` bytes of the used part.
    #[must_use]
    pub fn left(self, exported: Bytes) -> Self {
        let closed = self.closed();
        closed.lowered(closed.used() - closed.used().min(exported)).0
    }

    #[inline]
    const fn steps(self) -> u64 {
        (self.0 & !OPEN) >> USED_BITS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_freed_in_an_open_word_can_be_taken_again() {
        let held = Held::default().raised(Bytes(4096)).unwrap().opened();
        assert_eq!(held.take(Bytes(1)), None);
        let (held, back) = held.lowered(Bytes(1024));
        assert_eq!((held.used(), held.cached(), back), (Bytes(3072), Bytes(1024), Bytes(1024)));
        assert_eq!(held.claim(), Bytes(4096));
        let held = held.take(Bytes(600)).unwrap();
        assert_eq!((held.used(), held.cached()), (Bytes(3672), Bytes::ZERO));
        assert_eq!(held.closed().lowered(Bytes(600)).0, Held(3072));
    }

    proptest! {
        /// For any word, no part leaks into another, and only an admitted charge raises the claim.
        #[test]
        fn changes_never_leak_between_used_and_cached(
            word: u64,
            bytes in prop_oneof![0..1u64 << 44, any::<u64>()],
        ) {
            let (held, bytes) = (Held(word), Bytes(bytes));
            if let Some(taken) = held.take(bytes) {
                prop_assert_eq!(taken.used(), held.used() + bytes);
                prop_assert!(taken.claim() <= held.claim() && taken.is_open() == held.is_open());
            }
            if let Some(raised) = held.raised(bytes) {
                prop_assert_eq!(raised.used(), held.used() + bytes);
                prop_assert_eq!(raised.cached(), held.cached());
            }
            let most = held.raised_at_most(bytes);
            prop_assert!(most.used() >= held.used() && most.cached() == held.cached());
            let (lowered, back) = held.lowered(bytes);
            prop_assert_eq!(lowered.used() + back, held.used());
            prop_assert!(lowered.claim() <= held.claim() && lowered.is_open() == held.is_open());
            prop_assert!(back == bytes || lowered.used() == Bytes::ZERO);
            prop_assert_eq!(held.closed().used(), held.used());
            prop_assert_eq!(held.closed().cached(), Bytes::ZERO);
            prop_assert!(!held.closed().is_open() && held.opened().is_open());
        }
    }
}
