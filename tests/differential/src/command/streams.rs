//! Streams, and memory in their order.

use serde::{Deserialize, Serialize};

/// A stream, as a call names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lane {
    /// By nothing: the context's own, or the thread's own, as the name of the entry point has it.
    None,
    /// The context's own.
    Legacy,
    /// The thread's own.
    Thread,
    /// One that was made.
    Made(u32),
}

/// What is done with streams, and in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said in `Command`")]
pub enum InStream {
    /// `cuStreamCreate`; `apart`: not blocking.
    Create { context: u32, stream: u32, apart: bool },
    /// `cuStreamDestroy`.
    Destroy { stream: u32 },
    /// As `PoolAllocate`, in a stream.
    Allocate { context: u32, lane: Lane, key: u32, bytes: u64, pool: u32 },
    /// As `PoolFree`, in a stream, be it another one than that of the allocation.
    Free { context: u32, lane: Lane, key: u32 },
    /// `cuMemFreeAsync` of linear memory; the stream is waited for.
    FreeLinear { context: u32, lane: Lane, key: u32 },
    /// `cuEventRecord` in the one, `cuStreamWaitEvent` in the other.
    Order { context: u32, before: Lane, after: Lane },
    /// `cuStreamSynchronize`.
    Wait { context: u32, lane: Lane },
}
