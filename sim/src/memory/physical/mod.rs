//! Virtual memory management: physical memory behind handles, reserved addresses, and mappings.
//!
//! Physical memory exists as long as a handle or a mapping of it. Its bytes are in the process's
//! store or, if others may import it, in an export's file. A mapping puts them behind reserved
//! addresses. A handle can also be a team's, whose mappings show the memory bound to it ([`team`]).

mod mapping;
mod range;
mod team;

use std::collections::{BTreeMap, HashMap};

use cgpu_shm::units::Bytes;

use super::GRANULE;
use super::span::Span;
use crate::error::Error;
use crate::timeline::{ExportId, Site};

pub use team::Member;

/// A handle of physical memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysicalId(u64);

impl PhysicalId {
    /// Returns it as a number, which is never reused in the process.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Converts such a number back.
    #[must_use]
    pub const fn of(number: u64) -> Self {
        Self(number)
    }
}

/// Location of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalPlace {
    /// On a GPU, charged to the process.
    On(Site),
    /// On the host: uses no GPU memory.
    Host,
    /// Wherever the memory bound to a team is.
    Team,
}

/// A side that accesses a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// A GPU.
    Gpu(usize),
    /// The host.
    Host,
}

/// Access to a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// No access.
    #[default]
    None,
    /// Read only.
    Read,
    /// Read and write.
    ReadWrite,
}

/// How memory can be sent to other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sendable {
    /// By descriptors, which keep it.
    pub by_descriptor: bool,
    /// By numbers, which are valid while a process holds it.
    pub by_number: bool,
}

impl Sendable {
    /// Returns whether it can be sent at all.
    #[must_use]
    pub fn at_all(self) -> bool {
        self.by_descriptor || self.by_number
    }
}

impl From<bool> for Sendable {
    /// Converts: by descriptors, or not at all.
    fn from(by_descriptor: bool) -> Self {
        Self { by_descriptor, by_number: false }
    }
}

/// Properties of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalInfo {
    /// Its location.
    pub place: PhysicalPlace,
    /// Its size.
    pub size: Bytes,
    /// How it can be sent to other processes.
    pub sendable: Sendable,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Its first address.
    pub address: u64,
    /// Its size.
    pub size: Bytes,
    /// The memory that is mapped.
    pub physical: PhysicalId,
    /// The location of that memory.
    pub place: PhysicalPlace,
    /// How that memory can be sent to other processes.
    pub sendable: Sendable,
}

#[derive(Debug)]
struct Physical {
    info: PhysicalInfo,
    backing: Backing,
    handles: u64,
    mappings: u64,
}

#[derive(Clone, Copy, Debug)]
enum Backing {
    /// From this offset of the store on.
    Store(u64),
    /// In the file of an export, with its serial.
    Export(ExportId, u64),
    /// No bytes of its own: a team, which is an export, with its serial.
    Team(ExportId, u64),
}

#[derive(Clone, Debug)]
struct Mapping {
    size: u64,
    physical: PhysicalId,
    access: BTreeMap<Side, Access>,
}

/// Reserved addresses. A freed reservation is kept for the next request of its size: pending work
/// may still access its bytes.
#[derive(Debug)]
struct Reservation {
    span: Span,
    length: u64,
    live: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Physicals {
    made: u64,
    handles: HashMap<PhysicalId, Physical>,
    /// How many handles are teams'.
    teams: u64,
    /// By first address.
    reserved: BTreeMap<u64, Reservation>,
    /// By first address.
    mapped: BTreeMap<u64, Mapping>,
}

impl Physicals {
    fn reservation(&self, address: u64) -> Option<&Reservation> {
        let (_, reservation) = self.reserved.range(..=address).next_back()?;
        reservation.span.holds(address).then_some(reservation)
    }

    pub(super) fn span_of(&mut self, address: u64) -> Option<&mut Span> {
        let (_, reservation) = self.reserved.range_mut(..=address).next_back()?;
        reservation.span.holds(address).then_some(&mut reservation.span)
    }

