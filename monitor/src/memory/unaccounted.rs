//! What a process has on a GPU beyond its books, told from what NVML says of it. Pure.
//!
//! A cell says what its process has asked for (`used`) and what is thought to have come with it (`implicit`). NVML says what the driver
//! really holds for the process, now and then. The difference is what the books do not know: code that was loaded at a first launch, a heap
//! that has grown, a context whose size was mistaken because a neighbour's started at the same instant. It is published as the cell's
//! *growth*, counts in the container's use, and must neither refuse what fits nor let in what does not:
//!
//! - **The books move while NVML is asked.** They are read before and after. A figure is published only if the old one cannot be right,
//!   which is when it lies outside of `[measured - greatest accounted, measured - least accounted]`, and then it is the nearest that can.
//! - **A charge is ahead of the driver, a free behind it.** Both make the books too great for a moment, which looks like memory that is not there.
//!   Upwards that only hides some growth until the next reading. Downwards it would give away memory that is about to be taken. So
//!   a figure falls only as far as is sure at once: the process has no more implicit memory than it has memory (`measured - implicit`); or
//!   as far as *a reading that stands between two stillnesses* says: the same books, with no charge and no creation, for [`STABLE_INTERVAL`] before it and
//!   after. Charges that were under way before are settled by then, and frees that were under way would have shown since. What is left is a
//!   call that stays in the driver for all of that time. Those that can, because they compile or wait for the GPU, mark themselves
//!   (`creating`).
//! - **What came and went between the two looks** is in `measured` and in neither. The count of charges tells that there was any; then a figure
//!   rises only as far as the reading before allows, too.
//! - **While a context or a module is being made** it is in `measured` before it is on the books: nothing rises.
//! - **When a context has ended**, what was measured before is worth nothing (`ended`), and the page's reader knows it as well.
//! - Memory that others have exported may be in this process's figure, and what it exported may be in theirs: both make the range wider.

use cgpu_shm::snapshot::Cell;
use cgpu_shm::units::{Bytes, Nanos};

/// As long as no call of a driver takes that does not say so: less than the time between two samples.
pub const STABLE_INTERVAL: Nanos = Nanos::from_millis(800);

/// What a cell said at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// What the program asked for.
    pub used: Bytes,
    /// What came with it.
    pub implicit: Bytes,
    /// The part of `used` that others may hold.
    pub exported: Bytes,
    /// Counts the contexts that have ended.
    pub ended: u32,
    /// Changes with every charge.
    pub charges: u32,
    /// Calls that change what `implicit` should say.
    pub creating: u32,
}

impl Accounted {
    /// As a cell says.
    #[must_use]
    pub fn of(cell: &Cell) -> Self {
        Self {
            used: cell.used,
            implicit: cell.implicit,
            exported: cell.exported,
            ended: cell.implicit_epoch,
            charges: cell.charges,
            creating: cell.creating,
        }
    }

    fn greatest(&self) -> i64 {
        signed(self.used + self.implicit)
    }

    fn least(&self) -> i64 {
        signed((self.used - self.exported) + self.implicit)
    }
}

/// What NVML measured, and what was accounted before and after.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Before all of it.
    pub at: Nanos,
    /// Accounted before.
    pub before: Accounted,
    /// What the driver holds for the process.
    pub measured: Bytes,
    /// Accounted after.
    pub after: Accounted,
    /// What the container's other processes have exported: some of it may be in `measured`.
    pub imported: Bytes,
}

/// What is to be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Beyond what is accounted; below 0: less than that.
    pub growth: i64,
    /// For this count of ended contexts.
    pub ended: u32,
    /// It is more than before.
    pub risen: bool,
}

/// What is known of one process on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unaccounted {
    growth: i64,
    ended: u32,
    /// The accounted implicit memory of which a reading has shown that it and `growth` are exactly
    /// what NVML measures.
    confirmed: Option<Bytes>,
    /// How far the last reading would have let the figure rise.
    excess: Option<i64>,
    still: Option<Stable>,
}

/// Readings between which nothing has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stable {
    accounted: Accounted,
    since: Nanos,
    /// One that had stillness before it: when, and the greatest figure that it allows.
    middle: Option<(Nanos, i64)>,
}

impl Unaccounted {
    /// Goes on from what was published: a monitor that has just come takes its predecessor's word.
    #[must_use]
    pub fn from_published(growth: i64, ended: u32) -> Self {
        Self { growth, ended, ..Self::default() }
    }

    /// Beyond what is accounted; below 0: less than that.
    #[must_use]
    pub const fn growth(&self) -> i64 {
        self.growth
    }

    /// The count of ended contexts for which that holds.
    #[must_use]
    pub const fn ended(&self) -> u32 {
        self.ended
    }

    /// Whether the process's implicit memory and its growth are known to be what NVML measures.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// NVML does not tell of the process: nothing is known, and said.
    pub fn forget(&mut self) -> Option<Correction> {
        (self.excess, self.still, self.confirmed) = (None, None, None);
        self.publish(0)
    }

    /// Takes a reading; what is to be published, if that changes.
    pub fn take(&mut self, reading: &Reading) -> Option<Correction> {
        let Reading { at, before, measured, after, imported } = *reading;
        if before.ended != after.ended {
            (self.excess, self.still) = (None, None);
            return None;
        }
        if self.ended != after.ended {
            *self = Self::from_published(0, after.ended);
        }
        let creating = before.creating > 0 || after.creating > 0;
        let measured = signed(measured);

        let greatest = before.greatest().max(after.greatest());
        let excess =
            (!creating).then(|| measured.saturating_sub(greatest).saturating_sub(signed(imported)));
        let last = std::mem::replace(&mut self.excess, excess);
        let unseen = before.charges != after.charges;
        let rises = if unseen { excess.zip(last).map(|(now, last)| now.min(last)) } else { excess };

        let least = before.least().min(after.least());
        let stable = self.stable(at, before, after, measured.saturating_sub(least));
        let implicit = signed(before.implicit.min(after.implicit));
        let sure = (!creating).then(|| measured.saturating_sub(implicit));
        let falls = stable.into_iter().chain(sure).min();

        let mut growth = self.growth;
        if let Some(bound) = falls {
            growth = growth.min(bound.max(-implicit));
        }
        if let Some(bound) = rises {
            growth = growth.max(bound.max(-implicit));
        }
        let allocates = before.used + after.used > Bytes::ZERO;
        let is_exact = stable.is_some() || (!creating && !allocates && before == after);
        let accounted = after.implicit;
        self.confirmed =
            is_exact.then_some(accounted).or(self.confirmed.filter(|known| *known == accounted));
        self.publish(growth)
    }

    /// How far the figure may be if nothing that is under way explains it; none: something may.
    fn stable(
        &mut self,
        at: Nanos,
        before: Accounted,
        after: Accounted,
        bound: i64,
    ) -> Option<i64> {
        if before != after || before.creating > 0 {
            self.still = None;
            return None;
        }
        let Some(still) = self.still.as_mut().filter(|still| still.accounted == before) else {
            self.still = Some(Stable { accounted: before, since: at, middle: None });
            return None;
        };
        match still.middle {
            None if at - still.since < STABLE_INTERVAL => None,
            None => {
                still.middle = Some((at, bound));
                None
            }
            Some((middle, bound)) => (at - middle >= STABLE_INTERVAL).then_some(bound),
        }
    }

    fn publish(&mut self, growth: i64) -> Option<Correction> {
        let before = std::mem::replace(&mut self.growth, growth);
        (growth != before).then_some(Correction {
            growth,
            ended: self.ended,
            risen: growth > before,
        })
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
