//! The host's cards, as NVML tells them.

use std::ffi::OsStr;

use anyhow::{Context, Result};
use cgpu_monitor::number::CardNumber;
use cgpu_proto::paths;
use cgpu_proto::units::Bytes;
use cgpu_proto::uuid::Uuid;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use rustix::fs::Mode;

use crate::config::Config;
use crate::plan::HostCard;

/// The vendor's library.
const NVML: &str = "libnvidia-ml.so.1";
/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// Asks for all of them.
///
/// # Errors
/// NVML is not there, or does not answer for a card: a limit on a card that is not known would be none.
pub fn all(config: &Config) -> Result<Vec<HostCard>> {
    let Some(list) = &config.sim else { return of(NVML) };
    let states = config.states();
    std::fs::create_dir_all(&states).with_context(|| format!("cannot make {}", states.display()))?;
    let library = config.simulated(NVML)?;
    // SAFETY: this program has one thread, and nobody holds a reference into the environment.
    unsafe { std::env::set_var("CGPU_SIM_GPUS", list) };
    // SAFETY: as above.
    unsafe { std::env::set_var("CGPU_SIM_STATE", states.join(paths::simulated_name(list))) };
    // Containers' users share the cards' state.
    let usual = rustix::process::umask(Mode::empty());
    let cards = of(library.as_os_str());
    rustix::process::umask(usual);
    cards
}

fn of(library: impl AsRef<OsStr>) -> Result<Vec<HostCard>> {
    let library = library.as_ref();
    let nvml = match Nvml::builder().lib_path(library).init() {
        Ok(nvml) => nvml,
        Err(error) => {
            return Err(error)
                .with_context(|| format!("NVML ({}) tells nothing of this host's cards", library.display()));
        }
    };
    let mut cards = Vec::new();
    for index in 0..nvml.device_count()? {
        let found = card(&nvml, index);
        cards.extend(found.with_context(|| format!("NVML does not answer for card {index}"))?);
    }
    Ok(cards)
}

/// The card, or the instances into which it is cut (MIG). Drivers before R470 name instances after their card: which is which cannot be told then.
fn card(nvml: &Nvml, index: u32) -> Result<Vec<HostCard>, NvmlError> {
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
    let known = |instance: &HostCard| instance.card.uuid != whole.card.uuid;
    if instances.is_empty() || !instances.iter().all(known) {
        return Ok(vec![HostCard { is_cut: true, ..whole }]);
    }
    Ok(instances)
}

fn told(device: &Device<'_>, number: CardNumber) -> Result<HostCard, NvmlError> {
    let uuid: Uuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
    let total = Bytes(device.memory_info()?.total);
    Ok(HostCard::new(uuid, total, number))
}
