//! A container's own view: what its own files say of it, and what the monitor wrote there for it. No socket is asked.
//!
//! Whether a monitor lives, and what share of the card's time the container gets, are changes between two of its heartbeats, with which
//! it writes; so the first answer takes up to a second.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cgpu_monitor::message::{CardStatus, ContainerStatus, Gate, ShareStatus, Sharing, Status};
use cgpu_proto::grant::{STALE, TurnState};
use cgpu_proto::notes::{CardNote, Notes, NotesReader};

use crate::report::{self, NATIVE, Report, View};

/// Between the heartbeats that a share is measured by, at least.
const INTERVAL: Duration = Duration::from_millis(400);
/// Between two looks for a heartbeat: how exact the time between them is.
const TICK: Duration = Duration::from_millis(5);

/// A container, seen from inside.
pub(crate) struct Container {
    folder: PathBuf,
    /// As of a heartbeat.
    before: Option<Beat>,
}

/// A monitor's notes, and when they were written.
type Beat = (Instant, Notes);

impl Container {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, before: None }
    }

    /// What there is to see.
    pub(crate) fn look(&mut self) -> Report {
        let before = self.before.take().or_else(|| self.beat(Instant::now()));
        let after = before.as_ref().and_then(|(then, _)| self.beat(*then + INTERVAL));
        let mut status = Status { root: self.folder.clone(), ..Status::default() };
        status.containers.extend(report::container(&self.folder, &mut status.cards));
        let change =
            before.as_ref().zip(after.as_ref()).and_then(|(before, after)| Change::of(before, after));
        if let (Some(change), Some(container)) = (&change, status.containers.first_mut()) {
            change.tell(container, &mut status.cards);
        }
        let monitor = change.is_some();
        self.before = after;
        Report { monitor, view: View::Container, status }
    }

    /// Waits for the first heartbeat from `earliest` on; none where no monitor has been, or none beats any more.
    fn beat(&self, earliest: Instant) -> Option<Beat> {
        let reader = NotesReader::open(&self.folder).ok()?;
        let patience = Duration::from_nanos(STALE.0);
        let (mut last, mut changed) = (reader.read().ok()?, Instant::now());
        while last.monitor != 0 && changed.elapsed() < patience {
            thread::sleep(TICK);
            let notes = reader.read().ok()?;
            if notes.heartbeat != last.heartbeat {
                changed = Instant::now();
                if changed >= earliest {
                    return Some((changed, notes));
                }
                last = notes;
            }
        }
        None
    }
}

/// What has changed between two looks at a page that a living monitor writes.
struct Change<'a> {
    elapsed: Duration,
    cards: Vec<(&'a CardNote, &'a CardNote)>,
}

impl<'a> Change<'a> {
    /// None: no monitor was at work in between.
    fn of((then, before): &'a Beat, (now, after): &'a Beat) -> Option<Self> {
        let lives = after.monitor != 0 && before.heartbeat != after.heartbeat;
        let cards = before.cards.iter().zip(&after.cards).collect();
        lives.then(|| Self { elapsed: now.duration_since(*then), cards })
    }

    /// The cards are as the container registered them, and so are the monitor's notes.
    fn tell(&self, container: &mut ContainerStatus, cards: &mut [CardStatus]) {
        for (at, (share, (before, after))) in container.cards.iter_mut().zip(&self.cards).enumerate() {
            self.tell_card(share, before, after);
            if at == 0 {
                container.weight = after.weight;
            }
            if let Some(card) = cards.iter_mut().find(|card| card.index == share.card) {
                card.policy = after.policy.min(NATIVE);
                // Whether others wait cannot be seen from here.
                card.sharing = if share.gate == Gate::Open { Sharing::Open } else { Sharing::Contended };
            }
        }
    }

    fn tell_card(&self, share: &mut ShareStatus, before: &CardNote, after: &CardNote) {
        share.share_set = f64::from(after.share) / 1000.0;
        share.gate = match after.turn.state() {
            TurnState::Open => Gate::Open,
            TurnState::Yours => Gate::Yours,
            TurnState::Wait => Gate::Wait,
        };
        share.gpu_time_ms = after.busy.duration().as_secs_f64() * 1000.0;
        let charged = after.busy.0.saturating_sub(before.busy.0);
        if share.gate != Gate::Open || charged > 0 {
            let part = Duration::from_nanos(charged).as_secs_f64() / self.elapsed.as_secs_f64().max(1e-3);
            share.share_second = Some((part * 100.0).min(100.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgpu_proto::grant::Turn;
    use cgpu_proto::units::{Bytes, Nanos};

    fn notes(heartbeat: u64, busy_ms: u64) -> Notes {
        let card = CardNote {
            turn: Turn::new(9, TurnState::Wait),
            limit: Bytes::ZERO,
            policy: 2,
            weight: 3,
            share: 33_333,
            busy: Nanos::from_millis(busy_ms),
        };
        Notes { heartbeat, monitor: 7, cards: vec![card] }
    }

    #[test]
    fn a_share_is_what_was_charged_between_two_looks() {
        let start = Instant::now();
        let (before, after) = ((start, notes(1, 100)), (start + Duration::from_secs(2), notes(2, 700)));
        let mut container =
            ContainerStatus { cards: vec![ShareStatus::default()], ..ContainerStatus::default() };
        let mut cards = vec![CardStatus::default()];
        Change::of(&before, &after).unwrap().tell(&mut container, &mut cards);
        let share = &container.cards[0];
        assert_eq!((share.share_set, share.share_second, share.gate), (33.333, Some(30.0), Gate::Wait));
        assert_eq!((container.weight, cards[0].policy, cards[0].sharing), (3, 2, Sharing::Contended));
    }

    #[test]
    fn a_page_that_stands_still_has_no_monitor() {
        let now = Instant::now();
        assert!(Change::of(&(now, notes(1, 0)), &(now, notes(1, 5))).is_none());
    }

    #[test]
    fn books_that_began_anew_are_no_share() {
        let start = Instant::now();
        let (before, after) = ((start, notes(1, 700)), (start + Duration::from_secs(1), notes(2, 100)));
        let mut container =
            ContainerStatus { cards: vec![ShareStatus::default()], ..ContainerStatus::default() };
        Change::of(&before, &after).unwrap().tell(&mut container, &mut []);
        assert_eq!(container.cards[0].share_second, Some(0.0));
    }
}
