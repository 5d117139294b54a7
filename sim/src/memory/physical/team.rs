//! Teams of GPUs in this process: handles, mappings, and accesses through a mapping.
//!
//! The memory behind a team's mapping is in several places, so the mapping has bytes of its own.
//! They are filled before a read, from the memory of the first GPU that has some bound there, and
//! copied to all bound memory after a write. Where nothing is bound, writes are lost and reads
//! return zeros.

use std::os::unix::fs::FileExt;

use cgpu_shm::units::Bytes;

use super::{Backing, PhysicalId, PhysicalInfo, PhysicalPlace, Physicals, Sendable};
use crate::error::Error;
use crate::memory::span::{Source, Span};
use crate::memory::{Accounting, GRANULE, Memory, Origin, system};
use crate::timeline::{Bindable, ExportId};
use crate::words::index;

/// Memory to bind to a team.
#[derive(Clone, Copy, Debug)]
pub enum Member {
    /// Behind a handle, from this offset on.
    Handle(PhysicalId, u64),
    /// At an address: mapped there, or from a pool.
    Address(u64),
}

/// A part of a range that is mapped to a team.
struct Part {
    team: ExportId,
    /// Offset in the team's room.
    offset: u64,
    address: u64,
    length: u64,
}

impl Physicals {
    /// Creates a handle for a team that is held for it.
    pub(crate) fn add_team(
        &mut self,
        (team, serial): (ExportId, u64),
        room: Bytes,
        sendable: Sendable,
    ) -> PhysicalId {
        let info = PhysicalInfo { place: PhysicalPlace::Team, size: room, sendable };
        self.add(info, Backing::Team(team, serial))
    }

    pub(crate) fn team(&self, id: PhysicalId) -> Result<ExportId, Error> {
        self.held(id)?;
        match self.handles[&id].backing {
            Backing::Team(team, _) => Ok(team),
            _ => Err(Error::NoAllocation),
        }
    }

    fn team_at(&self, address: u64) -> Option<ExportId> {
        let physical = self.at(address)?.1.physical;
        match self.handles.get(&physical)?.backing {
            Backing::Team(team, _) => Some(team),
            _ => None,
        }
    }

    fn team_parts(&self, address: u64, length: u64) -> Vec<Part> {
        let end = address + length;
        let mut parts = Vec::new();
        let mut at = address;
        while at < end {
            let Some((first, mapping)) = self.at(at) else { break };
            let next = end.min(first + mapping.size);
            if let Some(team) = self.team_at(at) {
                parts.push(Part { team, offset: at - first, address: at, length: next - at });
            }
            at = next;
        }
        parts
    }
}

impl Memory {
    /// Returns the parts of a range that are mapped to teams. Every copy calls it, so it first
    /// checks whether there are teams.
    fn team_parts(&self, address: u64, length: u64) -> Vec<Part> {
        if length == 0 || self.physicals.teams == 0 {
            return Vec::new();
        }
        self.physicals.team_parts(address, length)
    }

    fn window(&mut self, part: &Part) -> Result<&mut [u8], Error> {
        let bytes = self.bytes(part.address, part.length, true)?;
        // SAFETY: within one mapping of reserved addresses. Its bytes are only accessed through
        // this `Memory`, which is borrowed mutably; they stay mapped as long as it exists.
        Ok(unsafe { core::slice::from_raw_parts_mut(bytes, index(part.length)) })
    }

    /// Prepares a read of a range: fills parts mapped to teams from the first GPU's memory.
    pub(crate) fn gather(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        length: u64,
    ) -> Result<(), Error> {
        for part in self.team_parts(address, length) {
            let mut bound = accounting.bound(part.team)?;
            bound.sort_by_key(|(bound, _)| core::cmp::Reverse(bound.gpu));
            let window = self.window(&part)?;
            window.fill(0);
            for (bound, file) in bound {
                let Some((skip, at, length)) = part.overlap(bound.offset, bound.size) else {
                    continue;
                };
                let place = &mut window[index(skip)..index(skip + length)];
                file.read_exact_at(place, bound.at + at)
                    .map_err(system("cannot access the memory of a team"))?;
            }
        }
        Ok(())
    }

    /// Completes a write of a range: copies parts mapped to teams to the memory of all GPUs.
    pub(crate) fn spread(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        length: u64,
    ) -> Result<(), Error> {
        for part in self.team_parts(address, length) {
            let bound = accounting.bound(part.team)?;
            let window = self.window(&part)?;
            for (bound, file) in bound {
                let Some((skip, at, length)) = part.overlap(bound.offset, bound.size) else {
                    continue;
                };
                let bytes = &window[index(skip)..index(skip + length)];
                file.write_all_at(bytes, bound.at + at)
                    .map_err(system("cannot access the memory of a team"))?;
            }
        }
        Ok(())
    }

