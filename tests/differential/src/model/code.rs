//! Code: what comes onto the GPU with something else, and whether anybody could see it come.
//!
//! Code takes memory of its context, block by block, and stays as long as that. What comes with a call that nobody looks at (a first launch)
//! is on the GPU and not on the books: without a monitor nobody can know.

use std::collections::{BTreeMap, BTreeSet};

use super::BLOCK;

/// What the simulated driver takes for the code of a function.
const FUNCTION: u64 = 64 << 10;

/// A module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Where it is.
    pub context: u32,
    /// What its variable takes.
    pub bytes: u64,
    /// Functions whose code is there.
    pub loaded: BTreeSet<u32>,
    /// Functions whose code was asked for by a call that the books look at.
    pub looked: BTreeSet<u32>,
}

/// A library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// What its variable takes in each context.
    pub bytes: u64,
    /// Where it is; whether that is on the books.
    pub contexts: BTreeMap<u32, bool>,
    /// Functions whose code is there: in which context.
    pub loaded: BTreeSet<(u32, u32)>,
    /// Functions that were fetched.
    pub fetched: BTreeSet<(u32, u32)>,
    /// Functions whose code was asked for by a call that the books look at.
    pub looked: BTreeSet<(u32, u32)>,
}

/// The code of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Blocks {
    /// How much there is.
    bytes: u64,
    /// The blocks that it takes, and those that are on the books.
    taken: u64,
    booked: u64,
}

/// All of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// By their names.
    pub modules: BTreeMap<u32, Module>,
    /// By their names.
    pub libraries: BTreeMap<u32, Library>,
    blocks: BTreeMap<u32, Blocks>,
}

impl Code {
    /// A function's code comes into a context; whether by a call that the books look at.
    pub fn load(&mut self, context: u32, seen: bool) {
        let blocks = self.blocks.entry(context).or_default();
        blocks.bytes += FUNCTION;
        let taken = blocks.bytes.next_multiple_of(BLOCK);
        if seen {
            blocks.booked += taken - blocks.taken;
        }
        blocks.taken = taken;
    }

    /// Code that is on the books: nobody could refuse it.
    #[must_use]
    pub fn booked(&self) -> u64 {
        self.blocks.values().map(|blocks| blocks.booked).sum()
    }

    /// What is on the books, variables too.
    #[must_use]
    pub fn came(&self) -> u64 {
        let modules = self.modules.values().map(|module| module.bytes).sum::<u64>();
        self.booked() + modules + self.variables(true)
    }

    /// What is on the GPU and not on the books.
    #[must_use]
    pub fn unseen(&self) -> u64 {
        let code = self.blocks.values().map(|blocks| blocks.taken - blocks.booked).sum::<u64>();
        code + self.variables(false)
    }

    fn variables(&self, booked: bool) -> u64 {
        let its = |library: &Library| {
            library.bytes * library.contexts.values().filter(|its| **its == booked).count() as u64
        };
        self.libraries.values().map(its).sum()
    }

    /// A context is gone, with all in it.
    pub fn lose(&mut self, context: u32) {
        self.blocks.remove(&context);
        self.modules.retain(|_, module| module.context != context);
        for library in self.libraries.values_mut() {
            library.contexts.remove(&context);
            library.loaded.retain(|(its, _)| *its != context);
            library.fetched.retain(|(its, _)| *its != context);
            library.looked.retain(|(its, _)| *its != context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_comes_in_blocks_of_which_the_books_have_those_that_were_seen_to_come() {
        let mut code = Code::default();
        code.load(1, false);
        code.load(1, true);
        assert_eq!((code.unseen(), code.came()), (BLOCK, 0));
        (0..31).for_each(|_| code.load(1, true));
        assert_eq!((code.unseen(), code.came()), (BLOCK, BLOCK));
        code.lose(1);
        assert_eq!(code, Code::default());
    }
}
