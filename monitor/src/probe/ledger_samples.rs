//! Samples of containers' ledgers, read before and after NVML lists what the driver holds for each
//! process.

use std::any::Any;
use std::path::PathBuf;

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::{Reader, Slot, Snapshot};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::fstat;

use super::Processes;
use crate::memory::unaccounted::{Accounted, Reading};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampledContainer {
    /// The daemon's own number, returned as it is.
    pub(crate) tenant: u64,
    pub(crate) dir: PathBuf,
    /// Device and inode of its `use`.
    pub(crate) file: (u64, u64),
    pub(crate) gpus: Vec<Uuid>,
    /// Slot, generation and host process id of the processes that were found. The ledger of a
    /// container without one stays open: it is not opened and closed for each process.
    pub(crate) processes: Vec<(SlotIndex, u64, u32)>,
}

#[derive(Clone, Debug)]
pub(crate) struct LedgerSample {
    pub(crate) tenant: u64,
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u64,
    pub(crate) gpu: DeviceIndex,
    /// Time of the first reading.
    pub(crate) at: Nanos,
    /// What it accounted before NVML was called, and after.
    pub(crate) accounted: (Accounted, Accounted),
    /// The container's totals. None: they changed in between, or not all of its processes were
    /// read.
    pub(crate) container: Option<ContainerTotals>,
    /// None: NVML does not list the process.
    pub(crate) reading: Option<Reading>,
}

/// Totals of a container's ledger for a GPU, beside its processes' cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerTotals {
    /// Memory that exited processes had exported.
    pub(crate) orphans: Bytes,
    /// [`cgpu_shm::snapshot::Gpu::withdrawn`].
    pub(crate) withdrawn: Bytes,
}

/// The processes on a GPU, and the ledger samples taken around their listing.
pub(crate) type ProcessesWithSamples = (Processes, Vec<LedgerSample>);

/// Closes files elsewhere, because a container can make that slow.
pub(super) type Close = Box<dyn Fn(Box<dyn Any + Send>) + Send>;

pub(super) struct LedgerSampler {
    sampled: Vec<(SampledContainer, Reader)>,
    close: Close,
}

impl LedgerSampler {
    pub(super) fn new(close: Close) -> Self {
        Self { sampled: Vec::new(), close }
    }

    /// Samples these containers from now on. One whose file has been replaced is left out until the
    /// daemon notices.
    pub(super) fn set_containers(&mut self, containers: Vec<SampledContainer>) {
        let mut known = std::mem::take(&mut self.sampled);
        self.sampled = containers
            .into_iter()
            .filter_map(|container| {
                let at = known.iter().position(|(old, _)| {
                    old.tenant == container.tenant && old.file == container.file
                });
                let reader = match at {
                    Some(at) => known.swap_remove(at).1,
                    None => Reader::open(&container.dir).ok()?,
                };
                let about = fstat(reader.file()).ok()?;
                ((about.st_dev, about.st_ino) == container.file).then_some((container, reader))
            })
            .collect();
        if !known.is_empty() {
            (self.close)(Box::new(known));
        }
    }

    /// Lists a GPU's processes, and reads the ledgers of its containers before and after.
    pub(super) fn sample_around(
        &mut self,
        gpu: Uuid,
        list: &dyn Fn() -> Processes,
    ) -> ProcessesWithSamples {
        let at = Monotonic.now();
        let before = self.read(gpu);
        let processes = list();
        let after = self.read(gpu);
        let mut samples = Vec::new();
        for ((container, _), (before, after)) in self.sampled.iter().zip(before.iter().zip(&after))
        {
            let (Some(before), Some(after)) = (before, after) else { continue };
            let around = Bracket { at, gpu, before, after };
            let totals = around.container(container);
            let read = |process: &_| around.sample(container.tenant, totals, *process, &processes);
            samples.extend(container.processes.iter().filter_map(read));
        }
        (processes, samples)
    }

    fn read(&mut self, gpu: Uuid) -> Vec<Option<Snapshot>> {
        let read = |(container, reader): &mut (SampledContainer, Reader)| {
            // What cannot be read now is tried again in the next sample.
            let is_read = container.gpus.contains(&gpu) && !container.processes.is_empty();
            is_read.then(|| reader.read().ok()).flatten()
        };
        self.sampled.iter_mut().map(read).collect()
    }
}

/// A container's state before and after NVML was called.
struct Bracket<'a> {
    at: Nanos,
    gpu: Uuid,
    before: &'a Snapshot,
    after: &'a Snapshot,
}

impl Bracket<'_> {
    /// Returns the sample of a process. None: it has left its slot meanwhile.
    fn sample(
        &self,
        tenant: u64,
        container: Option<ContainerTotals>,
        process: (SlotIndex, u64, u32),
        processes: &Processes,
    ) -> Option<LedgerSample> {
        let (slot, generation, pid) = process;
        let (gpu, before, _) = self.accounted(self.before, slot, generation)?;
        let (_, after, imported) = self.accounted(self.after, slot, generation)?;
        let measured = processes.as_ref().and_then(|list| list.get(&pid).copied().flatten());
        let reading =
            measured.map(|measured| Reading { at: self.at, before, measured, after, imported });
        let accounted = (before, after);
        Some(LedgerSample {
            tenant,
            slot,
            generation,
            gpu,
            at: self.at,
            accounted,
            container,
            reading,
        })
    }

    /// Returns the container's totals. None: they differ before and after, or not all of its
    /// processes are sampled. For a process that has just exited the driver may still hold memory.
    fn container(&self, sampled: &SampledContainer) -> Option<ContainerTotals> {
        let accounted = |seen: &Snapshot| {
            let is_read = |(slot, about): (SlotIndex, &Slot)| {
                let name = (slot, about.word.generation().get());
                let mut read = sampled.processes.iter();
                match about.word.state() {
                    Some(State::Live) => {
                        read.any(|(slot, generation, _)| (*slot, *generation) == name)
                    }
                    Some(State::Draining) => false,
                    _ => true,
                }
            };
            let gpu = seen.gpus.iter().find(|gpu| gpu.uuid == self.gpu)?;
            let all = SlotIndex::all().zip(&seen.slots).all(is_read);
            all.then_some(ContainerTotals {
                orphans: seen.orphan_charged(gpu),
                withdrawn: gpu.withdrawn,
            })
        };
        accounted(self.before).filter(|before| accounted(self.after) == Some(*before))
    }

    /// Returns what a process accounted, and what the container's other processes have exported.
    fn accounted(
        &self,
        seen: &Snapshot,
        slot: SlotIndex,
        generation: u64,
    ) -> Option<(DeviceIndex, Accounted, Bytes)> {
        if seen.slots.get(slot.get())?.word.generation().get() != generation {
            return None;
        }
        let at = seen.gpus.iter().position(|gpu| gpu.uuid == self.gpu)?;
        let cells = &seen.gpus.get(at)?.cells;
        let others = cells.iter().enumerate().filter(|(other, _)| *other != slot.get());
        let imported = others.map(|(_, cell)| cell.exported).sum();
        Some((DeviceIndex::new(at)?, Accounted::of(cells.get(slot.get())?), imported))
    }
}
