//! The unmeasured work of a process on a GPU, and when it will have run.

use cgpu_shm::units::Nanos;

/// Least work in flight while the length of the backlog is unknown, and least time that it still
/// takes.
const MIN_BACKLOG: (Nanos, Nanos) = (Nanos::from_micros(1), Nanos::from_micros(500));

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// Its expected time from its beginning; streams that overlap are taken into account.
    pub(crate) cost: Nanos,
    /// By how much it exceeds that if all of it takes as long as such launches do at times.
    pub(crate) margin: Nanos,
    pub(crate) launches: u64,
    /// Its time without overlap, and that of the longest lane.
    pub(super) all: Nanos,
    pub(super) longest_lane: Nanos,
    /// Since when it runs, as if nothing else had run in between.
    pub(super) since: Option<Nanos>,
    /// Some of it has a marker, or its stream is queried: its end will be seen.
    pub(crate) watched: bool,
    /// A stream that takes no markers has so much work that it must run dry before it gets more.
    pub(crate) blind: bool,
    /// Some of it is of unknown length.
    pub(crate) backlog: bool,
    /// When the first marker should be reached if the launches before it take as long as such
    /// launches do at times.
    pub(super) ends: Option<Nanos>,
    /// When the first marker should be reached even if others share the GPU and the estimates are
    /// low.
    pub(super) reached: Option<Nanos>,
}

impl Work {
    /// Adds budgets that may be used at any time: amount, and since when.
    pub(crate) fn with(mut self, budget: impl Iterator<Item = (Nanos, Nanos)>) -> Self {
        for (amount, since) in budget {
            self.cost = self.cost + amount;
            self.since = self.since.or(Some(since));
        }
        self
    }

    /// Predicts how long it and `others` still run; `last` is when some of the others' work was
    /// last seen to end.
    pub(crate) fn remaining(&self, others: Nanos, last: Nanos, now: Nanos) -> Nanos {
        let since = self.since.map(|since| since.max(last));
        let ran = since.map_or(Nanos::ZERO, |since| now - since);
        let remaining = self.longest() + others - ran;
        if self.backlog { remaining.max(MIN_BACKLOG.1) } else { remaining }
    }

    /// Predicts how long it alone still runs while `working` others share the GPU.
    pub(crate) fn own_remaining(&self, working: u64, now: Nanos) -> Nanos {
        let ran = self.since.map_or(Nanos::ZERO, |since| Nanos((now - since).0 / (working + 1)));
        let remaining = self.cost - ran;
        if self.backlog { remaining.max(MIN_BACKLOG.1) } else { remaining }
    }

    /// Returns its time if all of it takes as long as such launches do at times.
    pub(crate) fn longest(&self) -> Nanos {
        self.cost + self.margin
    }

    /// Returns the part of [`longest`](Self::longest) that is still to run, as in
    /// [`own_remaining`](Self::own_remaining).
    pub(crate) fn own_longest(&self, working: u64, now: Nanos) -> Nanos {
        Self { cost: self.longest(), ..*self }.own_remaining(working, now)
    }

    /// Returns the interval to the next poll. Work that may take far longer than expected may also
    /// take far less: it is polled at growing intervals until its end at the latest.
    pub(crate) fn next_poll(&self, now: Nanos) -> Nanos {
        if self.margin == Nanos::ZERO {
            return self.own_remaining(0, now);
        }
        let ran = self.since.map_or(Nanos::ZERO, |since| now - since);
        let ends = self.ends.map_or(Nanos::ZERO, |ends| ends - now);
        Nanos(ran.0 / 4).min(ends)
    }

    /// Returns how long ago it should have ended, were it alone on the GPU.
    pub(crate) fn overdue(&self, now: Nanos) -> Nanos {
        self.since.map_or(Nanos::ZERO, |since| now - (since + self.longest()))
    }

    /// Returns when a marker should have been reached, if that time has passed: some work does not
    /// end, and the work behind it has not run.
    pub(crate) fn stuck(&self, now: Nanos) -> Option<Nanos> {
        self.reached.filter(|reached| *reached < now)
    }

    pub(crate) fn inflight(&self) -> Nanos {
        if self.backlog { self.cost.max(MIN_BACKLOG.0) } else { self.cost }
    }
}
