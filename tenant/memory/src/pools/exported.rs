//! Pools that other processes may open, or whose memory they may hold.

use cgpu_shm::reason::Reason;
use cgpu_shm::units::Bytes;

use super::Pools;
use super::table::{Lookup, PoolRef};
use crate::exports::{Exports, Route};
use crate::handles::PoolId;

impl Pools<'_> {
    /// Records that a handle to a pool was exported: all that it holds stays charged after this
    /// process has exited.
    pub fn exported(self, id: PoolId) {
        if let Lookup::Charged(at) = self.tables.pools.find(id) {
            self.tables.pools.export(at);
            self.enter_export(at);
        }
    }

    /// Records that a descriptor of a piece of this size was exported. Its end is not seen.
    pub fn piece_exported(self, id: PoolId, piece: Bytes) {
        if let Lookup::Charged(at) = self.tables.pools.find(id) {
            self.tables.ledger.add_routes(Route::UNTRACKED.0);
            self.tables.pools.export_descriptor(at, piece);
            self.tables.pools.export(at);
            self.enter_export(at);
        }
    }

    /// Records that a pointer of an exported pool was exported.
    pub fn pointer_exported(self, route: Route) {
        self.tables.ledger.add_routes(route.0);
        self.tables.pools.point(route.0);
    }

    /// Accounts what an exported pool holds as exported. What it no longer holds may be held by
    /// others, by imported pointers or by descriptors: returns how much of it stays charged.
    pub(super) fn enter_export(self, at: PoolRef) -> Bytes {
        let (more, less) = self.tables.pools.exported(at);
        if more > Bytes::ZERO {
            self.tables.ledger.export(at.gpu, more);
        }
        if less == Bytes::ZERO
            || Exports::new(self.tables).retain(at.gpu, less, self.tables.pools.pointers())
        {
            return less;
        }
        let held = self.tables.pools.held_by_descriptors(at, less);
        if held > Bytes::ZERO {
            self.tables.ledger.count(Reason::ExportedKept);
        }
        self.tables.ledger.withdraw_kept(at.gpu, less - held);
        held
    }
}
