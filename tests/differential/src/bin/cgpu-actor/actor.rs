//! What the actor has, and the dispatch of commands.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use anyhow::{Result, bail};
use cgpu_differential::command::{Answer, Command, ShownMemory};

use crate::code::Loaded;
use crate::driver::place;
use crate::nodes::Nodes;
use crate::objects::Object;
use crate::program::Common;

/// Code outside the driver's range: the actor does not have the named object.
pub(crate) const NOT_OURS: i32 = -1;

/// What a program has on one GPU, by the names that the harness gave.
pub(crate) struct Actor {
    common: Arc<Common>,
    /// Index of the GPU among those that the driver shows.
    pub(crate) device: usize,
    /// Index of the GPU in NVML.
    pub(crate) gpu: usize,
    pub(crate) contexts: BTreeMap<u32, usize>,
    /// Contexts and addresses.
    pub(crate) allocations: BTreeMap<u32, (u32, u64)>,
    /// Contexts and 32-bit addresses.
    pub(crate) low: BTreeMap<u32, (u32, u32)>,
    pub(crate) streams: BTreeMap<u32, usize>,
    /// First addresses of reserved ranges.
    pub(crate) ranges: BTreeMap<u32, u64>,
    /// Handles of physical memory.
    pub(crate) handles: BTreeMap<u32, u64>,
    /// Addresses and sizes of mappings.
    pub(crate) maps: BTreeMap<u32, (u64, u64)>,
    pub(crate) arrays: BTreeMap<u32, u64>,
    pub(crate) mipmaps: BTreeMap<u32, u64>,
    /// Addresses of pool allocations.
    pub(crate) pooled: BTreeMap<u32, u64>,
    /// Pools that it created.
    pub(crate) pools: BTreeMap<u32, usize>,
    /// Pools that it destroyed while memory was in use.
    pub(crate) destroyed_pools: Vec<usize>,
    pub(crate) imported: BTreeMap<u32, usize>,
    /// Imported memory: the context and the address.
    pub(crate) opened: BTreeMap<u32, (u32, u64)>,
    /// Addresses of imported pool allocations.
    pub(crate) opened_pooled: BTreeMap<u32, u64>,
    /// Executable graphs: the context and the handle.
    pub(crate) graphs: BTreeMap<u32, (u32, usize)>,
    /// Graphs that were built node by node or captured.
    pub(crate) nodes: Nodes,
    /// Modules and libraries of `CodeStep`.
    pub(crate) loaded: Loaded,
    /// Green contexts: the handle and the handle as a context.
    pub(crate) greens: BTreeMap<u32, (usize, usize)>,
    pub(crate) modules: BTreeMap<u32, usize>,
    pub(crate) libraries: BTreeMap<u32, usize>,
    /// Multicast objects and endpoints.
    pub(crate) objects: BTreeMap<u32, Object>,
    /// Memory of another interface in this process.
    pub(crate) foreign: BTreeMap<u32, u64>,
    /// Imported memory of other interfaces: the context and the handle.
    pub(crate) externals: BTreeMap<u32, (u32, usize)>,
    /// Buffers mapped in it: the context and the address.
    pub(crate) buffers: BTreeMap<u32, (u32, u64)>,
    /// Whether it has ever created a graph.
    pub(crate) graphing: bool,
    /// Whether it has ever used a pool.
    pub(crate) pooling: bool,
}

