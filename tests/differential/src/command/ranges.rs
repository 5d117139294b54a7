//! Reserved addresses and mapped parts of them.

use serde::{Deserialize, Serialize};

/// A command for a range of reserved addresses. Offsets in it are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type's comment describes the fields")]
pub enum InRange {
    /// `cuMemAddressReserve`.
    Reserve { range: u32, bytes: u64 },
    /// `cuMemAddressFree` of the whole range.
    Free { range: u32, bytes: u64 },
    /// `cuMemMap` of a handle's memory from `offset` on.
    Map { range: u32, at: u64, key: u32, bytes: u64, offset: u64 },
    /// `cuMemUnmap`.
    Unmap { range: u32, at: u64, bytes: u64 },
    /// `cuMemRetainAllocationHandle` of the memory mapped at `at`.
    Retain { range: u32, at: u64, key: u32 },
}
