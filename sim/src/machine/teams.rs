//! Multicast objects, as their calls see them: teams of GPUs.

use cgpu_shm::units::Bytes;

use super::{Machine, Member, POLL_INTERVAL, PhysicalId, Sendable, Team, lock};
use crate::error::Error;
use crate::timeline::ExportId;

impl Machine {
    /// Creates a team for so many GPUs, with room for so much memory of each. It uses no GPU memory
    /// itself. `sendable`: how it can be sent to other processes.
    ///
    /// # Errors
    /// [`Error::Invalid`] without GPUs or room; [`Error::Full`], [`Error::System`].
    pub fn create_team(
        &self,
        gpus: u64,
        room: Bytes,
        sendable: impl Into<Sendable>,
    ) -> Result<PhysicalId, Error> {
        self.check_not_forked()?;
        self.start_helper()?;
        let team = self
            .core
            .with(|timeline, _| timeline.create_team(self.core.segment.process(), gpus, room))?;
        let exported = self.core.create_file_or_drop(team, 0)?;
        Ok(lock(&self.core.memory).physicals.add_team(
            (team, exported.serial),
            room,
            sendable.into(),
        ))
    }

    /// Describes a team.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a team's handle.
    pub fn team(&self, team: PhysicalId) -> Result<Team, Error> {
        let team = self.export_of_team(team)?;
        self.core.with(|timeline, _| timeline.team(team).ok_or(Error::NoAllocation))
    }

    /// Adds a GPU to a team, permanently.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::NoGpu`]; [`Error::Invalid`] if the team has the GPU
    /// already or is complete.
    pub fn add_to_team(&self, team: PhysicalId, gpu: usize) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        let team = self.export_of_team(team)?;
        self.core.with(|timeline, _| timeline.add_to_team(team, gpu))
    }

    /// Binds memory to a part of a team's room, from `offset` on; waits until all its GPUs are
    /// added. `gpu`: the GPU whose memory it must be. It stays bound until it is unbound, or this
    /// process or the team ends.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::NotShareable`] for memory that cannot be sent, if the team
    /// can; [`Error::NoGpu`] for memory of another GPU, or of one that is not in the team;
    /// [`Error::Invalid`] for a part beyond the team or the memory, or one that is bound;
    /// [`Error::Full`].
    pub fn bind(
        &self,
        team: PhysicalId,
        (offset, size): (u64, Bytes),
        member: Member,
        gpu: Option<usize>,
    ) -> Result<(), Error> {
        self.await_team(team)?;
        // Locked throughout, so that no thread releases the handle or the mapping in between.
        let mut memory = lock(&self.core.memory);
        let (shareable, team) =
            (memory.physicals.held(team)?.sendable.at_all(), memory.physicals.team(team)?);
        let (bindable, sendable) = memory.bindable(&**self.core, member, size)?;
        if shareable && !sendable {
            return Err(Error::NotShareable);
        }
        self.core.with(|timeline, _| {
            if gpu.is_some_and(|gpu| gpu != timeline.about_export(bindable.export).0) {
                return Err(Error::NoGpu);
            }
            timeline.bind(self.core.segment.process(), team, (offset, size.0), bindable)
        })
    }

    /// Unbinds a GPU's memory from a part of a team's room: whole bindings, of any process, the
    /// first of which begins where the part does.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::Invalid`] for any other part.
    pub fn unbind(
        &self,
        team: PhysicalId,
        gpu: usize,
        (offset, size): (u64, Bytes),
    ) -> Result<(), Error> {
        let team = self.export_of_team(team)?;
        self.core.with(|timeline, _| timeline.unbind(team, gpu, (offset, size.0)))?;
        self.core.end_unused_exports()
    }

    /// Unbinds everything that this process has bound to a team, and releases the handle.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a team's handle.
    pub fn leave_team(&self, team: PhysicalId) -> Result<(), Error> {
        let its = self.export_of_team(team)?;
        self.core.with(|timeline, _| {
            timeline.unbind_of(its, self.core.segment.process());
            Ok(())
        })?;
        self.release_physical(team)?;
        self.core.end_unused_exports()
    }

    fn export_of_team(&self, team: PhysicalId) -> Result<ExportId, Error> {
        self.check_not_forked()?;
        lock(&self.core.memory).physicals.team(team)
    }

    /// Waits until all GPUs of a team are added, possibly by other threads and processes.
    pub(super) fn await_team(&self, team: PhysicalId) -> Result<(), Error> {
        while !self.team(team)?.is_complete() {
            self.core.clock.wait_until(self.now() + POLL_INTERVAL);
        }
        Ok(())
    }
}
