//! Memory of cards, and of the locality domains that some divide into.
//!
//! What is asked for in a domain lies there: it counts against the domain's part of the card and against the card. All other memory,
//! that of contexts too, lies wherever there is room, and counts against the card alone. So a domain can be full while the card is
//! not, and the card while no domain is.

use cgpu_shm::units::Bytes;

use super::Timeline;
use super::records::{CARDS, Card, DOMAINS, Domain, Holding, Lodging, PROCESSES, Process};
use crate::error::Error;
use crate::words::Words;

/// Where memory of a card lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// On which card.
    pub card: usize,
    /// In which of its locality domains; `None`: anywhere.
    pub domain: Option<usize>,
}

impl From<usize> for Site {
    fn from(card: usize) -> Self {
        Self { card, domain: None }
    }
}

impl Site {
    pub(super) fn card(self) -> Card {
        Card(self.card as u64)
    }

    fn domain(self) -> Option<Domain> {
        self.domain.map(|domain| Domain::of(self.card(), domain as u64))
    }

    /// As a number for a record: 0 for anywhere.
    pub(super) fn mark(self) -> u64 {
        self.domain.map_or(0, |domain| domain as u64 + 1)
    }

    pub(super) fn of(card: u64, mark: u64) -> Self {
        let domain = mark.checked_sub(1).map(crate::words::index);
        Self { card: crate::words::index(card), domain }
    }
}

