//! The host: its cards, its containers, and what is done with them when something is heard or due.
//!
//! Everything that happens ends in [`Host::step`]: who must be looked at is looked at, the card's controller decides, the grant pages
//! are written. Between steps the host finds containers, notes deaths, and beats.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_proto::paths;
use cgpu_proto::units::{Bytes, Nanos};
use cgpu_proto::uuid::Uuid;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub(crate) mod board;
pub(crate) mod container;
mod measures;
pub(crate) mod places;
pub(crate) mod region;
mod succession;
mod tally;
mod watch;

use board::Board;
use container::Container;
use places::Places;

use crate::config::{Config, Start};
use crate::control;
use crate::controller::policy::Policy;
use crate::controller::tenants::{Sight, TenantId};
use crate::controller::{Card, gangs};
use crate::estate::{CardBooks, Succession};
use crate::message::{Errno, Refusal, Registered, Registration};
use crate::scout::{Ask, Errand, Kin, News, Sample, Scout, Suspect};
use crate::settings::{CardSettings, Settings};
use crate::watch::Watch;

/// Cards that are kept; a container can name sixteen, and may make them up where there is no NVML.
const MOST_CARDS: usize = 64;
/// How long a dead process's memory is waited for where NVML cannot tell.
const LINGERS: Nanos = Nanos::from_millis(500);
/// How long NVML is waited for at the start: its own takes a second or two.
const FIRST: Duration = Duration::from_secs(10);
/// A ring is followed by this much silence, so that nobody can keep us busy.
const REST: Nanos = Nanos::from_micros(200);
/// A bell that was rung unasked is not listened to for this long.
const MUTE: Nanos = Nanos::from_millis(100);

/// The host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) root: PathBuf,
    /// Where settings are kept.
    pub(crate) state: PathBuf,
    pub(crate) started: Nanos,
    pub(crate) boards: Vec<Board>,
    pub(crate) containers: BTreeMap<TenantId, Container>,
    pub(crate) settings: Settings,
    pub(crate) start: Start,
    /// What people should know.
    pub(crate) warnings: Vec<String>,
    /// NVML answers.
    pub(crate) sampled: Option<Nanos>,
    pub(crate) scout: Scout,
    next: u64,
    /// Whose books the scout reads.
    watched: Vec<Ask>,
    /// How the scout recognises containers' processes.
    kin: Vec<Kin>,
    /// What is found of processes that should not be on a card, or have too much.
    pub(crate) watch: Watch,
    /// What a predecessor has left and nobody has taken up.
    inherited: Vec<CardBooks>,
    pub(crate) succession: Succession,
    /// The estate was asked for: nothing is to be done any more.
    pub(crate) is_succeeded: bool,
    /// What the daemon's poll must learn.
    pub(crate) changes: Vec<Change>,
}

/// Something to listen to has come or gone.
#[derive(Debug)]
pub(crate) enum Change {
    Bell(TenantId),
    Maker(TenantId, i32),
}

impl Host {
    pub(crate) fn new(config: &Config, settings: Settings, scout: Scout, now: Nanos) -> Self {
        Self {
            root: config.root.clone(),
            state: config.state.clone(),
            started: now,
            boards: Vec::new(),
            containers: BTreeMap::new(),
            settings,
            start: config.start.clone(),
            warnings: Vec::new(),
            sampled: None,
            scout,
            next: 1,
            watched: Vec::new(),
            kin: Vec::new(),
            watch: Watch::default(),
            inherited: Vec::new(),
            succession: Succession::prepare(),
            is_succeeded: false,
            changes: Vec::new(),
        }
    }

    /// Tells people what they should know, now and as long as the monitor runs.
    pub(crate) fn warn(&mut self, sentence: Option<String>) {
        if let Some(sentence) = sentence {
            tracing::error!("{sentence}");
            self.warnings.push(sentence);
        }
    }

    // ---- containers come and go ----------------------------------------------------------------------------------

    /// Finds containers that lie under the root, and loses those whose directory is gone.
    pub(crate) fn scan(&mut self, now: Nanos) {
        let found: BTreeSet<PathBuf> = fs::read_dir(paths::containers(&self.root))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        for dir in &found {
            self.adopt(dir, None);
        }
        let lost: Vec<TenantId> = self
            .containers
            .values()
            .filter(|container| !found.contains(&container.dir) && !container.dir.is_dir())
            .map(|container| container.tenant)
            .collect();
        for tenant in lost {
            self.lose(now, tenant);
        }
        self.forget_cards();
    }

