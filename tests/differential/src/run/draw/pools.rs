//! Pools with a maximum size, in locality domains, or set as current pool; and resets, which leave
//! pools as they are.

use super::Run;
use crate::command::{Command, DEFAULT_POOL, OfPool, PRIMARY, Place};
use crate::model::MIB;

/// Maximum number of pools of a process, including those of other families.
const MOST_POOLS: usize = 5;

impl Run<'_> {
    pub(super) fn draw_pool(&mut self, index: usize, context: u32) -> Command {
        let pooled = self.pooled_of(index);
        let process = &self.model.processes[index];
        let pools: Vec<u32> = process.pools.keys().copied().collect();
        let is_idle = |pool: &u32| {
            process.pools[pool].is_none() && process.pooled.values().all(|its| its.pool != *pool)
        };
        let idle: Vec<u32> = pools.iter().copied().filter(is_idle).collect();
        let own: Vec<u32> =
            pools.iter().copied().filter(|pool| process.pools[pool].is_none()).collect();
        // Graphs and green contexts hold references that would create the context again.
        let resets = process.has(PRIMARY) && process.graphs.is_empty() && process.greens.is_empty();
        let current = process.current;
        let (pool, idle) = (self.random.pick(&pools).copied(), self.random.pick(&idle).copied());
        let (own, key) = (self.random.pick(&own).copied(), self.random.pick(&pooled).copied());
        let drawn = match (self.random.below(20), pool, idle, key) {
            (0 | 1, ..) if pools.len() < MOST_POOLS => {
                // Most sizes are not whole blocks.
                let most = if self.random.once_in(4) { 0 } else { self.random.below(96 * MIB) + 1 };
                OfPool::Make { pool: self.new_key(), most, place: self.place() }
            }
            (2 | 3, Some(pool), ..) => OfPool::Choose { pool, by: self.chooser(index, pool) },
            (4, ..) => {
                let by = if self.random.once_in(2) { None } else { Some(Place::Gpu) };
                OfPool::Choose { pool: DEFAULT_POOL, by }
            }
            (5, ..) => OfPool::IsChosen { pool: current },
            (6, _, Some(pool), _) => return Command::PoolDestroy { pool },
            (17, ..) if own.is_some() && self.random.once_in(2) => {
                let pool = own.unwrap_or_default();
                OfPool::End { pool, place: self.place_of_pool(index, pool) }
            }
            (7, ..) if resets => return Command::PrimaryReset,
            (8..=12, _, _, Some(key)) => return Command::PoolFree { context, key },
            (13, Some(pool), ..) => {
                return Command::PoolKeep { pool, bytes: self.random.below(3) * 32 * MIB };
            }
            // From the current pool as often as from another one.
            (14..=16, Some(pool), ..) => {
                let bytes = self.random.size(64 * MIB);
                return Command::PoolAllocate { context, key: self.new_key(), bytes, pool };
            }
            _ => {
                let bytes = self.random.size(64 * MIB);
                let pool = DEFAULT_POOL;
                return Command::PoolAllocate { context, key: self.new_key(), bytes, pool };
            }
        };
        Command::Pool(drawn)
    }

    /// Draws the setter for a pool: for the GPU, for any place, or for the pool's own location.
    fn chooser(&mut self, index: usize, pool: u32) -> Option<Place> {
        match self.random.below(3) {
            0 => None,
            1 => Some(self.place()),
            _ => Some(self.place_of_pool(index, pool)),
        }
    }

    fn place_of_pool(&self, index: usize, pool: u32) -> Place {
        let local = self.model.processes[index].local.get(&pool);
        local.map_or(Place::Gpu, |domain| Place::Domain(*domain))
    }
}
