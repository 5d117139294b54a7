//! Carries the decisions out: finds the control groups, reads and sets their limits.
//!
//! Runs on the prober's thread, since each step calls NVML.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cgpu_client::control_group::{is_populated, mounts};
use cgpu_client::record;
use cgpu_inventory::memory_limits::{self, GroupMemory, Limits, Refused};
use cgpu_shm::units::Bytes;
use cgpu_shm::uuid::Uuid;

use super::decision::{Change, Known, decide};
use super::group::{self, Member};
use super::record::{Group, Record, Records};
use super::{Device, Order, Outcome, Present, Reason, Wall};
use crate::watcher::ProcessId;

/// The driver's functions.
pub trait Driver {
    /// Returns the limits of the control group with this folder.
    ///
    /// # Errors
    /// The driver's.
    fn get(&self, device: Uuid, group: &Path) -> Result<GroupMemory, Refused>;

    /// Sets them.
    ///
    /// # Errors
    /// The driver's.
    fn set(&self, device: Uuid, group: &Path, to: Limits) -> Result<(), Refused>;

    /// Whether NVML lists the device.
    fn has(&self, device: Uuid) -> bool;
}

/// All walls.
#[derive(Debug)]
pub struct Walls {
    records: Records,
    known: BTreeMap<OsString, Record>,
    /// Where the kernel shows processes.
    proc: PathBuf,
    /// Reasons that were logged, by container's directory and device.
    logged: BTreeMap<(OsString, Uuid), Reason>,
    /// How many limits, on each device, were left when their groups went before their release.
    left: BTreeMap<Uuid, u64>,
}

impl Walls {
    /// Returns those that are recorded in this folder.
    #[must_use]
    pub fn new(records: PathBuf, proc: PathBuf) -> Self {
        let records = Records::new(records);
        let known = records.load();
        Self { records, known, proc, logged: BTreeMap::new(), left: BTreeMap::new() }
    }

    /// Returns how many limits, on each device, were left when their groups went before their
    /// release. The driver names groups by their folders, so none can remove those.
    #[must_use]
    pub const fn left(&self) -> &BTreeMap<Uuid, u64> {
        &self.left
    }

    /// Sets the walls of these containers, and removes those of all others.
    pub fn apply(&mut self, orders: &[Order], driver: &dyn Driver) -> Vec<Outcome> {
        let names: BTreeSet<OsString> =
            orders.iter().map(|order| Records::name(&order.dir)).collect();
        let ended = self.known.keys().filter(|name| !names.contains(*name));
        for name in ended.cloned().collect::<Vec<_>>() {
            self.clear(&name, driver, |_| false);
        }
        self.logged.retain(|(name, _), _| names.contains(name));
        orders.iter().map(|order| self.apply_one(order, driver)).collect()
    }

    fn apply_one(&mut self, order: &Order, driver: &dyn Driver) -> Outcome {
        let name = Records::name(&order.dir);
        let found: Vec<Result<PathBuf, Reason>> =
            self.members(order).iter().map(|member| group::find(&self.proc, member)).collect();
        let own: BTreeSet<PathBuf> = found.iter().filter_map(|found| found.clone().ok()).collect();
        let released: BTreeSet<PathBuf> = order
            .released
            .iter()
            .flat_map(|process| self.members_of(order, *process))
            .filter_map(|member| group::find(&self.proc, &member).ok())
            .collect();
        let is_kept = |group: &Group| {
            !released.contains(&group.folder)
                && group::identity(&group.folder) == Some(group.identity)
                // The first process may end before the others.
                && (own.contains(&group.folder) || is_populated(&group.folder))
        };
        self.clear(&name, driver, is_kept);
        let record = self.known.entry(name.clone()).or_default();
        for folder in own.difference(&released) {
            let Some(identity) = group::identity(folder) else { continue };
            record.ending.retain(|group| group.folder != *folder);
            if !record.groups.iter().any(|group| group.folder == *folder) {
                let folder = folder.clone();
                record.groups.push(Group { folder, identity, devices: BTreeMap::new() });
            }
        }
        let reason = found.into_iter().find_map(Result::err);
        let walls: Vec<(Uuid, Wall)> = order
            .devices
            .iter()
            .map(|device| (device.uuid, self.apply_on(&name, device, reason.as_ref(), driver)))
            .collect();
        for (uuid, wall) in &walls {
            self.log(order, *uuid, wall);
        }
        self.drop_devices(&name, &order.devices, driver);
        if self.known.get(&name).is_some_and(Record::is_empty) {
            self.known.remove(&name);
        }
        Outcome { tenant: order.tenant, walls }
    }

