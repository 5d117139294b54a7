//! What should have happened, told plainly: who has what, and what it is charged.
//!
//! Nothing here is shared with the code under test; the rounding is written down again.

mod code;
mod graphs;
mod pools;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

pub use code::{Code, Library, Module};
pub use graphs::{Capture, Drawn, Executable, Graphs, Node};
pub use ranges::{Part, Range};

use crate::command::{Limit, Words};

/// A mebibyte.
pub const MIB: u64 = 1 << 20;

/// What the simulated driver takes for a green context.
pub const GREEN: u64 = 8 * MIB;

/// What the driver takes small allocations out of.
pub const BLOCK: u64 = 2 * MIB;

/// What the driver takes for `bytes`: below 1 MiB steps of 512 bytes, from there on 2 MiB.
#[must_use]
pub fn rounded(bytes: u64) -> u64 {
    if bytes < MIB { bytes.next_multiple_of(512) } else { bytes.next_multiple_of(2 * MIB) }
}

/// An allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The context that it dies with.
    pub context: u32,
    /// What it is charged.
    pub charged: u64,
    /// As what others know it, if they do.
    pub lent: Option<u32>,
}

/// Physical memory behind handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Physical {
    /// What it is charged: nothing, on the host, nor what is another's.
    pub charged: u64,
    /// Its size.
    pub bytes: u64,
    /// Handles, mappings, bindings and tiles that hold it.
    pub references: u32,
    /// Whether it can be sent to others.
    pub shared: bool,
    /// Whether it can be mapped to tiles.
    pub tiles: bool,
    /// Whether others may have had it by an object that they have, too.
    pub known: bool,
    /// As what others know it, if they do.
    pub lent: Option<u32>,
    /// Whether it came from another process.
    pub imported: bool,
}

/// An allocation in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// Its size.
    pub bytes: u64,
    /// The pool.
    pub pool: u32,
    /// What others open it by, if they may.
    pub handle: Option<Words>,
}

/// A graph that allocates, and frees what it has allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graph {
    /// The context that it is launched in.
    pub context: u32,
    /// What its allocations take together, as they are asked for.
    pub bytes: u64,
    /// The most that is reserved for them: whole blocks.
    pub bound: u64,
}

/// An allocation of another process that is open in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where.
    pub context: u32,
    /// What.
    pub lent: u32,
}

/// Memory that its maker has made known to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// What it is charged, whoever holds it.
    pub charged: u64,
    /// Its size, of physical memory.
    pub bytes: u64,
    /// What others open it by; physical memory goes by descriptors.
    pub handle: Option<Words>,
    /// Whether it was its maker's when he died: it may be there for a moment.
    pub bereaved: bool,
}

/// A multicast object or an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Which of them.
    pub endpoint: bool,
    /// Whether it can be sent to others.
    pub shared: bool,
    /// As what others know it, if they do, or made it.
    pub lent: Option<u32>,
    /// By their places: whose memory is bound there.
    pub bound: BTreeMap<u64, u32>,
}

/// A limit of a context that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// What came with the context, in bytes of the GPU.
    pub came: u64,
    /// What it takes beyond.
    pub beyond: u64,
}

/// How far a process is with a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// It may be told what to do.
    #[default]
    Running,
    /// Its calls would wait.
    Locked,
    /// And its memory is not on the GPU.
    Away,
}

