//! Draws the next command.

mod bound;
mod code;
mod graphs;
mod implicit;
mod names;
mod others;
mod pools;
mod ranges;
mod streams;

use super::{Kind, Route, Run};
use crate::command::{Command, DEFAULT_POOL, HandleBytes, PRIMARY, Place};
use crate::model::{Exported, MIB, Pooled};
use crate::random::Random;

/// Maximum number of contexts of a process, primary one included.
const MOST_CONTEXTS: u32 = 4;
/// Maximum number of pools that a process creates.
const MOST_POOLS: usize = 2;
/// Maximum number of graphs of a process.
const MOST_GRAPHS: usize = 6;
/// Number of allocations of a process from which on it mostly frees.
const MANY: usize = 200;

impl Run<'_> {
    /// Draws the next command of a process from its state.
    pub(super) fn draw(&mut self, index: usize) -> Command {
        self.turn_to_strict_capture(index);
        let process = &self.model.processes[index];
        if !process.started {
            return Command::Init;
        }
        let keys: Vec<u32> = process.allocations.keys().copied().collect();
        let Some(&context) = self.random.pick(&process.contexts) else {
            return if self.random.once_in(2) {
                Command::PrimaryRetain
            } else {
                Command::ContextCreate { context: 1 }
            };
        };
        if process.drawn.is_strict() {
            return self.draw_strictly(index, context);
        }
        let newer: Vec<Route> =
            self.plan.routes.iter().copied().filter(|route| route.is_drawn_more()).collect();
        if let Some(&route) = self.random.pick(&newer)
            && self.random.once_in(3)
        {
            return self.draw_newer(index, context, route);
        }
        let key = self.random.pick(&keys).copied();
        if let Some(&route) = self.random.pick(&self.plan.routes)
            && self.random.once_in(4)
        {
            match route {
                Route::Exchange => return self.draw_exchange(index, context),
                Route::Graphs => return self.draw_graph(index, context),
                Route::Green => return self.draw_green(index, context),
                Route::Implicit => return self.draw_implicit(index, context),
                Route::Shapes => return self.draw_shape(index, context),
                Route::Trims => return self.draw_trim(index, context),
                Route::Libraries => return self.draw_library(index, context),
                Route::Bound => return self.draw_bound(index, context),
                Route::Sparse => return self.draw_sparse(index, context),
                Route::External => return self.draw_external(index, context),
                Route::Checkpoint => return self.draw_checkpoint(index, context),
                // These change the GPU or the thread of any step.
                Route::Gpus | Route::Threads => {}
                Route::Flat => return self.draw_flat(index, context),
                Route::Pools => return self.draw_pool(index, context),
                Route::Streams => return self.draw_stream(index, context),
                Route::Names => return self.draw_name(index, context),
                Route::Uses => return self.draw_use(index, context),
                Route::Ranges => return self.draw_range(index, context),
                newer => return self.draw_newer(index, context, newer),
            }
        }
        match (self.random.below(100), key) {
            (0..=1, _) => {
                let free = (1..MOST_CONTEXTS).find(|context| !process.has(*context));
                free.map_or(Command::MemoryInfo { context }, |context| Command::ContextCreate {
                    context,
                })
            }
            (2, _) => Command::PrimaryRetain,
            (3, _) if process.has(PRIMARY) && process.retained > 0 => Command::PrimaryRelease,
            // Resets with pools are drawn by `Route::Pools`.
            (4, _)
                if process.has(PRIMARY)
                    && process.pooled.is_empty()
                    && process.graphs.is_empty()
                    && process.drawn.is_empty()
                    && process.greens.is_empty()
                    && self.random.once_in(3) =>
            {
                Command::PrimaryReset
            }
            (5, _) if context != PRIMARY => Command::ContextDestroy { context },
            (6, _) => Command::FreeUnknown,
            (7, _) if self.random.once_in(4) => Command::Fork,
            (8, _) if self.random.once_in(8) => Command::Execute,
            (9..=18, _) => Command::MemoryInfo { context },
            (19..=58, Some(key)) => Command::Free { key },
            (_, Some(key)) if keys.len() > MANY => Command::Free { key },
            (59..=65, _) => {
                let (width, height) = (self.random.below(100_000) + 1, self.random.below(2000) + 1);
                Command::AllocatePitch { context, key: self.new_key(), width, height }
            }
            (66..=84, _) => self.draw_other(index, context),
            _ => {
                let bytes = self.random.size(self.model.limit / 2);
                Command::Allocate { context, key: self.new_key(), bytes }
            }
        }
    }

    /// Draws a command of a newer family.
    fn draw_newer(&mut self, index: usize, context: u32, route: Route) -> Command {
        match route {
            Route::Captures => self.draw_capture(index, context),
            Route::Lazy => self.draw_code(index, context),
            _ => self.draw_node(index, context),
        }
    }

    /// Draws commands for physical memory, arrays and pools.
    fn draw_other(&mut self, index: usize, context: u32) -> Command {
        let process = self.model.processes[index].clone();
        let pick = |random: &mut Random, names: Vec<u32>| random.pick(&names).copied();
        let map = pick(&mut self.random, process.maps.keys().copied().collect());
        let plain = |first: &u32| process.physical.get(first).is_none_or(|its| !its.tiles);
        let plain = process.handles.iter().filter(|(_, first)| plain(first));
        let handle = pick(&mut self.random, plain.map(|(key, _)| *key).collect());
        let array = pick(&mut self.random, process.arrays.keys().copied().collect());
        let of_the_gpu = |(key, its): (&u32, &Pooled)| (its.pool == DEFAULT_POOL).then_some(*key);
        let pooled = pick(&mut self.random, process.pooled.iter().filter_map(of_the_gpu).collect());
        match self.random.below(16) {
            0 | 1 => {
                let bytes = (self.random.below(64) + 1) * 2 * MIB;
                let (key, host) = (self.new_key(), self.random.once_in(6));
                let place = if host { Place::Host } else { self.place() };
                let sent = [Route::Exchange, Route::Bound];
                let shared = !host && sent.iter().any(|route| self.plan.routes.contains(route));
                Command::PhysicalCreate { context, key, bytes, place, shared, tiles: false }
            }
            2 | 3 if handle.is_some() => {
                let key = handle.unwrap_or_default();
                let bytes = process.handles.get(&key).and_then(|first| process.physical.get(first));
                let bytes = bytes.map_or(0, |physical| physical.bytes);
                Command::PhysicalMap { key, map: self.new_key(), bytes }
            }
            4 if map.is_some() => Command::PhysicalUnmap { map: map.unwrap_or_default() },
            5 if handle.is_some() => Command::PhysicalRelease { key: handle.unwrap_or_default() },
            6 if map.is_some() => {
                Command::PhysicalRetain { map: map.unwrap_or_default(), key: self.new_key() }
            }
            7 | 8 => Command::ArrayCreate {
                context,
                key: self.new_key(),
                width: self.random.below(3000) + 1,
                height: self.random.below(1500),
                depth: 0,
                channels: *self.random.pick(&[1, 2, 4]).unwrap_or(&1),
                levels: 0,
            },
            9 | 10 if array.is_some() => {
                let key = array.unwrap_or_default();
                let context = process.arrays.get(&key).map_or(context, |array| array.context);
                Command::ArrayDestroy { context, key }
            }
            11 | 12 => {
                let bytes = self.random.size(256 * MIB);
                Command::PoolAllocate { context, key: self.new_key(), bytes, pool: DEFAULT_POOL }
            }
            13 | 14 if pooled.is_some() => {
                Command::PoolFree { context, key: pooled.unwrap_or_default() }
            }
            _ => Command::Synchronise { context },
        }
    }

    /// Draws commands that exchange memory between processes.
    fn draw_exchange(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let has_handle = |key: &u32| !process.low.contains(key);
        let allocations: Vec<u32> =
            process.allocations.keys().copied().filter(has_handle).collect();
        let opened: Vec<u32> = process.opened.keys().copied().collect();
        let on_the_gpu = |handle: &&u32| {
            process
                .physical
                .get(handle)
                .is_some_and(|its| its.exported.is_some() || its.charged > 0 && its.shared)
        };
        let handles: Vec<u32> = process
            .handles
            .iter()
            .filter(|(_, first)| on_the_gpu(first))
            .map(|(key, _)| *key)
            .collect();
        // Memory that its maker has freed is not opened: other small allocations may have that
        // address, and the driver cannot tell them apart.
        let open_to_us = |(&exported, its): (&u32, &Exported)| {
            let maker = self.model.maker(exported);
            let handle = its
                .handle
                .filter(|_| maker != Some(index) && (maker.is_some() || its.charged > MIB))?;
            Some((exported, handle))
        };
        let values: Vec<(u32, HandleBytes)> =
            self.model.exported.iter().filter_map(open_to_us).collect();
        let descriptors = self.descriptors_of(Kind::Physical);
        let (key, open) =
            (self.random.pick(&allocations).copied(), self.random.pick(&opened).copied());
        let (handle, value) =
            (self.random.pick(&handles).copied(), self.random.pick(&values).copied());
        let descriptor = self.random.pick(&descriptors).copied();
        if self.random.once_in(2) {
            return self.draw_pool_exchange(index, context);
        }
        match (self.random.below(8), key, value, open, handle, descriptor) {
            (0, Some(key), ..) => Command::Export { key, exported: self.new_key() },
            (1 | 2, _, Some((exported, handle)), ..) => {
                Command::Open { context, open: self.new_key(), exported, handle }
            }
            (3, _, _, Some(open), ..) => Command::Close { open },
            (4, _, _, _, Some(key), _) => Command::PhysicalExport { key, exported: self.new_key() },
            (5 | 6, .., Some(exported)) => {
                Command::PhysicalImport { key: self.new_key(), exported }
            }
            _ => Command::MemoryInfo { context },
        }
    }

    /// Draws commands that exchange pools and their allocations between processes.
    fn draw_pool_exchange(&mut self, index: usize, context: u32) -> Command {
        let processes = &self.model.processes;
        let process = &processes[index];
        let pools: Vec<u32> = process.pools.keys().copied().collect();
        let known = |key: u32| {
            processes.iter().any(|other| other.opened_pooled.values().any(|its| *its == key))
        };
        let pooled: Vec<(u32, bool)> = process
            .pooled
            .iter()
            .filter(|(key, its)| its.pool != DEFAULT_POOL && !known(**key))
            .map(|(key, its)| (*key, process.pools.get(&its.pool).is_some_and(Option::is_some)))
            .collect();
        let descriptors = self.descriptors_of(Kind::Pool);
        // Live allocations of pools that this process has imported.
        let others = processes.iter().enumerate().filter(|(other, _)| *other != index);
        let pointers = others.flat_map(|(_, other)| {
            other.pooled.iter().filter_map(|(key, its)| {
                let exported = other.pools.get(&its.pool).copied().flatten()?;
                let (pool, _) = process.imported.iter().find(|(_, its)| **its == exported)?;
                Some((*pool, *key, its.handle?))
            })
        });
        let pointers: Vec<(u32, u32, HandleBytes)> = pointers.collect();
        let opened: Vec<u32> = process.opened_pooled.keys().copied().collect();
        let (pool, key) = (self.random.pick(&pools).copied(), self.random.pick(&pooled).copied());
        let (pointer, open) =
            (self.random.pick(&pointers).copied(), self.random.pick(&opened).copied());
        let descriptor = self.random.pick(&descriptors).copied();
        match (self.random.below(10), pool, key, descriptor, pointer, open) {
            (0, ..) if pools.len() < MOST_POOLS => Command::PoolCreate { pool: self.new_key() },
            (1 | 2, Some(pool), ..) => {
                let bytes = self.random.size(64 * MIB);
                Command::PoolAllocate { context, key: self.new_key(), bytes, pool }
            }
            (3, _, Some((key, _)), ..) => Command::PoolFree { context, key },
            (4, _, Some((key, true)), ..) => Command::PoolExportPointer { key },
            (5, Some(pool), ..) => Command::PoolExport { pool, exported: self.new_key() },
            (6, _, _, Some(exported), ..) => Command::PoolImport { pool: self.new_key(), exported },
            (7 | 8, _, _, _, Some((pool, key, handle)), _) => {
                Command::PoolImportPointer { pool, open: self.new_key(), key, handle }
            }
            (9, .., Some(open)) => Command::PoolClose { context, open },
            _ => Command::Synchronise { context },
        }
    }

    /// Draws commands for graphs that allocate.
    fn draw_graph(&mut self, index: usize, context: u32) -> Command {
        let graphs: Vec<u32> = self.model.processes[index].graphs.keys().copied().collect();
        let graph = self.random.pick(&graphs).copied();
        match (self.random.below(10), graph) {
            (0..=2, _) if graphs.len() < MOST_GRAPHS => {
                let sizes = [0; 2].map(|_: u64| self.random.size(self.model.limit / 6));
                Command::GraphCreate { context, graph: self.new_key(), sizes }
            }
            (3..=7, Some(graph)) => Command::GraphLaunch { graph },
            (8, Some(graph)) => Command::GraphDestroy { graph },
            (9, _) => Command::GraphTrim,
            _ => Command::Synchronise { context },
        }
    }

    /// Draws the location of physical memory: sometimes a locality domain, if the GPU has them.
    fn place(&mut self) -> Place {
        if !self.plan.is_of_two_domains() {
            return Place::Gpu;
        }
        match self.random.below(4) {
            0 => Place::Domain(0),
            1 => Place::Domain(1),
            _ => Place::Gpu,
        }
    }

    /// Returns the descriptors in transit of a kind.
    fn descriptors_of(&self, kind: Kind) -> Vec<u32> {
        self.descriptors
            .iter()
            .filter(|(_, (its, _))| *its == kind)
            .map(|(exported, _)| *exported)
            .collect()
    }

    fn new_key(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key
    }
}
