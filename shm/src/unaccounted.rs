//! What a process has on a GPU beyond what its cell says: the monitor's correction, in one word.
//!
//! ```text
//!   63 ........... 48   47 ...... 40   39 ................. 0
//!   generation          ended          steps of 512 B, signed
//! ```
//!
//! One word, because it is written on the host and read inside, and must never be taken for another process's: whose it is, and for which
//! time, goes with the figure. The time ends when the process gives implicit memory back (the cell's `ended`): what was measured before is
//! then worth nothing. All zeros: nothing is known.

use crate::slots::{State, Word};

/// What the figure is counted in.
pub const STEP: u64 = 512;

const STEP_BITS: u32 = 40;
const ENDED_BITS: u32 = 8;
/// The most it can say: 256 TiB less a step.
const MOST: i64 = (1 << (STEP_BITS - 1)) - 1;

/// A word of `grant.growth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnaccountedDelta(pub u64);

impl UnaccountedDelta {
    /// The word that says so of the user of a slot whose word is `slot`, while its cell's `ended` is as given. Rounded up.
    #[must_use]
    pub fn new(slot: Word, ended: u32, bytes: i64) -> Self {
        // Far inside of an i64.
        #[allow(clippy::cast_possible_wrap)]
        let steps = -(bytes.saturating_neg().div_euclid(STEP as i64));
        // The lower bits of both are what is kept; two's complement is what the word says.
        #[allow(clippy::cast_sign_loss)]
        let steps = steps.clamp(-MOST, MOST) as u64 & ((1 << STEP_BITS) - 1);
        Self(Self::tag(slot, ended) | steps)
    }

    /// What it says of the user of a slot whose word is `slot`, if its cell's `ended` is as given; of others nothing.
    #[inline]
    #[must_use]
    pub fn bytes(self, slot: Word, ended: u32) -> i64 {
        let theirs = self.applies_to(slot, ended);
        // What a dead process leaves to others was not measured of it.
        let there = matches!(slot.state(), Some(State::Live | State::Draining));
        // Sign-extended: the cast and the shifts are the point.
        #[allow(clippy::cast_possible_wrap)]
        let steps = (self.0 << (64 - STEP_BITS)) as i64 >> (64 - STEP_BITS);
        #[allow(clippy::cast_possible_wrap)]
        if theirs && there { steps * STEP as i64 } else { 0 }
    }

    /// Whether it says anything of the user of a slot whose word is `slot`, while its cell's `ended` is as given.
    #[must_use]
    pub fn applies_to(self, slot: Word, ended: u32) -> bool {
        self.0 >> STEP_BITS << STEP_BITS == Self::tag(slot, ended)
    }

    const fn tag(slot: Word, ended: u32) -> u64 {
        slot.generation().get() << (STEP_BITS + ENDED_BITS)
            | (ended as u64 & ((1 << ENDED_BITS) - 1)) << STEP_BITS
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
    fn nothing_known_is_nothing() {
        assert_eq!(UnaccountedDelta::default().bytes(word(1, State::Live), 0), 0);
        assert_eq!(UnaccountedDelta::default().bytes(word(1 << 16, State::Live), 0), 0);
    }

    #[test]
    fn parts_of_a_step_count_upwards() {
        let live = word(7, State::Live);
        for (bytes, says) in [(0, 0), (1, 512), (512, 512), (-1, 0), (-512, -512), (-513, -512)] {
            assert_eq!(UnaccountedDelta::new(live, 3, bytes).bytes(live, 3), says, "{bytes}");
        }
        assert_eq!(UnaccountedDelta::new(live, 3, i64::MIN).bytes(live, 3), -MOST * 512);
        assert_eq!(UnaccountedDelta::new(live, 3, i64::MAX).bytes(live, 3), MOST * 512);
    }

    proptest! {
        #[test]
        fn it_speaks_of_one_user_at_one_time(
            generation in 1..1u64 << 56, other in 1..1u64 << 56, ended: u32, later: u32, steps in -1000i64..1000,
        ) {
            let live = word(generation, State::Live);
            let growth = UnaccountedDelta::new(live, ended, steps * 512);
            prop_assert_eq!(growth.bytes(live, ended), steps * 512);
            prop_assert_eq!(growth.bytes(word(generation, State::Draining), ended), steps * 512);
            prop_assert_eq!(growth.bytes(word(generation, State::Free), ended), 0);
            prop_assert_eq!(growth.bytes(word(generation, State::Orphan), ended), 0);
            if (other ^ generation) & 0xffff != 0 {
                prop_assert_eq!(growth.bytes(word(other, State::Live), ended), 0);
            }
            if (later ^ ended) & 0xff != 0 {
                prop_assert_eq!(growth.bytes(live, later), 0);
            }
        }
    }
}
