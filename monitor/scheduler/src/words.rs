//! What a container says of itself, and how much of it is believed.
//!
//! Anything may be in these words. A claim is taken if it is possible; impossible ones count as lies and are taken as nothing
//! (`docs/turns.md`, section 7).

use cgpu_shm::units::{Nanos, SlotIndex};

/// The words of one living process on one GPU, as read from its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Its slot.
    pub slot: SlotIndex,
    /// Which user of the slot it is.
    pub generation: u64,
    /// The turn word that it last obeyed.
    pub turn: u64,
    /// Threads at the gate.
    pub waiting: u64,
    /// Last launch through the slow path, or arrival at the gate.
    pub active: u64,
    /// Settled GPU time.
    pub busy: u64,
    /// Estimate of what is in flight.
    pub inflight: u64,
    /// When that is predicted to have run.
    pub ends: u64,
    /// GPU time of the turn in `turn`.
    pub spent: u64,
    /// End of the last settled work.
    pub last: u64,
}

/// What is believed of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub(super) slot: SlotIndex,
    generation: u64,
    busy: u64,
    read: Nanos,
    pub(super) turn: u64,
    pub(super) waiting: bool,
    pub(super) active: Nanos,
    /// Zero when nothing is in flight.
    pub(super) ends: Nanos,
    pub(super) spent: Nanos,
    pub(super) last: Nanos,
    /// Changes when any word does.
    pub(super) print: u64,
}

/// No process has that much in flight, nor reports so much more than the time that passed: an hour.
const MOST_INFLIGHT: u64 = 3_600_000_000_000;
/// No process has that many threads.
const MOST_THREADS: u64 = 65_536;
/// Clocks are the same; a word may be read a moment after our own look at the clock.
const SKEW: u64 = 1_000_000;

/// A process as believed, how much its GPU time has grown, and how many of its words were lies.
pub(super) fn believe(words: &Words, before: Option<&Process>, now: Nanos) -> (Process, Nanos, u64) {
    let mut lies = 0;
    let mut check = |value: u64, possible: bool| {
        if possible {
            value
        } else {
            lies += 1;
            0
        }
    };
    let soon = now.0.saturating_add(SKEW);
    let active = check(words.active, words.active <= soon);
    let last = check(words.last, words.last <= soon);
    let waiting = check(words.waiting, words.waiting <= MOST_THREADS);
    let inflight = check(words.inflight, words.inflight <= MOST_INFLIGHT);
    let ends = check(words.ends, inflight == 0 || words.ends <= now.0.saturating_add(MOST_INFLIGHT));
    let spent = check(words.spent, words.spent <= MOST_INFLIGHT.saturating_mul(10));
    let known = before.filter(|before| before.slot == words.slot && before.generation == words.generation);
    let growth = match known {
        // The first sight of a process is where its time begins for us.
        None => 0,
        Some(before) => {
            let growth = words.busy.wrapping_sub(before.busy);
            let most = now.0.saturating_sub(before.read.0).saturating_add(MOST_INFLIGHT);
            check(growth, growth <= most)
        }
    };
    let print = [
        words.turn,
        words.waiting,
        words.active,
        words.busy,
        words.inflight,
        words.ends,
        words.spent,
        words.last,
    ]
    .iter()
    .fold(words.generation, |print, &word| print.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word);
    let process = Process {
        slot: words.slot,
        generation: words.generation,
        busy: words.busy,
        read: now,
        turn: words.turn,
        waiting: waiting > 0,
        active: Nanos(active.min(now.0)),
        ends: if inflight == 0 { Nanos::ZERO } else { Nanos(ends) },
        spent: Nanos(spent),
        last: Nanos(last.min(now.0)),
        print,
    };
    (process, Nanos(growth), lies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Nanos = Nanos::from_millis(100_000);

    fn honest() -> Words {
        Words {
            slot: SlotIndex(3),
            generation: 1,
            turn: 0x101,
            waiting: 1,
            active: NOW.0 - 1000,
            busy: 5_000_000,
            inflight: 400_000,
            ends: NOW.0 + 300_000,
            spent: 4_000_000,
            last: NOW.0 - 2000,
        }
    }

    #[test]
    fn an_honest_process_is_believed() {
        let (first, growth, lies) = believe(&honest(), None, NOW);
        assert_eq!((growth, lies), (Nanos::ZERO, 0));
        let later = Words { busy: 5_500_000, ..honest() };
        let (process, growth, lies) = believe(&later, Some(&first), NOW + Nanos::from_millis(1));
        assert_eq!((growth, lies), (Nanos(500_000), 0));
        assert!(process.waiting);
        assert_ne!(process.print, first.print);
    }

    #[test]
    fn what_cannot_be_is_a_lie() {
        let (before, ..) = believe(&honest(), None, NOW);
        for (name, words) in [
            ("time runs backwards", Words { busy: 4_999_999, ..honest() }),
            ("more time than there was", Words { busy: u64::MAX / 2, ..honest() }),
            ("a launch in the future", Words { active: NOW.0 + 2_000_000, ..honest() }),
            ("an end in the future", Words { last: u64::MAX, ..honest() }),
            ("two hours in flight", Words { inflight: 7_200_000_000_000, ends: NOW.0, ..honest() }),
            ("two hours ahead", Words { ends: NOW.0 + 7_200_000_000_000, ..honest() }),
            ("a million threads", Words { waiting: 1_000_000, ..honest() }),
        ] {
            let (_, growth, lies) = believe(&words, Some(&before), NOW);
            assert_eq!((growth, lies), (Nanos::ZERO, 1), "{name}");
        }
    }

    #[test]
    fn another_user_of_the_slot_starts_anew() {
        let (before, ..) = believe(&honest(), None, NOW);
        let (_, growth, lies) = believe(&Words { generation: 2, busy: 7, ..honest() }, Some(&before), NOW);
        assert_eq!((growth, lies), (Nanos::ZERO, 0));
    }

    proptest! {
        #[test]
        fn nothing_believed_is_impossible(numbers in any::<[u64; 9]>(), now in 0..u64::MAX) {
            let [turn, waiting, active, busy, inflight, ends, spent, last, generation] = numbers;
            let words = Words {
                slot: SlotIndex(0), generation, turn, waiting, active, busy, inflight, ends, spent, last,
            };
            let now = Nanos(now);
            let (process, ..) = believe(&words, None, now);
            prop_assert!(process.active <= now && process.last <= now);
            prop_assert!(process.ends <= now + Nanos(MOST_INFLIGHT));
        }
    }
}
