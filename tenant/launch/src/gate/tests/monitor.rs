//! A minimal monitor as in `docs/internals/turns.md`: turns of fixed lengths, one container after
//! the other. A turn is handed over when its work has nearly run.

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::grant::{Turn, TurnState};
use cgpu_shm::layout::Cell;
use cgpu_shm::units::{DeviceIndex, Nanos};

use super::harness::{Harness, Role};

pub(super) fn gpu() -> DeviceIndex {
    DeviceIndex::new(0).expect("a GPU")
}

pub(super) fn set_turn(
    harness: &Harness,
    container: usize,
    epoch: u64,
    state: TurnState,
    granted: Nanos,
) {
    let grantor = &harness.grantors[container];
    grantor.set_turn(gpu(), Turn::new(epoch, state), granted, Nanos::ZERO);
    grantor.wake_gate();
}

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) turns: u64,
    /// Growth of each container's reported busy time.
    pub(super) busy: Vec<Nanos>,
}

/// Grants turns of these lengths until `end`.
pub(super) fn run_turns(role: &Role<'_>, slices: &[Nanos], end: Nanos) -> Report {
    let harness = role.harness;
    let lead = Nanos::from_micros(60);
    let cells = |container: usize| {
        let slots = harness.homes.iter().filter(move |(home, _)| *home == container);
        slots.map(move |(_, slot)| harness.regions[container].cell(gpu(), *slot))
    };
    let sum = |container: usize, word: fn(&Cell) -> &AtomicU64| {
        Nanos(cells(container).map(|cell| word(cell).load(Ordering::Relaxed)).sum())
    };
    let ends = |container: usize| {
        let working = cells(container).filter(|cell| cell.inflight.load(Ordering::Relaxed) > 0);
        working.map(|cell| Nanos(cell.ends.load(Ordering::Relaxed))).max().unwrap_or_default()
    };
    let read = |container: usize| sum(container, |cell| &cell.busy);
    let before: Vec<_> = (0..slices.len()).map(read).collect();
    let mut epoch = 1000;
    let mut debt = vec![0_i64; slices.len()];
    let mut report = Report::default();
    for container in 0..slices.len() {
        set_turn(harness, container, epoch, TurnState::Wait, Nanos::ZERO);
    }
    while role.now() < end {
        for (container, slice) in slices.iter().enumerate() {
            harness.grantors[container].beat();
            epoch += 1;
            let granted = slice.0.cast_signed() - debt[container];
            let start = role.monotonic();
            let granted = Nanos(granted.max(500_000).cast_unsigned());
            set_turn(harness, container, epoch, TurnState::Yours, granted);
            role.sleep(granted - lead);
            set_turn(harness, container, epoch + 1, TurnState::Wait, Nanos::ZERO);
            epoch += 1;
            // At most 24 ms for the drain.
            for _ in 0..240 {
                let ends = ends(container);
                if ends <= role.monotonic() + lead {
                    break;
                }
                role.sleep(
                    (ends - role.monotonic() - lead)
                        .max(Nanos::from_micros(20))
                        .min(Nanos::from_micros(100)),
                );
            }
            let held = role.monotonic() + lead - start;
            debt[container] += held.0.cast_signed() - slice.0.cast_signed();
            report.turns += 1;
        }
    }
    for container in 0..slices.len() {
        set_turn(harness, container, epoch + 1 + container as u64, TurnState::Open, Nanos::ZERO);
    }
    report.busy = (0..slices.len()).map(|container| read(container) - before[container]).collect();
    report
}
