//! Memory that graphs allocate: charged by what the GPU has reserved for graphs, like a pool's.
//!
//! ```text
//!   instantiate ---> walk the graph and its parts: an upper bound for each GPU (Footprint)
//!   launch --------> it still has the memory of its last launch: nothing is charged --+
//!            \-----> else charge the bound, after trims if need be; or denied ---------+
//!                                                                                     v
//!                                                                      driver ---> reading
//! ```
//!
//! What a GPU has reserved for the graphs of this process is one more pool ([`PoolId::of_graphs`]),
//! with readings, tickets and trims. Two things differ. A launch cannot be undone, so its charge is
//! an upper bound, not an estimate. And if each launch were charged its bound, the second one in
//! half a GPU would be refused, so a launch that finds the memory of the former one is charged
//! nothing (`pools/table/retention.rs`). `docs/internals/memory.md` has the argument why that is
//! safe.

mod footprint;
pub(crate) mod table;

use cgpu_shm::layout::GPUS;
use cgpu_shm::ledger::Column;
use cgpu_shm::reason::Reason;
use cgpu_shm::units::{Bytes, DeviceIndex};

pub use self::footprint::Footprint;
use self::table::Share;
pub use self::table::{Bodies, GraphNumber, Lane};
use crate::handles::{GraphId, NodeId, PoolId};
use crate::ledger::{Denied, WaitBudget};
use crate::pools::table::{CallOutcome, Lookup, PendingCall};
use crate::pools::{PoolDriver, PoolError, Pools};
use crate::tables::part;

/// A driver call for an executable graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Launch: the graph then has its memory.
    Launch,
    /// Upload: the graph may have its memory then.
    Upload,
}

/// One call of the program, by GPU.
type Calls = [Option<(Share, PendingCall)>; GPUS];

part!(
    /// The executable graphs of this process that allocate memory.
    Graphs
);

