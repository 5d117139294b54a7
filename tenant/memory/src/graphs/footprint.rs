//! An upper bound of the memory that a graph can take of each GPU: the pages behind its
//! allocations' addresses.
//!
//! The driver assigns each allocation node its address when the node is made, and one address to
//! several allocations whose lifetimes do not overlap. So the bound is not the sum of the sizes,
//! but the pages of 2 MiB that the addresses cover together.

use std::collections::TryReserveError;

use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::handles::Address;

/// Bytes of a page of the GPU.
const PAGE: u64 = 2 << 20;

/// The allocations of a graph and all its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// GPU, first page, and the page after the last one.
    ranges: Vec<(DeviceIndex, u64, u64)>,
}

impl Footprint {
    /// Returns the footprint of a graph that allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Adds an allocation of `bytes` of `gpu` at `address`.
    ///
    /// # Errors
    /// No host memory.
    pub fn add(
        &mut self,
        gpu: DeviceIndex,
        address: Address,
        bytes: Bytes,
    ) -> Result<(), TryReserveError> {
        self.ranges.try_reserve(1)?;
        let end = address.0.saturating_add(bytes.0).div_ceil(PAGE);
        self.ranges.push((gpu, address.0 / PAGE, end));
        Ok(())
    }

    /// Returns whether the graph allocates nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn bounds(&mut self) -> impl Iterator<Item = (DeviceIndex, Bytes)> {
        self.ranges.sort_unstable();
        let by_gpu = self.ranges.chunk_by(|(before, ..), (after, ..)| before == after);
        let bounds = by_gpu.filter_map(|ranges| Some((ranges.first()?.0, pages(ranges))));
        bounds
            .filter(|(_, pages)| *pages > 0)
            .map(|(gpu, pages)| (gpu, Bytes(pages.saturating_mul(PAGE))))
    }
}

/// Returns the number of pages that ranges cover, which are sorted by their first page.
fn pages(ranges: &[(DeviceIndex, u64, u64)]) -> u64 {
    let mut covered = 0;
    let mut reached = 0;
    for &(_, first, end) in ranges {
        covered += end.saturating_sub(first.max(reached));
        reached = reached.max(end);
    }
    covered
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn gpu(index: usize) -> DeviceIndex {
        DeviceIndex::new(index).expect("a GPU")
    }

    fn of(ranges: &[(usize, u64, u64)]) -> Vec<(usize, u64)> {
        let mut footprint = Footprint::new();
        for &(index, address, bytes) in ranges {
            footprint.add(gpu(index), Address(address), Bytes(bytes)).expect("host memory");
        }
        footprint.bounds().map(|(gpu, bytes)| (gpu.get(), bytes.0 / PAGE)).collect()
    }

    #[test]
    fn address_used_twice_counts_once() {
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[(0, PAGE, 1)]), [(0, 1)]);
        assert_eq!(of(&[(0, PAGE, PAGE + 1), (0, PAGE, 4 * PAGE)]), [(0, 4)]);
        // One after the other in a page, and across two pages.
        assert_eq!(
            of(&[(0, PAGE, 512), (0, PAGE + 512, 512), (0, 2 * PAGE - 512, 1024)]),
            [(0, 2)]
        );
        assert_eq!(of(&[(1, PAGE, 1), (0, PAGE, 1), (1, 9 * PAGE, PAGE)]), [(0, 1), (1, 2)]);
        assert_eq!(of(&[(0, 0, u64::MAX), (0, PAGE, u64::MAX)]), [(0, u64::MAX / PAGE)]);
    }

    proptest! {
        #[test]
        fn footprint_is_the_number_of_different_pages(
            ranges in prop::collection::vec((0..3_usize, 0..40 * PAGE, 1..9 * PAGE), 0..30),
        ) {
            let mut plain = BTreeSet::new();
            for &(index, address, bytes) in &ranges {
                plain.extend(
                    (address / PAGE..=(address + bytes - 1) / PAGE).map(|page| (index, page)),
                );
            }
            let count = |index| plain.iter().filter(|(at, _)| *at == index).count() as u64;
            let plain: Vec<_> =
                (0..3).map(|index| (index, count(index))).filter(|(_, pages)| *pages > 0).collect();
            prop_assert_eq!(of(&ranges), plain);
        }
    }
}
