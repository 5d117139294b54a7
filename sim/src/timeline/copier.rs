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
pub(super) enum Way {
    /// Host to GPU.
    Up,
    /// GPU to host.
    Down,
}

impl Way {
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
    pub(super) fn copy_ready(&mut self, way: Way, stream: StreamId, t: Nanos) {
        let gpu = self.gpu_of_stream(stream);
        let idle = way.queue(gpu).is_empty(self.words);
        way.queue(gpu).push(self.words, stream.0);
        if idle {
            self.copy_first(way, gpu, t);
        }
    }

    pub(super) fn copy_due(&mut self, way: Way, gpu: Gpu, t: Nanos) {
        if let Some(stream) = way.queue(gpu).pop(self.words) {
            self.trace_copied(way, gpu, StreamId(stream), t);
            self.copy_first(way, gpu, t);
            self.complete(StreamId(stream), t);
        }
    }

    pub(super) fn copy_dropped(&mut self, way: Way, stream: StreamId, t: Nanos) {
        let gpu = self.gpu_of_stream(stream);
        let under_way = way.queue(gpu).first(self.words) == stream.0;
        way.queue(gpu).remove(self.words, stream.0);
        if under_way {
            self.copy_first(way, gpu, t);
        }
    }

    fn copy_first(&mut self, way: Way, gpu: Gpu, t: Nanos) {
        let stream = StreamId(way.queue(gpu).first(self.words));
        if stream.0 == 0 {
            agenda::cancel(self.words, way.due(gpu));
            return;
        }
        let cost = Nanos(self.get(self.head_slot(stream).cost()));
        agenda::schedule(self.words, way.due(gpu), t + cost);
    }

    fn gpu_of_stream(&self, stream: StreamId) -> Gpu {
        Gpu(self.get(ContextId(self.get(stream.context())).gpu()))
    }
}