impl<'a> Graphs<'a> {
    #[inline]
    fn pools(self) -> Pools<'a> {
        Pools::new(self.tables)
    }

    /// Instantiates a graph: makes the `call`, reads what it has taken, and records what the
    /// executable graph can take. `uploads` says that the call uploads the graph as well. `undo`
    /// destroys what the call has instantiated.
    ///
    /// # Errors
    /// [`PoolError::Driver`]; [`PoolError::Denied`] if it would exceed or has exceeded the limit:
    /// nothing stays instantiated.
    pub fn instantiate<E>(
        self,
        footprint: &mut Footprint,
        uploads: bool,
        driver: &'static dyn PoolDriver,
        call: impl FnOnce() -> Result<GraphId, E>,
        undo: impl FnOnce(GraphId),
    ) -> Result<(), PoolError<E>> {
        let _call = self.tables.ledger.call();
        let mut calls: Calls = [None; GPUS];
        for (slot, (gpu, bytes)) in calls.iter_mut().zip(footprint.bounds()) {
            let Some(share) = self.share(gpu, bytes, driver) else { continue };
            let charged = if uploads {
                self.charge_graph(share, &|| false).map(|()| bytes)
            } else {
                // The driver takes the memory later, as far as is known: no room now is no reason
                // to refuse.
                Ok(self
                    .tables
                    .ledger
                    .try_charge(gpu, Column::Used, bytes)
                    .map_or(Bytes::ZERO, |()| bytes))
            };
            match charged {
                Ok(charged) => *slot = self.begin_call(share, charged),
                Err(denied) => {
                    self.finish(&calls, |_, _| ());
                    return Err(PoolError::Denied(denied));
                }
            }
        }
        let answer = call();
        let grown = self.finish(&calls, |_, _| ());
        let graph = answer.map_err(PoolError::Driver)?;
        if let Some(share) = grown {
            undo(graph);
            return Err(PoolError::Denied(self.pools().evict_excess(share.at, share.bytes)));
        }
        self.enter_graph(graph, calls.iter().flatten().map(|(share, _)| *share));
        Ok(())
    }

    /// Records that a whole executable graph was updated from another graph.
    pub fn updated(
        self,
        graph: GraphId,
        footprint: &mut Footprint,
        driver: &'static dyn PoolDriver,
    ) {
        let mut shares = [None; GPUS];
        for (slot, (gpu, bytes)) in shares.iter_mut().zip(footprint.bounds()) {
            *slot = self.share(gpu, bytes, driver);
        }
        self.enter_graph(graph, shares.into_iter().flatten());
    }

    /// Records that a part of an executable graph was updated. What the part took before stays
    /// counted.
    pub fn part_updated(
        self,
        graph: GraphId,
        footprint: &mut Footprint,
        driver: &'static dyn PoolDriver,
    ) {
        for (gpu, bytes) in footprint.bounds() {
            let Some(share) = self.share(gpu, bytes, driver) else { continue };
            if self.tables.graphs.add(graph, share).is_err() {
                self.tables.ledger.count(Reason::Unrecorded);
            }
        }
    }

    /// Returns the first GPU whose memory an executable graph can take. The usual answer, `None`,
    /// nearly always takes no lock.
    #[inline]
    #[must_use]
    pub fn gpu(self, graph: GraphId) -> Option<DeviceIndex> {
        if !self.tables.graphs.may_know(graph) {
            return None;
        }
        self.tables.graphs.shares(graph).next().map(|share| share.at.gpu)
    }

    /// Launches or uploads an executable graph: charges what it may take, makes the `call`, and
    /// reads what it has taken. `is_busy` says whether the stream has unfinished work.
    ///
    /// # Errors
    /// [`PoolError::Driver`]; [`PoolError::Denied`] if it can take more than there is room for: the
    /// driver was not called.
    pub fn send<E>(
        self,
        graph: GraphId,
        submission: Submission,
        lane: Lane,
        call: impl FnOnce() -> Result<(), E>,
        is_busy: impl Fn() -> bool,
    ) -> Result<(), PoolError<E>> {
        let _call = self.tables.ledger.call();
        let mut calls: Calls = [None; GPUS];
        for (slot, share) in calls.iter_mut().zip(self.tables.graphs.shares(graph)) {
            match self.begin(share, lane, &is_busy) {
                Ok(reservation) => *slot = reservation,
                Err(denied) => {
                    self.finish(&calls, |_, _| ());
                    return Err(PoolError::Denied(denied));
                }
            }
        }
        let answer = call();
        let has = |outcome: CallOutcome| {
            answer.is_ok() && (outcome.seen || submission == Submission::Launch)
        };
        let grown = self.finish(&calls, |share, outcome| {
            let since =
                outcome.filter(|outcome| has(*outcome)).map(|outcome| (outcome.retention, lane));
            self.tables.graphs.set(graph, share, since);
        });
        if let Some(share) = grown {
            // It is launched, which cannot be undone.
            self.tables.ledger.count(Reason::GraphGrew);
            self.tables.pools.paid(share.at);
        }
        answer.map_err(PoolError::Driver)
    }

    /// Returns the number of the executable graph with this handle, before the driver destroys it;
    /// `None` if it has no memory.
    #[must_use]
    pub fn number(self, graph: GraphId) -> Option<GraphNumber> {
        self.tables.graphs.number(graph)
    }

    /// Removes a destroyed executable graph. The memory that it has taken stays reserved.
    pub fn destroyed(self, graph: GraphId, number: GraphNumber) {
        self.tables.graphs.destroyed(graph, number);
    }

    /// Records the bodies of a conditional node.
    pub fn conditional_made(self, node: NodeId, bodies: Bodies) {
        if self.tables.graphs.conditional(node, bodies).is_err() {
            self.tables.ledger.count(Reason::Unrecorded);
        }
    }

    /// Returns the bodies of a conditional node.
    #[must_use]
    pub fn conditional(self, node: NodeId) -> Option<Bodies> {
        self.tables.graphs.bodies(node)
    }

    /// Returns the share of a GPU's memory that a graph can take. `None` without host memory for
    /// it.
    fn share(
        self,
        gpu: DeviceIndex,
        bytes: Bytes,
        driver: &'static dyn PoolDriver,
    ) -> Option<Share> {
        let id = PoolId::of_graphs(gpu);
        self.pools().adopt(id, Some(gpu), driver);
        match self.tables.pools.find(id) {
            Lookup::Charged(at) => Some(Share::new(at, bytes)),
            _ => None,
        }
    }

    /// Without host memory for an entry, growth is only seen by readings.
    fn enter_graph(self, graph: GraphId, shares: impl Iterator<Item = Share>) {
        if self.tables.graphs.enter(graph, shares).is_err() {
            self.tables.ledger.count(Reason::Unrecorded);
        }
    }

    /// Begins a call: free of charge if the graph still has the memory of its last launch in this
    /// lane, else charged with its bound.
    fn begin(
        self,
        share: Share,
        lane: Lane,
        is_busy: &impl Fn() -> bool,
    ) -> Result<Option<(Share, PendingCall)>, Denied> {
        let has = share.has.filter(|(_, since)| *since == lane);
        match has.and_then(|(retention, _)| {
            self.tables.pools.begin_retained_call(share.at, share.bytes, retention)
        }) {
            Some(pending_call) => Ok(Some((share, pending_call))),
            None => {
                self.charge_graph(share, is_busy)?;
                Ok(self.begin_call(share, share.bytes))
            }
        }
    }

    /// Begins a call that has been charged.
    fn begin_call(self, share: Share, charged: Bytes) -> Option<(Share, PendingCall)> {
        let pending_call = self.tables.pools.begin_call(share.at, share.bytes, charged);
        if pending_call.is_none() {
            self.tables.ledger.refund(share.at.gpu, Column::Used, charged);
        }
        Some((share, pending_call?))
    }

    /// Reads what the calls took. Returns a share that grew by more than fits.
    fn finish(
        self,
        calls: &Calls,
        mut ended: impl FnMut(Share, Option<CallOutcome>),
    ) -> Option<Share> {
        let mut grown = None;
        for (share, pending_call) in calls.iter().flatten() {
            if !self.pools().call_ended(share.at, pending_call.reservation) {
                grown = Some(*share);
            }
            ended(*share, self.tables.pools.end_call(pending_call));
        }
        grown
    }

    #[inline]
    fn charge_graph(self, share: Share, is_busy: &impl Fn() -> bool) -> Result<(), Denied> {
        match self.tables.ledger.try_charge(share.at.gpu, Column::Used, share.bytes) {
            Ok(()) => Ok(()),
            Err(_) => self.charge_graph_waiting(share, is_busy),
        }
    }

    /// Charges after trimming pools and graphs, and waiting for what the stream still uses.
    #[cold]
    #[inline(never)]
    fn charge_graph_waiting(self, share: Share, is_busy: &impl Fn() -> bool) -> Result<(), Denied> {
        let Share { at, bytes, .. } = share;
        let mut budget = WaitBudget::default();
        while bytes <= self.tables.ledger.limit(at.gpu) {
            // Before the trim, which frees what the stream has finished with.
            let is_idle = !is_busy();
            self.pools().each_pool(Some(at.gpu), true);
            if self.tables.ledger.charge_waiting(at.gpu, Column::Used, bytes).is_ok() {
                return Ok(());
            }
            if is_idle || !self.tables.ledger.sleep_backoff(&mut budget) {
                break;
            }
        }
        self.tables.ledger.charge(at.gpu, Column::Used, bytes, Reason::OverLimit)
    }
}

#[cfg(test)]
mod tests;
