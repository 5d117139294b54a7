//! The commands and answers of an actor: one line of JSON each.

mod code;
mod graphs;
mod pools;
mod ranges;
mod streams;

use serde::{Deserialize, Serialize};

pub use code::{CodeStep, Loader};
pub use graphs::{Adder, Figures, GraphStep, Maker, Mode, StreamKey};
pub use pools::OfPool;
pub use ranges::InRange;
pub use streams::{InStream, Lane};

/// Name of the primary context among an actor's contexts.
pub const PRIMARY: u32 = 0;

/// Name of the GPU's default pool among an actor's pools.
pub const DEFAULT_POOL: u32 = 0;

/// The 64 bytes of an IPC handle.
pub type HandleBytes = [u64; 8];

/// A command with the GPU and the thread that it is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What to do.
    pub command: Command,
    /// Index of the GPU, which the command treats as the first one.
    pub gpu: usize,
    /// The thread that performs it.
    pub thread: Thread,
}

/// A thread of an actor process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Thread {
    /// The process's first thread.
    #[default]
    First,
    /// A second thread, which lives as long as the process.
    Second,
    /// A thread that ends with the command.
    Passing,
}

impl From<Command> for Step {
    fn from(command: Command) -> Self {
        Self { command, gpu: 0, thread: Thread::First }
    }
}

