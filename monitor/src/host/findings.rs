//! Feeds the watcher: how containers' processes are recognised, which processes are on the GPUs,
//! and what happens to findings.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_client::message::{self, Cause, FindingCount, Shim, Signal};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use super::Host;
use super::container::Container;
use super::device_state::DeviceState;
use crate::probe::ContainerIdentity;
use crate::watcher::{Event, Finding, GpuObservation, ObservedProcess, Order, Rules, Watcher};

impl Host {
    /// Updates how the prober identifies containers' processes, if that has changed.
    pub(super) fn update_identities(&mut self) {
        let identities: Vec<ContainerIdentity> =
            self.containers.values().map(Container::identity).collect();
        if identities != self.identities && self.prober.identify(identities.clone()) {
            self.identities = identities;
        }
    }

    /// Passes the processes of the sampled GPUs to the watcher, and logs or carries out what it
    /// decides.
    pub(super) fn observe_gpus(
        &mut self,
        now: Nanos,
        sampled: &BTreeSet<Uuid>,
        searched: &BTreeSet<u64>,
    ) {
        let rules = self.start.rules;
        for at in 0..self.devices.len() {
            let observation = sampled
                .contains(&self.devices[at].uuid)
                .then(|| self.observe_gpu(now, at, searched))
                .flatten();
            let Some(observation) = observation else {
                self.watcher.forget(Some(self.devices[at].uuid));
                continue;
            };
            for event in self.watcher.take(&observation, rules) {
                match event {
                    Event::Found(finding) => self.log_finding(&finding, rules),
                    Event::End(order) => self.prober.end(order),
                }
            }
        }
        self.block(&self.watcher.blocked(rules));
    }

    /// Lifts all blocks, because what containers hold is not known from now on.
    pub(crate) fn lift_blocks(&mut self) {
        self.watcher.forget(None);
        self.block(&BTreeSet::new());
    }

    /// Blocks these containers, and no others.
    fn block(&mut self, blocked: &BTreeSet<TenantId>) {
        let changed: Vec<TenantId> = self
            .containers
            .values()
            .filter(|container| container.is_blocked != blocked.contains(&container.tenant))
            .map(|container| container.tenant)
            .collect();
        for tenant in changed {
            let Some(container) = self.containers.get_mut(&tenant) else { continue };
            container.is_blocked = blocked.contains(&tenant);
            let id = &container.id;
            if container.is_blocked {
                tracing::warn!(
                    "container {id} is blocked: it holds more than its limit and the margin"
                );
            } else {
                tracing::warn!("container {id} is no longer blocked");
            }
            self.set_limits(tenant);
        }
    }

    /// None: NVML does not list its processes.
    fn observe_gpu(
        &self,
        now: Nanos,
        at: usize,
        searched: &BTreeSet<u64>,
    ) -> Option<GpuObservation> {
        let device = &self.devices[at];
        let processes = device.sample.processes.as_ref()?;
        // A container's own region cannot hide its processes.
        let may = |container: &&Container| container.may_share(device.uuid) != Some(false);
        let sharing: BTreeMap<TenantId, &Container> = self
            .containers
            .values()
            .filter(may)
            .map(|container| (container.tenant, container))
            .collect();
        let seen = device.sample.gpu_processes.iter().filter_map(|gpu_process| {
            let owner = gpu_process.owner.map(TenantId);
            let container = owner.map(|owner| sharing.get(&owner).copied());
            // A GPU that a container is not to share is not watched for it.
            let spared = container.map_or(Some(false), |container| {
                container
                    .map(|one| one.may_share(device.uuid).is_none() && one.disowns(device.uuid))
            })?;
            Some(ObservedProcess {
                id: gpu_process.id,
                comm: gpu_process.comm.clone(),
                owner,
                shim: gpu_process.shim,
                memory: processes.get(&gpu_process.id.pid).copied().flatten(),
                spared,
            })
        });
        let limits = sharing
            .iter()
            .map(|(tenant, container)| (*tenant, self.watched_limit(container, device.uuid)));
        // A limit that was set later may be lower than what it had.
        let arrived = |(_, container): &(&TenantId, &&Container)| {
            container.is_fresh
                && container.registered_limit(device.uuid) > Bytes::ZERO
                && !self.settings.containers.contains_key(&container.id)
        };
        let fresh = sharing.iter().filter(arrived).map(|(tenant, _)| *tenant).collect();
        let unsure =
            sharing.keys().copied().filter(|tenant| !searched.contains(&tenant.0)).collect();
        Some(GpuObservation {
            unsure,
            fresh,
            at: now,
            gpu: device.uuid,
            seen: seen.collect(),
            charged: self.charged_groups(device.uuid),
            limits: limits.filter(|(_, limit)| *limit > Bytes::ZERO).collect(),
        })
    }