    /// Returns a GPU's memory for binding to a team: its export, and whether it may be sent to
    /// others. Memory of this process alone becomes an export.
    pub(crate) fn bindable(
        &mut self,
        accounting: &impl Accounting,
        member: Member,
        size: Bytes,
    ) -> Result<(Bindable, bool), Error> {
        let (id, at) = match member {
            Member::Handle(id, at) => {
                self.physicals.held(id)?;
                (id, at)
            }
            Member::Address(address) => match self.physicals.at(address) {
                Some((first, mapping)) if size.0 <= mapping.size - (address - first) => {
                    (mapping.physical, address - first)
                }
                Some(_) => return Err(Error::Invalid("more than is mapped there")),
                None => return self.bindable_piece(accounting, address, size),
            },
        };
        let shareable = self.physicals.info(id).ok_or(Error::NoAllocation)?.sendable.at_all();
        let (export, serial) = self.share(accounting, id)?;
        Ok((Bindable { export, serial, at }, shareable))
    }

    /// Does the same for memory of a pool.
    fn bindable_piece(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        size: Bytes,
    ) -> Result<(Bindable, bool), Error> {
        let found = self.find(address).ok_or(Error::NoAllocation)?;
        let Origin::Pool(pool) = found.origin else { return Err(Error::NoAllocation) };
        if size.0 > found.size.0 - (address - found.address) {
            return Err(Error::Invalid("more than was allocated there"));
        }
        let (start, (export, serial)) = self.share_chunk(accounting, pool, address)?;
        let shareable = self.pools.settings(pool)?.shareable;
        Ok((Bindable { export, serial, at: address - start }, shareable))
    }

    /// Returns the export behind a handle. Memory in this process's store moves to one, with its
    /// mappings; it still cannot be sent.
    pub(super) fn share(
        &mut self,
        accounting: &impl Accounting,
        id: PhysicalId,
    ) -> Result<(ExportId, u64), Error> {
        let physical = self.physicals.handles.get(&id).ok_or(Error::NoAllocation)?;
        let (size, PhysicalPlace::On(site)) = (physical.info.size, physical.info.place) else {
            return Err(Error::Invalid("only memory of a GPU can be bound"));
        };
        let offset = match physical.backing {
            Backing::Export(export, serial) => return Ok((export, serial)),
            Backing::Team(..) => return Err(Error::NoAllocation),
            Backing::Store(offset) => offset,
        };
        let store = self.store.as_mut().ok_or(Error::NoAllocation)?;
        let exported = accounting.export_own(site, size)?;
        let mut moved = Ok(());
        for at in (0..size.0).step_by(index(GRANULE)) {
            let granule = store.granule(offset + at);
            if granule.iter().any(|&byte| byte != 0) {
                moved = moved.and_then(|()| exported.file.write_all_at(granule, at));
            }
        }
        let mappings: Vec<(u64, u64)> = self.physicals.mappings_of(id).collect();
        for &(first, size) in &mappings {
            let span = self.physicals.span_of(first);
            moved = moved.and_then(|()| {
                span.map_or(Ok(()), |span: &mut Span| {
                    span.alias(first, size, Source::File(&exported.file))
                })
            });
        }
        if let Err(error) = moved {
            // Return the memory to the store and the process.
            for (first, size) in mappings {
                if let Some(span) = self.physicals.span_of(first) {
                    // If this fails, too, the range keeps its bytes.
                    let _ = span.alias(first, size, Source::Store(store, offset));
                }
            }
            accounting.drop_hold(exported.export)?;
            accounting.take(site, size)?;
            return Err(system("cannot access the memory of a team")(error));
        }
        store.give(offset, size.0);
        if let Some(physical) = self.physicals.handles.get_mut(&id) {
            physical.backing = Backing::Export(exported.export, exported.serial);
        }
        Ok((exported.export, exported.serial))
    }
}

impl Part {
    /// Intersects the part with memory bound to `size` bytes from `offset` on: returns the offset
    /// in the part, the offset in the memory, and the length.
    fn overlap(&self, offset: u64, size: u64) -> Option<(u64, u64, u64)> {
        let start = self.offset.max(offset);
        let end = (self.offset + self.length).min(offset + size);
        (start < end).then(|| (start - self.offset, start - offset, end - start))
    }
}
