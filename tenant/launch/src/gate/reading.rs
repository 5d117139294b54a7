//! What the monitor says about a card, read in one piece.

use cgpu_shm::grant::{Granted, Heartbeat, Monitor, Turn, TurnState};
use cgpu_shm::units::{CardIndex, Nanos, SlotIndex};

/// How often a reading is begun anew because the gate word has changed meanwhile. Then what was read has to do: the launch comes
/// by again.
const TRIES: u32 = 3;

/// No monitor lets more be in flight; a page that says more is to do no harm in sums.
const MOST_BOUND: Nanos = Nanos::from_millis(1000);

/// The monitor's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The gate word under which the rest is good.
    pub(crate) word: u32,
    pub(crate) turn: Turn,
    pub(crate) granted: Nanos,
    /// Most that may be in flight. Zero: as usual in a turn, and without a bound on an open card.
    pub(crate) bound: Nanos,
    /// This process is to ring when its work has run out.
    pub(crate) rings: bool,
    pub(crate) monitor: Monitor,
}

impl Reading {
    pub(crate) fn of(
        granted: Granted<'_>,
        card: CardIndex,
        slot: SlotIndex,
        heart: &Heartbeat,
        now: Nanos,
    ) -> Self {
        let read = || {
            let word = granted.acknowledge();
            // Without a word there is no monitor, and what else is written means nothing.
            let turn = if word == 0 { Turn(0) } else { granted.turn(card) };
            (word, turn, granted.granted(card), granted.bound(card))
        };
        let mut seen = read();
        for _ in 1..TRIES {
            if granted.gate() == seen.0 {
                break;
            }
            seen = read();
        }
        let (word, turn, granted_time, bound) = seen;
        let bound = bound.min(MOST_BOUND);
        let (rings, monitor) = (granted.rings(card, slot), heart.observe(granted, now));
        Self { word, turn, granted: granted_time, bound, rings, monitor }
    }
}

impl Reading {
    /// Whether launches are measured: in turns, and on an open card while a monitor bounds what may
    /// be in flight there.
    pub(crate) fn is_metered(&self) -> bool {
        self.turn.state() != TurnState::Open || (self.bound > Nanos::ZERO && self.monitor.lives())
    }

    /// Without the bound of an open card.
    pub(crate) fn unbounded_if_open(self) -> Self {
        if self.turn.state() == TurnState::Open { Self { bound: Nanos::ZERO, ..self } } else { self }
    }
}

/// Whether launches need not be looked at: every card of the container is open, and without a bound
/// if `bounded` says that bounds count.
pub(crate) fn all_open(granted: Granted<'_>, bounded: bool) -> bool {
    CardIndex::all().all(|card| {
        let has_bound = bounded && granted.bound(card) > Nanos::ZERO;
        granted.turn(card).state() == TurnState::Open && !has_bound
    })
}
