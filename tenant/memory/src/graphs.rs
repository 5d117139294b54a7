//! Memory that graphs allocate: charged by what the GPU has reserved for graphs, like a pool's.
//!
//! ```text
//!   instantiate ---> the graph and its parts are walked: what it can take of each GPU (Footprint)
//!   launch --------> it has it since its last launch: nothing is charged        \
//!            \-----> else its bound is charged, room made, or it is denied ------> the driver launches ---> reading, settled
//! ```
//!
//! What a GPU has reserved for the graphs of this process is one more pool of it ([`PoolId::of_graphs`]), with readings and tickets,
//! trims and settlement as pools have. Two things are different. A launch cannot be undone, so what is charged for it
//! is not a guess but a bound. And to charge the bound with every launch would refuse the second one in half a GPU, so a
//! launch that finds again what the last one took is charged nothing (`pools/table/tenure.rs`). `docs/memory.md` tells why that is safe.

mod executables;
mod footprint;

use cgpu_shm::layout::GPUS;
use cgpu_shm::ledger::Column;
use cgpu_shm::units::{Bytes, DeviceIndex as Gpu};

pub use self::executables::GraphNumber;
pub(crate) use self::executables::Graphs;
use self::executables::Share;
pub use self::footprint::Footprint;
use crate::ledger::{Denied, Patience};
use crate::pools::{Arrival, Departure, Known};
use crate::{PoolDriver, PoolId, Reason, Tenant, Unmade};

/// An executable graph as the driver names it (the `CUgraphExec` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GraphId(pub usize);

/// A graph's node as the driver names it (the `CUgraphNode` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId(pub usize);

/// Where the driver keeps the list of a conditional node's bodies, and how many there are. It lives as long as the node.
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

/// What an executable graph is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Run: then it has its memory.
    Launch,
    /// Be made ready: then it may have its memory.
    Upload,
}

/// The uppermost addresses, which no driver gives out, stand for what GPUs have reserved for graphs.
const OF_GRAPHS: usize = usize::MAX - (GPUS - 1);

impl PoolId {
    /// What a GPU has reserved for the graphs of this process.
    #[must_use]
    pub fn of_graphs(gpu: Gpu) -> Self {
        Self(OF_GRAPHS + gpu.get())
    }

    /// The GPU, if this is what a GPU has reserved for graphs.
    #[must_use]
    pub fn graphs_gpu(self) -> Option<Gpu> {
        Gpu::new(self.0.checked_sub(OF_GRAPHS)?)
    }

    pub(crate) fn is_of_graphs(self) -> bool {
        self.0 >= OF_GRAPHS
    }
}

/// One call of the program on each GPU that it concerns.
type Flights = [Option<(Share, Departure)>; GPUS];

impl Tenant {
    /// Instantiates a graph: makes the `call`, looks at what it has taken, and notes what the executable graph can take. With
    /// `uploads` it is made ready as well. `undo` has the driver destroy what the call has made.
    ///
    /// # Errors
    /// [`Unmade::Driver`]; [`Unmade::Denied`]: it would have taken, or has taken, what does not fit, and is destroyed again.
    pub fn instantiate<E>(
        &self,
        footprint: &mut Footprint,
        uploads: bool,
        driver: &'static dyn PoolDriver,
        call: impl FnOnce() -> Result<GraphId, E>,
        undo: impl FnOnce(GraphId),
    ) -> Result<(), Unmade<E>> {
        let mut flights: Flights = [None; GPUS];
        for (place, (gpu, bytes)) in flights.iter_mut().zip(footprint.bounds()) {
            let Some(share) = self.share(gpu, bytes, driver) else { continue };
            let charged = if uploads {
                self.charge_graph(share, &|| false).map(|()| bytes)
            } else {
                // The driver takes the memory later, as far as is known, so what does not fit yet is no reason to refuse.
                Ok(self.ledger.attempt(gpu, Column::Used, bytes).map_or(Bytes::ZERO, |()| bytes))
            };
            match charged {
                Ok(charged) => *place = self.depart(share, charged),
                Err(denied) => {
                    self.land(&flights, |_, _| ());
                    return Err(Unmade::Denied(denied));
                }
            }
        }
        let answer = call();
        let grown = self.land(&flights, |_, _| ());
        let graph = answer.map_err(Unmade::Driver)?;
        if let Some(share) = grown {
            undo(graph);
            return Err(Unmade::Denied(self.expel(share.at, share.bytes)));
        }
        self.enter_graph(graph, flights.iter().flatten().map(|(share, _)| *share));
        Ok(())
    }