impl Deref for Actor {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Actor {
    pub(crate) fn new(common: Arc<Common>, gpu: usize) -> Self {
        // NVML ignores this variable.
        let order = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let device = order.split(',').position(|shown| shown == gpu.to_string()).unwrap_or(gpu);
        Self {
            common,
            device,
            gpu,
            contexts: BTreeMap::new(),
            allocations: BTreeMap::new(),
            low: BTreeMap::new(),
            streams: BTreeMap::new(),
            ranges: BTreeMap::new(),
            handles: BTreeMap::new(),
            maps: BTreeMap::new(),
            arrays: BTreeMap::new(),
            mipmaps: BTreeMap::new(),
            pooled: BTreeMap::new(),
            pools: BTreeMap::new(),
            destroyed_pools: Vec::new(),
            imported: BTreeMap::new(),
            opened: BTreeMap::new(),
            opened_pooled: BTreeMap::new(),
            graphs: BTreeMap::new(),
            nodes: Nodes::default(),
            loaded: Loaded::default(),
            greens: BTreeMap::new(),
            modules: BTreeMap::new(),
            libraries: BTreeMap::new(),
            objects: BTreeMap::new(),
            foreign: BTreeMap::new(),
            externals: BTreeMap::new(),
            buffers: BTreeMap::new(),
            graphing: false,
            pooling: false,
        }
    }

