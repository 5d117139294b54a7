//! Limits of control groups on a GPU's memory: the driver's own, which no program can change.
//!
//! A group is identified by the inode of its folder, the same for every process. The timeline
//! learns groups, and which is whose parent, from the processes in them and from the calls that
//! name them. Each part of a process's memory is charged to one group:
//!
//! * **dmem**: the group of the process. All its ancestors bound it, each by its own limit.
//! * **misc**: the nearest group with a limit, which alone bounds it. Memory from before the limit
//!   is charged to none.
//!
//! What a group uses is the sum over these charges; no total is stored. A process that has moved
//! has charges in several groups. What it frees is taken from the last of them first, because
//! allocations do not record their group.

use std::collections::BTreeSet;

use cgpu_shm::units::Bytes;

use super::records::{
    Charge, ControlGroup, ExportId, GPUS, Global, Gpu, Holding, Limit, PROCESSES, Process,
};
use super::{ProcessState, Timeline, states};
use crate::error::Error;
use crate::words::Words;

states! {
    /// What limits the memory of control groups.
    pub Wall {
        /// Nothing: a driver without such limits, or a kernel without a controller.
        Missing,
        /// The kernel's controller for device memory.
        Dmem,
        /// The driver's own map of groups.
        Misc,
    }
}

/// Limits of a control group on a GPU: guaranteed, and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// In bytes; 0: none.
    pub soft: u64,
    /// In bytes; `u64::MAX`: unlimited.
    pub hard: u64,
}

impl GroupLimit {
    /// No limit.
    pub const NONE: Self = Self { soft: 0, hard: u64::MAX };
}

/// A control group on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupUse {
    /// The inode of its folder.
    pub id: u64,
    /// Its own limits.
    pub limit: GroupLimit,
    /// The memory that is charged against them.
    pub used: Bytes,
    /// Whether its folder has the controller's files.
    pub has_controller: bool,
}

/// Groups, by which a process's memory on a GPU is charged, at a time.
pub(super) const CHARGES: u64 = 8;

/// No group.
const NONE: ControlGroup = ControlGroup(0);

