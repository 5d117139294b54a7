//! Reserved addresses, and parts of them that are mapped.

use serde::{Deserialize, Serialize};

/// What is done in a range of reserved addresses. Places in it are bytes from its first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum InRange {
    /// `cuMemAddressReserve`, to be called `range`.
    Reserve { range: u32, bytes: u64 },
    /// `cuMemAddressFree` of all of it.
    Free { range: u32, bytes: u64 },
    /// `cuMemMap` of a handle's memory, from a byte of it on.
    Map { range: u32, at: u64, key: u32, bytes: u64, offset: u64 },
    /// `cuMemUnmap`.
    Unmap { range: u32, at: u64, bytes: u64 },
    /// `cuMemRetainAllocationHandle` of what is mapped there, to be called `key`.
    Retain { range: u32, at: u64, key: u32 },
}
