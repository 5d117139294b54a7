//! Physical memory in parts of arrays: tiles of sparse ones, all of deferred ones.
//!
//! Each tile is a reference to the memory that is mapped there, from before the driver is asked
//! until the stream has come to what takes its place, or the array is gone. A tile has a name that
//! no other of its array has: level, layer and place, or the tail and the place in that.

use std::mem::ManuallyDrop;

use cgpu_shm::reason::Reason;

use super::Physical;
use super::table::{RecordId, Tiled, Tiles};
use crate::allocations::table::Owner;
use crate::contexts::table::Context;
use crate::handles::{ArrayId, PhysicalHandle};
use crate::tables::Tables;

impl<'a> Physical<'a> {
    /// Memory is about to be mapped into parts of an array: a reference for each, if it is
    /// accounted.
    pub fn begin_tile_map(
        self,
        handle: PhysicalHandle,
        tiles: Tiles,
    ) -> Option<PendingTileMap<'a>> {
        let count = tiles.names().count() as u64;
        let record = self.tables.physical.lock().refer_times(handle, count)?;
        Some(PendingTileMap { tables: self.tables, record, count })
    }

    /// The driver takes what is in parts of an array out, when the stream comes to it.
    pub fn unmap_tiles(self, array: ArrayId, tiles: Tiles) -> ReplacedTiles<'a> {
        let mut untiled = ReplacedTiles { tables: self.tables, records: Vec::new() };
        tiles.names().for_each(|name| {
            untiled.add(self.tables.physical.lock().tile(array, None, name, None))
        });
        untiled
    }

    /// An array is about to be destroyed. None: nothing was mapped into it.
    pub fn begin_array_destroy(self, array: ArrayId) -> Option<PendingArrayDestroy<'a>> {
        let serial = self.tables.physical.lock().leave_array(array)?;
        Some(PendingArrayDestroy { tables: self.tables, serial })
    }

    /// The driver destroyed a context, and the arrays in it.
    pub(crate) fn arrays_gone_with(self, owner: Owner) {
        self.untile(|tiled| tiled.owner == Some(owner));
    }

    fn untile(self, gone: impl Fn(&Tiled) -> bool) {
        loop {
            let mut table = self.tables.physical.lock();
            let Some(record) = table.untile(&gone) else { return };
            let outcome = table.drop_references(record, 1);
            drop(table);
            self.apply(outcome);
        }
    }
}

/// An array that the driver is asked to destroy. Dropped: it stays.
#[derive(Debug)]
#[must_use = "a leaving array that is dropped stays"]
pub struct PendingArrayDestroy<'a> {
    tables: &'a Tables,
    serial: u64,
}

impl PendingArrayDestroy<'_> {
    /// The driver destroyed it: what was mapped into it is let go.
    pub fn destroyed(self) {
        Physical::new(self.tables).untile(|tiled| tiled.leaving == self.serial);
    }
}

impl Drop for PendingArrayDestroy<'_> {
    fn drop(&mut self) {
        self.tables.physical.lock().keep_array(self.serial);
    }
}

/// Memory that the driver is asked to map into tiles. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "a tiling that is dropped has not happened"]
pub struct PendingTileMap<'a> {
    tables: &'a Tables,
    record: RecordId,
    count: u64,
}

impl<'a> PendingTileMap<'a> {
    /// The driver will have mapped it when the stream comes to it; what was there before goes then.
    /// The array is of that context.
    pub fn tiled(
        self,
        array: ArrayId,
        tiles: Tiles,
        context: Option<Context>,
    ) -> ReplacedTiles<'a> {
        let Self { tables, record, .. } = *ManuallyDrop::new(self);
        let owner = context.map(Context::owner);
        let mut untiled = ReplacedTiles { tables, records: Vec::new() };
        for name in tiles.names() {
            untiled.add(tables.physical.lock().tile(array, owner, name, Some(record)));
        }
        untiled
    }
}

impl Drop for PendingTileMap<'_> {
    fn drop(&mut self) {
        let outcome = self.tables.physical.lock().drop_references(self.record, self.count);
        Physical::new(self.tables).apply(outcome);
    }
}

/// What was in tiles, until the stream has come to what took it out. Dropped without
/// [`ReplacedTiles::unmapped`]: it stays charged.
#[derive(Debug)]
#[must_use = "what was in the tiles stays charged"]
pub struct ReplacedTiles<'a> {
    tables: &'a Tables,
    records: Vec<(RecordId, u64)>,
}

impl ReplacedTiles<'_> {
    fn add(&mut self, record: Option<RecordId>) {
        let Some(record) = record else { return };
        if let Some((_, count)) = self.records.last_mut().filter(|(last, _)| *last == record) {
            *count += 1;
        } else if self.records.try_reserve(1).is_ok() {
            self.records.push((record, 1));
        } else {
            self.tables.ledger.count(Reason::Unrecorded);
        }
    }

    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The stream has come to it.
    pub fn unmapped(self) {
        for (record, count) in self.records {
            let outcome = self.tables.physical.lock().drop_references(record, count);
            Physical::new(self.tables).apply(outcome);
        }
    }
}
