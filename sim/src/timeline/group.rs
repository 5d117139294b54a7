//! Groups: the units that take turns on a GPU. A context is one; under MPS all contexts of a GPU
//! form one.
//!
//! A stream whose head is to compute is in one of its group's lists. It is in the ready list of its
//! urgency until it has all of the GPU that its command needs, then in the list of placed ones. It
//! stays there, with its share, while the group waits for its turn.

use cgpu_shm::units::Nanos;

use super::list::List;
use super::records::{ContextId, Gpu, Group, LEVELS, Level, PRIORITIES, StreamId};
use super::{Timeline, states};
use crate::footprint::Footprint;
use crate::words::Words;

states! {
    /// The state of a group with respect to its GPU's engine.
    pub(crate) Turn {
        /// No work.
        Parked,
        /// In the ring.
        Waiting,
        /// Running, or being switched to.
        Current,
        /// Being destroyed; it takes no further turn.
        Gone,
    }
}

/// The urgency of event records and memory writes: the front end does them at any time.
pub(super) const FRONT_END: u64 = 0;

/// The most urgent priority of a stream, numerically the least, as in the driver; 0 is the least
/// urgent.
pub const GREATEST_PRIORITY: i32 = -5;

const _: () = assert!(PRIORITIES == 1 + GREATEST_PRIORITY.unsigned_abs() as u64);

/// Returns the urgency of kernels in streams of a priority.
pub(crate) fn urgency(priority: i32) -> u64 {
    let above = u64::from(priority.clamp(GREATEST_PRIORITY, 0).unsigned_abs());
    PRIORITIES - above
}

pub(super) const fn ready_of(group: Group, urgency: u64) -> List {
    let level = Level::of(group, urgency);
    List {
        first: level.first(),
        last: level.last(),
        next: |stream| StreamId(stream).next_queued(),
        previous: |stream| StreamId(stream).previous_queued(),
    }
}

pub(super) const fn placed_of(group: Group) -> List {
    List {
        first: group.first_placed(),
        last: group.last_placed(),
        next: |stream| StreamId(stream).next_queued(),
        previous: |stream| StreamId(stream).previous_queued(),
    }
}

pub(super) const fn ring_of(gpu: Gpu) -> List {
    List {
        first: gpu.first_waiting(),
        last: gpu.last_waiting(),
        next: |group| Group(group).next_waiting(),
        previous: |group| Group(group).previous_waiting(),
    }
}

impl<W: Words> Timeline<'_, W> {
    #[inline]
    pub(super) fn turn(&self, group: Group) -> Turn {
        Turn::of(self.get(group.turn()))
    }

    #[inline]
    pub(super) fn set_turn(&mut self, group: Group, turn: Turn) {
        self.set(group.turn(), turn.word());
    }

    #[inline]
    pub(super) fn group_of(&self, context: ContextId) -> Group {
        if self.figures.mps == 0 {
            Group::of_context(context)
        } else {
            Group::of_gpu(Gpu(self.get(context.gpu())))
        }
    }

    /// Returns the urgency of a stream's head, a command of the compute engine.
    #[inline]
    pub(super) fn urgency_of(&self, stream: StreamId) -> u64 {
        match self.head_footprint(stream) {
            Footprint::NONE => FRONT_END,
            Footprint { urgency: 0, .. } => self.get(stream.level()),
            footprint => footprint.urgency,
        }
    }

    /// Returns whether no stream of the group computes or is to compute.
    pub(super) fn is_empty(&self, group: Group) -> bool {
        placed_of(group).is_empty(self.words)
            && (0..LEVELS).all(|urgency| ready_of(group, urgency).is_empty(self.words))
    }

    /// Returns the first of the most urgent waiting streams of the group, else of the placed ones.
    pub(super) fn first_of(&self, group: Group) -> Option<StreamId> {
        let ready = (0..LEVELS).map(|urgency| ready_of(group, urgency).first(self.words));
        let placed = placed_of(group).first(self.words);
        ready.chain([placed]).find(|&stream| stream != 0).map(StreamId)
    }

    /// Calls `act` for the streams of the group that have a share of the GPU, or need none.
    pub(super) fn each_on_gpu(
        &mut self,
        gpu: Gpu,
        group: Group,
        t: Nanos,
        act: impl Fn(&mut Self, Gpu, StreamId, Nanos),
    ) {
        let mut stream = StreamId(placed_of(group).first(self.words));
        while stream.0 != 0 {
            act(self, gpu, stream, t);
            stream = StreamId(placed_of(group).next(self.words, stream.0));
        }
        for urgency in 0..LEVELS {
            // Only the first can have a part of what it needs.
            let stream = StreamId(ready_of(group, urgency).first(self.words));
            if stream.0 != 0 && self.get(stream.share()) != 0 {
                act(self, gpu, stream, t);
            }
        }
    }
}
