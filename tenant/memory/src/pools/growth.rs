//! Estimate of a pool's growth for an allocation, from former growth.

use cgpu_shm::units::Bytes;

/// Every pool's growth is a multiple of this, a page of the GPU.
const GRANULE: u64 = 2 << 20;
/// Estimate for a small allocation before the first growth.
const FIRST_CHUNK: u64 = 32 << 20;
/// Upper bound of an estimate: one odd reading must not make every later pre-charge fail.
const MOST: u64 = 1 << 30;
/// No GPU has this much.
const TOO_LARGE: u64 = 1 << 40;

/// The estimate. It only rises, because the excess of a pre-charge is refunded after the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// Growth for a small allocation; large ones are rounded up to a multiple of it.
    chunk: u64,
    /// Growth for a large allocation beyond that.
    beyond: u64,
}

impl Growth {
    pub(super) const NEW: Self = Self { chunk: FIRST_CHUNK, beyond: 0 };

    /// Returns the estimated growth for `size`. `None` if no GPU has so much.
    pub(super) fn likely(self, size: Bytes) -> Option<Bytes> {
        let beyond = if size.0 > self.chunk { self.beyond } else { 0 };
        (size.0 < TOO_LARGE).then(|| Bytes(size.0.next_multiple_of(self.chunk) + beyond))
    }

    /// Learns from the pool's growth for `size` alone.
    pub(super) fn learn(&mut self, size: Bytes, grown: Bytes) {
        if size.0 <= self.chunk {
            self.chunk = self.chunk.max(grown.0.min(MOST).next_multiple_of(GRANULE));
        } else {
            let whole = size.0.next_multiple_of(self.chunk);
            self.beyond = self.beyond.max(grown.0.saturating_sub(whole).min(MOST));
        }
    }
}

/// Returns the smallest growth for `size`, if the pool grows.
pub(super) fn least(size: Bytes) -> Bytes {
    Bytes(size.0.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doubles::mib;

    #[test]
    fn growth_is_a_chunk_at_first_then_what_was_seen() {
        let mut growth = Growth::NEW;
        let likely = |growth: Growth, sizes: [u64; 4]| sizes.map(|size| growth.likely(mib(size)));
        assert_eq!(growth.likely(Bytes(1)), Some(mib(32)));
        assert_eq!(likely(growth, [0, 32, 33, 64]), [0, 32, 64, 64].map(|size| Some(mib(size))));
        // A large one took a chunk more; small ones do not.
        growth.learn(mib(33), mib(96));
        assert_eq!(likely(growth, [1, 32, 33, 65]), [32, 32, 96, 128].map(|size| Some(mib(size))));
        // Chunks are larger than estimated; smaller growth changes nothing.
        growth.learn(Bytes(512), mib(63) + Bytes(1));
        growth.learn(Bytes(512), mib(2));
        assert_eq!(likely(growth, [1, 33, 64, 65]), [64, 64, 64, 160].map(|size| Some(mib(size))));
        // Growth out of proportion is not learned.
        growth.learn(Bytes(512), mib(1 << 20));
        assert_eq!(growth.likely(Bytes(1)), Some(mib(1024)));
        assert_eq!(growth.likely(Bytes(1 << 40)), None);
        assert_eq!(growth.likely(Bytes(u64::MAX)), None);
    }

    #[test]
    fn least_growth_is_whole_pages() {
        for (size, whole) in [(0, 0), (1, 2), (2 << 20, 2), ((2 << 20) + 1, 4)] {
            assert_eq!(least(Bytes(size)), mib(whole), "{size}");
        }
        assert_eq!(least(Bytes(u64::MAX)), Bytes(u64::MAX));
    }
}