/// A living process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Whether the driver is initialised.
    pub started: bool,
    /// Contexts that are alive.
    pub contexts: Vec<u32>,
    /// Allocations by the name they were given.
    pub allocations: BTreeMap<u32, Allocation>,
    /// Arrays by the name they were given.
    pub arrays: BTreeMap<u32, Allocation>,
    /// Physical memory, by the key of its first handle.
    pub physical: BTreeMap<u32, Physical>,
    /// Handles: whose memory.
    pub handles: BTreeMap<u32, u32>,
    /// Mappings: whose memory.
    pub maps: BTreeMap<u32, u32>,
    /// Allocations of others that it has open.
    pub opened: BTreeMap<u32, Opened>,
    /// What the books may still say that it pays for others: what it lent, and has let go of.
    pub kept: u64,
    /// Pools that it has made beside the default one; as what others know them, if they do.
    pub pools: BTreeMap<u32, Option<u32>>,
    /// Pools of others: as what they are known.
    pub imported: BTreeMap<u32, u32>,
    /// Allocations in pools.
    pub pooled: BTreeMap<u32, Pooled>,
    /// Allocations of others' pools that it has open: their makers' names for them.
    pub opened_pooled: BTreeMap<u32, u32>,
    /// The most that its pools may hold, of those that have such a limit.
    pub caps: BTreeMap<u32, u64>,
    /// Those of its pools that lie in a locality domain: in which.
    pub local: BTreeMap<u32, u8>,
    /// The pool that the GPU allocates from.
    pub current: u32,
    /// Streams: their contexts.
    pub streams: BTreeMap<u32, u32>,
    /// Reserved addresses.
    pub ranges: BTreeMap<u32, Range>,
    /// Uses of contexts beyond the first.
    pub attached: BTreeMap<u32, u32>,
    /// Of the allocations: those with addresses of 32 bits.
    pub low: BTreeSet<u32>,
    /// Graphs that are ready to be launched.
    pub graphs: BTreeMap<u32, Graph>,
    /// Graphs that were made node by node, or captured.
    pub drawn: Graphs,
    /// Code, and what comes with it.
    pub code: Code,
    /// How often it has retained the primary context.
    pub retained: u32,
    /// Green contexts, views of the primary one.
    pub greens: Vec<u32>,
    /// Limits of contexts.
    pub limits: BTreeMap<(u32, Limit), Set>,
    /// Modules: their contexts, and what they take.
    pub modules: BTreeMap<u32, (u32, u64)>,
    /// Libraries: what each takes in a context, and the contexts that it has been brought into.
    pub libraries: BTreeMap<u32, (u64, BTreeSet<u32>)>,
    /// Multicast objects and endpoints.
    pub objects: BTreeMap<u32, Object>,
    /// Sparse arrays, by the context that they die with.
    pub sparse: BTreeMap<u32, u32>,
    /// Their tiles: whose memory.
    pub tiles: BTreeMap<(u32, u32), u32>,
    /// What another interface in it has allocated, which is on nobody's books.
    pub foreign: BTreeMap<u32, u64>,
    /// Other interfaces' memory: in which context, and its maker's name for it.
    pub externals: BTreeMap<u32, (u32, u32)>,
    /// Buffers in it.
    pub buffers: BTreeMap<u32, (u32, u32)>,
    /// How far it is with a checkpoint.
    pub progress: Progress,
    /// Whether it has ever had anything that others may have: then no driver need be able to checkpoint it.
    pub shares: bool,
    /// What its pools hold, and what is reserved for its graphs.
    pub pool: u64,
    /// What the books may still say they hold: pools shrink when the driver likes, and are read when it matters.
    pub pool_on_the_books: u64,
}

impl Process {
    /// What it is charged without its contexts.
    #[must_use]
    pub fn used(&self) -> u64 {
        let charged = |allocations: &BTreeMap<u32, Allocation>| -> u64 {
            allocations.values().map(|allocation| allocation.charged).sum()
        };
        let physical = self.physical.values().map(|physical| physical.charged).sum::<u64>();
        charged(&self.allocations) + charged(&self.arrays) + physical + self.pool
    }

