//! The driver's types for copies with attributes and in batches, laid out as in its header.
//! Sizes are asserted with those of [`types`](crate::types).

use crate::types::*;

/// Attributes of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUmemcpyAttributes {
    pub src_access_order: CUmemcpySrcAccessOrder,
    pub src_loc_hint: CUmemLocation,
    pub dst_loc_hint: CUmemLocation,
    /// `CUmemcpyFlags`.
    pub flags: c_uint,
}

/// A position in an array, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUoffset3D {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

/// The size of a box, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUextent3D {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// One side of a copy. In C `op` is a union of two structs of four words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CUmemcpy3DOperand {
    /// Tells how to read `op`.
    pub kind: CUmemcpy3DOperandType,
    /// A pointer, the lengths of a row and a layer, a location hint; or an array and an offset.
    pub op: [usize; 4],
}

/// A [`CUmemcpy3DOperand`] as its kind says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOperand {
    /// Linear memory of the host or a GPU.
    Pointer {
        /// The first byte.
        address: CUdeviceptr,
        /// In elements; 0: as wide as the copy.
        row_length: usize,
        /// In rows; 0: as high as the copy.
        layer_height: usize,
    },
    /// An array, and where in it the copy begins.
    Array(CUarray, CUoffset3D),
}

impl CUmemcpy3DOperand {
    /// Returns the operand by its kind; `None` for a kind that the header lacks.
    #[must_use]
    pub const fn get(&self) -> Option<CopyOperand> {
        let [first, second, third, fourth] = self.op;
        match self.kind {
            CU_MEMCPY_OPERAND_TYPE_POINTER => Some(CopyOperand::Pointer {
                address: first as CUdeviceptr,
                row_length: second,
                layer_height: third,
            }),
            CU_MEMCPY_OPERAND_TYPE_ARRAY => Some(CopyOperand::Array(
                CUarray(first),
                CUoffset3D { x: second, y: third, z: fourth },
            )),
            _ => None,
        }
    }
}

/// One copy of `cuMemcpy3DBatchAsync`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the vendor's own names")]
pub struct CUDA_MEMCPY3D_BATCH_OP {
    pub src: CUmemcpy3DOperand,
    pub dst: CUmemcpy3DOperand,
    /// No component may be 0.
    pub extent: CUextent3D,
    pub src_access_order: CUmemcpySrcAccessOrder,
    /// `CUmemcpyFlags`.
    pub flags: c_uint,
}
