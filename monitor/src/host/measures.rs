//! What NVML says of each process, brought together with its books, and published.

use cgpu_proto::growth::Growth;
use cgpu_proto::slots::{State, Word};
use cgpu_proto::units::{Bytes, CardIndex, Generation, Nanos, SlotIndex};

use super::Host;
use super::container::Container;
use crate::controller::tenants::TenantId;
use crate::exchange::Member;
use crate::measured::{Books, Measured, Reading};
use crate::scout::{Ask, Taken};

impl Host {
    /// Tells the scout whose books to read, when that has changed.
    pub(super) fn tell_scout(&mut self) {
        let asks: Vec<Ask> = self.containers.values().filter_map(|container| container.to_watch()).collect();
        if asks != self.watched && self.scout.watch(asks.clone()) {
            self.watched = asks;
        }
        self.tell_kin();
    }

    /// Takes what was read of a process, and says in its container's page what follows.
    pub(super) fn take_reading(&mut self, taken: &Taken) {
        let Some(container) = self.containers.get_mut(&TenantId(taken.tenant)) else { return };
        let Some(region) = &container.region else { return };
        let &Taken { slot, generation, card, .. } = taken;
        if !region.live.contains(&(slot, generation)) {
            return;
        }
        let word = Word::new(Generation::from_bits(generation), State::Live);
        let measured = container.measured.entry((slot, generation, card)).or_insert_with(|| {
            let ended = taken.reading.map_or(0, |reading| reading.after.ended);
            Measured::from_published(region.growth(card, slot).bytes(word, ended), ended)
        });
        let known = measured.ended();
        let verdict = match &taken.reading {
            Some(reading) => measured.take(reading),
            None => measured.untold(),
        };
        // What was found to be gone was found of those books: some of it may have left them itself.
        if measured.ended() != known {
            container.returned.remove(&(slot, generation, card));
        }
        let returned = container.returned.get(&(slot, generation, card)).copied().unwrap_or_default();
        // Also where it is nothing: a process wants to know that it is measured.
        let growth = match &taken.reading {
            Some(_) => Growth::new(word, measured.ended(), less(measured.growth(), returned)),
            None => Growth::default(),
        };
        let is_confirmed = measured.is_confirmed();
        if !is_confirmed {
            region.set_confirmed(card, slot, false);
        }
        if growth != region.growth(card, slot) {
            region.set_growth(card, slot, growth, verdict.is_some_and(|verdict| verdict.risen));
        }
        if is_confirmed {
            region.set_confirmed(card, slot, true);
        }
    }

    /// Takes what was read of all processes on a card, of which `unowned` is nobody's: what of it they exported and nobody holds.
    pub(super) fn take_exchange(&mut self, readings: &[Taken], unowned: Bytes) {
        for group in readings.chunk_by(|one, other| one.tenant == other.tenant) {
            let Some(container) =
                group.first().and_then(|taken| self.containers.get_mut(&TenantId(taken.tenant)))
            else {
                continue;
            };
            let Some(card) = group.first().map(|taken| taken.card) else { continue };
            container.bound_returned(card);
            container.take_exchange(card, group, unowned);
        }
    }
}

impl Container {
    /// What was found to have gone of a living process's exports is no more than it still exports: the rest has left its books by itself.
    fn bound_returned(&mut self, card: CardIndex) {
        let Some(region) = &self.region else { return };
        let Some(seen) = region.seen.cards.get(card.get()) else { return };
        let too_much = region.live.iter().filter_map(|&(slot, generation)| {
            let exported = seen.cells.get(slot.get())?.exported;
            let returned = *self.returned.get(&(slot, generation, card))?;
            (returned > exported).then_some((slot, generation, exported))
        });
        for (slot, generation, exported) in too_much.collect::<Vec<_>>() {
            self.give_back(slot, generation, card, exported);
        }
    }

    fn take_exchange(&mut self, card: CardIndex, readings: &[Taken], unowned: Bytes) {
        let Some(region) = &self.region else { return };
        let Some(seen) = region.seen.cards.get(card.get()) else { return };
        let orphans = region.seen.orphan(seen);
        let exports = orphans > Bytes::ZERO || seen.cells.iter().any(|cell| cell.exported > Bytes::ZERO);
        let all = region.live.iter().all(|&(slot, generation)| {
            readings.iter().any(|taken| (taken.slot, taken.generation) == (slot, generation))
        });
        if !exports || !all {
            self.exchanges.remove(&card);
            return;
        }
        let member = |taken: &Taken| {
            // Who has no context on the card is not told of, and has nothing there.
            let reading = taken.reading.or_else(|| {
                let cell = seen.cells.get(taken.slot.get())?;
                let books = Books::of(cell);
                let none = cell.used + cell.implicit == Bytes::ZERO;
                none.then_some(Reading {
                    at: Nanos::ZERO,
                    before: books,
                    measured: Bytes::ZERO,
                    after: books,
                    lent: Bytes::ZERO,
                })
            })?;
            let measured = self.measured.get(&(taken.slot, taken.generation, card));
            let growth = measured.map_or(0, Measured::growth);
            let Reading { before, after, measured, .. } = reading;
            Some(Member { name: (taken.slot.0, taken.generation), before, after, measured, growth })
        };
        let Some(members) = readings.iter().map(member).collect::<Option<Vec<_>>>() else {
            self.exchanges.remove(&card);
            return;
        };
        let Some(gone) = self.exchanges.entry(card).or_default().look(&members, orphans, unowned) else {
            return;
        };
        if gone.orphans {
            self.let_go(card);
        }
        for ((slot, generation), returned) in gone.returned {
            self.give_back(SlotIndex(slot), generation, card, returned);
        }
    }

    /// What dead processes had exported of a card's memory is gone. One is buried when that is so on all cards.
    fn let_go(&mut self, card: CardIndex) {
        let Some(region) = &self.region else { return };
        let slots = region.seen.slots.iter().enumerate();
        for (index, slot) in slots.filter(|(_, slot)| slot.word.state() == Some(State::Orphan)) {
            let Some(index) = SlotIndex::new(index) else { break };
            let generation = slot.word.generation().get();
            self.returned.insert((index, generation, card), Bytes::MAX);
            let mut cards = CardIndex::all().zip(&region.seen.cards);
            let is_gone = cards.all(|(card, seen)| {
                let none = seen.cells.get(index.get()).is_none_or(|cell| cell.used == Bytes::ZERO);
                none || self.returned.contains_key(&(index, generation, card))
            });
            if is_gone {
                region.set_let_go(index, generation);
            }
        }
    }

    /// So much of what a living process has exported is gone: it is taken off its books.
    fn give_back(&mut self, slot: SlotIndex, generation: u64, card: CardIndex, returned: Bytes) {
        let Some(region) = &self.region else { return };
        let name = (slot, generation, card);
        let before = self.returned.insert(name, returned).unwrap_or_default();
        if before == returned {
            return;
        }
        let Some((growth, ended)) = self.measured.get(&name).map(|known| (known.growth(), known.ended()))
        else {
            return;
        };
        let word = Word::new(Generation::from_bits(generation), State::Live);
        region.set_growth(card, slot, Growth::new(word, ended, less(growth, returned)), before > returned);
    }
}

fn less(growth: i64, returned: Bytes) -> i64 {
    growth.saturating_sub(i64::try_from(returned.0).unwrap_or(i64::MAX))
}
