//! Parts of reserved addresses.

use anyhow::{Context, Result, ensure};

use super::Run;
use crate::command::{Answer, InRange};
use crate::model::Range;

impl Run<'_> {
    pub(super) fn judge_range(
        &mut self,
        index: usize,
        about: InRange,
        answer: &Answer,
    ) -> Result<()> {
        let code = answer.code;
        let process = &mut self.model.processes[index];
        match about {
            InRange::Reserve { range, bytes } => {
                ensure!(code == 0, "no addresses were reserved");
                process.ranges.insert(range, Range { bytes, ..Range::default() });
            }
            InRange::Free { range, bytes } => {
                let its = process.ranges.get(&range).context("the range")?;
                let is_free = its.parts.is_empty() && its.bytes == bytes;
                ensure!(
                    (code == 0) == is_free,
                    "addresses go back whole, with nothing mapped there"
                );
                if code == 0 {
                    process.ranges.remove(&range);
                }
            }
            InRange::Map { range, at, key, bytes, offset } => {
                let first = process.handles.get(&key).context("the handle")?;
                let of = process.physical.get(first).context("its memory")?.bytes;
                let its = process.ranges.get(&range).context("the range")?;
                let fits = its.takes(at, bytes, offset, of);
                ensure!((code == 0) == fits, "{of} bytes at {at} of {its:?}");
                if code == 0 {
                    process.map_part((range, at), key, bytes);
                }
            }
            InRange::Unmap { range, at, bytes } => {
                let its = process.ranges.get(&range).context("the range")?;
                let places = its.filling(at, bytes);
                ensure!((code == 0) == places.is_some(), "whole mappings are unmapped: {its:?}");
                if let Some(places) = places {
                    process.unmap_parts(range, &places);
                }
            }
            InRange::Retain { range, at, key } => {
                ensure!(code == 0, "the mapped memory has no handle");
                let part = process.ranges.get(&range).and_then(|range| range.at(at));
                process.handles.insert(key, part.context("what is mapped there")?.physical);
                process.hold(key, |_, _| ());
            }
        }
        Ok(())
    }
}
