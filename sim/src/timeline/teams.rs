//! Teams of GPUs, and the memory bound to them: CUDA's multicast objects.
//!
//! A team is an export without bytes of its own, and is held, sent and ended like one. GPUs are
//! added to it, permanently, up to its number. Then memory of each can be bound to parts of its
//! room by a *binding*, for which the binding process holds one more reference to the memory. So
//! bound memory stays charged as it was, and exists while it is bound.
//!
//! ```text
//!   created -> GPUs added -> complete: memory bound, unbound
//!   a binding ends: unbound by any holder | its process ends | the team ends
//! ```

use cgpu_shm::units::Bytes;

use super::Timeline;
use super::domains::Site;
use super::exports::ExportKind;
use super::list::List;
use super::pool::Pool;
use super::records::{Binding, ExportId, GPUS, Global, Hold, Process};
use crate::error::Error;
use crate::words::{Words, index};

const BINDINGS: Pool = Pool {
    free: Global(0).free_binding(),
    top: Global(0).top_binding(),
    count: Binding::COUNT,
    chain: |binding| Binding(binding).next_in_process(),
};

const fn bindings_of(process: Process) -> List {
    List {
        first: process.first_binding(),
        last: process.last_binding(),
        next: |binding| Binding(binding).next_in_process(),
        previous: |binding| Binding(binding).previous_in_process(),
    }
}

const fn bound_to(team: ExportId) -> List {
    List {
        first: team.first_binding(),
        last: team.last_binding(),
        next: |binding| Binding(binding).next_of_team(),
        previous: |binding| Binding(binding).previous_of_team(),
    }
}

/// Maximum bindings of a team: they must end in one transaction, and the undo log is finite.
const MOST_BINDINGS: usize = 1_024;

/// A team of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    /// The number of GPUs that it is for.
    pub wanted: u64,
    /// Those that were added, a bit for each.
    gpus: u64,
    /// How much memory of each can be bound.
    pub room: Bytes,
}

impl Team {
    /// Returns whether all its GPUs were added.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        u64::from(self.gpus.count_ones()) == self.wanted
    }

    /// Returns whether a GPU belongs to it.
    #[must_use]
    pub fn has(&self, gpu: usize) -> bool {
        self.gpus & 1 << gpu != 0
    }
}

/// Memory that is bound to a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The memory's GPU.
    pub gpu: usize,
    /// Offset in the team's room.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Serial of the memory's export.
    pub serial: u64,
    /// Offset in the export.
    pub at: u64,
}

/// Memory for a new binding.
#[derive(Clone, Copy, Debug)]
pub struct Bindable {
    /// Its export.
    pub export: ExportId,
    /// The export's serial.
    pub serial: u64,
    /// Offset in the export.
    pub at: u64,
}