    /// The container of this directory, new or known; a new one has this id, if nobody else has.
    fn adopt(&mut self, dir: &Path, id: Option<&str>) -> TenantId {
        if let Some(known) = self.containers.values().find(|container| container.dir == dir) {
            return known.tenant;
        }
        let tenant = TenantId(self.next);
        self.next += 1;
        let mut container = Container::new(tenant, self.fresh_id(dir, id), dir.to_owned());
        if let Some(set) = self.settings.containers.get(&container.id) {
            (container.weight, container.high) = (set.weight, set.high);
        }
        tracing::info!("container {} at {}", container.id, dir.display());
        self.containers.insert(tenant, container);
        tenant
    }

    /// The name of its folder; of the long names of container engines the first twelve digits, as they do.
    fn fresh_id(&self, dir: &Path, wanted: Option<&str>) -> String {
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(|c| !c.is_control() && *c != '/').collect();
        let long = name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
        let short = if long { name[..12].to_owned() } else { name };
        let short = wanted.map_or(short, str::to_owned);
        let known = |id: &str| self.containers.values().any(|container| container.id == id);
        let taken = |id: &str| control::is_taken(id) || known(id);
        let mut id = short.clone();
        let mut number = 2;
        while id.is_empty() || taken(&id) {
            id = format!("{short}~{number}");
            number += 1;
        }
        id
    }

    fn lose(&mut self, now: Nanos, tenant: TenantId) {
        for board in &mut self.boards {
            board.controller.dismiss(now, tenant);
            board.stale = true;
        }
        self.watch.dismiss(tenant);
        if let Some(container) = self.containers.remove(&tenant) {
            for books in &mut self.inherited {
                books.containers.retain(|own| own.0 != container.dir);
            }
            tracing::info!("container {} is gone", container.id);
            if self.settings.containers.remove(&container.id).is_some() {
                self.keep_settings();
            }
        }
    }

    /// Takes a registration.
    pub(crate) fn register(&mut self, registration: Registration) -> Result<TenantId, Refusal> {
        let invalid = |sentence: String| Refusal::new(Errno::EINVAL, sentence);
        let dir = fs::canonicalize(&registration.dir)
            .ok()
            .filter(|dir| dir.is_dir())
            .ok_or_else(|| invalid(format!("{} is no directory.", registration.dir.display())))?;
        if let Some(weight) = registration.weight
            && !(1..=25).contains(&weight)
        {
            return Err(invalid(format!("Expected a weight from 1 to 25, got {weight}.")));
        }
        if let Some(percent) = registration.percent
            && !(1..=100).contains(&percent)
        {
            return Err(invalid(format!("Expected a part of 1 to 100 percent, got {percent}.")));
        }
        for limit in &registration.limits {
            if limit.uuid.parse::<Uuid>().is_err() {
                return Err(invalid(format!(
                    "Expected a card's UUID such as GPU-..., got {:?}.",
                    limit.uuid
                )));
            }
        }
        let maker = match registration.pid {
            Some(pid) => {
                let found = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                Some((pid, found.ok_or_else(|| invalid(format!("There is no process {pid}.")))?))
            }
            None => None,
        };
        // By the name under which a scan finds it, where it does.
        let within = paths::containers(&self.root).join(dir.file_name().unwrap_or_default());
        let dir = if fs::canonicalize(&within).is_ok_and(|other| other == dir) { within } else { dir };
        let tenant = self.adopt(&dir, None);
        let Some(container) = self.containers.get_mut(&tenant) else {
            return Err(Refusal::new(Errno::EIO, "The container was lost."));
        };
        if let Some((pid, pidfd)) = maker {
            container.makers.insert(pid, pidfd);
            self.changes.push(Change::Maker(tenant, pid));
        }
        container.registration = Some(registration);
        Ok(tenant)
    }

    /// What whoever registered a container is answered: what it will not have of the cards that it has, of all cards as long as it has none.
    pub(crate) fn registered(&self, tenant: TenantId) -> Registered {
        let Some(container) = self.containers.get(&tenant) else { return Registered::default() };
        let cards = container.cards();
        let concerned = self.boards.iter().filter(|board| cards.is_empty() || cards.contains(&board.uuid));
        let gated = concerned.filter(|board| board.controller.policy() != Policy::Native);
        let lacks = gated.filter_map(|board| self.places(board).lack(board.index, container));
        Registered { id: container.id.clone(), warnings: lacks.collect() }
    }

