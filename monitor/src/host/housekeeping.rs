//! Periodic work: what has changed in each container, and what follows from it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};

use super::capacity::Capacity;
use super::container::Container;
use super::doorbell_pipe::{DoorbellPipe, Report};
use super::file_workers::{FileResult, FileTask};
use super::region::Region;
use super::walls::OrderReason;
use super::{Change, Host};

/// Time after which an exited process's memory counts as released where NVML cannot tell.
const RECLAIM_TIMEOUT: Nanos = Nanos::from_millis(500);
/// Limit in the page of a blocked container, on all GPUs that it can have: no allocation fits. 0
/// would be none.
const BLOCKED_LIMIT: Bytes = Bytes(1);

impl Host {
    pub(crate) fn refresh_containers(&mut self, now: Nanos) {
        let tenants: Vec<TenantId> = self.containers.keys().copied().collect();
        for tenant in tenants {
            self.refresh_container(now, tenant);
            self.access_files(now, tenant, true);
        }
        self.apply_settings(now);
        self.update_prober();
        self.order_walls(now, OrderReason::Change);
    }

    /// Requests the next access to a container's files, if it is due.
    pub(super) fn access_files(&mut self, now: Nanos, tenant: TenantId, is_heartbeat: bool) {
        let monitor = self.started.0.max(1);
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        container.access_doorbell(&self.files);
        let Some(request) = container.begin_access(now, monitor, is_heartbeat) else { return };
        match request.task {
            FileTask::Close(_) => self.closed.push(request),
            _ => self.files.send(request),
        }
    }

    /// Takes the results of accesses to containers' files and doorbells.
    pub(crate) fn take_file_results(&mut self, now: Nanos) {
        for result in self.files.results() {
            self.take_file_result(now, result);
        }
        let mut missed = Vec::new();
        for container in self.containers.values_mut() {
            let Some(region) = &mut container.region else { continue };
            match region.doorbell.as_mut().and_then(DoorbellPipe::take_report) {
                Some(Report::Opened(_)) => self.changes.push(Change::Doorbell(container.tenant)),
                Some(Report::Drained(drained)) => {
                    if drained.is_flooded {
                        container.doorbell.flooded(now);
                    }
                    // An event is lost if its byte is drained before the event loop polls.
                    if region.notify_requested() {
                        missed.push(container.tenant);
                    }
                }
                None => {}
            }
        }
        for tenant in missed {
            self.turns().notified(tenant);
        }
    }

    /// Waits for the pending accesses to the files of these containers, but not for slow ones.
    pub(crate) fn wait_for_files(
        &mut self,
        now: Nanos,
        timeout: Duration,
        of: impl Fn(&Container) -> bool,
    ) {
        let start = Instant::now();
        while self.containers.values().any(|container| of(container) && container.is_accessed())
            && let Some(result) = self.files.wait(timeout.saturating_sub(start.elapsed()))
        {
            self.take_file_result(now, result);
        }
    }

    fn take_file_result(&mut self, now: Nanos, result: FileResult) {
        let tenant = result.tenant;
        let slow = self.containers.values().filter(|container| container.has_slow_files());
        let sharers = slow.filter(|container| container.tenant != tenant).count() as u64 + 1;
        let Some(container) = self.containers.get_mut(&tenant) else {
            self.files.close(result);
            return;
        };
        let found = container.end_access(now, result, sharers);
        if found.restarted {
            tracing::info!("container {} was started again", container.id);
            container.take_settings(None);
            let id = container.id.clone();
            self.forget_settings(&id);
        }
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        if found.region {
            container.access_doorbell(&self.files);
            if let Some(region) = &mut container.region {
                region.publish_devices(&self.device_list);
            }
            // Its first process will measure its context by the published free memory. The newer
            // that is, the less of a change is due to other containers.
            self.sample_for(now, tenant);
        }
        if found.region || found.processes {
            self.refresh_container(now, tenant);
            self.apply_settings(now);
        }
        if found.region || found.replaced {
            self.access_files(now, tenant, false);
        }
    }

