//! The routes by which memory is shared between processes, as bits.

use cgpu_shm::layout::EXPORTED_UNSEEN;

/// A route by which memory is shared between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(pub(crate) u64);

impl Route {
    /// A route whose importers cannot be seen: a descriptor, a fabric handle.
    pub const UNTRACKED: Self = Self(EXPORTED_UNSEEN);

    /// Returns the route of a handle with these bytes, valid only while the exporter has the
    /// memory.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        // FNV-1a; its upper bits are better distributed.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        Self(1 << ((hash >> 32) % BITS as u64))
    }
}

/// Bits that stand for handles; the last one of a word is [`Route::UNTRACKED`].
pub(super) const BITS: usize = 63;
