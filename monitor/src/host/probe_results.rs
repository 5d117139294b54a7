//! Takes the results of the prober.

use std::collections::BTreeSet;
use std::time::Duration;

use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::TenantId;
use cgpu_shm::units::Nanos;
use cgpu_shm::uuid::Uuid;

use super::walls::OrderReason;
use super::{Change, Host, Process, mps, verification};
use crate::probe::{GpuProcess, ProbeResult, Sample};

/// Timeout for NVML's first answer; its own start takes a second or two.
const FIRST_SAMPLE_TIMEOUT: Duration = Duration::from_secs(10);

impl Host {
    /// Waits for NVML's first answer, so that the first clients find the GPUs.
    pub(crate) fn wait_for_first_sample(&mut self, now: Nanos) {
        if let Some(results) = self.prober.first(FIRST_SAMPLE_TIMEOUT) {
            self.take_results(now, [results]);
        } else {
            tracing::warn!("NVML has not answered yet; starting without it");
        }
    }

    pub(crate) fn take_probe_results(&mut self, now: Nanos) {
        let results: Vec<ProbeResult> = self.prober.results().collect();
        self.take_results(now, results);
    }

    pub(super) fn take_results(
        &mut self,
        now: Nanos,
        results: impl IntoIterator<Item = ProbeResult>,
    ) {
        for results in results {
            match results {
                ProbeResult::Sampled(sample) => self.take_sample(now, sample),
                ProbeResult::Found(search, found, used) => {
                    let tenant = TenantId(search.tenant);
                    if let Some(container) = self.containers.get_mut(&tenant) {
                        let polled = container.found(now, search, found, used).into_iter();
                        self.changes
                            .extend(polled.map(|slot| Change::Process(Process { tenant, slot })));
                    }
                }
                ProbeResult::Walls(number, outcomes, left) => {
                    self.walls_left = left;
                    self.take_walls(now, number, outcomes);
                }
                ProbeResult::Ended(order, outcome) => self.ended(now, order, outcome),
                ProbeResult::HostMemory(exposures) => {
                    exposures.iter().for_each(|exposure| tracing::warn!("{exposure}"));
                    self.exposures = exposures;
                }
            }
        }
    }

    pub(super) fn take_sample(&mut self, now: Nanos, sample: Option<Sample>) {
        let Some(sample) = sample else {
            self.sampled = None;
            self.inventory = None;
            self.held.clear();
            for at in 0..self.devices.len() {
                self.take_overlap(now, at, None);
            }
            self.lift_blocks();
            self.order_walls(now, OrderReason::Sample);
            return;
        };
        if self.sampled.is_none() && !sample.gpus.is_empty() {
            // NVML lists the GPUs from now on: those with provisional numbers are dropped or
            // renumbered.
            self.drop_gpus(|device| {
                device.known || sample.gpus.iter().any(|gpu| gpu.uuid == device.uuid)
            });
        }
        self.sampled = Some(sample.at);
        self.sample_cost = sample.used;
        self.held = sample.held.iter().copied().map(TenantId).collect();
        self.take_devices(&sample);
        self.inventory = sample.all.map(|gpus| (sample.at, gpus));
        self.health_checks = sample
            .health_checks
            .map(|health_checks| (sample.at, health_checks))
            .or(self.health_checks.take());
        let listed: BTreeSet<Uuid> = sample.gpus.iter().map(|gpu| gpu.uuid).collect();
        let numbers: BTreeSet<DeviceId> = sample.gpus.iter().map(|gpu| gpu.index).collect();
        if !listed.is_empty() {
            // A GPU may be partitioned while the monitor runs. A device that is gone is kept as
            // long as a container names it and no other device has its number.
            for at in 0..self.devices.len() {
                let device = &mut self.devices[at];
                if !listed.contains(&device.uuid) {
                    device.known = false;
                    device.sample.forget();
                    device.take_verification(None, BTreeSet::new());
                    self.take_overlap(now, at, None);
                }
            }
            self.drop_gpus(|device| {
                listed.contains(&device.uuid) || !numbers.contains(&device.index)
            });
        }
        for mut gpu in sample.gpus {
            let samples = std::mem::take(&mut gpu.samples);
            for sample in &samples {
                if let Some(container) = self.containers.get_mut(&TenantId(sample.tenant)) {
                    container.take_ledger_sample(sample);
                }
            }
            let there = self.devices.iter().position(|device| device.uuid == gpu.uuid);
            let at = there.unwrap_or_else(|| self.add_gpu(gpu.index, gpu.uuid));
            self.set_number(now, at, gpu.index);
            let unverified = verification::unverified(&gpu, &samples);
            let unlisted = verification::unlisted(&samples);
            // Before the audit, which does not compare the time of clients that overlap.
            self.take_overlap(now, at, mps::overlap(&gpu));
            let device = &mut self.devices[at];
            device.known = true;
            device.take_verification(unverified, unlisted);
            device.take_contexts(&samples);
            let unowned = device.unowned(&gpu);
            let former = std::mem::replace(&mut device.sample, gpu).gpu_processes;
            let listed = &device.sample.gpu_processes;
            let is_gone = |one: &GpuProcess| listed.iter().all(|other| other.id.pid != one.id.pid);
            device.sample.former = former.into_iter().filter(is_gone).collect();
            device.audit(now);
            if let Some(unowned) = unowned {
                self.take_exported(&samples, unowned);
            }
            let unattributed = unowned.map(|bytes| self.unattributed(&self.devices[at], bytes));
            self.devices[at].unattributed.take(now, unattributed);
        }
        self.devices.sort_by_key(|device| device.index);
        let tenants: Vec<TenantId> = self.containers.keys().copied().collect();
        for tenant in tenants {
            self.update_membership(now, tenant, false);
            self.reclaim(now, tenant);
        }
        self.observe_gpus(now, &listed, &sample.searched);
        self.searched = sample.searched;
        self.order_walls(now, OrderReason::Sample);
    }

    /// Notes why the containers on a GPU can have no turns; none: they can.
    fn take_overlap(&mut self, now: Nanos, at: usize, overlap: Option<String>) {
        let device = &mut self.devices[at];
        let index = device.index;
        let before = std::mem::replace(&mut device.mps, overlap);
        match (&device.mps, before) {
            (Some(why), None) => tracing::warn!("GPU {index} has policy 5 for now: {why}"),
            (None, Some(_)) => tracing::info!("GPU {index} has its own policy again: MPS is gone"),
            _ => return,
        }
        self.apply_settings(now);
    }
}
