//! The copy engines of a card: one towards it, one from it, each one copy at a time in order of arrival, beside
//! whatever computes.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::agenda::{self, Due};
use super::list::List;
use super::records::{Card, ContextId, StreamId};
use crate::words::Words;

/// Which copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Host to card.
    Up,
    /// Card to host.
    Down,
}

impl Way {
    pub(super) const fn queue(self, card: Card) -> List {
        let (first, last) = match self {
            Self::Up => (card.first_up(), card.last_up()),
            Self::Down => (card.first_down(), card.last_down()),
        };
        List {
            first,
            last,
            next: |stream| StreamId(stream).next_queued(),
            previous: |stream| StreamId(stream).previous_queued(),
        }
    }

    pub(super) const fn due(self, card: Card) -> Due {
        match self {
            Self::Up => Due::Up(card),
            Self::Down => Due::Down(card),
        }
    }
}

impl<W: Words> Timeline<'_, W> {
    pub(super) fn copy_ready(&mut self, way: Way, stream: StreamId, t: Nanos) {
        let card = self.card_of_stream(stream);
        let idle = way.queue(card).is_empty(self.words);
        way.queue(card).push(self.words, stream.0);
        if idle {
            self.copy_first(way, card, t);
        }
    }

    pub(super) fn copy_due(&mut self, way: Way, card: Card, t: Nanos) {
        if let Some(stream) = way.queue(card).pop(self.words) {
            self.trace_copied(way, card, StreamId(stream), t);
            self.copy_first(way, card, t);
            self.complete(StreamId(stream), t);
        }
    }

    pub(super) fn copy_dropped(&mut self, way: Way, stream: StreamId, t: Nanos) {
        let card = self.card_of_stream(stream);
        let under_way = way.queue(card).first(self.words) == stream.0;
        way.queue(card).remove(self.words, stream.0);
        if under_way {
            self.copy_first(way, card, t);
        }
    }

    fn copy_first(&mut self, way: Way, card: Card, t: Nanos) {
        let stream = StreamId(way.queue(card).first(self.words));
        if stream.0 == 0 {
            agenda::cancel(self.words, way.due(card));
            return;
        }
        let cost = Nanos(self.get(self.head_slot(stream).cost()));
        agenda::schedule(self.words, way.due(card), t + cost);
    }

    fn card_of_stream(&self, stream: StreamId) -> Card {
        Card(self.get(ContextId(self.get(stream.context())).card()))
    }
}
