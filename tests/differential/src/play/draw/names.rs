//! What older programs do: arrays of two dimensions, memory with addresses of 32 bits, uses of contexts that are counted.

use super::Play;
use crate::command::{Command, PRIMARY};
use crate::model::MIB;

/// Uses of one context beyond the first.
const MOST_USES: u32 = 5;

impl Play<'_> {
    /// Arrays of one and two dimensions. They end as others do.
    pub(super) fn draw_flat(&mut self, who: usize, context: u32) -> Command {
        let arrays: Vec<(u32, u32)> = self.model.processes[who]
            .arrays
            .iter()
            .map(|(key, array)| (*key, array.context))
            .collect();
        if let Some((key, context)) = self.random.pick(&arrays).copied()
            && self.random.once_in(2)
        {
            return Command::ArrayDestroy { context, key };
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

    /// Memory with addresses of 32 bits, of which a process has no more than they can tell apart. It is freed as other memory is.
    pub(super) fn draw_name(&mut self, who: usize, context: u32) -> Command {
        let low: Vec<u32> = self.model.processes[who].low.iter().copied().collect();
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
            _ => self.draw_other(who, context),
        }
    }

    /// Uses of contexts.
    pub(super) fn draw_use(&mut self, who: usize, context: u32) -> Command {
        let process = &self.model.processes[who];
        let uses = process.attached.get(&context).copied().unwrap_or_default();
        match self.random.below(8) {
            // Those of the primary one are counted by other calls.
            0..=3 if context != PRIMARY && uses < MOST_USES => Command::Attach { context },
            4 | 5 if context != PRIMARY && uses > 0 => Command::Detach { context },
            6 if context != PRIMARY => Command::Detach { context },
            0 | 4 => Command::PrimaryRetain,
            1 | 5 if process.has(PRIMARY) && process.retained > 0 => Command::PrimaryRelease,
            _ => Command::Look { context },
        }
    }
}
