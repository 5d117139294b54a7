//! The expected state: which process has what, and what it is charged.
//!
//! It shares nothing with the code under test, so rounding is implemented here again.

mod code;
mod graphs;
mod pools;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

pub use code::{Code, Library, Module};
pub use graphs::{BuiltGraph, Capture, Executable, Graphs, Node};
pub use ranges::{Part, Range};

use crate::command::{HandleBytes, Limit};

/// A mebibyte.
pub const MIB: u64 = 1 << 20;

/// Bytes that the simulated driver takes for a green context.
pub const GREEN: u64 = 8 * MIB;

/// Size of the blocks from which the driver takes small allocations.
pub const BLOCK: u64 = 2 * MIB;

/// Returns the bytes that the driver takes for `bytes`: multiples of 512 below 1 MiB, of 2 MiB from
/// there on.
#[must_use]
pub fn rounded(bytes: u64) -> u64 {
    if bytes < MIB { bytes.next_multiple_of(512) } else { bytes.next_multiple_of(2 * MIB) }
}

/// An allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The context that it ends with.
    pub context: u32,
    /// Charged bytes.
    pub charged: u64,
    /// Its name in [`Model::exported`], once it was exported.
    pub exported: Option<u32>,
}

/// Physical memory behind handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Physical {
    /// Charged bytes: 0 on the host and for imported memory.
    pub charged: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of handles, mappings, bindings and tiles that hold it.
    pub references: u32,
    /// Whether it can be exported.
    pub shared: bool,
    /// Whether it can be mapped to tiles.
    pub tiles: bool,
    /// Whether other processes may hold it through an object that they share.
    pub known: bool,
    /// Its name in [`Model::exported`], once it was exported.
    pub exported: Option<u32>,
    /// Whether it came from another process.
    pub imported: bool,
}

/// An allocation in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// Size in bytes.
    pub bytes: u64,
    /// The pool.
    pub pool: u32,
    /// Handle for importing its pointer, if its pool is exportable.
    pub handle: Option<HandleBytes>,
}

/// A graph that allocates memory and frees it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The context that it is launched in.
    pub context: u32,
    /// Sum of the requested sizes of its allocations.
    pub bytes: u64,
    /// Maximum that is reserved for them, in whole blocks.
    pub bound: u64,
}

/// An allocation of another process that is open in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The context.
    pub context: u32,
    /// The name of the memory.
    pub exported: u32,
}

/// Memory that its maker has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Bytes charged to the container, whichever process holds it.
    pub charged: u64,
    /// Size in bytes, for physical memory.
    pub bytes: u64,
    /// IPC handle; `None` for physical memory, which is passed by descriptor.
    pub handle: Option<HandleBytes>,
    /// Whether its maker exited while it had the memory: the ledger may still have it for a while.
    pub maker_exited: bool,
}

/// A multicast object or an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Whether it is an endpoint.
    pub endpoint: bool,
    /// Whether it can be exported.
    pub shared: bool,
    /// Its name in exports, once it was exported or imported.
    pub exported: Option<u32>,
    /// Bound physical memory by offset.
    pub bound: BTreeMap<u64, u32>,
}

/// A limit of a context that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// Bytes that the context took for it when it was created.
    pub initial: u64,
    /// Bytes that it takes beyond those.
    pub beyond: u64,
}

/// Checkpoint state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Not locked: it can perform commands.
    #[default]
    Running,
    /// Locked: its calls would block.
    Locked,
    /// Checkpointed: its memory is not on the GPU.
    Checkpointed,
}

