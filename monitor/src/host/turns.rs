//! Runs the schedulers: notifications and deadlines lead to steps, and steps write the grant pages.

use std::collections::{BTreeMap, BTreeSet};

use cgpu_scheduler::{Gpu, Observation, TenantId, gangs};
use cgpu_shm::clock::{Clock, Monotonic, thread_cpu};
use cgpu_shm::units::Nanos;

use super::Host;
use super::capacity::Capacity;
use super::container::Container;
use super::device_state::DeviceState;
use super::doorbell::Doorbell;
use super::doorbell_pipe::DoorbellPipe;

/// The part of the host that gives turns.
pub(crate) struct Turns<'a> {
    devices: &'a mut [DeviceState],
    containers: &'a mut BTreeMap<TenantId, Container>,
}

impl Host {
    pub(crate) fn turns(&mut self) -> Turns<'_> {
        Turns { devices: &mut self.devices, containers: &mut self.containers }
    }
}

impl Turns<'_> {
    /// Handles a container's notification, and charges the container for it.
    pub(crate) fn notified(&mut self, tenant: TenantId) {
        let start = thread_cpu();
        self.take_notification(tenant);
        let (now, used) = (Monotonic.now(), thread_cpu() - start);
        if let Some(container) = self.containers.get_mut(&tenant) {
            container.doorbell.charge(now, used);
        }
    }

    fn take_notification(&mut self, tenant: TenantId) {
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let Some(region) = &mut container.region else { return };
        let now = Monotonic.now();
        if let Some(pipe) = &mut region.doorbell {
            pipe.ring();
        }
        // A drain has found a flood.
        if container.doorbell.muted_until > now {
            return;
        }
        if region.notify_requested() {
            region.request_notification(false);
            container.doorbell.requested(now);
        } else {
            container.doorbell.unrequested(now);
            // Its GPUs are observed when the cooldown is over.
            if container.doorbell.is_cooling_down() {
                return;
            }
        }
        // A process that notifies may be new.
        region.refresh();
        let gpus = container.gpus();
        for at in 0..self.devices.len() {
            if gpus.contains(&self.devices[at].uuid) {
                self.step(now, at, Some(tenant));
            }
        }
    }

    /// Handles a container whose doorbell is polled again. Its notifications while muted had a
    /// reason, so its GPUs observe all containers in the next step.
    pub(crate) fn unmuted(&mut self, now: Nanos, tenant: TenantId) {
        for device in self.devices.iter_mut() {
            device.stale |= device.scheduler.share(now, tenant).is_some();
        }
    }

    pub(crate) fn next_step(&self) -> Nanos {
        let step = self
            .devices
            .iter()
            .map(|device| if device.stale { Nanos::ZERO } else { device.next_step })
            .min();
        let cooling_down = self
            .containers
            .values()
            .map(|container| container.doorbell)
            .filter(Doorbell::is_cooling_down);
        let cooled_down = cooling_down.map(|doorbell| doorbell.cooldown_until).min();
        step.unwrap_or(Nanos::MAX).min(cooled_down.unwrap_or(Nanos::MAX))
    }

    /// Runs all steps whose deadline has passed.
    pub(crate) fn run_due(&mut self, now: Nanos) {
        let cooled_down: Vec<TenantId> = self
            .containers
            .values_mut()
            .filter_map(|container| {
                container.doorbell.ends_cooldown(now).then_some(container.tenant)
            })
            .collect();
        for tenant in cooled_down {
            self.update_notification(tenant);
            // Changes during the cooldown caused no notification.
            for device in self.devices.iter_mut() {
                device.stale |= device.scheduler.share(now, tenant).is_some();
            }
        }
        for at in 0..self.devices.len() {
            if self.devices[at].stale || self.devices[at].next_step <= now {
                self.step(now, at, None);
            }
        }
    }

    fn step(&mut self, now: Nanos, at: usize, notified: Option<TenantId>) {
        let device = &mut self.devices[at];
        let stale = std::mem::take(&mut device.stale);
        let mut tenants: BTreeSet<TenantId> = if stale {
            self.containers
                .keys()
                .copied()
                .filter(|id| device.scheduler.share(now, *id).is_some())
                .collect()
        } else {
            device.scheduler.interest(now, notified.is_some()).collect()
        };
        tenants.extend(notified.filter(|id| device.scheduler.share(now, *id).is_some()));
        let uuid = device.uuid;
        let observations: Vec<Observation> = tenants
            .into_iter()
            .filter_map(|tenant| {
                let container = self.containers.get_mut(&tenant)?;
                let presence = container.presence(uuid);
                let region = container.region.as_mut();
                let doorbell = region.as_ref().and_then(|region| region.doorbell.as_ref());
                let has_doorbell = doorbell.is_some_and(DoorbellPipe::is_open);
                let reports = match region {
                    Some(region) if presence.open => match region.gpu(uuid) {
                        Some(gpu) => region.reports(gpu),
                        None => Some(Vec::new()),
                    },
                    _ => Some(Vec::new()),
                };
                let unreadable = reports.is_none();
                Some(Observation {
                    tenant,
                    presence,
                    has_doorbell,
                    notified: notified == Some(tenant),
                    unreadable,
                    reports: reports.unwrap_or_default(),
                })
            })
            .collect();
        // After the reads: the monitor may be preempted in between, and a report is invalid that
        // names a time to come.
        let now = Monotonic.now();
        let device = &mut self.devices[at];
        let plan = device.scheduler.advance(now, &observations);
        device.next_step = plan.next_step;
        for order in &plan.orders {
            let Some(container) = self.containers.get(&order.tenant) else { continue };
            let Some(region) = &container.region else { continue };
            let Some(gpu) = region.gpu(uuid) else { continue };
            region.set_gate(gpu, &order.gate);
            if order.bump {
                region.turn(order.wake);
            }
        }
        for order in plan.orders {
            self.update_notification(order.tenant);
        }
        self.summon_gangs(now);
    }

    /// Lets containers of several GPUs have their turns at the same time.
    fn summon_gangs(&mut self, now: Nanos) {
        if self.devices.len() < 2 {
            return;
        }
        let gpus: Vec<&Gpu> = self.devices.iter().map(|device| &device.scheduler).collect();
        let summons = gangs::summons(&gpus);
        for (device, summoned) in self.devices.iter_mut().zip(summons) {
            if device.scheduler.summon(summoned) {
                device.next_step = now;
            }
        }
    }

    /// Requests a container's notifications if one of its GPUs needs them and the cooldown is over.
    fn update_notification(&mut self, tenant: TenantId) {
        let wanted =
            self.devices.iter().any(|device| device.scheduler.requests_notification(tenant));
        let Some(container) = self.containers.get_mut(&tenant) else { return };
        let is_cooling_down = container.doorbell.is_cooling_down();
        if let Some(region) = &mut container.region {
            region.request_notification(wanted && !is_cooling_down);
        }
    }

    /// Writes heartbeats and the informational fields of the pages.
    pub(crate) fn beat(&mut self, now: Nanos) {
        let capacities: Vec<Capacity> =
            self.devices.iter().map(|device| Capacity::on(device, self.containers)).collect();
        for container in self.containers.values() {
            if let Some(page) = &container.closed {
                page.beat();
            }
            let Some(region) = &container.region else { continue };
            region.beat();
            for (device, capacity) in self.devices.iter().zip(&capacities) {
                if let (Some(gpu), Some(share)) =
                    (region.gpu(device.uuid), device.scheduler.share(now, container.tenant))
                {
                    let policy = device.scheduler.policy().number();
                    let weight = capacity.of(container).weight;
                    region.show(gpu, policy, weight, &share);
                }
            }
        }
    }

    pub(crate) fn open_gates(&self) {
        for region in self.containers.values().filter_map(|container| container.region.as_ref()) {
            region.open_gates();
        }
    }
}
