//! NVML: which cards there are, how full they are, and who is on them.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::CardSample;

/// The library, loaded and initialised.
pub(super) struct Library(Nvml);

impl Library {
    pub(super) fn open(name: &str) -> Result<Self, NvmlError> {
        Nvml::builder().lib_path(OsStr::new(name)).init().map(Self)
    }

    /// Every card that can be asked. One that answers nothing but its UUID has no memory and tells of no processes.
    pub(super) fn sample(&self) -> Vec<CardSample> {
        let count = self.0.device_count().unwrap_or(0);
        (0..count).filter_map(|index| self.card(index)).collect()
    }

    fn card(&self, index: u32) -> Option<CardSample> {
        let device = self.0.device_by_index(index).ok()?;
        let uuid = device.uuid().ok()?.parse().ok()?;
        let memory = device.memory_info().ok();
        let compute = device.running_compute_processes();
        let graphics = device.running_graphics_processes().unwrap_or_default();
        let processes = compute.ok().map(|compute| {
            let pids: BTreeSet<u32> = compute.iter().chain(&graphics).map(|process| process.pid).collect();
            pids.into_iter().collect()
        });
        Some(CardSample {
            index,
            uuid,
            name: device.name().unwrap_or_default(),
            total: memory.as_ref().map_or(0, |memory| memory.total),
            used: memory.map(|memory| memory.used),
            processes,
        })
    }
}
