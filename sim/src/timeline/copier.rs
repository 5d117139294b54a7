//! The copy engines of a GPU: one for each direction. Each does one copy at a time in order of
//! arrival, concurrently with the compute engine.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::agenda::{self, Due};
use super::list::List;
use super::records::{ContextId, Gpu, StreamId};
use crate::words::Words;

/// A copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Host to GPU.
    Up,
    /// GPU to host.
    Down,
}

impl Direction {
    pub(super) const fn queue(self, gpu: Gpu) -> List {
        let (first, last) = match self {
            Self::Up => (gpu.first_up(), gpu.last_up()),
            Self::Down => (gpu.first_down(), gpu.last_down()),
        };
        List {
            first,
            last,
            next: |stream| StreamId(stream).next_queued(),
            previous: |stream| StreamId(stream).previous_queued(),
        }
    }

    pub(super) const fn due(self, gpu: Gpu) -> Due {
        match self {
            Self::Up => Due::Up(gpu),
            Self::Down => Due::Down(gpu),
        }
    }
}

impl<W: Words> Timeline<'_, W> {
    pub(super) fn copy_ready(&mut self, direction: Direction, stream: StreamId, t: Nanos) {
        let gpu = self.gpu_of_stream(stream);
        let idle = direction.queue(gpu).is_empty(self.words);
        direction.queue(gpu).push(self.words, stream.0);
        if idle {
            self.copy_first(direction, gpu, t);
        }
    }

    pub(super) fn copy_due(&mut self, direction: Direction, gpu: Gpu, t: Nanos) {
        if let Some(stream) = direction.queue(gpu).pop(self.words) {
            self.trace_copied(direction, gpu, StreamId(stream), t);
            self.copy_first(direction, gpu, t);
            self.complete(StreamId(stream), t);
        }
    }

    pub(super) fn copy_dropped(&mut self, direction: Direction, stream: StreamId, t: Nanos) {
        let gpu = self.gpu_of_stream(stream);
        let under_way = direction.queue(gpu).first(self.words) == stream.0;
        direction.queue(gpu).remove(self.words, stream.0);
        if under_way {
            self.copy_first(direction, gpu, t);
        }
    }

    fn copy_first(&mut self, direction: Direction, gpu: Gpu, t: Nanos) {
        let stream = StreamId(direction.queue(gpu).first(self.words));
        if stream.0 == 0 {
            agenda::cancel(self.words, direction.due(gpu));
            return;
        }
        let cost = Nanos(self.get(self.head_slot(stream).cost()));
        agenda::schedule(self.words, direction.due(gpu), t + cost);
    }

    fn gpu_of_stream(&self, stream: StreamId) -> Gpu {
        Gpu(self.get(ContextId(self.get(stream.context())).gpu()))
    }
}
