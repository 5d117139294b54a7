//! Green contexts.

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, PRIMARY};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{GREEN_DEFAULT_STREAM, MULTIPROCESSORS, Resource};

/// Minimum number of multiprocessors of a green context.
const PART: usize = 16;

impl Actor {
    pub(crate) fn create_green(&mut self, name: u32, answer: &mut Answer) -> Result<i32> {
        let (mut all, mut part, mut rest) =
            (Resource::default(), Resource::default(), Resource::default());
        let (mut count, mut description, mut green, mut view) = (1_u32, 0_usize, 0_usize, 0_usize);
        let split =
            [place(&mut part), place(&mut count), place(&mut all), place(&mut rest), 0, PART];
        let codes = [
            self.cuda
                .call(c"cuDeviceGetDevResource", [self.device, place(&mut all), MULTIPROCESSORS])?,
            self.cuda.call(c"cuDevSmResourceSplitByCount", split)?,
            self.cuda.call(
                c"cuDevResourceGenerateDesc",
                [place(&mut description), place(&mut part), 1],
            )?,
        ];
        if codes != [0; 3] {
            bail!("the GPU was not split: {codes:?}");
        }
        let wanted = [place(&mut green), description, self.device, GREEN_DEFAULT_STREAM];
        let code = self.cuda.call(c"cuGreenCtxCreate", wanted)?;
        if code == 0 {
            // The green context keeps the primary one, so its handle can be read.
            let mut whole = 0_usize;
            let codes = [
                self.cuda.call(c"cuCtxFromGreenCtx", [place(&mut view), green])?,
                self.cuda.call(c"cuDevicePrimaryCtxRetain", [place(&mut whole), self.device])?,
                self.cuda.call(c"cuDevicePrimaryCtxRelease_v2", [self.device])?,
            ];
            if codes != [0; 3] {
                bail!("the green context's getters answered {codes:?}");
            }
            self.contexts.insert(PRIMARY, whole);
            self.greens.insert(name, (green, view));
        }
        answer.active = self.is_active()?;
        Ok(code)
    }

    pub(crate) fn destroy_green(&mut self, name: u32, answer: &mut Answer) -> Result<i32> {
        let Some((green, _)) = self.greens.remove(&name) else { return Ok(NOT_OURS) };
        let code = self.cuda.call(c"cuGreenCtxDestroy", [green])?;
        answer.active = self.is_active()?;
        Ok(code)
    }

    pub(crate) fn allocate_green(
        &mut self,
        name: u32,
        key: u32,
        bytes: u64,
        answer: &mut Answer,
    ) -> Result<i32> {
        let Some(&(_, view)) = self.greens.get(&name) else { return Ok(NOT_OURS) };
        let mut code = self.cuda.call(c"cuCtxSetCurrent", [view])?;
        if code == 0 {
            let size = usize::try_from(bytes)?;
            code = self.cuda.call(c"cuMemAlloc_v2", [place(&mut answer.address), size])?;
        }
        Ok(self.keep(code, key, PRIMARY, answer))
    }
}