    /// An executable graph does from now on what another graph says, the whole of it.
    pub fn graph_updated(&self, graph: GraphId, footprint: &mut Footprint, driver: &'static dyn PoolDriver) {
        let mut shares = [None; GPUS];
        for (place, (gpu, bytes)) in shares.iter_mut().zip(footprint.bounds()) {
            *place = self.share(gpu, bytes, driver);
        }
        self.enter_graph(graph, shares.into_iter().flatten());
    }

    /// A part of an executable graph does from now on what another graph says; what it did before stays counted.
    pub fn graph_part_updated(
        &self,
        graph: GraphId,
        footprint: &mut Footprint,
        driver: &'static dyn PoolDriver,
    ) {
        for (gpu, bytes) in footprint.bounds() {
            let Some(share) = self.share(gpu, bytes, driver) else { continue };
            if self.graphs.add(graph, share).is_err() {
                self.count(Reason::Unrecorded);
            }
        }
    }

    /// The first of the GPUs of which an executable graph can take memory. That it can take none is nearly always found
    /// without a lock.
    #[inline]
    #[must_use]
    pub fn graph_gpu(&self, graph: GraphId) -> Option<Gpu> {
        if !self.graphs.may_know(graph) {
            return None;
        }
        self.graphs.shares(graph).next().map(|share| share.at.gpu)
    }

    /// Sends an executable graph to the GPU: charges what it may take, makes the `call`, looks at what it has taken. `is_busy`
    /// says whether the stream still has something to do.
    ///
    /// # Errors
    /// [`Unmade::Driver`]; [`Unmade::Denied`]: it can take more than there is room for, and the driver was not asked.
    pub fn send<E>(
        &self,
        graph: GraphId,
        sending: Sending,
        lane: Lane,
        call: impl FnOnce() -> Result<(), E>,
        is_busy: impl Fn() -> bool,
    ) -> Result<(), Unmade<E>> {
        let mut flights: Flights = [None; GPUS];
        for (place, share) in flights.iter_mut().zip(self.graphs.shares(graph)) {
            match self.board(share, lane, &is_busy) {
                Ok(flight) => *place = flight,
                Err(denied) => {
                    self.land(&flights, |_, _| ());
                    return Err(Unmade::Denied(denied));
                }
            }
        }
        let answer = call();
        let has = |arrival: Arrival| answer.is_ok() && (arrival.seen || sending == Sending::Launch);
        let grown = self.land(&flights, |share, arrival| {
            let since = arrival.filter(|arrival| has(*arrival)).map(|arrival| (arrival.tenure, lane));
            self.graphs.set(graph, share, since);
        });
        if let Some(share) = grown {
            // It is launched, and nobody can undo that.
            self.count(Reason::GraphGrew);
            self.pools.paid(share.at);
        }
        answer.map_err(Unmade::Driver)
    }

    /// Which executable graph with memory stands under a handle; asked before the driver destroys it.
    #[must_use]
    pub fn graph_number(&self, graph: GraphId) -> Option<GraphNumber> {
        self.graphs.number(graph)
    }

    /// The driver has destroyed that one. What it has taken stays reserved.
    pub fn graph_gone(&self, graph: GraphId, number: GraphNumber) {
        self.graphs.gone(graph, number);
    }

