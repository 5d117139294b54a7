//! Limits of control groups, as NVML's calls see them, and the group of this process.

use std::path::Path;

use super::allocations::MemoryInfo;
use super::{Core, Machine, lock};
use crate::control_group;
use crate::error::Error;
use crate::segment::Transaction;
use crate::timeline::{GroupLimit, GroupUse, Timeline, Wall};
use crate::{Bytes, Nanos};

impl Machine {
    /// Returns the limits and the use of a control group on a GPU. `path`: the ids of the group and
    /// its ancestors ([`control_group::of_folder`]).
    ///
    /// # Errors
    /// [`Error::NoGpu`], [`Error::Unsupported`] without a limit, [`Error::Full`].
    pub fn group_limit(&self, gpu: usize, path: &[u64]) -> Result<(GroupLimit, Bytes), Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), super::REAP_INTERVAL)?;
        self.core.with(|timeline, _| timeline.group_limit(gpu, path))
    }

    /// Sets the limits of a control group on a GPU, named by its folder.
    ///
    /// # Errors
    /// [`Error::NoGpu`], [`Error::System`] if there is no such folder; [`Error::Invalid`] if it is
    /// not of a group or, with dmem, has no files of the controller; [`Error::State`] if, with
    /// misc, the group uses more; [`Error::Unsupported`] without a back end; [`Error::Full`].
    pub fn limit_group(&self, gpu: usize, folder: &Path, to: GroupLimit) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), super::REAP_INTERVAL)?;
        let path = folder_path(folder)?;
        self.forget_deleted_groups(folder)?;
        self.core.with(|timeline, _| timeline.limit_group(gpu, &path, to))
    }

    /// With dmem, ends the limits of groups that were deleted.
    fn forget_deleted_groups(&self, folder: &Path) -> Result<(), Error> {
        if self.figures().wall != Wall::Dmem {
            return Ok(());
        }
        let known = self.core.with(|timeline, _| Ok(timeline.known_groups()))?;
        let deleted = control_group::deleted(folder, &known);
        self.core.with(|timeline, _| {
            timeline.groups_deleted(&deleted);
            Ok(())
        })
    }

    /// Says whether the folder of a control group has the controller's files, in the simulation.
    ///
    /// # Errors
    /// As [`Machine::limit_group`].
    pub fn set_controller(&self, folder: &Path, has_controller: bool) -> Result<(), Error> {
        let path = folder_path(folder)?;
        self.core.with(|timeline, _| timeline.set_controller(&path, has_controller))
    }

    /// Clears the driver's list of limits, as when it lets the GPUs go. With dmem they stay.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn clear_limits(&self) -> Result<(), Error> {
        self.core.with(|timeline, _| {
            timeline.clear_limits();
            Ok(())
        })
    }

    /// Returns the control groups with limits or memory on a GPU.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn group_uses(&self, gpu: usize) -> Result<Vec<GroupUse>, Error> {
        self.check_gpu(gpu)?;
        self.core.segment.reap(self.now(), super::REAP_INTERVAL)?;
        self.core.with(|timeline, _| Ok(timeline.group_uses(gpu)))
    }

    /// Returns a GPU's memory as the driver shows it to this process: that of its control group, if
    /// that has a limit.
    ///
    /// # Errors
    /// [`Error::NoGpu`].
    pub fn visible_memory(&self, gpu: usize) -> Result<MemoryInfo, Error> {
        let info = self.memory_info(gpu)?;
        let process = self.core.segment.process();
        let limit = self.core.in_group(|timeline, _| Ok(timeline.visible_limit(process, gpu)))?;
        Ok(limit.map_or(info, |(limit, used)| {
            let total = limit.min(info.usable());
            let free = Bytes(total.0.saturating_sub(used.0)).min(info.free);
            MemoryInfo { total, reserved: Bytes::ZERO, used: total - free, free }
        }))
    }
}

/// Returns the ids of a folder's group and its ancestors.
fn folder_path(folder: &Path) -> Result<Vec<u64>, Error> {
    let path = control_group::of_folder(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidInput => Error::Invalid("not a folder of a control group"),
        _ => Error::System(format!("{}: {error}", folder.display())),
    })?;
    if path.is_empty() {
        return Err(Error::Invalid("the root group cannot be limited"));
    }
    Ok(path)
}

impl Core {
    /// Runs an operation that may charge memory to the control group in which this process is now.
    pub(super) fn in_group<R>(
        &self,
        mut operation: impl FnMut(&mut Timeline<'_, Transaction<'_>>, Nanos) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.segment.figures().wall == Wall::Missing {
            return self.with(operation);
        }
        let path = {
            let mut known = lock(&self.control_group);
            *known = control_group::own(&known);
            known.clone()
        };
        self.with(|timeline, now| {
            timeline.join_group(self.segment.process(), &path)?;
            operation(timeline, now)
        })
    }
}