    /// Requests a sample for a container, in a bounded part of the prober's time.
    fn sample_for(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        if container.sampling.due() <= now {
            container.sampling.charge(now, self.sample_cost);
            self.prober.sample();
        }
    }

    /// Refreshes one container: processes, exits, limits, membership.
    pub(crate) fn refresh_container(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let Some(region) = &mut container.region else { return };
        region.refresh();
        match &region.unreadable {
            Some(message) => container.faults.insert("unreadable", message.clone()),
            None => container.faults.remove("unreadable"),
        };
        if region.doorbell.as_ref().is_some_and(DoorbellPipe::is_missing) {
            container
                .faults
                .insert("no_doorbell", "It has no doorbell, so it is polled every 5 ms.".into());
        } else {
            container.faults.remove("no_doorbell");
        }
        container.note_exits(now);
        container.count(now);
        let changed = container.region.as_mut().is_some_and(Region::has_moved);
        self.find_processes(now, tenant);
        self.reclaim(now, tenant);
        self.set_limits(tenant);
        self.update_membership(now, tenant, changed);
    }

    /// Starts a search for a container's processes that have not been searched for.
    pub(super) fn find_processes(&mut self, now: Nanos, tenant: TenantId) {
        let container = self.containers.get_mut(&tenant);
        if let Some(search) = container.and_then(|container| container.begin_search(now)) {
            self.prober.find(search);
        }
    }

