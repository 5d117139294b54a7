//! The node's cards and how they are: as NVML tells, or the monitor, whichever is there.
//!
//! Both tell the same ([`cgpu_monitor::health`]): which cards there are, whether they answer, which errors (XID) they report. What follows from an error is for
//! [`Health`] to say, whoever told of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use cgpu_kubernetes::cards::Entry;
use cgpu_monitor::client::Client;
use cgpu_monitor::health::{self as told, Listener, Report};
use cgpu_monitor::inventory::{self, Found};
use cgpu_proto::paths;
use nvml_wrapper::Nvml;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::health::{Health, Moment};

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// How long an event is waited for; as often cards are asked how they are.
const LOOK: Duration = Duration::from_secs(1);
/// Before what failed is tried again; as often a monitor is asked.
const PAUSE: Duration = Duration::from_secs(2);
/// A monitor asks the driver every second. One that was not answered for so long has a driver that hangs, as it does over a card that has fallen off its bus.
const SILENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// The cards, by their place; none: nobody has told yet.
pub(crate) type Cards = Option<Vec<Entry>>;

/// Looks at the cards for ever, on a thread of its own, and ends when nobody listens. The cards that are `sick` were so when somebody last looked.
pub(crate) fn look(root: &Path, mut health: Health, sick: &BTreeSet<String>, tell: watch::Sender<Cards>) {
    let root = root.to_owned();
    let sick = sick.clone();
    std::thread::spawn(move || {
        let start = Instant::now();
        sick.iter().for_each(|card| health.worsen(card, Moment::ZERO));
        let mut said = String::new();
        // Those that a monitor told of last: it tells of none while one of them does not answer.
        let mut known = Vec::new();
        while !tell.is_closed() {
            let why = match Nvml::builder().lib_path(NVML.as_ref()).init() {
                Ok(nvml) => match inventory::ask(&nvml) {
                    Ok(found) => watch_nvml(&nvml, &found, &mut health, start, &tell),
                    Err(unknown) => unknown.to_string(),
                },
                Err(error) => {
                    let why = format!("NVML ({NVML}) tells nothing of this node's cards: {error}");
                    match ask_monitor(&root, &mut known, &mut health, start) {
                        Ok(note) => {
                            let now = start.elapsed();
                            publish(&tell, &known, |uuid| health.is_well(uuid, now));
                            format!("{why}; the monitor tells them{note}")
                        }
                        Err(other) => format!("{why}; {other}"),
                    }
                }
            };
            say(&mut said, why);
            std::thread::sleep(PAUSE);
        }
    });
}

/// Says what has not just been said.
fn say(said: &mut String, what: String) {
    if *said != what {
        warn!("{what}");
        *said = what;
    }
}

/// Asks the monitor which cards there are and how they are; what it does not tell of them.
fn ask_monitor(
    root: &Path,
    known: &mut Vec<Found>,
    health: &mut Health,
    start: Instant,
) -> Result<&'static str, String> {
    let mut monitor =
        Client::connect_within(&paths::socket(root), PAUSE).map_err(|failure| failure.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !monitor.monitors_user().is_some_and(|user| [0, own].contains(&user)) {
        return Err(format!("the monitor at {} is not root's", root.display()));
    }
    match monitor.inventory() {
        Ok(inventory) => {
            let found = inventory.cards.iter().map(Found::try_from).collect::<Result<_, _>>();
            *known = found.map_err(|_| "the monitor tells of a card without a name".to_owned())?;
        }
        Err(failure) if known.is_empty() => return Err(failure.to_string()),
        // One of them does not answer: which, it says now.
        Err(_) => {}
    }
    // An older one, or one that NVML has told nothing.
    let Ok(told) = monitor.health() else { return Ok(", but nobody tells of their errors") };
    let now = start.elapsed();
    hear_monitor(health, known, &told, now);
    Ok(if told.listens { "" } else { ", but nobody tells of their errors" })
}

/// What a monitor has heard of the cards.
fn hear_monitor(health: &mut Health, known: &[Found], told: &told::Health, now: Moment) {
    let is_silent = Duration::from_millis(told.age_ms) >= SILENCE;
    for card in &told.cards {
        for found in known.iter().filter(|found| found.number.card() == card.index) {
            let uuid = name(found);
            if is_silent || !card.answers || card.wants_reset {
                health.worsen(&uuid, now);
            }
            for error in &card.errors {
                health.report(&uuid, error.xid, now.saturating_sub(Duration::from_millis(error.ago_ms)));
            }
        }
    }
}

