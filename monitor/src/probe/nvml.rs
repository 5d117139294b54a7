//! NVML: the GPUs of the host, their memory, and the processes on them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cgpu_client::device_id::DeviceId;
use cgpu_client::inventory::HostDevice;
use cgpu_inventory::health::{self, HealthCheck};
use cgpu_inventory::memory_limits::{GroupMemory, Limits, MemoryLimits, Refused};
use cgpu_inventory::{self as inventory, Unknown, board};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::ledger_samples::ProcessesWithSamples;
use super::{BusyProcesses, GpuSample, Processes};
use crate::wall::walls::Driver;

/// Longest time that NVML takes for a sample of its processes' utilisation, and one more sample of
/// ours.
const LONGEST_WINDOW: Duration = Duration::from_millis(2500);
/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;

/// The library, loaded and initialised.
pub(super) struct Library {
    nvml: Arc<Nvml>,
    /// None: the driver is too old.
    limits: Option<MemoryLimits>,
    /// The newest utilisation sample of processes, by GPU: NVML's time of it in microseconds, and
    /// when it was found.
    newest: RefCell<BTreeMap<Uuid, (u64, Option<Instant>)>>,
}

impl Library {
    pub(super) fn open(name: &str) -> Result<Self, Unknown> {
        let nvml = inventory::open(Path::new(name))?;
        let limits = MemoryLimits::load(Path::new(name));
        Ok(Self { nvml: Arc::new(nvml), limits, newest: RefCell::default() })
    }

    /// Returns NVML for the thread that listens for errors, which must release it when this is
    /// dropped.
    pub(super) fn shared(&self) -> Weak<Nvml> {
        Arc::downgrade(&self.nvml)
    }

    /// Samples every device: each GPU, and for a partitioned one (MIG) its instances, since the GPU
    /// itself then neither computes nor holds memory. `sample_around` is called for each with a
    /// function that lists its processes, so that it can read ledgers before and after.
    ///
    /// # Errors
    /// When NVML does not even say how many GPUs there are.
    pub(super) fn sample(
        &self,
        mut sample_around: impl FnMut(Uuid, &dyn Fn() -> Processes) -> ProcessesWithSamples,
    ) -> Result<Vec<GpuSample>, NvmlError> {
        let count = self.nvml.device_count()?;
        let mut sample = |Listed { index, uuid, device }| {
            let before = device.memory_info().ok();
            let (listed, samples) = sample_around(uuid, &|| processes(&device));
            let again = lists(&device);
            let mps_clients = again.iter().flat_map(|[.., mps]| mps).map(|client| client.pid);
            let mps_clients = mps_clients.collect();
            let again = again.map(merged);
            let memory = device.memory_info().ok();
            let used = before.iter().chain(&memory).map(|memory| Bytes(memory.used)).max();
            GpuSample {
                index,
                uuid,
                name: device.name().unwrap_or_default(),
                pci_bus_id: self.pci_bus_id(index).unwrap_or_default(),
                total: memory.as_ref().map_or(0, |memory| memory.total),
                used: memory.as_ref().map(|memory| memory.used),
                free: memory.map(|memory| memory.free),
                unowned: used
                    .zip(least(listed.as_ref(), again.as_ref()))
                    .map(|(used, owned)| used - owned),
                processes: listed,
                mps_clients,
                samples,
                gpu_processes: Vec::new(),
                former: Vec::new(),
                board: board::read(&device),
                is_persistent: device.is_in_persistent_mode().ok(),
                utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
                busy: self.busy(uuid, &device),
            }
        };
        let devices = (0..count).filter_map(|index| self.gpu(index)).flat_map(devices);
        Ok(devices.map(&mut sample).collect())
    }

    /// Returns all devices. None: one does not answer.
    pub(super) fn inventory(&self) -> Option<Vec<HostDevice>> {
        inventory::read_devices(&self.nvml).ok()
    }

