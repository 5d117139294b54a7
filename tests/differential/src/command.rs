//! What an actor is told, and what it answers: a line of JSON each.

mod code;
mod graphs;
mod pools;
mod ranges;
mod streams;

use serde::{Deserialize, Serialize};

pub use code::{CodeStep, Loader};
pub use graphs::{Adder, Figures, GraphStep, Maker, Mode, Strand};
pub use pools::OfPool;
pub use ranges::InRange;
pub use streams::{InStream, Lane};

/// The primary context, among an actor's contexts.
pub const PRIMARY: u32 = 0;

/// The GPU's default pool, among an actor's pools.
pub const DEFAULT_POOL: u32 = 0;

/// A handle that is a value: its 64 bytes.
pub type Words = [u64; 8];

/// What an actor is told: a command, and where and by whom it is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What.
    pub command: Command,
    /// On which of the machine's GPUs, which the command takes for the first one.
    pub gpu: usize,
    /// By whom.
    pub thread: Thread,
}

/// A thread of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Thread {
    /// The program's first one.
    #[default]
    First,
    /// A second one, that stays.
    Second,
    /// One that ends with the command.
    Passing,
}

impl From<Command> for Step {
    fn from(command: Command) -> Self {
        Self { command, gpu: 0, thread: Thread::First }
    }
}

