//! What a launch is expected to cost: one estimate per kernel, learned from what batches of launches took.
//!
//! Estimates decide nothing in the long run: they are charged beforehand and corrected when the batch is settled. What hangs on
//! them is how much is in flight, and when that is predicted to end.
//!
//! | sample | what it teaches |
//! |---|---|
//! | the first execution of a kernel, alone | nothing: it may have loaded the code |
//! | the second one, alone | the estimate |
//! | a batch | a quarter of its error is corrected, in each of its kernels by its part of the batch |
//! | a batch beside other processes' work | the same downwards; upwards hardly, because the others' time is in it |
//!
//! The last row makes of the estimate a low quantile of what was measured: what the kernel takes when nobody interrupts it.

use cgpu_proto::units::Nanos;

/// What a kernel is taken to cost before it ever ran: so much that two of them are as much as may be in flight.
const UNKNOWN: u32 = 250_000;
/// No estimate is below the resolution of the card's own time stamps.
const LEAST: u32 = 500;
/// How much of a batch's error one batch corrects.
const PACE: f64 = 0.25;
/// A batch that takes more than eight times what was expected, and so much more for each of its launches, is strange. A slice or two of
/// others' are not, nor are many short kernels that a busy host launches slowly.
const STRANGE: Nanos = Nanos::from_millis(4);
/// Kernels remembered per card: a power of two. Programs have some hundred.
const KERNELS: usize = 2048;
/// Places that are looked at for one kernel.
const PROBES: usize = 8;

/// What sets the digests of executable graphs, and of copies, apart from kernels'.
const GRAPHS: u64 = 0x5851_F42D_4C95_7F2D;
const MOVES: u64 = 0x1405_7B7E_F767_814F;

/// Whatever runs on the card at one launch, as far as its cost goes: a kernel (the function and the shape of the launch), an executable
/// graph, a copy within the card. Two whose digests are equal share an estimate, and nothing worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel(u64);

impl Kernel {
    /// The digest: a sum of products with odd constants, which do not wait for each other; about 3 ns.
    #[inline(always)]
    #[must_use]
    pub const fn new(function: usize, grid: [u32; 3], block: [u32; 3], shared: u32) -> Self {
        let (grid_xy, grid_z_block_x) = (join(grid[0], grid[1]), join(grid[2], block[0]));
        let block_yz = join(block[1], block[2]);
        Self(
            (function as u64)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add(grid_xy.wrapping_mul(0xBF58_476D_1CE4_E5B9))
                .wrapping_add(grid_z_block_x.wrapping_mul(0x94D0_49BB_1331_11EB))
                .wrapping_add(block_yz.wrapping_mul(0xD6E8_FEB8_6659_FD93))
                .wrapping_add((shared as u64).wrapping_mul(0xA076_1D64_78BD_642F)),
        )
    }

    /// An executable graph, as one unit.
    #[must_use]
    pub const fn graph(handle: usize) -> Self {
        Self((handle as u64).wrapping_mul(0xC2B2_AE3D_27D4_EB4F).wrapping_add(GRAPHS))
    }

    /// A copy or a fill within the card, by how much it moves: sizes that share their first three bits share an estimate.
    #[must_use]
    pub const fn moving(bytes: u64) -> Self {
        let low = (bytes | 1).ilog2().saturating_sub(2);
        Self((bytes >> low << low).wrapping_mul(0x1656_67B1_9E37_79F9).wrapping_add(MOVES))
    }

    /// The kernel on one of a thread's streams: the key of the thread's table.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn on(self, stream: u64) -> u64 {
        self.0.wrapping_add(stream.wrapping_mul(0xE703_7ED1_A0B4_28DB))
    }
}

#[inline(always)]
const fn join(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// What is known of a kernel's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The estimate, in nanoseconds.
    pub(crate) cost: u32,
    /// It has not been seen alone twice: to be measured by itself.
    pub(crate) fresh: bool,
}

impl Expected {
    /// Of a launch that is not metered.
    pub(crate) const NOTHING: Self = Self { cost: 0, fresh: false };
}