    /// Returns the GPUs that are partitioned into instances, with their indexes.
    pub(super) fn partitioned(&self) -> Vec<(u32, Uuid)> {
        let gpu = |index| self.gpu(index).filter(|gpu| is_partitioned(&gpu.device));
        let gpus = (0..self.nvml.device_count().unwrap_or(0)).filter_map(gpu);
        gpus.map(|gpu| (gpu.index.gpu(), gpu.uuid)).collect()
    }

    /// Returns how each GPU answers. None: NVML does not say how many there are.
    pub(super) fn health_checks(&self) -> Option<Vec<HealthCheck>> {
        health::health_checks(&self.nvml).ok()
    }

    /// Lists the processes that are on a device now.
    pub(super) fn processes(&self, gpu: Uuid) -> Processes {
        let name = gpu.to_string();
        // The UUID's bytes do not tell a GPU from an instance.
        let whole = self.nvml.device_by_uuid(name.as_str());
        let device = whole.or_else(|_| self.nvml.device_by_uuid(name.replacen("GPU", "MIG", 1)));
        processes(&device.ok()?)
    }

    fn pci_bus_id(&self, index: DeviceId) -> Option<String> {
        Some(self.nvml.device_by_index(index.gpu()).ok()?.pci_info().ok()?.bus_id)
    }

    fn gpu(&self, index: u32) -> Option<Listed<'_>> {
        let device = self.nvml.device_by_index(index).ok()?;
        Listed::new(DeviceId::of_gpu(index), device)
    }

    /// Returns the part of the time for which each process used the GPU, by NVML's samples since
    /// the last call.
    fn busy(&self, gpu: Uuid, device: &Device<'_>) -> Option<BusyProcesses> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.entry(gpu).or_default();
        match device.process_utilization_stats(newest.0) {
            Ok(mut samples) => {
                let (before, found) = *newest;
                let last = samples.iter().map(|sample| sample.timestamp).max().unwrap_or(before);
                *newest = (last.max(before), Some(Instant::now()));
                // After a time in which no process computed, it is not known what they are of.
                let span = found.map(|_| Nanos::from_micros(last.saturating_sub(before)));
                samples.sort_by_key(|sample| sample.timestamp);
                let percents = samples.iter().map(|sample| (sample.pid, sample.sm_util)).collect();
                Some(BusyProcesses { span, percents })
            }
            // There is no new sample yet: processes that start and exit cause calls in between. Or
            // no process has computed for longer than NVML takes for a sample.
            Err(NvmlError::NotFound) => {
                newest.1 = newest.1.filter(|found| found.elapsed() < LONGEST_WINDOW);
                let span = newest.1.map(|_| Nanos::ZERO);
                Some(BusyProcesses { span, percents: BTreeMap::new() })
            }
            Err(_) => {
                newest.1 = None;
                None
            }
        }
    }
}

/// The driver's memory limits, of the library if it is open.
pub(super) struct WallDriver<'a>(pub(super) Option<&'a Library>);

impl WallDriver<'_> {
    fn call<T>(
        &self,
        gpu: Uuid,
        call: impl FnOnce(&MemoryLimits, &Device<'_>) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let error = |error: NvmlError| Refused::Other(error.to_string());
        let library = self.0.ok_or_else(|| error(NvmlError::Uninitialized))?;
        let limits = library.limits.as_ref().ok_or(Refused::OldDriver)?;
        let device = library.nvml.device_by_uuid(gpu.to_string()).map_err(error)?;
        call(limits, &device)
    }
}

impl Driver for WallDriver<'_> {
    fn get(&self, device: Uuid, group: &Path) -> Result<GroupMemory, Refused> {
        self.call(device, |limits, device| limits.get(device, group))
    }

    fn set(&self, device: Uuid, group: &Path, to: Limits) -> Result<(), Refused> {
        self.call(device, |limits, device| limits.set(device, group, to))
    }

    fn has(&self, device: Uuid) -> bool {
        self.0.is_some_and(|library| library.nvml.device_by_uuid(device.to_string()).is_ok())
    }
}

