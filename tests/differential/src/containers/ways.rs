//! Kinds of allocations that fill a container.

use std::os::fd::AsFd;

use anyhow::Result;

use super::Due;
use super::tenant::{CONTEXT, Tenant};
use crate::command::{Command, DEFAULT_POOL, Place};
use crate::model::MIB;

/// A kind of allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
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
    Lent,
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

impl Way {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Linear,
        Self::Pitched,
        Self::Physical,
        Self::Pooled,
        Self::Arrays,
        Self::Lent,
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
    pub(super) fn take(&mut self, who: usize, way: Way) -> Result<bool> {
        let (context, key) = (CONTEXT, self.name());
        let mib = (self.random.below(48) + 1) * 2;
        let bytes = mib * MIB;
        match way {
            Way::Linear => {
                let allocate = Command::Allocate { context, key, bytes };
                self.simply(who, &allocate, Command::Free { key })
            }
            Way::Pitched => {
                // A pitch of 512 KiB, which every alignment of the driver leaves as it is.
                let (width, height) = (1 << 19, 2 * mib);
                let allocate = Command::AllocatePitch { context, key, width, height };
                self.simply(who, &allocate, Command::Free { key })
            }
            Way::Pooled => {
                let allocate = Command::PoolAllocate { context, key, bytes, pool: DEFAULT_POOL };
                self.simply(who, &allocate, Command::PoolFree { context, key })
            }
            Way::Arrays => {
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
                self.simply(who, &make, Command::ArrayDestroy { context, key })
            }
            Way::Physical => self.take_physical(who, key, bytes),
            Way::Lent => self.take_lent(who, key, bytes),
            Way::Graphs => self.take_graph(who, key, bytes),
            Way::Modules => {
                let load = Command::ModuleLoad { context, module: key, bytes };
                let granted = self.granted_with(who, Due::booked(bytes), &load)?;
                if granted {
                    self.has(
                        who,
                        Due::booked(bytes),
                        [Command::ModuleUnload { context, module: key }],
                    );
                }
                Ok(granted)
            }
            Way::Libraries => self.take_library(who, key, bytes),
            Way::Contexts => self.take_context(who, key, bytes),
            Way::Green => self.take_green(who, key, bytes),
            Way::Multicast => self.take_bound(who, key, bytes, false),
            Way::Endpoints => self.take_bound(who, key, bytes, true),
            Way::Sparse => self.take_tiled(who, key, bytes),
            Way::External => {
                let foreign =
                    |back: &[Command]| matches!(back.last(), Some(Command::ForeignFree { .. }));
                let has =
                    self.processes[who].things.iter().filter(|thing| foreign(&thing.back)).count();
                if has < MOST_FOREIGN && self.random.once_in(4) {
                    self.take_foreign(who, key, bytes)
                } else {
                    self.take(who, Way::Linear)
                }
            }
            Way::Mixed => {
                let managed = Command::AllocateManaged { context, bytes };
                self.refused(who, &managed, NOT_SUPPORTED)?;
                let ways =
                    Way::ALL.into_iter().filter(|way| !matches!(way, Way::Mixed | Way::Lent));
                let ways: Vec<Way> = ways.collect();
                let way = self.random.pick(&ways).copied().unwrap_or(Way::Linear);
                self.take(who, way)
            }
        }
    }

    /// Allocates by one command; one command frees it.
    fn simply(&mut self, who: usize, make: &Command, back: Command) -> Result<bool> {
        let granted = self.granted(who, make)?.is_some();
        if granted {
            self.has(who, Due::default(), [back]);
        }
        Ok(granted)
    }

    /// Creates physical memory.
    fn create(
        &mut self,
        who: usize,
        key: u32,
        bytes: u64,
        place: Place,
        tiles: bool,
    ) -> Result<bool> {
        let create =
            Command::PhysicalCreate { context: CONTEXT, key, bytes, place, shared: false, tiles };
        Ok(self.granted(who, &create)?.is_some())
    }

    fn take_physical(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        let place = match self.random.below(4) {
            0 => Place::Domain(0),
            1 => Place::Domain(1),
            _ => Place::Gpu,
        };
        if !self.create(who, key, bytes, place, false)? {
            return Ok(false);
        }
        self.surely(who, &Command::PhysicalMap { key, map: key, bytes })?;
        self.surely(who, &Command::PhysicalRelease { key })?;
        self.has(who, Due::default(), [Command::PhysicalUnmap { map: key }]);
        Ok(true)
    }

    /// Exports an allocation to the other process, which sometimes opens it and keeps it when it is
    /// freed here.
    fn take_lent(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        if !self.take_named(who, key, bytes)? {
            return Ok(false);
        }
        let handle = self.surely(who, &Command::Lend { key, lent: key })?;
        let other = 1 - who;
        if self.can_open(other) && self.random.once_in(2) {
            let open = Command::Open { context: CONTEXT, open: key, lent: key, handle };
            self.surely(other, &open)?;
            self.has(other, Due::default(), [Command::Close { open: key }]);
        }
        Ok(true)
    }

    fn take_named(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        let allocate = Command::Allocate { context: CONTEXT, key, bytes };
        self.simply(who, &allocate, Command::Free { key })
    }