    pub(crate) fn perform(&mut self, command: &Command) -> Result<Answer> {
        let mut answer = Answer::default();
        answer.code = match *command {
            Command::Init => self.init()?,
            Command::ContextCreate { context } => self.create_context(context)?,
            Command::ContextDestroy { context } => self.destroy_context(context)?,
            Command::PrimaryRetain => self.retain_primary(&mut answer)?,
            Command::PrimaryRelease => {
                self.end_primary(c"cuDevicePrimaryCtxRelease_v2", &mut answer)?
            }
            Command::PrimaryReset => {
                self.end_primary(c"cuDevicePrimaryCtxReset_v2", &mut answer)?
            }
            Command::Allocate { context, key, bytes } => {
                self.allocate(context, key, bytes, &mut answer)?
            }
            Command::AllocatePitch { context, key, width, height } => {
                self.allocate_pitch(context, key, (width, height), &mut answer)?
            }
            Command::Attach { context } => self.attach(context)?,
            Command::Detach { context } => self.detach(context)?,
            Command::AllocateLow { context, key, bytes } => {
                self.allocate_low(context, key, bytes, &mut answer)?
            }
            Command::AllocateLowPitch { context, key, width, height } => {
                self.allocate_low_pitch(context, key, (width, height), &mut answer)?
            }
            Command::AllocateManaged { context, bytes } => self.allocate_managed(context, bytes)?,
            Command::Free { key } => self.free(key)?,
            Command::FreeUnknown => self.cuda.call(c"cuMemFree_v2", [0x1000])?,
            Command::PhysicalCreate { context, key, bytes, place, shared, tiles } => {
                self.create_physical(context, key, bytes, place, (shared, tiles))?
            }
            Command::PhysicalMap { key, map, bytes } => self.map(key, map, bytes, &mut answer)?,
            Command::PhysicalUnmap { map } => self.unmap(map)?,
            Command::PhysicalRelease { key } => self.release(key)?,
            Command::PhysicalRetain { map, key } => self.retain(map, key)?,
            Command::ArrayCreate { context, key, width, height, depth, channels, levels } => self
                .create_array(
                context,
                key,
                [width, height, depth],
                (channels, levels),
                &mut answer,
            )?,
            Command::FlatCreate { context, key, width, height, channels, old } => {
                self.create_flat(context, key, [width, height], (channels, old), &mut answer)?
            }
            Command::ArrayDestroy { context, key } => self.destroy_array(context, key)?,
            Command::PoolAllocate { context, key, bytes, pool } => {
                self.allocate_pooled(context, key, (bytes, pool), &mut answer)?
            }
            Command::PoolFree { context, key } => self.free_pooled(context, key, false)?,
            Command::PoolFreeNow { context, key } => self.free_pooled(context, key, true)?,
            Command::PoolTrim { pool, keep } => self.trim_pool(pool, keep)?,
            Command::PoolKeep { pool, bytes } => self.keep_in_pool(pool, bytes)?,
            Command::PoolDestroy { pool } => self.destroy_pool(pool)?,
            Command::Pool(about) => self.of_pool(about, &mut answer)?,
            Command::Stream(about) => self.stream(about, &mut answer)?,
            Command::Range(about) => self.range(about)?,
            Command::Synchronise { context } => self.synchronise(context)?,
            Command::Export { key, .. } => self.export_memory(key, &mut answer)?,
            Command::Open { context, open, handle, .. } => {
                self.open(context, open, handle, &mut answer)?
            }
            Command::Close { open } => self.close(open)?,
            Command::PhysicalExport { key, .. } => self.export_physical(key)?,
            Command::PhysicalImport { key, .. } => self.import_physical(key)?,
            Command::PoolCreate { pool } => self.create_pool(pool)?,
            Command::PoolExport { pool, .. } => self.export_pool(pool)?,
            Command::PoolImport { pool, .. } => self.import_pool(pool)?,
            Command::PoolExportPointer { key } => self.export_pointer(key, &mut answer)?,
            Command::PoolImportPointer { pool, open, handle, .. } => {
                self.import_pointer(pool, open, handle)?
            }
            Command::PoolClose { context, open } => self.close_pooled(context, open)?,
            Command::GraphCreate { context, graph, sizes } => {
                self.create_graph(context, graph, &sizes)?
            }
            Command::GraphLaunch { graph } => self.launch_graph(graph)?,
            Command::GraphDestroy { graph } => self.destroy_graph(graph)?,
            Command::GraphTrim => self.trim_graphs()?,
            Command::Graph(ref step) => self.graph_step(step, &mut answer)?,
            Command::Code(ref step) => self.code_step(step)?,
            Command::GreenCreate { green } => self.create_green(green, &mut answer)?,
            Command::GreenDestroy { green } => self.destroy_green(green, &mut answer)?,
            Command::GreenAllocate { green, key, bytes } => {
                self.allocate_green(green, key, bytes, &mut answer)?
            }
            Command::LimitSet { context, limit, value } => {
                self.set_limit(context, limit, value, &mut answer)?
            }
            Command::ModuleLoad { context, module, bytes } => {
                self.load_module(context, module, bytes)?
            }
            Command::ModuleUnload { context, module } => self.unload_module(context, module)?,
            Command::LibraryLoad { library, bytes } => self.load_library(library, bytes)?,
            Command::LibraryUse { context, library, variable } => {
                self.use_library(context, library, variable)?
            }
            Command::LibraryUnload { library } => self.unload_library(library)?,
            Command::ObjectCreate { object, bytes, endpoint: true, .. } => {
                self.create_endpoint(object, bytes)?
            }
            Command::ObjectCreate { object, bytes, shared, .. } => {
                self.create_multicast(object, bytes, shared)?
            }
            Command::ObjectBind { object, offset, key, bytes } => {
                self.bind(object, offset, key, bytes)?
            }
            Command::ObjectUnbind { object, offset, bytes } => {
                self.unbind(object, offset, bytes)?
            }
            Command::ObjectEnd { object } => self.end_object(object)?,
            Command::ObjectExport { object, .. } => self.export_object(object)?,
            Command::ObjectImport { object, .. } => self.import_object(object)?,
            Command::SparseCreate { context, key } => self.create_sparse(context, key)?,
            Command::TileMap { context, array, tile, key, at } => {
                self.map_tile(context, array, tile, key, at)?
            }
            Command::ForeignAllocate { key, bytes } => self.allocate_foreign(key, bytes)?,
            Command::ForeignFree { key } => self.free_foreign(key)?,
            Command::ForeignExport { key } => self.export_foreign(key)?,
            Command::ExternalImport { context, external, bytes, .. } => {
                self.import_external(context, external, bytes)?
            }
            Command::ExternalMap { external, buffer, bytes } => {
                self.map_external(external, buffer, bytes)?
            }
            Command::ExternalFree { buffer } => self.free_external(buffer)?,
            Command::ExternalEnd { external } => self.end_external(external)?,
            Command::Lock { pid } => {
                self.cuda.call(c"cuCheckpointProcessLock", [pid as usize, 0])?
            }
            Command::Checkpoint { pid } => {
                self.cuda.call(c"cuCheckpointProcessCheckpoint", [pid as usize, 0])?
            }
            Command::Restore { pid } => {
                self.cuda.call(c"cuCheckpointProcessRestore", [pid as usize, 0])?
            }
            Command::Unlock { pid } => {
                self.cuda.call(c"cuCheckpointProcessUnlock", [pid as usize, 0])?
            }
            Command::NvmlQuery => self.nvml_query(&mut answer)?,
            Command::MemoryInfo { context } => self.memory_info(context, &mut answer)?,
            Command::Fork => self.fork()?,
            Command::Execute => bail!("is for the program as a whole"),
        };
        answer.pooled = self.keeps()?;
        if self.graphing {
            answer.graphs = self.reserved_for_graphs()?;
        }
        self.forget_streams()?;
        Ok(answer)
    }

