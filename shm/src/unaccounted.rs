//! What a process has on a GPU beyond its cell, as the monitor measured it, in one word.
//!
//! ```text
//!   63 ........... 48   47 ...... 40    39 ................. 0
//!   generation          implicit epoch  steps of 512 B, signed
//! ```
//!
//! It is one word because the host writes it and the container reads it, and it must never be
//! applied to another process: the figure carries the slot's generation and the cell's
//! `implicit_epoch`. The epoch changes when the process frees implicit memory, and what was
//! measured before no longer applies. All zeros: nothing is known.

use crate::slots::{State, Word};

/// Unit of the figure, in bytes.
pub const STEP: u64 = 512;

const STEP_BITS: u32 = 40;
const EPOCH_BITS: u32 = 8;
/// Greatest figure, in steps: 256 TiB less a step.
const MOST: i64 = (1 << (STEP_BITS - 1)) - 1;

/// A word of `grant.unaccounted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnaccountedDelta(pub u64);

impl UnaccountedDelta {
    /// Composes the word for the process of a slot whose word is `slot`, while its cell's
    /// `implicit_epoch` is as given. Rounds up to steps.
    #[must_use]
    pub fn new(slot: Word, implicit_epoch: u32, bytes: i64) -> Self {
        // Far within an i64.
        #[allow(clippy::cast_possible_wrap)]
        let steps = -(bytes.saturating_neg().div_euclid(STEP as i64));
        // Keeps the lower bits, in two's complement.
        #[allow(clippy::cast_sign_loss)]
        let steps = steps.clamp(-MOST, MOST) as u64 & ((1 << STEP_BITS) - 1);
        Self(Self::tag(slot, implicit_epoch) | steps)
    }

    /// Returns the figure in bytes, if it applies to the process of a slot whose word is `slot`
    /// while its cell's `implicit_epoch` is as given; else 0.
    #[inline]
    #[must_use]
    pub fn bytes(self, slot: Word, implicit_epoch: u32) -> i64 {
        let theirs = self.applies_to(slot, implicit_epoch);
        // What an exited process leaves to others was not measured.
        let there = matches!(slot.state(), Some(State::Live | State::Draining));
        // Sign-extends: the cast and the shifts are intended.
        #[allow(clippy::cast_possible_wrap)]
        let steps = (self.0 << (64 - STEP_BITS)) as i64 >> (64 - STEP_BITS);
        #[allow(clippy::cast_possible_wrap)]
        if theirs && there { steps * STEP as i64 } else { 0 }
    }

    /// Whether it applies to the process of a slot whose word is `slot` while its cell's
    /// `implicit_epoch` is as given.
    #[must_use]
    pub fn applies_to(self, slot: Word, implicit_epoch: u32) -> bool {
        self.0 >> STEP_BITS << STEP_BITS == Self::tag(slot, implicit_epoch)
    }

    const fn tag(slot: Word, implicit_epoch: u32) -> u64 {
        slot.generation().get() << (STEP_BITS + EPOCH_BITS)
            | (implicit_epoch as u64 & ((1 << EPOCH_BITS) - 1)) << STEP_BITS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::Generation;
    use proptest::prelude::*;

    fn word(generation: u64, state: State) -> Word {
        Word::new(Generation::from_bits(generation), state)
    }

    #[test]
    fn zero_word_gives_no_bytes() {
        assert_eq!(UnaccountedDelta::default().bytes(word(1, State::Live), 0), 0);
        assert_eq!(UnaccountedDelta::default().bytes(word(1 << 16, State::Live), 0), 0);
    }

    #[test]
    fn part_of_a_step_is_rounded_up() {
        let live = word(7, State::Live);
        for (bytes, says) in [(0, 0), (1, 512), (512, 512), (-1, 0), (-512, -512), (-513, -512)] {
            assert_eq!(UnaccountedDelta::new(live, 3, bytes).bytes(live, 3), says, "{bytes}");
        }
        assert_eq!(UnaccountedDelta::new(live, 3, i64::MIN).bytes(live, 3), -MOST * 512);
        assert_eq!(UnaccountedDelta::new(live, 3, i64::MAX).bytes(live, 3), MOST * 512);
    }

    proptest! {
        #[test]
        fn delta_applies_to_one_generation_and_one_implicit_epoch(
            generation in 1..1u64 << 56,
            other in 1..1u64 << 56,
            epoch: u32,
            later: u32,
            steps in -1000i64..1000,
        ) {
            let live = word(generation, State::Live);
            let delta = UnaccountedDelta::new(live, epoch, steps * 512);
            for (state, expected) in [
                (State::Live, steps * 512),
                (State::Draining, steps * 512),
                (State::Free, 0),
                (State::Orphan, 0),
            ] {
                let word = word(generation, state);
                prop_assert_eq!(delta.bytes(word, epoch), expected, "{:?}", state);
            }
            if (other ^ generation) & 0xffff != 0 {
                prop_assert_eq!(delta.bytes(word(other, State::Live), epoch), 0);
            }
            if (later ^ epoch) & 0xff != 0 {
                prop_assert_eq!(delta.bytes(live, later), 0);
            }
        }
    }
}
