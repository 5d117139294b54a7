//! Plans: graphs divided into tracks, without a clock or a GPU.
//!
//! Steps are put on tracks in topological order. A step follows one of its dependencies if that is
//! the last of its track. Otherwise it begins a new track or, with enough of them, goes to the
//! least recently used one. A dependency on another track becomes a wait. The GPU gets only the
//! order on each track and the waits, so independent steps on different tracks overlap where the
//! GPU has room.
//!
//! ```text
//!       a                    track 0:  a  b  (wait c) d
//!      / \          ->       track 1:  (wait a) c
//!     b   c
//!      \ /
//!       d
//! ```

use std::sync::Arc;

use super::work::{CopyKind, Fill, Launch, Pitched, WaitCondition, Width};
use super::{ContextId, EventId, SemaphoreId};

/// The work of a step. It may be done many times.
#[derive(Clone)]
pub enum Work {
    /// Nothing: a point to wait for.
    Nothing,
    /// A kernel.
    Kernel(Launch),
    /// A copy.
    Copy(CopyKind, Pitched),
    /// A fill of device memory.
    Fill(Fill),
    /// A host function, as [`Machine::host_function`](super::Machine::host_function) calls one.
    Call(Arc<dyn Fn() + Send + Sync>),
    /// Writes a word.
    Write(u64, Width, u64),
    /// Waits for a word.
    Watch(u64, Width, WaitCondition, u64),
    /// Signals a semaphore.
    Signal(SemaphoreId, u64),
    /// Waits for a semaphore.
    Acquire(SemaphoreId, u64),
    /// Records an event.
    Record(EventId),
    /// Waits for an event's last record.
    Await(EventId),
}

impl Work {
    /// Returns whether the host can see its effects.
    pub(super) fn has_host_effect(&self) -> bool {
        matches!(
            self,
            Self::Copy(..) | Self::Fill(_) | Self::Call(_) | Self::Write(..) | Self::Watch(..)
        )
    }
}

impl core::fmt::Debug for Work {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Kernel(_) => "Kernel",
            Self::Copy(..) => "Copy",
            Self::Fill(_) => "Fill",
            Self::Call(_) => "Call",
            Self::Write(..) => "Write",
            Self::Watch(..) => "Watch",
            Self::Signal(..) => "Signal",
            Self::Acquire(..) => "Acquire",
            Self::Record(_) => "Record",
            Self::Await(_) => "Await",
        })
    }
}

/// The position of one step in a graph. Its work is given at each launch.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its context.
    pub context: ContextId,
    /// The indices of its dependencies, all below its own.
    pub after: Vec<usize>,
}

/// A position on a track: so many commands from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) track: usize,
    pub(super) commands: u64,
}

#[derive(Debug)]
pub(super) enum Item {
    /// A wait until the stream has reached the launch.
    Begin,
    /// A wait for another track.
    Wait(Position),
    /// The work of the step with this index.
    Work(usize),
}

#[derive(Debug)]
pub(super) struct Track {
    pub(super) context: ContextId,
    /// Commands that are put on it.
    pub(super) commands: u64,
    /// The step that was put on it last.
    last: usize,
    /// For each other track, the commands that it has already waited for.
    waited: Vec<u64>,
}

/// A graph, divided into tracks.
#[derive(Debug)]
pub struct Plan {
    /// In the order of the launch, with their tracks.
    pub(super) items: Vec<(usize, Item)>,
    pub(super) tracks: Vec<Track>,
    pub(super) steps: usize,
}

/// Maximum number of tracks, unless a track has reached [`LENGTH`].
const WIDTH: usize = 32;
/// Commands after which a track is ended, so that several launches fit the rings.
const LENGTH: u64 = 900;

