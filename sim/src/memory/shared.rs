//! Memory shared between processes: allocations that others open, and allocations of others that
//! are open here.
//!
//! As in a driver, whole granules are shared: opening one of the small allocations in a block
//! exposes all of the block. An export is mapped once, however many of its allocations are open.

use std::collections::BTreeMap;

use cgpu_shm::units::Bytes;

use super::span::Source;
use super::{Accounting, Allocation, Exported, GRANULE, Memory, Origin, system};
use crate::error::Error;
use crate::timeline::ExportId;
use crate::words::index;

/// Granules of this process that others may open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub(super) export: ExportId,
    serial: u64,
}

/// Granules of another process.
#[derive(Debug)]
pub(super) struct Opened {
    export: ExportId,
    serial: u64,
    gpu: usize,
    length: u64,
    origin: Origin,
    /// How often each of its allocations is open, by offset.
    uses: BTreeMap<u64, u64>,
}

/// An allocation that other processes can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its export.
    pub export: u64,
    /// The export's serial.
    pub serial: u64,
    /// Its offset in the export.
    pub offset: u64,
    /// Its size as requested.
    pub size: Bytes,
}

impl Memory {
    /// Offers the allocation of a context that contains an address.
    pub(crate) fn offer(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
    ) -> Result<Offer, Error> {
        let allocation = self.find(address).ok_or(Error::NoAllocation)?;
        let Origin::Context(context) = allocation.origin else { return Err(Error::NoAllocation) };
        let (start, length) = Self::granules_of(&allocation);
        let shared = match self.shared.get(&start) {
            Some(shared) => *shared,
            None => {
                let exported = accounting.export_of(context, Bytes(length))?;
                let shared = Shared { export: exported.export, serial: exported.serial };
                if let Err(error) = self.move_into(allocation.gpu, (start, length), &exported) {
                    // Return the memory to the context.
                    accounting.drop_hold(exported.export)?;
                    accounting.reserve(context, Bytes(length))?;
                    return Err(error);
                }
                self.shared.insert(start, shared);
                shared
            }
        };
        Ok(Offer {
            export: shared.export.get(),
            serial: shared.serial,
            offset: allocation.address - start,
            size: allocation.size,
        })
    }

    /// Returns whether an offer is this process's own.
    pub(crate) fn offers(&self, offer: &Offer) -> bool {
        let same =
            |shared: &Shared| shared.export.get() == offer.export && shared.serial == offer.serial;
        self.shared.values().any(same) || self.pools.offers(offer)
    }

    /// Moves the bytes of granules to an export's file, which backs them from then on.
    pub(super) fn move_into(
        &mut self,
        gpu: usize,
        (start, length): (u64, u64),
        to: &Exported,
    ) -> Result<(), Error> {
        let (span, _) = self.gpu(gpu)?;
        let fail = "cannot move memory to an export";
        let kept: Vec<(u64, Vec<u8>)> = span
            .written(start, length)
            .into_iter()
            .map(|granule| {
                let bytes = span.bytes(granule, GRANULE, false)?;
                // SAFETY: a granule of the span's mapping; nothing writes to it meanwhile: we hold
                // the memory's lock.
                let bytes = unsafe { core::slice::from_raw_parts(bytes, index(GRANULE)) };
                Ok((granule, bytes.to_vec()))
            })
            .collect::<std::io::Result<_>>()
            .map_err(system(fail))?;
        span.alias(start, length, Source::File(&to.file)).map_err(system(fail))?;
        for (granule, bytes) in kept {
            let place = span.bytes(granule, GRANULE, true).map_err(system(fail))?;
            // SAFETY: as above; the vector does not overlap it.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    pub(super) fn unalias(&mut self, gpu: usize, start: u64, length: u64) -> Result<(), Error> {
        let (span, _) = self.gpu(gpu)?;
        span.restore(start, length).map_err(system("cannot map memory of other processes"))
    }

    /// Returns where an export is open here.
    fn opened_at(&self, export: ExportId, serial: u64) -> Option<u64> {
        let same = |opened: &Opened| opened.export == export && opened.serial == serial;
        self.opened.iter().find(|(_, opened)| same(opened)).map(|(&base, _)| base)
    }

    /// Returns the export of another process that is open at an address.
    pub(super) fn opened_in(&self, address: u64) -> Option<(ExportId, u64)> {
        let (&base, opened) = self.opened.range(..=address).next_back()?;
        (address - base < opened.length).then_some((opened.export, opened.serial))
    }

    /// Returns how an export was opened here.
    pub(crate) fn origin_of(&self, export: ExportId, serial: u64) -> Option<Origin> {
        self.opened_at(export, serial).map(|base| self.opened[&base].origin)
    }

    /// Opens an allocation in another process's export; returns its address. `exported`: the export
    /// if it is not open here yet, whose reference it takes.
    pub(crate) fn open(
        &mut self,
        gpu: usize,
        whole: Bytes,
        offer: &Offer,
        exported: Option<Exported>,
        origin: Origin,
    ) -> Result<u64, Error> {
        let base = match exported {
            None => {
                self.opened_at(ExportId(offer.export), offer.serial).ok_or(Error::NoAllocation)?
            }
            Some(exported) => self.map_opened(gpu, whole, exported, origin)?,
        };
        let opened = self.opened.get_mut(&base).ok_or(Error::NoAllocation)?;
        *opened.uses.entry(offer.offset).or_default() += 1;
        let address = base + offer.offset;
        self.live
            .insert(address, Allocation { address, size: offer.size, gpu, origin: opened.origin });
        Ok(address)
    }

    fn map_opened(
        &mut self,
        gpu: usize,
        whole: Bytes,
        exported: Exported,
        origin: Origin,
    ) -> Result<u64, Error> {
        let base = self.take_addresses(gpu, whole.0)?;
        let (span, _) = self.gpu(gpu)?;
        if let Err(error) = span.alias(base, whole.0, Source::File(&exported.file)) {
            self.give_addresses(gpu, base, whole.0);
            return Err(system("cannot map memory of other processes")(error));
        }
        let Exported { export, serial, .. } = exported;
        let opened = Opened { export, serial, gpu, length: whole.0, origin, uses: BTreeMap::new() };
        self.opened.insert(base, opened);
        Ok(base)
    }

    /// Closes another process's allocation once.
    pub(crate) fn close(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
    ) -> Result<(), Error> {
        let (&base, opened) =
            self.opened.range_mut(..=address).next_back().ok_or(Error::NoAllocation)?;
        let uses = opened.uses.get_mut(&(address - base)).ok_or(Error::NoAllocation)?;
        *uses -= 1;
        if *uses > 0 {
            return Ok(());
        }
        opened.uses.remove(&(address - base));
        self.live.remove(&address);
        if !opened.uses.is_empty() {
            return Ok(());
        }
        let Opened { export, gpu, length, .. } = *opened;
        self.opened.remove(&base);
        self.unalias(gpu, base, length)?;
        self.give_addresses(gpu, base, length);
        accounting.drop_hold(export)
    }

    /// Closes another process's allocation, however often it is open.
    pub(super) fn close_all(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
    ) -> Result<(), Error> {
        while self.live.contains_key(&address) {
            self.close(accounting, address)?;
        }
        Ok(())
    }
}