    /// Who has which places on a card.
    pub(crate) fn places(&self, board: &Board) -> Places {
        Places::on(board.uuid, board.in_force().max_inst(), &self.containers)
    }

    /// A maker has died.
    pub(crate) fn maker_died(&mut self, pid: i32) {
        for container in self.containers.values_mut() {
            container.makers.remove(&pid);
        }
    }

    // ---- what is looked after now and then -----------------------------------------------------------------------

    /// Looks at everything of every container.
    pub(crate) fn look_after(&mut self, now: Nanos) {
        let tenants: Vec<TenantId> = self.containers.keys().copied().collect();
        for tenant in tenants {
            self.look_after_one(now, tenant);
        }
        self.follow(now);
        self.tell_scout();
    }

    /// Lets every card follow what is set and who is there.
    pub(crate) fn follow(&mut self, now: Nanos) {
        for board in &mut self.boards {
            let on = |container: &&Container| container.cards().contains(&board.uuid);
            let weighted = self.containers.values().filter(on).any(|container| container.weight() > 1);
            board.follow(now, weighted);
            let places = Places::on(board.uuid, board.in_force().max_inst(), &self.containers);
            for container in self.containers.values() {
                let changed = board.controller.set_terms(now, container.tenant, places.of(container));
                board.stale |= changed;
            }
        }
    }

    /// Looks at everything of one container: region, lives, deaths, limits, membership.
    pub(crate) fn look_after_one(&mut self, now: Nanos, tenant: TenantId) {
        let monitor = self.started.0.max(1);
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let before = container.region.as_ref().map(|region| region.live.clone());
        if container.find_region(monitor) {
            self.changes.push(Change::Bell(tenant));
        } else if let Some(region) = &mut container.region {
            region.look();
            if region.find_bell(&container.dir) {
                self.changes.push(Change::Bell(tenant));
            }
        }
        let Some(region) = &container.region else { return };
        match &region.garbled {
            Some(sentence) => container.faults.insert("garbled", sentence.clone()),
            None => container.faults.remove("garbled"),
        };
        if region.bell.is_none() {
            container.faults.insert("no_bell", "It has no bell: it is looked at every 5 ms instead.".into());
        } else {
            container.faults.remove("no_bell");
        }
        container.note_deaths(now);
        container.count();
        let changed = before.as_ref() != container.region.as_ref().map(|region| &region.live);
        self.find_processes(tenant);
        self.bury(now, tenant);
        self.set_limits(tenant);
        self.enlist(now, tenant, changed);
    }

    /// Asks for the host process ids of processes not asked for yet.
    fn find_processes(&mut self, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let Some(region) = &container.region else { return };
        for &(slot, generation) in &region.live {
            let Some(seen) = region.seen.slots.get(slot.get()) else { continue };
            if container.host_pids.contains_key(&(slot, generation)) || seen.pid == 0 {
                continue;
            }
            container.host_pids.insert((slot, generation), None);
            self.scout.ask(Errand::Find(Suspect {
                tenant: tenant.0,
                slot: slot.0,
                generation,
                pid: seen.pid,
                file: region.identity(),
            }));
        }
    }

    /// Says which dead processes' memory is gone: when NVML no longer shows them, and where it cannot tell, after a while.
    fn bury(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let Some(region) = &container.region else { return };
        let mut waiting = false;
        for (&(slot, generation), &since) in &container.draining {
            let host_pid = container.host_pids.get(&(slot, generation)).copied().flatten();
            let told = self.sampled.filter(|at| *at > since).zip(host_pid).and_then(|(_, pid)| {
                let lists: Option<Vec<_>> = self
                    .boards
                    .iter()
                    .filter(|board| board.known)
                    .map(|board| board.sample.processes.as_ref())
                    .collect();
                lists.map(|lists| !lists.iter().any(|list| list.contains_key(&pid)))
            });
            if told.unwrap_or(now - since >= LINGERS) {
                region.set_gone(slot);
            } else {
                waiting = true;
            }
        }
        if waiting {
            self.scout.ask(Errand::Sample);
        }
    }

    /// The limit of containers that come without one; zero: none.
    pub(crate) fn default_memsize(&self) -> Bytes {
        self.settings.default_memsize.map_or(self.start.default_memsize, Bytes)
    }