    /// Whether its memory is on no GPU.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.progress == Progress::Away
    }

    /// What it is charged without its contexts, as long as it is there.
    #[must_use]
    pub fn used_here(&self) -> u64 {
        if self.is_away() { 0 } else { self.used() }
    }

    /// What the books may say of it that is not so any more, or not here. Of one that is away no more than what it pays for others, and what
    /// of its own others may hold, who are not away.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.kept + if self.is_away() { self.known() } else { self.pool_on_the_books - self.pool }
    }

    /// The books say that it is charged no more than this: so it pays for others what is beyond its own, at most.
    pub fn charged_at_most(&mut self, charged: u64) {
        self.kept = self.kept.min(charged.saturating_sub(self.used_here()));
    }

    /// What came with something else than an allocation, beside contexts.
    #[must_use]
    pub fn came(&self) -> u64 {
        let modules = self.modules.values().map(|(_, bytes)| bytes).sum::<u64>();
        let limits = self.limits.values().map(|set| set.beyond).sum::<u64>();
        let libraries = self
            .libraries
            .values()
            .map(|(bytes, contexts)| bytes * contexts.len() as u64)
            .sum::<u64>();
        self.greens.len() as u64 * GREEN + limits + modules + libraries + self.code.came()
    }

    /// What others may hold of it when it ends: of a pool, as much as the books say that it holds.
    #[must_use]
    pub fn outlives(&self) -> u64 {
        let pooled = self.pools.values().any(Option::is_some);
        self.kept + self.known() + if pooled { self.pool_on_the_books } else { 0 }
    }

    /// What it is charged of what others may hold, beside pools.
    fn known(&self) -> u64 {
        let linear = self.allocations.values().filter(|allocation| allocation.lent.is_some());
        let physical =
            self.physical.values().filter(|physical| physical.lent.is_some() || physical.known);
        linear
            .map(|allocation| allocation.charged)
            .chain(physical.map(|physical| physical.charged))
            .sum()
    }

    /// What of its own others know.
    pub fn lends(&self) -> impl Iterator<Item = u32> {
        let linear = self.allocations.values().filter_map(|allocation| allocation.lent);
        let physical = self.physical.values().filter(|physical| !physical.imported);
        linear.chain(physical.filter_map(|physical| physical.lent))
    }

    /// What of others' it holds.
    pub fn borrows(&self) -> impl Iterator<Item = u32> {
        let physical = self.physical.values().filter(|physical| physical.imported);
        self.opened
            .values()
            .map(|opened| opened.lent)
            .chain(physical.filter_map(|physical| physical.lent))
    }

    /// An allocation is its own no more.
    pub fn free(&mut self, key: u32) {
        let Some(freed) = self.allocations.remove(&key) else { return };
        self.low.remove(&key);
        self.kept += if freed.lent.is_some() { freed.charged } else { 0 };
    }

    /// What its pools, and graphs, were seen to hold. `read`: in a call that has the books read them, too. Else one of them may have grown on
    /// the books while what another holds less, or a graph, has not been read.
    /// What an exported pool holds no more others may hold, by pointers, as far as the books can tell.
    pub fn pool_seen(&mut self, holds: u64, read: bool) {
        let grown = holds.saturating_sub(self.pool);
        self.pool = holds;
        if read && self.pools.values().any(Option::is_some) {
            self.kept += self.pool_on_the_books.saturating_sub(holds);
        }
        self.pool_on_the_books = if read { holds } else { self.pool_on_the_books + grown };
    }

    /// What of it no trimming of its pool can give back.
    #[must_use]
    pub fn firm(&self) -> u64 {
        let pooled = self.pooled.values().map(|pooled| pooled.bytes).sum::<u64>();
        self.used() - self.pool + pooled + self.drawn.live()
    }

    /// One reference more to the memory of a handle.
    pub fn hold(&mut self, handle: u32, enter: impl FnOnce(&mut Self, u32)) {
        let Some(&physical) = self.handles.get(&handle) else { return };
        if let Some(held) = self.physical.get_mut(&physical) {
            held.references += 1;
        }
        enter(self, physical);
    }

    /// One reference to physical memory less.
    pub fn let_go(&mut self, physical: u32) {
        if let Some(held) = self.physical.get_mut(&physical) {
            held.references -= 1;
            if held.references == 0 {
                self.kept += if held.lent.is_some() || held.known { held.charged } else { 0 };
                self.physical.remove(&physical);
            }
        }
    }

    /// Of that, what the driver takes out of blocks of 2 MiB, in how many pieces.
    #[must_use]
    pub fn small(&self) -> (u64, u64) {
        let all = self.allocations.values().chain(self.arrays.values());
        let small = all.map(|one| one.charged).filter(|charged| *charged <= MIB);
        small.fold((0, 0), |(bytes, pieces), charged| (bytes + charged, pieces + 1))
    }

    /// What the driver may have taken beyond: a block for each of them, at most. And what nobody saw coming.
    #[must_use]
    pub fn slack(&self) -> u64 {
        self.small().1 * BLOCK + self.code.unseen()
    }

    /// Whether a context is alive.
    #[must_use]
    pub fn has(&self, context: u32) -> bool {
        self.contexts.contains(&context)
    }

    /// A context is gone, with all in it.
    pub fn lose(&mut self, context: u32) {
        self.contexts.retain(|other| *other != context);
        let its = |(key, allocation): (&u32, &Allocation)| {
            (allocation.context == context).then_some(*key)
        };
        for key in self.allocations.iter().filter_map(its).collect::<Vec<_>>() {
            self.free(key);
        }
        self.opened.retain(|_, opened| opened.context != context);
        self.streams.retain(|_, its| *its != context);
        self.attached.remove(&context);
        self.graphs.retain(|_, graph| graph.context != context);
        self.arrays.retain(|_, array| array.context != context);
        self.limits.retain(|(its, _), _| *its != context);
        self.modules.retain(|_, (its, _)| *its != context);
        self.libraries.values_mut().for_each(|(_, contexts)| _ = contexts.remove(&context));
        self.drawn.lose(context);
        self.code.lose(context);
        self.externals.retain(|_, (its, _)| *its != context);
        self.buffers.retain(|_, (its, _)| *its != context);
        let arrays = self.sparse.extract_if(.., |_, its| *its == context);
        for array in arrays.map(|(array, _)| array).collect::<Vec<_>>() {
            self.untile(array);
        }
    }

    /// A sparse array is gone.
    pub fn untile(&mut self, array: u32) {
        let tiles: Vec<u32> =
            self.tiles.extract_if(.., |(its, _), _| *its == array).map(|(_, its)| its).collect();
        tiles.into_iter().for_each(|physical| self.let_go(physical));
    }

    /// What other interfaces have allocated that it keeps alive: their names.
    pub fn holds_of_others(&self) -> impl Iterator<Item = u32> {
        let imported = self.externals.values().chain(self.buffers.values()).map(|(_, name)| *name);
        self.foreign.keys().copied().chain(imported)
    }
}

