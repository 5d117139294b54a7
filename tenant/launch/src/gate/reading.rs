//! What the monitor says about a GPU, read in one piece.

use cgpu_shm::grant::{GrantView, Heartbeat, Monitor, Turn, TurnState};
use cgpu_shm::units::{DeviceIndex, Nanos, SlotIndex};

/// Most reads while the gate word changes meanwhile. After that the last one counts: the launch
/// takes the slow path again.
const MAX_READS: u32 = 3;

/// No monitor lets more be in flight; a page that says more is to do no harm in sums.
const MAX_BOUND: Nanos = Nanos::from_millis(1000);

/// The monitor's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The gate word under which the rest is good.
    pub(crate) word: u32,
    pub(crate) turn: Turn,
    pub(crate) turn_budget: Nanos,
    /// Most that may be in flight. Zero: as usual in a turn, and without a bound on an open GPU.
    pub(crate) bound: Nanos,
    /// This process is to notify the monitor when its work has run out.
    pub(crate) notify_drained: bool,
    pub(crate) monitor: Monitor,
}

impl Reading {
    pub(crate) fn of(
        granted: GrantView<'_>,
        gpu: DeviceIndex,
        slot: SlotIndex,
        heartbeat: &Heartbeat,
        now: Nanos,
    ) -> Self {
        let read = || {
            let word = granted.acknowledge();
            // Without a word there is no monitor, and what else is written means nothing.
            let turn = if word == 0 { Turn(0) } else { granted.turn(gpu) };
            (word, turn, granted.budget(gpu), granted.bound(gpu))
        };
        let mut seen = read();
        for _ in 1..MAX_READS {
            if granted.gate() == seen.0 {
                break;
            }
            seen = read();
        }
        let (word, turn, turn_budget, bound) = seen;
        let bound = bound.min(MAX_BOUND);
        let (notify_drained, monitor) =
            (granted.is_notify_slot(gpu, slot), heartbeat.observe(granted, now));
        Self { word, turn, turn_budget, bound, notify_drained, monitor }
    }
}

impl Reading {
    /// Whether launches are measured: in turns, and on an open GPU while a monitor bounds what may
    /// be in flight there.
    pub(crate) fn is_metered(&self) -> bool {
        self.turn.state() != TurnState::Open || (self.bound > Nanos::ZERO && self.monitor.lives())
    }

    /// Without the bound of an open GPU.
    pub(crate) fn unbounded_if_open(self) -> Self {
        if self.turn.state() == TurnState::Open {
            Self { bound: Nanos::ZERO, ..self }
        } else {
            self
        }
    }
}

/// Whether launches need not be looked at: every GPU of the container is open, and without a bound
/// if `bounded` says that bounds count.
pub(crate) fn all_open(granted: GrantView<'_>, bounded: bool) -> bool {
    DeviceIndex::all().all(|gpu| {
        let has_bound = bounded && granted.bound(gpu) > Nanos::ZERO;
        granted.turn(gpu).state() == TurnState::Open && !has_bound
    })
}