impl Plan {
    /// Divides a graph into tracks.
    ///
    /// # Panics
    /// If a step comes before one of its dependencies.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        let mut plan =
            Self { items: Vec::with_capacity(steps.len()), tracks: Vec::new(), steps: steps.len() };
        // Where each step is, and whether no other step depends on it.
        let mut places: Vec<Position> = Vec::with_capacity(steps.len());
        let mut ends = vec![true; steps.len()];
        for (index, Step { context, after }) in steps.into_iter().enumerate() {
            let track = plan.track_for(index, context, &after, &places);
            if plan.tracks[track].commands == 0 && after.is_empty() {
                plan.put(track, Item::Begin);
            }
            for &before in &after {
                ends[before] = false;
                plan.wait(track, places[before]);
            }
            plan.tracks[track].last = index;
            places.push(plan.put(track, Item::Work(index)));
        }
        plan.join(
            places.iter().zip(&ends).filter(|(_, end)| **end).map(|(place, _)| *place).collect(),
        );
        plan
    }

    /// Returns whether there are no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps
    }

    fn track_for(
        &mut self,
        index: usize,
        context: ContextId,
        after: &[usize],
        places: &[Position],
    ) -> usize {
        let behind = after.iter().rev().find(|&&before| {
            let track = &self.tracks[places[before].track];
            track.last == before && track.context == context && track.commands < LENGTH
        });
        if let Some(&before) = behind {
            return places[before].track;
        }
        let usable = |track: &Track| track.context == context && track.commands < LENGTH;
        let open = self.tracks.iter().enumerate().filter(|(_, track)| usable(track));
        let least = open.clone().min_by_key(|(_, track)| track.last).map(|(number, _)| number);
        match least {
            Some(track) if open.count() >= WIDTH => track,
            _ => {
                self.tracks.push(Track { context, commands: 0, last: index, waited: Vec::new() });
                self.tracks.len() - 1
            }
        }
    }

    fn put(&mut self, track: usize, item: Item) -> Position {
        self.items.push((track, item));
        self.tracks[track].commands += 1;
        Position { track, commands: self.tracks[track].commands }
    }

    fn wait(&mut self, track: usize, place: Position) {
        if place.track == track {
            return;
        }
        let waited = &mut self.tracks[track].waited;
        if waited.len() <= place.track {
            waited.resize(place.track + 1, 0);
        }
        if waited[place.track] < place.commands {
            waited[place.track] = place.commands;
            self.put(track, Item::Wait(place));
        }
    }

    /// Makes the last track wait for all others, so that its end is the graph's.
    fn join(&mut self, ends: Vec<Position>) {
        let Some(last) = self.tracks.len().checked_sub(1) else { return };
        ends.into_iter().for_each(|end| self.wait(last, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mix;

    const CONTEXT: ContextId = ContextId(1);

    fn steps(after: &[&[usize]]) -> Vec<Step> {
        let step = |after: &&[usize]| Step { context: CONTEXT, after: after.to_vec() };
        after.iter().map(step).collect()
    }

    #[test]
    fn chain_of_steps_is_one_track_without_waits() {
        let plan = Plan::new(steps(&[&[], &[0], &[1], &[2]]));
        assert_eq!(plan.tracks.len(), 1);
        assert_eq!(plan.items.len(), 5);
        assert!(matches!(plan.items[0], (0, Item::Begin)));
    }

    #[test]
    fn diamond_of_steps_is_two_tracks_with_two_waits() {
        let plan = Plan::new(steps(&[&[], &[0], &[0], &[1, 2]]));
        assert_eq!(plan.tracks.len(), 2);
        let waits = plan.items.iter().filter(|(_, item)| matches!(item, Item::Wait(_))).count();
        assert_eq!(waits, 2);
    }

    #[test]
    fn wide_graph_shares_tracks_and_long_chain_is_split() {
        assert_eq!(Plan::new(steps(&vec![&[] as &[usize]; 1_000])).tracks.len(), WIDTH);
        let chain: Vec<Step> = (0..5_000_usize)
            .map(|n| Step { context: CONTEXT, after: n.checked_sub(1).into_iter().collect() })
            .collect();
        let plan = Plan::new(chain);
        assert!(plan.tracks.iter().all(|track| track.commands <= LENGTH + 2));
        assert_eq!(plan.tracks.len(), 6);
    }

    /// Runs the tracks of a plan in random order: every step must find its dependencies done, and
    /// all must be done when the last track is.
    #[test]
    fn any_interleaving_of_tracks_keeps_dependencies() {
        for seed in 0..200_u64 {
            let draw = |n: usize, what: u64| mix(seed << 32 ^ (n as u64) << 8 ^ what);
            let count = 1 + index_below(draw(0, 1), 120);
            let steps: Vec<Step> = (0..count)
                .map(|n| {
                    let context = ContextId(1 + u64::from(draw(n, 2).is_multiple_of(7)));
                    let after = (0..index_below(draw(n, 3), 4)).filter(|_| n > 0);
                    let mut after: Vec<usize> =
                        after.map(|k| index_below(draw(n, 10 + k as u64), n)).collect();
                    after.sort_unstable();
                    after.dedup();
                    Step { context, after }
                })
                .collect();
            let plan = Plan::new(steps.clone());
            let mut queues: Vec<Vec<&Item>> = plan.tracks.iter().map(|_| Vec::new()).collect();
            plan.items.iter().for_each(|(track, item)| queues[*track].push(item));
            let mut done = vec![0_usize; queues.len()];
            let mut finished = vec![false; count];
            let mut round = 0;
            while (0..queues.len()).any(|track| done[track] < queues[track].len()) {
                round += 1;
                assert!(round < 100_000, "the tracks wait for one another: {seed}");
                let track = index_below(draw(round, 99), queues.len());
                let Some(item) = queues[track].get(done[track]) else { continue };
                match item {
                    Item::Wait(place) if (done[place.track] as u64) < place.commands => continue,
                    Item::Begin | Item::Wait(_) => {}
                    Item::Work(step) => {
                        assert!(
                            steps[*step].after.iter().all(|&before| finished[before]),
                            "{seed}: {step}"
                        );
                        finished[*step] = true;
                    }
                }
                done[track] += 1;
                if track == queues.len() - 1 && done[track] == queues[track].len() {
                    assert!(finished.iter().all(|&step| step), "{seed}: the end came too early");
                }
            }
        }
    }

    fn index_below(draw: u64, bound: usize) -> usize {
        crate::words::index(draw % bound.max(1) as u64)
    }
}
