//! Allocations of contexts.
//!
//! * From 1 MiB on an allocation takes whole granules of 2 MiB.
//! * A smaller one takes a multiple of 512 bytes out of a block: a granule that the context takes
//!   when no free piece of its blocks is long enough, and returns when it is wholly free. Free
//!   pieces of blocks are the slack in a driver's accounting.

use cgpu_shm::units::Bytes;

use super::space::Space;
use super::{Accounting, Allocation, GRANULE, Memory, Origin};
use crate::error::Error;
use crate::timeline::ContextId;

const LARGE: u64 = 1 << 20;
const STEP: u64 = 512;

/// Returns the bytes that an allocation takes.
pub(super) fn rounded(size: Bytes) -> u64 {
    size.0.next_multiple_of(if size.0 < LARGE { STEP } else { GRANULE })
}

/// The allocator of a context.
#[derive(Debug)]
pub(super) struct ContextMemory {
    gpu: usize,
    /// Free pieces of its blocks.
    blocks: Space,
}

/// Whether freed memory must still be released from accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refund {
    /// Release it.
    Now,
    /// The end of the context has released it.
    Done,
}

impl Memory {
    pub(crate) fn adopt(&mut self, context: ContextId, gpu: usize) {
        self.contexts.insert(context, ContextMemory { gpu, blocks: Space::default() });
    }

    pub(crate) fn allocate(
        &mut self,
        accounting: &impl Accounting,
        context: ContextId,
        size: Bytes,
    ) -> Result<u64, Error> {
        let own = self.contexts.get_mut(&context).ok_or(Error::NoContext)?;
        let gpu = own.gpu;
        if size.0 == 0 {
            return Err(Error::Invalid("an allocation of zero bytes"));
        }
        // Checked before rounding, which could overflow.
        if size > self.totals[gpu] {
            return Err(Error::OutOfMemory);
        }
        let taken = rounded(size);
        let address = if size.0 >= LARGE {
            self.take_granules(accounting, context, gpu, taken)?
        } else if let Some(address) = own.blocks.take(taken) {
            address
        } else {
            let block = self.take_granules(accounting, context, gpu, GRANULE)?;
            if let Some(own) = self.contexts.get_mut(&context) {
                own.blocks.give(block + taken, GRANULE - taken, block..block + GRANULE);
            }
            block
        };
        self.live
            .insert(address, Allocation { address, size, gpu, origin: Origin::Context(context) });
        Ok(address)
    }

    fn take_granules(
        &mut self,
        accounting: &impl Accounting,
        context: ContextId,
        gpu: usize,
        length: u64,
    ) -> Result<u64, Error> {
        let address = self.take_addresses(gpu, length)?;
        accounting
            .reserve(context, Bytes(length))
            .inspect_err(|_| self.give_addresses(gpu, address, length))?;
        Ok(address)
    }

    pub(super) fn free_linear(
        &mut self,
        accounting: &impl Accounting,
        allocation: Allocation,
        refund: Refund,
    ) -> Result<(), Error> {
        let Origin::Context(context) = allocation.origin else { return Err(Error::NoAllocation) };
        let Allocation { address, size, gpu, .. } = allocation;
        self.live.remove(&address).ok_or(Error::NoAllocation)?;
        let taken = rounded(size);
        if size.0 >= LARGE {
            return self.give_granules(accounting, context, gpu, (address, taken), refund);
        }
        let own = self.contexts.get_mut(&context).ok_or(Error::NoAllocation)?;
        let block = address / GRANULE * GRANULE;
        let (start, length) = own.blocks.give(address, taken, block..block + GRANULE);
        if length < GRANULE {
            return Ok(());
        }
        own.blocks.remove(start, length);
        self.give_granules(accounting, context, gpu, (start, length), refund)
    }

    fn give_granules(
        &mut self,
        accounting: &impl Accounting,
        context: ContextId,
        gpu: usize,
        (start, length): (u64, u64),
        refund: Refund,
    ) -> Result<(), Error> {
        let shared = self.shared.remove(&start);
        if shared.is_some() {
            self.unalias(gpu, start, length)?;
        }
        self.give_addresses(gpu, start, length);
        match (shared, refund) {
            (Some(shared), _) => accounting.drop_hold(shared.export),
            (None, Refund::Now) => accounting.release(context, Bytes(length)),
            (None, Refund::Done) => Ok(()),
        }
    }

    /// Returns the granules that contain an allocation: start and length.
    pub(super) fn granules_of(allocation: &Allocation) -> (u64, u64) {
        match allocation.size.0 {
            ..LARGE => (allocation.address / GRANULE * GRANULE, GRANULE),
            _ => (allocation.address, rounded(allocation.size)),
        }
    }
}