impl<W: Words> Timeline<'_, W> {
    fn control_groups(&self) -> impl Iterator<Item = ControlGroup> {
        let known = |group: &ControlGroup| self.get(group.id()) != 0;
        (1..ControlGroup::COUNT).map(ControlGroup).filter(known)
    }

    fn control_group(&self, id: u64) -> Option<ControlGroup> {
        self.control_groups().find(|group| self.get(group.id()) == id)
    }

    /// Returns a group and its known ancestors, upwards.
    fn upwards(&self, group: ControlGroup) -> impl Iterator<Item = ControlGroup> {
        let parent = |group: &ControlGroup| Some(ControlGroup(self.get(group.parent())));
        core::iter::successors(Some(group), parent).take_while(|group| *group != NONE)
    }

    /// Moves a process into a group, given as the ids of the group and its visible ancestors,
    /// upwards. Memory that it has stays charged where it is.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn join_group(&mut self, process: usize, path: &[u64]) -> Result<(), Error> {
        let Some(&id) = path.first() else { return Ok(()) };
        let process = Process(process as u64);
        let current = ControlGroup(self.get(process.group()));
        if current == NONE || self.get(current.id()) != id {
            let group = self.learn_group(path)?;
            self.set(process.group(), group.0);
        }
        Ok(())
    }

    /// Records a group and its ancestors, given upwards.
    fn learn_group(&mut self, path: &[u64]) -> Result<ControlGroup, Error> {
        let known = self.control_groups().count();
        if known + path.len() >= crate::words::index(ControlGroup::COUNT) {
            self.forget_unused_groups();
        }
        let mut group = NONE;
        for &id in path.iter().rev() {
            let parent = group;
            group = match self.control_group(id) {
                Some(group) => group,
                None => {
                    let free = |group: &ControlGroup| self.get(group.id()) == 0;
                    let mut all = (1..ControlGroup::COUNT).map(ControlGroup);
                    let new = all.find(free).ok_or(Error::Full("control groups"))?;
                    self.set(new.id(), id);
                    new
                }
            };
            if parent != NONE {
                self.set(group.parent(), parent.0);
            }
        }
        Ok(group)
    }

    /// Forgets the groups without processes, charges and limits.
    fn forget_unused_groups(&mut self) {
        let mut used: BTreeSet<ControlGroup> = BTreeSet::new();
        for process in (0..PROCESSES).map(Process) {
            if ProcessState::of(self.get(process.state())) != ProcessState::Free {
                used.insert(ControlGroup(self.get(process.group())));
            }
            for holding in (0..GPUS).map(|gpu| Holding::of(process, Gpu(gpu))) {
                used.extend(self.charges(holding).map(|(_, group, _)| group));
            }
        }
        let exports = (1..=self.get(Global(0).top_export())).map(ExportId);
        let alive = exports.filter(|export| self.get(export.serial()) != 0);
        used.extend(alive.map(|export| ControlGroup(self.get(export.group()))));
        let kept = |group: &ControlGroup| {
            self.get(group.bare()) != 0
                || (0..GPUS).any(|gpu| self.limit_of(Gpu(gpu), *group) != GroupLimit::NONE)
        };
        used.extend(self.control_groups().filter(kept).collect::<Vec<_>>());
        let with_ancestors: BTreeSet<_> =
            used.into_iter().flat_map(|group| self.upwards(group).collect::<Vec<_>>()).collect();
        for group in self.control_groups().collect::<Vec<_>>() {
            if !with_ancestors.contains(&group) {
                self.set(group.id(), 0);
                self.set(group.parent(), 0);
            }
        }
    }

    fn limit_of(&self, gpu: Gpu, group: ControlGroup) -> GroupLimit {
        let limit = Limit::of(gpu, group);
        GroupLimit { soft: self.get(limit.soft()), hard: !self.get(limit.ceiling()) }
    }

    fn store_limit(&mut self, gpu: Gpu, group: ControlGroup, to: GroupLimit) {
        let limit = Limit::of(gpu, group);
        self.set(limit.soft(), to.soft);
        self.set(limit.ceiling(), !to.hard);
    }

    /// Returns the nearest of a group and its ancestors whose folder has the controller's files. A
    /// folder without them has none below either.
    fn controlled(&self, group: ControlGroup) -> ControlGroup {
        let bare = |group: &ControlGroup| self.get(group.bare()) != 0;
        let last = self.upwards(group).filter(bare).last();
        last.map_or(group, |bare| ControlGroup(self.get(bare.parent())))
    }

    fn nearest_limited(&self, gpu: Gpu, group: ControlGroup) -> ControlGroup {
        let limited = |group: &ControlGroup| self.limit_of(gpu, *group) != GroupLimit::NONE;
        self.upwards(group).find(limited).unwrap_or(NONE)
    }

    /// Returns the charges of a process on a GPU: their records, groups and bytes.
    fn charges(
        &self,
        holding: Holding,
    ) -> impl DoubleEndedIterator<Item = (Charge, ControlGroup, u64)> {
        let first = holding.0 * CHARGES;
        (first..first + CHARGES)
            .map(Charge)
            .map(|charge| {
                (charge, ControlGroup(self.get(charge.group())), self.get(charge.bytes()))
            })
            .filter(|(_, _, bytes)| *bytes != 0)
    }

    /// Returns what a group uses: with dmem including the groups below.
    fn used_by(&self, gpu: Gpu, group: ControlGroup) -> u64 {
        let is_in = |charged: ControlGroup| match self.figures.wall {
            Wall::Dmem => self.upwards(charged).any(|each| each == group),
            Wall::Misc | Wall::Missing => charged == group,
        };
        let holdings = (0..PROCESSES).map(|process| Holding::of(Process(process), gpu));
        // A checkpointed process has no memory on the GPU.
        let here = holdings.filter(|holding| self.get(holding.memory()) != 0);
        let held: u64 = here
            .flat_map(|holding| self.charges(holding))
            .filter(|(_, charged, _)| is_in(*charged))
            .map(|(_, _, bytes)| bytes)
            .sum();
        let orphaned = self.lingering().into_iter().map(|lingering| lingering.export);
        let orphaned = orphaned.filter(|export| self.get(export.gpu()) == gpu.0);
        let charged_here = orphaned.filter(|export| is_in(ControlGroup(self.get(export.group()))));
        held + charged_here.map(|export| self.get(export.charged())).sum::<u64>()
    }

    /// Returns the groups whose limits bound memory that is charged to `group`.
    fn bounding(&self, gpu: Gpu, group: ControlGroup) -> Vec<(ControlGroup, u64)> {
        let groups: Vec<ControlGroup> = match self.figures.wall {
            Wall::Missing => Vec::new(),
            Wall::Dmem => self.upwards(group).collect(),
            Wall::Misc => vec![self.nearest_limited(gpu, group)],
        };
        let hard = |group| self.limit_of(gpu, group).hard;
        let limited = groups.into_iter().filter(|group| *group != NONE && hard(*group) != u64::MAX);
        limited.map(|group| (group, hard(group))).collect()
    }

    /// Returns the group to which new memory of a process is charged.
    fn charged_group(&self, process: Process, gpu: Gpu) -> ControlGroup {
        let group = ControlGroup(self.get(process.group()));
        match self.figures.wall {
            Wall::Missing => NONE,
            Wall::Dmem => group,
            Wall::Misc => self.nearest_limited(gpu, group),
        }
    }

    /// Charges new memory of a process to its group.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it exceeds a limit; [`Error::Full`].
    pub(super) fn charge_group(
        &mut self,
        process: Process,
        gpu: Gpu,
        size: u64,
    ) -> Result<(), Error> {
        let group = self.charged_group(process, gpu);
        if group == NONE || size == 0 {
            return Ok(());
        }
        for (group, hard) in self.bounding(gpu, group) {
            if self.used_by(gpu, group) + size > hard {
                return Err(Error::OutOfMemory);
            }
        }
        if self.add_charge(Holding::of(process, gpu), group, size) {
            Ok(())
        } else {
            Err(Error::Full("control groups of a process"))
        }
    }

    /// Adds a charge. Returns whether there was a record for it.
    fn add_charge(&mut self, holding: Holding, group: ControlGroup, size: u64) -> bool {
        let first = holding.0 * CHARGES;
        let its = self.charges(holding).find(|(_, its, _)| *its == group);
        let last = self.charges(holding).next_back();
        let after = last.map_or(first, |(last, _, _)| last.0 + 1);
        let free = (after..first + CHARGES)
            .chain(first..after)
            .map(Charge)
            .find(|charge| self.get(charge.bytes()) == 0);
        let Some(charge) = its.map(|(charge, _, _)| charge).or(free) else { return false };
        self.set(charge.group(), group.0);
        self.add(charge.bytes(), size);
        true
    }

    /// Refunds memory of a process to the groups that it was charged to, the last one first.
    pub(super) fn refund_groups(&mut self, holding: Holding, size: u64) {
        if self.figures.wall == Wall::Missing {
            return;
        }
        let mut left = size;
        for (charge, _, bytes) in self.charges(holding).rev().collect::<Vec<_>>() {
            let part = left.min(bytes);
            self.set(charge.bytes(), bytes - part);
            left -= part;
        }
    }

    /// Records to which group a new export of a process is charged.
    pub(super) fn charge_export(&mut self, process: Process, export: ExportId) {
        if self.figures.wall == Wall::Missing {
            return;
        }
        let (gpu, size) = (Gpu(self.get(export.gpu())), self.get(export.size()));
        let current = self.charged_group(process, gpu);
        let charges = self.charges(Holding::of(process, gpu));
        // Its process's group, or else that of the last allocation.
        let its = charges.max_by_key(|(charge, group, _)| (*group == current, charge.0));
        let (group, bytes) = its.map_or((NONE, 0), |(_, group, bytes)| (group, bytes));
        self.set(export.group(), group.0);
        self.set(export.charged(), size.min(bytes));
    }

    /// Removes the charge of an export from its owner. The export keeps what was charged.
    pub(super) fn leave_owner(&mut self, owner: Process, export: ExportId) {
        if self.get(export.charged()) == 0 {
            return;
        }
        let holding = Holding::of(owner, Gpu(self.get(export.gpu())));
        let group = ControlGroup(self.get(export.group()));
        let its = self.charges(holding).find(|(_, its, _)| *its == group);
        let (charged, removed) = (self.get(export.charged()), its.map_or(0, |(_, _, bytes)| bytes));
        let removed = charged.min(removed);
        if let Some((charge, _, _)) = its {
            self.subtract(charge.bytes(), removed);
        }
        self.set(export.charged(), removed);
    }

    /// Adds the charge of an export to its new owner, in the same group.
    pub(super) fn enter_owner(&mut self, owner: Process, export: ExportId) {
        let holding = Holding::of(owner, Gpu(self.get(export.gpu())));
        let (group, charged) = (ControlGroup(self.get(export.group())), self.get(export.charged()));
        if charged != 0 && !self.add_charge(holding, group, charged) {
            self.set(export.charged(), 0);
        }
    }

    /// Checks the limits after checkpointed memory of a process was restored.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it exceeds one.
    pub(super) fn check_restored(&self, holding: Holding, gpu: Gpu) -> Result<(), Error> {
        let bounding = self.charges(holding).flat_map(|(_, group, _)| self.bounding(gpu, group));
        let exceeds = |(group, hard)| self.used_by(gpu, group) > hard;
        if bounding.into_iter().any(exceeds) { Err(Error::OutOfMemory) } else { Ok(()) }
    }

    /// Returns the limit that the process's group shows as the size of a GPU, and its use of it.
    /// With dmem it is the group's own, although its ancestors bound it, too.
    #[must_use]
    pub fn visible_limit(&self, process: usize, gpu: usize) -> Option<(Bytes, Bytes)> {
        let (group, gpu) =
            (ControlGroup(self.get(Process(process as u64).group())), Gpu(gpu as u64));
        let group = match self.figures.wall {
            Wall::Missing => NONE,
            Wall::Dmem => self.controlled(group),
            Wall::Misc => self.nearest_limited(gpu, group),
        };
        let hard = self.limit_of(gpu, group).hard;
        (group != NONE && hard != u64::MAX).then(|| (Bytes(hard), Bytes(self.used_by(gpu, group))))
    }

    /// Returns the limits and the use of a group, given as the ids of it and its ancestors. With
    /// dmem they are those of the nearest folder with the controller's files; with misc a group
    /// without a limit has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a limit; [`Error::Full`].
    pub fn group_limit(&mut self, gpu: usize, path: &[u64]) -> Result<(GroupLimit, Bytes), Error> {
        let gpu = Gpu(gpu as u64);
        let group = self.learn_group(path)?;
        let group = match self.figures.wall {
            Wall::Missing => return Err(Error::Unsupported("no back end limits control groups")),
            Wall::Dmem => self.controlled(group),
            Wall::Misc if self.limit_of(gpu, group) == GroupLimit::NONE => {
                return Err(Error::Unsupported("the control group has no limit"));
            }
            Wall::Misc => group,
        };
        let used = if group == NONE { self.get(gpu.used()) } else { self.used_by(gpu, group) };
        let limit = if group == NONE { GroupLimit::NONE } else { self.limit_of(gpu, group) };
        Ok((limit, Bytes(used)))
    }

    /// Sets the limits of a group, given as the ids of it and its ancestors;
    /// [`GroupLimit::NONE`] removes them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a back end; with dmem [`Error::Invalid`] if the folder has no
    /// files of the controller; with misc [`Error::State`] if the group uses more; [`Error::Full`].
    pub fn limit_group(&mut self, gpu: usize, path: &[u64], to: GroupLimit) -> Result<(), Error> {
        let gpu = Gpu(gpu as u64);
        if self.figures.wall == Wall::Missing {
            return Err(Error::Unsupported("no back end limits control groups"));
        }
        let group = self.learn_group(path)?;
        if group == NONE {
            return Err(Error::Invalid("the root group cannot be limited"));
        }
        match self.figures.wall {
            Wall::Missing => {}
            Wall::Dmem if self.controlled(group) != group => {
                return Err(Error::Invalid("the folder has no files of the controller"));
            }
            Wall::Dmem => self.raise_ancestors(gpu, group, to.soft),
            Wall::Misc if to.hard < self.used_by(gpu, group) => {
                return Err(Error::State("the control group uses more than the limit"));
            }
            Wall::Misc if to == GroupLimit::NONE => self.forget_charges(gpu, Some(group)),
            Wall::Misc => {}
        }
        self.store_limit(gpu, group, to);
        Ok(())
    }

    /// Adds to the soft limits of a group's ancestors what its own grows by.
    fn raise_ancestors(&mut self, gpu: Gpu, group: ControlGroup, soft: u64) {
        let before = self.limit_of(gpu, group).soft;
        for above in self.upwards(group).skip(1).collect::<Vec<_>>() {
            let at = Limit::of(gpu, above).soft();
            self.set(at, (self.get(at) + soft).saturating_sub(before));
        }
    }

    /// Makes memory that is charged to a group on a GPU, or to any, memory of no group.
    fn forget_charges(&mut self, gpu: Gpu, only: Option<ControlGroup>) {
        let its = |group: ControlGroup| only.is_none_or(|only| only == group);
        for holding in (0..PROCESSES).map(|process| Holding::of(Process(process), gpu)) {
            for (charge, group, _) in self.charges(holding).collect::<Vec<_>>() {
                if its(group) {
                    self.set(charge.bytes(), 0);
                }
            }
        }
        for export in (1..=self.get(Global(0).top_export())).map(ExportId) {
            let charged = self.get(export.gpu()) == gpu.0 && self.get(export.charged()) != 0;
            if charged && its(ControlGroup(self.get(export.group()))) {
                self.set(export.charged(), 0);
            }
        }
    }

    /// Clears the driver's map of limits, as when it lets the GPUs go. With dmem the limits are the
    /// folders'.
    pub fn clear_limits(&mut self) {
        if self.figures.wall != Wall::Misc {
            return;
        }
        for gpu in (0..GPUS).map(Gpu) {
            self.forget_charges(gpu, None);
            for group in self.control_groups().collect::<Vec<_>>() {
                if self.limit_of(gpu, group) != GroupLimit::NONE {
                    self.store_limit(gpu, group, GroupLimit::NONE);
                }
            }
            self.words.seam();
        }
    }

    /// Returns the ids of all known groups.
    #[must_use]
    pub fn known_groups(&self) -> Vec<u64> {
        self.control_groups().map(|group| self.get(group.id())).collect()
    }

    /// Ends the limits of deleted groups, with dmem, where they are the folders'. What their soft
    /// limits added to the ancestors' stays there.
    pub fn groups_deleted(&mut self, ids: &[u64]) {
        let deleted = ids.iter().filter_map(|&id| self.control_group(id));
        for group in deleted.collect::<Vec<_>>() {
            self.set(group.bare(), 0);
            if self.figures.wall == Wall::Dmem {
                (0..GPUS).for_each(|gpu| self.store_limit(Gpu(gpu), group, GroupLimit::NONE));
            }
        }
    }

    /// Says whether the folder of a group, given as the ids of it and its ancestors, has the
    /// controller's files.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn set_controller(&mut self, path: &[u64], has_controller: bool) -> Result<(), Error> {
        let group = self.learn_group(path)?;
        if group != NONE {
            self.set(group.bare(), u64::from(!has_controller));
        }
        Ok(())
    }

    /// Returns the groups with limits or memory on a GPU, and those without the controller's files.
    #[must_use]
    pub fn group_uses(&self, gpu: usize) -> Vec<GroupUse> {
        let gpu = Gpu(gpu as u64);
        let describe = |group: ControlGroup| GroupUse {
            id: self.get(group.id()),
            limit: self.limit_of(gpu, group),
            used: Bytes(self.used_by(gpu, group)),
            has_controller: self.controlled(group) == group,
        };
        let shown = |group: &GroupUse| {
            group.limit != GroupLimit::NONE || group.used.0 != 0 || !group.has_controller
        };
        self.control_groups().map(describe).filter(shown).collect()
    }

    /// Checks that charges are of known groups, that no process is charged more than it has, and
    /// that the groups of the driver's map are within their limits.
    pub(super) fn check_groups(&self, gpu: Gpu) -> Result<(), String> {
        for process in (0..PROCESSES).map(Process) {
            let holding = Holding::of(process, gpu);
            let unknown = |group: ControlGroup| group == NONE || self.get(group.id()) == 0;
            let charges: Vec<_> = self.charges(holding).collect();
            if let Some((charge, group, _)) = charges.iter().find(|(_, group, _)| unknown(*group)) {
                return Err(format!("{charge:?} of {process:?} is in {group:?}, which is unknown"));
            }
            let charged: u64 = charges.iter().map(|(_, _, bytes)| bytes).sum();
            let has = self.get(holding.memory()) + self.get(holding.checkpointed());
            if charged > has {
                return Err(format!("{process:?} is charged {charged} bytes, and has {has}"));
            }
        }
        if self.figures.wall == Wall::Misc {
            for group in self.control_groups() {
                let (limit, used) = (self.limit_of(gpu, group), self.used_by(gpu, group));
                if limit.hard < used {
                    return Err(format!("{group:?} uses {used} of {limit:?} on {gpu:?}"));
                }
            }
        }
        Ok(())
    }
}
