//! Memory held by other things than handles and mappings: multicast objects, endpoints, tiles of
//! sparse arrays, other interfaces.

use super::Run;
use crate::command::{Command, TILE, TILES};
use crate::model::{MIB, Object, Physical};
use crate::run::Kind;

/// Maximum number of objects of a process.
const MOST_OBJECTS: usize = 4;
/// Maximum number of sparse arrays of a process.
const MOST_SPARSE: usize = 3;
/// Maximum number of allocations of other interfaces in a process. No limit applies to them.
const MOST_FOREIGN: usize = 4;
/// Size of a binding.
const BINDING: u64 = 2 * MIB;
/// Number of bindings that an object has room for: enough that no two bindings of a run overlap.
const PLACES: u32 = 1 << 15;

impl Run<'_> {
    /// Draws commands for multicast objects and endpoints.
    pub(super) fn draw_bound(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let objects: Vec<u32> = process.objects.keys().copied().collect();
        let object = self.random.pick(&objects).copied();
        let about: Object =
            object.and_then(|object| process.objects.get(&object)).cloned().unwrap_or_default();
        let fits = |its: &Physical| its.bytes > 0 && (its.shared || !about.shared) && !its.tiles;
        let handles: Vec<u32> =
            self.handles_with(index, |its| (its.charged > 0 || its.imported) && fits(its));
        let handle = self.random.pick(&handles).copied();
        let bound: Vec<u64> = about.bound.keys().copied().collect();
        let bound = self.random.pick(&bound).copied();
        let descriptors = self.descriptors_of(Kind::Object);
        let descriptor = self.random.pick(&descriptors).copied();
        match (self.random.below(12), object, handle, bound, descriptor) {
            (0 | 1, ..) if objects.len() < MOST_OBJECTS => {
                let endpoint = self.random.once_in(2);
                let shared = !endpoint && self.random.once_in(2);
                let bytes = u64::from(PLACES) * BINDING;
                Command::ObjectCreate { object: self.new_key(), bytes, endpoint, shared }
            }
            (2..=5, Some(object), Some(key), ..) => {
                let offset = u64::from(self.new_key() % PLACES) * BINDING;
                Command::ObjectBind { object, offset, key, bytes: BINDING }
            }
            (6, Some(object), _, Some(offset), _) => {
                Command::ObjectUnbind { object, offset, bytes: BINDING }
            }
            (7, Some(object), ..) => Command::ObjectEnd { object },
            (8, Some(object), ..) if about.shared => {
                Command::ObjectExport { object, exported: self.new_key() }
            }
            (9, .., Some(exported)) if objects.len() < MOST_OBJECTS => {
                Command::ObjectImport { object: self.new_key(), exported }
            }
            _ => self.draw_other(index, context),
        }
    }

    /// Draws commands for sparse arrays.
    pub(super) fn draw_sparse(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let arrays: Vec<u32> = process.sparse.keys().copied().collect();
        let tiled: Vec<(u32, u32)> = process.tiles.keys().copied().collect();
        let of = |array: u32| process.sparse.get(&array).copied().unwrap_or_default();
        let array = self.random.pick(&arrays).copied().map(|array| (array, of(array)));
        let tiled = self.random.pick(&tiled).copied().map(|(array, tile)| (array, tile, of(array)));
        let handles = self.handles_with(index, |its| its.tiles);
        let handle = self.random.pick(&handles).copied();
        match (self.random.below(10), array, handle, tiled) {
            (0, ..) if arrays.len() < MOST_SPARSE => {
                Command::SparseCreate { context, key: self.new_key() }
            }
            (1, Some((key, context)), ..) => Command::ArrayDestroy { context, key },
            (2..=5, Some((array, context)), Some(key), _) => {
                let tile = u32::try_from(self.random.below(TILES.into())).unwrap_or_default();
                let at = self.random.below(2 * MIB / TILE) * TILE;
                Command::TileMap { context, array, tile, key: Some(key), at }
            }
            (6, _, _, Some((array, tile, context))) => {
                Command::TileMap { context, array, tile, key: None, at: 0 }
            }
            (7 | 8, _, Some(key), _) => Command::PhysicalRelease { key },
            _ => {
                let (key, bytes) = (self.new_key(), (self.random.below(16) + 1) * 2 * MIB);
                let place = self.place();
                Command::PhysicalCreate { context, key, bytes, place, shared: false, tiles: true }
            }
        }
    }

    /// Draws commands for memory of other interfaces.
    pub(super) fn draw_external(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let foreign: Vec<u32> = process.foreign.keys().copied().collect();
        let externals: Vec<(u32, u32)> =
            process.externals.iter().map(|(key, (_, name))| (*key, *name)).collect();
        let buffers: Vec<u32> = process.buffers.keys().copied().collect();
        let descriptors = self.descriptors_of(Kind::Foreign);
        let bytes_of = |name: u32| self.model.foreign.get(&name).copied().unwrap_or_default();
        let key = self.random.pick(&foreign).copied();
        let external =
            self.random.pick(&externals).copied().map(|(key, name)| (key, bytes_of(name)));
        let buffer = self.random.pick(&buffers).copied();
        let descriptor = self.random.pick(&descriptors).copied().map(|name| (name, bytes_of(name)));
        match (self.random.below(10), key, descriptor, external, buffer) {
            (0 | 1, ..) if foreign.len() < MOST_FOREIGN => {
                let bytes = (self.random.below(16) + 1) * 2 * MIB;
                Command::ForeignAllocate { key: self.new_key(), bytes }
            }
            (2, Some(key), ..) => Command::ForeignFree { key },
            (3, Some(key), ..) => Command::ForeignExport { key },
            (4 | 5, _, Some((key, bytes)), ..) => {
                Command::ExternalImport { context, external: self.new_key(), key, bytes }
            }
            (6 | 7, _, _, Some((external, bytes)), _) => {
                Command::ExternalMap { external, buffer: self.new_key(), bytes }
            }
            (8, .., Some(buffer)) => Command::ExternalFree { buffer },
            (9, _, _, Some((external, _)), _) => Command::ExternalEnd { external },
            _ => Command::MemoryInfo { context },
        }
    }

    /// Returns the handles whose memory satisfies `of`.
    pub(super) fn handles_with(&self, index: usize, of: impl Fn(&Physical) -> bool) -> Vec<u32> {
        let process = &self.model.processes[index];
        let its = process
            .handles
            .iter()
            .filter(|(_, first)| process.physical.get(first).is_some_and(&of));
        its.map(|(key, _)| *key).collect()
    }
}
