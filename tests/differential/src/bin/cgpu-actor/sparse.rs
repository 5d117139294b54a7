//! Sparse arrays.

use anyhow::{Result, bail};
use cgpu_differential::command::SIDE;

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{Descriptor, FLOAT, MAP, SPARSE, TileMap, UNMAP};

/// Elements of four bytes along each side of a tile.
const TILE_SIDE: u32 = 128;

impl Actor {
    pub(crate) fn create_sparse(&mut self, context: u32, key: u32) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let side = (SIDE * TILE_SIDE) as usize;
        let mut shape = Descriptor {
            width: side,
            height: side,
            depth: 0,
            format: FLOAT,
            channels: 1,
            flags: SPARSE,
        };
        let mut array = 0_u64;
        let code = self.cuda.call(c"cuArray3DCreate_v2", [place(&mut array), place(&mut shape)])?;
        if code == 0 {
            self.arrays.insert(key, array);
        }
        Ok(code)
    }

    /// Maps or unmaps a tile and waits until that is done.
    pub(crate) fn map_tile(
        &self,
        context: u32,
        array: u32,
        tile: u32,
        key: Option<u32>,
        at: u64,
    ) -> Result<i32> {
        let Some(&resource) = self.arrays.get(&array) else { return Ok(NOT_OURS) };
        let handle = match key {
            Some(key) => self.handles.get(&key).copied(),
            None => Some(0),
        };
        let Some(handle) = handle else { return Ok(NOT_OURS) };
        let mut code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let mut map = TileMap {
            resource,
            offset: [tile % SIDE * TILE_SIDE, tile / SIDE * TILE_SIDE, 0],
            extent: [TILE_SIDE, TILE_SIDE, 1],
            operation: if key.is_some() { MAP } else { UNMAP },
            handle,
            at,
            devices: 1 << self.device,
            ..TileMap::default()
        };
        code = self.cuda.call(c"cuMemMapArrayAsync", [place(&mut map), 1, 0])?;
        if code == 0 {
            match self.cuda.call_by(c"cuStreamSynchronize", [0])? {
                0 => {}
                code => bail!("cuStreamSynchronize answered {code}"),
            }
        }
        Ok(code)
    }
}
