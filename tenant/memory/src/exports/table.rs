//! What this process has exported and imported.
//!
//! Nothing in here calls the ledger.

use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex};

use super::route::{BITS, Route};
use crate::allocations::table::Owner;
use crate::ordered::Ordered;

/// An allocation that other processes may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exported {
    pub(super) gpu: DeviceIndex,
    pub(super) bytes: Bytes,
    pub(super) owner: Owner,
    pub(super) routes: u64,
}

/// Memory that is freed here and that other processes may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retained {
    pub(super) gpu: DeviceIndex,
    pub(super) bytes: Bytes,
    pub(super) routes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) route: Route,
    /// The context whose destruction closes it.
    pub(super) owner: Option<Owner>,
    /// How often it was opened.
    pub(super) times: u32,
}

#[derive(Debug)]
pub(crate) struct ExportTable {
    /// Whether there ever was anything: in most programs there is not, and nothing is looked up.
    any: AtomicBool,
    pub(super) records: Spin<Records>,
}

#[derive(Debug)]
pub(super) struct Records {
    /// By the first address.
    pub(super) exported: Ordered<Exported>,
    pub(super) retained: Vec<Retained>,
    /// By first address.
    pub(super) opened: Ordered<Opened>,
    /// By bit, how many imports are open or about to be.
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

    pub(super) fn mark_used(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// Removes an allocation that is about to be freed; returns its routes.
    #[cold]
    pub(crate) fn take(&self, address: u64) -> u64 {
        self.records.lock().exported.remove(address).map_or(0, |exported| exported.routes)
    }

    /// Restores an allocation whose free the driver refused.
    #[cold]
    pub(crate) fn restore(
        &self,
        address: u64,
        gpu: DeviceIndex,
        bytes: Bytes,
        owner: Owner,
        routes: u64,
    ) {
        // It was removed a moment ago, so there is room.
        let _ =
            self.records.lock().exported.insert(address, Exported { gpu, bytes, owner, routes });
    }
}

impl Records {
    /// Counts an import that begins. Returns `true` if the slot's bit is not set yet.
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

    pub(super) fn bits(&self) -> u64 {
        let bit = |(bit, count): (usize, &u32)| u64::from(*count > 0) << bit;
        self.open.iter().enumerate().map(bit).fold(0, |all, bit| all | bit)
    }

    /// Removes and returns one export of `owner` from an address on.
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
