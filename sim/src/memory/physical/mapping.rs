//! Creation, mapping and end of physical memory: in this process's tables, its bytes and the GPU's
//! accounting.

use std::collections::BTreeMap;
use std::fs::File;

use cgpu_shm::units::Bytes;

use super::{
    Access, Backing, Mapping, NOT_MAPPED, Physical, PhysicalId, PhysicalInfo, PhysicalPlace,
    Physicals, Sendable, Side,
};
use crate::error::Error;
use crate::memory::span::Source;
use crate::memory::store::Store;
use crate::memory::{Accounting, Exported, Files, GRANULE, Memory, system};

/// Maximum host memory behind handles.
const HOST: Bytes = Bytes::from_mib(1 << 20);

enum MappedBytes<'a> {
    Store(&'a Store, u64),
    File(File),
}

impl<'a> MappedBytes<'a> {
    /// `None` for a team: its bytes are in several places.
    fn find(
        store: Option<&'a Store>,
        files: &Files,
        backing: Backing,
    ) -> Result<Option<Self>, Error> {
        match (backing, store) {
            (Backing::Store(offset), Some(store)) => Ok(Some(Self::Store(store, offset))),
            (Backing::Store(_), None) => Err(Error::NoAllocation),
            (Backing::Export(_, serial), _) => files
                .open(serial)
                .map(|file| Some(Self::File(file)))
                .map_err(system("cannot open an export's file")),
            (Backing::Team(..), _) => Ok(None),
        }
    }

    fn source(&self) -> Source<'_> {
        match self {
            Self::Store(store, offset) => Source::Store(store, *offset),
            Self::File(file) => Source::File(file),
        }
    }
}

impl Memory {
    pub(crate) fn create_physical(
        &mut self,
        accounting: &impl Accounting,
        place: PhysicalPlace,
        size: Bytes,
        sendable: Sendable,
    ) -> Result<PhysicalId, Error> {
        if size.0 == 0 || !size.0.is_multiple_of(GRANULE) {
            return Err(Error::Invalid("the size is not a multiple of the granule"));
        }
        let most = match place {
            PhysicalPlace::On(site) => self.totals.get(site.gpu).copied().ok_or(Error::NoGpu)?,
            PhysicalPlace::Host => HOST,
            PhysicalPlace::Team => {
                return Err(Error::Invalid("memory cannot be created on a team"));
            }
        };
        if size > most {
            return Err(Error::OutOfMemory);
        }
        let info = PhysicalInfo { place, size, sendable };
        if let (true, PhysicalPlace::On(site)) = (sendable.at_all(), place) {
            let Exported { export, serial, .. } = accounting.create_export(site, size)?;
            return Ok(self.physicals.add(info, Backing::Export(export, serial)));
        }
        if self.store.is_none() {
            let all =
                self.totals.iter().map(|total| total.0.next_multiple_of(GRANULE)).sum::<u64>();
            self.store =
                Some(Store::new(all + HOST.0).map_err(system("cannot reserve physical memory"))?);
        }
        let store = self.store.as_mut().ok_or(Error::OutOfMemory)?;
        let offset = store.take(size.0).ok_or(Error::OutOfMemory)?;
        if let PhysicalPlace::On(site) = place {
            accounting.take(site, size).inspect_err(|_| store.give(offset, size.0))?;
        }
        Ok(self.physicals.add(info, Backing::Store(offset)))
    }

    pub(crate) fn release_physical(
        &mut self,
        accounting: &impl Accounting,
        id: PhysicalId,
    ) -> Result<(), Error> {
        let over = self.physicals.drop_one(id, |physical| &mut physical.handles)?;
        over.map_or(Ok(()), |over| self.end_physical(accounting, &over))
    }

    /// Releases the reference of an array's tile.
    pub(crate) fn drop_physical_reference(
        &mut self,
        accounting: &impl Accounting,
        id: PhysicalId,
    ) -> Result<(), Error> {
        let over = self.physicals.drop_one(id, |physical| &mut physical.mappings)?;
        over.map_or(Ok(()), |over| self.end_physical(accounting, &over))
    }

