//! What others may hold of this process's memory, and what it has open of theirs.
//!
//! Nothing in here calls the ledger.

use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::route::{BITS, Route};
use crate::allocations::table::Owner;
use crate::ordered::Ordered;

/// An allocation that others may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exported {
    pub(super) gpu: DeviceIndex,
    pub(super) bytes: Bytes,
    pub(super) owner: Owner,
    pub(super) routes: u64,
}

/// What was freed here, and others may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retained {
    pub(super) gpu: DeviceIndex,
    pub(super) bytes: Bytes,
    pub(super) routes: u64,
}

/// What we have open of others'.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) route: Route,
    /// Whose end closes it.
    pub(super) owner: Option<Owner>,
    /// How often it was opened.
    pub(super) times: u32,
}

/// The tables of a process.
#[derive(Debug)]
pub(crate) struct ExportTable {
    /// Whether there ever was anything: in most programs never, and then nothing is looked up.
    any: AtomicBool,
    pub(super) records: Spin<Records>,
}

#[derive(Debug)]
pub(super) struct Records {
    /// By the first address.
    pub(super) exported: Ordered<Exported>,
    pub(super) retained: Vec<Retained>,
    /// By the first address.
    pub(super) opened: Ordered<Opened>,
    /// How often handles of each bit are open, or about to be.
    open: [u32; BITS],
}

impl ExportTable {
    pub(crate) fn new() -> Self {
        let records = Records {
            exported: Ordered::new(),
            retained: Vec::new(),
            opened: Ordered::new(),
            open: [0; BITS],
        };
        Self { any: AtomicBool::new(false), records: Spin::new(records) }
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// From here on there is something to look for.
    pub(super) fn mark_used(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes an allocation off the table that is about to be freed; the ways in which it was lent.
    #[cold]
    pub(crate) fn take(&self, address: u64) -> u64 {
        self.records.lock().exported.remove(address).map_or(0, |exported| exported.routes)
    }

    /// Puts an allocation back whose free the driver has refused.
    #[cold]
    pub(crate) fn restore(
        &self,
        address: u64,
        gpu: DeviceIndex,
        bytes: Bytes,
        owner: Owner,
        routes: u64,
    ) {
        // There was room for it just now.
        let _ =
            self.records.lock().exported.insert(address, Exported { gpu, bytes, owner, routes });
    }
}

impl Records {
    /// A handle of this bit is about to be opened. `true`: the slot does not say so yet.
    pub(super) fn begin(&mut self, route: Route) -> bool {
        let count = self.count(route);
        let first = count.is_some_and(|count| *count == 0);
        if let Some(count) = self.count(route) {
            *count = count.saturating_add(1);
        }
        first
    }

    pub(super) fn end(&mut self, route: Route) {
        if let Some(count) = self.count(route) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&mut self, route: Route) -> Option<&mut u32> {
        self.open.get_mut(usize::try_from(route.0.trailing_zeros()).unwrap_or(BITS))
    }

    /// What the slot is to say.
    pub(super) fn bits(&self) -> u64 {
        let bit = |(bit, count): (usize, &u32)| u64::from(*count > 0) << bit;
        self.open.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// Takes off one entry that belongs to `owner`.
    pub(super) fn exported_by(&mut self, owner: Owner, from: &mut u64) -> Option<Exported> {
        while let Some((address, exported)) = self.exported.from(*from) {
            if exported.owner == owner {
                return self.exported.remove(address);
            }
            *from = address.checked_add(1)?;
        }
        None
    }

    pub(super) fn close_of(&mut self, owner: Owner) -> bool {
        let (mut from, mut any) = (0, false);
        while let Some((address, opened)) = self.opened.from(from) {
            if opened.owner == Some(owner) {
                self.opened.remove(address);
                (0..opened.times).for_each(|_| self.end(opened.route));
                any = true;
            }
            let Some(next) = address.checked_add(1) else { break };
            from = next;
        }
        any
    }
}
