//! The host's part of the walls: which containers are to have one, and what the prober has found.

use std::collections::BTreeMap;

use cgpu_client::message::{Cause, Errno, Refusal};
use cgpu_client::wall::{RegisteredWall, WallStatus};
use cgpu_scheduler::TenantId;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;

use super::Host;
use super::container::Container;
use super::device_state::DeviceState;
use crate::probe::LedgerSample;
use crate::wall::decision::{
    MIN_TAMPERED_SAMPLES, Observed, Wanted, is_uncharged, is_unexplained, kept_margins, margin,
    state,
};
use crate::wall::{Device, Order, Outcome, Reason, Wall};
use crate::watcher::ProcessId;

/// What was sent to the prober.
#[derive(Debug, Default)]
pub(crate) struct SentWalls {
    orders: Vec<Order>,
    /// The number of the last orders.
    sent: u64,
    /// The number of those that were sent with the last sample.
    sampled: u64,
    /// The number of the last outcome.
    applied: u64,
    /// Since when the prober has answered none of the orders that it has; none: it has none.
    unanswered_since: Option<Nanos>,
}

/// What a container's walls depend on, and what they are.
#[derive(Debug, Default)]
pub(crate) struct ContainerWalls {
    /// Whether all of its limits were removed, because it ends.
    is_released: bool,
    /// Processes whose control groups were released.
    released: Vec<ProcessId>,
    by_device: BTreeMap<Uuid, Wall>,
    /// [`Observed::uncharged_samples`].
    uncharged_samples: BTreeMap<Uuid, u32>,
    /// The number of samples in a row with an unexplained excess ([`is_unexplained`]).
    unexplained_samples: BTreeMap<Uuid, u32>,
    /// Whether that lasted on a device: the ledger was tampered with.
    pub(crate) is_tampered: bool,
}

impl ContainerWalls {
    /// Notes a registration: what was released before is over.
    pub(super) fn registered(&mut self, process: Option<ProcessId>) {
        self.is_released = false;
        self.released.retain(|other| Some(*other) != process);
    }
}

impl Host {
    /// Sends the orders of walls to the prober: with each sample, and where they have changed. A
    /// number is returned if the prober applies them, for [`Host::has_applied`].
    pub(crate) fn order_walls(&mut self, now: Nanos, reason: OrderReason) -> Option<u64> {
        // A container that was not found yet would lose its wall.
        if !self.has_scanned || self.is_transferred {
            return None;
        }
        for container in self.containers.values_mut() {
            container.walls.released.retain(|process| process.lives());
        }
        let measured = self.measured();
        let orders: Vec<Order> = self
            .containers
            .values()
            .filter_map(|container| self.wall_order(container, &measured))
            .collect();
        let is_due = match reason {
            OrderReason::Change | OrderReason::Setting => orders != self.walls.orders,
            OrderReason::Sample => !orders.is_empty() || !self.walls.orders.is_empty(),
            OrderReason::Request => true,
        };
        if !is_due {
            return None;
        }
        self.walls.orders.clone_from(&orders);
        let is_awaited = matches!(reason, OrderReason::Request | OrderReason::Setting);
        self.walls.sent = self.prober.apply_walls(orders, is_awaited);
        self.walls.unanswered_since.get_or_insert(now);
        if reason == OrderReason::Sample {
            self.walls.sampled = self.walls.sent;
        }
        Some(self.walls.sent)
    }

    /// Returns until when a client waits for orders that were just sent: not at all if the prober
    /// has not answered for that long. The driver hangs then, or a file system from which control
    /// groups are read.
    pub(crate) fn walls_due(&self, now: Nanos, timeout: Nanos) -> Nanos {
        let hangs = self.walls.unanswered_since.is_some_and(|since| since + timeout <= now);
        if hangs { now } else { now + timeout }
    }

    /// Whether the prober has applied these orders or later ones.
    pub(crate) const fn has_applied(&self, number: u64) -> bool {
        self.walls.applied >= number
    }

    pub(super) fn take_walls(&mut self, now: Nanos, number: u64, outcomes: Vec<Outcome>) {
        self.walls.applied = number;
        self.walls.unanswered_since = (number < self.walls.sent).then_some(now);
        let mut outcomes: BTreeMap<u64, _> =
            outcomes.into_iter().map(|outcome| (outcome.tenant, outcome.walls)).collect();
        // The uses were read right after the sample.
        let measured = (number == self.walls.sampled).then(|| self.measured());
        for container in self.containers.values_mut() {
            let walls = outcomes.remove(&container.tenant.0).unwrap_or_default();
            container.walls.by_device = walls.into_iter().collect();
            let Some(measured) = &measured else { continue };
            let samples = container.walls.by_device.iter().filter_map(|(device, wall)| {
                let Wall::Set(present) = wall else { return None };
                let memory = measured.get(&(*device, container.tenant)).map(Memory::sum);
                let before = container.walls.uncharged_samples.get(device).copied();
                let samples = before.unwrap_or_default().saturating_add(1);
                is_uncharged(memory, present.used).then_some((*device, samples))
            });
            container.walls.uncharged_samples = samples.collect();
        }
        if measured.is_some() {
            self.compare_ledgers();
        }
    }

