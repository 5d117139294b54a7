//! Which memory is mapped into which tiles of arrays.

use super::{PhysicalTable, RecordId};
use crate::allocations::table::Owner;
use crate::handles::{ArrayId, PhysicalHandle};
use crate::ordered::Ordered;

#[derive(Debug)]
pub(in crate::physical) struct Tiled {
    array: u64,
    /// The context with which it ends.
    pub(in crate::physical) owner: Option<Owner>,
    /// Number of the destruction that is in progress; 0: none. The handle may be reused before that
    /// has returned.
    pub(in crate::physical) leaving: u64,
    tiles: Ordered<RecordId>,
}

/// A box of tiles in one part of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Identifies the level and layer; below 2^16.
    pub part: u64,
    /// The first tile, in each dimension; below 2^16.
    pub from: [u64; 3],
    /// The tile after the last one, in each dimension.
    pub to: [u64; 3],
}

impl Tiles {
    pub(in crate::physical) fn names(self) -> impl Iterator<Item = u64> {
        let Self { part, from, to } = self;
        let rows = (from[2]..to[2]).flat_map(move |z| (from[1]..to[1]).map(move |y| (z, y)));
        rows.flat_map(move |(z, y)| {
            (from[0]..to[0]).map(move |x| part << 48 | z << 32 | y << 16 | x)
        })
    }
}

impl PhysicalTable {
    fn tiled(&mut self, array: ArrayId, owner: Option<Owner>) -> Option<&mut Tiled> {
        let array = array.address().0;
        match self.tiled.iter().position(|tiled| tiled.array == array && tiled.leaving == 0) {
            Some(index) => self.tiled.get_mut(index),
            None => {
                self.tiled.try_reserve(1).ok()?;
                self.tiled.push(Tiled { array, owner, leaving: 0, tiles: Ordered::new() });
                self.tiled.last_mut()
            }
        }
    }

    /// Adds `count` references to the memory behind a handle.
    pub(in crate::physical) fn refer_times(
        &mut self,
        handle: PhysicalHandle,
        count: u64,
    ) -> Option<RecordId> {
        let record = self.handles.get(handle.0)?.record;
        let found = self.records.get(record)?;
        found.references = found.references.saturating_add(count);
        Some(record)
    }

    /// Notes that the destruction of an array goes to the driver. Returns its number.
    pub(in crate::physical) fn leave_array(&mut self, array: ArrayId) -> Option<u64> {
        let array = array.address().0;
        let index =
            self.tiled.iter().position(|tiled| tiled.array == array && tiled.leaving == 0)?;
        let serial = self.serial();
        self.tiled.get_mut(index)?.leaving = serial;
        Some(serial)
    }

    pub(in crate::physical) fn keep_array(&mut self, serial: u64) {
        for tiled in self.tiled.iter_mut().filter(|tiled| tiled.leaving == serial) {
            tiled.leaving = 0;
        }
    }

    /// Replaces what is mapped into a tile; returns what was there. The reference for the new
    /// record has been added.
    pub(in crate::physical) fn tile(
        &mut self,
        array: ArrayId,
        owner: Option<Owner>,
        name: u64,
        record: Option<RecordId>,
    ) -> Option<RecordId> {
        let tiles = &mut self.tiled(array, owner)?.tiles;
        match record {
            // Without host memory for it, the reference stays.
            Some(record) => tiles.insert(name, record).ok().flatten(),
            None => tiles.remove(name),
        }
    }

    /// Removes and returns one reference of the arrays for which `gone` returns `true`.
    pub(in crate::physical) fn untile(
        &mut self,
        gone: impl Fn(&Tiled) -> bool,
    ) -> Option<RecordId> {
        loop {
            let index = self.tiled.iter().position(&gone)?;
            let tiles = &mut self.tiled.get_mut(index)?.tiles;
            if let Some((name, record)) = tiles.from(0) {
                tiles.remove(name);
                return Some(record);
            }
            self.tiled.swap_remove(index);
        }
    }
}
