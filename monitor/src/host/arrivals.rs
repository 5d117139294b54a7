//! Containers appear and disappear, by their directories and by registration.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_client::message::{Errno, Refusal, Registered, Registration};
use cgpu_client::record;
use cgpu_scheduler::TenantId;
use cgpu_shm::liveness::Liveness;
use cgpu_shm::paths;
use cgpu_shm::units::Nanos;
use cgpu_shm::uuid::Uuid;
use cgpu_text::is_printable;

use super::container::{Container, Registrant};
use super::file_workers::{FileRequest, FileTask};
use super::walls::OrderReason;
use super::{Change, Host, Process};
use crate::nodes;

/// Timeout for the files of the containers that are there when the monitor starts.
const START_TIMEOUT: Duration = Duration::from_millis(100);

/// Returns when the first process of a directory's containers started, in clock ticks since boot.
/// Those of which it is not recorded come last.
fn started(dir: &Path) -> u64 {
    let containers = record::containers(dir);
    let starts = containers.iter().filter_map(|container| Some(container.first?.started));
    starts.min().unwrap_or(u64::MAX)
}

impl Host {
    /// Adds containers that have a directory under the root, and removes those whose directory is
    /// gone.
    pub(crate) fn scan(&mut self, now: Nanos) {
        let found: BTreeSet<PathBuf> = fs::read_dir(paths::containers(&self.root))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        let is_known = |dir: &PathBuf| self.containers.values().any(|known| known.dir == *dir);
        let mut new: Vec<PathBuf> = found.iter().filter(|dir| !is_known(dir)).cloned().collect();
        // They take capacity in this order, and those of engines do not choose when they started.
        new.sort_by_cached_key(|dir| (started(dir), dir.clone()));
        for dir in &new {
            self.adopt(dir, None);
        }
        let lost: Vec<TenantId> = self
            .containers
            .values()
            .filter(|container| !found.contains(&container.dir) && !container.dir.is_dir())
            .map(|container| container.tenant)
            .collect();
        for tenant in lost {
            self.remove_container(now, tenant);
        }
        self.forget_gpus();
        self.has_scanned = true;
    }

    /// Finds the containers that are there when the monitor starts, so that the first clients find
    /// them. Slow files are not waited for.
    pub(crate) fn find_containers(&mut self, now: Nanos) {
        self.scan(now);
        self.refresh_containers(now);
        self.wait_for_files(now, START_TIMEOUT, |_| true);
    }

    /// Returns the container of this directory, known or new. A new one gets this id, unless
    /// another container has it.
    pub(super) fn adopt(&mut self, dir: &Path, id: Option<&str>) -> TenantId {
        if let Some(known) = self.containers.values().find(|container| container.dir == dir) {
            return known.tenant;
        }
        let tenant = TenantId(self.next_tenant);
        self.next_tenant += 1;
        let mut container = Container::new(tenant, self.fresh_id(dir, id), dir.to_owned());
        container.is_fresh = self.has_scanned;
        container.take_settings(self.settings.containers.get(&container.id));
        tracing::info!("container {} found at {}", container.id, dir.display());
        self.containers.insert(tenant, container);
        tenant
    }

    /// Returns an unused id for a container: the name of its directory; for the 64 digits of a
    /// container engine the first twelve, as engines show them.
    pub(super) fn fresh_id(&self, dir: &Path, wanted: Option<&str>) -> String {
        let name =
            dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name: String = name.chars().filter(|c| is_printable(*c) && *c != '/').collect();
        let long = name.len() == 64 && name.bytes().all(|digit| digit.is_ascii_hexdigit());
        let short = if long { name[..12].to_owned() } else { name };
        let short = wanted.map_or(short, str::to_owned);
        let known = |id: &str| self.containers.values().any(|container| container.id == id);
        let taken = |id: &str| nodes::is_reserved(id) || known(id);
        let mut id = short.clone();
        let mut number = 2;
        while id.is_empty() || taken(&id) {
            id = format!("{short}~{number}");
            number += 1;
        }
        id
    }

    pub(super) fn remove_container(&mut self, now: Nanos, tenant: TenantId) {
        for device in &mut self.devices {
            device.scheduler.dismiss(now, tenant);
            device.stale = true;
        }
        self.watcher.dismiss(tenant);
        if let Some(mut container) = self.containers.remove(&tenant) {
            if let Some(region) = container.region.take() {
                let task = FileTask::Close(Box::new(region));
                self.closed.push(FileRequest { tenant, dir: container.dir.clone(), task });
            }
            for gpu in &mut self.transferred {
                gpu.take(&container.dir);
            }
            tracing::info!("container {} removed", container.id);
            self.forget_settings(&container.id);
        }
    }