    /// Returns the limit that the watcher applies; zero: none. The container's own files count only
    /// where no limit was set or registered, so that it can change neither GPU nor limit there.
    pub(super) fn watched_limit(&self, container: &Container, gpu: Uuid) -> Bytes {
        let set = self.settings.containers.get(&container.id);
        let set = set.and_then(|set| set.memsize.get(&gpu.to_string())).map(|bytes| Bytes(*bytes));
        let reported = || Some(container.limit(gpu)).filter(|limit| *limit > Bytes::ZERO);
        set.or_else(|| container.requested_limit(gpu))
            .or_else(reported)
            .unwrap_or_else(|| self.default_memsize())
    }

    fn log_finding(&self, finding: &Finding, rules: Rules) {
        let Finding { gpu, id, comm, memory, container_memory, shim, .. } = finding;
        let (pid, bytes) = (id.pid, memory.unwrap_or_default().0);
        let Some(container) = self.findings().container_id(finding.owner) else {
            tracing::info!(
                pid, comm, %gpu, bytes,
                "a process that belongs to no container uses a GPU"
            );
            return;
        };
        match finding.cause {
            Cause::Unshimmed => {
                let ends = rules.end_unshimmed;
                tracing::warn!(
                    pid, comm, container, %gpu, bytes, ?shim, ends,
                    "a container's process uses a GPU without the shim"
                );
            }
            Cause::OverLimit => {
                let limit = finding.owner.and_then(|owner| {
                    Some(self.watched_limit(self.containers.get(&owner)?, *gpu).0)
                });
                let (container_memory, action) = (container_memory.0, rules.over_limit.action);
                tracing::warn!(
                    pid, comm, container, %gpu, bytes, container_memory, limit, ?action,
                    "a container holds more of a GPU than its limit, and this process holds most"
                );
            }
        }
    }

    pub(super) fn ended(&mut self, now: Nanos, order: Order, outcome: Result<(), String>) {
        let container = self.findings().container_id(Some(order.owner)).unwrap_or_default();
        let Order { id, comm, gpu, cause, signal, .. } = &order;
        let (pid, cause) = (id.pid, cause.name());
        let signal = match signal {
            Signal::Term => "SIGTERM",
            Signal::Kill => "SIGKILL",
        };
        match outcome {
            Ok(()) => {
                tracing::warn!(
                    pid, comm, container, %gpu, cause, signal,
                    "the process was ended, as configured"
                );
                self.watcher.done(order, container, now);
            }
            Err(reason) => {
                self.watcher.refused(&order);
                tracing::info!(
                    pid, comm, container, %gpu, cause, reason,
                    "the process was not ended"
                );
            }
        }
    }
}

/// The part of the host that reports what the watcher has found.
pub(crate) struct Findings<'a> {
    watcher: &'a Watcher,
    devices: &'a [DeviceState],
    containers: &'a BTreeMap<TenantId, Container>,
}

impl Host {
    pub(crate) fn findings(&self) -> Findings<'_> {
        Findings { watcher: &self.watcher, devices: &self.devices, containers: &self.containers }
    }
}

