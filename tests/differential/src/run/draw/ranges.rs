//! Reserved addresses, in which a handle's memory is mapped several times and in parts.

use super::Run;
use crate::command::{Command, InRange};
use crate::model::MIB;

/// Maximum number of ranges of a process.
const MOST_RANGES: usize = 4;
/// Granularity of mappings in bytes.
const STEP: u64 = 2 * MIB;
/// Granules of a range.
const STEPS: u64 = 64;

impl Run<'_> {
    pub(super) fn draw_range(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let names: Vec<u32> = process.ranges.keys().copied().collect();
        let Some(range) = self.random.pick(&names).copied() else {
            return Command::Range(InRange::Reserve { range: self.new_key(), bytes: STEPS * STEP });
        };
        let about = process.ranges[&range].clone();
        let parts: Vec<(u64, u64)> =
            about.parts.iter().map(|(at, part)| (*at, part.bytes)).collect();
        let handles = self.handles_with(index, |its| its.bytes > 0 && !its.tiles);
        let handle = self.random.pick(&handles).copied();
        let part = self.random.pick(&parts).copied();
        let drawn = match (self.random.below(16), handle, part) {
            (0, ..) if names.len() < MOST_RANGES => {
                let bytes = (self.random.below(STEPS) + 1) * STEP;
                InRange::Reserve { range: self.new_key(), bytes }
            }
            // Must be refused while something is mapped.
            (1, ..) => InRange::Free { range, bytes: about.bytes },
            (2..=7, Some(key), _) => {
                let process = &self.model.processes[index];
                let physical =
                    process.handles.get(&key).and_then(|first| process.physical.get(first));
                let of = physical.map_or(STEP, |physical| physical.bytes) / STEP;
                let at = self.random.below(about.bytes / STEP) * STEP;
                // Sometimes more than the memory has. That must be refused, as must a mapping where
                // something is mapped.
                let steps = if self.random.once_in(8) { of + 1 } else { self.random.below(of) + 1 };
                // A mapping that does not begin with the first byte must be refused.
                let offset = if self.random.once_in(8) { STEP } else { 0 };
                InRange::Map { range, at, key, bytes: steps * STEP, offset }
            }
            (8 | 9, _, Some((at, bytes))) => InRange::Unmap { range, at, bytes },
            (10, ..) => self.several(range, &parts),
            // Part of a mapping, or more than is mapped: must be refused unless it happens to match
            // whole mappings.
            (11, _, Some((at, bytes))) => {
                let at = at + self.random.below(bytes / STEP) * STEP;
                InRange::Unmap {
                    range,
                    at,
                    bytes: (self.random.below(bytes / STEP + 1) + 1) * STEP,
                }
            }
            (12 | 13, _, Some((at, bytes))) => {
                let at = at + self.random.below(bytes);
                InRange::Retain { range, at, key: self.new_key() }
            }
            (14, Some(key), _) => return Command::PhysicalRelease { key },
            _ => return self.draw_other(index, context),
        };
        Command::Range(drawn)
    }

    /// Unmaps all adjacent mappings from one on.
    fn several(&mut self, range: u32, parts: &[(u64, u64)]) -> InRange {
        let from =
            usize::try_from(self.random.below(parts.len().max(1) as u64)).unwrap_or_default();
        let Some(&(first, _)) = parts.get(from) else {
            return InRange::Free { range, bytes: STEP };
        };
        let mut end = first;
        for (at, bytes) in &parts[from..] {
            if *at != end {
                break;
            }
            end += bytes;
        }
        InRange::Unmap { range, at: first, bytes: end - first }
    }
}