    /// Launches a graph with two large allocations. Graphs reuse freed memory of each other, so
    /// only size fills the container.
    fn take_graph(&mut self, who: usize, graph: u32, bytes: u64) -> Result<bool> {
        let sizes = [bytes, 15 * bytes];
        self.surely(who, &Command::GraphCreate { context: CONTEXT, graph, sizes })?;
        let granted = self.granted(who, &Command::GraphLaunch { graph })?.is_some();
        if granted {
            self.has(who, Due::default(), [Command::GraphDestroy { graph }]);
        } else {
            self.surely(who, &Command::GraphDestroy { graph })?;
        }
        Ok(granted)
    }

    fn take_library(&mut self, who: usize, library: u32, bytes: u64) -> Result<bool> {
        self.surely(who, &Command::LibraryLoad { library, bytes })?;
        let variable = self.random.once_in(2);
        let bring = Command::LibraryBring { context: CONTEXT, library, variable };
        let granted = self.granted_with(who, Due::booked(bytes), &bring)?;
        if granted {
            self.has(who, Due::booked(bytes), [Command::LibraryUnload { library }]);
        } else {
            self.surely(who, &Command::LibraryUnload { library })?;
        }
        Ok(granted)
    }

    fn take_context(&mut self, who: usize, context: u32, bytes: u64) -> Result<bool> {
        let due = Due::booked(self.container.context);
        if !self.granted_with(who, due, &Command::ContextCreate { context })? {
            return Ok(false);
        }
        self.has(who, due, [Command::ContextDestroy { context }]);
        Ok(self.granted(who, &Command::Allocate { context, key: context, bytes })?.is_some())
    }

    /// Allocates in a green context. The memory belongs to the primary context and stays when the
    /// green one is destroyed.
    fn take_green(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        if !self.processes[who].has_primary {
            let made = self.granted_with(
                who,
                Due::booked(self.container.context),
                &Command::PrimaryRetain,
            )?;
            self.processes[who].has_primary = made;
            return Ok(made);
        }
        let green = |back: &[Command]| match back {
            [Command::GreenDestroy { green }] => Some(*green),
            _ => None,
        };
        let greens = self.processes[who].things.iter().filter_map(|thing| green(&thing.back));
        let greens: Vec<u32> = greens.collect();
        match self.random.pick(&greens).copied() {
            Some(green) if greens.len() >= MOST_GREENS || !self.random.once_in(8) => {
                let allocate = Command::GreenAllocate { green, key, bytes };
                self.simply(who, &allocate, Command::Free { key })
            }
            _ => {
                let granted = self.granted_with(
                    who,
                    Due::unseen(GREEN),
                    &Command::GreenCreate { green: key },
                )?;
                if granted {
                    self.has(who, Due::unseen(GREEN), [Command::GreenDestroy { green: key }]);
                }
                Ok(granted)
            }
        }
    }

    /// Binds physical memory to an object. It is unbound explicitly or when the object is
    /// destroyed.
    fn take_bound(&mut self, who: usize, key: u32, bytes: u64, endpoint: bool) -> Result<bool> {
        if !self.create(who, key, bytes, Place::Gpu, false)? {
            return Ok(false);
        }
        let object = key;
        self.surely(who, &Command::ObjectCreate { object, bytes, endpoint, shared: false })?;
        self.surely(who, &Command::ObjectBind { object, offset: 0, key, bytes })?;
        self.surely(who, &Command::PhysicalRelease { key })?;
        let end = Command::ObjectEnd { object };
        if self.random.once_in(2) {
            self.has(who, Due::default(), [end]);
        } else {
            self.has(
                who,
                Due::default(),
                [Command::ObjectUnbind { object, offset: 0, bytes }, end],
            );
        }
        Ok(true)
    }

    /// Maps one tile, which holds all of a handle's memory.
    fn take_tiled(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        let context = CONTEXT;
        if !self.create(who, key, bytes, Place::Gpu, true)? {
            return Ok(false);
        }
        self.surely(who, &Command::SparseCreate { context, key })?;
        self.surely(
            who,
            &Command::TileMap { context, array: key, tile: 0, key: Some(key), at: 0 },
        )?;
        self.surely(who, &Command::PhysicalRelease { key })?;
        self.has(who, Due::default(), [Command::ArrayDestroy { context, key }]);
        Ok(true)
    }

    /// Allocates memory in another interface, which the driver imports.
    fn take_foreign(&mut self, who: usize, key: u32, bytes: u64) -> Result<bool> {
        let context = CONTEXT;
        if !self.granted_with(who, Due::unseen(bytes), &Command::ForeignAllocate { key, bytes })? {
            return Ok(false);
        }
        self.surely(who, &Command::ForeignExport { key })?;
        let line = self.processes[who].actor.line();
        let descriptor = line.receive()?;
        line.send(descriptor.as_fd())?;
        self.surely(who, &Command::ExternalImport { context, external: key, key, bytes })?;
        self.surely(who, &Command::ExternalMap { external: key, buffer: key, bytes })?;
        let back = [
            Command::ExternalFree { buffer: key },
            Command::ExternalEnd { external: key },
            Command::ForeignFree { key },
        ];
        self.has(who, Due::unseen(bytes), back);
        Ok(true)
    }
}
