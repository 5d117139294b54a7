//! The exports behind a range of addresses, so that a descriptor can keep them.

use cgpu_shm::units::Bytes;

use super::PhysicalPlace;
use crate::error::Error;
use crate::memory::{Accounting, Memory, Origin};
use crate::timeline::ExportId;

impl Memory {
    /// Returns the exports behind a range: of the one allocation that contains it, or of contiguous
    /// mappings of one kind and GPU. Memory of this process alone becomes an export.
    pub(crate) fn exports_of_range(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        size: Bytes,
    ) -> Result<Vec<(ExportId, u64)>, Error> {
        let end = address.checked_add(size.0).filter(|_| size.0 > 0).ok_or(Error::NoAllocation)?;
        let Some(allocation) = self.find(address) else {
            return self.exports_of_mappings(accounting, address, end);
        };
        if end > allocation.address + allocation.size.0 {
            return Err(Error::Invalid("more than was allocated there"));
        }
        let export = match allocation.origin {
            Origin::Context(_) => {
                let offer = self.offer(accounting, address)?;
                (ExportId(offer.export), offer.serial)
            }
            Origin::Pool(pool) => self.share_chunk(accounting, pool, address)?.1,
            Origin::Opened(_) | Origin::Imported(_) => {
                self.opened_in(address).ok_or(Error::NoAllocation)?
            }
        };
        Ok(vec![export])
    }

    fn exports_of_mappings(
        &mut self,
        accounting: &impl Accounting,
        address: u64,
        end: u64,
    ) -> Result<Vec<(ExportId, u64)>, Error> {
        let mut found = Vec::new();
        let mut at = address;
        while at < end {
            let (first, mapping) = self.physicals.at(at).ok_or(Error::NoAllocation)?;
            at = first + mapping.size;
            found.push(mapping.physical);
        }
        let kind = |id| self.physicals.info(id).map(|info| (info.place, info.sendable));
        let same = found.iter().all(|&id| kind(id) == kind(found[0]));
        if !same || !matches!(kind(found[0]), Some((PhysicalPlace::On(_), _))) {
            return Err(Error::Invalid("not memory of one kind on one GPU"));
        }
        found.into_iter().map(|id| self.share(accounting, id)).collect()
    }
}
