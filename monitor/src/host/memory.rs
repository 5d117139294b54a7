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
    /// Updates which ledgers the prober samples, if that has changed.
    pub(super) fn update_prober(&mut self) {
        let sampled: Vec<SampledContainer> =
            self.containers.values().filter_map(|container| container.sampled()).collect();
        if sampled != self.sampled_containers && self.prober.sample_ledgers(sampled.clone()) {
            self.sampled_containers = sampled;
        }
        self.update_identities();
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
    /// Takes a sample of a process, and publishes the unaccounted delta that follows.
    pub(super) fn take_ledger_sample(&mut self, sample: &LedgerSample) {
        let Some(region) = &self.region else { return };
        let &LedgerSample { slot, generation, gpu, .. } = sample;
        if !region.live.contains(&(slot, generation)) {
            return;
        }
        let word = Word::new(Generation::from_bits(generation), State::Live);
        let unaccounted = self.unaccounted.entry((slot, generation, gpu)).or_insert_with(|| {
            let implicit_epoch = sample.reading.map_or(0, |reading| reading.after.implicit_epoch);
            Unaccounted::from_published(
                region.unaccounted(gpu, slot).bytes(word, implicit_epoch),
                implicit_epoch,
            )
        });
        let correction = match &sample.reading {
            Some(reading) => unaccounted.take(reading),
            None => unaccounted.forget(),
        };
        // Published also if it is zero, so that a process knows that it is measured.
        let delta = match &sample.reading {
            Some(_) => {
                UnaccountedDelta::new(word, unaccounted.implicit_epoch(), unaccounted.delta())
            }
            None => UnaccountedDelta::default(),
        };
        let is_confirmed = unaccounted.is_confirmed();
        if !is_confirmed {
            region.set_confirmed(gpu, slot, false);
        }
        if delta != region.unaccounted(gpu, slot) {
            // Implicit memory that was charged too high may have been taken for returned memory.
            let bytes = |delta: UnaccountedDelta| delta.bytes(word, unaccounted.implicit_epoch());
            let fallen = bytes(region.unaccounted(gpu, slot)).saturating_sub(bytes(delta)).max(0);
            region.set_returned(gpu, region.returned(gpu).saturating_sub(fallen.unsigned_abs()));
            region.set_unaccounted(
                gpu,
                slot,
                delta,
                correction.is_some_and(|correction| correction.risen),
            );
        }
        if is_confirmed {
            region.set_confirmed(gpu, slot, true);
        }
    }

    fn take_exported(&mut self, gpu: DeviceIndex, samples: &[LedgerSample], unowned: Bytes) {
        let Some(region) = &self.region else { return };
        let exported = self.exported.entry(gpu).or_default();
        let Some(container) = samples.first().and_then(|sample| sample.container) else {
            *exported = ExportedMemory::default();
            return;
        };
        let member = |sample: &LedgerSample| {
            let (before, after) = sample.accounted;
            // NVML does not list a process without a context, which has nothing on the GPU.
            let none = after.used + after.implicit == Bytes::ZERO;
            let measured = sample.reading.map(|reading| reading.measured);
            let measured = measured.or_else(|| none.then_some(Bytes::ZERO))?;
            let delta = self
                .unaccounted
                .get(&(sample.slot, sample.generation, gpu))
                .map_or(0, Unaccounted::delta);
            Some(ExportingProcess {
                name: (sample.slot.0, sample.generation),
                before,
                after,
                measured,
                delta,
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
        let Some(released) = found.released else { return };
        let none = released.returned == Bytes::ZERO;
        region.set_returned(gpu, if none { 0 } else { (withdrawn + released.returned).0 });
        if released.orphans {
            self.reclaim_exported(gpu);
        }
    }

    /// Records that all that exited processes had exported has left a GPU. A process is reclaimed
    /// when that is so on all GPUs.
    fn reclaim_exported(&mut self, gpu: DeviceIndex) {
        let Some(region) = &self.region else { return };
        let slots = region.seen.slots.iter().enumerate();
        for (index, slot) in slots.filter(|(_, slot)| slot.word.state() == Some(State::Orphan)) {
            let Some(index) = SlotIndex::new(index) else { break };
            let generation = slot.word.generation().get();
            self.released.insert((index, generation, gpu));
            let mut gpus = DeviceIndex::all().zip(&region.seen.gpus);
            let is_gone = gpus.all(|(gpu, seen)| {
                let none = seen.cells.get(index.get()).is_none_or(|cell| cell.used == Bytes::ZERO);
                none || self.released.contains(&(index, generation, gpu))
            });
            if is_gone {
                region.set_exported_reclaimed(index, generation);
            }
        }
    }
}
