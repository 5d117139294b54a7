//! A monitor as simple as can be: turns of fixed lengths, one container after the other, handed over when the work of the one has
//! nearly run. It says what `docs/turns.md` says, and no more.

use cgpu_shm::atomic::{AtomicU64, Ordering};
use cgpu_shm::grant::{Turn, TurnState};
use cgpu_shm::layout::Cell;
use cgpu_shm::units::{DeviceIndex, Nanos};

use super::stage::{Role, Stage};

pub(super) fn gpu() -> DeviceIndex {
    DeviceIndex::new(0).expect("a GPU")
}

/// Says whose turn it is.
pub(super) fn say(stage: &Stage, container: usize, epoch: u64, state: TurnState, granted: Nanos) {
    let grantor = &stage.grantors[container];
    grantor.set_turn(gpu(), Turn::new(epoch, state), granted, Nanos::ZERO);
    grantor.turn_gate();
}

/// What it saw.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) turns: u64,
    /// Growth of each container's reported busy time.
    pub(super) busy: Vec<Nanos>,
}

/// Gives turns of these lengths until `end`.
pub(super) fn conduct(role: &Role<'_>, slices: &[Nanos], end: Nanos) -> Books {
    let stage = role.stage;
    let lead = Nanos::from_micros(60);
    let cells = |container: usize| {
        let slots = stage.homes.iter().filter(move |(home, _)| *home == container);
        slots.map(move |(_, slot)| stage.regions[container].cell(gpu(), *slot))
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
    let mut books = Books::default();
    for container in 0..slices.len() {
        say(stage, container, epoch, TurnState::Wait, Nanos::ZERO);
    }
    while role.now() < end {
        for (container, slice) in slices.iter().enumerate() {
            stage.grantors[container].beat();
            epoch += 1;
            let granted = slice.0.cast_signed() - debt[container];
            let start = role.monotonic();
            let granted = Nanos(granted.max(500_000).cast_unsigned());
            say(stage, container, epoch, TurnState::Yours, granted);
            role.sleep(granted - lead);
            say(stage, container, epoch + 1, TurnState::Wait, Nanos::ZERO);
            epoch += 1;
            // At most 24 ms for the drain.
            for _ in 0..240 {
                let ends = ends(container);
                if ends <= role.monotonic() + lead {
                    break;
                }
                role.sleep(
                    (ends - role.monotonic() - lead).max(Nanos::from_micros(20)).min(Nanos::from_micros(100)),
                );
            }
            let held = role.monotonic() + lead - start;
            debt[container] += held.0.cast_signed() - slice.0.cast_signed();
            books.turns += 1;
        }
    }
    for container in 0..slices.len() {
        say(stage, container, epoch + 1 + container as u64, TurnState::Open, Nanos::ZERO);
    }
    books.busy = (0..slices.len()).map(|container| read(container) - before[container]).collect();
    books
}