    /// Returns whether an address is or was reserved.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.reservation(address).is_some()
    }

    fn at(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&first, mapping) = self.mapped.range(..=address).next_back()?;
        (address - first < mapping.size).then_some((first, mapping))
    }

    pub(crate) fn mapped(&self, address: u64) -> Option<MappedRange> {
        let (first, mapping) = self.at(address)?;
        let info = self.info(mapping.physical)?;
        Some(MappedRange {
            address: first,
            size: Bytes(mapping.size),
            physical: mapping.physical,
            place: info.place,
            sendable: info.sendable,
        })
    }

    /// Returns the reservation that contains an address: start and size.
    pub(crate) fn reserved(&self, address: u64) -> Option<(u64, Bytes)> {
        self.reservation(address)
            .filter(|its| its.live)
            .map(|its| (its.span.range().0, Bytes(its.length)))
    }

    /// Returns whether a GPU may access all of a range.
    pub(super) fn is_accessible(&self, address: u64, length: u64, writes: bool) -> bool {
        let Some(end) = address.checked_add(length.max(1)) else { return false };
        let mut at = address;
        while at < end {
            let Some((first, mapping)) = self.at(at) else { return false };
            let reached = mapping.access.iter().any(|(side, &access)| match access {
                Access::None => false,
                Access::Read => !writes && matches!(side, Side::Gpu(_)),
                Access::ReadWrite => matches!(side, Side::Gpu(_)),
            });
            if !reached {
                return false;
            }
            at = first + mapping.size;
        }
        true
    }

    /// Returns the access of a side to the mapping at an address.
    pub(crate) fn access(&self, address: u64, side: Side) -> Result<Access, Error> {
        let (_, mapping) = self.at(address).ok_or(Error::NoAllocation)?;
        Ok(mapping.access.get(&side).copied().unwrap_or_default())
    }

    pub(crate) fn info(&self, id: PhysicalId) -> Option<PhysicalInfo> {
        self.handles.get(&id).map(|physical| physical.info)
    }

    /// Returns the properties of a live handle: not of one that only mappings keep.
    pub(crate) fn held(&self, id: PhysicalId) -> Result<PhysicalInfo, Error> {
        let held = self.handles.get(&id).filter(|physical| physical.handles > 0);
        held.map(|physical| physical.info).ok_or(Error::NoAllocation)
    }

    /// Returns the export behind a handle that can be sent in that way, with its serial.
    pub(crate) fn export(
        &self,
        id: PhysicalId,
        allows: fn(Sendable) -> bool,
    ) -> Result<(ExportId, u64), Error> {
        self.held(id)?;
        match self.handles[&id].backing {
            Backing::Export(export, serial) | Backing::Team(export, serial)
                if allows(self.handles[&id].info.sendable) =>
            {
                Ok((export, serial))
            }
            _ => Err(Error::NotShareable),
        }
    }

    /// Adds a reference to the memory, as a mapping does.
    pub(crate) fn keep(&mut self, id: PhysicalId) -> Result<(), Error> {
        self.held(id)?;
        self.handles.get_mut(&id).ok_or(Error::NoAllocation)?.mappings += 1;
        Ok(())
    }

    /// Returns one more handle for the memory mapped at an address.
    pub(crate) fn retain(&mut self, address: u64) -> Result<PhysicalId, Error> {
        let id = self.at(address).ok_or(Error::NoAllocation)?.1.physical;
        self.handles.get_mut(&id).ok_or(Error::NoAllocation)?.handles += 1;
        Ok(id)
    }

    fn add(&mut self, info: PhysicalInfo, backing: Backing) -> PhysicalId {
        self.made += 1;
        let id = PhysicalId(self.made);
        self.teams += u64::from(info.place == PhysicalPlace::Team);
        self.handles.insert(id, Physical { info, backing, handles: 1, mappings: 0 });
        id
    }

    /// Creates a handle for an export that is held for it.
    pub(crate) fn import(
        &mut self,
        (export, serial): (ExportId, u64),
        site: Site,
        size: Bytes,
        sendable: Sendable,
    ) -> PhysicalId {
        let info = PhysicalInfo { place: PhysicalPlace::On(site), size, sendable };
        self.add(info, Backing::Export(export, serial))
    }

    fn mappings_of(&self, id: PhysicalId) -> impl Iterator<Item = (u64, u64)> {
        let its = self.mapped.iter().filter(move |(_, mapping)| mapping.physical == id);
        its.map(|(&first, mapping)| (first, mapping.size))
    }

    fn is_mapped(&self, first: u64, end: u64) -> bool {
        let before = self.mapped.range(..end).next_back();
        before.is_some_and(|(&start, mapping)| start + mapping.size > first)
    }

    /// Returns the first addresses of the mappings that fill a range exactly.
    fn covering(&self, first: u64, size: Bytes) -> Result<Vec<u64>, Error> {
        let end = first.checked_add(size.0).ok_or(NOT_MAPPED)?;
        let mut next = first;
        let mut found = Vec::new();
        for (&start, mapping) in self.mapped.range(first..end) {
            if start != next {
                return Err(NOT_MAPPED);
            }
            next = start + mapping.size;
            found.push(start);
        }
        if next == end && size.0 > 0 { Ok(found) } else { Err(NOT_MAPPED) }
    }

    /// Reserves addresses: at `wanted` if free, else anywhere.
    pub(crate) fn reserve(&mut self, size: Bytes, align: u64, wanted: u64) -> Result<u64, Error> {
        let align = align.max(GRANULE);
        if size.0 == 0 || !size.0.is_multiple_of(GRANULE) || !align.is_power_of_two() {
            return Err(Error::Invalid("size or alignment is not valid for a reservation"));
        }
        // Larger than the address space.
        if size.0 >= 1 << 47 || align >= 1 << 46 {
            return Err(Error::OutOfMemory);
        }
        let again =
            self.reserved.iter_mut().map(|(&first, its)| (first, its)).find(|(first, its)| {
                !its.live
                    && its.length == size.0
                    && first.is_multiple_of(align)
                    && (wanted == 0 || wanted == *first)
            });
        if let Some((first, again)) = again {
            again.live = true;
            return Ok(first);
        }
        let wanted = if wanted.is_multiple_of(align) { wanted } else { 0 };
        let span = Span::new(size.0, align, wanted).map_err(|_| Error::OutOfMemory)?;
        let (first, length) = span.range();
        self.reserved.insert(first, Reservation { span, length, live: true });
        Ok(first)
    }

    /// Frees a whole reservation in which nothing is mapped.
    pub(crate) fn unreserve(&mut self, address: u64, size: Bytes) -> Result<(), Error> {
        let mapped = self.is_mapped(address, address.checked_add(size.0).ok_or(NOT_MAPPED)?);
        let reservation = self
            .reserved
            .get_mut(&address)
            .filter(|its| its.live && its.length == size.0 && !mapped);
        reservation
            .ok_or(Error::Invalid("not a reservation, or something is mapped there"))?
            .live = false;
        Ok(())
    }

    /// Drops a handle's or a mapping's reference. Returns the memory if that was the last.
    fn drop_one(
        &mut self,
        id: PhysicalId,
        of: fn(&mut Physical) -> &mut u64,
    ) -> Result<Option<Physical>, Error> {
        let physical = self.handles.get_mut(&id).ok_or(Error::NoAllocation)?;
        let count = of(physical);
        *count = count.checked_sub(1).ok_or(Error::NoAllocation)?;
        let over = physical.handles == 0 && physical.mappings == 0;
        if !over {
            return Ok(None);
        }
        self.teams -= u64::from(physical.info.place == PhysicalPlace::Team);
        Ok(self.handles.remove(&id))
    }
}

const NOT_MAPPED: Error = Error::Invalid("not a range of whole mappings");
