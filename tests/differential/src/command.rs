//! What an actor is told, and what it answers: a line of JSON each.

use serde::{Deserialize, Serialize};

/// The primary context, among an actor's contexts.
pub const PRIMARY: u32 = 0;

/// One step of an actor. Contexts and allocations have the names that the player gave them; sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum Command {
    /// `cuInit`.
    Init,
    /// `cuCtxCreate` on the first card, to be called `context`.
    ContextCreate { context: u32 },
    /// `cuCtxDestroy`.
    ContextDestroy { context: u32 },
    /// `cuDevicePrimaryCtxRetain`.
    PrimaryRetain,
    /// `cuDevicePrimaryCtxRelease`.
    PrimaryRelease,
    /// `cuDevicePrimaryCtxReset`.
    PrimaryReset,
    /// `cuMemAlloc`, to be called `key`.
    Allocate { context: u32, key: u32, bytes: u64 },
    /// `cuMemAllocPitch`.
    AllocatePitch { context: u32, key: u32, width: u64, height: u64 },
    /// `cuMemFree`.
    Free { key: u32 },
    /// `cuMemCreate`, to be called `key`: on the first card, or on the host.
    PhysicalCreate { context: u32, key: u32, bytes: u64, host: bool },
    /// `cuMemAddressReserve`, `cuMemMap` of all of a handle's memory, to be called `map`.
    PhysicalMap { key: u32, map: u32, bytes: u64 },
    /// `cuMemUnmap`, `cuMemAddressFree`.
    PhysicalUnmap { map: u32 },
    /// `cuMemRelease`.
    PhysicalRelease { key: u32 },
    /// `cuMemRetainAllocationHandle`: another handle of what is mapped.
    PhysicalRetain { map: u32, key: u32 },
    /// `cuArray3DCreate`.
    ArrayCreate { context: u32, key: u32, width: u64, height: u64, depth: u64, channels: u32 },
    /// `cuArrayDestroy`.
    ArrayDestroy { context: u32, key: u32 },
    /// `cuMemAllocAsync` in the default stream.
    PoolAllocate { context: u32, key: u32, bytes: u64 },
    /// `cuMemFreeAsync` in the default stream.
    PoolFree { context: u32, key: u32 },
    /// `cuStreamSynchronize`, at which pools shrink.
    Synchronise { context: u32 },
    /// `cuMemFree` of an address that nobody gave out.
    FreeUnknown,
    /// `cuMemGetInfo` and NVML's memory info.
    Look { context: u32 },
    /// A child that tries the driver, and ends.
    Fork,
    /// Becomes another program: the same one, from its start.
    Execute,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The driver's code; of a fork, the child's exit status.
    pub code: i32,
    /// Of an allocation: its address, and the pitch if it has one.
    #[serde(default)]
    pub address: u64,
    /// Of a pitched allocation.
    #[serde(default)]
    pub pitch: u64,
    /// Of an array: what the driver needs for it, as it says.
    #[serde(default)]
    pub needed: u64,
    /// Of anything: what the card's default pool holds now.
    #[serde(default)]
    pub pooled: u64,
    /// Of anything done with the primary context: whether it is active now.
    #[serde(default)]
    pub active: bool,
    /// Of a look.
    #[serde(default)]
    pub sight: Sight,
}

/// What an actor sees of its card, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sight {
    /// `cuMemGetInfo`.
    pub free: u64,
    /// `cuMemGetInfo`.
    pub total: u64,
    /// `cuDeviceTotalMem`.
    pub device_total: u64,
    /// NVML.
    pub nvml_total: u64,
    /// NVML.
    pub nvml_used: u64,
    /// NVML.
    pub nvml_free: u64,
}