    /// Compares what the driver charges containers' groups with their ledgers.
    fn compare_ledgers(&mut self) {
        let excesses: Vec<BTreeMap<Uuid, Bytes>> = self
            .containers
            .values()
            .map(|container| {
                let on = |device: &DeviceState| {
                    Some((device.uuid, self.unexplained(container, device)?))
                };
                self.devices.iter().filter_map(on).collect()
            })
            .collect();
        for (container, excesses) in self.containers.values_mut().zip(excesses) {
            let walls = &mut container.walls;
            let before = std::mem::take(&mut walls.unexplained_samples);
            for (gpu, excess) in excesses {
                let samples = before.get(&gpu).copied().unwrap_or_default().saturating_add(1);
                walls.unexplained_samples.insert(gpu, samples);
                if samples >= MIN_TAMPERED_SAMPLES && !walls.is_tampered {
                    walls.is_tampered = true;
                    tracing::warn!(
                        container = container.id, %gpu, excess = excess.0,
                        "the driver charges the container more than its ledger has, though all of \
                         its processes have the shim"
                    );
                }
            }
        }
    }

    /// Returns by how much the driver charges a container's group more than its ledger has, where
    /// nothing explains that.
    fn unexplained(&self, container: &Container, device: &DeviceState) -> Option<Bytes> {
        let Some(Wall::Set(present)) = container.walls.by_device.get(&device.uuid) else {
            return None;
        };
        container.region.as_ref().filter(|region| region.unreadable.is_none())?;
        let excess = present.used? - ledger(container, device);
        let own = device.sample.gpu_processes.iter();
        let own = own.filter(|process| process.owner == Some(container.tenant.0));
        let measured = measured_on(device).remove(&container.tenant).unwrap_or_default();
        let allowance = self.wanted(container, device, &measured.held)?.allowance();
        is_unexplained(excess, allowance, own.map(|process| process.shim)).then_some(excess)
    }

    /// Removes a container's walls, or those of one of its processes.
    ///
    /// # Errors
    /// `ENOENT` if there is no such container.
    pub(crate) fn release(
        &mut self,
        now: Nanos,
        dir: &std::path::Path,
        pid: Option<i32>,
    ) -> Result<Option<u64>, Refusal> {
        let dir = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
        let is_of = |container: &&mut Container| {
            container.dir == dir || std::fs::canonicalize(&container.dir).is_ok_and(|it| it == dir)
        };
        let Some(container) = self.containers.values_mut().find(is_of) else {
            let message = format!("{} is not a container's directory.", dir.display());
            return Err(Refusal::new(Errno::ENOENT, message));
        };
        match pid {
            None => container.walls.is_released = true,
            // One that has ended has no group any more.
            Some(pid) => {
                container.walls.released.extend(u32::try_from(pid).ok().and_then(ProcessId::of))
            }
        }
        Ok(self.order_walls(now, OrderReason::Request))
    }

    /// Whether the prober decides about walls of a container.
    pub(crate) fn has_wall_order(&self, tenant: TenantId) -> bool {
        self.walls.orders.iter().any(|order| order.tenant == tenant.0 && !order.devices.is_empty())
    }

    fn wall_order(&self, container: &Container, measured: &Measured) -> Option<Order> {
        if self.wall_absent(container).is_some() {
            return None;
        }
        let on = |device: &&DeviceState| {
            self.device_absent(device).is_none() && self.wall_limit(container, device).is_some()
        };
        let devices = self.devices.iter().filter(on).filter_map(|device| {
            let memory = measured.get(&(device.uuid, container.tenant));
            let held = memory.map_or(&[][..], |memory| &memory.held);
            let wanted = self.wanted(container, device, held)?;
            Some(Device {
                uuid: device.uuid,
                wanted,
                may_have_memory: !container.is_fresh
                    || container.registrants.is_empty()
                    || memory.is_some_and(|memory| memory.sum() > Bytes::ZERO),
            })
        });
        Some(Order {
            tenant: container.tenant.0,
            dir: container.dir.clone(),
            registrants: container
                .registrants
                .values()
                .map(|registrant| (registrant.id, registrant.cgroup.clone()))
                .collect(),
            released: container.walls.released.clone(),
            devices: devices.collect(),
        })
    }

