//! The GPU's own clock, which stamps events: an oscillator that drifts from the host's.
//!
//! Device time is the host's. A stamp is device time plus the clock's offset then. The rate can
//! change at any instant, and the clock can be moved forward or back, as by a reset.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::records::Gpu;
use crate::words::Words;

/// Rate of a GPU's clock relative to the host's: parts per billion; negative: slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockRate(pub i64);

impl ClockRate {
    /// The maximum deviation, either way: 500 ppm.
    pub const MOST: Self = Self(500_000);

    /// Parses parts per million, fractions allowed; `None` unless it is from -500 to 500.
    #[must_use]
    pub fn parse_ppm(text: &str) -> Option<Self> {
        let ppm: f64 = text.trim().parse().ok()?;
        // In this range the product is a whole number far below 2^53.
        #[allow(clippy::cast_possible_truncation)]
        (-500.0..=500.0).contains(&ppm).then_some(Self((ppm * 1_000.0).round() as i64))
    }

    /// Returns how far a clock of this rate gets ahead in `time`.
    fn over(self, time: i64) -> i64 {
        let ahead = i128::from(time) * i128::from(self.0) / 1_000_000_000;
        // At 500 ppm, less than `time` itself.
        i64::try_from(ahead).unwrap_or(0)
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Returns the rate of a GPU's clock.
    #[must_use]
    pub fn clock_rate(&self, gpu: usize) -> ClockRate {
        let more = self.get(Gpu(gpu as u64).clock_rate()).cast_signed();
        ClockRate(self.figures.clock_rate.0 + more)
    }

    /// Changes the rate of a GPU's clock from now on, and moves the clock by `step` nanoseconds.
    pub fn set_clock(&mut self, gpu: usize, rate: ClockRate, step: i64) {
        let (gpu, now) = (Gpu(gpu as u64), self.now());
        let ahead = self.stamp(gpu, now) - now.0.cast_signed() + step;
        self.set(gpu.clock_ahead(), ahead.cast_unsigned());
        self.set(gpu.clock_since(), now.0);
        self.set(gpu.clock_rate(), (rate.0 - self.figures.clock_rate.0).cast_unsigned());
    }

    /// Returns the GPU clock's stamp at the instant `at`, not before its last change.
    pub(super) fn stamp(&self, gpu: Gpu, at: Nanos) -> i64 {
        let rate = ClockRate(self.figures.clock_rate.0 + self.get(gpu.clock_rate()).cast_signed());
        let since = self.get(gpu.clock_since()).cast_signed();
        let ahead = self.get(gpu.clock_ahead()).cast_signed();
        // Device times are far from the end of 63 bits.
        let at = at.0.cast_signed();
        at + ahead + rate.over(at - since)
    }
}

#[cfg(test)]
mod tests {
    use super::super::WORDS;
    use super::*;
    use crate::settings::Figures;
    use crate::words::Plain;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn stamp_follows_rate_changes_and_steps() {
        let figures = Figures { clock_rate: ClockRate(-100_000), ..Figures::default() };
        let mut words = Plain::new(WORDS);
        let mut timeline = Timeline::new(&mut words, &figures);
        let at = |seconds: i64| Nanos((seconds * SECOND).cast_unsigned());
        assert_eq!(timeline.stamp(Gpu(0), at(10)), 10 * SECOND - 1_000_000, "100 us a second");
        timeline.advance(at(10));
        timeline.set_clock(0, ClockRate(50_000), 0);
        assert_eq!(timeline.clock_rate(0), ClockRate(50_000));
        assert_eq!(timeline.stamp(Gpu(0), at(10)), 10 * SECOND - 1_000_000, "no step");
        assert_eq!(timeline.stamp(Gpu(0), at(30)), 30 * SECOND, "20 s later");
        timeline.advance(at(30));
        timeline.set_clock(0, ClockRate(0), -5 * SECOND);
        assert_eq!(timeline.stamp(Gpu(0), at(31)), 26 * SECOND, "set back");
        assert_eq!(timeline.stamp(Gpu(1), at(30)), 30 * SECOND - 3_000_000, "another GPU");
    }

    #[test]
    fn clock_rate_is_parsed_from_ppm() {
        for (text, rate) in [
            ("0", Some(0)),
            ("-2.5", Some(-2_500)),
            ("500", Some(500_000)),
            ("501", None),
            ("", None),
        ] {
            assert_eq!(ClockRate::parse_ppm(text), rate.map(ClockRate), "{text}");
        }
        assert_eq!(ClockRate::parse_ppm("NaN"), None);
    }
}
