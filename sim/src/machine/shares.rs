//! Memory shared between processes: handles that are numbers, and descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};

use cgpu_shm::units::Bytes;

use super::{ContextId, Core, Machine, lock};
use crate::error::Error;
use crate::memory::{Accounting, Exported, Memory, Offer, Origin};
use crate::segment::Transaction;
use crate::timeline::{ExportId, ExportKind, Site, Timeline};

/// An export that was imported, with one reference held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) export: ExportId,
    pub(super) serial: u64,
    pub(super) site: Site,
    pub(super) size: Bytes,
    /// The size of a multicast object; `None` for other exports.
    pub(super) room: Option<Bytes>,
}

/// The name of an export for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportNumber {
    /// The export.
    pub export: u64,
    /// Its serial: tells exports apart that reuse the number.
    pub serial: u64,
}

impl Machine {
    /// Offers the allocation of a context that contains an address to other processes, which can
    /// [`Machine::open_memory`] it.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for memory of any other origin; [`Error::Full`], [`Error::System`].
    pub fn offer_memory(&self, address: u64) -> Result<Offer, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).offer(&**self.core, address)
    }

    /// Opens another process's allocation in a context. Repeated opens in a context are counted and
    /// return the same address.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is freed; [`Error::NoContext`] if another context has it open,
    /// or the offer is this process's own; [`Error::Full`], [`Error::System`].
    pub fn open_memory(&self, context: ContextId, offer: &Offer) -> Result<u64, Error> {
        self.check_not_forked()?;
        let gpu = self.gpu_of(context)?;
        let mut memory = lock(&self.core.memory);
        let whole = self.core.describe_offer(offer)?;
        if whole.0 != gpu {
            return Err(Error::Invalid("the context is on another GPU"));
        }
        if memory.offers(offer) {
            return Err(Error::NoContext);
        }
        match memory.origin_of(ExportId(offer.export), offer.serial) {
            Some(Origin::Opened(its)) if its == context => {
                memory.open(gpu, whole.1, offer, None, Origin::Opened(context))
            }
            Some(_) => Err(Error::NoContext),
            None => self.core.open_export(&mut memory, whole, offer, Origin::Opened(context)),
        }
    }

    /// Closes another process's allocation once.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it was not opened.
    pub fn close_memory(&self, address: u64) -> Result<(), Error> {
        self.check_not_forked()?;
        let found = lock(&self.core.memory).find(address).filter(|found| found.address == address);
        let Some(Origin::Opened(context)) = found.map(|found| found.origin) else {
            return Err(Error::NoAllocation);
        };
        self.synchronize_context(context)?;
        lock(&self.core.memory).close(&**self.core, address)
    }
}

impl Core {
    /// Returns GPU and size of an offer's export.
    pub(super) fn describe_offer(&self, offer: &Offer) -> Result<(usize, Bytes), Error> {
        let export = ExportId(offer.export);
        let about = self.with(|timeline, _| {
            if !timeline.is_offered(export, offer.serial) {
                return Err(Error::NoAllocation);
            }
            Ok(timeline.about_export(export))
        })?;
        let fits = offer.offset.checked_add(offer.size.0).is_some_and(|end| end <= about.1.0);
        if fits && offer.size > Bytes::ZERO { Ok(about) } else { Err(Error::NoAllocation) }
    }

    /// Maps the export of an offer that is not open here yet, and holds it.
    pub(super) fn open_export(
        &self,
        memory: &mut Memory,
        (gpu, whole): (usize, Bytes),
        offer: &Offer,
        origin: Origin,
    ) -> Result<u64, Error> {
        let (export, serial) = (ExportId(offer.export), offer.serial);
        self.with(|timeline, _| {
            if !timeline.is_offered(export, serial) {
                return Err(Error::NoAllocation);
            }
            timeline.hold(self.segment.process(), export, serial)
        })?;
        let opened = self
            .files
            .open(serial)
            .map_err(|error| {
                Error::System(format!("cannot open memory of another process: {error}"))
            })
            .and_then(|file| {
                memory.open(gpu, whole, offer, Some(Exported { export, serial, file }), origin)
            });
        opened.inspect_err(|_| {
            // If this fails, too, the reference ends with the process.
            let _ = self.drop_hold(export);
        })
    }

    /// Returns a descriptor that keeps an export.
    pub(super) fn send(&self, export: ExportId, serial: u64) -> Result<OwnedFd, Error> {
        // First, so that no process ends it while the descriptor is being sent.
        self.with(|timeline, _| {
            timeline.send_export(export);
            Ok(())
        })?;
        let descriptor = self.files.descriptor(serial);
        descriptor.map_err(|error| {
            Error::System(format!("cannot create a descriptor of memory: {error}"))
        })
    }

    /// Returns a descriptor that keeps several exports.
    pub(super) fn send_all(&self, exports: &[(ExportId, u64)]) -> Result<OwnedFd, Error> {
        self.with(|timeline, _| {
            exports.iter().for_each(|&(export, _)| timeline.send_export(export));
            Ok(())
        })?;
        let descriptor = self.files.descriptor_of(exports.iter().map(|&(_, serial)| serial));
        descriptor.map_err(|error| {
            Error::System(format!("cannot create a descriptor of memory: {error}"))
        })
    }

    /// Holds the export that a descriptor keeps, if it is of one of those kinds.
    pub(super) fn receive(
        &self,
        descriptor: BorrowedFd<'_>,
        kinds: &[ExportKind],
    ) -> Result<Received, Error> {
        let inode = self.files.inode(descriptor).ok().flatten().ok_or(Error::NoAllocation)?;
        self.with(|timeline, _| {
            let export = timeline.export_in(inode).ok_or(Error::NoAllocation)?;
            self.hold_export(timeline, (export, timeline.serial_of_export(export)), kinds)
        })
    }

    /// Holds the export that a number names, if it is of one of those kinds and any process holds
    /// it.
    pub(super) fn receive_number(
        &self,
        number: ExportNumber,
        kinds: &[ExportKind],
    ) -> Result<Received, Error> {
        self.with(|timeline, _| {
            self.hold_export(timeline, (ExportId(number.export), number.serial), kinds)
        })
    }

    fn hold_export(
        &self,
        timeline: &mut Timeline<'_, Transaction<'_>>,
        (export, serial): (ExportId, u64),
        kinds: &[ExportKind],
    ) -> Result<Received, Error> {
        if serial == 0 || timeline.serial_of_export(export) != serial {
            return Err(Error::NoAllocation);
        }
        if !kinds.contains(&timeline.kind_of_export(export)) {
            return Err(Error::NoAllocation);
        }
        timeline.hold(self.segment.process(), export, serial)?;
        let (site, size) = (timeline.site_of_export(export), timeline.about_export(export).1);
        let room = timeline.team(export).map(|team| team.room);
        Ok(Received { export, serial, site, size, room })
    }
}