    /// Returns a container's limit on a device that it may use; none: there is none.
    fn wall_limit(&self, container: &Container, device: &DeviceState) -> Option<Bytes> {
        let has = container.gpus().contains(&device.uuid);
        let limit = self.watched_limit(container, device.uuid);
        Some(limit).filter(|limit| has && *limit > Bytes::ZERO)
    }

    fn wanted(
        &self,
        container: &Container,
        device: &DeviceState,
        held: &[Option<Bytes>],
    ) -> Option<Wanted> {
        let total = Bytes(self.total(device));
        // Containers that run already keep a limit where the configured margin cannot apply.
        let configured = self.configured_margin(device).unwrap_or_default();
        let margin = margin(configured, device.context);
        Some(Wanted {
            limit: self.wall_limit(container, device)?,
            margin,
            kept: kept_margins(margin, held),
            total,
            has_mps: !device.sample.mps_clients.is_empty(),
            is_not_persistent: device.sample.is_persistent == Some(false),
        })
    }

    /// Returns why a container is to have no wall on any device; none: it may have one.
    fn wall_absent(&self, container: &Container) -> Option<Reason> {
        if !self.start.wall.is_on {
            return Some(Reason::Off);
        }
        if container.walls.is_released {
            return Some(Reason::Released);
        }
        let is_ours = container.dir.parent() == Some(&*cgpu_shm::paths::containers(&self.root));
        (!is_ours).then_some(Reason::NotRegistered)
    }

    /// Returns why a device can have no walls; none: it may.
    fn device_absent(&self, device: &DeviceState) -> Option<Reason> {
        device.index.is_instance().then_some(Reason::Mig)
    }

    /// Returns the configured margin; none: there is none. Error: why no container is to start on
    /// the device, where it is below zero or exceeds the memory, as far as that is known.
    fn configured_margin(&self, device: &DeviceState) -> Result<Option<Bytes>, String> {
        let Some(margin) = self.start.wall.margin_mib else { return Ok(None) };
        let total = Bytes(self.total(device));
        match u64::try_from(margin).map(Bytes::from_mib) {
            Err(_) => Err(format!("wall_margin_mib in monitor.toml is {margin}, below zero")),
            Ok(bytes) if bytes > total && total > Bytes::ZERO => Err(format!(
                "wall_margin_mib in monitor.toml is {margin}, but the GPU has {} MiB",
                total.0 >> 20
            )),
            Ok(bytes) => Ok(Some(bytes)),
        }
    }

    /// Returns why no container with a wall is to start on a device; none: it may.
    fn start_error(&self, device: &DeviceState) -> Option<String> {
        let has_walls = self.start.wall.is_on && self.device_absent(device).is_none();
        self.configured_margin(device).err().filter(|_| has_walls)
    }

    /// Returns a warning for each device on which no container starts.
    pub(crate) fn margin_warnings(&self) -> impl Iterator<Item = String> {
        self.devices.iter().filter_map(|device| {
            let error = self.start_error(device)?;
            Some(format!("no container starts on GPU {}: {error}", device.index))
        })
    }

    /// Returns a container's wall on a device; none: it has no limit there.
    fn wall(&self, container: &Container, device: &DeviceState) -> Option<(Wall, Observed)> {
        self.wall_limit(container, device)?;
        let absent = self.wall_absent(container).or_else(|| self.device_absent(device));
        let found = || container.walls.by_device.get(&device.uuid).cloned();
        let wall = absent.map(Wall::Absent).or_else(found);
        let wall = wall.unwrap_or_else(|| {
            Wall::Absent(if self.sampled.is_some() { Reason::Pending } else { Reason::NoNvml })
        });
        let measured =
            device.sample.processes.as_ref().map(|_| {
                measured_on(device).get(&container.tenant).map_or(Bytes::ZERO, Memory::sum)
            });
        let is_unshimmed = self.watcher.findings().any(|finding| {
            finding.cause == Cause::Unshimmed
                && finding.gpu == device.uuid
                && finding.owner == Some(container.tenant)
        });
        let mut processes = device.sample.gpu_processes.iter();
        let is_outside = processes
            .any(|process| process.is_outside && process.owner == Some(container.tenant.0));
        let samples = container.walls.uncharged_samples.get(&device.uuid);
        let observed = Observed {
            measured,
            is_unshimmed,
            is_outside,
            is_new: !self.searched.contains(&container.tenant.0),
            uncharged_samples: samples.copied().unwrap_or_default(),
        };
        Some((wall, observed))
    }

