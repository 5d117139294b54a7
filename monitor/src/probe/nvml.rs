//! NVML: which GPUs there are, how full they are, and who is on them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_inventory::health::{self, HealthCheck};
use cgpu_inventory::{self as inventory, Unknown};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::ledger_samples::ProcessesWithSamples;
use super::{GpuSample, Processes};

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The library, loaded and initialised.
pub(super) struct Library {
    nvml: Arc<Nvml>,
    /// The time of the newest sample of processes' utilisation, by GPU.
    newest: RefCell<BTreeMap<Uuid, u64>>,
}

impl Library {
    pub(super) fn open(name: &str) -> Result<Self, Unknown> {
        let nvml = inventory::open(Path::new(name))?;
        Ok(Self { nvml: Arc::new(nvml), newest: RefCell::default() })
    }

    /// For the thread that listens for errors: not to be held longer than this is.
    pub(super) fn shared(&self) -> Weak<Nvml> {
        Arc::downgrade(&self.nvml)
    }

    /// Every GPU that can be asked, and in place of one that is cut (MIG) its instances: those compute and hold memory, the GPU itself
    /// nothing. One that answers nothing but its UUID has no memory and tells of no processes.
    ///
    /// `sample_around` is given each GPU and asks it for its processes, doing before and after that what is to be done.
    ///
    /// # Errors
    /// It does not even say how many GPUs there are.
    pub(super) fn sample(
        &self,
        mut sample_around: impl FnMut(Uuid, &dyn Fn() -> Processes) -> ProcessesWithSamples,
    ) -> Result<Vec<GpuSample>, NvmlError> {
        let count = self.nvml.device_count()?;
        let mut sample = |Place { index, uuid, device }| {
            let before = device.memory_info().ok();
            let (listed, samples) = sample_around(uuid, &|| processes(&device));
            let again = processes(&device);
            let memory = device.memory_info().ok();
            let used = before.iter().chain(&memory).map(|memory| Bytes(memory.used)).max();
            GpuSample {
                index,
                uuid,
                name: device.name().unwrap_or_default(),
                total: memory.as_ref().map_or(0, |memory| memory.total),
                used: memory.as_ref().map(|memory| memory.used),
                free: memory.map(|memory| memory.free),
                unowned: used
                    .zip(least(listed.as_ref(), again.as_ref()))
                    .map(|(used, owned)| used - owned),
                processes: listed,
                samples,
                gpu_processes: Vec::new(),
                utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
                busy: self.busy(uuid, &device),
            }
        };
        let places = (0..count).filter_map(|index| self.place(index)).flat_map(places);
        Ok(places.map(&mut sample).collect())
    }

    /// All GPUs; none: one does not answer.
    pub(super) fn inventory(&self) -> Option<Vec<HostDevice>> {
        inventory::ask(&self.nvml).ok()
    }

    /// GPUs that are partitioned into instances, by their indexes.
    pub(super) fn partitioned(&self) -> Vec<(u32, Uuid)> {
        let place = |index| self.place(index).filter(|place| is_partitioned(&place.device));
        let places = (0..self.nvml.device_count().unwrap_or(0)).filter_map(place);
        places.map(|place| (place.index.gpu(), place.uuid)).collect()
    }

    /// How all GPUs answer; none: it is not told how many there are.
    pub(super) fn health_checks(&self) -> Option<Vec<HealthCheck>> {
        health::health_checks(&self.nvml).ok()
    }

    /// Who is on a GPU now.
    pub(super) fn processes(&self, gpu: Uuid) -> Processes {
        let name = gpu.to_string();
        // What kind of GPU it is is not in its bytes.
        let whole = self.nvml.device_by_uuid(name.as_str());
        let device = whole.or_else(|_| self.nvml.device_by_uuid(name.replacen("GPU", "MIG", 1)));
        processes(&device.ok()?)
    }

    /// The GPU of this index.
    fn place(&self, index: u32) -> Option<Place<'_>> {
        let device = self.nvml.device_by_index(index).ok()?;
        Place::new(DeviceId::of_gpu(index), device)
    }

    /// How much of the time each process had the GPU busy, by what NVML has sampled since it was last asked.
    fn busy(&self, gpu: Uuid, device: &Device<'_>) -> Option<BTreeMap<u32, u32>> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.entry(gpu).or_default();
        match device.process_utilization_stats(*newest) {
            Ok(mut samples) => {
                samples.sort_by_key(|sample| sample.timestamp);
                *newest = samples.last().map_or(*newest, |last| last.timestamp);
                Some(samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect())
            }
            // No process has computed since.
            Err(NvmlError::NotFound) => Some(BTreeMap::new()),
            Err(_) => None,
        }
    }
}

/// Something that computes, and where it is.
struct Place<'a> {
    index: DeviceId,
    uuid: Uuid,
    device: Device<'a>,
}

impl<'a> Place<'a> {
    fn new(index: DeviceId, device: Device<'a>) -> Option<Self> {
        Some(Self { index, uuid: device.uuid().ok()?.parse().ok()?, device })
    }
}

fn is_partitioned(device: &Device<'_>) -> bool {
    device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED)
}

/// A GPU's instances, or the GPU itself where there are none. Drivers before R470 name instances after their GPU, and so do we then: all
/// of them are that one GPU.
fn places(gpu: Place<'_>) -> Vec<Place<'_>> {
    let most =
        if is_partitioned(&gpu.device) { gpu.device.mig_device_count().unwrap_or(0) } else { 0 };
    // An instance that is destroyed leaves its number empty.
    let instance = |number| {
        let device = gpu.device.mig_device_by_index(number).ok()?;
        let index = DeviceId::of_instance(gpu.index.gpu(), number);
        Place::new(index, device).filter(|place| place.uuid != gpu.uuid)
    };
    let instances: Vec<_> = (0..most).filter_map(instance).collect();
    if instances.is_empty() { vec![gpu] } else { instances }
}

/// What processes have by either of two lists; none: not told. Other containers allocate and free
/// between NVML's answers, and what they have gained by the time of a list must not be taken off
/// what was used before.
fn least(
    first: Option<&BTreeMap<u32, Option<Bytes>>>,
    second: Option<&BTreeMap<u32, Option<Bytes>>>,
) -> Option<Bytes> {
    let second = second?;
    let of_both = |(pid, bytes): (&u32, &Option<Bytes>)| {
        let again = second.get(pid).copied().unwrap_or(Some(Bytes::ZERO));
        Some((*bytes)?.min(again?))
    };
    first?.iter().map(of_both).sum()
}

/// Who is on a GPU, by host process ids, with what the driver holds for each there; none: not told.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_gained_between_two_lists_is_not_subtracted_from_earlier_use() {
        let list = |of: &[(u32, Option<u64>)]| -> BTreeMap<u32, Option<Bytes>> {
            of.iter().map(|(pid, mib)| (*pid, mib.map(Bytes::from_mib))).collect()
        };
        let both = |first: &[_], second: &[_]| least(Some(&list(first)), Some(&list(second)));
        let same = [(1, Some(5)), (2, Some(7))];
        assert_eq!(both(&same, &same), Some(Bytes::from_mib(12)));
        assert_eq!(
            both(&[(1, Some(5)), (2, Some(700))], &same),
            Some(Bytes::from_mib(12)),
            "a spike"
        );
        assert_eq!(both(&same, &[(1, Some(4))]), Some(Bytes::from_mib(4)), "one that has ended");
        assert_eq!(both(&[(1, None)], &same), None, "not told");
        assert_eq!(least(None, Some(&list(&same))), None);
    }
}
