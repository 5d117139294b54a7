//! An allocation in eight bytes: offset, size, owner.
//!
//! ```text
//!   63 .... 56  55 ... 44  43 .......... 13  12 ....... 0
//!   generation  index      units of 512 B    offset in its region, in 256 B
//!   `----- owner --------'
//! ```

/// log2 of the bytes of a region: the block that drivers carve small allocations from.
pub(super) const REGION_BITS: u32 = 21;

/// log2 of the alignment of every driver's addresses.
const ALIGNMENT_BITS: u32 = 8;
const OFFSET_BITS: u32 = REGION_BITS - ALIGNMENT_BITS;
const UNITS_BITS: u32 = 31;

/// First size that an entry cannot hold: 1 TiB.
pub(super) const MOST_UNITS: u32 = 1 << UNITS_BITS;

/// The owner of an allocation: an index in the registry, and a generation of that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u32);

impl Owner {
    const INDEX_BITS: u32 = 12;
    pub(crate) const INDICES: usize = 1 << Self::INDEX_BITS;
    /// Generations of an index; after the last one, the index is not used again.
    pub(crate) const GENERATIONS: u32 =
        1 << (u64::BITS - OFFSET_BITS - UNITS_BITS - Self::INDEX_BITS);

    /// Returns the owner of an index below [`Owner::INDICES`] and a generation below
    /// [`Owner::GENERATIONS`].
    pub(crate) fn new(index: u16, generation: u32) -> Self {
        let index = u32::from(index) & ((1 << Self::INDEX_BITS) - 1);
        Self((generation & (Self::GENERATIONS - 1)) << Self::INDEX_BITS | index)
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize & (Self::INDICES - 1)
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        self.0 >> Self::INDEX_BITS
    }
}

/// The offset of an address in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset(pub(super) u16);

impl Offset {
    /// Returns `None` for an address that no driver returns.
    #[inline]
    pub(super) fn of(address: u64) -> Option<Self> {
        let aligned = address != 0 && address.is_multiple_of(1 << ALIGNMENT_BITS);
        let offset = address >> ALIGNMENT_BITS & ((1 << OFFSET_BITS) - 1);
        aligned.then(|| u16::try_from(offset).ok().map(Self)).flatten()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry(u64);

impl Entry {
    /// A free slot of a table: no allocation has zero bytes.
    pub(super) const VACANT: Self = Self(0);

    /// Returns `None` for zero bytes, or for more than an entry can hold.
    #[inline]
    pub(super) fn new(offset: Offset, units: u32, owner: Owner) -> Option<Self> {
        let fits = units > 0 && units < MOST_UNITS;
        let owner = u64::from(owner.0) << (OFFSET_BITS + UNITS_BITS);
        fits.then_some(Self(owner | u64::from(units) << OFFSET_BITS | u64::from(offset.0)))
    }

    #[inline]
    pub(super) fn is_vacant(self) -> bool {
        self == Self::VACANT
    }

    // The masks leave no more bits than the types have.
    #[allow(clippy::cast_possible_truncation)]
    #[inline]
    pub(super) fn offset(self) -> Offset {
        Offset((self.0 & ((1 << OFFSET_BITS) - 1)) as u16)
    }

    #[allow(clippy::cast_possible_truncation)] // as above
    #[inline]
    pub(super) fn units(self) -> u32 {
        (self.0 >> OFFSET_BITS & ((1 << UNITS_BITS) - 1)) as u32
    }

    #[allow(clippy::cast_possible_truncation)] // as above
    #[inline]
    pub(super) fn owner(self) -> Owner {
        Owner((self.0 >> (OFFSET_BITS + UNITS_BITS)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_returns_what_it_was_made_of() {
        for (index, generation) in [(0, 0), (1, 0), (0, 1), (4095, 255)] {
            for units in [1, 4096, (1 << UNITS_BITS) - 1] {
                for offset in [0, 1, 8191] {
                    let owner = Owner::new(index, generation);
                    let entry = Entry::new(Offset(offset), units, owner).expect("it fits");
                    assert!(!entry.is_vacant());
                    assert_eq!(
                        (entry.offset().0, entry.units(), entry.owner()),
                        (offset, units, owner)
                    );
                    assert_eq!(
                        (owner.index(), owner.generation()),
                        (usize::from(index), generation)
                    );
                }
            }
        }
        assert_eq!(Entry::new(Offset(0), 0, Owner::new(0, 0)), None);
        assert_eq!(Entry::new(Offset(0), 1 << UNITS_BITS, Owner::new(0, 0)), None);
    }

    #[test]
    fn offset_exists_for_aligned_addresses_only() {
        assert_eq!(Offset::of(0x7f00_0020_0000), Some(Offset(0)));
        assert_eq!(Offset::of(0x7f00_003f_ff00), Some(Offset(8191)));
        assert_eq!(Offset::of(0x7f00_0020_0004), None);
        assert_eq!(Offset::of(0), None);
    }
}
