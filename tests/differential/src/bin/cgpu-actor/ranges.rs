//! Reserved addresses and mapped parts of them.

use anyhow::Result;
use cgpu_differential::command::InRange;

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;

impl Actor {
    pub(crate) fn range(&mut self, about: InRange) -> Result<i32> {
        let (InRange::Reserve { range, .. }
        | InRange::Free { range, .. }
        | InRange::Map { range, .. }
        | InRange::Unmap { range, .. }
        | InRange::Retain { range, .. }) = about;
        let first = self.ranges.get(&range).copied().unwrap_or_default();
        let at = |place: u64| usize::try_from(first + place);
        match about {
            InRange::Reserve { range, bytes } => {
                let mut first = 0_u64;
                let wanted = [place(&mut first), usize::try_from(bytes)?, 0, 0, 0];
                let code = self.cuda.call(c"cuMemAddressReserve", wanted)?;
                if code == 0 {
                    self.ranges.insert(range, first);
                }
                Ok(code)
            }
            InRange::Free { range, bytes } => {
                let code =
                    self.cuda.call(c"cuMemAddressFree", [at(0)?, usize::try_from(bytes)?])?;
                if code == 0 {
                    self.ranges.remove(&range);
                }
                Ok(code)
            }
            InRange::Map { at: place, key, bytes, offset, .. } => {
                let Some(&handle) = self.handles.get(&key) else { return Ok(NOT_OURS) };
                let (size, offset) = (usize::try_from(bytes)?, usize::try_from(offset)?);
                self.cuda.call(c"cuMemMap", [at(place)?, size, offset, usize::try_from(handle)?, 0])
            }
            InRange::Unmap { at: place, bytes, .. } => {
                self.cuda.call(c"cuMemUnmap", [at(place)?, usize::try_from(bytes)?])
            }
            InRange::Retain { at: here, key, .. } => {
                let mut handle = 0_u64;
                let code = self
                    .cuda
                    .call(c"cuMemRetainAllocationHandle", [place(&mut handle), at(here)?])?;
                if code == 0 {
                    self.handles.insert(key, handle);
                }
                Ok(code)
            }
        }
    }
}
