//! NVML: which cards there are, how full they are, and who is on them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;

use cgpu_proto::units::Bytes;
use cgpu_proto::uuid::Uuid;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::readings::Enclosed;
use super::{CardSample, Processes};

/// The library, loaded and initialised.
pub(super) struct Library {
    nvml: Nvml,
    /// The time of the newest sample of processes' utilisation, by card.
    newest: RefCell<BTreeMap<u32, u64>>,
}

impl Library {
    pub(super) fn open(name: &str) -> Result<Self, NvmlError> {
        Nvml::builder()
            .lib_path(OsStr::new(name))
            .init()
            .map(|nvml| Self { nvml, newest: RefCell::default() })
    }

    /// Every card that can be asked. One that answers nothing but its UUID has no memory and tells of no processes.
    ///
    /// `enclose` is given each card and asks it for its processes, doing before and after that what is to be done.
    pub(super) fn sample(
        &self,
        mut enclose: impl FnMut(Uuid, &dyn Fn() -> Processes) -> Enclosed,
    ) -> Vec<CardSample> {
        let count = self.nvml.device_count().unwrap_or(0);
        let card = |index| {
            let device = self.nvml.device_by_index(index).ok()?;
            let uuid = device.uuid().ok()?.parse().ok()?;
            let memory = device.memory_info().ok();
            let (processes, readings) = enclose(uuid, &|| processes(&device));
            Some(CardSample {
                index,
                uuid,
                name: device.name().unwrap_or_default(),
                total: memory.as_ref().map_or(0, |memory| memory.total),
                used: memory.map(|memory| memory.used),
                processes,
                readings,
                residents: Vec::new(),
                utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
                busy: self.busy(index, &device),
            })
        };
        (0..count).filter_map(card).collect()
    }

    /// Who is on a card now.
    pub(super) fn processes(&self, card: Uuid) -> Processes {
        processes(&self.nvml.device_by_uuid(card.to_string()).ok()?)
    }

    /// How much of the time each process had the card busy, by what NVML has sampled since it was last asked.
    fn busy(&self, index: u32, device: &Device<'_>) -> Option<BTreeMap<u32, u32>> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.entry(index).or_default();
        match device.process_utilization_stats(*newest) {
            Ok(mut samples) => {
                samples.sort_by_key(|sample| sample.timestamp);
                *newest = samples.last().map_or(*newest, |last| last.timestamp);
                Some(samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect())
            }
            // Nobody has computed since.
            Err(NvmlError::NotFound) => Some(BTreeMap::new()),
            Err(_) => None,
        }
    }
}

/// Who is on a card, by host process ids, with what the driver holds for each there; none: not told.
fn processes(device: &Device<'_>) -> Processes {
    let compute = device.running_compute_processes().ok()?;
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let mut processes = BTreeMap::new();
    for process in compute.iter().chain(&graphics) {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        // One that computes and draws is on both lists, with the same figure.
        let known = processes.entry(process.pid).or_insert(used);
        *known = (*known).max(used);
    }
    Some(processes)
}