/// A live process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Whether the driver is initialised.
    pub started: bool,
    /// Live contexts.
    pub contexts: Vec<u32>,
    /// Allocations by name.
    pub allocations: BTreeMap<u32, Allocation>,
    /// Arrays by name.
    pub arrays: BTreeMap<u32, Allocation>,
    /// Physical memory by the name of its first handle.
    pub physical: BTreeMap<u32, Physical>,
    /// Physical memory by handle.
    pub handles: BTreeMap<u32, u32>,
    /// Physical memory by mapping.
    pub maps: BTreeMap<u32, u32>,
    /// Imported allocations that it has open.
    pub opened: BTreeMap<u32, Opened>,
    /// Maximum that the ledger may still charge it for memory that it exported and has released.
    pub stale_exports: u64,
    /// Pools that it created; their names in exports, once exported.
    pub pools: BTreeMap<u32, Option<u32>>,
    /// Imported pools: their names in exports.
    pub imported: BTreeMap<u32, u32>,
    /// Allocations in pools.
    pub pooled: BTreeMap<u32, Pooled>,
    /// Imported pool allocations that it has open: the exporter's names.
    pub opened_pooled: BTreeMap<u32, u32>,
    /// Maximum sizes of the pools that have one.
    pub caps: BTreeMap<u32, u64>,
    /// Locality domains of the pools that lie in one.
    pub local: BTreeMap<u32, u8>,
    /// The GPU's current pool.
    pub current: u32,
    /// Contexts by stream.
    pub streams: BTreeMap<u32, u32>,
    /// Reserved addresses.
    pub ranges: BTreeMap<u32, Range>,
    /// Uses of contexts beyond the first one.
    pub attached: BTreeMap<u32, u32>,
    /// Those of the allocations that have 32-bit addresses.
    pub low: BTreeSet<u32>,
    /// Executable graphs.
    pub graphs: BTreeMap<u32, Graph>,
    /// Graphs that were built node by node or captured.
    pub drawn: Graphs,
    /// Modules, libraries and kernels.
    pub code: Code,
    /// Number of times that it has retained the primary context.
    pub retained: u32,
    /// Green contexts, which are views of the primary one.
    pub greens: Vec<u32>,
    /// Limits of contexts.
    pub limits: BTreeMap<(u32, Limit), Set>,
    /// Context and size by module.
    pub modules: BTreeMap<u32, (u32, u64)>,
    /// Libraries: the size in one context, and the contexts that each is loaded into.
    pub libraries: BTreeMap<u32, (u64, BTreeSet<u32>)>,
    /// Multicast objects and endpoints.
    pub objects: BTreeMap<u32, Object>,
    /// Contexts by sparse array.
    pub sparse: BTreeMap<u32, u32>,
    /// Physical memory by array and tile.
    pub tiles: BTreeMap<(u32, u32), u32>,
    /// Memory allocated by another interface, which no ledger has.
    pub foreign: BTreeMap<u32, u64>,
    /// Imported memory of other interfaces: the context and the exporter's name.
    pub externals: BTreeMap<u32, (u32, u32)>,
    /// Buffers mapped in it: the same.
    pub buffers: BTreeMap<u32, (u32, u32)>,
    /// Checkpoint state.
    pub progress: Progress,
    /// Whether it ever had anything that other processes may hold: the driver may then refuse to
    /// checkpoint it.
    pub shares: bool,
    /// Bytes reserved by its pools and graphs.
    pub pool: u64,
    /// Maximum that the ledger may have for them: pools shrink at the driver's discretion, and the
    /// ledger learns of it at the next reading.
    pub pool_charged: u64,
}

impl Process {
    /// Returns its charged bytes without contexts.
    #[must_use]
    pub fn used(&self) -> u64 {
        let charged = |allocations: &BTreeMap<u32, Allocation>| -> u64 {
            allocations.values().map(|allocation| allocation.charged).sum()
        };
        let physical = self.physical.values().map(|physical| physical.charged).sum::<u64>();
        charged(&self.allocations) + charged(&self.arrays) + physical + self.pool
    }

    /// Returns whether its memory is off the GPU.
    #[must_use]
    pub fn is_checkpointed(&self) -> bool {
        self.progress == Progress::Checkpointed
    }

    /// Returns its charged bytes without contexts, or 0 while it is checkpointed.
    #[must_use]
    pub fn used_now(&self) -> u64 {
        if self.is_checkpointed() { 0 } else { self.used() }
    }

