//! The last turns, for display only.

use std::collections::VecDeque;

use cgpu_shm::units::Nanos;

use super::step::TenantId;

/// Number of turns kept: a second of the usual slices.
pub const MAX_TURNS: usize = 192;

/// A turn that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastTurn {
    /// The container that had it.
    pub holder: TenantId,
    /// The boundary to the previous turn.
    pub start: Nanos,
    /// The boundary to the next.
    pub end: Nanos,
}

/// The last turns, oldest first.
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
