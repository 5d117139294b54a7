//! Less common calls for arrays and pools.

use super::{MOST_POOLS, Run};
use crate::command::{Command, DEFAULT_POOL};
use crate::model::MIB;

impl Run<'_> {
    /// Draws a command that destroys an array, in half of the cases if there is one.
    pub(super) fn draw_array_destroy(&mut self, index: usize) -> Option<Command> {
        let arrays = self.model.processes[index].arrays.iter();
        let arrays: Vec<(u32, u32)> = arrays.map(|(key, array)| (*key, array.context)).collect();
        let (key, context) = self.random.pick(&arrays).copied()?;
        self.random.once_in(2).then_some(Command::ArrayDestroy { context, key })
    }

    /// Draws commands for three-dimensional and mipmapped arrays.
    pub(super) fn draw_shape(&mut self, index: usize, context: u32) -> Command {
        if let Some(command) = self.draw_array_destroy(index) {
            return command;
        }
        let levels = if self.random.once_in(2) {
            0
        } else {
            u32::try_from(self.random.below(4) + 1).unwrap_or(1)
        };
        let depth = if self.random.once_in(3) { 0 } else { self.random.below(32) + 1 };
        Command::ArrayCreate {
            context,
            key: self.new_key(),
            width: self.random.below(1000) + 8,
            height: self.random.below(500) + 8,
            depth,
            channels: *self.random.pick(&[1, 2, 4]).unwrap_or(&1),
            levels,
        }
    }

    /// Draws commands that free, trim and destroy pools.
    pub(super) fn draw_trim(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        // Memory that another process has imported is left to the commands of `Route::Exchange`.
        let is_open = |key: &u32| {
            self.model
                .processes
                .iter()
                .any(|other| other.opened_pooled.values().any(|its| its == key))
        };
        let pooled: Vec<u32> = process.pooled.keys().copied().filter(|key| !is_open(key)).collect();
        let own = |(pool, exported): (&u32, &Option<u32>)| {
            let is_empty = process.pooled.values().all(|its| its.pool != *pool);
            (exported.is_none() && is_empty).then_some(*pool)
        };
        let idle: Vec<u32> = process.pools.iter().filter_map(own).collect();
        let count = process.pools.len();
        let pools: Vec<u32> = process.pools.keys().copied().chain([DEFAULT_POOL]).collect();
        let pool = self.random.pick(&pools).copied().unwrap_or(DEFAULT_POOL);
        let (key, idle) = (self.random.pick(&pooled).copied(), self.random.pick(&idle).copied());
        match (self.random.below(8), key, idle) {
            (0 | 1, Some(key), _) => Command::PoolFreeNow { context, key },
            (2, ..) => Command::PoolTrim { pool, keep: self.random.below(64) * MIB },
            (3, ..) => Command::PoolKeep { pool, bytes: self.random.below(3) * 64 * MIB },
            (4, ..) if count < MOST_POOLS => Command::PoolCreate { pool: self.new_key() },
            (5, _, Some(pool)) => Command::PoolDestroy { pool },
            _ => Command::PoolAllocate {
                context,
                key: self.new_key(),
                bytes: self.random.size(64 * MIB),
                pool,
            },
        }
    }
}
