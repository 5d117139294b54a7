//! The key of a launch's cost: a function and a size.
//!
//! Programs with dynamic shapes (prefill of language models, compilers that pad to buckets) launch
//! a function in thousands of grids. With the exact shape as a key, each would be unknown. So
//! launches of one function share an estimate if their numbers of threads have the same power of
//! two: their costs differ at most by a factor of two. Threads and not blocks: a function that
//! chooses its block size by its input does about the same work for the same number of threads.

/// Sizes of a function's launches, one for each power of two; the last one includes all larger
/// ones.
pub(crate) const SIZES: usize = 32;

/// Constants that separate the digests of executable graphs and of copies from those of kernels.
const GRAPHS: u64 = 0x5851_F42D_4C95_7F2D;
const COPIES: u64 = 0x1405_7B7E_F767_814F;
/// Copies below 1 KiB take as long as an empty one and share a size.
const MIN_COPY_LOG: u32 = 9;

/// Digest of a function, of an executable graph's handle or of a kind of copy. A collision only
/// means shared estimates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function(pub(super) u64);

/// A launch as a key of costs: a kernel, an executable graph, or a copy within the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    function: Function,
    /// Below [`SIZES`].
    size: u8,
}

impl Kernel {
    /// Makes the key of a function's launch. The products do not wait for each other; about 3 ns.
    #[inline(always)]
    #[must_use]
    pub const fn new(function: usize, grid: [u32; 3], block: [u32; 3]) -> Self {
        let threads = product(grid[0], grid[1])
            .wrapping_mul(product(grid[2], block[0]))
            .wrapping_mul(product(block[1], block[2]));
        let digest = (function as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self::sized(Function(digest), (threads | 1).ilog2())
    }

    /// Makes the key of an executable graph, as one unit.
    #[must_use]
    pub const fn graph(handle: usize) -> Self {
        let digest = (handle as u64).wrapping_mul(0xC2B2_AE3D_27D4_EB4F).wrapping_add(GRAPHS);
        Self::sized(Function(digest), 0)
    }

    /// Makes the key of a copy or fill within the GPU. Its time follows the bytes, so sizes that
    /// differ in their first three bits have their own estimates: the first bit is the size, the
    /// next two select the function.
    #[must_use]
    pub const fn copy(bytes: u64) -> Self {
        let log = (bytes | 1).ilog2();
        let low = log.saturating_sub(2);
        let steps = bytes >> low & 3;
        let digest = steps.wrapping_mul(0x1656_67B1_9E37_79F9).wrapping_add(COPIES);
        Self::sized(Function(digest), log.saturating_sub(MIN_COPY_LOG))
    }

    #[inline(always)]
    const fn sized(function: Function, log: u32) -> Self {
        #[allow(clippy::cast_possible_truncation)] // the size is one of 32
        let size = if (log as usize) < SIZES { log as u8 } else { SIZES as u8 - 1 };
        Self { function, size }
    }

    /// Makes the key of `function` at one of its sizes.
    pub(crate) fn of(function: Function, size: usize) -> Self {
        Self { function, size: u8::try_from(size.min(SIZES - 1)).unwrap_or(0) }
    }

    #[inline(always)]
    #[must_use]
    pub(crate) const fn function(self) -> Function {
        self.function
    }

    /// Returns its size: below [`SIZES`].
    #[inline(always)]
    #[must_use]
    pub(crate) const fn size(self) -> usize {
        self.size as usize % SIZES
    }
}

impl Function {
    /// Returns the key of a thread's table: the function on one of the thread's streams.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn on(self, stream: u64) -> u64 {
        self.0.wrapping_add(stream.wrapping_mul(0xE703_7ED1_A0B4_28DB))
    }
}

#[inline(always)]
const fn product(one: u32, other: u32) -> u64 {
    (one as u64).wrapping_mul(other as u64)
}
