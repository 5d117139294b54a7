//! Kinds of allocations that fill a container.

use std::os::fd::AsFd;

use anyhow::Result;

use super::Due;
use super::tenant::{CONTEXT, Tenant};
use crate::command::{Command, DEFAULT_POOL, Place};
use crate::model::MIB;

/// A kind of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    /// Linear memory.
    Linear,
    /// Pitched memory.
    Pitched,
    /// Physical memory, mapped and its handle released. Some of it in a locality domain.
    Physical,
    /// Stream-ordered memory.
    Pooled,
    /// Arrays.
    Arrays,
    /// Linear memory that another process of the container imports and keeps.
    Exported,
    /// Graphs that allocate.
    Graphs,
    /// Variables of modules.
    Modules,
    /// Variables of libraries, loaded by the first look-up.
    Libraries,
    /// Contexts and memory in them.
    Contexts,
    /// Green contexts, and memory in them.
    Green,
    /// Memory that only a multicast object holds.
    Multicast,
    /// Memory that only a logical endpoint holds.
    Endpoints,
    /// Memory that only a tile of a sparse array holds.
    Sparse,
    /// Linear memory beside other interfaces' memory, which cannot be refused.
    External,
    /// All of these in turn, and managed memory, which is refused.
    Mixed,
}

/// Bytes that a green context takes.
const GREEN: u64 = 8 * MIB;
/// Maximum number of green contexts of a process.
const MOST_GREENS: usize = 6;
/// Maximum number of allocations of other interfaces in a process. No limit applies to them.
const MOST_FOREIGN: usize = 4;
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

impl AllocationKind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Linear,
        Self::Pitched,
        Self::Physical,
        Self::Pooled,
        Self::Arrays,
        Self::Exported,
        Self::Graphs,
        Self::Modules,
        Self::Libraries,
        Self::Contexts,
        Self::Green,
        Self::Multicast,
        Self::Endpoints,
        Self::Sparse,
        Self::External,
        Self::Mixed,
    ];

    /// Returns whether a call may take more than it keeps when it returns.
    pub(super) fn grows_in_calls(self) -> bool {
        self.has_pools()
    }

    pub(super) fn has_pools(self) -> bool {
        matches!(self, Self::Pooled | Self::Mixed)
    }

    pub(super) fn has_graphs(self) -> bool {
        matches!(self, Self::Graphs | Self::Mixed)
    }
}