impl Findings<'_> {
    fn container_id(&self, owner: Option<TenantId>) -> Option<String> {
        Some(self.containers.get(&owner?)?.id.clone())
    }

    pub(crate) fn current(&self, now: Nanos) -> Vec<message::Finding> {
        let index = |gpu| Some(self.devices.iter().find(|device| device.uuid == gpu)?.index);
        let to_message = |finding: &Finding| {
            Some(message::Finding {
                gpu: index(finding.gpu)?,
                pid: finding.id.pid,
                comm: finding.comm.clone(),
                cause: finding.cause,
                container: self.container_id(finding.owner),
                shim: if finding.owner.is_some() { finding.shim } else { Shim::Unknown },
                memory: finding.memory.map(|bytes| bytes.0),
                container_memory: finding.container_memory.0,
                since_ms: (now - finding.since).0 / 1_000_000,
            })
        };
        let mut all: Vec<message::Finding> =
            self.watcher.findings().filter_map(to_message).collect();
        all.sort_by_key(|finding| (finding.gpu, finding.pid, finding.cause));
        all
    }

    pub(crate) fn counts(&self) -> (Vec<FindingCount>, Vec<FindingCount>) {
        let entry = |(cause, owner, count)| FindingCount {
            cause,
            container: self.container_id(owner),
            count,
        };
        let ends =
            self.watcher.ends().map(|(cause, owner, count)| entry((cause, Some(owner), count)));
        (self.watcher.found().map(entry).collect(), ends.collect())
    }

    pub(crate) fn ended(&self, now: Nanos) -> Vec<message::Ended> {
        let to_message = |ended: &crate::watcher::Ended| message::Ended {
            pid: ended.order.id.pid,
            comm: ended.order.comm.clone(),
            cause: ended.order.cause,
            gpu: ended.order.gpu.to_string(),
            container: ended.container.clone(),
            signal: ended.order.signal,
            ago_ms: (now - ended.at).0 / 1_000_000,
        };
        self.watcher.ended().map(to_message).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use cgpu_shm::gpus::Gpu;
    use cgpu_shm::region::{Region, RegionSpec};
    use cgpu_shm::slots::SlotOwner;
    use cgpu_shm::units::DeviceIndex;

    use super::*;
    use crate::config::{Config, Sources};
    use crate::host::FileWorkers;
    use crate::probe::{Paths, Prober};
    use crate::settings::Settings;

    pub(in crate::host) const A: TenantId = TenantId(1);

    /// Returns a host without NVML that has one container with one GPU.
    pub(in crate::host) fn host(directory: &Path) -> Host {
        let path = directory.join("monitor.toml");
        let text = format!("root = '{}'\ntree = 'none'\n", directory.display());
        std::fs::write(&path, text).unwrap();
        let config = Config::load(Sources { path: Some(path), ..Sources::default() }).unwrap();
        let (state, host) = (directory.to_owned(), directory.join("host"));
        let walls = directory.join("walls");
        let prober =
            Prober::start(Paths { nvml: "no such library".into(), state, host, walls }, drop)
                .unwrap();
        let files = FileWorkers::start().unwrap();
        let mut host = Host::new(&config, Settings::default(), prober, files, Nanos(1));
        let spec = RegionSpec { name: "", created: Nanos(1), time_scale: None };
        Region::make(directory, spec).unwrap();
        let shared = Region::open(directory).unwrap();
        let owner = SlotOwner { pid: std::process::id(), comm: b"p" };
        let claim = shared.claim(owner, Nanos(1), true).unwrap().unwrap();
        let gpu = Gpu { uuid: Uuid([7; 16]), total: Bytes(9000), limit: Bytes(1000), ordinal: 0 };
        shared.register(claim.slot, &gpu).unwrap();
        let mut container = Container::new(A, "a".into(), directory.to_owned());
        container.access(Nanos(1));
        host.containers.insert(A, container);
        host
    }

    #[test]
    fn block_does_not_outlive_its_reason() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        let limit = |host: &Host| {
            let region = host.containers[&A].region.as_ref().unwrap();
            region.limit(DeviceIndex::new(0).unwrap())
        };
        let before = limit(&host);
        host.block(&BTreeSet::from([A]));
        assert_eq!(limit(&host), Bytes(1));
        host.take_sample(Nanos(2), None);
        assert_eq!(limit(&host), before, "NVML does not answer");
        host.block(&BTreeSet::from([A]));
        host.lift_blocks();
        assert_eq!(limit(&host), before, "the monitor stops");
    }
}
