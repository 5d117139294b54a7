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

/// A living process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Whether the driver is initialised.
    pub started: bool,
    /// Contexts that are alive.
    pub contexts: Vec<u32>,
    /// Allocations by the name they were given.
    pub allocations: BTreeMap<u32, Allocation>,
}

impl Process {
    /// What its allocations are charged.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.allocations.values().map(|allocation| allocation.charged).sum()
    }

    /// Of that, what the driver takes out of blocks of 2 MiB.
    #[must_use]
    pub fn small(&self) -> u64 {
        self.allocations.values().map(|one| one.charged).filter(|charged| *charged <= MIB).sum()
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

    /// Whether `bytes` more keep the limit. The dead do not count: their memory is waited for.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.total() + bytes <= self.limit
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