impl Tenant<'_> {
    /// Allocates more and returns whether it was granted.
    pub(super) fn take(&mut self, index: usize, kind: AllocationKind) -> Result<bool> {
        let (context, key) = (CONTEXT, self.name());
        let mib = (self.random.below(48) + 1) * 2;
        let bytes = mib * MIB;
        match kind {
            AllocationKind::Linear => {
                let allocate = Command::Allocate { context, key, bytes };
                self.simply(index, &allocate, Command::Free { key })
            }
            AllocationKind::Pitched => {
                // A pitch of 512 KiB, which every alignment of the driver leaves as it is.
                let (width, height) = (1 << 19, 2 * mib);
                let allocate = Command::AllocatePitch { context, key, width, height };
                self.simply(index, &allocate, Command::Free { key })
            }
            AllocationKind::Pooled => {
                let allocate = Command::PoolAllocate { context, key, bytes, pool: DEFAULT_POOL };
                self.simply(index, &allocate, Command::PoolFree { context, key })
            }
            AllocationKind::Arrays => {
                let (width, height) = (1024, 256 * mib);
                let make = Command::ArrayCreate {
                    context,
                    key,
                    width,
                    height,
                    depth: 0,
                    channels: 1,
                    levels: 0,
                };
                self.simply(index, &make, Command::ArrayDestroy { context, key })
            }
            AllocationKind::Physical => self.take_physical(index, key, bytes),
            AllocationKind::Exported => self.take_exported(index, key, bytes),
            AllocationKind::Graphs => self.take_graph(index, key, bytes),
            AllocationKind::Modules => {
                let load = Command::ModuleLoad { context, module: key, bytes };
                let granted = self.granted_with(index, Due::charged(bytes), &load)?;
                if granted {
                    self.has(
                        index,
                        Due::charged(bytes),
                        [Command::ModuleUnload { context, module: key }],
                    );
                }
                Ok(granted)
            }
            AllocationKind::Libraries => self.take_library(index, key, bytes),
            AllocationKind::Contexts => self.take_context(index, key, bytes),
            AllocationKind::Green => self.take_green(index, key, bytes),
            AllocationKind::Multicast => self.take_bound(index, key, bytes, false),
            AllocationKind::Endpoints => self.take_bound(index, key, bytes, true),
            AllocationKind::Sparse => self.take_tiled(index, key, bytes),
            AllocationKind::External => {
                let foreign =
                    |back: &[Command]| matches!(back.last(), Some(Command::ForeignFree { .. }));
                let has = self.processes[index]
                    .holdings
                    .iter()
                    .filter(|thing| foreign(&thing.back))
                    .count();
                if has < MOST_FOREIGN && self.random.once_in(4) {
                    self.take_foreign(index, key, bytes)
                } else {
                    self.take(index, AllocationKind::Linear)
                }
            }
            AllocationKind::Mixed => {
                let managed = Command::AllocateManaged { context, bytes };
                self.refused(index, &managed, NOT_SUPPORTED)?;
                let kinds = AllocationKind::ALL.into_iter().filter(|kind| {
                    !matches!(kind, AllocationKind::Mixed | AllocationKind::Exported)
                });
                let kinds: Vec<AllocationKind> = kinds.collect();
                let kind = self.random.pick(&kinds).copied().unwrap_or(AllocationKind::Linear);
                self.take(index, kind)
            }
        }
    }

    /// Allocates by one command; one command frees it.
    fn simply(&mut self, index: usize, make: &Command, back: Command) -> Result<bool> {
        let granted = self.granted(index, make)?.is_some();
        if granted {
            self.has(index, Due::default(), [back]);
        }
        Ok(granted)
    }

    /// Creates physical memory.
    fn create(
        &mut self,
        index: usize,
        key: u32,
        bytes: u64,
        place: Place,
        tiles: bool,
    ) -> Result<bool> {
        let create =
            Command::PhysicalCreate { context: CONTEXT, key, bytes, place, shared: false, tiles };
        Ok(self.granted(index, &create)?.is_some())
    }

    fn take_physical(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        let place = match self.random.below(4) {
            0 => Place::Domain(0),
            1 => Place::Domain(1),
            _ => Place::Gpu,
        };
        if !self.create(index, key, bytes, place, false)? {
            return Ok(false);
        }
        self.surely(index, &Command::PhysicalMap { key, map: key, bytes })?;
        self.surely(index, &Command::PhysicalRelease { key })?;
        self.has(index, Due::default(), [Command::PhysicalUnmap { map: key }]);
        Ok(true)
    }

    /// Exports an allocation to the other process, which sometimes opens it and keeps it when it is
    /// freed here.
    fn take_exported(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        if !self.take_named(index, key, bytes)? {
            return Ok(false);
        }
        let handle = self.surely(index, &Command::Export { key, exported: key })?;
        let other = 1 - index;
        if self.can_open(other) && self.random.once_in(2) {
            let open = Command::Open { context: CONTEXT, open: key, exported: key, handle };
            self.surely(other, &open)?;
            self.has(other, Due::default(), [Command::Close { open: key }]);
        }
        Ok(true)
    }

    fn take_named(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        let allocate = Command::Allocate { context: CONTEXT, key, bytes };
        self.simply(index, &allocate, Command::Free { key })
    }

    /// Launches a graph with two large allocations. Graphs reuse freed memory of each other, so
    /// only size fills the container.
    fn take_graph(&mut self, index: usize, graph: u32, bytes: u64) -> Result<bool> {
        let sizes = [bytes, 15 * bytes];
        self.surely(index, &Command::GraphCreate { context: CONTEXT, graph, sizes })?;
        let granted = self.granted(index, &Command::GraphLaunch { graph })?.is_some();
        if granted {
            self.has(index, Due::default(), [Command::GraphDestroy { graph }]);
        } else {
            self.surely(index, &Command::GraphDestroy { graph })?;
        }
        Ok(granted)
    }

    fn take_library(&mut self, index: usize, library: u32, bytes: u64) -> Result<bool> {
        self.surely(index, &Command::LibraryLoad { library, bytes })?;
        let variable = self.random.once_in(2);
        let bring = Command::LibraryUse { context: CONTEXT, library, variable };
        let granted = self.granted_with(index, Due::charged(bytes), &bring)?;
        if granted {
            self.has(index, Due::charged(bytes), [Command::LibraryUnload { library }]);
        } else {
            self.surely(index, &Command::LibraryUnload { library })?;
        }
        Ok(granted)
    }

    fn take_context(&mut self, index: usize, context: u32, bytes: u64) -> Result<bool> {
        let due = Due::charged(self.container.context);
        if !self.granted_with(index, due, &Command::ContextCreate { context })? {
            return Ok(false);
        }
        self.has(index, due, [Command::ContextDestroy { context }]);
        Ok(self.granted(index, &Command::Allocate { context, key: context, bytes })?.is_some())
    }

    /// Allocates in a green context. The memory belongs to the primary context and stays when the
    /// green one is destroyed.
    fn take_green(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        if !self.processes[index].has_primary {
            let made = self.granted_with(
                index,
                Due::charged(self.container.context),
                &Command::PrimaryRetain,
            )?;
            self.processes[index].has_primary = made;
            return Ok(made);
        }
        let green = |back: &[Command]| match back {
            [Command::GreenDestroy { green }] => Some(*green),
            _ => None,
        };
        let greens = self.processes[index].holdings.iter().filter_map(|thing| green(&thing.back));
        let greens: Vec<u32> = greens.collect();
        match self.random.pick(&greens).copied() {
            Some(green) if greens.len() >= MOST_GREENS || !self.random.once_in(8) => {
                let allocate = Command::GreenAllocate { green, key, bytes };
                self.simply(index, &allocate, Command::Free { key })
            }
            _ => {
                let granted = self.granted_with(
                    index,
                    Due::unseen(GREEN),
                    &Command::GreenCreate { green: key },
                )?;
                if granted {
                    self.has(index, Due::unseen(GREEN), [Command::GreenDestroy { green: key }]);
                }
                Ok(granted)
            }
        }
    }

    /// Binds physical memory to an object. It is unbound explicitly or when the object is
    /// destroyed.
    fn take_bound(&mut self, index: usize, key: u32, bytes: u64, endpoint: bool) -> Result<bool> {
        if !self.create(index, key, bytes, Place::Gpu, false)? {
            return Ok(false);
        }
        let object = key;
        self.surely(index, &Command::ObjectCreate { object, bytes, endpoint, shared: false })?;
        self.surely(index, &Command::ObjectBind { object, offset: 0, key, bytes })?;
        self.surely(index, &Command::PhysicalRelease { key })?;
        let end = Command::ObjectEnd { object };
        if self.random.once_in(2) {
            self.has(index, Due::default(), [end]);
        } else {
            self.has(
                index,
                Due::default(),
                [Command::ObjectUnbind { object, offset: 0, bytes }, end],
            );
        }
        Ok(true)
    }

    /// Maps one tile, which holds all of a handle's memory.
    fn take_tiled(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        let context = CONTEXT;
        if !self.create(index, key, bytes, Place::Gpu, true)? {
            return Ok(false);
        }
        self.surely(index, &Command::SparseCreate { context, key })?;
        self.surely(
            index,
            &Command::TileMap { context, array: key, tile: 0, key: Some(key), at: 0 },
        )?;
        self.surely(index, &Command::PhysicalRelease { key })?;
        self.has(index, Due::default(), [Command::ArrayDestroy { context, key }]);
        Ok(true)
    }

    /// Allocates memory in another interface, which the driver imports.
    fn take_foreign(&mut self, index: usize, key: u32, bytes: u64) -> Result<bool> {
        let context = CONTEXT;
        if !self.granted_with(
            index,
            Due::unseen(bytes),
            &Command::ForeignAllocate { key, bytes },
        )? {
            return Ok(false);
        }
        self.surely(index, &Command::ForeignExport { key })?;
        let line = self.processes[index].actor.line();
        let descriptor = line.receive()?;
        line.send(descriptor.as_fd())?;
        self.surely(index, &Command::ExternalImport { context, external: key, key, bytes })?;
        self.surely(index, &Command::ExternalMap { external: key, buffer: key, bytes })?;
        let back = [
            Command::ExternalFree { buffer: key },
            Command::ExternalEnd { external: key },
            Command::ForeignFree { key },
        ];
        self.has(index, Due::unseen(bytes), back);
        Ok(true)
    }
}
