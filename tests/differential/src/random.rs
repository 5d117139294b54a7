//! Random values that a seed repeats.

/// A source of random values.
#[derive(Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// Creates the source for a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Returns a value from 0 to below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(0..bound)
    }

    /// Returns true once in `times` calls on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of the elements, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, holdings: &'a [T]) -> Option<&'a T> {
        self.0.choice(holdings)
    }

    /// Returns an allocation size from 1 to `most`: small ones, odd ones, sizes around the rounding
    /// borders, large ones.
    pub fn size(&mut self, most: u64) -> u64 {
        let border = [512_u64, 1 << 20, 2 << 20, 32 << 20];
        let size = match self.below(8) {
            0 => self.below(4096) + 1,
            1 => self.below(1 << 20) + 1,
            2 | 3 => border[self.0.usize(0..border.len())].saturating_add(self.below(3)) - 1,
            4..=6 => (self.below(32) + 1) << 20,
            _ => self.below(most) + 1,
        };
        size.clamp(1, most)
    }
}
