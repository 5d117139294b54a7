//! Copies between boxes, as graph nodes describe them.

use core::ptr;
use std::sync::Arc;

use cgpu_abi::types::*;
use cgpu_sim::machine::{Pitched, Work};

use crate::answer::{Answer, INVALID_VALUE};
use crate::array;
use crate::context::Context;
use crate::copy;
use crate::driver::{Driver, count};
use crate::layout;
use crate::range::{self, Side};

/// One side of a copy: origin, row pitch and slice pitch of its box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corner {
    position: [usize; 3],
    level: usize,
    kind: CUmemorytype,
    host: usize,
    device: CUdeviceptr,
    array: CUarray,
    pitch: usize,
    height: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Copying {
    pub(crate) to: Corner,
    pub(crate) from: Corner,
    /// In bytes, rows and slices.
    pub(crate) extent: [usize; 3],
    pub(crate) context: Arc<Context>,
}

impl Corner {
    /// Describes a box in the unified address space.
    fn at(address: u64, (row, slice): (u64, u64), side: Side) -> Self {
        let host = side != Side::Device;
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            position: [0; 3],
            level: 0,
            kind: if host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE },
            host: if host { size(address) } else { 0 },
            device: if host { 0 } else { address },
            array: CUarray::NULL,
            pitch: size(row),
            height: size(slice.checked_div(row).unwrap_or(0)),
        }
    }

    /// Converts one side of a copy with attributes, whose box counts elements of `element` bytes.
    fn of(side: CopyOperand, extent: &CUextent3D, element: usize) -> Answer<Self> {
        let corner = Self {
            position: [0; 3],
            level: 0,
            kind: CU_MEMORYTYPE_UNIFIED,
            host: 0,
            device: 0,
            array: CUarray::NULL,
            pitch: 0,
            height: 0,
        };
        let bytes = |elements: usize| elements.checked_mul(element).ok_or(INVALID_VALUE);
        match side {
            CopyOperand::Pointer { address, row_length, layer_height } => {
                let holds = |length: usize, needed| length == 0 || length >= needed;
                if !holds(row_length, extent.width) || !holds(layer_height, extent.height) {
                    return Err(INVALID_VALUE);
                }
                Ok(Self {
                    device: address,
                    pitch: bytes(row_length)?,
                    height: layer_height,
                    ..corner
                })
            }
            CopyOperand::Array(array, CUoffset3D { x, y, z }) => {
                Ok(Self { kind: CU_MEMORYTYPE_ARRAY, array, position: [bytes(x)?, y, z], ..corner })
            }
        }
    }

    /// Returns the address of the first byte, and the row and slice pitches.
    fn place(&self, driver: &Driver, extent: [usize; 3]) -> Answer<(u64, (u64, u64))> {
        let [width, rows, _] = extent;
        let [x, y, z] = self.position.map(|position| position as u64);
        let (base, pitch) = match self.kind {
            CU_MEMORYTYPE_HOST => (self.host as u64, self.pitch as u64),
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => (self.device, self.pitch as u64),
            CU_MEMORYTYPE_ARRAY => return self.place_in_array(driver, extent),
            _ => return Err(INVALID_VALUE),
        };
        let reach = x + width as u64;
        let pitch = if pitch == 0 { reach } else { pitch };
        let height = if self.height == 0 { y + rows as u64 } else { self.height as u64 };
        if pitch < reach {
            return Err(INVALID_VALUE);
        }
        let slice = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
        Ok((base + z * slice + y * pitch + x, (pitch, slice)))
    }

    /// The same for an array; the box must lie in it.
    fn place_in_array(&self, driver: &Driver, extent: [usize; 3]) -> Answer<(u64, (u64, u64))> {
        let [x, y, z] = self.position.map(|position| position as u64);
        if self.level != 0 {
            return Err(INVALID_VALUE);
        }
        let extent = extent.map(|extent| extent as u64);
        let (base, level) = array::find(driver, self.array)?.base([x, y, z], extent)?;
        Ok((base + z * level.slice + y * level.pitch + x, (level.pitch, level.slice)))
    }
}

