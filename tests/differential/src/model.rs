//! What should have happened, told plainly: who has what, and what it is charged.
//!
//! Nothing here is shared with the code under test; the rounding is written down again.

use std::collections::BTreeMap;

/// A mebibyte.
pub const MIB: u64 = 1 << 20;

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
}

/// Physical memory behind handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Physical {
    /// What it is charged: nothing, on the host.
    pub charged: u64,
    /// Its size.
    pub bytes: u64,
    /// Handles and mappings that hold it.
    pub references: u32,
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
    /// Allocations in the default pool: their sizes.
    pub pooled: BTreeMap<u32, u64>,
    /// What the pool holds.
    pub pool: u64,
    /// What the books may still say it holds: pools shrink when the driver likes, and are read when it matters.
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

    /// What the books may say of it that is not so any more.
    #[must_use]
    pub fn stale(&self) -> u64 {
        self.pool_on_the_books - self.pool
    }

    /// What its pool was seen to hold. `read`: in a call that has the books read it, too.
    pub fn pool_seen(&mut self, holds: u64, read: bool) {
        self.pool = holds;
        self.pool_on_the_books = if read { holds } else { self.pool_on_the_books.max(holds) };
    }

    /// What of it no trimming of its pool can give back.
    #[must_use]
    pub fn firm(&self) -> u64 {
        self.used() - self.pool + self.pooled.values().sum::<u64>()
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
                self.physical.remove(&physical);
            }
        }
    }

    /// Of that, what the driver takes out of blocks of 2 MiB.
    #[must_use]
    pub fn small(&self) -> u64 {
        let all = self.allocations.values().chain(self.arrays.values());
        all.map(|one| one.charged).filter(|charged| *charged <= MIB).sum()
    }

    /// Whether a context is alive.
    #[must_use]
    pub fn has(&self, context: u32) -> bool {
        self.contexts.contains(&context)
    }

    /// A context is gone, with all in it.
    pub fn lose(&mut self, context: u32) {
        self.contexts.retain(|other| *other != context);
        self.allocations.retain(|_, allocation| allocation.context != context);
        self.arrays.retain(|_, array| array.context != context);
    }
}

/// A container.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its limit on the card.
    pub limit: u64,
    /// What a context costs on the card.
    pub context: u64,
    /// Its processes.
    pub processes: Vec<Process>,
}

impl Model {
    /// What living processes are charged, contexts included.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.processes.iter().map(|process| self.of(process)).sum()
    }

    /// What a process is charged, contexts included.
    #[must_use]
    pub fn of(&self, process: &Process) -> u64 {
        process.used() + self.implicit(process)
    }

    /// What its contexts cost.
    #[must_use]
    pub fn implicit(&self, process: &Process) -> u64 {
        self.context * process.contexts.len() as u64
    }

    /// The most that the books may say of the living.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.total() + self.processes.iter().map(Process::stale).sum::<u64>()
    }

    /// Whether `bytes` more keep the limit, whatever pools do. The dead do not count: their memory is waited for.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.most() + bytes <= self.limit
    }

    /// Whether they would if every pool held no more than what is in use of it.
    #[must_use]
    pub fn might_fit(&self, bytes: u64) -> bool {
        let firm = |process: &Process| process.firm() + self.implicit(process);
        self.processes.iter().map(firm).sum::<u64>() + bytes <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_context_takes_its_own_along() {
        let mut process = Process { contexts: vec![0, 3], ..Process::default() };
        process.allocations.insert(1, Allocation { context: 0, charged: rounded(1) });
        process.allocations.insert(2, Allocation { context: 3, charged: rounded(MIB) });
        let model = Model { limit: 10 * MIB, context: MIB, processes: vec![process.clone()] };
        assert_eq!((process.used(), process.small(), model.total()), (512 + 2 * MIB, 512, 512 + 4 * MIB));
        assert!(model.fits(6 * MIB - 512) && !model.fits(6 * MIB));
        process.lose(3);
        assert_eq!((process.used(), process.contexts), (512, vec![0]));
    }
}
