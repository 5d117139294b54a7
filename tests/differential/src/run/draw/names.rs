//! Calls of older programs: two-dimensional arrays, 32-bit addresses, counted uses of contexts.

use super::Run;
use crate::command::{Command, PRIMARY};
use crate::model::MIB;

/// Maximum number of uses of a context beyond the first.
const MOST_USES: u32 = 5;

impl Run<'_> {
    /// Draws commands for arrays of one and two dimensions.
    pub(super) fn draw_flat(&mut self, index: usize, context: u32) -> Command {
        if let Some(command) = self.draw_array_destroy(index) {
            return command;
        }
        Command::FlatCreate {
            context,
            key: self.new_key(),
            width: self.random.below(4000) + 1,
            height: if self.random.once_in(4) { 0 } else { self.random.below(2000) + 1 },
            channels: *self.random.pick(&[1, 2, 4]).unwrap_or(&1),
            old: self.random.once_in(2),
        }
    }

    /// Draws commands for memory with 32-bit addresses.
    pub(super) fn draw_name(&mut self, index: usize, context: u32) -> Command {
        let low: Vec<u32> = self.model.processes[index].low.iter().copied().collect();
        match (self.random.below(5), self.random.pick(&low).copied()) {
            (0 | 1, Some(key)) => Command::Free { key },
            (2, _) => {
                let (width, height) = (self.random.below(20_000) + 1, self.random.below(1000) + 1);
                Command::AllocateLowPitch { context, key: self.new_key(), width, height }
            }
            (3, _) => Command::AllocateLow {
                context,
                key: self.new_key(),
                bytes: self.random.size(16 * MIB),
            },
            _ => self.draw_other(index, context),
        }
    }

    /// Draws commands that count uses of contexts.
    pub(super) fn draw_use(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let uses = process.attached.get(&context).copied().unwrap_or_default();
        match self.random.below(8) {
            // Uses of the primary context are counted by other calls.
            0..=3 if context != PRIMARY && uses < MOST_USES => Command::Attach { context },
            4 | 5 if context != PRIMARY && uses > 0 => Command::Detach { context },
            6 if context != PRIMARY => Command::Detach { context },
            0 | 4 => Command::PrimaryRetain,
            1 | 5 if process.has(PRIMARY) && process.retained > 0 => Command::PrimaryRelease,
            _ => Command::MemoryInfo { context },
        }
    }
}
