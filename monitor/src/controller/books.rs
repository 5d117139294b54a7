//! The books: what a container was charged, what it reported, and what did not go by the book.

use cgpu_proto::units::Nanos;

use super::last_second::LastSecond;
use crate::message::Odd;

/// GPU time of one container on one card.
#[derive(Clone, Debug, Default)]
pub struct Books {
    /// Charged so far.
    pub charged: Nanos,
    /// Part of it that was forgiven: it counts as used, and costs no credit.
    pub forgiven: Nanos,
    /// Growth of its own reports, as believed.
    pub reported: Nanos,
    /// How often somebody began to wait at its gate.
    pub waits: u64,
    /// For how long somebody did.
    pub waited: Nanos,
    /// Turns begun.
    pub turns: u64,
    /// Turns that did not go by the book.
    pub odd: Odd,
    /// What of it was charged, and what was reported, within the last second.
    pub(super) charges: LastSecond,
    pub(super) reports: LastSecond,
    /// Reports among these that do not tell what the container has computed.
    pub(super) unclear: LastSecond,
}

impl Books {
    /// Charges so much, at this time.
    pub fn charge(&mut self, now: Nanos, time: Nanos) {
        self.charged = self.charged + time;
        self.charges.add(now, time);
    }

    /// Takes back what was charged too much.
    pub fn refund(&mut self, now: Nanos, time: Nanos) {
        self.charged = self.charged - time;
        self.charges.take(now, time);
    }

    /// Takes down GPU time that its processes have reported. `clear`: it is what they computed.
    pub(super) fn report(&mut self, now: Nanos, time: Nanos, clear: bool) {
        self.reported = self.reported + time;
        self.reports.add(now, time);
        if !clear {
            self.unclear.add(now, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refunds_lower_both() {
        let now = Nanos::from_millis(5000);
        let mut books = Books::default();
        books.charge(now, Nanos(100));
        books.refund(now + Nanos(1), Nanos(30));
        assert_eq!((books.charged, books.charges.sum(now + Nanos(1))), (Nanos(70), Nanos(70)));
    }
}
