//! The host's cards: as its monitor tells them, which costs next to nothing, or as NVML does.
//!
//! NVML opens the driver, which takes tens of milliseconds, and seconds where nobody else has a card open. The monitor's program asks it for us
//! (`cgpu-monitor --list-cards`): ours is linked statically, so that engines wait less for each of its calls, and can load no library.
//!
//! A monitor that runs has it open, and asks it every second. What it tells is taken only where it must be what NVML would tell: a monitor of root's or our own, of the same cards (real ones, as many as the kernel's driver
//! has, or simulated ones of the same state), told within the last moments, and of all cards, none of which is cut (MIG): what a card is cut into may have changed since,
//! and cards are counted the same then. In any other case NVML is asked, and so it is before anything is refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cgpu_monitor::client::Client;
use cgpu_monitor::inventory::{Found, Inventory, Listed};
use cgpu_proto::paths;
use rustix::fs::Mode;

use crate::config::Config;
use crate::plan::HostCard;

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// Where the kernel's driver has a folder for each card.
const KERNELS: &str = "/proc/driver/nvidia/gpus";
/// What NVML has told longer ago than this counts no more: the monitor asks it every second.
const FRESH: Duration = Duration::from_secs(3);
/// A monitor that does not answer within this is not waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// Cards as a monitor tells them.
#[derive(Clone, Debug)]
pub struct Told {
    /// All of the host's.
    pub cards: Vec<HostCard>,
    /// Limits of a card may add up to more than it has.
    pub overcommit: bool,
}

/// Asks the monitor; none: there is none, or what it tells is not what NVML would.
#[must_use]
pub fn by_monitor(config: &Config) -> Option<Told> {
    let mut monitor = Client::connect_within(&paths::socket(&config.root), PATIENCE).ok()?;
    let own = rustix::process::geteuid().as_raw();
    monitor.monitors_user().filter(|user| [0, own].contains(user))?;
    let inventory = monitor.inventory().ok()?;
    let state = config.sim.as_deref().map(|list| config.states().join(paths::simulated_name(list)));
    let cards = checked(&inventory, state.as_deref(), Path::new(KERNELS))?;
    Some(Told { cards, overcommit: inventory.allow_overcommit })
}

/// The cards of an inventory, if it is fresh and of the cards that are meant: those whose state lies there, or the real ones.
fn checked(inventory: &Inventory, state: Option<&Path>, kernels: &Path) -> Option<Vec<HostCard>> {
    if Duration::from_millis(inventory.age_ms) > FRESH {
        return None;
    }
    let cards: Vec<Found> =
        inventory.cards.iter().map(|listed| Found::try_from(listed).ok()).collect::<Option<_>>()?;
    let is_meant = match (state, &inventory.simulated) {
        (Some(state), Some(theirs)) => state.canonicalize().ok().as_ref() == Some(theirs),
        (None, None) => {
            let numbers: BTreeSet<u32> = cards.iter().map(|card| card.number.card()).collect();
            std::fs::read_dir(kernels).is_ok_and(|entries| entries.flatten().count() == numbers.len())
        }
        _ => false,
    };
    // Instances may have been made and removed since: the number of cards stays what it is.
    let is_whole = |card: &Found| !card.number.is_instance() && !card.is_cut;
    let all_count = cards.iter().all(|card| card.total.0 > 0 && is_whole(card));
    (is_meant && all_count && !cards.is_empty()).then(|| cards.into_iter().map(HostCard::from).collect())
}

/// Asks NVML for all of them.
///
/// # Errors
/// NVML is not there, or does not answer for a card: a limit on a card that is not known would be none.
pub fn by_nvml(config: &Config) -> Result<Vec<HostCard>> {
    let mut asking = Command::new(config.monitor()?);
    asking.arg("--list-cards");
    let Some(list) = &config.sim else { return told(asking.arg(NVML)) };
    let states = config.states();
    std::fs::create_dir_all(&states).with_context(|| format!("cannot make {}", states.display()))?;
    asking.arg(config.simulated(NVML)?);
    asking.env("CGPU_SIM_GPUS", list).env("CGPU_SIM_STATE", states.join(paths::simulated_name(list)));
    // Containers' users share the cards' state.
    let usual = rustix::process::umask(Mode::empty());
    let cards = told(&mut asking);
    rustix::process::umask(usual);
    cards
}

/// The cards that a program prints.
fn told(asking: &mut Command) -> Result<Vec<HostCard>> {
    let program = asking.get_program().to_string_lossy().into_owned();
    let output = asking.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        // A line each, after a name: of the simulated driver, where that knows better, and of the monitor.
        let said = String::from_utf8_lossy(&output.stderr);
        match said.lines().next().and_then(|line| line.split_once(": ")) {
            Some((_, reason)) => bail!("{reason}"),
            None => bail!("{program} ended with {}", output.status),
        }
    }
    let listed: Vec<Listed> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what {program} prints is no list of cards"))?;
    listed.iter().map(|card| Ok(Found::try_from(card)?.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(index: &str) -> Listed {
        Listed {
            index: index.parse().unwrap(),
            uuid: "GPU-8f0e6a8c-0000-4000-8000-00000000002a".into(),
            memory_total: 15109 << 20,
            is_cut: false,
        }
    }

    fn told(cards: &[&str]) -> Inventory {
        let cards = cards.iter().map(|index| listed(index)).collect();
        Inventory { cards, age_ms: 900, simulated: None, allow_overcommit: false }
    }

    #[test]
    fn what_a_monitor_tells_counts_only_where_nvml_would_tell_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let kernels = folder.path().join("gpus");
        for name in ["0000:01:00.0", "0000:02:00.0"] {
            std::fs::create_dir_all(kernels.join(name)).unwrap();
        }
        let found = |inventory: &Inventory| checked(inventory, None, &kernels).map(|cards| cards.len());
        assert_eq!(found(&told(&["0", "1"])), Some(2));
        assert_eq!(found(&told(&["0", "1.0", "1.1"])), None, "one is cut, and may be cut otherwise by now");
        let with = |change: fn(&mut Inventory)| {
            let mut inventory = told(&["0", "1"]);
            change(&mut inventory);
            found(&inventory)
        };
        assert_eq!(with(|told| told.cards.truncate(1)), None, "the kernel's driver has more");
        assert_eq!(with(|told| told.cards.clear()), None);
        assert_eq!(with(|told| told.age_ms = 3001), None, "old");
        assert_eq!(with(|told| told.cards[1].memory_total = 0), None);
        assert_eq!(with(|told| told.cards[1].is_cut = true), None, "cut into what nobody can name");
        assert_eq!(with(|told| told.cards[1].uuid = "GPU-1".into()), None);
        assert_eq!(with(|told| told.simulated = Some("".into())), None, "simulated ones");
        assert_eq!(
            checked(&told(&["0", "1"]), None, &folder.path().join("none")).map(|cards| cards.len()),
            None
        );
    }

    #[test]
    fn simulated_cards_are_those_of_the_same_state() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        for name in ["T4:15109", "A10:23028"] {
            std::fs::write(place.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("T4:15109", place.join("link")).unwrap();
        let of = |theirs: Option<&str>, ours: &str| {
            let inventory = Inventory { simulated: theirs.map(|name| place.join(name)), ..told(&["0"]) };
            checked(&inventory, Some(&place.join(ours)), Path::new("/nowhere")).is_some()
        };
        assert!(of(Some("T4:15109"), "T4:15109") && of(Some("T4:15109"), "link"));
        assert!(!of(Some("A10:23028"), "T4:15109") && !of(Some("T4:15109"), "gone") && !of(None, "T4:15109"));
    }
}
