//! The executable graphs of a process that allocate memory, and what each can take of each GPU.
//!
//! Nothing in here calls the driver or the ledger.

use std::iter;

use cgpu_shm::atomic::{AtomicU32, Ordering};
use cgpu_shm::layout::GPUS;
use cgpu_shm::spin::Spin;
use cgpu_shm::units::Bytes;

use crate::allocations::table::Exhausted;
use crate::handles::{GraphId, NodeId};
use crate::ordered::Ordered;
use crate::pools::table::{PoolRef, Retention};

/// The driver's list of a conditional node's bodies. It is valid as long as the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bodies {
    /// The list's address.
    pub list: usize,
    /// Its length.
    pub count: u32,
}

/// A stream's unique identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Its handle.
    pub stream: usize,
    /// The context whose default stream it is; 0 for other streams.
    pub context: usize,
    /// The thread whose default stream it is; 0 for other streams.
    pub thread: u64,
}

/// The memory that an executable graph can take of one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) at: PoolRef,
    pub(super) bytes: Bytes,
    /// Since when it has that memory, and the stream of that launch.
    pub(super) has: Option<(Retention, Lane)>,
    /// Number of the executable graph: its handle may be reused.
    number: u64,
}

impl Share {
    pub(super) fn new(at: PoolRef, bytes: Bytes) -> Self {
        Self { at, bytes, has: None, number: 0 }
    }
}

/// The number of an executable graph; handles are reused, numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNumber(u64);

#[derive(Debug)]
pub(crate) struct GraphTable {
    /// By hash of the handle ([`kind`]), the number of executable graphs with memory: where it is
    /// zero, no look-up is needed.
    kinds: [AtomicU32; KINDS],
    table: Spin<Table>,
}

const KINDS: usize = 1 << 10;

#[derive(Debug)]
struct Table {
    /// By handle and GPU.
    shares: Ordered<Share>,
    bodies: Ordered<Bodies>,
    made: u64,
}

impl Table {
    /// Returns the next share of a graph, from a GPU on.
    fn share(&self, graph: GraphId, from: usize) -> Option<Share> {
        let (at, share) = self.shares.from(key(graph, from))?;
        (at <= key(graph, GPUS - 1)).then_some(share)
    }

    fn remove(&mut self, graph: GraphId) -> bool {
        let mut any = false;
        while let Some(share) = self.share(graph, 0) {
            self.shares.remove(key(graph, share.at.gpu.get()));
            any = true;
        }
        any
    }
}

/// A handle is a host address, so its uppermost bits are zero.
fn key(graph: GraphId, gpu: usize) -> u64 {
    const { assert!(GPUS == 16) };
    ((graph.0 as u64) << 4) | gpu as u64
}

/// Hashes a handle: any of its bits may be the same in all handles.
fn kind(graph: GraphId) -> usize {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let [high, low, ..] = (graph.0 as u64).wrapping_mul(MIX).to_be_bytes();
    usize::from(u16::from_be_bytes([high, low])) % KINDS
}

impl GraphTable {
    pub(crate) fn new() -> Self {
        let table = Table { shares: Ordered::new(), bodies: Ordered::new(), made: 0 };
        Self { kinds: [const { AtomicU32::new(0) }; KINDS], table: Spin::new(table) }
    }

    /// Returns whether an executable graph may have memory. Takes no lock.
    ///
    /// Relaxed: a thread that launches a graph of another thread is synchronized with it by the
    /// program.
    #[inline]
    pub(super) fn may_know(&self, graph: GraphId) -> bool {
        self.kinds.get(kind(graph)).is_some_and(|kind| kind.load(Ordering::Relaxed) != 0)
    }

    /// Enters an executable graph, and removes the former one with its handle.
    pub(super) fn enter(
        &self,
        graph: GraphId,
        shares: impl Iterator<Item = Share>,
    ) -> Result<(), Exhausted> {
        let mut table = self.table.lock();
        let known = table.remove(graph);
        table.made += 1;
        let number = table.made;
        let mut entered = Ok(());
        for share in shares {
            let key = key(graph, share.at.gpu.get());
            entered = entered.and(table.shares.insert(key, Share { number, ..share }).map(|_| ()));
        }
        self.count(graph, known, table.share(graph, 0).is_some());
        entered
    }

    /// Adds `more` to what it can take of a GPU.
    pub(super) fn add(&self, graph: GraphId, more: Share) -> Result<(), Exhausted> {
        let mut table = self.table.lock();
        let first = table.share(graph, 0);
        table.made += 1;
        let number = first.map_or(table.made, |share| share.number);
        let key = key(graph, more.at.gpu.get());
        match table.shares.get(key) {
            Some(share) => (share.bytes, share.has) = (share.bytes + more.bytes, None),
            None => drop(table.shares.insert(key, Share { number, ..more })?),
        }
        self.count(graph, first.is_some(), true);
        Ok(())
    }

    /// Returns what it can take of each GPU.
    pub(super) fn shares(&self, graph: GraphId) -> impl Iterator<Item = Share> {
        let next = move |from: usize| self.table.lock().share(graph, from);
        iter::successors(next(0), move |share| next(share.at.gpu.get() + 1))
    }

    /// Sets since when it has its share.
    pub(super) fn set(&self, graph: GraphId, share: Share, has: Option<(Retention, Lane)>) {
        let mut table = self.table.lock();
        if let Some(known) = table.shares.get(key(graph, share.at.gpu.get()))
            && known.number == share.number
        {
            known.has = has;
        }
    }

    /// Returns the number of the executable graph with this handle, if it has memory.
    pub(super) fn number(&self, graph: GraphId) -> Option<GraphNumber> {
        let known = self.may_know(graph).then(|| self.table.lock().share(graph, 0))?;
        known.map(|share| GraphNumber(share.number))
    }

    /// Removes an executable graph, unless its handle has been reused.
    pub(super) fn destroyed(&self, graph: GraphId, number: GraphNumber) {
        let mut table = self.table.lock();
        if table.share(graph, 0).is_some_and(|share| share.number == number.0) {
            table.remove(graph);
            self.count(graph, true, false);
        }
    }

    /// Updates the number of graphs with this hash. The table must be locked.
    fn count(&self, graph: GraphId, before: bool, after: bool) {
        let Some(kind) = self.kinds.get(kind(graph)) else { return };
        match (before, after) {
            (false, true) => kind.fetch_add(1, Ordering::Relaxed),
            (true, false) => kind.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => 0,
        };
    }

    pub(super) fn conditional(&self, node: NodeId, bodies: Bodies) -> Result<(), Exhausted> {
        self.table.lock().bodies.insert(node.0 as u64, bodies).map(|_| ())
    }

    pub(super) fn bodies(&self, node: NodeId) -> Option<Bodies> {
        self.table.lock().bodies.get(node.0 as u64).copied()
    }
}
