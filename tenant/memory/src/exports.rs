//! Memory between processes: exported to others, imported from them.
//!
//! ```text
//!   export ---> exported -- freed here --> no process has it open: refunded
//!                  |             |
//!                  |             +-------> retained: charged until no process has it open
//!                  +-- this process exits: an orphan in its slot (`cgpu_shm::slots`)
//!
//!   import ---> opened: published in our slot; costs nothing
//! ```
//!
//! The exporter pays, the importer does not. No call tells an exporter when the last importer
//! closes. But a legacy IPC handle and a pool's exported pointer are bytes that are only valid
//! while the exporter has the memory. A process imports them by a call that is hooked, and
//! publishes one bit, the hash of the bytes, in its slot before the driver is called. So memory
//! that is freed here is held elsewhere in the container only if some slot has that bit. Other
//! routes (a descriptor, a fabric handle, another process's multicast object) hold memory without
//! any hooked call: what was exported by them stays charged, and only the monitor sees its end.
//!
//! Handles may share a bit; memory that was freed then stays charged a little longer.

pub(crate) mod route;
pub(crate) mod table;

use std::mem::ManuallyDrop;

use cgpu_shm::layout::EXPORTED_UNSEEN;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::route::Route;
use self::table::{Exported, Opened, Retained};
use crate::allocations::table::Owner;
use crate::allocations::table::units::bytes;
use crate::contexts::table::Context;
use crate::handles::Address;
use crate::tables::{Tables, part};

part!(
    /// Memory of this process that others may hold, and theirs that it has open.
    Exports
);

impl<'a> Exports<'a> {
    /// Notes that the driver exported a handle to the linear memory that begins at `address`: other
    /// processes may hold it from now on, and it stays charged after this process has exited.
    /// Memory that is not accounted is left as it is.
    pub fn export(self, address: Address, route: Route) {
        let Some((gpu, allocation)) = self.tables.allocations.find(address.0) else { return };
        self.tables.exports.mark_used();
        self.tables.ledger.add_routes(route.0);
        let (bytes, owner) = (bytes(allocation.units), allocation.owner);
        let mut records = self.tables.exports.records.lock();
        if let Some(exported) =
            records.exported.get(address.0).filter(|exported| exported.owner == owner)
        {
            exported.routes |= route.0;
            return;
        }
        let inserted =
            records.exported.insert(address.0, Exported { gpu, bytes, owner, routes: route.0 });
        drop(records);
        match inserted {
            Ok(None) => self.tables.ledger.export(gpu, bytes),
            // A former allocation at this address, whose free was not seen.
            Ok(Some(former)) => {
                self.tables.ledger.withdraw_kept(former.gpu, former.bytes);
                self.tables.ledger.export(gpu, bytes);
            }
            Err(_) => {
                // Removed from the table of allocations: it stays charged when it is freed.
                self.tables.ledger.export(gpu, bytes);
                self.tables.allocations.remove(address.0);
                self.tables.ledger.count(Reason::Unrecorded);
            }
        }
    }