    /// Returns the processes whose control groups are the container's.
    fn members(&self, order: &Order) -> Vec<Member> {
        let recorded = recorded(&order.dir);
        let is_released = |pid: u32| order.released.iter().any(|process| process.pid == pid);
        let mut members: Vec<Member> = order
            .registrants
            .iter()
            .filter(|(process, _)| !is_released(process.pid))
            .map(|(process, folder)| member(process.pid, folder.as_deref(), &recorded))
            .collect();
        for (pid, id) in recorded {
            let is_known = order.registrants.iter().any(|(process, _)| process.pid == pid);
            if !is_known && !is_released(pid) {
                members.push(Member::OfEngine(pid, id));
            }
        }
        members
    }

    /// Returns a process that was released, if it is still there.
    fn members_of(&self, order: &Order, process: ProcessId) -> Option<Member> {
        if !process.lives() {
            return None;
        }
        let registered = order.registrants.iter().find(|(other, _)| *other == process);
        let folder = registered.and_then(|(_, folder)| folder.as_deref());
        Some(member(process.pid, folder, &recorded(&order.dir)))
    }

    /// Sets the walls of a container's groups on one device.
    fn apply_on(
        &mut self,
        name: &OsString,
        device: &Device,
        reason: Option<&Reason>,
        driver: &dyn Driver,
    ) -> Wall {
        let count = self.known.get(name).map_or(0, |record| record.groups.len());
        if !driver.has(device.uuid) {
            return Wall::Absent(Reason::NoNvml);
        }
        let mut all: Option<Present> = None;
        for at in 0..count {
            match self.step(name, at, device, driver) {
                Ok(present) => {
                    let sum = all.get_or_insert_default();
                    sum.hard = sum.hard.max(present.hard);
                    sum.used = present.used.map(|used| used + sum.used.unwrap_or_default());
                    sum.is_late |= present.is_late;
                    sum.changed = sum.changed.take().or(present.changed);
                    sum.is_listed |= present.is_listed;
                    sum.groups += 1;
                }
                Err(reason) => return Wall::Absent(reason),
            }
        }
        // One of several containers has no group of its own.
        if let Some(reason) = reason {
            return Wall::Absent(reason.clone());
        }
        all.map_or(Wall::Absent(Reason::NotRegistered), Wall::Set)
    }

