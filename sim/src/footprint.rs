//! Footprints: how much of a GPU a kernel occupies, from its grid and blocks.
//!
//! Threads, shared memory and registers bound the blocks that are resident on a multiprocessor
//! ([`Model::resident_blocks`](crate::gpu::Model::resident_blocks)). So a kernel occupies `blocks /
//! (resident blocks x multiprocessors)` of the GPU. A larger grid occupies all of it and runs in
//! waves.

/// The part of a GPU that a kernel occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// All blocks that can be resident at once, in parts of [`Footprint::GPU`].
    pub(crate) share: u64,
    /// One block: the least with which the kernel can run.
    pub(crate) block: u64,
    /// The grid is larger than fits at once: more blocks start as resident ones end.
    pub(crate) waves: bool,
    /// Begins only when all of it can.
    pub(crate) cooperative: bool,
    /// The kernel's own urgency (`timeline::group`); 0: its stream's.
    pub(crate) urgency: u64,
}

impl Footprint {
    /// Parts of a whole GPU.
    pub(crate) const GPU: u64 = 1 << 23;

    /// The whole GPU, in many waves.
    pub const WHOLE: Self =
        Self { share: Self::GPU, block: 1, waves: true, cooperative: false, urgency: 0 };

    /// Occupies no multiprocessor: event records and memory writes, done by the front end.
    pub(crate) const NONE: Self =
        Self { share: 0, block: 0, waves: false, cooperative: false, urgency: 0 };

    /// Computes the footprint of `blocks` on a GPU that holds `resident` of them, and at most
    /// `grids` kernels, at once.
    #[must_use]
    pub fn of_blocks(blocks: u64, resident: u64, grids: u64) -> Self {
        let resident = resident.max(1);
        // Rounded down, so that kernels that fill a GPU exactly do fit.
        let least = (Self::GPU / grids.max(1)).max(1);
        let share = (blocks.min(resident) * Self::GPU / resident).max(least);
        let block = (Self::GPU / resident).clamp(least, share);
        Self { share, block, waves: blocks > resident, cooperative: false, urgency: 0 }
    }

    /// Returns whether all blocks can be resident at once.
    #[must_use]
    pub const fn fits_at_once(self) -> bool {
        !self.waves
    }

    /// Makes it a cooperative launch.
    #[must_use]
    pub fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// Restricts it to `part` of `all` multiprocessors. Returns by how much longer it takes, as a
    /// fraction; `None` if it takes no longer.
    pub(crate) fn within(self, part: u64, all: u64) -> (Self, Option<(u64, u64)>) {
        let most = (Self::GPU * part / all).max(1);
        if self.share <= most {
            return (self, None);
        }
        (
            Self { share: most, block: self.block.min(most), waves: true, ..self },
            Some((self.share, most)),
        )
    }

    /// Gives it a priority of its own ([`GREATEST_PRIORITY`](crate::timeline::GREATEST_PRIORITY) to
    /// 0).
    #[must_use]
    pub fn with_priority(self, priority: i32) -> Self {
        Self { urgency: crate::timeline::urgency(priority), ..self }
    }

    /// Packs it into one word; the low 8 bits stay free.
    pub(crate) const fn word(self) -> u64 {
        self.share << 40
            | self.block << 16
            | self.urgency << 10
            | (self.waves as u64) << 9
            | (self.cooperative as u64) << 8
    }

    /// Unpacks it from such a word.
    pub(crate) const fn of_word(word: u64) -> Self {
        Self {
            share: word >> 40,
            block: word >> 16 & 0xff_ffff,
            waves: word >> 9 & 1 != 0,
            cooperative: word >> 8 & 1 != 0,
            urgency: word >> 10 & 0x3f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footprint_within_fewer_multiprocessors_is_bounded_and_slower() {
        let half = Footprint::of_blocks(72, 144, 1_000);
        assert_eq!(half.within(36, 72), (half, None));
        let (quarter, slower) = half.within(18, 72);
        assert_eq!((quarter.share, quarter.waves), (Footprint::GPU / 4, true));
        assert_eq!(slower.map(|(times, over)| times / over), Some(2));
    }

    #[test]
    fn footprint_of_a_grid_is_its_part_of_resident_blocks() {
        let of = |blocks| Footprint::of_blocks(blocks, 144, 1_000);
        assert_eq!(of(72).share, Footprint::GPU / 2);
        assert_eq!(of(144).share, Footprint::GPU);
        assert!(!of(144).waves && of(145).waves);
        assert_eq!(of(1_000_000).share, Footprint::GPU);
        assert_eq!(of(72).block, Footprint::GPU / 144);
    }

    #[test]
    fn kernels_that_fill_a_gpu_exactly_fit() {
        for resident in 1..3_000 {
            for part in [1, resident / 3, resident / 2]
                .into_iter()
                .filter(|&part| part > 0 && part < resident)
            {
                let share = |blocks| Footprint::of_blocks(blocks, resident, u64::MAX).share;
                assert!(
                    share(part) + share(resident - part) <= Footprint::GPU,
                    "{part} of {resident}"
                );
            }
        }
    }

    #[test]
    fn tiny_grids_are_limited_by_the_grid_count() {
        let tiny = Footprint::of_blocks(1, 2_304, 128);
        assert_eq!(tiny.share * 128, Footprint::GPU);
        assert_eq!(tiny.block, tiny.share);
    }

    #[test]
    fn footprint_survives_packing_into_a_word() {
        for footprint in [
            Footprint::WHOLE,
            Footprint::NONE,
            Footprint::of_blocks(7, 60, 128).cooperative(),
            Footprint::of_blocks(1, 1, 1).with_priority(-5),
            Footprint::of_blocks(500, 30, 128).with_priority(0),
        ] {
            assert_eq!(Footprint::of_word(footprint.word() | 0xff), footprint);
        }
    }
}
