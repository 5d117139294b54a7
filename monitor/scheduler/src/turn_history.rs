//! The turns that ended last, for people who want to see them go round. Nothing is decided by it.

use std::collections::VecDeque;

use cgpu_shm::units::Nanos;

use super::step::TenantId;

/// How many are kept: half a second of the usual slices.
pub const MAX_TURNS: usize = 96;

/// A turn that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastTurn {
    /// Whose it was.
    pub holder: TenantId,
    /// The boundary to the turn before.
    pub start: Nanos,
    /// The boundary to the next.
    pub end: Nanos,
}

/// The last of them, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct TurnHistory(VecDeque<PastTurn>);

impl TurnHistory {
    pub(super) fn note(&mut self, turn: PastTurn) {
        if self.0.len() == MAX_TURNS {
            self.0.pop_front();
        }
        self.0.push_back(turn);
    }

    pub(super) fn turns(&self) -> impl Iterator<Item = PastTurn> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_turns_are_dropped() {
        let mut history = TurnHistory::default();
        for start in 0..MAX_TURNS as u64 + 3 {
            history.note(PastTurn {
                holder: TenantId(start % 2),
                start: Nanos(start),
                end: Nanos(start + 1),
            });
        }
        let starts: Vec<u64> = history.turns().map(|turn| turn.start.0).collect();
        assert_eq!((starts.len(), starts[0]), (MAX_TURNS, 3));
    }
}