impl Copying {
    /// Describes a copy that was enqueued to a capturing stream.
    pub(crate) fn of(what: &Pitched, sides: (Side, Side), context: Arc<Context>) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            to: Corner::at(what.to, what.to_pitch, sides.0),
            from: Corner::at(what.from, what.from_pitch, sides.1),
            extent: [size(what.width), size(what.rows), size(what.slices)],
            context,
        }
    }

    /// Reads the parameters of a node.
    pub(crate) fn received(what: &CUDA_MEMCPY3D, context: Arc<Context>) -> Self {
        let from = Corner {
            position: [what.src_x_in_bytes, what.src_y, what.src_z],
            level: what.src_lod,
            kind: what.src_memory_type,
            host: what.src_host.expose_provenance(),
            device: what.src_device,
            array: what.src_array,
            pitch: what.src_pitch,
            height: what.src_height,
        };
        let to = Corner {
            position: [what.dst_x_in_bytes, what.dst_y, what.dst_z],
            level: what.dst_lod,
            kind: what.dst_memory_type,
            host: what.dst_host.expose_provenance(),
            device: what.dst_device,
            array: what.dst_array,
            pitch: what.dst_pitch,
            height: what.dst_height,
        };
        Self { to, from, extent: [what.width_in_bytes, what.height, what.depth], context }
    }

    /// Reads a copy with attributes, whose extent counts elements of its arrays, or else bytes.
    pub(crate) fn with_attributes(driver: &Driver, what: &CUDA_MEMCPY3D_BATCH_OP) -> Answer<Self> {
        let (to, from) =
            (what.dst.get().ok_or(INVALID_VALUE)?, what.src.get().ok_or(INVALID_VALUE)?);
        let CUextent3D { width, height, depth } = what.extent;
        if width == 0 || height == 0 || depth == 0 {
            return Err(INVALID_VALUE);
        }
        let element = |side| match side {
            CopyOperand::Pointer { .. } => Ok(None),
            CopyOperand::Array(array, _) => {
                layout::element(&array::find(driver, array)?.descriptor).and_then(count).map(Some)
            }
        };
        let element = match (element(to)?, element(from)?) {
            (None, None) => 1,
            (Some(element), None) | (None, Some(element)) => element,
            (Some(one), Some(other)) if one == other => one,
            _ => return Err(INVALID_VALUE),
        };
        Ok(Self {
            to: Corner::of(to, &what.extent, element)?,
            from: Corner::of(from, &what.extent, element)?,
            extent: [width.checked_mul(element).ok_or(INVALID_VALUE)?, height, depth],
            context: driver.current()?,
        })
    }

    pub(crate) fn params(&self) -> CUDA_MEMCPY3D {
        let (to, from) = (&self.to, &self.from);
        CUDA_MEMCPY3D {
            src_x_in_bytes: from.position[0],
            src_y: from.position[1],
            src_z: from.position[2],
            src_lod: from.level,
            src_memory_type: from.kind,
            src_host: ptr::with_exposed_provenance(from.host),
            src_device: from.device,
            src_array: from.array,
            reserved0: ptr::null_mut(),
            src_pitch: from.pitch,
            src_height: from.height,
            dst_x_in_bytes: to.position[0],
            dst_y: to.position[1],
            dst_z: to.position[2],
            dst_lod: to.level,
            dst_memory_type: to.kind,
            dst_host: ptr::with_exposed_provenance_mut(to.host),
            dst_device: to.device,
            dst_array: to.array,
            reserved1: ptr::null_mut(),
            dst_pitch: to.pitch,
            dst_height: to.height,
            width_in_bytes: self.extent[0],
            height: self.extent[1],
            depth: self.extent[2],
        }
    }

    pub(crate) fn check(&self, driver: &Driver) -> Answer {
        self.pitched(driver).map(|_| ())
    }

    /// Returns whether an executable graph's copy `before` can be changed to this one: the kinds of
    /// memory must stay.
    pub(crate) fn may_replace(&self, before: &Self) -> bool {
        self.to.kind == before.to.kind
            && self.from.kind == before.from.kind
            && self.context.number == before.context.number
    }

    /// Resolves addresses and pitches now.
    pub(crate) fn pitched(&self, driver: &Driver) -> Answer<Pitched> {
        let (to, to_pitch) = self.to.place(driver, self.extent)?;
        let (from, from_pitch) = self.from.place(driver, self.extent)?;
        let [width, rows, slices] = self.extent.map(|extent| extent as u64);
        Ok(Pitched { to, from, width, rows, slices, to_pitch, from_pitch })
    }

    /// Returns the machine's work, resolving the addresses now.
    pub(crate) fn work(&self, driver: &Driver) -> Answer<Work> {
        let what = self.pitched(driver)?;
        let (to, from) = (range::resolve(driver, what.to)?, range::resolve(driver, what.from)?);
        Ok(Work::Copy(
            copy::kind(to.side, from.side),
            Pitched { to: to.address, from: from.address, ..what },
        ))
    }
}