/// One command. Contexts and allocations have names given by the harness. Sizes are in bytes. A
/// command that creates something also carries its new name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type's comment describes the fields")]
pub enum Command {
    /// `cuInit`.
    Init,
    /// `cuCtxCreate` on the first GPU.
    ContextCreate { context: u32 },
    /// `cuCtxDestroy`.
    ContextDestroy { context: u32 },
    /// `cuDevicePrimaryCtxRetain`.
    PrimaryRetain,
    /// `cuDevicePrimaryCtxRelease`.
    PrimaryRelease,
    /// `cuDevicePrimaryCtxReset`.
    PrimaryReset,
    /// `cuCtxAttach` to a context: one more use of it.
    Attach { context: u32 },
    /// `cuCtxDetach`: the last use destroys the context.
    Detach { context: u32 },
    /// `cuMemAlloc`.
    Allocate { context: u32, key: u32, bytes: u64 },
    /// `cuMemAllocPitch`.
    AllocatePitch { context: u32, key: u32, width: u64, height: u64 },
    /// `cuMemAllocManaged`, which is refused under a limit.
    AllocateManaged { context: u32, bytes: u64 },
    /// The first version of `cuMemAlloc`, with 32-bit addresses.
    AllocateLow { context: u32, key: u32, bytes: u64 },
    /// The first version of `cuMemAllocPitch`.
    AllocateLowPitch { context: u32, key: u32, width: u64, height: u64 },
    /// `cuMemFree`; its first version for a 32-bit address.
    Free { key: u32 },
    /// `cuMemCreate`. `shared`: exportable. `tiles`: for sparse arrays.
    PhysicalCreate { context: u32, key: u32, bytes: u64, place: Place, shared: bool, tiles: bool },
    /// `cuMemAddressReserve`, then `cuMemMap` of all of a handle's memory.
    PhysicalMap { key: u32, map: u32, bytes: u64 },
    /// `cuMemUnmap`, `cuMemAddressFree`.
    PhysicalUnmap { map: u32 },
    /// `cuMemRelease`.
    PhysicalRelease { key: u32 },
    /// `cuMemRetainAllocationHandle`: another handle of mapped memory.
    PhysicalRetain { map: u32, key: u32 },
    /// `cuArray3DCreate`; `cuMipmappedArrayCreate` for several `levels`.
    ArrayCreate {
        context: u32,
        key: u32,
        width: u64,
        height: u64,
        depth: u64,
        channels: u32,
        levels: u32,
    },
    /// `cuArrayCreate`; `old`: its first version, with 32-bit sizes.
    FlatCreate { context: u32, key: u32, width: u64, height: u64, channels: u32, old: bool },
    /// `cuArrayDestroy`, `cuMipmappedArrayDestroy`.
    ArrayDestroy { context: u32, key: u32 },
    /// `cuMemAllocFromPoolAsync` in the default stream; `cuMemAllocAsync` for the GPU's default
    /// pool.
    PoolAllocate { context: u32, key: u32, bytes: u64, pool: u32 },
    /// `cuMemFreeAsync` in the default stream.
    PoolFree { context: u32, key: u32 },
    /// `cuMemFree` of pool memory.
    PoolFreeNow { context: u32, key: u32 },
    /// `cuMemPoolTrimTo`.
    PoolTrim { pool: u32, keep: u64 },
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: how much unused memory a pool keeps.
    PoolKeep { pool: u32, bytes: u64 },
    /// `cuMemPoolDestroy` of an empty pool that was never exported.
    PoolDestroy { pool: u32 },
    /// Other commands for pools.
    Pool(OfPool),
    /// Streams and stream-ordered memory.
    Stream(InStream),
    /// Reserved addresses and parts of them.
    Range(InRange),
    /// `cuIpcGetMemHandle` of an allocation.
    Export { key: u32, exported: u32 },
    /// `cuIpcOpenMemHandle`.
    Open { context: u32, open: u32, exported: u32, handle: HandleBytes },
    /// `cuIpcCloseMemHandle`.
    Close { open: u32 },
    /// `cuMemExportToShareableHandle`; the descriptor is sent over the socket.
    PhysicalExport { key: u32, exported: u32 },
    /// `cuMemImportFromShareableHandle` of the descriptor received over the socket.
    PhysicalImport { key: u32, exported: u32 },
    /// `cuMemPoolCreate` of an exportable pool.
    PoolCreate { pool: u32 },
    /// `cuMemPoolExportToShareableHandle`; the descriptor is sent over the socket.
    PoolExport { pool: u32, exported: u32 },
    /// `cuMemPoolImportFromShareableHandle` of the descriptor received over the socket.
    PoolImport { pool: u32, exported: u32 },
    /// `cuMemPoolExportPointer` of an allocation of an exported pool.
    PoolExportPointer { key: u32 },
    /// `cuMemPoolImportPointer` through an imported pool; `key` is the exporter's name of the
    /// allocation.
    PoolImportPointer { pool: u32, open: u32, key: u32, handle: HandleBytes },
    /// `cuMemFreeAsync` of an imported pointer.
    PoolClose { context: u32, open: u32 },
    /// `cuGraphAddMemAllocNode` for each of the sizes, `cuGraphAddMemFreeNode` for each,
    /// `cuGraphInstantiate`.
    GraphCreate { context: u32, graph: u32, sizes: [u64; 2] },
    /// `cuGraphLaunch` in the default stream.
    GraphLaunch { graph: u32 },
    /// `cuGraphExecDestroy`.
    GraphDestroy { graph: u32 },
    /// `cuDeviceGraphMemTrim`.
    GraphTrim,
    /// Graphs that are built node by node or captured.
    Graph(GraphStep),
    /// Modules, libraries and kernels.
    Code(CodeStep),
    /// `cuGreenCtxCreate` of a part of the first GPU.
    GreenCreate { green: u32 },
    /// `cuGreenCtxDestroy`.
    GreenDestroy { green: u32 },
    /// `cuMemAlloc` in a green context.
    GreenAllocate { green: u32, key: u32, bytes: u64 },
    /// `cuCtxSetLimit`.
    LimitSet { context: u32, limit: Limit, value: u64 },
    /// `cuModuleLoadData` of an image with a variable of `bytes` bytes.
    ModuleLoad { context: u32, module: u32, bytes: u64 },
    /// `cuModuleUnload`.
    ModuleUnload { context: u32, module: u32 },
    /// `cuLibraryLoadData` of an image with a variable of `bytes` bytes.
    LibraryLoad { library: u32, bytes: u64 },
    /// `cuLibraryGetGlobal` of the variable, or `cuLibraryGetModule`: each loads the library into
    /// the context.
    LibraryUse { context: u32, library: u32, variable: bool },
    /// `cuLibraryUnload`.
    LibraryUnload { library: u32 },
    /// `cuMulticastCreate` and `cuMulticastAddDevice` of the first GPU; for an endpoint
    /// `cuLogicalEndpointCreate`. `shared`: exportable.
    ObjectCreate { object: u32, bytes: u64, endpoint: bool, shared: bool },
    /// `cuMulticastBindMem` or `cuLogicalEndpointBindMem`: binds the first bytes of a handle's
    /// memory to the object at `offset`.
    ObjectBind { object: u32, offset: u64, key: u32, bytes: u64 },
    /// `cuMulticastUnbind` or `cuLogicalEndpointUnbind`.
    ObjectUnbind { object: u32, offset: u64, bytes: u64 },
    /// `cuMemRelease` or `cuLogicalEndpointDestroy`.
    ObjectEnd { object: u32 },
    /// As `PhysicalExport`, for an object.
    ObjectExport { object: u32, exported: u32 },
    /// As `PhysicalImport`, for an object.
    ObjectImport { object: u32, exported: u32 },
    /// `cuArrayCreate` of a sparse array of [`TILES`] tiles.
    SparseCreate { context: u32, key: u32 },
    /// `cuMemMapArrayAsync`, then a wait. Maps a tile to [`TILE`] bytes of a handle's memory from
    /// `at` on; without a handle, unmaps it.
    TileMap { context: u32, array: u32, tile: u32, key: Option<u32>, at: u64 },
    /// Allocates memory on the first GPU by another interface in the same process.
    ForeignAllocate { key: u32, bytes: u64 },
    /// Frees memory of the other interface.
    ForeignFree { key: u32 },
    /// Exports memory of the other interface; the descriptor is sent over the socket.
    ForeignExport { key: u32 },
    /// `cuImportExternalMemory` of the descriptor received over the socket; `key` is the exporter's
    /// name of the memory.
    ExternalImport { context: u32, external: u32, key: u32, bytes: u64 },
    /// `cuExternalMemoryGetMappedBuffer` of all of the imported memory.
    ExternalMap { external: u32, buffer: u32, bytes: u64 },
    /// `cuMemFree` of a mapped buffer.
    ExternalFree { buffer: u32 },
    /// `cuDestroyExternalMemory`.
    ExternalEnd { external: u32 },
    /// `cuCheckpointProcessLock` of another process.
    Lock { pid: u32 },
    /// `cuCheckpointProcessCheckpoint`.
    Checkpoint { pid: u32 },
    /// `cuCheckpointProcessRestore`.
    Restore { pid: u32 },
    /// `cuCheckpointProcessUnlock`.
    Unlock { pid: u32 },
    /// NVML's memory info and process list, without a context.
    NvmlQuery,
    /// `cuStreamSynchronize`, at which pools shrink.
    Synchronise { context: u32 },
    /// `cuMemFree` of an address that was never allocated.
    FreeUnknown,
    /// `cuMemGetInfo` and NVML's memory info.
    MemoryInfo { context: u32 },
    /// Forks a child that calls the driver and exits.
    Fork,
    /// Executes the actor's program again, from its start.
    Execute,
}

