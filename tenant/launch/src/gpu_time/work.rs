//! What a process has launched on a GPU and has not measured, and when that will have run.

use cgpu_shm::units::Nanos;

/// What is in flight at least while the length of the backlog is not known, and how long it still
/// takes at least.
const MIN_BACKLOG: (Nanos, Nanos) = (Nanos::from_micros(1), Nanos::from_micros(500));

/// What is unmeasured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    /// What it is expected to take, from its beginning, streams that run beside each other taken
    /// into account.
    pub(crate) cost: Nanos,
    /// By how much it exceeds that if all of it takes as long as such launches do at times.
    pub(crate) margin: Nanos,
    pub(crate) launches: u64,
    /// What it takes one by one, and what that of the lane takes which has most.
    pub(super) all: Nanos,
    pub(super) longest_lane: Nanos,
    /// Since when it runs, as if nothing else had run between.
    pub(super) since: Option<Nanos>,
    /// Some of it has a marker behind it, or is on a stream that is asked: its end will be seen.
    pub(crate) watched: bool,
    /// So much was launched into a stream that takes no markers that it must run dry before more
    /// is.
    pub(crate) blind: bool,
    /// Some of it is of unknown length.
    pub(crate) backlog: bool,
    /// When the first marker should have been reached, if the launches before it take as long as
    /// such launches do at times.
    pub(super) ends: Option<Nanos>,
    /// When the first marker should have been reached, even if others share the GPU and the
    /// estimates are low.
    pub(super) reached: Option<Nanos>,
}

impl Work {
    /// With budget that may be used at any moment: so much, since when.
    pub(crate) fn with(mut self, budget: impl Iterator<Item = (Nanos, Nanos)>) -> Self {
        for (amount, since) in budget {
            self.cost = self.cost + amount;
            self.since = self.since.or(Some(since));
        }
        self
    }

    /// What is still to run of it and of `others`, as predicted; `last` is when some of the others'
    /// was seen to end.
    pub(crate) fn remaining(&self, others: Nanos, last: Nanos, now: Nanos) -> Nanos {
        let since = self.since.map(|since| since.max(last));
        let ran = since.map_or(Nanos::ZERO, |since| now - since);
        let remaining = self.longest() + others - ran;
        if self.backlog { remaining.max(MIN_BACKLOG.1) } else { remaining }
    }

    /// What is still to run of it alone, as predicted, while `working` others share the GPU with
    /// it.
    pub(crate) fn own_remaining(&self, working: u64, now: Nanos) -> Nanos {
        let ran = self.since.map_or(Nanos::ZERO, |since| Nanos((now - since).0 / (working + 1)));
        let remaining = self.cost - ran;
        if self.backlog { remaining.max(MIN_BACKLOG.1) } else { remaining }
    }

    /// What it takes if all of it takes as long as such launches do at times.
    pub(crate) fn longest(&self) -> Nanos {
        self.cost + self.margin
    }

    /// The part of [`longest`](Self::longest) that is still to run, as in
    /// [`own_remaining`](Self::own_remaining).
    pub(crate) fn own_longest(&self, working: u64, now: Nanos) -> Nanos {
        Self { cost: self.longest(), ..*self }.own_remaining(working, now)
    }

    /// Interval to the next look at what has run. Work that may take far longer than expected may
    /// as well take far less: it is looked at in growing intervals, up to the end at the latest.
    pub(crate) fn next_poll(&self, now: Nanos) -> Nanos {
        if self.margin == Nanos::ZERO {
            return self.own_remaining(0, now);
        }
        let ran = self.since.map_or(Nanos::ZERO, |since| now - since);
        let ends = self.ends.map_or(Nanos::ZERO, |ends| ends - now);
        Nanos(ran.0 / 4).min(ends)
    }

    /// For how long it should have run already, were it alone on the GPU.
    pub(crate) fn overdue(&self, now: Nanos) -> Nanos {
        self.since.map_or(Nanos::ZERO, |since| now - (since + self.longest()))
    }

    /// When a marker should have been reached, if that was long ago: something does not end, and
    /// what is behind it has not run.
    pub(crate) fn stuck(&self, now: Nanos) -> Option<Nanos> {
        self.reached.filter(|reached| *reached < now)
    }

    /// What is charged for it.
    pub(crate) fn inflight(&self) -> Nanos {
        if self.backlog { self.cost.max(MIN_BACKLOG.0) } else { self.cost }
    }
}
