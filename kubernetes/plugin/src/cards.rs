//! The node's cards and how they are: as NVML tells, or the monitor, whichever is there.
//!
//! NVML also tells of errors (XID), by events that a thread waits for. A monitor does not; with it alone, a card is well as long as the monitor knows it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use cgpu_kubernetes::cards::Entry;
use cgpu_monitor::client::Client;
use cgpu_monitor::inventory::{self, Found};
use cgpu_proto::paths;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::{Device, Nvml};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::health::{Health, Moment};

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// How long an event is waited for; as often cards are asked how they are.
const LOOK: Duration = Duration::from_secs(1);
/// Before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(2);
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
        while !tell.is_closed() {
            let why = match Nvml::builder().lib_path(NVML.as_ref()).init() {
                Ok(nvml) => match inventory::ask(&nvml) {
                    Ok(found) => watch_nvml(&nvml, &found, &mut health, start, &tell),
                    Err(unknown) => unknown.to_string(),
                },
                Err(error) => {
                    let why = format!("NVML ({NVML}) tells nothing of this node's cards: {error}");
                    match by_monitor(&root) {
                        Ok(found) => {
                            say(
                                &mut said,
                                format!("{why}; the monitor tells them, but nobody tells of their errors"),
                            );
                            publish(&tell, &found, |_| true);
                            std::thread::sleep(PAUSE);
                            continue;
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

fn by_monitor(root: &Path) -> Result<Vec<Found>, String> {
    let mut monitor =
        Client::connect_within(&paths::socket(root), PAUSE).map_err(|failure| failure.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !monitor.monitors_user().is_some_and(|user| [0, own].contains(&user)) {
        return Err(format!("the monitor at {} is not root's", root.display()));
    }
    let inventory = monitor.inventory().map_err(|failure| failure.to_string())?;
    let found = inventory.cards.iter().map(Found::try_from).collect::<Result<Vec<_>, _>>();
    found.map_err(|_| "the monitor tells of a card without a name".to_owned())
}

/// Tells how the cards are, until NVML fails as a whole; why it did.
fn watch_nvml(
    nvml: &Nvml,
    found: &[Found],
    health: &mut Health,
    start: Instant,
    tell: &watch::Sender<Cards>,
) -> String {
    let events = match events(nvml, found) {
        Ok(events) => Some(events),
        Err(error) => {
            warn!("NVML does not tell of errors (XID) of the cards: {error}");
            None
        }
    };
    info!(cards = found.len(), "found");
    loop {
        let now = start.elapsed();
        for card in found {
            let uuid = card.uuid.to_string();
            // What does not answer has fallen off its bus; what wants to retire pages wants to be reset before.
            let device = nvml.device_by_uuid(uuid.as_str());
            let answers = device.as_ref().is_ok_and(|device| device.memory_info().is_ok());
            let is_bad =
                !answers || device.is_ok_and(|device| device.are_pages_pending_retired().unwrap_or(false));
            if is_bad {
                health.worsen(&uuid, now);
            }
        }
        publish(tell, found, |uuid| health.is_well(uuid, now));
        if tell.is_closed() {
            return String::new();
        }
        match events.as_ref().map(|events| events.wait(u32::try_from(LOOK.as_millis()).unwrap_or(1000))) {
            Some(Ok(event)) => {
                let Some(xid) = event.event_data else { continue };
                let xid = if let XidError::Value(xid) = xid { xid } else { 0 };
                hear(health, found, &event.device, xid, start.elapsed());
            }
            Some(Err(NvmlError::Timeout)) => {}
            Some(Err(error)) => return format!("NVML tells of no more errors of the cards: {error}"),
            None => std::thread::sleep(LOOK),
        }
    }
}

/// An error of a card; of an instance of one (MIG) it is told of the whole. One of nobody knows which card is of all.
fn hear(health: &mut Health, found: &[Found], device: &Device<'_>, xid: u64, now: Moment) {
    let index = device.index().ok();
    for card in found {
        if index.is_none_or(|index| card.number.card() == index)
            && health.report(&card.uuid.to_string(), xid, now)
        {
            warn!(card = %card.number, uuid = %card.uuid, xid, "reported an error: it is given to nobody until it was quiet for a while");
        }
    }
}

fn events<'nvml>(nvml: &'nvml Nvml, found: &[Found]) -> Result<EventSet<'nvml>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    let indexes: BTreeSet<u32> = found.iter().map(|card| card.number.card()).collect();
    for index in indexes {
        let device = nvml.device_by_index(index)?;
        if device.supported_event_types()?.contains(EventTypes::CRITICAL_XID_ERROR) {
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)?;
        }
    }
    Ok(set)
}

/// Tells the cards, if they are not as they were.
fn publish(tell: &watch::Sender<Cards>, found: &[Found], is_well: impl Fn(&str) -> bool) {
    let entry = |card: &Found| {
        let uuid = card.uuid.to_string();
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
