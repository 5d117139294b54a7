//! The known order between streams: each event wait orders a stream after a prefix of others.
//!
//! Only pools need it, so nothing is kept before the first pool.

use std::collections::HashMap;

use super::{EventId, StreamId, Ticket};

/// For each other stream, the number of the last command that is ordered before.
pub(super) type After = HashMap<StreamId, u64>;

/// The order between the process's streams.
#[derive(Debug, Default)]
pub(super) struct Order {
    streams: HashMap<StreamId, After>,
    /// The record, and the order of its stream at that time.
    events: HashMap<EventId, (Ticket, After)>,
}

impl Order {
    pub(super) fn recorded(&mut self, event: EventId, ticket: Ticket) {
        let after = self.streams.get(&ticket.stream).cloned().unwrap_or_default();
        self.events.insert(event, (ticket, after));
    }

    pub(super) fn waits(&mut self, stream: StreamId, event: EventId) {
        let Some((ticket, after)) = self.events.get(&event) else { return };
        let its = self.streams.entry(stream).or_default();
        for (&other, &number) in after.iter().chain([(&ticket.stream, &ticket.number)]) {
            let known = its.entry(other).or_default();
            *known = number.max(*known);
        }
    }

    pub(super) fn after(&self, stream: StreamId) -> Option<&After> {
        self.streams.get(&stream)
    }

    pub(super) fn forget_event(&mut self, event: EventId) {
        self.events.remove(&event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_inherited_as_of_the_event_record() {
        let [a, b, c] = [1, 2, 3].map(StreamId);
        let at = |stream, number| Ticket { stream, number };
        let mut order = Order::default();
        order.recorded(EventId(1), at(a, 5));
        order.waits(b, EventId(1));
        order.recorded(EventId(2), at(b, 7));
        order.recorded(EventId(1), at(a, 9));
        order.waits(b, EventId(1));
        order.waits(c, EventId(2));
        assert_eq!(order.after(c), Some(&After::from([(a, 5), (b, 7)])));
        assert_eq!(order.after(b), Some(&After::from([(a, 9)])));
        assert_eq!(order.after(a), None);
    }
}
