//! The host's cards, as NVML tells them.

use std::ffi::OsStr;

use anyhow::{Context, Result};
use cgpu_proto::units::Bytes;
use cgpu_tenant::CardInfo;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
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
    unsafe { std::env::set_var("CGPU_SIM_STATE", states.join(list)) };
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
    (0..nvml.device_count()?).map(|index| card(&nvml, index)).collect()
}

fn card(nvml: &Nvml, index: u32) -> Result<HostCard> {
    let ask = || -> Result<HostCard, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let uuid = device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?;
        let total = Bytes(device.memory_info()?.total);
        let is_cut = device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED);
        // NVML's index is in PCI order; an instance's number is above 0 in the low bits.
        let order = (u64::from(index) + 1) << 8 | u64::from(is_cut);
        Ok(HostCard { card: CardInfo { uuid, total, order }, is_cut })
    };
    ask().with_context(|| format!("NVML does not answer for card {index}"))
}