    /// Reads the limit of one group on one device, and sets it.
    fn step(
        &mut self,
        name: &OsString,
        at: usize,
        device: &Device,
        driver: &dyn Driver,
    ) -> Result<Present, Reason> {
        let Some(group) = self.known.get(name).and_then(|record| record.groups.get(at)) else {
            return Err(Reason::NotRegistered);
        };
        let (folder, mut known) = (group.folder.clone(), group.known(device.uuid));
        let read = match driver.get(device.uuid, &folder) {
            Ok(memory) => Some(memory),
            // One back end answers so where there is no limit.
            Err(Refused::NotSupported) => {
                known.is_listed = true;
                None
            }
            Err(Refused::NotFound) => None,
            Err(refused) => return Err(self.reason(refused, &folder)),
        };
        let is_new = known.is_new();
        let before = group.known(device.uuid);
        let (set, change) = decide(&device.wanted, read, &mut known);
        if let Some(change) = change {
            let (uuid, folder) = (device.uuid, folder.display());
            match change {
                Change::Lower(bytes) => tracing::warn!(
                    gpu = %uuid, %folder, bytes = bytes.0,
                    "another program has set a lower memory limit, which applies"
                ),
                Change::Higher(bytes) => tracing::warn!(
                    gpu = %uuid, %folder, bytes = bytes.0,
                    "another program has set a higher memory limit, which is replaced"
                ),
                Change::Removed => tracing::warn!(
                    gpu = %uuid, %folder,
                    "the memory limit was removed, and is set again"
                ),
                Change::Forgotten => tracing::warn!(
                    gpu = %uuid, %folder,
                    "the driver has forgotten the memory limit, which is set again: persistence \
                     mode is off"
                ),
            }
        }
        let Some(to) = set else {
            if known != before {
                self.remember(name, at, device.uuid, &known);
            }
            return Ok(present(read, &known));
        };
        let is_anew = is_new || change == Some(Change::Forgotten);
        known.is_late |= is_anew && device.may_have_memory;
        known.setting = to.hard.map(|hard| hard.0);
        known.has_soft = to.soft > Bytes::ZERO;
        // Before it is set, so that the next monitor knows it for our own.
        self.remember(name, at, device.uuid, &known);
        let refused = driver.set(device.uuid, &folder, to).err();
        let again = driver.get(device.uuid, &folder).ok();
        let wanted = to.hard.unwrap_or_default();
        let is_set = known.read_back(wanted, again.and_then(|memory| memory.limits.hard));
        self.remember(name, at, device.uuid, &known);
        if is_set {
            return Ok(present(again, &known));
        }
        // The earlier one holds, such as where the use has just exceeded the new one.
        let holds = again
            .and_then(|memory| memory.limits.hard)
            .filter(|hard| known.set == Some(hard.0) && *hard <= device.wanted.size().max(wanted));
        match (refused, holds) {
            (_, Some(_)) => Ok(present(again, &known)),
            (Some(refused), None) => Err(self.reason(refused, &folder)),
            (None, None) => Err(Reason::Refused("the limit that it reports is another one".into())),
        }
    }

    fn reason(&self, refused: Refused, folder: &Path) -> Reason {
        match refused {
            Refused::OldDriver => Reason::OldDriver,
            Refused::NotSupported => Reason::NotSupported,
            Refused::NotFound => {
                let info = std::fs::read(self.proc.join("self/mountinfo")).unwrap_or_default();
                let mount = mounts(&info).find(|mount| folder.starts_with(mount));
                let gap = mount.and_then(|mount| memory_limits::gap(&mount, folder));
                gap.map_or(Reason::NotFound, Reason::NoDmem)
            }
            Refused::Other(error) => Reason::Refused(error),
        }
    }

    fn remember(&mut self, name: &OsString, at: usize, device: Uuid, known: &Known) {
        let Some(record) = self.known.get_mut(name) else { return };
        if let Some(group) = record.groups.get_mut(at) {
            group.devices.insert(device.to_string(), known.clone());
        }
        self.save(name);
    }

    fn save(&self, name: &OsString) {
        let empty = Record::default();
        let record = self.known.get(name).unwrap_or(&empty);
        if let Err(error) = self.records.save(name, record) {
            tracing::warn!("cannot record the memory limits of {}: {error}", name.display());
        }
    }

    /// Removes the limits of a container's groups that are not kept.
    fn clear(&mut self, name: &OsString, driver: &dyn Driver, is_kept: impl Fn(&Group) -> bool) {
        let Some(record) = self.known.get_mut(name) else { return };
        let groups = std::mem::take(&mut record.groups);
        let (kept, ended): (Vec<Group>, Vec<Group>) = groups.into_iter().partition(is_kept);
        record.groups = kept;
        if ended.is_empty() && record.ending.is_empty() {
            return;
        }
        record.ending.extend(ended);
        let left = &mut self.left;
        record.ending.retain_mut(|group| {
            // One of the same path may be another's.
            if group::identity(&group.folder) != Some(group.identity) {
                for (uuid, _) in group.devices.iter().filter(|(_, known)| known.outlives_group()) {
                    let folder = group.folder.display();
                    tracing::warn!(
                        gpu = %uuid, %folder,
                        "the control group was deleted before its memory limit was removed: the \
                         driver keeps it"
                    );
                    if let Ok(uuid) = uuid.parse() {
                        *left.entry(uuid).or_default() += 1;
                    }
                }
                return false;
            }
            group.devices.retain(|uuid, known| !remove(driver, uuid, &group.folder, known));
            !group.devices.is_empty()
        });
        self.save(name);
        if self.known.get(name).is_some_and(Record::is_empty) {
            self.known.remove(name);
        }
    }

