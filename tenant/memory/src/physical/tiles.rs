//! Physical memory in parts of arrays: tiles of sparse ones, all of deferred ones.
//!
//! Each tile is a reference to the memory that is mapped there, from before the driver is asked until the stream has come to what takes
//! its place, or the array is gone. A tile has a name that no other of its array has: level, layer and place, or the tail and the place in that.

use std::mem::ManuallyDrop;

use super::ordered::Ordered;
use super::{Handle, Physicals, RecordId};
use crate::allocations::Owner;
use crate::{ArrayId, Context, Reason, Tenant};

/// An array of which parts are mapped.
#[derive(Debug)]
pub(super) struct Tiled {
    array: u64,
    /// With whose end it goes.
    owner: Option<Owner>,
    /// Which destruction it is in, by its serial; 0: none. Another array may have its handle before that has returned.
    leaving: u64,
    tiles: Ordered<RecordId>,
}

/// A box of tiles: first and last in each direction, below a name for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// What tells this part of the array from others: a level and a layer; below 2^16.
    pub part: u64,
    /// The first tile, in each direction; below 2^16.
    pub from: [u64; 3],
    /// The first tile beyond.
    pub to: [u64; 3],
}

impl Tiles {
    /// The names of all of them.
    fn names(self) -> impl Iterator<Item = u64> {
        let Self { part, from, to } = self;
        let rows = (from[2]..to[2]).flat_map(move |z| (from[1]..to[1]).map(move |y| (z, y)));
        rows.flat_map(move |(z, y)| (from[0]..to[0]).map(move |x| part << 48 | z << 32 | y << 16 | x))
    }
}

impl Physicals {
    fn tiled(&mut self, array: ArrayId, owner: Option<Owner>) -> Option<&mut Tiled> {
        let array = array.address().0;
        match self.tiled.iter().position(|tiled| tiled.array == array && tiled.leaving == 0) {
            Some(place) => self.tiled.get_mut(place),
            None => {
                self.tiled.try_reserve(1).ok()?;
                self.tiled.push(Tiled { array, owner, leaving: 0, tiles: Ordered::new() });
                self.tiled.last_mut()
            }
        }
    }

    /// Puts memory into a tile, or takes it out; what was there before. A reference to what is put in has been added.
    fn tile(
        &mut self,
        array: ArrayId,
        owner: Option<Owner>,
        name: u64,
        record: Option<RecordId>,
    ) -> Option<RecordId> {
        let tiles = &mut self.tiled(array, owner)?.tiles;
        match record {
            // Without host memory for it the reference stays.
            Some(record) => tiles.insert(name, record).ok().flatten(),
            None => tiles.remove(name),
        }
    }

    /// Takes one reference off an array of that description which is gone.
    fn untile(&mut self, gone: impl Fn(&Tiled) -> bool) -> Option<RecordId> {
        loop {
            let place = self.tiled.iter().position(&gone)?;
            let tiles = &mut self.tiled.get_mut(place)?.tiles;
            if let Some((name, record)) = tiles.from(0) {
                tiles.remove(name);
                return Some(record);
            }
            self.tiled.swap_remove(place);
        }
    }
}