    /// Publishes which exited processes' memory has been released: when NVML no longer lists them,
    /// or after a timeout where it cannot tell.
    pub(super) fn reclaim(&mut self, now: Nanos, tenant: TenantId) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let Some(region) = &container.region else { return };
        let mut waiting = false;
        for (&(slot, generation), &since) in &container.draining {
            let id = container.host_ids.get(&(slot, generation)).copied().flatten();
            let is_gone = self.sampled.filter(|at| *at > since).zip(id).and_then(|(_, id)| {
                let known = self.devices.iter().filter(|device| device.known);
                let has = known.map(|device| device.sample.has(id));
                has.collect::<Option<Vec<_>>>().map(|has| !has.contains(&true))
            });
            if is_gone.unwrap_or(now - since >= RECLAIM_TIMEOUT) {
                region.set_reclaimed(slot, generation);
            } else {
                // No sample tells of a process that was not found.
                waiting |= id.is_some();
            }
        }
        if waiting {
            self.sample_for(now, tenant);
        }
    }

    /// Applies the limits of the control tree or the registration, and a block.
    pub(crate) fn set_limits(&mut self, tenant: TenantId) {
        let default = self.default_memsize();
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let Some(region) = &container.region else { return };
        let set = self.settings.containers.get(&container.id);
        let mut limits = BTreeMap::new();
        for uuid in container.gpus() {
            let Some(gpu) = container.index(uuid) else { continue };
            let limit =
                set.and_then(|set| set.memsize.get(&uuid.to_string())).map(|bytes| Bytes(*bytes));
            let registered = container.registered_limit(uuid);
            let own = region.seen.gpus.get(gpu.get()).map_or(Bytes::ZERO, |seen| seen.limit);
            let wanted = limit.unwrap_or(if registered == Bytes::ZERO {
                default
            } else if registered == own {
                Bytes::ZERO
            } else {
                registered
            });
            limits.insert(uuid, (gpu, wanted));
        }
        // A GPU may be in an entry that the monitor has not seen, so none has more than the least.
        let set = limits.values().map(|(_, wanted)| *wanted).filter(|limit| *limit > Bytes::ZERO);
        let least = set.min();
        let page = |gpu| {
            let known = limits.values().find(|(known, _)| *known == gpu);
            known.map(|(_, wanted)| *wanted).or(least).unwrap_or(Bytes::ZERO)
        };
        for gpu in DeviceIndex::all() {
            let now = region.limit(gpu);
            let wanted = if container.is_blocked { BLOCKED_LIMIT } else { page(gpu) };
            if wanted != now {
                region.set_limit(gpu, wanted);
            }
        }
        container.page_limits =
            limits.into_iter().map(|(uuid, (_, wanted))| (uuid, wanted)).collect();
    }

    /// Admits the container to its GPUs, and dismisses it from those it no longer has.
    pub(super) fn update_membership(&mut self, now: Nanos, tenant: TenantId, changed: bool) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let gpus = container.gpus();
        for uuid in &gpus {
            self.find_gpu(*uuid);
        }
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        if let Some(region) = &mut container.region {
            for device in self.devices.iter().filter(|device| gpus.contains(&device.uuid)) {
                let is_new = region.keep_gpu(device.uuid);
                let gate = device.scheduler.last_gate(tenant).filter(|_| is_new);
                // The page of a container that was started again has none yet.
                if let (Some(gate), Some(gpu)) = (gate, region.gpu(device.uuid)) {
                    region.set_gate(gpu, &gate);
                    region.turn(true);
                }
            }
        }
        let Some(container) = self.containers.get(&tenant) else { return };
        for device in &mut self.devices {
            let known = device.scheduler.share(now, tenant).is_some();
            let has = gpus.contains(&device.uuid);
            // Also without a process: the container may hide it, and its gate stays closed until
            // the scheduler opens it.
            if has {
                if !known {
                    let capacity = Capacity::on(device, &self.containers);
                    device.scheduler.admit(now, tenant, capacity.of(container));
                    let uuid = device.uuid.to_string();
                    let mut gpus = self.transferred.iter_mut();
                    let gpu = gpus.find(|gpu| gpu.uuid == uuid);
                    // Once: it may leave and come back.
                    let own = gpu.and_then(|gpu| gpu.take(&container.dir));
                    if let Some(state) = own {
                        device.scheduler.restore_tenant(tenant, &state);
                    }
                }
                device.stale |= changed || !known;
            } else if known && !has {
                device.scheduler.dismiss(now, tenant);
                device.stale = true;
            }
        }
    }

    pub(crate) fn apply_settings(&mut self, now: Nanos) {
        for device in &mut self.devices {
            let on = |container: &&Container| container.gpus().contains(&device.uuid);
            let weighted =
                self.containers.values().filter(on).any(|container| container.weight() > 1);
            device.apply_settings(now, weighted);
            let capacity = Capacity::on(device, &self.containers);
            for container in self.containers.values() {
                let changed =
                    device.scheduler.set_entitlement(now, container.tenant, capacity.of(container));
                device.stale |= changed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::{self, Write};
    use std::os::fd::BorrowedFd;
    use std::path::Path;

    use cgpu_scheduler::upgrade::TenantState;
    use cgpu_shm::gpus::Gpu;
    use cgpu_shm::liveness::Liveness;
    use cgpu_shm::region::{Bell, Region as Shared, RegionSpec};
    use cgpu_shm::slots::SlotOwner;
    use cgpu_shm::units::SlotIndex;
    use cgpu_shm::uuid::Uuid;
    use parking_lot::Mutex;

    use super::super::FileWorkers;
    use super::super::doorbell_pipe::read_pipe;
    use super::super::file_workers::FileOutcome;
    use super::super::findings::tests::{A, host};
    use super::*;
    use crate::upgrade::TransferredGpu;
    use crate::watcher::ProcessId;

    /// Locked by a test for as long as a query takes.
    static QUERY: Mutex<()> = Mutex::new(());

    fn slow_query(_: BorrowedFd<'_>, _: SlotIndex) -> io::Result<Liveness> {
        drop(QUERY.lock());
        Ok(Liveness::Exited)
    }

    #[test]
    fn turns_go_on_while_a_query_of_a_lock_takes_long() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        host.files = FileWorkers::start_with(slow_query, read_pipe).unwrap();
        let live = |host: &Host| host.containers[&A].region.as_ref().unwrap().live.len();
        let slow = QUERY.lock();
        for second in 1..10 {
            let now = Nanos::from_millis(second * 1000);
            host.refresh_containers(now);
            assert!(host.containers[&A].is_accessed());
            host.turns().notified(A);
            host.turns().run_due(now);
            host.take_file_results(now);
            assert_eq!(live(&host), 1, "alive until its lock shows otherwise");
        }
        drop(slow);
        let now = Nanos::from_millis(10_000);
        host.wait_for_files(now, Duration::from_secs(60), |_| true);
        assert_eq!(live(&host), 0);
    }

    /// Locked by a test for as long as a read of a doorbell takes.
    static READ: Mutex<()> = Mutex::new(());

    fn slow_read(pipe: &File, bytes: &mut [u8]) -> io::Result<usize> {
        drop(READ.lock());
        read_pipe(pipe, bytes)
    }

    #[test]
    fn turns_go_on_while_a_read_of_a_doorbell_takes_long() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        host.files = FileWorkers::start_with(cgpu_shm::liveness::liveness, slow_read).unwrap();
        let slow = READ.lock();
        let mut beats = (1..).map(|beat| Nanos::from_millis(beat * 100));
        let mut beat = |host: &mut Host| {
            let now = beats.next().unwrap();
            host.refresh_containers(now);
            host.take_file_results(now);
            std::thread::sleep(Duration::from_millis(1));
        };
        while host.containers[&A].doorbell_file().is_none() {
            beat(&mut host);
        }
        let mut doorbell = OpenOptions::new().write(true).open(directory.path().join("doorbell"));
        doorbell.as_mut().unwrap().write_all(&[Bell::Tampered as u8]).unwrap();
        let is_tampered = |host: &Host| host.containers[&A].region.as_ref().unwrap().is_tampered();
        for _ in 0..10 {
            host.turns().notified(A);
            beat(&mut host);
            assert!(!is_tampered(&host), "the read takes long");
        }
        // The drain takes a byte that answers this request, and no event tells of it.
        let region = host.containers.get_mut(&A).unwrap().region.as_mut().unwrap();
        region.request_notification(true);
        drop(slow);
        while !is_tampered(&host) {
            beat(&mut host);
        }
        let region = host.containers[&A].region.as_ref().unwrap();
        assert!(!region.notify_requested(), "the end of the drain is a notification");
    }

    #[test]
    fn region_that_is_replaced_all_the_time_is_opened_once_a_heartbeat() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        let (file, other) = (directory.path().join("use"), directory.path().join("other"));
        let mut opened = 0;
        for beat in 1..=10 {
            let now = Nanos::from_millis(100 * beat);
            host.refresh_containers(now);
            while host.containers[&A].is_accessed() && opened < 100 {
                for request in std::mem::take(&mut host.closed) {
                    host.files.send(request);
                }
                // The files are replaced whenever an access has ended.
                let result = host.files.wait(Duration::from_secs(60)).unwrap();
                std::fs::copy(&file, &other).unwrap();
                std::fs::rename(&other, &file).unwrap();
                opened += u32::from(matches!(result.outcome, FileOutcome::Opened(Ok(_))));
                host.take_file_result(now, result);
            }
        }
        assert!((2..=10).contains(&opened), "opened {opened} times in 10 heartbeats");
    }

    const B: TenantId = TenantId(2);
    const GPU: Uuid = Uuid([8; 16]);

    /// Starts container `b`, with a limit of 4000 bytes on [`GPU`] and no process yet.
    fn start(directory: &Path) -> Shared {
        std::fs::create_dir(directory).unwrap();
        let limits = format!("version 1\ngpu {} 3000\ngpu {GPU} 4000\n", Uuid([9; 16]));
        std::fs::write(directory.join("limits"), limits).unwrap();
        Shared::make(directory, RegionSpec::default()).unwrap();
        Shared::open(directory).unwrap()
    }

    /// Adds container `b`, for which a weight and a limit of 2000 bytes on [`GPU`] are set.
    fn host_with_settings(directory: &Path) -> Host {
        let mut host = host(directory);
        let mut container = Container::new(B, "b".into(), directory.join("b"));
        container.access(Nanos(1));
        container.weight = Some(3);
        host.containers.insert(B, container);
        let set = host.settings.containers.entry("b".into()).or_default();
        set.weight = Some(3);
        set.memsize.insert(GPU.to_string(), 2000);
        host.set_limits(B);
        host
    }

    #[test]
    fn memsize_set_before_the_first_process_applies_to_it() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let shared = start(&directory.path().join("b"));
        let mut host = host_with_settings(directory.path());
        assert_eq!(host.containers[&B].limit(GPU), Bytes(2000), "before the first process");
        let owner = SlotOwner { pid: std::process::id(), comm: b"p" };
        let claim = shared.claim(owner, Nanos(1), true).unwrap().unwrap();
        for (ordinal, &(uuid, limit)) in (0..).zip(&host.containers[&B].limits.gpus) {
            let gpu = Gpu { uuid, total: Bytes(9000), limit, ordinal };
            shared.register(claim.slot, &gpu).unwrap();
        }
        let seen = |place, own| shared.grant().limit(DeviceIndex::new(place).unwrap(), Bytes(own));
        assert_eq!((seen(0, 3000), seen(1, 4000)), (Bytes(3000), Bytes(2000)), "at once");
        host.refresh_container(Nanos(2), B);
        assert_eq!((seen(0, 3000), seen(1, 4000)), (Bytes(3000), Bytes(2000)));
        host.settings.containers.clear();
        host.set_limits(B);
        assert_eq!(seen(1, 4000), Bytes(4000), "as it was started");
    }

    #[test]
    fn transferred_state_is_restored_to_a_container_once() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        start(&directory.path().join("b"));
        let mut host = host_with_settings(directory.path());
        let state = TenantState { forgiven: 9, ..TenantState::default() };
        let containers = vec![(directory.path().join("b"), state)];
        let uuid = GPU.to_string();
        host.transferred = vec![TransferredGpu { uuid, containers, ..TransferredGpu::default() }];
        let mut forgiven = |now| {
            host.update_membership(now, B, true);
            let device = host.devices.iter_mut().find(|device| device.uuid == GPU).unwrap();
            let forgiven = device.scheduler.share(now, B).unwrap().account.forgiven;
            device.scheduler.dismiss(now, B);
            forgiven
        };
        assert_eq!(forgiven(Nanos(1)), Nanos(9));
        assert_eq!(forgiven(Nanos(2)), Nanos::ZERO, "it has left and come back");
    }

    #[test]
    fn settings_end_with_the_container_however_soon_it_starts_again() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let folder = directory.path().join("b");
        start(&folder);
        let mut host = host_with_settings(directory.path());
        let beat = |host: &mut Host, beat: u64| {
            let now = Nanos::from_millis(100 * beat);
            host.refresh_containers(now);
            for request in std::mem::take(&mut host.closed) {
                host.files.send(request);
            }
            host.wait_for_files(now, Duration::from_secs(60), |_| true);
        };
        beat(&mut host, 1);
        assert_eq!(host.containers[&B].weight(), 3);
        std::fs::remove_dir_all(&folder).unwrap();
        start(&folder);
        for number in 2..5 {
            beat(&mut host, number);
        }
        let container = &host.containers[&B];
        assert_eq!((container.weight(), container.limit(GPU)), (1, Bytes(4000)));
        assert!(!host.settings.containers.contains_key("b"));
    }

    #[test]
    fn exited_processes_cause_samples_in_a_bounded_part_of_the_time() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut host = host(directory.path());
        host.sample_cost = Nanos::from_millis(5);
        let mut samples = |id, generation: u64| {
            let mut samples = 0;
            for millis in 1..=1000 {
                // One process exits after the other.
                let (now, name) =
                    (Nanos::from_millis(generation * 1000 + millis), (SlotIndex(9), millis));
                let container = host.containers.get_mut(&A).unwrap();
                container.draining = BTreeMap::from([(name, now)]);
                container.host_ids.insert(name, id);
                let before = container.sampling.due();
                host.reclaim(now, A);
                samples += u32::from(host.containers[&A].sampling.due() != before);
            }
            samples
        };
        assert_eq!(samples(None, 1), 0, "NVML tells nothing of processes that were not found");
        let found = samples(ProcessId::of(std::process::id()), 2);
        assert!((6..=8).contains(&found), "{found} samples of 5 ms in 1 s");
    }
}
