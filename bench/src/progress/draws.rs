//! Random values of the experiments, reproducible by their seed.

/// Random numbers (SplitMix64).
pub(super) struct Draws(u64);

impl Draws {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Returns a number from 0 to 1, uniformly distributed, and never 1.
    fn part(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the time to the next of events that are independent of each other, with this mean.
    pub(super) fn interval(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.part()).ln()
    }

    /// Returns a number from `least` to `most`, uniformly distributed.
    pub(super) fn within(&mut self, least: u32, most: u32) -> u32 {
        least + (self.bits() % u64::from(most - least + 1)) as u32
    }

    /// Returns a number from `least` to `most` whose logarithm is uniformly distributed.
    pub(super) fn over_magnitudes(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.part())
    }
}
