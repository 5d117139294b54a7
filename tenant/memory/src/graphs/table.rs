//! The executable graphs of a process that allocate memory: what each can take of which GPU.
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

/// Where the driver keeps the list of a conditional node's bodies, and how many there are. It lives
/// as long as the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bodies {
    /// The list's address.
    pub list: usize,
    /// Its length.
    pub count: u32,
}

/// A stream, by a name that no other one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Its handle.
    pub stream: usize,
    /// The context whose default stream it is; 0 for streams that are none.
    pub context: usize,
    /// The thread whose default stream it is; 0 for all others.
    pub thread: u64,
}

/// What an executable graph can take of one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) at: PoolRef,
    /// The most that it needs.
    pub(super) bytes: Bytes,
    /// Since when it has that, and in which stream it was launched then.
    pub(super) has: Option<(Retention, Lane)>,
    /// Which executable graph this is: another one may have its handle later.
    number: u64,
}

impl Share {
    pub(super) fn new(at: PoolRef, bytes: Bytes) -> Self {
        Self { at, bytes, has: None, number: 0 }
    }
}

/// Which executable graph stood under a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNumber(u64);

/// The table.
#[derive(Debug)]
pub(crate) struct GraphTable {
    /// How many executable graphs with memory have a handle of each kind ([`kind`]): all others
    /// need not be looked for.
    kinds: [AtomicU32; KINDS],
    table: Spin<Table>,
}

const KINDS: usize = 1 << 10;

#[derive(Debug)]
struct Table {
    /// By handle and GPU.
    shares: Ordered<Share>,
    /// The bodies of conditional nodes.
    bodies: Ordered<Bodies>,
    made: u64,
}

impl Table {
    /// The next share of a graph from a GPU on.
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

/// A handle is an address, so its uppermost bits are free.
fn key(graph: GraphId, gpu: usize) -> u64 {
    const { assert!(GPUS == 16) };
    ((graph.0 as u64) << 4) | gpu as u64
}

/// Any of the bits of a handle may be the same in all of them.
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

    /// Whether an executable graph may have memory; without a lock.
    ///
    /// Relaxed: who launches in another thread than it was made in has been told of it by means of
    /// the program's own.
    #[inline]
    pub(super) fn may_know(&self, graph: GraphId) -> bool {
        self.kinds.get(kind(graph)).is_some_and(|kind| kind.load(Ordering::Relaxed) != 0)
    }

    /// Enters an executable graph; what stood under its handle is gone.
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

    /// It can take `bytes` more than was thought.
    pub(super) fn add(&self, graph: GraphId, more: Share) -> Result<(), Exhausted> {
        let mut table = self.table.lock();
        let first = table.share(graph, 0);
        table.made += 1;
        let number = first.map_or(table.made, |share| share.number);
        let place = key(graph, more.at.gpu.get());
        match table.shares.get(place) {
            Some(share) => (share.bytes, share.has) = (share.bytes + more.bytes, None),
            None => drop(table.shares.insert(place, Share { number, ..more })?),
        }
        self.count(graph, first.is_some(), true);
        Ok(())
    }

    /// What it can take of each GPU.
    pub(super) fn shares(&self, graph: GraphId) -> impl Iterator<Item = Share> {
        let next = move |from: usize| self.table.lock().share(graph, from);
        iter::successors(next(0), move |share| next(share.at.gpu.get() + 1))
    }

    /// Since when it has its share.
    pub(super) fn set(&self, graph: GraphId, share: Share, has: Option<(Retention, Lane)>) {
        let mut table = self.table.lock();
        if let Some(known) = table.shares.get(key(graph, share.at.gpu.get()))
            && known.number == share.number
        {
            known.has = has;
        }
    }

    /// Which executable graph stands under a handle, if one with memory does.
    pub(super) fn number(&self, graph: GraphId) -> Option<GraphNumber> {
        let known = self.may_know(graph).then(|| self.table.lock().share(graph, 0))?;
        known.map(|share| GraphNumber(share.number))
    }

    /// That one is gone. The handle may be another one's by now.
    pub(super) fn destroyed(&self, graph: GraphId, number: GraphNumber) {
        let mut table = self.table.lock();
        if table.share(graph, 0).is_some_and(|share| share.number == number.0) {
            table.remove(graph);
            self.count(graph, true, false);
        }
    }

    /// Under the table's lock.
    fn count(&self, graph: GraphId, before: bool, after: bool) {
        let Some(kind) = self.kinds.get(kind(graph)) else { return };
        match (before, after) {
            (false, true) => kind.fetch_add(1, Ordering::Relaxed),
            (true, false) => kind.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => 0,
        };
    }

    /// A conditional node was made.
    pub(super) fn conditional(&self, node: NodeId, bodies: Bodies) -> Result<(), Exhausted> {
        self.table.lock().bodies.insert(node.0 as u64, bodies).map(|_| ())
    }

    pub(super) fn bodies(&self, node: NodeId) -> Option<Bodies> {
        self.table.lock().bodies.get(node.0 as u64).copied()
    }
}
