//! By which route memory gets from process to process, as one bit.

use cgpu_shm::layout::EXPORTED_UNSEEN;

/// How memory is handed from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route(pub(crate) u64);

impl Route {
    /// By something whose holders cannot be seen: a descriptor, a handle of the fabric.
    pub const UNTRACKED: Self = Self(EXPORTED_UNSEEN);

    /// By a handle of these bytes, which is good only while its maker holds the memory.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Self {
        // FNV-1a, and its upper bits, which are the better ones.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        Self(1 << ((hash >> 32) % BITS as u64))
    }
}

/// Bits that stand for handles; the last one of a word is [`Route::UNTRACKED`].
pub(super) const BITS: usize = 63;
