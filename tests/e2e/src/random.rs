//! Random numbers by a seed, so that a failed run can be repeated.

/// A linear congruential generator.
pub struct Random(u64);

impl Random {
    /// Starts the sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, below the bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns one of the items; none if there are none.
    pub fn pick<T>(&mut self, items: &[T]) -> Option<T>
    where
        T: Copy,
    {
        let count = u64::try_from(items.len()).unwrap_or(u64::MAX);
        (count > 0).then(|| items[usize::try_from(self.below(count)).unwrap_or(0)])
    }
}