/// Whether a sample was taken while the process had the card to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody else ran, as far as is known.
    Alone,
    /// Others ran beside.
    Beside,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    kernel: Kernel,
    estimate: u32,
    /// How often it was measured by itself; 2 and more: learned. Zero with `estimate` zero: an empty place.
    samples: u8,
    /// The last batch with it took so much longer than expected that something else may have been waited for.
    strange: bool,
}

const EMPTY: Entry = Entry { kernel: Kernel(0), estimate: 0, samples: 0, strange: false };

/// The estimates of one card.
#[derive(Debug)]
pub(crate) struct Costs {
    entries: Box<[Entry]>,
}

impl Costs {
    pub(crate) fn new() -> Self {
        Self { entries: vec![EMPTY; KERNELS].into() }
    }

    /// What `kernel` is expected to cost.
    pub(crate) fn expect(&mut self, kernel: Kernel) -> Expected {
        let entry = self.entry(kernel);
        Expected { cost: entry.estimate, fresh: entry.samples < 2 }
    }

    /// It is gone: what comes under its name next is another one.
    pub(crate) fn forget(&mut self, kernel: Kernel) {
        if let Some(place) = self.find(kernel)
            && let Some(entry) = self.entries.get_mut(place)
        {
            *entry = EMPTY;
        }
    }

    /// Whether it is a single launch of a kernel that is to be measured by itself.
    pub(crate) fn is_fresh(&mut self, bill: &Bill) -> bool {
        bill.single().is_some_and(|kernel| self.entry(kernel).samples < 2)
    }

    /// Learns from launches that took `measured` in all.
    #[allow(clippy::cast_precision_loss)] // times far below 2^53 ns
    pub(crate) fn learn(&mut self, batch: &Bill, measured: Nanos, company: Company) {
        if let Some((kernel, samples)) = batch.single().map(|kernel| (kernel, self.entry(kernel).samples))
            && samples < 2
        {
            let entry = self.entry(kernel);
            let odd = measured > Nanos(5 * STRANGE.0);
            // It may have waited for the host: the next one tells.
            if samples == 1 && odd && !entry.strange {
                entry.strange = true;
                return;
            }
            entry.samples += 1;
            if entry.samples == 2 {
                entry.estimate = bounded(measured.0 as f64);
            }
            return;
        }
        // By what is expected now: other batches may have taught since this one was charged.
        let mut costs = [0.0; PARTS];
        for (cost, part) in costs.iter_mut().zip(batch.parts()) {
            *cost = f64::from(self.entry(part.kernel).estimate) * part.launches as f64;
        }
        let expected = costs.iter().sum::<f64>() + batch.rest.0 as f64;
        let excess = measured.0 as f64 - expected;
        let odd = excess > (STRANGE.0 * batch.launches) as f64 && excess > 7.0 * expected;
        if self.is_strange(batch, odd) {
            return;
        }
        let error = (measured.0 as f64 / expected.max(1.0)).clamp(1.0 / 8.0, 8.0) - 1.0;
        // Normalised least mean squares, in units of the estimates: who has the greater part is the likelier cause.
        let squares: f64 = costs.iter().map(|cost| cost * cost).sum();
        let pace = match company {
            Company::Beside if error > 0.0 => PACE / (8.0 + 8.0 * error),
            _ => PACE,
        };
        for (cost, part) in costs.iter().zip(batch.parts()) {
            let step = (pace * cost * expected / squares.max(1.0)).min(PACE);
            let entry = self.entry(part.kernel);
            entry.estimate = bounded(f64::from(entry.estimate) * (1.0 + step * error));
        }
    }

    /// Whether a batch is the first of its kind that is `odd`: once, it is a host function or another stream that was waited for; twice in a
    /// row, it is what the kernels cost.
    fn is_strange(&mut self, batch: &Bill, odd: bool) -> bool {
        let mut first = false;
        for part in batch.parts() {
            let entry = self.entry(part.kernel);
            first |= odd && !entry.strange;
            entry.strange = odd;
        }
        first
    }

