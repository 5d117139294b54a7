//! The books: what a container was charged, what it reported, and what did not go by the book.

use cgpu_proto::units::Nanos;

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
    window: Window,
}

impl Books {
    /// Charges so much, at this time.
    pub fn charge(&mut self, now: Nanos, time: Nanos) {
        self.charged = self.charged + time;
        self.window.add(now, time);
    }

    /// Takes back what was charged too much.
    pub fn refund(&mut self, now: Nanos, time: Nanos) {
        self.charged = self.charged - time;
        self.window.take(now, time);
    }

    /// Charged within the last second.
    #[must_use]
    pub fn last_second(&self, now: Nanos) -> Nanos {
        self.window.sum(now)
    }
}

/// Sums over the last second, in buckets.
#[derive(Clone, Debug, Default)]
struct Window {
    /// (number of the bucket's stretch of time, sum).
    bucket: [(u64, Nanos); Self::BUCKETS],
}

impl Window {
    const BUCKETS: usize = 20;
    const WIDTH: u64 = 50_000_000;

    fn at(&mut self, now: Nanos) -> &mut Nanos {
        let stretch = now.0 / Self::WIDTH;
        // The remainder is below BUCKETS.
        #[allow(clippy::cast_possible_truncation)]
        let bucket = &mut self.bucket[(stretch % Self::BUCKETS as u64) as usize];
        if bucket.0 != stretch {
            *bucket = (stretch, Nanos::ZERO);
        }
        &mut bucket.1
    }

    fn add(&mut self, now: Nanos, time: Nanos) {
        let sum = self.at(now);
        *sum = *sum + time;
    }

    fn take(&mut self, now: Nanos, time: Nanos) {
        let sum = self.at(now);
        *sum = *sum - time;
    }

    fn sum(&self, now: Nanos) -> Nanos {
        let stretch = now.0 / Self::WIDTH;
        let since = stretch.saturating_sub(Self::BUCKETS as u64 - 1);
        self.bucket.iter().filter(|bucket| (since..=stretch).contains(&bucket.0)).map(|bucket| bucket.1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_a_second_long() {
        let mut books = Books::default();
        for millis in 0..3000 {
            books.charge(Nanos::from_millis(millis), Nanos::from_micros(250));
        }
        assert_eq!(books.charged, Nanos::from_millis(750));
        assert_eq!(books.last_second(Nanos::from_millis(2999)), Nanos::from_millis(250));
        assert_eq!(books.last_second(Nanos::from_millis(3499)), Nanos::from_micros(125_000));
        assert_eq!(books.last_second(Nanos::from_millis(9000)), Nanos::ZERO);
    }

    #[test]
    fn refunds_lower_both() {
        let mut books = Books::default();
        books.charge(Nanos(0), Nanos(100));
        books.refund(Nanos(1), Nanos(30));
        assert_eq!((books.charged, books.last_second(Nanos(1))), (Nanos(70), Nanos(70)));
    }
}
