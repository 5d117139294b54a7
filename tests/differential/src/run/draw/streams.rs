//! Stream-ordered memory, allocated in one stream and freed in another.

use super::Run;
use crate::command::{Command, DEFAULT_POOL, InStream, Lane};
use crate::model::MIB;

/// Maximum number of streams of a process.
const MOST_STREAMS: usize = 4;

impl Run<'_> {
    pub(super) fn draw_stream(&mut self, index: usize, context: u32) -> Command {
        let process = &self.model.processes[index];
        let streams: Vec<u32> = process.streams.keys().copied().collect();
        let pools: Vec<u32> = process.pools.keys().copied().chain([DEFAULT_POOL]).collect();
        // Exported memory is left to the commands of `Route::Exchange`.
        let linear = process
            .allocations
            .iter()
            .filter(|(key, its)| its.exported.is_none() && !process.low.contains(key));
        let linear: Vec<(u32, u32)> = linear.map(|(key, its)| (*key, its.context)).collect();
        let pooled = self.pooled_of(index);
        let stream = self.random.pick(&streams).copied();
        let (key, linear) =
            (self.random.pick(&pooled).copied(), self.random.pick(&linear).copied());
        let pool = self.random.pick(&pools).copied().unwrap_or(DEFAULT_POOL);
        let lane = self.lane(index);
        let drawn = match (self.random.below(16), stream, key, linear) {
            (0 | 1, ..) if streams.len() < MOST_STREAMS => {
                InStream::Create { context, stream: self.new_key(), apart: self.random.once_in(2) }
            }
            (2, Some(stream), ..) => InStream::Destroy { stream },
            (3..=7, _, Some(key), _) => InStream::Free { context, lane, key },
            (8, _, _, Some((key, context))) => InStream::FreeLinear { context, lane, key },
            (9 | 10, ..) => {
                let (before, after) = (self.lane_of(index, context), self.lane(index));
                InStream::Order { context, before, after }
            }
            (11 | 12, ..) => InStream::Wait { context, lane },
            _ => {
                let bytes = self.random.size(64 * MIB);
                InStream::Allocate { context, lane, key: self.new_key(), bytes, pool }
            }
        };
        Command::Stream(drawn)
    }

    /// Returns the pool allocations of a process that no other process has imported.
    pub(super) fn pooled_of(&self, index: usize) -> Vec<u32> {
        let is_open = |key: &u32| {
            self.model
                .processes
                .iter()
                .any(|other| other.opened_pooled.values().any(|its| its == key))
        };
        self.model.processes[index].pooled.keys().copied().filter(|key| !is_open(key)).collect()
    }

    /// Draws a stream of a process, in any context.
    fn lane(&mut self, index: usize) -> Lane {
        let made: Vec<u32> = self.model.processes[index].streams.keys().copied().collect();
        self.lane_among(&made)
    }

    /// Draws a stream of a context.
    fn lane_of(&mut self, index: usize, context: u32) -> Lane {
        let its = self.model.processes[index].streams.iter().filter(|(_, its)| **its == context);
        let made: Vec<u32> = its.map(|(stream, _)| *stream).collect();
        self.lane_among(&made)
    }

    fn lane_among(&mut self, made: &[u32]) -> Lane {
        match (self.random.below(6), self.random.pick(made)) {
            (0..=2, Some(&made)) => Lane::Made(made),
            (3, _) => Lane::Legacy,
            (4, _) => Lane::Thread,
            _ => Lane::None,
        }
    }
}