/// Tells how the cards are, until NVML fails as a whole; why it did.
fn watch_nvml(
    nvml: &Nvml,
    found: &[Found],
    health: &mut Health,
    start: Instant,
    tell: &watch::Sender<Cards>,
) -> String {
    let listener = match Listener::new(nvml) {
        Ok(listener) => Some(listener),
        Err(error) => {
            warn!("NVML does not tell of errors (XID) of the cards: {error}");
            None
        }
    };
    info!(cards = found.len(), "found");
    loop {
        let now = start.elapsed();
        // What does not answer has fallen off its bus; what wants to retire pages wants to be reset before.
        let pulses = told::pulses(nvml).unwrap_or_default();
        for card in found {
            let pulse = pulses.iter().find(|pulse| pulse.index == card.number.card());
            if pulse.is_none_or(|pulse| !pulse.answers || pulse.wants_reset) {
                health.worsen(&name(card), now);
            }
        }
        publish(tell, found, |uuid| health.is_well(uuid, now));
        if tell.is_closed() {
            return String::new();
        }
        match listener.as_ref().map(|listener| listener.wait(LOOK)) {
            Some(Ok(report)) => {
                if let Some(report) = report {
                    hear(health, found, report, start.elapsed());
                }
            }
            Some(Err(error)) => return format!("NVML tells of no more errors of the cards: {error}"),
            None => std::thread::sleep(LOOK),
        }
    }
}

/// An error of a card; of an instance of one (MIG) it is told of the whole. One of nobody knows which card is of all.
fn hear(health: &mut Health, found: &[Found], Report { card: index, xid }: Report, now: Moment) {
    for card in found {
        if index.is_none_or(|index| card.number.card() == index) && health.report(&name(card), xid, now) {
            warn!(card = %card.number, uuid = %card.uuid, xid, "reported an error: it is given to nobody until it was quiet for a while");
        }
    }
}

/// As the driver calls it; its bytes do not tell an instance (MIG) from a card.
fn name(card: &Found) -> String {
    let name = card.uuid.to_string();
    if card.number.is_instance() { name.replacen("GPU", "MIG", 1) } else { name }
}

/// Tells the cards, if they are not as they were.
fn publish(tell: &watch::Sender<Cards>, found: &[Found], is_well: impl Fn(&str) -> bool) {
    let entry = |card: &Found| {
        let uuid = name(card);
        // Of a card that is cut into what has no names nobody can be given a part.
        let healthy = !card.is_cut && is_well(&uuid);
        Entry { mib: card.total.0 / MIB, healthy, uuid }
    };
    let cards: Vec<Entry> = found.iter().map(entry).collect();
    tell.send_if_modified(|known| {
        let changes = known.as_ref() != Some(&cards);
        if changes {
            *known = Some(cards);
        }
        changes
    });
}

#[cfg(test)]
mod tests {
    use cgpu_proto::units::Bytes;
    use cgpu_proto::uuid::Uuid;

    use super::*;

    #[test]
    fn what_a_monitor_heard_makes_cards_sick_as_what_is_heard_here() {
        let card = |number: &str, byte| Found {
            uuid: Uuid([byte; 16]),
            number: number.parse().unwrap(),
            total: Bytes(MIB),
            is_cut: false,
        };
        // Instances are as sick as their card.
        let known = [card("0", 1), card("1.0", 2), card("1.2", 3)];
        let well = told::CardHealth { index: 0, answers: true, wants_reset: false, errors: Vec::new() };
        let told = told::Health {
            cards: vec![well.clone(), told::CardHealth { index: 1, ..well }],
            age_ms: 0,
            listens: true,
        };
        let seconds = Duration::from_secs;
        let wells = |change: &dyn Fn(&mut told::Health), now: u64| {
            let (mut health, mut told) = (Health::new(seconds(300), [94]), told.clone());
            change(&mut told);
            hear_monitor(&mut health, &known, &told, seconds(now));
            known.map(|card| health.is_well(&name(&card), seconds(now)))
        };
        let reports = |card: usize, xid, ago: u64| {
            move |told: &mut told::Health| {
                told.cards[card].errors.push(told::CardError { xid, ago_ms: ago * 1000 });
            }
        };
        assert_eq!(wells(&|_| {}, 1000), [true; 3]);
        assert_eq!(wells(&|told| told.cards[0].answers = false, 1000), [false, true, true]);
        assert_eq!(wells(&|told| told.cards[1].wants_reset = true, 1000), [true, false, false]);
        assert_eq!(wells(&|told| told.age_ms = 60_000, 1000), [false; 3]);
        assert_eq!(wells(&reports(1, 48, 299), 1000), [true, false, false]);
        assert_eq!(wells(&reports(1, 48, 300), 1000), [true; 3]);
        // A program's own, and one that somebody passes over.
        assert_eq!(wells(&reports(0, 31, 1), 1000), [true; 3]);
        assert_eq!(wells(&reports(0, 94, 1), 1000), [true; 3]);
        // Before this plugin was there.
        assert_eq!(wells(&reports(0, 48, 3600), 1), [false, true, true]);
    }
}