    /// Returns the walls of a container, for the program that starts it.
    pub(super) fn registered_walls(&self, container: &Container) -> Vec<RegisteredWall> {
        let of = |device: &DeviceState| {
            let (wall, observed) = self.wall(container, device)?;
            let (state, reason) = state(&wall, observed);
            let error = self.start_error(device).filter(|_| self.wall_absent(container).is_none());
            Some(RegisteredWall { uuid: device.name(), state, reason, error })
        };
        self.devices.iter().filter_map(of).collect()
    }

    /// Returns a container's wall on a device, for the status.
    pub(crate) fn wall_status(
        &self,
        container: &Container,
        device: &DeviceState,
    ) -> Option<WallStatus> {
        let (wall, observed) = self.wall(container, device)?;
        let (state, reason) = state(&wall, observed);
        let present = match wall {
            Wall::Set(present) => present,
            Wall::Absent(absent) => {
                let absent = Some(absent.name().to_owned());
                return Some(WallStatus { state, reason, absent, ..WallStatus::default() });
            }
        };
        let measured = measured_on(device).remove(&container.tenant).unwrap_or_default();
        let wanted = self.wanted(container, device, &measured.held)?;
        Some(WallStatus {
            state,
            reason,
            absent: None,
            hard: Some(present.hard.0),
            margin: wanted.allowance().0,
            used: present.used.map(|used| used.0),
            excess: (present.used.unwrap_or_default() - ledger(container, device)).0,
            changed: present.changed,
            is_forgotten: present.is_listed && wanted.is_not_persistent,
        })
    }

    /// Returns what the driver charges containers' control groups on a device.
    pub(super) fn charged_groups(&self, gpu: Uuid) -> BTreeMap<TenantId, Bytes> {
        let used = |container: &Container| match container.walls.by_device.get(&gpu)? {
            Wall::Set(present) => Some((container.tenant, present.used?)),
            Wall::Absent(_) => None,
        };
        self.containers.values().filter_map(used).collect()
    }

    fn measured(&self) -> Measured {
        let of = |device: &DeviceState| {
            let uuid = device.uuid;
            measured_on(device).into_iter().map(move |(tenant, memory)| ((uuid, tenant), memory))
        };
        self.devices.iter().flat_map(of).collect()
    }
}

/// Why orders are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderReason {
    /// They may have changed.
    Change,
    /// There is a new sample: limits are read, and set again where another program changed them.
    Sample,
    /// A client waits for the outcome.
    Request,
    /// A client has changed a setting, and waits for the outcome if limits change with it.
    Setting,
}

/// What NVML shows of a container's processes in its control group on a device.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// The memory of each process; none: not known.
    held: Vec<Option<Bytes>>,
}

impl Memory {
    fn sum(&self) -> Bytes {
        self.held.iter().flatten().copied().sum()
    }
}

/// Returns what a container's ledger has of a device, with what exited processes had exported.
fn ledger(container: &Container, device: &DeviceState) -> Bytes {
    let Some(region) = &container.region else { return Bytes::ZERO };
    let gpu = region.gpu(device.uuid).and_then(|gpu| region.seen.gpus.get(gpu.get()));
    gpu.map_or(Bytes::ZERO, |gpu| region.seen.present(gpu).map(|(_, cell)| cell.total()).sum())
}

type Measured = BTreeMap<(Uuid, TenantId), Memory>;

fn measured_on(device: &DeviceState) -> BTreeMap<TenantId, Memory> {
    let mut all = BTreeMap::<TenantId, Memory>::new();
    let listed = device.sample.processes.iter().flatten();
    let bytes: BTreeMap<u32, Option<Bytes>> = listed.map(|(pid, it)| (*pid, *it)).collect();
    for process in &device.sample.gpu_processes {
        let Some(owner) = process.owner.filter(|_| !process.is_outside) else { continue };
        let held = bytes.get(&process.id.pid).copied().flatten();
        all.entry(TenantId(owner)).or_default().held.push(held);
    }
    all
}

impl DeviceState {
    /// Notes the largest context that NVML has shown: what it shows of a process beyond what the
    /// program allocated.
    pub(super) fn take_contexts(&mut self, samples: &[LedgerSample]) {
        for sample in samples {
            let Some(reading) = &sample.reading else { continue };
            let allocated = reading.before.used.max(reading.after.used);
            self.context = self.context.max(reading.measured - allocated);
        }
    }
}