    /// Returns the bytes reserved by the GPU's default pool, the actor's own pools and graphs.
    pub(crate) fn keeps(&self) -> Result<u64> {
        let pools = if self.pooling { self.holds()? } else { 0 };
        let graphs = if self.graphing { self.reserved_for_graphs()? } else { 0 };
        Ok(pools + graphs)
    }

    /// Returns the GPU's id in a `CUmemLocation`.
    pub(crate) fn id(&self) -> Result<i32> {
        Ok(i32::try_from(self.device)?)
    }

    fn init(&self) -> Result<i32> {
        let code = self.cuda.call(c"cuInit", [0])?;
        if code == 0 {
            let code = self.nvml.call(c"nvmlInit_v2", [])?;
            if code != 0 {
                bail!("nvmlInit_v2 answered {code}");
            }
        }
        Ok(code)
    }

    fn memory_info(&self, context: u32, answer: &mut Answer) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        let (mut free, mut total, mut device_total) = (0_usize, 0_usize, 0_usize);
        let memory = loop {
            let codes = [
                self.cuda.call(c"cuMemGetInfo_v2", [place(&mut free), place(&mut total)])?,
                self.cuda.call(c"cuDeviceTotalMem_v2", [place(&mut device_total), self.device])?,
            ];
            let (_, memory) = self.nvml_memory()?;
            let mut after = 0_usize;
            let again =
                self.cuda.call(c"cuMemGetInfo_v2", [place(&mut after), place(&mut total)])?;
            if (codes, again) != ([0; 2], 0) {
                bail!("the getters answered {codes:?}, then {again}");
            }
            // The calls are not one snapshot: an exited process's memory may have been released
            // between them.
            if after == free {
                break memory;
            }
        };
        if self.cuda.names.are_drawn() {
            self.compare_low_getters(free, total)?;
        }
        answer.shown = ShownMemory {
            free: free as u64,
            total: total as u64,
            device_total: device_total as u64,
            nvml_total: memory.total,
            nvml_used: memory.used,
            nvml_free: memory.free,
        };
        Ok(0)
    }

    /// Forks a child, in which the driver must refuse calls. Returns its exit status, 0 if the
    /// driver did.
    fn fork(&self) -> Result<i32> {
        // SAFETY: in the child only this thread exists, and locks of other threads may stay held.
        // The child makes one call that the shim refuses without them, allocates nothing else, and
        // ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut address = 0_u64;
            let tried = self.cuda.call(c"cuMemAlloc_v2", [place(&mut address), 4096]);
            let refused = tried.is_ok_and(|code| code != 0);
            // SAFETY: `_exit` ends the child without its parent's exit handlers.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place for the call to write and outlives it.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if child < 0 || waited != child {
            bail!("fork: {}", std::io::Error::last_os_error());
        }
        Ok(if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        })
    }
}
