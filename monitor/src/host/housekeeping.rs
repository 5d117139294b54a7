//! Periodic work: what has changed in each container, and what follows from it.

use std::collections::BTreeMap;

use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos};

use super::capacity::Capacity;
use super::container::Container;
use super::region::Region;
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
        }
        self.apply_settings(now);
        self.update_prober();
    }

    /// Refreshes one container: region, processes, exits, limits, membership.
    pub(crate) fn refresh_container(&mut self, now: Nanos, tenant: TenantId) {
        let monitor = self.started.0.max(1);
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let had_one = container.region.is_some();
        if container.find_region(monitor) {
            self.changes.push(Change::Doorbell(tenant));
            if let Some(region) = &mut container.region {
                region.publish_devices(&self.device_list);
            }
            // Its first process will measure its context by the published free memory. The newer
            // that is, the less of a change is due to other containers.
            self.prober.sample();
        } else if let Some(region) = &mut container.region {
            region.refresh();
            if region.open_doorbell(&container.dir) {
                self.changes.push(Change::Doorbell(tenant));
            }
        }
        let Some(region) = &container.region else { return };
        match &region.unreadable {
            Some(message) => container.faults.insert("unreadable", message.clone()),
            None => container.faults.remove("unreadable"),
        };
        if region.doorbell.is_none() {
            container
                .faults
                .insert("no_doorbell", "It has no doorbell, so it is polled every 5 ms.".into());
        } else {
            container.faults.remove("no_doorbell");
        }
        container.note_exits(now);
        container.count();
        let moved = container.region.as_mut().is_some_and(Region::has_moved);
        let changed = moved || container.region.is_some() != had_one;
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
                waiting = true;
            }
        }
        if waiting {
            self.prober.sample();
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
            let Some(gpu) = region.gpu(uuid) else { continue };
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
        let page =
            |gpu| limits.values().find(|(known, _)| *known == gpu).map(|(_, wanted)| *wanted);
        for gpu in DeviceIndex::all() {
            let now = region.limit(gpu);
            let wanted = if container.is_blocked {
                Some(BLOCKED_LIMIT)
            } else {
                page(gpu).or((now == BLOCKED_LIMIT).then_some(Bytes::ZERO))
            };
            if let Some(wanted) = wanted.filter(|wanted| *wanted != now) {
                region.set_limit(gpu, wanted);
            }
        }
        container.page_limits =
            limits.into_iter().map(|(uuid, (_, wanted))| (uuid, wanted)).collect();
    }

    /// Admits the container to its GPUs, and dismisses it from those it no longer has.
    pub(super) fn update_membership(&mut self, now: Nanos, tenant: TenantId, changed: bool) {
        let Some(container) = self.containers.get(&tenant) else { return };
        let (gpus, deserted) = (container.gpus(), container.is_deserted());
        for uuid in &gpus {
            self.find_gpu(*uuid);
        }
        let Some(container) = self.containers.get(&tenant) else { return };
        for device in &mut self.devices {
            let known = device.scheduler.share(now, tenant).is_some();
            let has = gpus.contains(&device.uuid);
            if has && (known || !deserted) {
                if !known {
                    let capacity = Capacity::on(device, &self.containers);
                    device.scheduler.admit(now, tenant, capacity.of(container));
                    let uuid = device.uuid.to_string();
                    let gpu = self.transferred.iter().find(|gpu| gpu.uuid == uuid);
                    let own = gpu
                        .and_then(|gpu| gpu.containers.iter().find(|own| own.0 == container.dir));
                    if let Some((_, state)) = own {
                        device.scheduler.restore_tenant(tenant, state);
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
