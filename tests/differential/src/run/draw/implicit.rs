//! Implicit memory: green contexts, limits, modules, libraries. And checkpoints, which take all
//! memory of a process off the GPU.

use super::Run;
use crate::command::{Command, Limit};
use crate::model::{MIB, Progress};

/// Maximum number of green contexts of a process.
const MOST_GREENS: usize = 3;
/// Maximum number of libraries of a process.
const MOST_LIBRARIES: usize = 5;
/// Maximum number of modules of a process.
const MOST_MODULES: usize = 5;

impl Run<'_> {
    /// Draws commands for green contexts.
    pub(super) fn draw_green(&mut self, index: usize, context: u32) -> Command {
        let greens = self.model.processes[index].greens.clone();
        match (self.random.below(6), self.random.pick(&greens).copied()) {
            (0 | 1, _) if greens.len() < MOST_GREENS => {
                Command::GreenCreate { green: self.new_key() }
            }
            (2, Some(green)) => Command::GreenDestroy { green },
            (3 | 4, Some(green)) => {
                let bytes = self.random.size(self.model.limit / 4);
                Command::GreenAllocate { green, key: self.new_key(), bytes }
            }
            _ => Command::MemoryInfo { context },
        }
    }

    /// Draws commands for limits and modules.
    pub(super) fn draw_implicit(&mut self, index: usize, context: u32) -> Command {
        let modules: Vec<(u32, u32)> = self.model.processes[index]
            .modules
            .iter()
            .map(|(module, (context, _))| (*module, *context))
            .collect();
        // Values in units of what the driver allocates, so that nothing is rounded.
        let (limit, value) = match self.random.below(3) {
            0 => (Limit::Heap, self.random.below(64) * 2 * MIB),
            1 => (Limit::Printf, (self.random.below(16) * 2 + 1) * MIB),
            _ => (Limit::Stack, (self.random.below(8) + 1) * 512),
        };
        match (self.random.below(6), self.random.pick(&modules).copied()) {
            (0 | 1, _) if modules.len() < MOST_MODULES => {
                let bytes = (self.random.below(64) + 1) * 2 * MIB;
                Command::ModuleLoad { context, module: self.new_key(), bytes }
            }
            (2, Some((module, context))) => Command::ModuleUnload { context, module },
            _ => Command::LimitSet { context, limit, value },
        }
    }

    /// Draws commands for libraries. A loaded one is requested again about as often as a new one.
    pub(super) fn draw_library(&mut self, index: usize, context: u32) -> Command {
        let libraries: Vec<u32> = self.model.processes[index].libraries.keys().copied().collect();
        match (self.random.below(8), self.random.pick(&libraries).copied()) {
            (0 | 1, _) if libraries.len() < MOST_LIBRARIES => {
                let bytes = (self.random.below(64) + 1) * 2 * MIB;
                Command::LibraryLoad { library: self.new_key(), bytes }
            }
            (2, Some(library)) => Command::LibraryUnload { library },
            (_, Some(library)) => {
                Command::LibraryUse { context, library, variable: self.random.once_in(2) }
            }
            (_, None) => Command::MemoryInfo { context },
        }
    }

    /// Draws checkpoint commands for another process.
    pub(super) fn draw_checkpoint(&mut self, index: usize, context: u32) -> Command {
        let others: Vec<usize> = (0..self.actors.len()).filter(|other| *other != index).collect();
        let Some(&other) = self.random.pick(&others) else {
            return Command::MemoryInfo { context };
        };
        let (process, pid) = (&self.model.processes[other], self.actors[other].pid());
        match process.progress {
            Progress::Running if process.started => Command::Lock { pid },
            Progress::Running => Command::MemoryInfo { context },
            Progress::Locked if self.random.once_in(2) => Command::Checkpoint { pid },
            Progress::Locked => Command::Unlock { pid },
            Progress::Checkpointed => Command::Restore { pid },
        }
    }
}
