//! Arrays.

use anyhow::{Result, bail};
use cgpu_differential::command::Answer;

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{DEFERRED, Descriptor, FLOAT, Requirements};

impl Actor {
    pub(crate) fn create_array(
        &mut self,
        context: u32,
        key: u32,
        extent: [u64; 3],
        channels: u32,
        answer: &mut Answer,
    ) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let [width, height, depth] = extent;
        let mut shape = Descriptor {
            width: usize::try_from(width)?,
            height: usize::try_from(height)?,
            depth: usize::try_from(depth)?,
            format: FLOAT,
            channels,
            flags: 0,
        };
        answer.needed = self.needed(&mut shape)?;
        let mut array = 0_u64;
        let code = self.cuda.call(c"cuArray3DCreate_v2", [place(&mut array), place(&mut shape)])?;
        if code == 0 {
            self.arrays.insert(key, array);
        }
        Ok(code)
    }

    /// What the driver needs for an array, which it tells of one that is mapped later; 0 if it refuses the shape.
    fn needed(&self, shape: &mut Descriptor) -> Result<u64> {
        let (mut array, mut needed) = (0_usize, Requirements::default());
        shape.flags = DEFERRED;
        let code = self.cuda.call(c"cuArray3DCreate_v2", [place(&mut array), place(shape)])?;
        shape.flags = 0;
        if code != 0 {
            return Ok(0);
        }
        let codes = [
            self.cuda.call(c"cuArrayGetMemoryRequirements", [place(&mut needed), array, 0])?,
            self.cuda.call(c"cuArrayDestroy", [array])?,
        ];
        if codes == [0; 2] { Ok(needed.size as u64) } else { bail!("the array's getters answered {codes:?}") }
    }

    pub(crate) fn destroy_array(&mut self, context: u32, key: u32) -> Result<i32> {
        let Some(&array) = self.arrays.get(&key) else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(c"cuArrayDestroy", [usize::try_from(array)?])?;
        }
        if code == 0 {
            self.arrays.remove(&key);
        }
        Ok(code)
    }
}
