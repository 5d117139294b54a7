//! Code: what is loaded onto the GPU with other calls, and whether the ledger can see it.
//!
//! Code takes memory of its context in blocks and stays as long as the context. Code loaded by a
//! call that is not measured (a first launch) is on the GPU and not in the ledger: without a
//! monitor it cannot be found.

use std::collections::{BTreeMap, BTreeSet};

use super::BLOCK;

/// Bytes that the simulated driver takes for the code of a function.
const FUNCTION: u64 = 64 << 10;

/// A module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// The context that it is loaded in.
    pub context: u32,
    /// Size of its variable.
    pub bytes: u64,
    /// Functions whose code is loaded.
    pub loaded: BTreeSet<u32>,
    /// Functions whose code was requested by a measured call.
    pub requested: BTreeSet<u32>,
}

/// A library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// Size of its variable in each context.
    pub bytes: u64,
    /// The contexts that it is loaded in, and whether the ledger has it.
    pub contexts: BTreeMap<u32, bool>,
    /// Loaded code, by context and function.
    pub loaded: BTreeSet<(u32, u32)>,
    /// Fetched functions, by context.
    pub fetched: BTreeSet<(u32, u32)>,
    /// Functions whose code was requested by a measured call.
    pub requested: BTreeSet<(u32, u32)>,
}

/// The code of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Blocks {
    /// Size of the code.
    bytes: u64,
    /// Bytes of the blocks that it takes, and of those that the ledger has.
    taken: u64,
    charged: u64,
}

/// Modules, libraries and code of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// Modules by name.
    pub modules: BTreeMap<u32, Module>,
    /// Libraries by name.
    pub libraries: BTreeMap<u32, Library>,
    blocks: BTreeMap<u32, Blocks>,
}

impl Code {
    /// Loads a function's code into a context; `seen`: by a measured call.
    pub fn load(&mut self, context: u32, seen: bool) {
        let blocks = self.blocks.entry(context).or_default();
        blocks.bytes += FUNCTION;
        let taken = blocks.bytes.next_multiple_of(BLOCK);
        if seen {
            blocks.charged += taken - blocks.taken;
        }
        blocks.taken = taken;
    }

    /// Returns the charged bytes of code, which cannot be refused.
    #[must_use]
    pub fn charged_code(&self) -> u64 {
        self.blocks.values().map(|blocks| blocks.charged).sum()
    }

    /// Returns the charged bytes, variables included.
    #[must_use]
    pub fn charged_implicit(&self) -> u64 {
        let modules = self.modules.values().map(|module| module.bytes).sum::<u64>();
        self.charged_code() + modules + self.variables(true)
    }

    /// Returns the bytes on the GPU that the ledger does not have.
    #[must_use]
    pub fn unseen(&self) -> u64 {
        let code = self.blocks.values().map(|blocks| blocks.taken - blocks.charged).sum::<u64>();
        code + self.variables(false)
    }

    fn variables(&self, charged: bool) -> u64 {
        let its = |library: &Library| {
            library.bytes * library.contexts.values().filter(|its| **its == charged).count() as u64
        };
        self.libraries.values().map(its).sum()
    }

    /// Removes a context and everything in it.
    pub fn remove_context(&mut self, context: u32) {
        self.blocks.remove(&context);
        self.modules.retain(|_, module| module.context != context);
        for library in self.libraries.values_mut() {
            library.contexts.remove(&context);
            library.loaded.retain(|(its, _)| *its != context);
            library.fetched.retain(|(its, _)| *its != context);
            library.requested.retain(|(its, _)| *its != context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_charged_in_blocks_of_measured_calls() {
        let mut code = Code::default();
        code.load(1, false);
        code.load(1, true);
        assert_eq!((code.unseen(), code.charged_implicit()), (BLOCK, 0));
        (0..31).for_each(|_| code.load(1, true));
        assert_eq!((code.unseen(), code.charged_implicit()), (BLOCK, BLOCK));
        code.remove_context(1);
        assert_eq!(code, Code::default());
    }
}