    /// Forgets what was set for a container: its settings end with it.
    pub(super) fn forget_settings(&mut self, id: &str) {
        if self.settings.containers.remove(id).is_some() {
            self.save_settings();
        }
    }

    /// Registers a container.
    ///
    /// # Errors
    /// `EINVAL` for a value that is out of range, a directory that is no container's, or a process
    /// that does not exist.
    pub(crate) fn register(&mut self, registration: Registration) -> Result<TenantId, Refusal> {
        let invalid = |message: String| Refusal::new(Errno::EINVAL, message);
        let dir = fs::canonicalize(&registration.dir).ok().filter(|dir| dir.is_dir()).ok_or_else(
            || invalid(format!("{} is not a directory.", registration.dir.display())),
        )?;
        if let Some(weight) = registration.weight
            && !(1..=25).contains(&weight)
        {
            return Err(invalid(format!("Expected a weight from 1 to 25, got {weight}.")));
        }
        if let Some(percent) = registration.percent
            && !(1..=100).contains(&percent)
        {
            return Err(invalid(format!("Expected a share of 1 to 100 percent, got {percent}.")));
        }
        for limit in &registration.limits {
            if limit.uuid.parse::<Uuid>().is_err() {
                return Err(invalid(format!(
                    "Expected a GPU's UUID such as GPU-..., got {:?}.",
                    limit.uuid
                )));
            }
        }
        let registrant = match registration.pid {
            Some(pid) => {
                let found = Registrant::of(pid);
                let found = found.ok_or_else(|| invalid(format!("There is no process {pid}.")))?;
                Some((pid, Registrant { cgroup: registration.cgroup.clone(), ..found }))
            }
            None => None,
        };
        // Uses the path under which a scan finds it, if it does.
        let containers = paths::containers(&self.root);
        let within = containers.join(dir.file_name().unwrap_or_default());
        let dir = if fs::canonicalize(&within).is_ok_and(|other| other == dir) {
            within
        } else if dir.join("use").symlink_metadata().is_ok_and(|about| about.is_file()) {
            dir
        } else {
            return Err(invalid(format!(
                "{} is not a container's directory: expected one in {}, or one that has a region \
                 (use).",
                dir.display(),
                containers.display()
            )));
        };
        let tenant = self.adopt(&dir, None);
        let Some(container) = self.containers.get_mut(&tenant) else {
            return Err(Refusal::new(Errno::EIO, "Cannot register the container."));
        };
        container.walls.registered(registrant.as_ref().map(|(_, registrant)| registrant.id));
        if let Some((pid, registrant)) = registrant {
            container.registrants.insert(pid, registrant);
            self.changes.push(Change::Registrant(tenant, pid));
        }
        container.registration = Some(registration);
        Ok(tenant)
    }

    /// Returns a container's id and what it lacks on its GPUs; while it has none, on all GPUs.
    pub(crate) fn registered(&self, tenant: TenantId) -> Registered {
        let Some(container) = self.containers.get(&tenant) else { return Registered::default() };
        let gpus = container.gpus();
        let concerned =
            self.devices.iter().filter(|device| gpus.is_empty() || gpus.contains(&device.uuid));
        let gated = concerned.filter(|device| device.scheduler.policy().has_turns());
        let shortfalls =
            gated.filter_map(|device| self.capacity(device).shortfall(device.index, container));
        Registered {
            id: container.id.clone(),
            warnings: shortfalls.collect(),
            walls: self.registered_walls(container),
        }
    }

    /// Handles the exit of a registrant. The container's processes may have exited with it, and the
    /// next heartbeat would be late: also for its limit of the driver, which must go before its
    /// control group.
    pub(crate) fn registrant_exited(&mut self, now: Nanos, pid: i32) {
        let tenants = self.containers.values_mut().filter_map(|container| {
            container.registrants.remove(&pid)?;
            Some(container.tenant)
        });
        for tenant in tenants.collect::<Vec<_>>() {
            self.refresh_container(now, tenant);
            self.access_files(now, tenant, true);
        }
        self.apply_settings(now);
        self.order_walls(now, OrderReason::Change);
    }

    /// Handles the exit of a container's process, so that the end of its turn need not wait for the
    /// next heartbeat.
    pub(crate) fn process_exited(&mut self, now: Nanos, process: Process) {
        let Some(container) = self.containers.get_mut(&process.tenant) else { return };
        // Its lock has gone with its memory. Closing the descriptor ends its polling.
        if let Some((generation, _)) = container.exits.remove(&process.slot)
            && let Some(region) = &mut container.region
        {
            region.take_liveness((process.slot, generation), Liveness::Exited);
        }
        self.refresh_container(now, process.tenant);
        self.apply_settings(now);
    }
}