struct Listed<'a> {
    index: DeviceId,
    uuid: Uuid,
    device: Device<'a>,
}

impl<'a> Listed<'a> {
    fn new(index: DeviceId, device: Device<'a>) -> Option<Self> {
        Some(Self { index, uuid: device.uuid().ok()?.parse().ok()?, device })
    }
}

fn is_partitioned(device: &Device<'_>) -> bool {
    device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED)
}

/// Returns a GPU's instances, or the GPU itself where there are none. Drivers before R470 give
/// instances the UUID of their GPU; then all of them count as that one GPU.
fn devices(gpu: Listed<'_>) -> Vec<Listed<'_>> {
    let count =
        if is_partitioned(&gpu.device) { gpu.device.mig_device_count().unwrap_or(0) } else { 0 };
    // An instance that is destroyed leaves its number empty.
    let instance = |number| {
        let device = gpu.device.mig_device_by_index(number).ok()?;
        let index = DeviceId::of_instance(gpu.index.gpu(), number);
        Listed::new(index, device).filter(|instance| instance.uuid != gpu.uuid)
    };
    let instances: Vec<_> = (0..count).filter_map(instance).collect();
    if instances.is_empty() { vec![gpu] } else { instances }
}

/// Returns the sum of each process's smaller figure in two lists; none: unknown. Memory gained
/// between NVML's answers must not be subtracted from the earlier use.
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

/// Lists the processes on a device by host process id, with what the driver holds for each there.
/// None: NVML does not list them.
fn processes(device: &Device<'_>) -> Processes {
    lists(device).map(merged)
}

/// Returns NVML's lists: processes that compute, those with graphics, and clients of MPS. A client
/// is on the first list, too, with some drivers.
fn lists(device: &Device<'_>) -> Option<[Vec<ProcessInfo>; 3]> {
    let compute = device.running_compute_processes().ok()?;
    let graphics = device.running_graphics_processes().unwrap_or_default();
    // Older drivers do not have this list.
    let mps = device.mps_running_compute_processes().unwrap_or_default();
    Some([compute, graphics, mps])
}

/// Returns the processes of several lists. One that is on two of them has the same figure in both,
/// or none in one.
fn merged(lists: [Vec<ProcessInfo>; 3]) -> BTreeMap<u32, Option<Bytes>> {
    let mut processes = BTreeMap::new();
    for process in lists.into_iter().flatten() {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let known = processes.entry(process.pid).or_insert(used);
        *known = (*known).max(used);
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_on_several_lists_has_its_largest_figure() {
        let list = |of: &[(u32, UsedGpuMemory)]| -> Vec<ProcessInfo> {
            let process = |(pid, used_gpu_memory): &(u32, UsedGpuMemory)| ProcessInfo {
                pid: *pid,
                used_gpu_memory: used_gpu_memory.clone(),
                gpu_instance_id: None,
                compute_instance_id: None,
            };
            of.iter().map(process).collect()
        };
        let (used, unknown) = (UsedGpuMemory::Used, UsedGpuMemory::Unavailable);
        let mps = [(1, used(7)), (2, used(3)), (4, used(5))];
        let lists = [
            list(&[(1, used(5)), (2, unknown.clone()), (3, unknown)]),
            list(&[(1, used(5))]),
            list(&mps),
        ];
        let expected = [(1, Some(7)), (2, Some(3)), (3, None), (4, Some(5))];
        let expected = expected.map(|(pid, used)| (pid, used.map(Bytes)));
        assert_eq!(merged(lists), BTreeMap::from(expected));
    }

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
        assert_eq!(both(&[(1, None)], &same), None, "unknown");
        assert_eq!(least(None, Some(&list(&same))), None);
    }
}
