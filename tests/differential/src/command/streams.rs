//! Streams and stream-ordered memory.

use serde::{Deserialize, Serialize};

/// A stream as a call names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lane {
    /// The null handle: the legacy or per-thread default stream, depending on the entry point.
    None,
    /// The legacy default stream.
    Legacy,
    /// The per-thread default stream.
    Thread,
    /// A created stream.
    Made(u32),
}

/// A command for streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Command`")]
pub enum InStream {
    /// `cuStreamCreate`; `apart`: CU_STREAM_NON_BLOCKING.
    Create { context: u32, stream: u32, apart: bool },
    /// `cuStreamDestroy`.
    Destroy { stream: u32 },
    /// As `PoolAllocate`, in a stream.
    Allocate { context: u32, lane: Lane, key: u32, bytes: u64, pool: u32 },
    /// As `PoolFree`, in any stream.
    Free { context: u32, lane: Lane, key: u32 },
    /// `cuMemFreeAsync` of linear memory; then waits until it is freed.
    FreeLinear { context: u32, lane: Lane, key: u32 },
    /// `cuEventRecord` in one stream, `cuStreamWaitEvent` in the other.
    Order { context: u32, before: Lane, after: Lane },
    /// `cuStreamSynchronize`.
    Wait { context: u32, lane: Lane },
}
