//! Virtual memory management, as its calls see it: handles, reservations, mappings, and handles between processes.

use std::os::fd::{BorrowedFd, OwnedFd};

use cgpu_proto::units::Bytes;

use super::{Machine, lock};
use crate::error::Error;
use crate::memory::{Access, Books, MappedRange, PhysicalId, PhysicalInfo, PhysicalPlace, Side};

impl Machine {
    /// Makes physical memory of whole granules, on a card or on the host; on a card it is the process's own, and needs no
    /// context. Only `shareable` memory can be sent to other processes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::NoCard`], [`Error::Invalid`] for a size of no whole granules.
    pub fn create_physical(
        &self,
        place: PhysicalPlace,
        size: Bytes,
        shareable: bool,
    ) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let create = || lock(&self.core.memory).create_physical(&**self.core, place, size, shareable);
        match (create(), place) {
            (Err(Error::OutOfMemory), PhysicalPlace::Card(card)) => {
                self.trim_short(card)?;
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

    /// Maps the beginning of physical memory to reserved addresses. Nobody reaches it yet.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle; [`Error::Invalid`] where it cannot be mapped.
    pub fn map(&self, address: u64, size: Bytes, physical: PhysicalId) -> Result<(), Error> {
        self.check_lineage()?;
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
    /// [`Error::Invalid`] for any other range, and for the host's access to a card's memory.
    pub fn set_access(&self, address: u64, size: Bytes, wanted: &[(Side, Access)]) -> Result<(), Error> {
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
        let (export, serial) = memory.physicals.export(physical)?;
        self.core.send(export, serial)
    }

    /// A handle of the memory that a descriptor keeps. It stays on the books of whoever made it as long as that is there.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it keeps none; [`Error::System`].
    pub fn import_physical(&self, descriptor: BorrowedFd<'_>) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let received = self.core.receive(descriptor)?;
        if received.size == Bytes::ZERO {
            // A pool's.
            self.core.let_go(received.export)?;
            return Err(Error::NoAllocation);
        }
        let at = (received.export, received.serial);
        Ok(lock(&self.core.memory).physicals.import(at, received.card, received.size))
    }
}
