//! Sizes as the driver takes them, counted in units.

use cgpu_shm::units::Bytes;

use super::entry::MOST_UNITS;

/// The least that a driver allocates, and what sizes are counted in: 31 bits of it are 1 TiB.
pub(super) const UNIT: u64 = 512;

/// A size as the driver takes it, in units of 512 bytes: below 1 MiB rounded to 512 bytes, else to
/// 2 MiB. None: beyond 1 TiB.
#[inline]
pub(crate) fn units(size: Bytes) -> Option<u32> {
    const MIB: u64 = 1 << 20;
    let multiple = if size.0 < MIB { UNIT } else { 2 * MIB };
    let units = u32::try_from(size.0.checked_next_multiple_of(multiple)? / UNIT).ok()?;
    (units < MOST_UNITS).then_some(units)
}

#[inline]
pub(crate) fn bytes(units: u32) -> Bytes {
    Bytes(u64::from(units) * UNIT)
}