    /// Keeps what is set, so that it outlives the monitor.
    pub(crate) fn keep_settings(&mut self) {
        for board in &self.boards {
            self.settings.cards.insert(board.uuid.to_string(), board.settings);
        }
        match self.settings.save(&self.state) {
            Ok(()) => self.scout.sync(),
            // They are in force all the same, until this monitor ends.
            Err(error) => tracing::warn!("settings are not kept in {}: {error}", self.state.display()),
        }
    }

    /// Goes by another configuration, from the next step on; what people have set stays.
    pub(crate) fn restart(&mut self, now: Nanos, start: Start) -> Vec<String> {
        let taken: Vec<u32> =
            self.boards.iter().map(|board| board.in_force().max_inst() - self.places(board).free()).collect();
        let boards = self.boards.iter_mut().zip(taken);
        let kept = boards.filter_map(|(board, taken)| board.restart(now, &start, taken)).collect();
        self.start = start;
        self.follow(now);
        kept
    }

    /// Imposes the limits that people or whoever registered it have set.
    pub(crate) fn set_limits(&mut self, tenant: TenantId) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let Some(region) = &container.region else { return };
        let set = self.settings.containers.get(&container.id);
        for uuid in container.cards() {
            let Some(card) = region.card(uuid) else { continue };
            let told = set.and_then(|set| set.memsize.get(&uuid.to_string())).map(|bytes| Bytes(*bytes));
            let registered = container.registered_limit(uuid);
            let own = region.seen.cards.get(card.get()).map_or(Bytes::ZERO, |seen| seen.limit);
            let wanted = told.unwrap_or(if registered == Bytes::ZERO {
                self.default_memsize()
            } else if registered == own {
                Bytes::ZERO
            } else {
                registered
            });
            if region.limit(card) != wanted {
                region.set_limit(card, wanted);
            }
        }
    }

    /// Puts the container on the books of its cards, and off those it no longer has.
    fn enlist(&mut self, now: Nanos, tenant: TenantId, changed: bool) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let (cards, deserted) = (container.cards(), container.is_deserted());
        for uuid in &cards {
            self.find_card(*uuid);
        }
        let Some(container) = self.containers.get(&tenant) else { return };
        for board in &mut self.boards {
            let known = board.controller.share(now, tenant).is_some();
            let has = cards.contains(&board.uuid);
            if has && (known || !deserted) {
                if !known {
                    let places = Places::on(board.uuid, board.in_force().max_inst(), &self.containers);
                    board.controller.admit(now, tenant, places.of(container));
                    let uuid = board.uuid.to_string();
                    let books = self.inherited.iter().find(|books| books.uuid == uuid);
                    let own =
                        books.and_then(|books| books.containers.iter().find(|own| own.0 == container.dir));
                    if let Some((_, legacy)) = own {
                        board.controller.inherit_tenant(tenant, legacy);
                    }
                }
                board.stale |= changed || !known;
            } else if known && !has {
                board.controller.dismiss(now, tenant);
                board.stale = true;
            }
        }
    }

    /// The card of this name. One that NVML does not know is no card, unless there is no NVML.
    fn find_card(&mut self, uuid: Uuid) {
        let told = self.boards.iter().any(|board| board.known);
        if told || self.boards.len() >= MOST_CARDS || self.boards.iter().any(|board| board.uuid == uuid) {
            return;
        }
        let index = (0..).find(|index| self.boards.iter().all(|board| board.index != *index)).unwrap_or(0);
        self.add_card(index, uuid);
    }

    fn add_card(&mut self, index: u32, uuid: Uuid) -> &mut Board {
        let settings = self.set_for(uuid);
        tracing::info!("card {index} is {uuid}");
        let at = self.boards.partition_point(|board| board.index < index);
        self.boards.insert(at, Board::new(index, uuid, settings, &self.start));
        self.inherit_card(at);
        &mut self.boards[at]
    }

    /// What people have set for a card.
    fn set_for(&self, uuid: Uuid) -> CardSettings {
        self.settings.cards.get(&uuid.to_string()).copied().unwrap_or_default()
    }

    /// A card's memory, as NVML tells; without it, as containers say.
    pub(crate) fn total(&self, board: &Board) -> u64 {
        let told = |container: &Container| {
            let region = container.region.as_ref()?;
            Some(region.seen.cards.get(region.card(board.uuid)?.get())?.total.0)
        };
        if board.sample.total > 0 {
            board.sample.total
        } else {
            self.containers.values().find_map(told).unwrap_or(0)
        }
    }

    /// Drops cards that only containers named, and no longer do.
    fn forget_cards(&mut self) {
        let named: BTreeSet<Uuid> = self.containers.values().flat_map(Container::cards).collect();
        self.boards.retain(|board| board.known || named.contains(&board.uuid));
    }

    // ---- what the scout brings -----------------------------------------------------------------------------------

    /// Waits for NVML's first answer, so that whoever asks us finds the cards.
    pub(crate) fn hear_first(&mut self, now: Nanos) {
        if let Some(news) = self.scout.first(FIRST) {
            self.hear(now, [news]);
        } else {
            tracing::warn!("NVML has not answered yet; going on without");
        }
    }

    pub(crate) fn hear_news(&mut self, now: Nanos) {
        let news: Vec<News> = self.scout.news().collect();
        self.hear(now, news);
    }

    fn hear(&mut self, now: Nanos, news: impl IntoIterator<Item = News>) {
        for news in news {
            match news {
                News::Sampled(sample) => self.take_sample(now, sample),
                News::Found(suspect, pid) => {
                    let process = (cgpu_proto::units::SlotIndex(suspect.slot), suspect.generation);
                    if let Some(container) = self.containers.get_mut(&TenantId(suspect.tenant)) {
                        container.found(process, pid);
                    }
                }
                News::Ended(order, outcome) => self.ended(now, order, outcome),
            }
        }
    }

    fn take_sample(&mut self, now: Nanos, sample: Option<Sample>) {
        let Some(sample) = sample else {
            self.sampled = None;
            self.watch.forget(None);
            return;
        };
        if self.sampled.is_none() && !sample.cards.is_empty() {
            // Now it is told which cards there are: those that were made up go, and the numbers are NVML's.
            self.boards
                .retain(|board| board.known || sample.cards.iter().any(|card| card.uuid == board.uuid));
        }
        self.sampled = Some(sample.at);
        let told: BTreeSet<Uuid> = sample.cards.iter().map(|card| card.uuid).collect();
        for mut card in sample.cards {
            let readings = std::mem::take(&mut card.readings);
            for taken in &readings {
                self.take_reading(taken);
            }
            let at = match self.boards.iter().position(|board| board.uuid == card.uuid) {
                Some(at) => at,
                None => {
                    self.add_card(card.index, card.uuid);
                    self.boards.iter().position(|board| board.uuid == card.uuid).unwrap_or(0)
                }
            };
            let board = &mut self.boards[at];
            board.known = true;
            board.index = card.index;
            let unowned = board.unowned(&card);
            board.sample = card;
            if let Some(unowned) = unowned {
                self.take_exchange(&readings, unowned);
            }
        }
        self.boards.sort_by_key(|board| board.index);
        let tenants: Vec<TenantId> = self.containers.keys().copied().collect();
        for tenant in tenants {
            self.enlist(now, tenant, false);
            self.bury(now, tenant);
        }
        self.look_at_residents(now, &told);
    }

    // ---- turns ---------------------------------------------------------------------------------------------------

    /// A container has rung.
    pub(crate) fn rung(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let Some(region) = &mut container.region else { return };
        region.hush();
        if region.is_armed() {
            region.arm(false);
            container.rest = now + REST;
        } else {
            container.mute = now + MUTE;
        }
        // Whoever rings may be new.
        region.look();
        let cards = container.cards();
        for at in 0..self.boards.len() {
            if cards.contains(&self.boards[at].uuid) {
                self.step(now, at, Some(tenant));
            }
        }
    }

    /// A container's bell is listened to again. Who rang while it was not had a reason then, and is looked at now: what it says may have
    /// changed since, and a late ring would pass for one without a reason.
    pub(crate) fn unmuted(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        if let Some(region) = &mut container.region {
            region.hush();
        }
        for board in &mut self.boards {
            board.stale |= board.controller.share(now, tenant).is_some();
        }
    }

    /// When something is due.
    pub(crate) fn next_step(&self) -> Nanos {
        let look = self.boards.iter().map(|board| if board.stale { Nanos::ZERO } else { board.look }).min();
        let rest =
            self.containers.values().map(|container| container.rest).filter(|rest| *rest > Nanos::ZERO).min();
        look.unwrap_or(Nanos::MAX).min(rest.unwrap_or(Nanos::MAX))
    }

    /// Does what is due.
    pub(crate) fn run_due(&mut self, now: Nanos) {
        let rested: Vec<TenantId> = self
            .containers
            .values_mut()
            .filter(|container| container.rest > Nanos::ZERO && container.rest <= now)
            .map(|container| {
                container.rest = Nanos::ZERO;
                container.tenant
            })
            .collect();
        for tenant in rested {
            self.arm(tenant);
            // What came while it was not asked for did not ring.
            for board in &mut self.boards {
                board.stale |= board.controller.share(now, tenant).is_some();
            }
        }
        for at in 0..self.boards.len() {
            if self.boards[at].stale || self.boards[at].look <= now {
                self.step(now, at, None);
            }
        }
    }

    /// One step of one card.
    fn step(&mut self, now: Nanos, at: usize, rang: Option<TenantId>) {
        let board = &mut self.boards[at];
        let stale = std::mem::take(&mut board.stale);
        let mut tenants: BTreeSet<TenantId> = if stale {
            self.containers.keys().copied().filter(|id| board.controller.share(now, *id).is_some()).collect()
        } else {
            board.controller.interest(now, rang.is_some()).collect()
        };
        tenants.extend(rang.filter(|id| board.controller.share(now, *id).is_some()));
        let uuid = board.uuid;
        let sights: Vec<Sight> = tenants
            .into_iter()
            .filter_map(|tenant| {
                let container = self.containers.get_mut(&tenant)?;
                let standing = container.standing(uuid);
                let region = container.region.as_mut();
                let bell = region.as_ref().is_some_and(|region| region.bell.is_some());
                let words = match region {
                    Some(region) if standing.open => match region.card(uuid) {
                        Some(card) => region.words(card),
                        None => Some(Vec::new()),
                    },
                    _ => Some(Vec::new()),
                };
                let garbled = words.is_none();
                Some(Sight {
                    tenant,
                    standing,
                    bell,
                    rang: rang == Some(tenant),
                    garbled,
                    words: words.unwrap_or_default(),
                })
            })
            .collect();
        let board = &mut self.boards[at];
        let plan = board.controller.advance(now, &sights);
        board.look = plan.look;
        for order in &plan.orders {
            let Some(container) = self.containers.get(&order.tenant) else { continue };
            let Some(region) = &container.region else { continue };
            let Some(card) = region.card(uuid) else { continue };
            region.set_gate(card, &order.gate);
            if order.bump {
                region.turn(order.wake);
            }
        }
        for order in plan.orders {
            self.arm(order.tenant);
        }
        self.gather(now);
    }

    /// Lets containers of several cards have their turns there at the same time.
    fn gather(&mut self, now: Nanos) {
        if self.boards.len() < 2 {
            return;
        }
        let cards: Vec<&Card> = self.boards.iter().map(|board| &board.controller).collect();
        let summons = gangs::summons(&cards);
        for (board, summoned) in self.boards.iter_mut().zip(summons) {
            if board.controller.summon(summoned) {
                board.look = now;
            }
        }
    }

    /// Asks for a container's bell if any of its cards wants it, and it has had its rest.
    fn arm(&mut self, tenant: TenantId) {
        let wanted = self.boards.iter().any(|board| board.controller.is_armed(tenant));
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let rests = container.rest > Nanos::ZERO;
        if let Some(region) = &mut container.region {
            region.arm(wanted && !rests);
        }
    }

    /// Beats, and writes what people may see in the pages.
    pub(crate) fn beat(&mut self, now: Nanos) {
        let places: Vec<Places> = self.boards.iter().map(|board| self.places(board)).collect();
        for container in self.containers.values() {
            let Some(region) = &container.region else { continue };
            region.beat();
            for (board, places) in self.boards.iter().zip(&places) {
                if let (Some(card), Some(share)) =
                    (region.card(board.uuid), board.controller.share(now, container.tenant))
                {
                    let policy = board.controller.policy().number();
                    let weight = places.of(container).weight;
                    region.show(card, policy, weight, share.set, share.books.charged);
                }
            }
        }
    }

    /// Leaves every gate open.
    pub(crate) fn open_gates(&self) {
        for region in self.containers.values().filter_map(|container| container.region.as_ref()) {
            region.open_gates();
        }
    }
}