    fn end_physical(&mut self, accounting: &impl Accounting, over: &Physical) -> Result<(), Error> {
        match over.backing {
            Backing::Export(export, _) | Backing::Team(export, _) => accounting.drop_hold(export),
            Backing::Store(offset) => {
                if let Some(store) = &mut self.store {
                    store.give(offset, over.info.size.0);
                }
                match over.info.place {
                    PhysicalPlace::On(site) => accounting.give(site, over.info.size),
                    PhysicalPlace::Host | PhysicalPlace::Team => Ok(()),
                }
            }
        }
    }

    /// Maps the start of physical memory, not yet accessible from any side.
    pub(crate) fn map(
        &mut self,
        files: &Files,
        address: u64,
        size: Bytes,
        id: PhysicalId,
    ) -> Result<(), Error> {
        let info = self.physicals.held(id)?;
        let end = address.checked_add(size.0).ok_or(NOT_MAPPED)?;
        let (first, whole) = self.physicals.reserved(address).ok_or(NOT_MAPPED)?;
        let aligned = size.0 > 0 && (address | size.0).is_multiple_of(GRANULE);
        if !aligned
            || size > info.size
            || end > first + whole.0
            || self.physicals.is_mapped(address, end)
        {
            return Err(Error::Invalid("the range cannot be mapped"));
        }
        let physical = self.physicals.handles.get_mut(&id).ok_or(Error::NoAllocation)?;
        let bytes = MappedBytes::find(self.store.as_ref(), files, physical.backing)?;
        let span =
            self.physicals.reserved.get_mut(&first).map(|its| &mut its.span).ok_or(NOT_MAPPED)?;
        if let Some(bytes) = bytes
            && let Err(error) = span.alias(address, size.0, bytes.source())
        {
            // If this fails, too, the range stays inaccessible.
            let _ = span.restore(address, size.0);
            return Err(system("cannot map memory")(error));
        }
        physical.mappings += 1;
        let mapping = Mapping { size: size.0, physical: id, access: BTreeMap::new() };
        self.physicals.mapped.insert(address, mapping);
        Ok(())
    }

    pub(crate) fn unmap(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        size: Bytes,
    ) -> Result<(), Error> {
        for first in self.physicals.covering(address, size)? {
            let Some(mapping) = self.physicals.mapped.remove(&first) else { continue };
            if let Some(span) = self.physicals.span_of(first) {
                span.restore(first, mapping.size).map_err(system("cannot unmap memory"))?;
            }
            let over =
                self.physicals.drop_one(mapping.physical, |physical| &mut physical.mappings)?;
            if let Some(over) = over {
                self.end_physical(accounting, &over)?;
            }
        }
        Ok(())
    }

    /// Sets the access of sides to a range of whole mappings. Host memory that the host may access
    /// becomes accessible at these very addresses.
    pub(crate) fn set_access(
        &mut self,
        files: &Files,
        address: u64,
        size: Bytes,
        wanted: &[(Side, Access)],
    ) -> Result<(), Error> {
        let firsts = self.physicals.covering(address, size)?;
        let Physicals { handles, reserved, mapped, .. } = &mut self.physicals;
        for mapping in firsts.iter().filter_map(|first| mapped.get(first)) {
            let place = handles.get(&mapping.physical).ok_or(Error::NoAllocation)?.info.place;
            if place != PhysicalPlace::Host && wanted.iter().any(|(side, _)| *side == Side::Host) {
                return Err(Error::Invalid("the host cannot access a GPU's memory"));
            }
        }
        for first in firsts {
            let Some(mapping) = mapped.get_mut(&first) else { continue };
            for &(side, access) in wanted {
                let shown = mapping
                    .access
                    .insert(side, access)
                    .is_some_and(|access| access != Access::None);
                if side == Side::Host && access != Access::None && !shown {
                    let physical = handles.get(&mapping.physical).ok_or(Error::NoAllocation)?;
                    let Some(bytes) =
                        MappedBytes::find(self.store.as_ref(), files, physical.backing)?
                    else {
                        continue;
                    };
                    let before = reserved.range(..=first).next_back();
                    let span = &before.ok_or(NOT_MAPPED)?.1.span;
                    span.reveal(first, mapping.size, bytes.source())
                        .map_err(system("cannot map memory"))?;
                }
            }
        }
        Ok(())
    }
}