impl Tenant {
    /// Memory is about to be mapped into parts of an array: a reference for each, if it is on the books.
    pub fn tiling(&self, handle: Handle, tiles: Tiles) -> Option<Tiling<'_>> {
        let mut physicals = self.physicals.lock();
        let record = physicals.handles.get(handle.0)?.record;
        let count = tiles.names().count() as u64;
        let found = physicals.records.get(record)?;
        found.references = found.references.saturating_add(count);
        Some(Tiling { tenant: self, record, count })
    }

    /// The driver takes what is in parts of an array out, when the stream comes to it.
    pub fn untiling(&self, array: ArrayId, tiles: Tiles) -> Untiled<'_> {
        let mut untiled = Untiled { tenant: self, records: Vec::new() };
        tiles.names().for_each(|name| untiled.add(self.physicals.lock().tile(array, None, name, None)));
        untiled
    }

    /// An array is about to be destroyed. None: nothing was mapped into it.
    pub fn array_leaving(&self, array: ArrayId) -> Option<LeavingArray<'_>> {
        let mut physicals = self.physicals.lock();
        let array = array.address().0;
        let place = physicals.tiled.iter().position(|tiled| tiled.array == array && tiled.leaving == 0)?;
        let serial = physicals.serial();
        physicals.tiled.get_mut(place)?.leaving = serial;
        Some(LeavingArray { tenant: self, serial })
    }

    /// The driver destroyed a context, and the arrays in it.
    pub(crate) fn arrays_gone_with(&self, owner: Owner) {
        self.untile(|tiled| tiled.owner == Some(owner));
    }

    fn untile(&self, gone: impl Fn(&Tiled) -> bool) {
        loop {
            let mut physicals = self.physicals.lock();
            let Some(record) = physicals.untile(&gone) else { return };
            let fate = physicals.drop_references(record, 1);
            drop(physicals);
            self.wind_up_physical(fate);
        }
    }
}

/// An array that the driver is asked to destroy. Dropped: it stays.
#[derive(Debug)]
#[must_use = "a leaving array that is dropped stays"]
pub struct LeavingArray<'a> {
    tenant: &'a Tenant,
    serial: u64,
}

impl LeavingArray<'_> {
    /// The driver destroyed it: what was mapped into it is let go.
    pub fn gone(self) {
        self.tenant.untile(|tiled| tiled.leaving == self.serial);
    }
}

impl Drop for LeavingArray<'_> {
    fn drop(&mut self) {
        for tiled in
            self.tenant.physicals.lock().tiled.iter_mut().filter(|tiled| tiled.leaving == self.serial)
        {
            tiled.leaving = 0;
        }
    }
}

/// Memory that the driver is asked to map into tiles. Dropped: nothing has changed.
#[derive(Debug)]
#[must_use = "a tiling that is dropped has not happened"]
pub struct Tiling<'a> {
    tenant: &'a Tenant,
    record: RecordId,
    count: u64,
}

impl<'a> Tiling<'a> {
    /// The driver will have mapped it when the stream comes to it; what was there before goes then. The array is of that context.
    pub fn tiled(self, array: ArrayId, tiles: Tiles, context: Option<Context>) -> Untiled<'a> {
        let Self { tenant, record, .. } = *ManuallyDrop::new(self);
        let owner = context.map(Context::owner);
        let mut untiled = Untiled { tenant, records: Vec::new() };
        for name in tiles.names() {
            untiled.add(tenant.physicals.lock().tile(array, owner, name, Some(record)));
        }
        untiled
    }
}

impl Drop for Tiling<'_> {
    fn drop(&mut self) {
        let fate = self.tenant.physicals.lock().drop_references(self.record, self.count);
        self.tenant.wind_up_physical(fate);
    }
}

/// What was in tiles, until the stream has come to what took it out. Dropped without [`Untiled::gone`]: it stays charged.
#[derive(Debug)]
#[must_use = "what was in the tiles stays charged"]
pub struct Untiled<'a> {
    tenant: &'a Tenant,
    records: Vec<(RecordId, u64)>,
}

impl Untiled<'_> {
    fn add(&mut self, record: Option<RecordId>) {
        let Some(record) = record else { return };
        if let Some((_, count)) = self.records.last_mut().filter(|(last, _)| *last == record) {
            *count += 1;
        } else if self.records.try_reserve(1).is_ok() {
            self.records.push((record, 1));
        } else {
            self.tenant.count(Reason::Unrecorded);
        }
    }

    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The stream has come to it.
    pub fn gone(self) {
        for (record, count) in self.records {
            let fate = self.tenant.physicals.lock().drop_references(record, count);
            self.tenant.wind_up_physical(fate);
        }
    }
}
