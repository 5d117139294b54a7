//! Teams of GPUs, and the memory that is bound to them: what multicast objects are.
//!
//! A team is an export without bytes of its own, so it is held, sent and buried like one. GPUs are added to it, for good, up to as
//! many as it was made for. Then memory of each can be bound to parts of its room: a *binding*, for which the process that binds holds
//! the memory once more. So bound memory is on the books that it was on, and stays, whoever lets go of it.
//!
//! ```text
//!   made -> GPUs added -> complete: memory bound, unbound
//!   a binding ends: unbound by anybody who holds the team | the process that made it ends | nobody has the team any more
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

/// Bindings of one team: they must end in one go, and the undo log has an end.
const MOST_BINDINGS: usize = 1_024;

/// A team of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    /// How many GPUs it was made for.
    pub wanted: u64,
    /// Those that it has: a bit for each.
    gpus: u64,
    /// How much memory of each can be bound.
    pub room: Bytes,
}

impl Team {
    /// Whether all its GPUs are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        u64::from(self.gpus.count_ones()) == self.wanted
    }

    /// Whether a GPU belongs to it.
    #[must_use]
    pub fn has(&self, gpu: usize) -> bool {
        self.gpus & 1 << gpu != 0
    }
}

/// Memory that is bound to a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Whose memory it is.
    pub gpu: usize,
    /// Which part of the team's room it takes: from here on,
    pub offset: u64,
    /// so much.
    pub size: u64,
    /// The serial of the export that it lies in,
    pub serial: u64,
    /// from there on.
    pub at: u64,
}

/// The memory of a binding that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Bindable {
    /// The export that it lies in.
    pub export: ExportId,
    /// Which export of that number.
    pub serial: u64,
    /// Where it begins there.
    pub at: u64,
}

impl<W: Words> Timeline<'_, W> {
    /// Makes a team for so many GPUs, held once by its maker. It costs no memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a team of no GPUs or without room; [`Error::Full`].
    pub fn create_team(
        &mut self,
        process: usize,
        wanted: u64,
        room: Bytes,
    ) -> Result<ExportId, Error> {
        if wanted == 0 || wanted > GPUS || room == Bytes::ZERO {
            return Err(Error::Invalid("a team has GPUs, and room for memory"));
        }
        let team = self.new_export(Process(process as u64), Site::from(0), ExportKind::Team, 0)?;
        for (at, value) in [(team.team(), wanted), (team.gpus(), 0), (team.room(), room.0)] {
            self.set(at, value);
        }
        Ok(team)
    }

    /// What is known of a team; `None` if the export is none.
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
    /// [`Error::NoAllocation`] for what is no team; [`Error::Invalid`] if the GPU is in it, or it is complete.
    pub fn add_to_team(&mut self, team: ExportId, gpu: usize) -> Result<(), Error> {
        let its = self.team(team).ok_or(Error::NoAllocation)?;
        if its.is_complete() || its.has(gpu) {
            return Err(Error::Invalid("the team has the GPU, or all that it is to have"));
        }
        self.set(team.gpus(), its.gpus | 1 << gpu);
        Ok(())
    }

    /// Binds memory to a part of a team's room, on behalf of a process. The GPU is the memory's.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no team, or memory that is not there; [`Error::NoGpu`] if the team has not that memory's
    /// GPU; [`Error::Invalid`] if the part is not within the team's room and the memory, or memory of the GPU is bound there;
    /// [`Error::Full`].
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
            return Err(Error::Invalid("a part that the team or the memory has not"));
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

    /// What is bound to a team.
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

    /// Ends a GPU's bindings within a part of a team's room: whole ones, of which one begins where the part does.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] for what is no team; [`Error::Invalid`] for any other part.
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

    /// Ends what a process has bound to a team.
    pub fn unbind_of(&mut self, team: ExportId, process: usize) {
        for binding in bound_to(team).members(self.words).into_iter().map(Binding) {
            if self.get(binding.process()) == process as u64 {
                self.end_binding(binding);
            }
        }
    }

    /// Nobody has the team any more. Does nothing for any other export.
    pub(super) fn unbind_all(&mut self, team: ExportId) {
        if self.get(team.team()) != 0 {
            for binding in bound_to(team).members(self.words) {
                self.end_binding(Binding(binding));
            }
        }
    }

    /// A process ends: what it bound is bound no more.
    pub(super) fn unbind_all_of(&mut self, process: Process) {
        for binding in bindings_of(process).members(self.words) {
            self.end_binding(Binding(binding));
            self.words.seam();
        }
    }

    /// What always holds for the bindings that a process made.
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
                    "{binding:?} is listed with {process:?}, and is not its or to no team"
                ));
            }
            if !bound_to(team).members(self.words).contains(&binding.0) {
                return Err(format!("{team:?} does not know of {binding:?}"));
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

    /// What always holds for teams: each knows only of bindings to it, which do not overlap on any GPU and lie within its room.
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
                        "{team:?} lists {binding:?}, which is not its, or nobody's"
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