    /// The kernel's place; that of another one, if all that it may have are taken.
    fn entry(&mut self, kernel: Kernel) -> &mut Entry {
        let known = self.find(kernel);
        let home = || places(kernel).next().unwrap_or(0);
        let place =
            known.or_else(|| places(kernel).find(|place| self.at(*place).estimate == 0)).unwrap_or_else(home);
        // Below KERNELS, which is the length.
        #[allow(clippy::indexing_slicing)]
        let entry = &mut self.entries[place];
        if known.is_none() {
            *entry = Entry { kernel, estimate: UNKNOWN, samples: 0, strange: false };
        }
        entry
    }

    fn find(&self, kernel: Kernel) -> Option<usize> {
        places(kernel).find(|place| {
            let entry = self.at(*place);
            entry.estimate > 0 && entry.kernel == kernel
        })
    }

    fn at(&self, place: usize) -> Entry {
        self.entries.get(place).copied().unwrap_or(EMPTY)
    }
}

/// Where a kernel's estimate may be.
fn places(kernel: Kernel) -> impl Iterator<Item = usize> {
    // The low bits; the table is smaller than any usize.
    #[allow(clippy::cast_possible_truncation)]
    let home = (kernel.0 ^ kernel.0 >> 32) as usize % KERNELS;
    (0..PROBES).map(move |step| (home + step) % KERNELS)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within bounds; a kernel of 4 s and more counts as 4 s
fn bounded(estimate: f64) -> u32 {
    estimate.clamp(f64::from(LEAST), f64::from(u32::MAX)) as u32
}

/// Some launches of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    kernel: Kernel,
    launches: u64,
}

/// Different kernels of a bill that learn from it.
const PARTS: usize = 8;

/// Launches with their expected cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bill {
    /// What they were expected to cost in all when they were charged.
    pub(crate) cost: Nanos,
    /// How many they are.
    pub(crate) launches: u64,
    parts: [Option<Part>; PARTS],
    /// The cost of what is not in the parts.
    rest: Nanos,
}

impl Bill {
    pub(crate) fn is_empty(&self) -> bool {
        self.launches == 0
    }

    pub(crate) fn add(&mut self, kernel: Kernel, cost: Nanos, launches: u64) {
        self.cost = self.cost + cost;
        self.launches += launches;
        let mut places = self.parts.iter_mut();
        match places.find(|part| part.is_none_or(|part| part.kernel == kernel)) {
            Some(place) => {
                let before = place.map_or(0, |part| part.launches);
                *place = Some(Part { kernel, launches: before + launches });
            }
            None => self.rest = self.rest + cost,
        }
    }

    /// This bill and another one; none where they have too many kernels together.
    pub(crate) fn with(mut self, other: &Self) -> Option<Self> {
        for part in other.parts() {
            let place =
                self.parts.iter_mut().find(|place| place.is_none_or(|it| it.kernel == part.kernel))?;
            let before = place.map_or(0, |it| it.launches);
            *place = Some(Part { launches: before + part.launches, ..part });
        }
        let (cost, rest) = (self.cost + other.cost, self.rest + other.rest);
        Some(Self { cost, launches: self.launches + other.launches, rest, ..self })
    }

    /// Takes back one launch, which the driver refused.
    pub(crate) fn remove(&mut self, kernel: Kernel, cost: Nanos) {
        self.cost = self.cost - cost;
        self.launches = self.launches.saturating_sub(1);
        match self.parts.iter_mut().flatten().find(|part| part.kernel == kernel) {
            Some(part) => part.launches = part.launches.saturating_sub(1),
            None => self.rest = self.rest - cost,
        }
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        self.parts.into_iter().flatten()
    }

    /// The kernel, if it is a single launch.
    fn single(&self) -> Option<Kernel> {
        let mut parts = self.parts().filter(|part| part.launches > 0);
        parts.next().filter(|_| self.launches == 1).map(|part| part.kernel)
    }
}

#[cfg(test)]
mod tests;
