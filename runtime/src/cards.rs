//! The host's cards: as its monitor tells them, which costs next to nothing, or as NVML does.
//!
//! NVML opens the driver, which takes tens of milliseconds, and seconds where nobody else has a card open. The monitor's program asks it for us
//! (`cgpu-monitor --list-cards`): ours is linked statically, so that engines wait less for each of its calls, and can load no library.
//!
//! A monitor that runs has it open, and asks it every second. What it tells is taken only where it must be what NVML would tell: a monitor of root's or our own,
//! of the same cards (real ones, as many as the kernel's driver has, or simulated ones of the same state), told within the last moments, and of all cards, none of
//! which is cut (MIG): what a card is cut into may have changed since, and cards are counted the same then. In any other case NVML is asked, and so it is before
//! anything is refused.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cgpu_client::Client;
use cgpu_client::inventory::{Found, Inventory, Listed};
use cgpu_shm::paths;
use rustix::fs::Mode;

use crate::config::{Config, PATH};
use crate::plan::HostCard;

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// Where the kernel's driver has a folder for each card.
const KERNELS: &str = "/proc/driver/nvidia/gpus";
/// What NVML has told longer ago than this counts no more: the monitor asks it every second.
const FRESH: Duration = Duration::from_secs(3);
/// Both are installed together.
const ADVICE: &str = "install cgpu-monitor and cgpu-runtime of one release";
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
    let program = config.monitor().map_err(|error| anyhow!("{error}; {ADVICE}"))?;
    let mut asking = Command::new(program);
    asking.arg("--list-cards");
    let Some(list) = &config.sim else { return listed_by(asking.arg(NVML)) };
    let states = config.states();
    std::fs::create_dir_all(&states).with_context(|| format!("cannot make {}", states.display()))?;
    asking.arg(config.simulated(NVML)?);
    asking.env("CGPU_SIM_GPUS", list).env("CGPU_SIM_STATE", states.join(paths::simulated_name(list)));
    // Containers' users share the cards' state.
    let usual = rustix::process::umask(Mode::empty());
    let cards = listed_by(&mut asking);
    rustix::process::umask(usual);
    cards
}

/// Why NVML tells nothing, by what the monitor's program has said: a line of the simulated driver's, which knows better, or its own. Anything else, as a word of
/// the loader's about a preload, is no reason.
fn reason(said: &str) -> Option<&str> {
    ["cgpu-sim: ", "cgpu-monitor: "]
        .iter()
        .find_map(|name| said.lines().find_map(|line| line.strip_prefix(name)))
}

/// The cards that a program prints.
fn listed_by(asking: &mut Command) -> Result<Vec<HostCard>> {
    let program = asking.get_program().to_string_lossy().into_owned();
    let output = asking.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{program} cannot be run; {ADVICE}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        match reason(&said).filter(|_| output.status.code() == Some(1)) {
            Some(reason) => {
                bail!(
                    "NVML tells nothing of this host's cards: {reason}; install the driver, or set sim in {PATH}"
                )
            }
            None => bail!("{program} lists no cards ({}: {}); {ADVICE}", output.status, said.trim()),
        }
    }
    let listed: Vec<Listed> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what {program} prints is no list of cards; {ADVICE}"))?;
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
    fn what_lists_no_cards_is_none() {
        let outcome = |script: &str| listed_by(Command::new("sh").args(["-c", script]));
        let refusal = |script: &str| format!("{:#}", outcome(script).unwrap_err());
        let list = r#"echo '[{"index":0,"uuid":"GPU-8f0e6a8c-0000-4000-8000-00000000002a","memory_total":15842934784}]'"#;
        assert_eq!(outcome(list).unwrap()[0].card.total.0, 15109 << 20);
        assert_eq!(outcome("echo '[]'").unwrap().len(), 0);
        let absent =
            refusal("echo ERROR: ld.so: no >&2; echo cgpu-monitor: libnvidia-ml.so.1: absent >&2; exit 1");
        assert!(absent.contains("host's cards: libnvidia-ml.so.1: absent; install the driver"), "{absent}");
        let better = refusal("echo cgpu-sim: no such model >&2; echo cgpu-monitor: no driver >&2; exit 1");
        assert!(better.contains("host's cards: no such model; "), "{better}");
        for other in [
            "echo cgpu-monitor: unexpected argument >&2; exit 2",
            "kill -9 $$",
            "exit 1",
            "echo yes",
            "",
            "echo '[{}]'",
        ] {
            let refused = refusal(other);
            assert!(refused.contains("of one release"), "{other}: {refused}");
        }
        let gone = format!("{:#}", listed_by(&mut Command::new("/nowhere/cgpu-monitor")).unwrap_err());
        assert!(
            gone.contains("/nowhere/cgpu-monitor cannot be run") && gone.contains("of one release"),
            "{gone}"
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
