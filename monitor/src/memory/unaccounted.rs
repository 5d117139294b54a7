//! Derives what a process has on a GPU beyond what is accounted, from NVML's figure of it. Pure.
//!
//! A cell has what its process allocated (`used`) and an estimate of what came with it
//! (`implicit`). NVML says what the driver holds for the process. The difference is not accounted:
//! code loaded at a first launch, a heap that has grown, a context whose size was mismeasured
//! because another process's started at the same time. It is published as the cell's *unaccounted
//! delta* and counts in the container's use. It must neither refuse what fits nor admit what does
//! not:
//!
//! - **The accounting changes while NVML is called**, so it is read before and after. A delta is
//!   published only if the old one cannot be right, which is when it lies outside of
//!   `[measured - greatest accounted, measured - least accounted]`. The new one is the nearest
//!   value in that range.
//! - **A charge runs ahead of the driver, a free behind it.** Both make the accounting too high for
//!   a while. When the delta rises, this only hides a part of it until the next reading. When it
//!   falls, it could give away memory that is about to be taken. So it falls only as far as one of
//!   two bounds allows. At once: implicit memory is part of what is measured, so the delta is at
//!   most `measured - implicit`. Later: a reading between two stable intervals, with the same
//!   accounting, no charge and no creation for [`STABLE_INTERVAL`] before it and after. Charges in
//!   flight before it have ended by then, and frees in flight would have shown since. What remains
//!   is a call that stays in the driver for all of that time. Calls that may, because they compile
//!   or wait for the GPU, mark themselves (`creating`).
//! - **Memory allocated and freed between the two samples** may be in `measured` and in neither
//!   sample. The count of charges shows that there was some; then the delta rises only as far as
//!   the reading before allows, too.
//! - **While a context or a module is created**, it is in `measured` before it is accounted, so the
//!   delta does not rise.
//! - **After a context has ended**, earlier figures are void (`implicit_epoch`), and the process
//!   that reads the page knows that as well.
//! - Memory that others have exported may be in this process's figure, and memory that it exported
//!   in theirs. Both widen the range.

use cgpu_shm::snapshot::Cell;
use cgpu_shm::units::{Bytes, Nanos};

/// Longer than any driver call that is not marked as `creating`, shorter than the interval between
/// two samples.
pub const STABLE_INTERVAL: Nanos = Nanos::from_millis(800);

/// A cell's fields at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// What the program allocated.
    pub used: Bytes,
    /// Implicit memory.
    pub implicit: Bytes,
    /// The part of `used` that other processes may hold.
    pub exported: Bytes,
    /// Counts the contexts that have ended.
    pub implicit_epoch: u32,
    /// Changes with every charge.
    pub charges: u32,
    /// Calls that change what `implicit` should say.
    pub creating: u32,
}

impl Accounted {
    /// Returns the fields of a cell.
    #[must_use]
    pub fn of(cell: &Cell) -> Self {
        Self {
            used: cell.used,
            implicit: cell.implicit,
            exported: cell.exported,
            implicit_epoch: cell.implicit_epoch,
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

/// NVML's figure, with what was accounted before and after.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Time before all of it was read.
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

/// A delta to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Beyond what is accounted; below 0: less than that.
    pub delta: i64,
    /// The count of ended contexts that it applies to.
    pub implicit_epoch: u32,
    /// Whether it is greater than before.
    pub risen: bool,
}

/// State of one process on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unaccounted {
    delta: i64,
    implicit_epoch: u32,
    /// The accounted implicit memory for which a reading has shown that with the delta it is
    /// exactly what NVML measures.
    confirmed: Option<Bytes>,
    /// How far the last reading would have let the delta rise.
    excess: Option<i64>,
    stable: Option<Stable>,
}

/// Readings between which nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stable {
    accounted: Accounted,
    since: Nanos,
    /// A reading with a stable interval before it: its time, and the greatest delta that it allows.
    middle: Option<(Nanos, i64)>,
}

impl Unaccounted {
    /// Continues from a published delta, such as a predecessor's.
    #[must_use]
    pub fn from_published(delta: i64, implicit_epoch: u32) -> Self {
        Self { delta, implicit_epoch, ..Self::default() }
    }

    /// Beyond what is accounted; below 0: less than that.
    #[must_use]
    pub const fn delta(&self) -> i64 {
        self.delta
    }

    /// Returns the count of ended contexts that the delta applies to.
    #[must_use]
    pub const fn implicit_epoch(&self) -> u32 {
        self.implicit_epoch
    }

    /// Whether the process's implicit memory and its delta are known to be what NVML measures.
    #[must_use]
    pub const fn is_confirmed(&self) -> bool {
        self.confirmed.is_some()
    }

    /// Clears the delta: NVML does not list the process.
    pub fn forget(&mut self) -> Option<Correction> {
        (self.excess, self.stable, self.confirmed) = (None, None, None);
        self.publish(0)
    }

    /// Takes a reading. Returns the delta to publish, if it changes.
    pub fn take(&mut self, reading: &Reading) -> Option<Correction> {
        let Reading { at, before, measured, after, imported } = *reading;
        if before.implicit_epoch != after.implicit_epoch {
            (self.excess, self.stable) = (None, None);
            return None;
        }
        if self.implicit_epoch != after.implicit_epoch {
            *self = Self::from_published(0, after.implicit_epoch);
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

        let mut delta = self.delta;
        if let Some(bound) = falls {
            delta = delta.min(bound.max(-implicit));
        }
        if let Some(bound) = rises {
            delta = delta.max(bound.max(-implicit));
        }
        let allocates = before.used + after.used > Bytes::ZERO;
        let is_exact = stable.is_some() || (!creating && !allocates && before == after);
        let accounted = after.implicit;
        self.confirmed =
            is_exact.then_some(accounted).or(self.confirmed.filter(|known| *known == accounted));
        self.publish(delta)
    }

    /// Returns the greatest delta that is possible after two stable intervals; none: a call in
    /// flight may explain the figures.
    fn stable(
        &mut self,
        at: Nanos,
        before: Accounted,
        after: Accounted,
        bound: i64,
    ) -> Option<i64> {
        if before != after || before.creating > 0 {
            self.stable = None;
            return None;
        }
        let Some(stable) = self.stable.as_mut().filter(|stable| stable.accounted == before) else {
            self.stable = Some(Stable { accounted: before, since: at, middle: None });
            return None;
        };
        match stable.middle {
            None if at - stable.since < STABLE_INTERVAL => None,
            None => {
                stable.middle = Some((at, bound));
                None
            }
            Some((middle, bound)) => (at - middle >= STABLE_INTERVAL).then_some(bound),
        }
    }

    fn publish(&mut self, delta: i64) -> Option<Correction> {
        let before = std::mem::replace(&mut self.delta, delta);
        (delta != before).then_some(Correction {
            delta,
            implicit_epoch: self.implicit_epoch,
            risen: delta > before,
        })
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
