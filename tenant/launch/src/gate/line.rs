//! Several processes in one container's turn: one after the other, because the GPU runs one context at a time.
//!
//! Each switch between contexts is lost to the container, and left to itself the GPU switches between all that have work queued at every slice
//! of its own. So whoever has the GPU keeps it for a stint while its siblings wait, and then the one that has waited longest is next.
//!
//! Nobody hands anything over: each process reads what the others publish anyway (`ends`, `waiting`, `active`), and nothing is written for it. So nobody
//! can be forgotten by one that died, and what a sibling claims costs its own container [`PATIENCE`] at most.

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::clock::Clocks;
use cgpu_shm::layout::Cell;
use cgpu_shm::units::Nanos;

/// How long a process keeps the GPU while siblings wait: an ordinary turn.
pub(crate) const STINT: Nanos = Nanos::from_millis(6);
/// The next one's kernels are queued this much before the end of the last one's.
const LEAD: Nanos = Nanos::from_micros(60);
/// Who is between two launches keeps the GPU for as long as a switch to another would cost.
const GRACE: Nanos = Nanos::from_micros(100);
/// Who has waited longer gets so much time to come forward first: a wake-up.
const PLACE: Nanos = Nanos::from_micros(200);
/// Siblings of whose work nothing ends for so long are not waited for: what they run may wait for ours.
const PATIENCE: Nanos = Nanos::from_millis(12);

/// The container's other processes, as one that wants to launch sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// One of them has the GPU, and this is when to look again.
    taken: Nanos,
    /// How many wait.
    waiting: u64,
    /// How many of these have waited longer.
    elders: u64,
    /// When work of theirs ended last, as far as they know.
    last: Nanos,
}

impl Line {
    /// With one more of them, which lives. `mine`: since when we have waited, and whether it comes before us among those that came at the same time.
    pub(crate) fn with(self, cell: &Cell, (since, before): (Nanos, bool), clocks: Clocks) -> Self {
        let now = clocks.raw;
        let read = |word: &AtomicU64| clocks.heard(Nanos(word.load(Ordering::Relaxed)));
        let waits = cell.waiting.load(Ordering::Relaxed) > 0;
        let (ends, came) = (read(&cell.ends), read(&cell.active));
        // Who does not wait may launch more until the end that it foretells, and a little longer.
        let taken = if waits || ends - LEAD > now { ends - LEAD } else { ends + GRACE };
        let elder = waits && (came < since || (came == since && before));
        Self {
            taken: self.taken.max(taken),
            waiting: self.waiting + u64::from(waits),
            elders: self.elders + u64::from(elder),
            last: self.last.max(read(&cell.last).min(now)),
        }
    }
}

/// A process's place in the line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stint {
    /// When it got the GPU.
    since: Option<Nanos>,
    /// Since when no sibling has the GPU, while it waits.
    free: Option<Nanos>,
    behind: Behind,
}

/// How long it has waited behind work of which nothing ended. Time outside of the container's turns does not count, or a short turn would be
/// over before anybody loses patience, or a long pause would make everybody lose it.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    /// The end that was seen last.
    last: Nanos,
    waited: Nanos,
    looked: Option<Nanos>,
}

impl Behind {
    /// What is left of its patience.
    fn left(&mut self, last: Nanos, now: Nanos) -> Nanos {
        let passed = self.looked.replace(now).map_or(Nanos::ZERO, |looked| now - looked);
        self.waited = if last == self.last { self.waited + passed } else { Nanos::ZERO };
        self.last = last;
        PATIENCE - self.waited
    }
}

impl Stint {
    /// Whether it is our turn among the siblings: nothing, or for how long to wait before asking again. `ends`: when what we have launched has run.
    pub(crate) fn wait(&mut self, line: Line, ends: Nanos, now: Nanos) -> Option<Nanos> {
        let having = self.since.filter(|_| ends + GRACE > now);
        if having.is_some_and(|since| line.waiting == 0 || now - since < STINT) {
            return None;
        }
        // Our time is up, or has not come: in line, like anybody.
        self.since = None;
        let wait = if line.taken > now {
            self.free = None;
            (line.taken - now).min(self.behind.left(line.last, now))
        } else {
            self.behind.looked = None;
            // They sleep until ours has run.
            let free = *self.free.get_or_insert(now.max(ends - LEAD));
            if line.elders == 0 { Nanos::ZERO } else { free + Nanos(PLACE.0 * line.elders) - now }
        };
        if wait > Nanos::ZERO {
            return Some(wait);
        }
        (self.since, self.free, self.behind.looked) = (Some(now), None, None);
        None
    }

