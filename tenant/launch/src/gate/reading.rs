//! The monitor's fields about a GPU, read consistently.

use cgpu_shm::grant::{GrantView, Heartbeat, Monitor, Turn, TurnState};
use cgpu_shm::units::{DeviceIndex, Nanos, SlotIndex};

/// Most reads while the gate word keeps changing. After that the last one counts, and the launch
/// takes the slow path again.
const MAX_READS: u32 = 3;

/// Most work in flight that a monitor allows. A corrupt page with more must not overflow sums.
const MAX_BOUND: Nanos = Nanos::from_millis(1000);

/// The monitor's fields about a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The gate word under which the others are valid.
    pub(crate) word: u32,
    pub(crate) turn: Turn,
    pub(crate) turn_budget: Nanos,
    /// Most work that may be in flight. Zero: the default in a turn, unbounded on an open GPU.
    pub(crate) bound: Nanos,
    /// This process notifies the monitor when its work has run out.
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
            // Without a gate word there is no monitor, and the other fields mean nothing.
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
    /// Returns whether launches are measured: in turns, and on an open GPU while a monitor bounds
    /// the work in flight.
    pub(crate) fn is_metered(&self) -> bool {
        self.turn.state() != TurnState::Open || (self.bound > Nanos::ZERO && self.monitor.lives())
    }
}

/// Returns whether every GPU of the container is open, and without a bound if `bounded` says that
/// bounds count. Launches then bypass the gate.
pub(crate) fn all_open(granted: GrantView<'_>, bounded: bool) -> bool {
    DeviceIndex::all().all(|gpu| {
        let has_bound = bounded && granted.bound(gpu) > Nanos::ZERO;
        granted.turn(gpu).state() == TurnState::Open && !has_bound
    })
}