/// A container.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its limit on the GPU.
    pub limit: u64,
    /// What a context costs on the GPU.
    pub context: u64,
    /// Its processes.
    pub processes: Vec<Process>,
    /// What they have lent.
    pub lent: BTreeMap<u32, Lent>,
    /// What the books may say of memory that dead processes have lent.
    pub orphans: u64,
    /// What other interfaces have allocated, by the names that their makers gave it.
    pub foreign: BTreeMap<u32, u64>,
}

impl Model {
    /// What is in use, contexts included: what living processes have made, and what they hold of others'.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.own() + self.borrowed()
    }

    /// What living processes have made.
    #[must_use]
    pub fn own(&self) -> u64 {
        self.processes.iter().map(|process| self.of(process)).sum()
    }

    /// What is held by others only: its makers have let it go, or are dead.
    #[must_use]
    pub fn borrowed(&self) -> u64 {
        let held = |lent: &u32| self.maker(*lent).is_none() && self.is_borrowed(*lent);
        self.lent.iter().filter(|(lent, _)| held(lent)).map(|(_, lent)| lent.charged).sum()
    }

    /// What the driver may have taken beyond what was asked for: a block of 2 MiB for a small allocation, at most, also for one that others
    /// hold.
    #[must_use]
    pub fn slack(&self) -> u64 {
        let lent = self.lent.values().filter(|lent| lent.charged <= MIB).count() as u64;
        self.processes.iter().map(Process::slack).sum::<u64>() + lent * BLOCK
    }

    /// Who made it, while he has it.
    #[must_use]
    pub fn maker(&self, lent: u32) -> Option<usize> {
        self.processes.iter().position(|process| process.lends().any(|its| its == lent))
    }

    /// Whether anybody has it from another.
    #[must_use]
    pub fn is_borrowed(&self, lent: u32) -> bool {
        self.processes.iter().any(|process| process.borrows().any(|its| its == lent))
    }

    /// What a process is charged, contexts included.
    #[must_use]
    pub fn of(&self, process: &Process) -> u64 {
        if process.is_away() { 0 } else { self.at_home(process) }
    }

    /// The same, wherever it is.
    #[must_use]
    pub fn at_home(&self, process: &Process) -> u64 {
        process.used() + self.implicit(process)
    }

    /// What its contexts cost, and what came with them.
    #[must_use]
    pub fn implicit(&self, process: &Process) -> u64 {
        self.context * process.contexts.len() as u64 + process.came()
    }

    /// The least that it has, whatever its pools give back.
    #[must_use]
    pub fn firm(&self, process: &Process) -> u64 {
        process.firm() + self.implicit(process)
    }

    /// The most that the books may say of the living.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.own() + self.processes.iter().map(Process::stale).sum::<u64>()
    }

    /// Whether `bytes` more keep the limit, whatever pools do. The dead do not count, but for what they have lent: all other memory of
    /// theirs is waited for.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.most() + self.orphans + bytes <= self.limit
    }

    /// Whether they would if every pool held no more than what is in use of it.
    #[must_use]
    pub fn might_fit(&self, bytes: u64) -> bool {
        let here = self.processes.iter().filter(|process| !process.is_away());
        let firm = here.map(|process| self.firm(process)).sum::<u64>();
        firm + self.borrowed() + bytes <= self.limit + self.unrefused()
    }

    /// Code that is on the books, and that nobody could refuse: so much may be over the limit.
    #[must_use]
    pub fn unrefused(&self) -> u64 {
        self.processes.iter().map(|process| process.code.booked()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_context_takes_its_own_along_but_what_was_lent_may_stay() {
        let mut process = Process { contexts: vec![0, 3], ..Process::default() };
        process.allocations.insert(1, Allocation { context: 0, charged: rounded(1), lent: None });
        process
            .allocations
            .insert(2, Allocation { context: 3, charged: rounded(MIB), lent: Some(7) });
        let lent = Lent { charged: 2 * MIB, bytes: MIB, handle: None, bereaved: false };
        let model = Model {
            limit: 10 * MIB,
            context: MIB,
            processes: vec![process.clone()],
            lent: BTreeMap::from([(7, lent)]),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        assert_eq!(
            (process.used(), process.small(), model.total()),
            (512 + 2 * MIB, (512, 1), 512 + 4 * MIB)
        );
        assert!(model.fits(6 * MIB - 512) && !model.fits(6 * MIB));
        process.lose(3);
        assert_eq!(
            (process.used(), process.stale(), process.contexts.as_slice()),
            (512, 2 * MIB, &[0][..])
        );
        process.charged_at_most(MIB);
        assert_eq!(process.stale(), MIB - 512);
    }

    #[test]
    fn what_is_held_by_others_only_is_in_use() {
        let mut maker = Process::default();
        maker.allocations.insert(1, Allocation { context: 0, charged: 2 * MIB, lent: Some(7) });
        let mut other = Process::default();
        other.opened.insert(2, Opened { context: 0, lent: 7 });
        let lent = Lent { charged: 2 * MIB, bytes: MIB, handle: None, bereaved: false };
        let mut model = Model {
            limit: 10 * MIB,
            context: MIB,
            processes: vec![maker, other],
            lent: BTreeMap::from([(7, lent)]),
            orphans: 0,
            foreign: BTreeMap::new(),
        };
        assert_eq!((model.maker(7), model.total(), model.borrowed()), (Some(0), 2 * MIB, 0));
        model.processes[0].free(1);
        assert_eq!((model.maker(7), model.total(), model.most()), (None, 2 * MIB, 2 * MIB));
        assert!(model.might_fit(8 * MIB) && !model.might_fit(8 * MIB + 1));
        model.processes[1].opened.clear();
        assert_eq!((model.total(), model.most()), (0, 2 * MIB));
    }

    /// Memory was bound to an object that others had; the object is gone, and the driver takes the memory off the GPU.
    #[test]
    fn of_a_process_that_is_away_the_books_may_keep_what_others_may_hold() {
        let bound = Physical { charged: 4 * MIB, known: true, ..Physical::default() };
        let own = Physical { charged: 2 * MIB, ..Physical::default() };
        let mut process =
            Process { physical: BTreeMap::from([(1, bound), (2, own)]), ..Process::default() };
        assert_eq!(
            (process.used_here(), process.stale(), process.outlives()),
            (6 * MIB, 0, 4 * MIB)
        );
        process.progress = Progress::Away;
        assert_eq!(
            (process.used_here(), process.stale(), process.outlives()),
            (0, 4 * MIB, 4 * MIB)
        );
    }
}
