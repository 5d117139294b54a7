//! Which cards a host has, as whoever starts a container must know it: all of them, or none.
//!
//! NVML is asked by one piece of code, whoever asks. The monitor asks it every second and tells what it has heard, so that a container's start does not have to
//! open the driver, which takes tens of milliseconds and more where nobody has a card open.

use std::path::{Path, PathBuf};

use cgpu_proto::units::Bytes;
use cgpu_proto::uuid::Uuid;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use crate::number::CardNumber;

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// What says that the driver is the simulated one, and where its cards' state lies.
const SIMULATED: [&str; 2] = ["CGPU_SIM_STATE", "CGPU_SIM_GPUS"];

/// A card of the host, or an instance of one (MIG).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which.
    pub uuid: Uuid,
    /// What people call it.
    pub number: CardNumber,
    /// Its memory.
    pub total: Bytes,
    /// It is cut into instances of which the driver does not tell which is which, or into none.
    pub is_cut: bool,
}

/// What a monitor tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// All of the host's, each as it is here.
    pub cards: Vec<Listed>,
    /// How long ago NVML was asked, in milliseconds.
    pub age_ms: u64,
    /// Where the state of the cards lies, if they are simulated; empty: nobody knows where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<PathBuf>,
    /// Whoever starts containers may let the limits of a card add up to more than it has.
    pub allow_overcommit: bool,
}

/// A card in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// [`Found::number`].
    pub index: CardNumber,
    /// `GPU-...`.
    pub uuid: String,
    /// Its memory in bytes.
    pub memory_total: u64,
    /// [`Found::is_cut`].
    #[serde(default)]
    pub is_cut: bool,
}

impl From<&Found> for Listed {
    fn from(found: &Found) -> Self {
        Self {
            index: found.number,
            uuid: found.uuid.to_string(),
            memory_total: found.total.0,
            is_cut: found.is_cut,
        }
    }
}

impl TryFrom<&Listed> for Found {
    type Error = cgpu_proto::uuid::NotAUuid;

    fn try_from(listed: &Listed) -> Result<Self, Self::Error> {
        Ok(Self {
            uuid: listed.uuid.parse()?,
            number: listed.index,
            total: Bytes(listed.memory_total),
            is_cut: listed.is_cut,
        })
    }
}

/// Why the cards are not known.
#[derive(Debug)]
pub enum Unknown {
    /// The library of this name cannot be loaded, or not initialised.
    Library(PathBuf, NvmlError),
    /// It is not told how many there are.
    Count(NvmlError),
    /// That one does not answer: a limit on a card that is not known would be none.
    Card(u32, NvmlError),
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The loader names the file itself.
            Self::Library(_, NvmlError::LibloadingError(error)) => error.fmt(f),
            Self::Library(name, error) => write!(f, "{}: {error}", name.display()),
            Self::Count(error) => write!(f, "NVML does not tell how many cards there are: {error}"),
            Self::Card(index, error) => write!(f, "NVML does not answer for card {index}: {error}"),
        }
    }
}

impl std::error::Error for Unknown {}

/// Loads the library of this name.
///
/// # Errors
/// [`Unknown::Library`].
pub(crate) fn open(library: &Path) -> Result<Nvml, Unknown> {
    let opened = Nvml::builder().lib_path(library.as_os_str()).init();
    opened.map_err(|error| Unknown::Library(library.to_owned(), error))
}

/// What `cgpu-monitor --list-cards` prints: all cards as NVML tells them now, a list in JSON. Programs that cannot load NVML themselves ask so.
///
/// # Errors
/// As [`ask`], and the library cannot be loaded.
pub fn list(library: &Path) -> anyhow::Result<String> {
    let cards = ask(&open(library)?)?;
    Ok(serde_json::to_string(&cards.iter().map(Listed::from).collect::<Vec<_>>())?)
}

/// Asks for all of them.
///
/// # Errors
/// [`Unknown`] of one of them is of all.
pub fn ask(nvml: &Nvml) -> Result<Vec<Found>, Unknown> {
    let mut cards = Vec::new();
    for index in 0..nvml.device_count().map_err(Unknown::Count)? {
        cards.extend(card(nvml, index).map_err(|error| Unknown::Card(index, error))?);
    }
    Ok(cards)
}

/// The card, or the instances into which it is cut (MIG). Drivers before R470 name instances after their card: which is which cannot be told then.
fn card(nvml: &Nvml, index: u32) -> Result<Vec<Found>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let whole = told(&device, CardNumber::of_card(index))?;
    if !device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        return Ok(vec![whole]);
    }
    let mut instances = Vec::new();
    for number in 0..device.mig_device_count()? {
        match device.mig_device_by_index(number) {
            Ok(instance) => instances.push(told(&instance, CardNumber::of_instance(index, number))?),
            // One that was destroyed leaves its number empty.
            Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    let known = |instance: &Found| instance.uuid != whole.uuid;
    if instances.is_empty() || !instances.iter().all(known) {
        return Ok(vec![Found { is_cut: true, ..whole }]);
    }
    Ok(instances)
}

fn told(device: &Device<'_>, number: CardNumber) -> Result<Found, NvmlError> {
    let uuid: Uuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
    Ok(Found { uuid, number, total: Bytes(device.memory_info()?.total), is_cut: false })
}

/// Where the state of this process's cards lies, if its environment says that they are simulated.
pub(crate) fn simulated() -> Option<PathBuf> {
    let [state, list] = SIMULATED.map(std::env::var_os);
    let place = state.as_deref().and_then(|state| Path::new(state).canonicalize().ok());
    (state.is_some() || list.is_some()).then(|| place.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_the_same_when_it_was_told() {
        for (number, is_cut) in [("0", false), ("1", true), ("3.2", false)] {
            let found = Found {
                uuid: Uuid([7; 16]),
                number: number.parse().unwrap(),
                total: Bytes(15109 << 20),
                is_cut,
            };
            let line = serde_json::to_string(&Listed::from(&found)).unwrap();
            let listed: Listed = serde_json::from_str(&line).unwrap();
            assert_eq!(Found::try_from(&listed), Ok(found), "{line}");
        }
    }
}