/// One step of an actor. Contexts and allocations have the names that the player gave them; sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum Command {
    /// `cuInit`.
    Init,
    /// `cuCtxCreate` on the first GPU, to be called `context`.
    ContextCreate { context: u32 },
    /// `cuCtxDestroy`.
    ContextDestroy { context: u32 },
    /// `cuDevicePrimaryCtxRetain`.
    PrimaryRetain,
    /// `cuDevicePrimaryCtxRelease`.
    PrimaryRelease,
    /// `cuDevicePrimaryCtxReset`.
    PrimaryReset,
    /// `cuCtxAttach` in a context: one more use of it.
    Attach { context: u32 },
    /// `cuCtxDetach`: the last use takes the context.
    Detach { context: u32 },
    /// `cuMemAlloc`, to be called `key`.
    Allocate { context: u32, key: u32, bytes: u64 },
    /// `cuMemAllocPitch`.
    AllocatePitch { context: u32, key: u32, width: u64, height: u64 },
    /// `cuMemAllocManaged`, which a limit refuses.
    AllocateManaged { context: u32, bytes: u64 },
    /// `cuMemAlloc` as it was when addresses had 32 bits.
    AllocateLow { context: u32, key: u32, bytes: u64 },
    /// `cuMemAllocPitch` as it was then.
    AllocateLowPitch { context: u32, key: u32, width: u64, height: u64 },
    /// `cuMemFree`, of what has an address of 32 bits as it was then.
    Free { key: u32 },
    /// `cuMemCreate`, to be called `key`; `shared`: of a kind that can be exported; `tiles`: for sparse arrays.
    PhysicalCreate { context: u32, key: u32, bytes: u64, place: Place, shared: bool, tiles: bool },
    /// `cuMemAddressReserve`, `cuMemMap` of all of a handle's memory, to be called `map`.
    PhysicalMap { key: u32, map: u32, bytes: u64 },
    /// `cuMemUnmap`, `cuMemAddressFree`.
    PhysicalUnmap { map: u32 },
    /// `cuMemRelease`.
    PhysicalRelease { key: u32 },
    /// `cuMemRetainAllocationHandle`: another handle of what is mapped.
    PhysicalRetain { map: u32, key: u32 },
    /// `cuArray3DCreate`; of several `levels`: `cuMipmappedArrayCreate`.
    ArrayCreate {
        context: u32,
        key: u32,
        width: u64,
        height: u64,
        depth: u64,
        channels: u32,
        levels: u32,
    },
    /// `cuArrayCreate`; `old`: as it was when sizes had 32 bits.
    FlatCreate { context: u32, key: u32, width: u64, height: u64, channels: u32, old: bool },
    /// `cuArrayDestroy`, `cuMipmappedArrayDestroy`.
    ArrayDestroy { context: u32, key: u32 },
    /// `cuMemAllocFromPoolAsync` in the default stream; of the GPU's default pool: `cuMemAllocAsync`.
    PoolAllocate { context: u32, key: u32, bytes: u64, pool: u32 },
    /// `cuMemFreeAsync` in the default stream.
    PoolFree { context: u32, key: u32 },
    /// `cuMemFree` of that.
    PoolFreeNow { context: u32, key: u32 },
    /// `cuMemPoolTrimTo`.
    PoolTrim { pool: u32, keep: u64 },
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: what a pool keeps of what is not in use.
    PoolKeep { pool: u32, bytes: u64 },
    /// `cuMemPoolDestroy` of one that is empty, and was never sent to anybody.
    PoolDestroy { pool: u32 },
    /// Pools with more to them.
    Pool(OfPool),
    /// Streams, and what is done in their order.
    Stream(InStream),
    /// Reserved addresses, and parts of them.
    Range(InRange),
    /// `cuIpcGetMemHandle` of an allocation, to be called `lent`.
    Lend { key: u32, lent: u32 },
    /// `cuIpcOpenMemHandle`, to be called `open`.
    Open { context: u32, open: u32, lent: u32, handle: Words },
    /// `cuIpcCloseMemHandle`.
    Close { open: u32 },
    /// `cuMemExportToShareableHandle`, to be called `lent`: the descriptor comes by the line.
    PhysicalExport { key: u32, lent: u32 },
    /// `cuMemImportFromShareableHandle` of the descriptor that was sent by the line, to be called `key`.
    PhysicalImport { key: u32, lent: u32 },
    /// `cuMemPoolCreate` of a kind that can be exported.
    PoolCreate { pool: u32 },
    /// `cuMemPoolExportToShareableHandle`, to be called `lent`: the descriptor comes by the line.
    PoolExport { pool: u32, lent: u32 },
    /// `cuMemPoolImportFromShareableHandle` of the descriptor that was sent by the line, to be called `pool`.
    PoolImport { pool: u32, lent: u32 },
    /// `cuMemPoolExportPointer` of an allocation of an exported pool.
    PoolLend { key: u32 },
    /// `cuMemPoolImportPointer` through an imported pool, to be called `open`; `key`: its maker's name for it.
    PoolOpen { pool: u32, open: u32, key: u32, handle: Words },
    /// `cuMemFreeAsync` of that.
    PoolClose { context: u32, open: u32 },
    /// `cuGraphAddMemAllocNode` for each of the sizes, `cuGraphAddMemFreeNode` for each, `cuGraphInstantiate`, to be called `graph`.
    GraphCreate { context: u32, graph: u32, sizes: [u64; 2] },
    /// `cuGraphLaunch` in the default stream.
    GraphLaunch { graph: u32 },
    /// `cuGraphExecDestroy`.
    GraphDestroy { graph: u32 },
    /// `cuDeviceGraphMemTrim`.
    GraphTrim,
    /// Graphs that are made node by node, or captured.
    Graph(GraphStep),
    /// Code, and what comes with it.
    Code(CodeStep),
    /// `cuGreenCtxCreate` of a part of the first GPU, to be called `green`.
    GreenCreate { green: u32 },
    /// `cuGreenCtxDestroy`.
    GreenDestroy { green: u32 },
    /// `cuMemAlloc` in a green context, to be called `key`.
    GreenAllocate { green: u32, key: u32, bytes: u64 },
    /// `cuCtxSetLimit`.
    LimitSet { context: u32, limit: Limit, value: u64 },
    /// `cuModuleLoadData` of an image with a variable of so many bytes, to be called `module`.
    ModuleLoad { context: u32, module: u32, bytes: u64 },
    /// `cuModuleUnload`.
    ModuleUnload { context: u32, module: u32 },
    /// `cuLibraryLoadData` of an image with a variable of so many bytes, to be called `library`.
    LibraryLoad { library: u32, bytes: u64 },
    /// `cuLibraryGetGlobal` of the variable, or `cuLibraryGetModule`: either brings the library into the context.
    LibraryBring { context: u32, library: u32, variable: bool },
    /// `cuLibraryUnload`.
    LibraryUnload { library: u32 },
    /// `cuMulticastCreate` and `cuMulticastAddDevice` of the first GPU, or, if it is to be an endpoint, `cuLogicalEndpointCreate`; to be
    /// called `object`. `shared`: of a kind that can be exported.
    ObjectCreate { object: u32, bytes: u64, endpoint: bool, shared: bool },
    /// `cuMulticastBindMem`, `cuLogicalEndpointBindMem`: the first bytes of a handle's memory, to the object from `offset` on.
    ObjectBind { object: u32, offset: u64, key: u32, bytes: u64 },
    /// `cuMulticastUnbind`, `cuLogicalEndpointUnbind`.
    ObjectUnbind { object: u32, offset: u64, bytes: u64 },
    /// `cuMemRelease`, `cuLogicalEndpointDestroy`.
    ObjectEnd { object: u32 },
    /// As `PhysicalExport`, of an object.
    ObjectExport { object: u32, lent: u32 },
    /// As `PhysicalImport`, of an object.
    ObjectImport { object: u32, lent: u32 },
    /// `cuArrayCreate` of a sparse array of [`TILES`] tiles, to be called `key`.
    SparseCreate { context: u32, key: u32 },
    /// `cuMemMapArrayAsync` of a tile to a handle's memory, [`TILE`] bytes from `at` on; or, without a handle, out of it. Waited for.
    TileMap { context: u32, array: u32, tile: u32, key: Option<u32>, at: u64 },
    /// Another interface of the same process allocates memory on the first GPU, to be called `key`.
    ForeignAllocate { key: u32, bytes: u64 },
    /// It frees it.
    ForeignFree { key: u32 },
    /// It makes it known: the descriptor comes by the line.
    ForeignExport { key: u32 },
    /// `cuImportExternalMemory` of the descriptor that was sent by the line, to be called `external`; `key`: its maker's name for it.
    ExternalImport { context: u32, external: u32, key: u32, bytes: u64 },
    /// `cuExternalMemoryGetMappedBuffer` of all of it, to be called `buffer`.
    ExternalMap { external: u32, buffer: u32, bytes: u64 },
    /// `cuMemFree` of that.
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
    /// NVML's memory info and list of processes, without a context.
    Watch,
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

