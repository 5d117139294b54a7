//! Reserved addresses and the mappings in them.
//!
//! By `cuda.h` the offset of a mapping must be 0, so it begins with the first byte of the memory.
//! It can be shorter than the memory, in steps of 2 MiB. A range can be unmapped if whole mappings
//! fill it without a gap. Addresses are freed all at once, with nothing mapped.

use std::collections::BTreeMap;

use super::{MIB, Process};

/// Granularity of mappings in bytes.
const STEP: u64 = 2 * MIB;

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Size in bytes.
    pub bytes: u64,
    /// The physical memory: the name of its first handle.
    pub physical: u32,
}

/// Reserved addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Size in bytes.
    pub bytes: u64,
    /// Mappings by offset.
    pub parts: BTreeMap<u64, Part>,
}

impl Range {
    /// Returns whether `bytes` of memory of size `of` can be mapped at `at`, from `offset` of it
    /// on.
    #[must_use]
    pub fn takes(&self, at: u64, bytes: u64, offset: u64, of: u64) -> bool {
        let stepped = bytes > 0 && at.is_multiple_of(STEP) && bytes.is_multiple_of(STEP);
        let free =
            self.parts.iter().all(|(&first, part)| first + part.bytes <= at || at + bytes <= first);
        stepped && offset == 0 && bytes <= of && at + bytes <= self.bytes && free
    }

    /// Returns the offsets of the mappings that fill an extent without a gap, or `None` if they do
    /// not.
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

    /// Returns the mapping at an offset.
    #[must_use]
    pub fn at(&self, at: u64) -> Option<Part> {
        let (&first, &part) = self.parts.range(..=at).next_back()?;
        (at - first < part.bytes).then_some(part)
    }
}

impl Process {
    /// Maps a handle's memory in a range.
    pub fn map_part(&mut self, (range, at): (u32, u64), key: u32, bytes: u64) {
        self.hold(key, |process, physical| {
            if let Some(range) = process.ranges.get_mut(&range) {
                range.parts.insert(at, Part { bytes, physical });
            }
        });
    }

    /// Removes mappings of a range.
    pub fn unmap_parts(&mut self, range: u32, places: &[u64]) {
        for at in places {
            let part = self.ranges.get_mut(&range).and_then(|range| range.parts.remove(at));
            if let Some(part) = part {
                self.release_reference(part.physical);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_mappings_are_unmapped_whole() {
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
