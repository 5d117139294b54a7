//! Sums over the last second.

use cgpu_shm::units::Nanos;

#[derive(Clone, Debug, Default)]
pub(super) struct LastSecond {
    /// Number of the bucket's time span, and sum in ns.
    bucket: [(u64, u64); Self::BUCKETS],
}

impl LastSecond {
    const BUCKETS: usize = 20;
    const WIDTH: u64 = 50_000_000;

    /// Adds a time that ends now; it may fall into several buckets.
    pub(super) fn add(&mut self, now: Nanos, time: Nanos) {
        let (mut end, mut left) = (now.0, time.min(now - Self::since(now)).0);
        while left > 0 {
            // A time that ends with a bucket belongs to it.
            let bucket_number = (end - 1) / Self::WIDTH;
            let part = left.min(end - bucket_number * Self::WIDTH);
            *self.at(bucket_number) += part;
            (end, left) = (end - part, left - part);
        }
    }

    pub(super) fn sum(&self, now: Nanos) -> Nanos {
        let bucket_numbers = Self::since(now).0 / Self::WIDTH..=now.0 / Self::WIDTH;
        let seen = self.bucket.iter().filter(|bucket| bucket_numbers.contains(&bucket.0));
        Nanos(seen.map(|bucket| bucket.1).sum())
    }

    /// Returns the start of the last second: between 950 ms and a second ago.
    pub(super) fn since(now: Nanos) -> Nanos {
        let bucket_number = (now.0 / Self::WIDTH).saturating_sub(Self::BUCKETS as u64 - 1);
        Nanos(bucket_number * Self::WIDTH)
    }

    fn at(&mut self, bucket_number: u64) -> &mut u64 {
        // The remainder is below BUCKETS.
        #[allow(clippy::cast_possible_truncation)]
        let bucket = &mut self.bucket[(bucket_number % Self::BUCKETS as u64) as usize];
        if bucket.0 != bucket_number {
            *bucket = (bucket_number, 0);
        }
        &mut bucket.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Nanos {
        Nanos::from_millis(time)
    }

    #[test]
    fn window_is_a_second_long() {
        let mut window = LastSecond::default();
        for millis in 1..=3000 {
            window.add(ms(millis), Nanos::from_micros(250));
        }
        assert_eq!(window.sum(ms(2999)), ms(250));
        assert_eq!(window.sum(ms(3499)), ms(125));
        assert_eq!(window.sum(ms(9000)), ms(0));
    }

    #[test]
    fn long_time_falls_into_the_buckets_that_it_lasted_through() {
        let mut window = LastSecond::default();
        window.add(ms(5020), ms(60));
        assert_eq!(window.sum(ms(5020)), ms(60));
        // Since 4960: 40 ms are of the bucket until 5000.
        assert_eq!(window.sum(ms(5960)), ms(20));
    }

    #[test]
    fn time_beyond_the_window_is_cut_off() {
        for (now, time, sum) in
            [(ms(3), ms(10), ms(3)), (ms(5020), ms(4000), ms(970)), (ms(0), ms(1), ms(0))]
        {
            let mut window = LastSecond::default();
            window.add(now, time);
            assert_eq!(
                (window.sum(now), now - LastSecond::since(now)),
                (sum, sum),
                "{time} at {now}"
            );
        }
    }
}
