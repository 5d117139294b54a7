//! Linear memory with 32-bit addresses.

use anyhow::{Result, ensure};
use cgpu_differential::command::Answer;

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;

impl Actor {
    pub(crate) fn allocate_low(
        &mut self,
        context: u32,
        key: u32,
        bytes: u64,
        answer: &mut Answer,
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        let mut address = 0_u32;
        if code == 0 {
            code = self.cuda.call(c"cuMemAlloc", [place(&mut address), usize::try_from(bytes)?])?;
        }
        Ok(self.keep_low(code, (context, key), address, answer))
    }

    pub(crate) fn allocate_low_pitch(
        &mut self,
        context: u32,
        key: u32,
        (width, height): (u64, u64),
        answer: &mut Answer,
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        let (mut address, mut pitch) = (0_u32, 0_u32);
        if code == 0 {
            let to = (place(&mut address), place(&mut pitch));
            let (width, height) = (usize::try_from(width)?, usize::try_from(height)?);
            code = self.cuda.call(c"cuMemAllocPitch", [to.0, to.1, width, height, 4])?;
        }
        answer.pitch = pitch.into();
        Ok(self.keep_low(code, (context, key), address, answer))
    }

    fn keep_low(
        &mut self,
        code: i32,
        (context, key): (u32, u32),
        address: u32,
        answer: &mut Answer,
    ) -> i32 {
        answer.address = address.into();
        if code == 0 {
            self.low.insert(key, (context, address));
        }
        code
    }

    pub(crate) fn free_low(&mut self, key: u32) -> Result<i32> {
        let Some(&(context, address)) = self.low.get(&key) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuMemFree", [address as usize])?;
        }
        if code == 0 {
            self.low.remove(&key);
        }
        Ok(code)
    }

    /// Requires that the first versions of the getters agree with the present ones, clamped to 32
    /// bits.
    pub(crate) fn compare_low_getters(&self, free: usize, total: usize) -> Result<()> {
        let (mut low_free, mut low_total, mut low_device) = (0_u32, 0_u32, 0_u32);
        let codes = [
            self.cuda.call(c"cuMemGetInfo", [place(&mut low_free), place(&mut low_total)])?,
            self.cuda.call(c"cuDeviceTotalMem", [place(&mut low_device), self.device])?,
        ];
        let mut after = 0_usize;
        let mut unused = 0_usize;
        let again = self.cuda.call(c"cuMemGetInfo_v2", [place(&mut after), place(&mut unused)])?;
        ensure!(
            (codes, again) == ([0; 2], 0),
            "the older getters answered {codes:?}, then {again}"
        );
        let clamp = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // The calls are not one snapshot: an exited process's memory may have been released between
        // them.
        let is_free = (clamp(free)..=clamp(after)).contains(&low_free);
        ensure!(
            is_free && [low_total, low_device] == [clamp(total); 2],
            "the older getters show {low_free} of {low_total} and {low_device} for {free} of \
             {total}"
        );
        Ok(())
    }
}