    /// The driver has made a conditional node.
    pub fn conditional_made(&self, node: NodeId, bodies: Bodies) {
        if self.graphs.conditional(node, bodies).is_err() {
            self.count(Reason::Unrecorded);
        }
    }

    /// The bodies of a conditional node.
    #[must_use]
    pub fn conditional(&self, node: NodeId) -> Option<Bodies> {
        self.graphs.bodies(node)
    }

    /// What a graph can take of a GPU. None: no host memory for the books of that.
    fn share(&self, gpu: Gpu, bytes: Bytes, driver: &'static dyn PoolDriver) -> Option<Share> {
        let id = PoolId::of_graphs(gpu);
        self.pool_seen(id, Some(gpu), driver);
        match self.pools.find(id) {
            Known::Charged(at) => Some(Share::new(at, bytes)),
            _ => None,
        }
    }

    /// Without host memory for an entry, growth is seen by readings only.
    fn enter_graph(&self, graph: GraphId, shares: impl Iterator<Item = Share>) {
        if self.graphs.enter(graph, shares).is_err() {
            self.count(Reason::Unrecorded);
        }
    }

    /// Goes to the driver: with what the graph has since its last launch, else under a charge for all that it can take.
    fn board(
        &self,
        share: Share,
        lane: Lane,
        is_busy: &impl Fn() -> bool,
    ) -> Result<Option<(Share, Departure)>, Denied> {
        let has = share.has.filter(|(_, since)| *since == lane);
        match has.and_then(|(tenure, _)| self.pools.depart_again(share.at, share.bytes, tenure)) {
            Some(departure) => Ok(Some((share, departure))),
            None => {
                self.charge_graph(share, is_busy)?;
                Ok(self.depart(share, share.bytes))
            }
        }
    }

    /// Goes to the driver, under a charge that is on the ledger.
    fn depart(&self, share: Share, charged: Bytes) -> Option<(Share, Departure)> {
        let departure = self.pools.depart(share.at, share.bytes, charged);
        if departure.is_none() {
            self.ledger.refund(share.at.gpu, Column::Used, charged);
        }
        Some((share, departure?))
    }

    /// Looks at what came of a call, and says where more was taken than fits.
    fn land(&self, flights: &Flights, mut arrived: impl FnMut(Share, Option<Arrival>)) -> Option<Share> {
        let mut grown = None;
        for (share, departure) in flights.iter().flatten() {
            if !self.landed(share.at, departure.flight) {
                grown = Some(*share);
            }
            arrived(*share, self.pools.arrive(departure));
        }
        grown
    }

    #[inline]
    fn charge_graph(&self, share: Share, is_busy: &impl Fn() -> bool) -> Result<(), Denied> {
        match self.ledger.attempt(share.at.gpu, Column::Used, share.bytes) {
            Ok(()) => Ok(()),
            Err(_) => self.charge_graph_patiently(share, is_busy),
        }
    }

    /// Makes room: what pools and graphs can spare goes back, and what the stream still uses is waited for.
    #[cold]
    #[inline(never)]
    fn charge_graph_patiently(&self, share: Share, is_busy: &impl Fn() -> bool) -> Result<(), Denied> {
        let Share { at, bytes, .. } = share;
        let mut patience = Patience::default();
        while bytes <= self.ledger.limit(at.gpu) {
            // Asked before the trim that is to see what the stream has come to.
            let is_idle = !is_busy();
            self.each_pool(Some(at.gpu), true);
            if self.ledger.charge_patiently(at.gpu, Column::Used, bytes).is_ok() {
                return Ok(());
            }
            if is_idle || !self.ledger.nap(&mut patience) {
                break;
            }
        }
        self.ledger.charge(at.gpu, Column::Used, bytes, Reason::OverLimit)
    }
}

#[cfg(test)]
mod tests;
