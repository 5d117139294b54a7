//! Linear memory.

use anyhow::Result;
use cgpu_differential::command::Answer;

use crate::actor::Actor;
use crate::driver::place;

impl Actor {
    pub(crate) fn allocate(
        &mut self,
        context: u32,
        key: u32,
        bytes: u64,
        answer: &mut Answer,
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        if code == 0 {
            let size = usize::try_from(bytes)?;
            code = self.cuda.call(c"cuMemAlloc_v2", [place(&mut answer.address), size])?;
        }
        Ok(self.keep(code, key, context, answer))
    }

    pub(crate) fn allocate_pitch(
        &mut self,
        context: u32,
        key: u32,
        (width, height): (u64, u64),
        answer: &mut Answer,
    ) -> Result<i32> {
        let mut code = self.enter(context)?;
        if code == 0 {
            let (width, height) = (usize::try_from(width)?, usize::try_from(height)?);
            let (address, pitch) = (place(&mut answer.address), place(&mut answer.pitch));
            code = self.cuda.call(c"cuMemAllocPitch_v2", [address, pitch, width, height, 4])?;
        }
        Ok(self.keep(code, key, context, answer))
    }

    pub(crate) fn allocate_managed(&self, context: u32, bytes: u64) -> Result<i32> {
        /// `CU_MEM_ATTACH_GLOBAL`.
        const GLOBAL: usize = 1;
        let mut address = 0_u64;
        match self.enter(context)? {
            0 => {
                let size = usize::try_from(bytes)?;
                self.cuda.call(c"cuMemAllocManaged", [place(&mut address), size, GLOBAL])
            }
            code => Ok(code),
        }
    }

    /// Records an allocation if it was granted.
    pub(crate) fn keep(&mut self, code: i32, key: u32, context: u32, answer: &Answer) -> i32 {
        if code == 0 {
            self.allocations.insert(key, (context, answer.address));
        }
        code
    }

    pub(crate) fn free(&mut self, key: u32) -> Result<i32> {
        let Some(&(context, address)) = self.allocations.get(&key) else {
            return self.free_low(key);
        };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuMemFree_v2", [usize::try_from(address)?])?;
        }
        if code == 0 {
            self.allocations.remove(&key);
        }
        Ok(code)
    }
}