    /// Returns the maximum that the ledger may have beyond the true charge. For a checkpointed
    /// process that is exported memory that it released, and its own memory that other processes
    /// may hold, since that stays on the GPU.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.stale_exports
            + if self.is_checkpointed() { self.known() } else { self.pool_charged - self.pool }
    }

    /// Applies an observation: the ledger charges it at most this, which bounds what is left of
    /// released exports.
    pub fn charged_at_most(&mut self, charged: u64) {
        self.stale_exports = self.stale_exports.min(charged.saturating_sub(self.used_now()));
    }

    /// Returns its implicit memory beside contexts.
    #[must_use]
    pub fn implicit_beside_contexts(&self) -> u64 {
        let modules = self.modules.values().map(|(_, bytes)| bytes).sum::<u64>();
        let limits = self.limits.values().map(|set| set.beyond).sum::<u64>();
        let libraries = self
            .libraries
            .values()
            .map(|(bytes, contexts)| bytes * contexts.len() as u64)
            .sum::<u64>();
        self.greens.len() as u64 * GREEN
            + limits
            + modules
            + libraries
            + self.code.charged_implicit()
    }

    /// Returns the maximum that other processes may hold of its memory when it exits. A pool counts
    /// with all that the ledger has for it.
    #[must_use]
    pub fn outlives(&self) -> u64 {
        let pooled = self.pools.values().any(Option::is_some);
        self.stale_exports + self.known() + if pooled { self.pool_charged } else { 0 }
    }

    /// Returns its charge for memory that other processes may hold, beside pools.
    fn known(&self) -> u64 {
        let linear = self.allocations.values().filter(|allocation| allocation.exported.is_some());
        let physical =
            self.physical.values().filter(|physical| physical.exported.is_some() || physical.known);
        linear
            .map(|allocation| allocation.charged)
            .chain(physical.map(|physical| physical.charged))
            .sum()
    }

    /// Returns the names of its own memory that is exported.
    pub fn exports(&self) -> impl Iterator<Item = u32> {
        let linear = self.allocations.values().filter_map(|allocation| allocation.exported);
        let physical = self.physical.values().filter(|physical| !physical.imported);
        linear.chain(physical.filter_map(|physical| physical.exported))
    }

    /// Returns the names of imported memory that it holds.
    pub fn imports(&self) -> impl Iterator<Item = u32> {
        let physical = self.physical.values().filter(|physical| physical.imported);
        self.opened
            .values()
            .map(|opened| opened.exported)
            .chain(physical.filter_map(|physical| physical.exported))
    }

    /// Removes an allocation.
    pub fn free(&mut self, key: u32) {
        let Some(freed) = self.allocations.remove(&key) else { return };
        self.low.remove(&key);
        self.stale_exports += if freed.exported.is_some() { freed.charged } else { 0 };
    }

    /// Applies an observation of what pools and graphs hold. `read`: during a call that makes the
    /// ledger read it too. Otherwise the ledger may have one pool's growth and not yet another's
    /// shrinking. What an exported pool gave back other processes may still hold by pointers.
    pub fn observe_pool(&mut self, holds: u64, read: bool) {
        let grown = holds.saturating_sub(self.pool);
        self.pool = holds;
        if read && self.pools.values().any(Option::is_some) {
            self.stale_exports += self.pool_charged.saturating_sub(holds);
        }
        self.pool_charged = if read { holds } else { self.pool_charged + grown };
    }

    /// Returns the bytes that no trimming of pools can return.
    #[must_use]
    pub fn firm(&self) -> u64 {
        let pooled = self.pooled.values().map(|pooled| pooled.bytes).sum::<u64>();
        self.used() - self.pool + pooled + self.drawn.live()
    }

    /// Adds a reference to the memory of a handle.
    pub fn hold(&mut self, handle: u32, enter: impl FnOnce(&mut Self, u32)) {
        let Some(&physical) = self.handles.get(&handle) else { return };
        if let Some(held) = self.physical.get_mut(&physical) {
            held.references += 1;
        }
        enter(self, physical);
    }

    /// Removes a reference to physical memory.
    pub fn release_reference(&mut self, physical: u32) {
        if let Some(held) = self.physical.get_mut(&physical) {
            held.references -= 1;
            if held.references == 0 {
                self.stale_exports +=
                    if held.exported.is_some() || held.known { held.charged } else { 0 };
                self.physical.remove(&physical);
            }
        }
    }

    /// Returns the bytes that the driver takes from blocks of 2 MiB, and the number of pieces.
    #[must_use]
    pub fn small(&self) -> (u64, u64) {
        let all = self.allocations.values().chain(self.arrays.values());
        let small = all.map(|one| one.charged).filter(|charged| *charged <= MIB);
        small.fold((0, 0), |(bytes, pieces), charged| (bytes + charged, pieces + 1))
    }

    /// Returns the maximum that the driver may have taken beyond the charge: a block for each small
    /// piece, and code that the ledger cannot see.
    #[must_use]
    pub fn slack(&self) -> u64 {
        self.small().1 * BLOCK + self.code.unseen()
    }

    /// Returns whether a context is live.
    #[must_use]
    pub fn has(&self, context: u32) -> bool {
        self.contexts.contains(&context)
    }

    /// Removes a context and everything in it.
    pub fn remove_context(&mut self, context: u32) {
        self.contexts.retain(|other| *other != context);
        let its = |(key, allocation): (&u32, &Allocation)| {
            (allocation.context == context).then_some(*key)
        };
        for key in self.allocations.iter().filter_map(its).collect::<Vec<_>>() {
            self.free(key);
        }
        self.opened.retain(|_, opened| opened.context != context);
        self.streams.retain(|_, its| *its != context);
        self.attached.remove(&context);
        self.graphs.retain(|_, graph| graph.context != context);
        self.arrays.retain(|_, array| array.context != context);
        self.limits.retain(|(its, _), _| *its != context);
        self.modules.retain(|_, (its, _)| *its != context);
        self.libraries.values_mut().for_each(|(_, contexts)| _ = contexts.remove(&context));
        self.drawn.remove_context(context);
        self.code.remove_context(context);
        self.externals.retain(|_, (its, _)| *its != context);
        self.buffers.retain(|_, (its, _)| *its != context);
        let arrays = self.sparse.extract_if(.., |_, its| *its == context);
        for array in arrays.map(|(array, _)| array).collect::<Vec<_>>() {
            self.unmap_tiles(array);
        }
    }

    /// Removes a sparse array.
    pub fn unmap_tiles(&mut self, array: u32) {
        let tiles: Vec<u32> =
            self.tiles.extract_if(.., |(its, _), _| *its == array).map(|(_, its)| its).collect();
        tiles.into_iter().for_each(|physical| self.release_reference(physical));
    }

    /// Returns the names of other interfaces' memory that it keeps allocated.
    pub fn holds_of_others(&self) -> impl Iterator<Item = u32> {
        let imported = self.externals.values().chain(self.buffers.values()).map(|(_, name)| *name);
        self.foreign.keys().copied().chain(imported)
    }
}