/// Location of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On the first GPU.
    Gpu,
    /// On the host.
    Host,
    /// In a locality domain of the first GPU.
    Domain(u8),
}

/// A limit of a context that takes GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Limit {
    /// Stack of each thread that can be resident.
    Stack,
    /// Buffer for the output of kernels.
    Printf,
    /// Heap of in-kernel `malloc`.
    Heap,
}

/// Bytes of a tile of a sparse array.
pub const TILE: u64 = 64 << 10;

/// Tiles along each side of a sparse array.
pub const SIDE: u32 = 8;

/// Tiles of a sparse array.
pub const TILES: u32 = SIDE * SIDE;

/// Result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The driver's code; for a fork, the child's exit status.
    pub code: i32,
    /// Of an allocation.
    #[serde(default)]
    pub address: u64,
    /// Of a pitched allocation.
    #[serde(default)]
    pub pitch: u64,
    /// Of an exported allocation.
    #[serde(default)]
    pub handle: HandleBytes,
    /// For an array: the bytes that the driver says it needs. For a limit: the number of instances
    /// on the GPU.
    #[serde(default)]
    pub needed: u64,
    /// For a limit: its former value.
    #[serde(default)]
    pub former: u64,
    /// After any command: bytes reserved by the GPU's default pool, the actor's own pools and
    /// graphs.
    #[serde(default)]
    pub pooled: u64,
    /// The same on the other GPU, if there is one: a call on one GPU may make pools on the other
    /// shrink.
    #[serde(default)]
    pub elsewhere: u64,
    /// Part of `pooled` that is reserved for graphs.
    #[serde(default)]
    pub graphs: u64,
    /// For a query of graph memory.
    #[serde(default)]
    pub figures: Figures,
    /// For the primary context: whether it is active. For a pool: whether it is the GPU's current
    /// pool.
    #[serde(default)]
    pub active: bool,
    /// For a query of memory.
    #[serde(default)]
    pub shown: ShownMemory,
    /// For an NVML query: process ids and their bytes.
    #[serde(default)]
    pub members: Vec<(u32, u64)>,
}

/// Memory of a GPU as an actor sees it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownMemory {
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