impl<W: Words> Timeline<'_, W> {
    /// Creates a team for so many GPUs, with a reference of its creator. It uses no memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] without GPUs or room; [`Error::Full`].
    pub fn create_team(
        &mut self,
        process: usize,
        wanted: u64,
        room: Bytes,
    ) -> Result<ExportId, Error> {
        if wanted == 0 || wanted > GPUS || room == Bytes::ZERO {
            return Err(Error::Invalid("a team needs GPUs, and room for memory"));
        }
        let team = self.new_export(Process(process as u64), Site::from(0), ExportKind::Team, 0)?;
        for (at, value) in [(team.team(), wanted), (team.gpus(), 0), (team.room(), room.0)] {
            self.set(at, value);
        }
        Ok(team)
    }

    /// Describes a team; `None` if the export is not one.
    #[must_use]
    pub fn team(&self, team: ExportId) -> Option<Team> {
        let wanted = self.get(team.team());
        (self.serial_of_export(team) != 0 && wanted != 0).then(|| Team {
            wanted,
            gpus: self.get(team.gpus()),
            room: Bytes(self.get(team.room())),
        })
    }

    /// Adds a GPU to a team.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a team; [`Error::Invalid`] if it has the GPU or is
    /// complete.
    pub fn add_to_team(&mut self, team: ExportId, gpu: usize) -> Result<(), Error> {
        let its = self.team(team).ok_or(Error::NoAllocation)?;
        if its.is_complete() || its.has(gpu) {
            return Err(Error::Invalid("the team has the GPU, or is complete"));
        }
        self.set(team.gpus(), its.gpus | 1 << gpu);
        Ok(())
    }

    /// Binds memory to a part of a team's room for a process. The GPU is the memory's.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a complete team, or the memory has ended;
    /// [`Error::NoGpu`] if the memory's GPU is not in the team; [`Error::Invalid`] if the part
    /// leaves the team's room or the memory, or memory of the GPU is bound there; [`Error::Full`].
    pub fn bind(
        &mut self,
        process: usize,
        team: ExportId,
        (offset, size): (u64, u64),
        memory: Bindable,
    ) -> Result<(), Error> {
        let its = self.team(team).filter(Team::is_complete).ok_or(Error::NoAllocation)?;
        let (gpu, whole) = self.about_export(memory.export);
        let within = |start: u64, whole: Bytes| {
            start.checked_add(size).is_some_and(|end| size > 0 && end <= whole.0)
        };
        if self.team(memory.export).is_some()
            || !within(offset, its.room)
            || !within(memory.at, whole)
        {
            return Err(Error::Invalid("a part beyond the team or the memory"));
        }
        if !its.has(gpu) {
            return Err(Error::NoGpu);
        }
        let others = self.bound(team);
        if others.len() >= MOST_BINDINGS {
            return Err(Error::Full("bindings of one team"));
        }
        if others.iter().any(|other| {
            other.gpu == gpu && other.offset < offset + size && offset < other.offset + other.size
        }) {
            return Err(Error::Invalid("memory of that GPU is bound there"));
        }
        let binding = Binding(BINDINGS.take(self.words).ok_or(Error::Full("bindings"))?);
        self.hold(process, memory.export, memory.serial)?;
        let process = Process(process as u64);
        for (at, value) in [
            (binding.process(), process.0),
            (binding.team(), team.0),
            (binding.gpu(), gpu as u64),
            (binding.offset(), offset),
            (binding.size(), size),
            (binding.export(), memory.export.0),
            (binding.at(), memory.at),
        ] {
            self.set(at, value);
        }
        bindings_of(process).push(self.words, binding.0);
        bound_to(team).push(self.words, binding.0);
        Ok(())
    }

    /// Returns the memory bound to a team.
    #[must_use]
    pub fn bound(&self, team: ExportId) -> Vec<Bound> {
        let all = bound_to(team).members(self.words).into_iter().map(Binding);
        all.map(|binding| self.about_binding(binding)).collect()
    }

    fn about_binding(&self, binding: Binding) -> Bound {
        Bound {
            gpu: index(self.get(binding.gpu())),
            offset: self.get(binding.offset()),
            size: self.get(binding.size()),
            serial: self.get(ExportId(self.get(binding.export())).serial()),
            at: self.get(binding.at()),
        }
    }

    /// Ends a GPU's bindings within a part of a team's room: whole ones, the first of which begins
    /// where the part does.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not a team; [`Error::Invalid`] for any other part.
    pub fn unbind(
        &mut self,
        team: ExportId,
        gpu: usize,
        (offset, size): (u64, u64),
    ) -> Result<(), Error> {
        self.team(team).ok_or(Error::NoAllocation)?;
        let end = offset.checked_add(size).ok_or(NOT_BOUND)?;
        let (mut within, mut begins) = (Vec::new(), false);
        for binding in bound_to(team).members(self.words).into_iter().map(Binding) {
            let its = self.about_binding(binding);
            if its.gpu != gpu || its.offset >= end || its.offset + its.size <= offset {
                continue;
            }
            if its.offset < offset || its.offset + its.size > end {
                return Err(NOT_BOUND);
            }
            begins |= its.offset == offset;
            within.push(binding);
        }
        if !begins {
            return Err(NOT_BOUND);
        }
        within.into_iter().for_each(|binding| self.end_binding(binding));
        Ok(())
    }

    fn end_binding(&mut self, binding: Binding) {
        let process = Process(self.get(binding.process()));
        let export = ExportId(self.get(binding.export()));
        bindings_of(process).remove(self.words, binding.0);
        bound_to(ExportId(self.get(binding.team()))).remove(self.words, binding.0);
        BINDINGS.give(self.words, binding.0);
        if let Some(hold) = self.hold_of(process, export) {
            self.end_once(process, hold);
        }
    }

    /// Ends a process's bindings to a team.
    pub fn unbind_of(&mut self, team: ExportId, process: usize) {
        for binding in bound_to(team).members(self.words).into_iter().map(Binding) {
            if self.get(binding.process()) == process as u64 {
                self.end_binding(binding);
            }
        }
    }

    /// Ends all bindings to a team that ends. Does nothing for any other export.
    pub(super) fn unbind_all(&mut self, team: ExportId) {
        if self.get(team.team()) != 0 {
            for binding in bound_to(team).members(self.words) {
                self.end_binding(Binding(binding));
            }
        }
    }

    /// Ends all bindings of a process that ends.
    pub(super) fn unbind_all_of(&mut self, process: Process) {
        for binding in bindings_of(process).members(self.words) {
            self.end_binding(Binding(binding));
            self.words.seam();
        }
    }

    pub(super) fn check_bindings(&self, process: Process) -> Result<(), String> {
        let all: Vec<Binding> =
            bindings_of(process).members(self.words).into_iter().map(Binding).collect();
        for &binding in &all {
            let team = ExportId(self.get(binding.team()));
            let export = ExportId(self.get(binding.export()));
            let its = self.about_binding(binding);
            if self.get(binding.process()) != process.0
                || !self.team(team).is_some_and(|t| t.has(its.gpu))
            {
                return Err(format!(
                    "{binding:?} is listed with {process:?}, and is another's or has no team"
                ));
            }
            if !bound_to(team).members(self.words).contains(&binding.0) {
                return Err(format!("{team:?} does not list {binding:?}"));
            }
            if (its.gpu, true) != (self.about_export(export).0, its.serial != 0) {
                return Err(format!("{binding:?} binds memory that is not there"));
            }
            let mine =
                all.iter().filter(|other| self.get(other.export()) == export.0).count() as u64;
            let held = self.hold_of(process, export).map_or(0, |hold: Hold| self.get(hold.count()));
            if held < mine {
                return Err(format!(
                    "{process:?} binds {export:?} {mine} times, and holds it {held} times"
                ));
            }
        }
        Ok(())
    }

    /// Checks the invariants of teams: each lists only bindings to it, which do not overlap on any
    /// GPU and are within its room.
    pub(super) fn check_teams(&self) -> Result<(), String> {
        for team in (1..=self.get(Global(0).top_export())).map(ExportId) {
            let Some(its) = self.team(team) else { continue };
            let mut bound = self.bound(team);
            bound.sort_by_key(|each| (each.gpu, each.offset));
            let overlap = |pair: &[Bound]| {
                pair[0].gpu == pair[1].gpu && pair[0].offset + pair[0].size > pair[1].offset
            };
            if bound.windows(2).any(overlap) || bound.iter().any(|b| b.offset + b.size > its.room.0)
            {
                return Err(format!("{team:?}: bindings overlap, or leave its room"));
            }
            let members = bound_to(team).members(self.words).into_iter().map(Binding);
            for binding in members {
                let process = Process(self.get(binding.process()));
                if self.get(binding.team()) != team.0
                    || !bindings_of(process).members(self.words).contains(&binding.0)
                {
                    return Err(format!(
                        "{team:?} lists {binding:?}, which it or its process does not own"
                    ));
                }
            }
            if u64::from(its.gpus.count_ones()) > its.wanted {
                return Err(format!("{team:?} has more GPUs than it was made for"));
            }
        }
        Ok(())
    }
}

const NOT_BOUND: Error = Error::Invalid("not a part of whole bindings");