    /// Removes the limits on devices where the container is to have none.
    fn drop_devices(&mut self, name: &OsString, wanted: &[Device], driver: &dyn Driver) {
        let Some(record) = self.known.get_mut(name) else { return };
        let wanted: BTreeSet<String> =
            wanted.iter().map(|device| device.uuid.to_string()).collect();
        // Its limits may not be known yet.
        if wanted.is_empty() {
            return;
        }
        let mut changed = false;
        for group in &mut record.groups {
            let before = group.devices.len();
            group.devices.retain(|uuid, known| {
                wanted.contains(uuid) || !remove(driver, uuid, &group.folder, known)
            });
            changed |= group.devices.len() != before;
        }
        if changed {
            self.save(name);
        }
    }

    fn log(&mut self, order: &Order, uuid: Uuid, wall: &Wall) {
        let key = (Records::name(&order.dir), uuid);
        match wall {
            Wall::Set(present) => {
                if self.logged.remove(&key).is_some() {
                    let (dir, bytes) = (order.dir.display(), present.hard.0);
                    tracing::info!(gpu = %uuid, %dir, bytes, "the driver limits the container");
                }
            }
            Wall::Absent(reason) => {
                if self.logged.get(&key) != Some(reason) {
                    let dir = order.dir.display();
                    tracing::info!(gpu = %uuid, %dir, "the driver does not limit it: {reason}");
                    self.logged.insert(key, reason.clone());
                }
            }
        }
    }
}

/// Removes the limit of a group on a device. Another program's hard limit stays; its soft limit
/// would be left on the group's ancestors when the group goes. False: to be tried again.
fn remove(driver: &dyn Driver, uuid: &str, folder: &Path, known: &Known) -> bool {
    let Ok(uuid) = uuid.parse::<Uuid>() else { return true };
    if known.is_new() {
        return true;
    }
    if !driver.has(uuid) {
        return false;
    }
    let mut to = Limits::default();
    if known.other.is_some() && known.other == known.set {
        match driver.get(uuid, folder) {
            Ok(GroupMemory { limits, .. }) if limits.soft > Bytes::ZERO => to.hard = limits.hard,
            _ => return true,
        }
    }
    match driver.set(uuid, folder, to) {
        Ok(()) | Err(Refused::NotFound | Refused::NotSupported | Refused::OldDriver) => true,
        Err(Refused::Other(error)) => {
            tracing::warn!(gpu = %uuid, "cannot remove the limit of {}: {error}", folder.display());
            false
        }
    }
}

fn present(read: Option<GroupMemory>, known: &Known) -> Present {
    Present {
        hard: read.and_then(|memory| memory.limits.hard).unwrap_or_default(),
        used: read.map(|memory| memory.used),
        is_late: known.is_late,
        groups: 1,
        changed: known.changes(),
        is_listed: known.is_listed,
    }
}

/// Returns the first processes that the runtime has recorded, with the ids of their containers.
fn recorded(dir: &Path) -> Vec<(u32, String)> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let containers = record::containers(dir).into_iter();
    containers
        .filter_map(|container| {
            let first =
                container.first.filter(|first| !first.is_elsewhere() && first.is_alive())?;
            let id = if container.id.is_empty() { name.clone() } else { container.id };
            Some((u32::try_from(first.pid).ok()?, id))
        })
        .collect()
}

fn member(pid: u32, folder: Option<&Path>, recorded: &[(u32, String)]) -> Member {
    let engine = recorded.iter().find(|(other, _)| *other == pid);
    match (folder, engine) {
        (Some(folder), _) => Member::Of(pid, folder.to_owned()),
        (None, Some((_, id))) => Member::OfEngine(pid, id.clone()),
        (None, None) => Member::Other(pid),
    }
}

#[cfg(test)]
mod tests;
