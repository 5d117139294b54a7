//! Physical memory in parts of arrays: tiles of sparse ones, all of deferred ones.
//!
//! Each tile has a reference to the memory that is mapped there, from before the driver call until
//! the stream has executed the call that replaces it, or the array is destroyed. Within its array,
//! a tile has a unique name: level, layer and coordinates, or the mip tail and an offset in it.

use std::mem::ManuallyDrop;

use cgpu_shm::reason::Reason;

use super::Physical;
use super::table::{RecordId, Tiled, Tiles};
use crate::allocations::table::Owner;
use crate::contexts::table::Context;
use crate::handles::{ArrayId, PhysicalHandle};
use crate::ledger::Call;
use crate::tables::Tables;

impl<'a> Physical<'a> {
    /// Begins to map memory into parts of an array: adds a reference for each, if it is accounted.
    pub fn begin_tile_map(
        self,
        handle: PhysicalHandle,
        tiles: Tiles,
    ) -> Option<PendingTileMap<'a>> {
        let count = tiles.names().count() as u64;
        let record = self.tables.physical.lock().refer_times(handle, count)?;
        Some(PendingTileMap { tables: self.tables, record, count })
    }

    /// Removes what is mapped in parts of an array; the driver does so when the stream executes the
    /// call.
    pub fn unmap_tiles(self, array: ArrayId, tiles: Tiles) -> ReplacedTiles<'a> {
        let mut untiled = ReplacedTiles { tables: self.tables, records: Vec::new() };
        tiles.names().for_each(|name| {
            untiled.add(self.tables.physical.lock().tile(array, None, name, None))
        });
        untiled
    }

    /// Begins to destroy an array. `None` if nothing was mapped into it.
    pub fn begin_array_destroy(self, array: ArrayId) -> Option<PendingArrayDestroy<'a>> {
        let serial = self.tables.physical.lock().leave_array(array)?;
        Some(PendingArrayDestroy { tables: self.tables, serial, _call: self.tables.ledger.call() })
    }

    /// Drops the references of arrays that were destroyed with their context.
    pub(crate) fn arrays_gone_with(self, owner: Owner) {
        self.untile(|tiled| tiled.owner == Some(owner));
    }

    fn untile(self, gone: impl Fn(&Tiled) -> bool) {
        self.update_all(|table| {
            let record = table.untile(&gone)?;
            Some(table.drop_references(record, 1))
        });
    }
}

/// An array that the driver is about to destroy. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "a leaving array that is dropped stays"]
pub struct PendingArrayDestroy<'a> {
    tables: &'a Tables,
    serial: u64,
    _call: Call<'a>,
}

impl PendingArrayDestroy<'_> {
    /// Drops the references of what was mapped into it.
    pub fn destroyed(self) {
        Physical::new(self.tables).untile(|tiled| tiled.leaving == self.serial);
    }
}

impl Drop for PendingArrayDestroy<'_> {
    fn drop(&mut self) {
        self.tables.physical.lock().keep_array(self.serial);
    }
}

/// Memory that the driver is about to map into tiles. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "a tiling that is dropped has not happened"]
pub struct PendingTileMap<'a> {
    tables: &'a Tables,
    record: RecordId,
    count: u64,
}

impl<'a> PendingTileMap<'a> {
    /// Records the mapping into an array of this context. Returns what was there before, which
    /// stays charged until the stream executes the call.
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
        let physical = Physical::new(self.tables);
        physical.update(|table| table.drop_references(self.record, self.count));
    }
}

/// What tiles contained until the stream executes the call that replaced it. Stays charged if it is
/// dropped without [`ReplacedTiles::unmapped`].
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

    /// Returns whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Drops the references: the stream has executed the call.
    pub fn unmapped(self) {
        for (record, count) in self.records {
            Physical::new(self.tables).update(|table| table.drop_references(record, count));
        }
    }
}
