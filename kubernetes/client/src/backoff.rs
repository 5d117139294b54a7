//! Exponential backoff with jitter.

use std::time::Duration;

/// A delay that doubles up to a maximum, with jitter.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// Creates a backoff from `first` to `most`.
    #[must_use]
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// Resets the delay to the first one.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the next delay, from half to all of it by `part`, which is 0 to 1.
    pub fn next(&mut self, part: f64) -> Duration {
        let due = self.next;
        self.next = (due * 2).min(self.most);
        due / 2 + (due / 2).mul_f64(part.clamp(0.0, 1.0))
    }

    /// Sleeps for the next delay.
    pub async fn wait(&mut self) {
        let due = self.next(fastrand::f64());
        tokio::time::sleep(due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum_and_resets() {
        let (first, most) = (Duration::from_millis(100), Duration::from_millis(350));
        let mut backoff = Backoff::new(first, most);
        let waits: Vec<u128> = (0..4).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 350, 350]);
        backoff.reset();
        assert_eq!(backoff.next(0.0).as_millis(), 50);
    }
}