    /// Refunds exported memory that is freed here, or leaves it charged if other processes may have
    /// it open.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_exported(self, gpu: DeviceIndex, bytes: Bytes, routes: u64) {
        if !self.retain(gpu, bytes, routes) {
            // The last importer may have closed it before this check.
            self.tables.ledger.refund_exported(gpu, bytes);
        }
    }

    /// Retains memory that is freed here, charged and exported, if other processes may hold it.
    /// Returns whether it does.
    pub(crate) fn retain(self, gpu: DeviceIndex, bytes: Bytes, routes: u64) -> bool {
        if !self.may_be_held(routes) {
            return false;
        }
        self.tables.ledger.count(Reason::ExportedKept);
        if routes & EXPORTED_UNSEEN == 0 {
            self.tables.exports.mark_used();
            let mut records = self.tables.exports.records.lock();
            if records.retained.try_reserve(1).is_ok() {
                records.retained.push(Retained { gpu, bytes, routes });
            }
        }
        true
    }

    /// Refunds retained memory that no process has open any more.
    #[inline]
    pub(crate) fn refund_unheld(self) {
        if self.tables.exports.any() {
            self.refund_unheld_now();
        }
    }

    #[cold]
    fn refund_unheld_now(self) {
        loop {
            let mut records = self.tables.exports.records.lock();
            if records.retained.is_empty() {
                return;
            }
            let opened = self.tables.ledger.opened();
            let Some(index) =
                records.retained.iter().position(|retained| retained.routes & opened == 0)
            else {
                return;
            };
            let Retained { gpu, bytes, .. } = records.retained.swap_remove(index);
            drop(records);
            self.tables.ledger.refund_exported(gpu, bytes);
        }
    }

    fn may_be_held(self, routes: u64) -> bool {
        routes & EXPORTED_UNSEEN != 0 || self.tables.ledger.opened() & routes != 0
    }

    /// Splits the bytes of a destroyed context's allocations: returns those that were not exported,
    /// and frees those that were. Closes what was imported in it.
    pub(crate) fn unexported(self, owner: Owner, used: Bytes) -> Bytes {
        if !self.tables.exports.any() {
            return used;
        }
        let (mut from, mut rest) = (0, used);
        loop {
            let exported = self.tables.exports.records.lock().exported_by(owner, &mut from);
            let Some(Exported { gpu, bytes, routes, .. }) = exported else { break };
            rest = rest - bytes;
            self.free_exported(gpu, bytes, routes);
        }
        let mut records = self.tables.exports.records.lock();
        if records.close_of(owner) {
            self.tables.ledger.set_opened_handles(records.bits());
        }
        rest
    }

    /// Begins the import of a handle.
    pub fn begin_import(self, route: Route) -> PendingImport<'a> {
        self.tables.exports.mark_used();
        let mut records = self.tables.exports.records.lock();
        if records.begin(route) {
            self.tables.ledger.set_opened_handles(records.bits());
        }
        PendingImport { tables: self.tables, route }
    }

    /// Notes that a descriptor was exported of what is imported at this address. It holds that
    /// memory after it is closed here, and its end is not seen: the import counts as open as long
    /// as this process lives.
    pub fn pin(self, address: Address) {
        if !self.tables.exports.any() {
            return;
        }
        let mut records = self.tables.exports.records.lock();
        if let Some(route) = records.opened.get(address.0).map(|opened| opened.route) {
            // The slot's bit is set already.
            let _ = records.begin(route);
        }
    }

    /// Begins to close what was imported at this address; `None` if nothing was.
    #[inline]
    pub fn begin_close(self, address: Address) -> Option<PendingClose<'a>> {
        if !self.tables.exports.any() {
            return None;
        }
        self.tables.exports.records.lock().opened.get(address.0)?;
        Some(PendingClose { tables: self.tables, address })
    }

    fn close(self, route: Route) {
        let mut records = self.tables.exports.records.lock();
        records.end(route);
        self.tables.ledger.set_opened_handles(records.bits());
    }
}

/// An import that the driver is about to make. Undone if it is dropped without
/// [`PendingImport::opened`].
#[derive(Debug)]
#[must_use = "an opening that is dropped has not happened"]
pub struct PendingImport<'a> {
    tables: &'a Tables,
    route: Route,
}

impl PendingImport<'_> {
    /// Records that the driver opened it at `address`, in this context if it belongs to one.
    pub fn opened(self, address: Address, context: Option<Context>) {
        let Self { tables, route } = *ManuallyDrop::new(self);
        let owner = context.map(Context::owner);
        let mut records = tables.exports.records.lock();
        if let Some(opened) = records.opened.get(address.0).filter(|opened| opened.route == route) {
            opened.times = opened.times.saturating_add(1);
            return;
        }
        match records.opened.insert(address.0, Opened { route, owner, times: 1 }) {
            Ok(None) => {}
            // The former one was closed in a way that was not seen.
            Ok(Some(former)) => {
                (0..former.times).for_each(|_| records.end(former.route));
                tables.ledger.set_opened_handles(records.bits());
            }
            // It counts as open until the process exits.
            Err(_) => {
                drop(records);
                tables.ledger.count(Reason::Unrecorded);
            }
        }
    }
}

impl Drop for PendingImport<'_> {
    fn drop(&mut self) {
        Exports::new(self.tables).close(self.route);
    }
}

/// An import that the driver is about to close. Unchanged if it is dropped.
#[derive(Debug)]
#[must_use = "a closing that is dropped has not happened"]
pub struct PendingClose<'a> {
    tables: &'a Tables,
    address: Address,
}

impl PendingClose<'_> {
    /// Records that the driver closed it once.
    pub fn closed(self) {
        let mut records = self.tables.exports.records.lock();
        let Some(opened) = records.opened.get(self.address.0) else { return };
        opened.times = opened.times.saturating_sub(1);
        let Opened { route, times, .. } = *opened;
        if times == 0 {
            records.opened.remove(self.address.0);
        }
        records.end(route);
        self.tables.ledger.set_opened_handles(records.bits());
    }
}

#[cfg(test)]
mod tests;
