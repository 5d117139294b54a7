//! What the program is shown.

use cgpu_proto::units::Bytes;

/// A card's memory as every getter shows it: taken once, so that they agree to the byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The limit.
    pub total: Bytes,
    /// What can still be allocated: `min(limit - used, physically free)`.
    pub free: Bytes,
    /// `total - free`.
    pub used: Bytes,
}

impl View {
    /// The one formula. `limit` and `used` are the container's, `physical_free` the card's.
    #[must_use]
    pub fn of(limit: Bytes, used: Bytes, physical_free: Bytes) -> Self {
        let free = (limit - used).min(physical_free);
        Self { total: limit, free, used: limit - free }
    }
}
