//! Virtual memory management: physical handles, reservations, mappings, shareable handles.

use std::os::fd::{BorrowedFd, OwnedFd};

use cgpu_shm::units::Bytes;

use super::shares::Received;
use super::{ExportNumber, Machine, lock};
use crate::error::Error;
use crate::memory::{Access, MappedRange, PhysicalId, PhysicalInfo, PhysicalPlace, Sendable, Side};
use crate::timeline::ExportKind;

/// Exports that a physical handle can stand for.
const HANDLED: [ExportKind; 2] = [ExportKind::Memory, ExportKind::Team];

impl Machine {
    /// Creates physical memory of whole granules, on a GPU or on the host. On a GPU it is the
    /// process's own and needs no context. `sendable`: how it can be sent to other processes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoGpu`], [`Error::Invalid`] for a size that is not a
    /// multiple of the granule.
    pub fn create_physical(
        &self,
        place: PhysicalPlace,
        size: Bytes,
        sendable: impl Into<Sendable>,
    ) -> Result<PhysicalId, Error> {
        self.check_not_forked()?;
        self.start_helper()?;
        let sendable = sendable.into();
        let create =
            || lock(&self.core.memory).create_physical(&**self.core, place, size, sendable);
        match (create(), place) {
            (Err(Error::OutOfMemory), PhysicalPlace::On(site)) => {
                self.trim_gpu(site.gpu)?;
                create()
            }
            (created, _) => created,
        }
    }

    /// Releases a handle. The memory is freed with the last handle and mapping of all processes.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a handle.
    pub fn release_physical(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).release_physical(&**self.core, physical)
    }

    /// Returns one more handle for the memory that is mapped at an address.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if nothing is mapped there.
    pub fn retain_physical(&self, address: u64) -> Result<PhysicalId, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.retain(address)
    }

    /// Adds a reference to physical memory, as a mapping does, without addresses: for a tile of an
    /// array.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a handle.
    pub fn add_physical_reference(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.keep(physical)
    }

    /// Drops such a reference.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if there is none.
    pub fn drop_physical_reference(&self, physical: PhysicalId) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).drop_physical_reference(&**self.core, physical)
    }

    /// Describes the memory of a handle.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a handle.
    pub fn physical(&self, physical: PhysicalId) -> Result<PhysicalInfo, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.held(physical)
    }

    /// Reserves addresses in whole granules: at `wanted` if that range is free, else anywhere.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::OutOfMemory`] if there is no such range.
    pub fn reserve_addresses(&self, size: Bytes, align: u64, wanted: u64) -> Result<u64, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.reserve(size, align, wanted)
    }

    /// Frees a whole reservation. Nothing may be mapped in it.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn free_addresses(&self, address: u64, size: Bytes) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.unreserve(address, size)
    }

    /// Returns the reservation that contains an address: its start and size.
    #[must_use]
    pub fn reservation(&self, address: u64) -> Option<(u64, Bytes)> {
        self.check_not_forked().ok()?;
        lock(&self.core.memory).physicals.reserved(address)
    }

    /// Maps the start of physical memory to reserved addresses; a multicast object once all its
    /// GPUs have joined. No side has access yet.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a handle; [`Error::Invalid`] where it cannot be mapped.
    pub fn map(&self, address: u64, size: Bytes, physical: PhysicalId) -> Result<(), Error> {
        self.check_not_forked()?;
        if self.physical(physical)?.place == PhysicalPlace::Team {
            self.await_team(physical)?;
        }
        lock(&self.core.memory).map(&self.core.files, address, size, physical)
    }

    /// Unmaps a range of whole mappings.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other range.
    pub fn unmap(&self, address: u64, size: Bytes) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).unmap(&**self.core, address, size)
    }

    /// Sets the access of sides to a range of whole mappings.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other range, and for the host's access to a GPU's memory.
    pub fn set_access(
        &self,
        address: u64,
        size: Bytes,
        wanted: &[(Side, Access)],
    ) -> Result<(), Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).set_access(&self.core.files, address, size, wanted)
    }

    /// Returns a side's access to the memory mapped at an address.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if nothing is mapped there.
    pub fn access(&self, address: u64, side: Side) -> Result<Access, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.access(address, side)
    }

    /// Returns the mapping at an address.
    #[must_use]
    pub fn mapped(&self, address: u64) -> Option<MappedRange> {
        self.check_not_forked().ok()?;
        lock(&self.core.memory).physicals.mapped(address)
    }

    /// Exports shareable memory as a descriptor, which other processes can import. Each open copy
    /// keeps the memory.
    ///
    /// # Errors
    /// [`Error::NotShareable`]; [`Error::NoAllocation`] if it is not a handle; [`Error::System`].
    pub fn export_physical(&self, physical: PhysicalId) -> Result<OwnedFd, Error> {
        self.check_not_forked()?;
        // Locked throughout, so that no thread releases the handle in between.
        let memory = lock(&self.core.memory);
        let (export, serial) =
            memory.physicals.export(physical, |sendable| sendable.by_descriptor)?;
        self.core.send(export, serial)
    }

    /// Returns a descriptor that keeps all memory behind a range of addresses, whatever happens to
    /// it here. It cannot be imported.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if there is none; [`Error::Invalid`] for parts of several
    /// allocations, and for mappings of several kinds; [`Error::Full`], [`Error::System`].
    pub fn keep_range(&self, address: u64, size: Bytes) -> Result<OwnedFd, Error> {
        self.check_not_forked()?;
        // Locked throughout, so that no thread frees it in between.
        let mut memory = lock(&self.core.memory);
        let exports = memory.exports_of_range(&**self.core, address, size)?;
        self.core.send_all(&exports)
    }

    /// Imports the memory that a descriptor keeps. It stays charged to the process that created it
    /// while that exists.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it keeps none; [`Error::System`].
    pub fn import_physical(&self, descriptor: BorrowedFd<'_>) -> Result<PhysicalId, Error> {
        self.check_not_forked()?;
        self.start_helper()?;
        let received = self.core.receive(descriptor, &HANDLED)?;
        Ok(self.handle_of(&received, true.into()))
    }

    /// Exports memory as a number, which other processes can import. The number keeps nothing.
    ///
    /// # Errors
    /// [`Error::NotShareable`]; [`Error::NoAllocation`] if it is not a handle.
    pub fn number_physical(&self, physical: PhysicalId) -> Result<ExportNumber, Error> {
        self.check_not_forked()?;
        let (export, serial) =
            lock(&self.core.memory).physicals.export(physical, |sendable| sendable.by_number)?;
        Ok(ExportNumber { export: export.get(), serial })
    }

    /// Imports the memory that a number names.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if no process holds it.
    pub fn import_numbered(&self, number: ExportNumber) -> Result<PhysicalId, Error> {
        self.check_not_forked()?;
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
