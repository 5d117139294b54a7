//! Sizes in units of 512 bytes, rounded as the driver rounds them.

use cgpu_shm::units::Bytes;

use super::entry::MOST_UNITS;

/// The smallest size that a driver allocates; an entry has 31 bits for units, up to 1 TiB.
pub(super) const UNIT: u64 = 512;

/// Returns a size in units of 512 bytes, rounded to 512 bytes below 1 MiB and else to 2 MiB; `None`
/// from 1 TiB on.
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
