//! Virtual memory management, as its calls see it: handles, reservations, mappings, and handles between processes.

use std::os::fd::{BorrowedFd, OwnedFd};

use cgpu_shm::units::Bytes;

use super::shares::Received;
use super::{Machine, Number, lock};
use crate::error::Error;
use crate::memory::{Access, MappedRange, PhysicalId, PhysicalInfo, PhysicalPlace, Sendable, Side};
use crate::timeline::ExportKind;

/// What handles can be of.
const HANDLED: [ExportKind; 2] = [ExportKind::Memory, ExportKind::Team];

impl Machine {
    /// Makes physical memory of whole granules, on a GPU or on the host; on a GPU it is the process's own, and needs no
    /// context. `sendable`: how it can be sent to other processes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoGpu`], [`Error::Invalid`] for a size of no whole granules.
    pub fn create_physical(
        &self,
        place: PhysicalPlace,
        size: Bytes,
        sendable: impl Into<Sendable>,
    ) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let sendable = sendable.into();
        let create =
            || lock(&self.core.memory).create_physical(&**self.core, place, size, sendable);
        match (create(), place) {
            (Err(Error::OutOfMemory), PhysicalPlace::On(site)) => {
                self.trim_short(site.gpu)?;
                create()
            }
            (created, _) => created,
        }
    }

    /// Ends a handle. The memory goes with the last handle and mapping of all processes.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle.
    pub fn release_physical(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).release_physical(&**self.core, physical)
    }

    /// One more handle for what is mapped at an address.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if nothing is.
    pub fn retain_physical(&self, address: u64) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.retain(address)
    }

    /// Keeps physical memory once more, as a mapping does, without addresses: for a tile of an array.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle.
    pub fn keep_physical(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.keep(physical)
    }

    /// Keeps physical memory once less.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is not kept.
    pub fn let_go_physical(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).let_go_physical(&**self.core, physical)
    }

    /// What is behind a handle.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle.
    pub fn physical(&self, physical: PhysicalId) -> Result<PhysicalInfo, Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.held(physical)
    }

    /// Reserves addresses in whole granules: at `wanted` if nothing lies there, else anywhere.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::OutOfMemory`] if there is no such range.
    pub fn reserve_addresses(&self, size: Bytes, align: u64, wanted: u64) -> Result<u64, Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.reserve(size, align, wanted)
    }

    /// Gives a reservation back, whole. Nothing may be mapped in it.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn free_addresses(&self, address: u64, size: Bytes) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.unreserve(address, size)
    }

    /// The reservation that holds an address: its first one, and how many.
    #[must_use]
    pub fn reservation(&self, address: u64) -> Option<(u64, Bytes)> {
        self.check_lineage().ok()?;
        lock(&self.core.memory).physicals.reserved(address)
    }

    /// Maps the beginning of physical memory to reserved addresses, or of a team, when all its GPUs are there. Nobody reaches it
    /// yet.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle; [`Error::Invalid`] where it cannot be mapped.
    pub fn map(&self, address: u64, size: Bytes, physical: PhysicalId) -> Result<(), Error> {
        self.check_lineage()?;
        if self.physical(physical)?.place == PhysicalPlace::Team {
            self.await_team(physical)?;
        }
        lock(&self.core.memory).map(&self.core.files, address, size, physical)
    }

    /// Ends all mappings of a range, which must be whole ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other range.
    pub fn unmap(&self, address: u64, size: Bytes) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).unmap(&**self.core, address, size)
    }

    /// Says how the sides may reach all mappings of a range, which must be whole ones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other range, and for the host's access to a GPU's memory.
    pub fn set_access(
        &self,
        address: u64,
        size: Bytes,
        wanted: &[(Side, Access)],
    ) -> Result<(), Error> {
        self.check_lineage()?;
        lock(&self.core.memory).set_access(&self.core.files, address, size, wanted)
    }

    /// How a side may reach what is mapped at an address.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if nothing is.
    pub fn access(&self, address: u64, side: Side) -> Result<Access, Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.access(address, side)
    }

    /// What is mapped at an address.
    #[must_use]
    pub fn mapped(&self, address: u64) -> Option<MappedRange> {
        self.check_lineage().ok()?;
        lock(&self.core.memory).physicals.mapped(address)
    }

    /// A descriptor by which other processes can import shareable memory, and which keeps it as long as any copy of it is
    /// open.
    ///
    /// # Errors
    /// [`Error::NotShareable`]; [`Error::NoAllocation`] for what is no handle; [`Error::System`].
    pub fn export_physical(&self, physical: PhysicalId) -> Result<OwnedFd, Error> {
        self.check_lineage()?;
        // Locked all the while, so that nobody ends the handle in between.
        let memory = lock(&self.core.memory);
        let (export, serial) =
            memory.physicals.export(physical, |sendable| sendable.by_descriptor)?;
        self.core.send(export, serial)
    }

    /// A descriptor that keeps all that lies behind a range of addresses, whatever becomes of it here; nobody can import by it.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] where there is nothing; [`Error::Invalid`] for parts of several allocations, and for mappings of several
    /// kinds; [`Error::Full`], [`Error::System`].
    pub fn keep_range(&self, address: u64, size: Bytes) -> Result<OwnedFd, Error> {
        self.check_lineage()?;
        // Locked all the while, so that nobody frees it in between.
        let mut memory = lock(&self.core.memory);
        let exports = memory.behind(&**self.core, address, size)?;
        self.core.send_all(&exports)
    }

    /// A handle of the memory that a descriptor keeps. It stays on the books of whoever made it as long as that is there.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it keeps none; [`Error::System`].
    pub fn import_physical(&self, descriptor: BorrowedFd<'_>) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let received = self.core.receive(descriptor, &HANDLED)?;
        Ok(self.handle_of(&received, true.into()))
    }

    /// A number by which other processes can import memory that can be sent so. It keeps nothing.
    ///
    /// # Errors
    /// [`Error::NotShareable`]; [`Error::NoAllocation`] for what is no handle.
    pub fn number_physical(&self, physical: PhysicalId) -> Result<Number, Error> {
        self.check_lineage()?;
        let (export, serial) =
            lock(&self.core.memory).physicals.export(physical, |sendable| sendable.by_number)?;
        Ok(Number { export: export.get(), serial })
    }

    /// A handle of the memory that a number names.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if no process holds it.
    pub fn import_numbered(&self, number: Number) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let received = self.core.receive_number(number, &HANDLED)?;
        Ok(self.handle_of(&received, Sendable { by_descriptor: false, by_number: true }))
    }

    fn handle_of(&self, received: &Received, sendable: Sendable) -> PhysicalId {
        let at = (received.export, received.serial);
        let physicals = &mut lock(&self.core.memory).physicals;
        match received.room {
            Some(room) => physicals.add_team(at, room, sendable),
            None => physicals.import(at, received.site, received.size, sendable),
        }
    }
}