impl<W: Words> Timeline<'_, W> {
    /// Says how much of a card's memory each of its locality domains has. Done once, after [`Timeline::install`], for a card that
    /// has several.
    pub fn divide(&mut self, card: usize, domains: usize, room: Bytes) {
        for domain in 0..domains as u64 {
            self.set(Domain::of(Card(card as u64), domain).room(), room.0);
        }
    }

    /// Memory that a locality domain has, and how much of it was asked for there.
    #[must_use]
    pub fn domain_memory(&self, card: usize, domain: usize) -> (Bytes, Bytes) {
        let domain = Domain::of(Card(card as u64), domain as u64);
        (Bytes(self.get(domain.used())), Bytes(self.get(domain.room())))
    }

    /// Takes memory of a card for a process itself.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], exactly when the card, or the domain, has not that much left.
    pub fn take_memory(&mut self, process: usize, site: impl Into<Site>, size: Bytes) -> Result<(), Error> {
        let site = site.into();
        let left = self.get(site.card().usable()) - self.get(site.card().used());
        let left_there =
            site.domain().map_or(left, |domain| self.get(domain.room()) - self.get(domain.used()));
        if size.0 > left.min(left_there) {
            return Err(Error::OutOfMemory);
        }
        self.charge(Process(process as u64), site, size.0);
        Ok(())
    }

    /// Gives back memory that a process has by itself. No more than it has.
    pub fn give_memory(&mut self, process: usize, site: impl Into<Site>, size: Bytes) {
        self.discharge(Process(process as u64), site.into(), size.0);
    }

    pub(super) fn charge(&mut self, process: Process, site: Site, size: u64) {
        let holding = Holding::of(process, site.card());
        for at in [site.card().used(), holding.memory(), holding.own()] {
            self.add(at, size);
        }
        self.note_memory(holding, site.card());
        if let Some(domain) = site.domain() {
            self.add(domain.used(), size);
            self.add(Lodging::of(process, domain).memory(), size);
        }
    }

    pub(super) fn discharge(&mut self, process: Process, site: Site, size: u64) {
        let holding = Holding::of(process, site.card());
        let away = self.get(holding.away()) != 0;
        self.lighten(holding, site.card(), size);
        self.subtract(holding.own(), size);
        if let Some(domain) = site.domain() {
            if !away {
                self.subtract(domain.used(), size);
            }
            self.subtract(Lodging::of(process, domain).memory(), size);
        }
    }

    /// Memory of a process leaves the domains of a card, for a checkpoint.
    pub(super) fn leave_domains(&mut self, process: Process, card: Card) {
        for domain in (0..DOMAINS).map(|domain| Domain::of(card, domain)) {
            let lodged = self.get(Lodging::of(process, domain).memory());
            self.subtract(domain.used(), lodged);
        }
    }

    /// It comes back.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if a domain has not that much left.
    pub(super) fn enter_domains(&mut self, process: Process, card: Card) -> Result<(), Error> {
        for domain in (0..DOMAINS).map(|domain| Domain::of(card, domain)) {
            let lodged = self.get(Lodging::of(process, domain).memory());
            if lodged > self.get(domain.room()) - self.get(domain.used()) {
                return Err(Error::OutOfMemory);
            }
            self.add(domain.used(), lodged);
        }
        Ok(())
    }

    /// Memory that no process has any more, and that stays.
    pub(super) fn orphan(&mut self, site: Site, size: u64) {
        self.add(site.card().used(), size);
        self.add(site.card().orphaned(), size);
        if let Some(domain) = site.domain() {
            self.add(domain.used(), size);
            self.add(domain.orphaned(), size);
        }
    }

    /// Memory that no process had: it goes, or somebody has it again.
    pub(super) fn unorphan(&mut self, site: Site, size: u64) {
        self.subtract(site.card().used(), size);
        self.subtract(site.card().orphaned(), size);
        if let Some(domain) = site.domain() {
            self.subtract(domain.used(), size);
            self.subtract(domain.orphaned(), size);
        }
    }

    /// All that a process has of a card by itself is given back.
    pub(super) fn discharge_all(&mut self, process: Process, card: Card) {
        for domain in 0..DOMAINS {
            let lodging = Lodging::of(process, Domain::of(card, domain));
            let size = self.get(lodging.memory());
            if size != 0 {
                self.discharge(process, Site::of(card.0, domain + 1), size);
            }
        }
        let own = self.get(Holding::of(process, card).own());
        self.discharge(process, Site::of(card.0, 0), own);
    }

    /// What a process has in a domain, or of a card altogether.
    pub(super) fn own(&self, process: Process, site: Site) -> u64 {
        match site.domain() {
            Some(domain) => self.get(Lodging::of(process, domain).memory()),
            None => self.get(Holding::of(process, site.card()).own()),
        }
    }

    /// What always holds for a card's domains: they have what processes and nobody have there, no more than their room, and no more
    /// than the card and each process have.
    pub(super) fn check_domains(&self, card: Card) -> Result<(), String> {
        let domains: Vec<Domain> = (0..DOMAINS).map(|domain| Domain::of(card, domain)).collect();
        for &domain in &domains {
            let is_here = |&process: &Process| self.get(Holding::of(process, card).away()) == 0;
            let here = (0..PROCESSES).map(Process).filter(is_here);
            let held = here.map(|process| self.get(Lodging::of(process, domain).memory())).sum::<u64>()
                + self.get(domain.orphaned());
            let (used, room) = (self.get(domain.used()), self.get(domain.room()));
            if used != held || used > room {
                return Err(format!("{domain:?} of {card:?} has {used} of {room} bytes, held are {held}"));
            }
        }
        let used = domains.iter().map(|domain| self.get(domain.used())).sum::<u64>();
        if used > self.get(card.used()) {
            return Err(format!("{card:?} has less than its domains, {used}"));
        }
        for process in (0..PROCESSES).map(Process) {
            let lodged = domains.iter().map(|&domain| self.get(Lodging::of(process, domain).memory()));
            let (lodged, own) = (lodged.sum::<u64>(), self.get(Holding::of(process, card).own()));
            if lodged > own {
                return Err(format!("{process:?} has {own} bytes of {card:?}, and {lodged} in its domains"));
            }
        }
        Ok(())
    }
}

const _: () = assert!(CARDS * DOMAINS == Domain::COUNT);
