//! Reserved addresses: what is mapped where in them.
//!
//! What `cuda.h` says of it: a mapping begins with the first byte of the memory (the offset must be 0) and may be shorter than it, in steps
//! of 2 MiB; a range is unmapped that whole mappings fill without a gap; addresses are given back all at once, with nothing mapped there.

use std::collections::BTreeMap;

use super::{MIB, Process};

/// What mappings are made of.
const STEP: u64 = 2 * MIB;

/// A part of a range where memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How much.
    pub bytes: u64,
    /// Whose memory: the key of its first handle.
    pub physical: u32,
}

/// Reserved addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// How many.
    pub bytes: u64,
    /// Mappings, by their places.
    pub parts: BTreeMap<u64, Part>,
}

impl Range {
    /// Whether memory of so many bytes can be mapped there, from one of its bytes on.
    #[must_use]
    pub fn takes(&self, at: u64, bytes: u64, offset: u64, of: u64) -> bool {
        let stepped = bytes > 0 && at.is_multiple_of(STEP) && bytes.is_multiple_of(STEP);
        let free =
            self.parts.iter().all(|(&first, part)| first + part.bytes <= at || at + bytes <= first);
        stepped && offset == 0 && bytes <= of && at + bytes <= self.bytes && free
    }

    /// The places of the mappings that fill a stretch without a gap; none, if they do not.
    #[must_use]
    pub fn filling(&self, at: u64, bytes: u64) -> Option<Vec<u64>> {
        let mut next = at;
        let mut found = Vec::new();
        while next < at + bytes {
            let part = self.parts.get(&next)?;
            found.push(next);
            next += part.bytes;
        }
        (bytes > 0 && next == at + bytes).then_some(found)
    }

    /// What is mapped at a place.
    #[must_use]
    pub fn at(&self, at: u64) -> Option<Part> {
        let (&first, &part) = self.parts.range(..=at).next_back()?;
        (at - first < part.bytes).then_some(part)
    }
}

impl Process {
    /// A handle's memory is mapped in a range.
    pub fn map_part(&mut self, (range, at): (u32, u64), key: u32, bytes: u64) {
        self.hold(key, |process, physical| {
            if let Some(range) = process.ranges.get_mut(&range) {
                range.parts.insert(at, Part { bytes, physical });
            }
        });
    }

    /// Mappings of a range are gone.
    pub fn unmap_parts(&mut self, range: u32, places: &[u64]) {
        for at in places {
            let part = self.ranges.get_mut(&range).and_then(|range| range.parts.remove(at));
            if let Some(part) = part {
                self.let_go(part.physical);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_lie_side_by_side_and_go_whole() {
        let mut range = Range { bytes: 8 * STEP, ..Range::default() };
        assert!(
            range.takes(0, 2 * STEP, 0, 2 * STEP) && range.takes(6 * STEP, 2 * STEP, 0, 4 * STEP)
        );
        assert!(
            !range.takes(0, 2 * STEP, STEP, 4 * STEP)
                && !range.takes(7 * STEP, 2 * STEP, 0, 4 * STEP)
        );
        assert!(!range.takes(0, 2 * STEP, 0, STEP) && !range.takes(1, STEP, 0, STEP));
        range.parts.insert(STEP, Part { bytes: 2 * STEP, physical: 1 });
        range.parts.insert(3 * STEP, Part { bytes: STEP, physical: 2 });
        assert!(!range.takes(2 * STEP, STEP, 0, STEP) && range.takes(0, STEP, 0, STEP));
        assert_eq!(range.filling(STEP, 3 * STEP), Some(vec![STEP, 3 * STEP]));
        assert_eq!((range.filling(STEP, STEP), range.filling(0, 2 * STEP)), (None, None));
        assert_eq!((range.filling(STEP, 4 * STEP), range.filling(STEP, 0)), (None, None));
        assert_eq!(range.at(2 * STEP).map(|part| part.physical), Some(1));
        assert_eq!((range.at(0), range.at(4 * STEP)), (None, None));
    }
}
