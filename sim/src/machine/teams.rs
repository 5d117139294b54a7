//! Teams of GPUs, as the calls of multicast objects see them.

use cgpu_shm::units::Bytes;

use super::{Machine, Member, POLL, PhysicalId, Sendable, Team, lock};
use crate::error::Error;
use crate::timeline::ExportId;

impl Machine {
    /// Makes a team for so many GPUs, with room for so much memory of each. It costs none itself. `sendable`: how it can be
    /// sent to other processes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one of no GPUs or without room; [`Error::Full`], [`Error::System`].
    pub fn create_team(
        &self,
        gpus: u64,
        room: Bytes,
        sendable: impl Into<Sendable>,
    ) -> Result<PhysicalId, Error> {
        self.check_lineage()?;
        self.start_helper()?;
        let team = self
            .core
            .with(|timeline, _| timeline.create_team(self.core.segment.process(), gpus, room))?;
        let exported = self.core.place_or_let_go(team, 0)?;
        Ok(lock(&self.core.memory).physicals.add_team(
            (team, exported.serial),
            room,
            sendable.into(),
        ))
    }

    /// What is known of a team.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle of one.
    pub fn team(&self, team: PhysicalId) -> Result<Team, Error> {
        let team = self.export_of_team(team)?;
        self.core.with(|timeline, _| timeline.team(team).ok_or(Error::NoAllocation))
    }

    /// Adds a GPU to a team, for good.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::NoGpu`]; [`Error::Invalid`] if the team has the GPU already, or all that it is to have.
    pub fn add_to_team(&self, team: PhysicalId, gpu: usize) -> Result<(), Error> {
        self.check_gpu(gpu)?;
        let team = self.export_of_team(team)?;
        self.core.with(|timeline, _| timeline.add_to_team(team, gpu))
    }

    /// Binds memory to a part of a team's room, from `offset` on; waits until all its GPUs are there. `gpu`: whose memory it must
    /// be. It stays until it is unbound, this process ends, or nobody has the team any more.
    ///
    /// # Errors
    /// [`Error::NoAllocation`]; [`Error::NotShareable`] for memory that cannot be sent, where the team can; [`Error::NoGpu`] for memory
    /// of another GPU, or one that is not in the team; [`Error::Invalid`] for a part that the team or the memory has not, or that is
    /// bound; [`Error::Full`].
    pub fn bind(
        &self,
        team: PhysicalId,
        (offset, size): (u64, Bytes),
        member: Member,
        gpu: Option<usize>,
    ) -> Result<(), Error> {
        self.await_team(team)?;
        // Locked all the while, so that nobody ends the handle or the mapping in between.
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

    /// Unbinds what memory of a GPU is bound to a part of a team's room: whole bindings, of any process, of which one begins where
    /// the part does.
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
        self.core.bury_exports()
    }

    /// Ends a handle of a team, and before that all that this process has bound to it.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no handle of one.
    pub fn leave_team(&self, team: PhysicalId) -> Result<(), Error> {
        let its = self.export_of_team(team)?;
        self.core.with(|timeline, _| {
            timeline.unbind_of(its, self.core.segment.process());
            Ok(())
        })?;
        self.release_physical(team)?;
        self.core.bury_exports()
    }

    fn export_of_team(&self, team: PhysicalId) -> Result<ExportId, Error> {
        self.check_lineage()?;
        lock(&self.core.memory).physicals.team(team)
    }

    /// Waits until all GPUs of a team are there. They may be added by other threads and processes.
    pub(super) fn await_team(&self, team: PhysicalId) -> Result<(), Error> {
        while !self.team(team)?.is_complete() {
            self.core.clock.wait_until(self.now() + POLL);
        }
        Ok(())
    }
}
