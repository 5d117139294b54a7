//! Compares what NVML measures of each process with what it accounted, and publishes the
//! difference.

use cgpu_scheduler::TenantId;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::unaccounted::UnaccountedDelta;
use cgpu_shm::units::{Bytes, DeviceIndex, Generation, SlotIndex};

use super::Host;
use super::container::Container;
use crate::memory::exported::{ExportSample, ExportedMemory, ExportingProcess};
use crate::memory::unaccounted::Unaccounted;
use crate::probe::{ContainerTotals, LedgerSample, SampledContainer};

impl Host {
    /// Tells the prober which ledgers to sample, when that has changed.
    pub(super) fn update_prober(&mut self) {
        let sampled: Vec<SampledContainer> =
            self.containers.values().filter_map(|container| container.sampled()).collect();
        if sampled != self.sampled_containers && self.prober.sample_ledgers(sampled.clone()) {
            self.sampled_containers = sampled;
        }
        self.update_identities();
    }

    /// Takes what was read of a process, and says in its container's page what follows.
    pub(super) fn take_ledger_sample(&mut self, sample: &LedgerSample) {
        let Some(container) = self.containers.get_mut(&TenantId(sample.tenant)) else { return };
        let Some(region) = &container.region else { return };
        let &LedgerSample { slot, generation, gpu, .. } = sample;
        if !region.live.contains(&(slot, generation)) {
            return;
        }
        let word = Word::new(Generation::from_bits(generation), State::Live);
        let unaccounted =
            container.unaccounted.entry((slot, generation, gpu)).or_insert_with(|| {
                let ended = sample.reading.map_or(0, |reading| reading.after.ended);
                Unaccounted::from_published(region.growth(gpu, slot).bytes(word, ended), ended)
            });
        let correction = match &sample.reading {
            Some(reading) => unaccounted.take(reading),
            None => unaccounted.forget(),
        };
        // Also where it is nothing: a process wants to know that it is measured.
        let growth = match &sample.reading {
            Some(_) => UnaccountedDelta::new(word, unaccounted.ended(), unaccounted.growth()),
            None => UnaccountedDelta::default(),
        };
        let is_confirmed = unaccounted.is_confirmed();
        if !is_confirmed {
            region.set_confirmed(gpu, slot, false);
        }
        if growth != region.growth(gpu, slot) {
            // Implicit memory that was charged too high may have been taken for returned memory.
            let bytes = |growth: UnaccountedDelta| growth.bytes(word, unaccounted.ended());
            let fallen = bytes(region.growth(gpu, slot)).saturating_sub(bytes(growth)).max(0);
            region.set_returned(gpu, region.returned(gpu).saturating_sub(fallen.unsigned_abs()));
            region.set_unaccounted(
                gpu,
                slot,
                growth,
                correction.is_some_and(|correction| correction.risen),
            );
        }
        if is_confirmed {
            region.set_confirmed(gpu, slot, true);
        }
    }

    /// Takes samples of all processes on a GPU, of which `unowned` belongs to no process, and finds
    /// exported memory that no process holds.
    pub(super) fn take_exported(&mut self, samples: &[LedgerSample], unowned: Bytes) {
        for group in samples.chunk_by(|one, other| one.tenant == other.tenant) {
            let Some(container) =
                group.first().and_then(|sample| self.containers.get_mut(&TenantId(sample.tenant)))
            else {
                continue;
            };
            let Some(gpu) = group.first().map(|sample| sample.gpu) else { continue };
            container.take_exported(gpu, group, unowned);
        }
    }
}

impl Container {
    fn take_exported(&mut self, gpu: DeviceIndex, samples: &[LedgerSample], unowned: Bytes) {
        let Some(region) = &self.region else { return };
        let exported = self.exported.entry(gpu).or_default();
        let Some(container) = samples.first().and_then(|sample| sample.container) else {
            *exported = ExportedMemory::default();
            return;
        };
        let member = |sample: &LedgerSample| {
            let (before, after) = sample.accounted;
            // Who has no context on the GPU is not told of, and has nothing there.
            let none = after.used + after.implicit == Bytes::ZERO;
            let measured = sample.reading.map(|reading| reading.measured);
            let measured = measured.or_else(|| none.then_some(Bytes::ZERO))?;
            let growth = self
                .unaccounted
                .get(&(sample.slot, sample.generation, gpu))
                .map_or(0, Unaccounted::growth);
            Some(ExportingProcess {
                name: (sample.slot.0, sample.generation),
                before,
                after,
                measured,
                growth,
            })
        };
        let Some(members) = samples.iter().map(member).collect::<Option<Vec<_>>>() else {
            *exported = ExportedMemory::default();
            return;
        };
        let at = samples.iter().map(|sample| sample.at).max().unwrap_or_default();
        let ContainerTotals { orphans, withdrawn } = container;
        let found =
            exported.observe(&ExportSample { at, members: &members, orphans, unowned, withdrawn });
        if let Some(most) = found.most.map(|most| (withdrawn + most).0)
            && region.returned(gpu) > most
        {
            region.set_returned(gpu, most);
        }
        let Some(gone) = found.released else { return };
        let none = gone.returned == Bytes::ZERO;
        region.set_returned(gpu, if none { 0 } else { (withdrawn + gone.returned).0 });
        if gone.orphans {
            self.reclaim_exported(gpu);
        }
    }

    /// What dead processes had exported of a GPU's memory is gone. One is buried when that is so on all GPUs.
    fn reclaim_exported(&mut self, gpu: DeviceIndex) {
        let Some(region) = &self.region else { return };
        let slots = region.seen.slots.iter().enumerate();
        for (index, slot) in slots.filter(|(_, slot)| slot.word.state() == Some(State::Orphan)) {
            let Some(index) = SlotIndex::new(index) else { break };
            let generation = slot.word.generation().get();
            self.left.insert((index, generation, gpu));
            let mut gpus = DeviceIndex::all().zip(&region.seen.gpus);
            let is_gone = gpus.all(|(gpu, seen)| {
                let none = seen.cells.get(index.get()).is_none_or(|cell| cell.used == Bytes::ZERO);
                none || self.left.contains(&(index, generation, gpu))
            });
            if is_gone {
                region.set_exported_reclaimed(index, generation);
            }
        }
    }
}
