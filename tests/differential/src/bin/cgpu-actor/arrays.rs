//! Arrays.

use anyhow::{Result, bail};
use cgpu_differential::command::Answer;

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{
    DEFERRED, Descriptor, FLOAT, FlatDescriptor, OldDescriptor, OldFlatDescriptor, Requirements,
};

impl Actor {
    pub(crate) fn create_array(
        &mut self,
        context: u32,
        key: u32,
        extent: [u64; 3],
        (channels, levels): (u32, u32),
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
        answer.needed = self.needed(&mut shape, levels)?;
        let mut array = 0_u64;
        let code = self.make(&mut array, &mut shape, levels)?;
        if code == 0 {
            if levels > 0 { &mut self.mipmaps } else { &mut self.arrays }.insert(key, array);
        }
        Ok(code)
    }

    fn make(&self, array: &mut u64, shape: &mut Descriptor, levels: u32) -> Result<i32> {
        if levels > 0 {
            let levels = usize::try_from(levels)?;
            self.cuda.call(c"cuMipmappedArrayCreate", [place(array), place(shape), levels])
        } else if shape.flags == 0 && self.cuda.names.variant(2) > 0 {
            let mut old = OldDescriptor {
                width: u32::try_from(shape.width)?,
                height: u32::try_from(shape.height)?,
                depth: u32::try_from(shape.depth)?,
                format: shape.format,
                channels: shape.channels,
                flags: shape.flags,
            };
            self.cuda.call(c"cuArray3DCreate", [place(array), place(&mut old)])
        } else {
            self.cuda.call(c"cuArray3DCreate_v2", [place(array), place(shape)])
        }
    }

    /// Creates an array by the entry points for one and two dimensions; `old`: with 32-bit sizes.
    pub(crate) fn create_flat(
        &mut self,
        context: u32,
        key: u32,
        [width, height]: [u64; 2],
        (channels, old): (u32, bool),
        answer: &mut Answer,
    ) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let (format, width, height) = (FLOAT, usize::try_from(width)?, usize::try_from(height)?);
        let mut shape = Descriptor { width, height, depth: 0, format, channels, flags: 0 };
        answer.needed = self.needed(&mut shape, 0)?;
        let mut array = 0_u64;
        let code = if old {
            let (width, height) = (u32::try_from(width)?, u32::try_from(height)?);
            let mut flat = OldFlatDescriptor { width, height, format, channels };
            self.cuda.call(c"cuArrayCreate", [place(&mut array), place(&mut flat)])?
        } else {
            let mut flat = FlatDescriptor { width, height, format, channels };
            self.cuda.call(c"cuArrayCreate_v2", [place(&mut array), place(&mut flat)])?
        };
        if code == 0 {
            self.arrays.insert(key, array);
        }
        Ok(code)
    }

    /// Returns the bytes that the driver needs for an array, from an array with deferred mapping; 0
    /// if it refuses the shape.
    fn needed(&self, shape: &mut Descriptor, levels: u32) -> Result<u64> {
        let (mut array, mut needed) = (0_u64, Requirements::default());
        shape.flags = DEFERRED;
        let code = self.make(&mut array, shape, levels)?;
        shape.flags = 0;
        if code != 0 {
            return Ok(0);
        }
        let (tell, destroy) = match levels {
            0 => (c"cuArrayGetMemoryRequirements", c"cuArrayDestroy"),
            _ => (c"cuMipmappedArrayGetMemoryRequirements", c"cuMipmappedArrayDestroy"),
        };
        let array = usize::try_from(array)?;
        let codes = [
            self.cuda.call(tell, [place(&mut needed), array, 0])?,
            self.cuda.call(destroy, [array])?,
        ];
        if codes == [0; 2] {
            Ok(needed.size as u64)
        } else {
            bail!("the array's getters answered {codes:?}")
        }
    }

    pub(crate) fn destroy_array(&mut self, context: u32, key: u32) -> Result<i32> {
        let (array, destroy) = match (self.arrays.get(&key), self.mipmaps.get(&key)) {
            (Some(&array), _) => (array, c"cuArrayDestroy"),
            (None, Some(&array)) => (array, c"cuMipmappedArrayDestroy"),
            (None, None) => return Ok(NOT_OURS),
        };
        let mut code = self.enter(context)?;
        if code == 0 {
            code = self.cuda.call(destroy, [usize::try_from(array)?])?;
        }
        if code == 0 {
            self.arrays.remove(&key);
            self.mipmaps.remove(&key);
        }
        Ok(code)
    }
}
