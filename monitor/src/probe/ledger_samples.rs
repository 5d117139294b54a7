//! Samples of containers' ledgers, read before and after NVML is asked for what the driver holds for
//! each process.

use std::path::PathBuf;

use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::{Reader, Slot, Snapshot};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::fstat;

use super::Processes;
use crate::memory::unaccounted::{Accounted, Reading};

/// A container whose processes are to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SampledContainer {
    /// The daemon's own number, returned as it is.
    pub(crate) tenant: u64,
    pub(crate) dir: PathBuf,
    /// Device and inode of its `use`.
    pub(crate) file: (u64, u64),
    /// Its GPUs.
    pub(crate) gpus: Vec<Uuid>,
    /// Slot, generation and host process id of those that were found.
    pub(crate) processes: Vec<(SlotIndex, u64, u32)>,
}

/// What was read of one process on a GPU.
#[derive(Clone, Debug)]
pub(crate) struct LedgerSample {
    pub(crate) tenant: u64,
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u64,
    /// The container's number for the GPU.
    pub(crate) gpu: DeviceIndex,
    /// When that was.
    pub(crate) at: Nanos,
    /// What it accounted before NVML was asked, and after.
    pub(crate) accounted: (Accounted, Accounted),
    /// What its container's ledger said; none: that changed, or not all of its processes were read.
    pub(crate) container: Option<ContainerTotals>,
    /// None: NVML does not tell of it.
    pub(crate) reading: Option<Reading>,
}

/// What a container's ledger says of a GPU, beside its processes' cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerTotals {
    /// What dead processes had exported.
    pub(crate) orphans: Bytes,
    /// [`cgpu_shm::snapshot::Gpu::withdrawn`].
    pub(crate) withdrawn: Bytes,
}

/// Who is on a GPU, and what was read around the question.
pub(crate) type ProcessesWithSamples = (Processes, Vec<LedgerSample>);

/// Reads the ledgers of the sampled containers.
#[derive(Debug, Default)]
pub(super) struct LedgerSampler {
    sampled: Vec<(SampledContainer, Reader)>,
}

impl LedgerSampler {
    /// Samples these containers from now on. One whose file has been replaced is left out: the daemon
    /// will notice.
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
    }

    /// Asks for a GPU's processes, and reads the ledgers of the containers that have it before and
    /// after.
    pub(super) fn sample_around(
        &mut self,
        gpu: Uuid,
        ask: &dyn Fn() -> Processes,
    ) -> ProcessesWithSamples {
        let at = Monotonic.now();
        let before = self.read(gpu);
        let processes = ask();
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
            // What cannot be read now may be read at the next time.
            container.gpus.contains(&gpu).then(|| reader.read().ok()).flatten()
        };
        self.sampled.iter_mut().map(read).collect()
    }
}

/// A container before and after.
struct Bracket<'a> {
    at: Nanos,
    gpu: Uuid,
    before: &'a Snapshot,
    after: &'a Snapshot,
}

impl Bracket<'_> {
    /// What is told by it of a process; none: it has gone meanwhile.
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

    /// What the container's ledger said before and after. None: not the same, or some of its
    /// processes are not among those that are read. Of one that has just exited the driver may
    /// still hold memory.
    fn container(&self, ask: &SampledContainer) -> Option<ContainerTotals> {
        let accounted = |seen: &Snapshot| {
            let is_read = |(slot, about): (SlotIndex, &Slot)| {
                let name = (slot, about.word.generation().get());
                let mut read = ask.processes.iter();
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

    /// What a process accounted, and what the other processes of the container have exported.
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
