//! By how much a pool grows for an allocation, as far as it has been seen.

use cgpu_shm::units::Bytes;

/// What every pool's growth is a multiple of: a page of the GPU.
const GRANULE: u64 = 2 << 20;
/// What a small allocation is taken to need before any was seen.
const FIRST_CHUNK: u64 = 32 << 20;
/// What is not learned: one odd reading must not make every later pre-charge fail.
const MOST: u64 = 1 << 30;
/// What no GPU has.
const TOO_LARGE: u64 = 1 << 40;

/// What is learned. It only rises, because what is charged in advance is given back a call later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// What a small allocation takes, and what large ones are rounded up to.
    chunk: u64,
    /// What a large one takes beyond that.
    beyond: u64,
}

impl Growth {
    pub(super) const NEW: Self = Self { chunk: FIRST_CHUNK, beyond: 0 };

    /// What the pool is likely to grow by at most for `size`. None: no GPU has so much.
    pub(super) fn likely(self, size: Bytes) -> Option<Bytes> {
        let beyond = if size.0 > self.chunk { self.beyond } else { 0 };
        (size.0 < TOO_LARGE).then(|| Bytes(size.0.next_multiple_of(self.chunk) + beyond))
    }

    /// The pool has grown, for `size` and nothing else.
    pub(super) fn learn(&mut self, size: Bytes, grown: Bytes) {
        if size.0 <= self.chunk {
            self.chunk = self.chunk.max(grown.0.min(MOST).next_multiple_of(GRANULE));
        } else {
            let whole = size.0.next_multiple_of(self.chunk);
            self.beyond = self.beyond.max(grown.0.saturating_sub(whole).min(MOST));
        }
    }
}

/// The least that a pool can grow by for `size`, if it grows.
pub(super) fn least(size: Bytes) -> Bytes {
    Bytes(size.0.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(count: u64) -> Bytes {
        Bytes::from_mib(count)
    }

    #[test]
    fn growth_is_a_chunk_at_first_then_what_was_seen() {
        let mut growth = Growth::NEW;
        let likely = |growth: Growth, sizes: [u64; 4]| sizes.map(|size| growth.likely(mib(size)));
        assert_eq!(growth.likely(Bytes(1)), Some(mib(32)));
        assert_eq!(likely(growth, [0, 32, 33, 64]), [0, 32, 64, 64].map(|size| Some(mib(size))));
        // A large one took a chunk more; small ones do not.
        growth.learn(mib(33), mib(96));
        assert_eq!(likely(growth, [1, 32, 33, 65]), [32, 32, 96, 128].map(|size| Some(mib(size))));
        // Chunks are larger than was thought; smaller growth teaches nothing.
        growth.learn(Bytes(512), mib(63) + Bytes(1));
        growth.learn(Bytes(512), mib(2));
        assert_eq!(likely(growth, [1, 33, 64, 65]), [64, 64, 64, 160].map(|size| Some(mib(size))));
        // What is out of all proportion is not learned.
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