/// A container.
#[derive(Clone, Debug)]
pub struct Model {
    /// Limit on the GPU.
    pub limit: u64,
    /// Bytes that a context takes on the GPU.
    pub context: u64,
    /// Live processes.
    pub processes: Vec<Process>,
    /// Exported memory.
    pub exported: BTreeMap<u32, Exported>,
    /// Maximum that the ledger may have for exported memory of exited processes.
    pub orphans: u64,
    /// Sizes of other interfaces' memory, by the exporter's names.
    pub foreign: BTreeMap<u32, u64>,
}

impl Model {
    /// Returns the bytes in use, contexts included: made by live processes, and held by them of
    /// others.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.own() + self.held_by_importers()
    }

    /// Returns the bytes made by live processes.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.processes.iter().map(|process| self.of(process)).sum()
    }

    /// Returns the bytes that only importers hold: the maker has freed them or has exited.
    #[must_use]
    pub fn held_by_importers(&self) -> u64 {
        let held = |exported: &u32| self.maker(*exported).is_none() && self.is_imported(*exported);
        self.exported
            .iter()
            .filter(|(exported, _)| held(exported))
            .map(|(_, exported)| exported.charged)
            .sum()
    }

    /// Returns the maximum that the driver may have taken beyond the charge: a block of 2 MiB for
    /// each small allocation, including exported ones.
    #[must_use]
    pub fn slack(&self) -> u64 {
        let exported =
            self.exported.values().filter(|exported| exported.charged <= MIB).count() as u64;
        self.processes.iter().map(Process::slack).sum::<u64>() + exported * BLOCK
    }

    /// Returns the process that made the memory and still has it.
    #[must_use]
    pub fn maker(&self, exported: u32) -> Option<usize> {
        self.processes.iter().position(|process| process.exports().any(|its| its == exported))
    }

    /// Returns whether a process has it imported.
    #[must_use]
    pub fn is_imported(&self, exported: u32) -> bool {
        self.processes.iter().any(|process| process.imports().any(|its| its == exported))
    }

    /// Returns a process's charge, contexts included.
    #[must_use]
    pub fn of(&self, process: &Process) -> u64 {
        if process.is_checkpointed() { 0 } else { self.charge_when_restored(process) }
    }

    /// Returns the same without regard to checkpoints.
    #[must_use]
    pub fn charge_when_restored(&self, process: &Process) -> u64 {
        process.used() + self.implicit(process)
    }

    /// Returns a process's implicit memory, contexts included.
    #[must_use]
    pub fn implicit(&self, process: &Process) -> u64 {
        self.context * process.contexts.len() as u64 + process.implicit_beside_contexts()
    }

    /// Returns the minimum that a process has, whatever its pools return.
    #[must_use]
    pub fn firm(&self, process: &Process) -> u64 {
        process.firm() + self.implicit(process)
    }

    /// Returns the maximum that the ledger may have for live processes.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.own() + self.processes.iter().map(Process::stale).sum::<u64>()
    }

    /// Returns whether `bytes` more stay within the limit, whatever pools do. Of exited processes
    /// only exported memory counts: a charge waits for the rest.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.most() + self.orphans + bytes <= self.limit
    }

    /// Returns whether `bytes` more would fit if each pool kept only what is in use.
    #[must_use]
    pub fn might_fit(&self, bytes: u64) -> bool {
        let here = self.processes.iter().filter(|process| !process.is_checkpointed());
        let firm = here.map(|process| self.firm(process)).sum::<u64>();
        firm + self.held_by_importers() + bytes <= self.limit + self.unrefused()
    }

    /// Returns the charged bytes of code, which cannot be refused: the limit may be exceeded by
    /// these.
    #[must_use]
    pub fn unrefused(&self) -> u64 {
        self.processes.iter().map(|process| process.code.charged_code()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_context_frees_its_memory_but_keeps_exports_charged() {
        let mut process = Process { contexts: vec![0, 3], ..Process::default() };
        process
            .allocations
            .insert(1, Allocation { context: 0, charged: rounded(1), exported: None });
        process
            .allocations
            .insert(2, Allocation { context: 3, charged: rounded(MIB), exported: Some(7) });
        let exported = Exported { charged: 2 * MIB, bytes: MIB, handle: None, maker_exited: false };
        let model = Model {
            limit: 10 * MIB,
            context: MIB,
            processes: vec![process.clone()],
            exported: BTreeMap::from([(7, exported)]),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        assert_eq!(
            (process.used(), process.small(), model.total()),
            (512 + 2 * MIB, (512, 1), 512 + 4 * MIB)
        );
        assert!(model.fits(6 * MIB - 512) && !model.fits(6 * MIB));
        process.remove_context(3);
        assert_eq!(
            (process.used(), process.stale(), process.contexts.as_slice()),
            (512, 2 * MIB, &[0][..])
        );
        process.charged_at_most(MIB);
        assert_eq!(process.stale(), MIB - 512);
    }

    #[test]
    fn memory_held_by_importers_only_is_in_use() {
        let mut maker = Process::default();
        maker.allocations.insert(1, Allocation { context: 0, charged: 2 * MIB, exported: Some(7) });
        let mut other = Process::default();
        other.opened.insert(2, Opened { context: 0, exported: 7 });
        let exported = Exported { charged: 2 * MIB, bytes: MIB, handle: None, maker_exited: false };
        let mut model = Model {
            limit: 10 * MIB,
            context: MIB,
            processes: vec![maker, other],
            exported: BTreeMap::from([(7, exported)]),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        assert_eq!(
            (model.maker(7), model.total(), model.held_by_importers()),
            (Some(0), 2 * MIB, 0)
        );
        model.processes[0].free(1);
        assert_eq!((model.maker(7), model.total(), model.most()), (None, 2 * MIB, 2 * MIB));
        assert!(model.might_fit(8 * MIB) && !model.might_fit(8 * MIB + 1));
        model.processes[1].opened.clear();
        assert_eq!((model.total(), model.most()), (0, 2 * MIB));
    }

    /// Memory was bound to a shared object that has been destroyed, so the driver takes the memory
    /// off the GPU.
    #[test]
    fn checkpointed_process_may_stay_charged_for_shared_memory() {
        let bound = Physical { charged: 4 * MIB, known: true, ..Physical::default() };
        let own = Physical { charged: 2 * MIB, ..Physical::default() };
        let mut process =
            Process { physical: BTreeMap::from([(1, bound), (2, own)]), ..Process::default() };
        assert_eq!(
            (process.used_now(), process.stale(), process.outlives()),
            (6 * MIB, 0, 4 * MIB)
        );
        process.progress = Progress::Checkpointed;
        assert_eq!(
            (process.used_now(), process.stale(), process.outlives()),
            (0, 4 * MIB, 4 * MIB)
        );
    }
}