/// Where physical memory is to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// On the first GPU.
    Gpu,
    /// On the host.
    Host,
    /// In a locality domain of the first GPU.
    Domain(u8),
}

/// A limit of a context that takes memory of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Limit {
    /// Of each thread that can be resident.
    Stack,
    /// What kernels print.
    Printf,
    /// In-kernel `malloc`.
    Heap,
}

/// Bytes of a tile of a sparse array.
pub const TILE: u64 = 64 << 10;

/// Tiles of a sparse array along each side.
pub const SIDE: u32 = 8;

/// Tiles of a sparse array.
pub const TILES: u32 = SIDE * SIDE;

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
    /// Of an allocation that was lent.
    #[serde(default)]
    pub handle: Words,
    /// Of an array: what the driver needs for it, as it says. Of a limit: of how many the GPU has one.
    #[serde(default)]
    pub needed: u64,
    /// Of a limit: what it was.
    #[serde(default)]
    pub former: u64,
    /// Of anything: what the GPU's default pool and the actor's own ones hold now, and what is reserved for graphs.
    #[serde(default)]
    pub pooled: u64,
    /// The same of the other GPU, where there is one: what a process does on one GPU may give its pools a reason to shrink on another.
    #[serde(default)]
    pub elsewhere: u64,
    /// Of that, what is reserved for graphs.
    #[serde(default)]
    pub graphs: u64,
    /// Of a question for them.
    #[serde(default)]
    pub figures: Figures,
    /// Of anything done with the primary context: whether it is active now. Of a pool: whether it is the one that the GPU allocates from.
    #[serde(default)]
    pub active: bool,
    /// Of a look or a watch.
    #[serde(default)]
    pub sight: Sight,
    /// Of a watch: processes by their ids, and what they have.
    #[serde(default)]
    pub members: Vec<(u32, u64)>,
}

/// What an actor sees of its GPU, in bytes.
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