    /// It is not the container's turn.
    pub(crate) fn interrupt(&mut self) {
        (self.free, self.behind.looked) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(time: u64) -> Nanos {
        Nanos::from_micros(time)
    }

    fn sibling(line: Line, waits: bool, ends: Nanos, came: Nanos, now: Nanos) -> Line {
        let cell = Cell::default();
        cell.waiting.store(waits.into(), Ordering::Relaxed);
        cell.ends.store(ends.0, Ordering::Relaxed);
        cell.active.store(came.0, Ordering::Relaxed);
        cell.last.store(now.0, Ordering::Relaxed);
        line.with(&cell, (us(1000), false), Clocks { raw: now, monotonic: now })
    }

    #[test]
    fn alone_nobody_waits() {
        let mut stint = Stint::default();
        for now in 0..100 {
            assert_eq!(stint.wait(Line::default(), us(0), us(now * 1000)), None);
        }
    }

    #[test]
    fn a_stint_lasts_while_others_wait_and_then_the_eldest_is_next() {
        let mut stint = Stint::default();
        let begun = us(10_000);
        assert_eq!(stint.wait(Line::default(), Nanos::ZERO, begun), None);
        let waits = |now| sibling(Line::default(), true, Nanos::ZERO, us(500), now);
        assert_eq!(stint.wait(waits(begun), us(11_000), begun + us(900)), None);
        assert_eq!(stint.wait(waits(begun), us(15_900), begun + us(5_900)), None);
        // One place for the elder, counted from when it sleeps to: that our work has run.
        let up = begun + us(6_100);
        assert_eq!(stint.wait(waits(up), us(16_500), up), Some(us(400) - LEAD + PLACE));
        // It has come forward, and has the GPU for as long as it says.
        let has = sibling(Line::default(), false, up + us(500), up, up + us(100));
        assert_eq!(stint.wait(has, us(16_500), up + us(100)), Some(us(400) - LEAD));
        let has = sibling(Line::default(), false, up + us(500), up, up + us(450));
        assert_eq!(stint.wait(has, us(16_500), up + us(450)), Some(us(50) + GRACE));
        // Its time is up, too: we queue just before its end.
        let leaves = sibling(Line::default(), true, up + us(6_500), up + us(6_200), up + us(6_200));
        assert_eq!(stint.wait(leaves, us(16_500), up + us(6_200)), Some(us(300) - LEAD));
        assert_eq!(stint.wait(leaves, us(16_500), up + us(6_500) - LEAD), None);
    }

    #[test]
    fn who_stays_alone_goes_on() {
        let mut stint = Stint::default();
        assert_eq!(stint.wait(Line::default(), Nanos::ZERO, us(0)), None);
        assert_eq!(stint.wait(Line::default(), us(60_500), us(60_000)), None);
    }

    #[test]
    fn an_elder_that_does_not_come_costs_a_place_and_no_more() {
        let mut stint = Stint::default();
        let now = us(20_000);
        let line = (0..3).fold(Line::default(), |line, _| sibling(line, true, Nanos::ZERO, us(500), now));
        assert_eq!(stint.wait(line, Nanos::ZERO, now), Some(us(600)));
        assert_eq!(stint.wait(line, Nanos::ZERO, now + us(599)), Some(us(1)));
        assert_eq!(stint.wait(line, Nanos::ZERO, now + us(600)), None);
    }

    #[test]
    fn who_shows_no_end_of_work_is_not_waited_for() {
        let mut stint = Stint::default();
        let begun = us(20_000);
        let forever = sibling(Line::default(), false, Nanos::from_millis(3_600_000), us(500), begun);
        let mut now = begun;
        while let Some(wait) = stint.wait(forever, Nanos::ZERO, now) {
            assert!(wait > Nanos::ZERO);
            now = now + wait;
        }
        assert_eq!(now, begun + PATIENCE);
        // Nor again, as long as nothing of it ends.
        let mut later = stint;
        later.since = None;
        assert_eq!(later.wait(forever, Nanos::ZERO, now + STINT), None);
    }

    /// Turns are shorter than anybody's patience.
    #[test]
    fn patience_is_counted_over_turns() {
        let mut stint = Stint::default();
        let (mut now, mut turns) = (us(20_000), 0);
        let forever = sibling(Line::default(), false, Nanos::from_millis(3_600_000), us(500), now);
        'waiting: loop {
            turns += 1;
            let end = now + us(5_000);
            while now < end {
                let Some(wait) = stint.wait(forever, Nanos::ZERO, now) else { break 'waiting };
                now = (now + wait).min(end);
                if now == end {
                    let _ = stint.wait(forever, Nanos::ZERO, now);
                }
            }
            stint.interrupt();
            now = now + us(45_000);
        }
        assert_eq!(turns, 3);
    }
}
