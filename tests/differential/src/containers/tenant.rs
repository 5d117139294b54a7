//! A thread and the processes of a container that it drives.

use anyhow::{Context, Result, bail, ensure};

use super::kinds::AllocationKind;
use super::{Container, Due, End, Filled, Member};
use crate::actor::Actor;
use crate::command::{Answer, Command, HandleBytes};
use crate::random::Random;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// The context that each process has, beside those created to fill a container.
pub(super) const CONTEXT: u32 = 1;

/// Something that a process has: the commands that free it, and its implicit memory.
pub(super) struct Holding {
    pub(super) back: Vec<Command>,
    pub(super) due: Due,
}

/// A process and what it has.
pub(super) struct Process {
    pub(super) actor: Actor,
    has_context: bool,
    pub(super) has_primary: bool,
    pub(super) holdings: Vec<Holding>,
}

/// A thread.
pub(super) struct Tenant<'a> {
    pub(super) container: &'a Container,
    kind: AllocationKind,
    kill_once_in: u64,
    pub(super) random: Random,
    pub(super) processes: Vec<Process>,
    next: u32,
    filled: Filled,
}

impl<'a> Tenant<'a> {
    pub(super) fn new(
        container: &'a Container,
        kind: AllocationKind,
        seed: u64,
        kill_once_in: u64,
        processes: usize,
    ) -> Result<Self> {
        let filled = Filled {
            kind,
            operations: 0,
            granted: 0,
            refused: 0,
            kills: 0,
            peak: 0,
            excess: 0,
            unshown_for: std::time::Duration::ZERO,
        };
        let random = Random::of(seed);
        let mut tenant =
            Self { container, kind, kill_once_in, random, processes: Vec::new(), next: 0, filled };
        for _ in 0..processes {
            let process = tenant.start()?;
            tenant.processes.push(process);
        }
        Ok(tenant)
    }

    fn start(&mut self) -> Result<Process> {
        let mut actor = Actor::start(&self.container.setup, 0)?;
        self.container.members().push(Member {
            pid: actor.pid(),
            ended: false,
            due: Due::default(),
        });
        ensure!(actor.perform(&Command::Init)?.code == 0, "cuInit was refused");
        Ok(Process { actor, has_context: false, has_primary: false, holdings: Vec::new() })
    }

    pub(super) fn work(mut self, end: &End) -> Result<Filled> {
        while !end.is_there() {
            let index = usize::try_from(self.random.below(self.processes.len() as u64))?;
            if self.random.once_in(self.kill_once_in) {
                let successor = self.start()?;
                let former = std::mem::replace(&mut self.processes[index], successor);
                self.end(former)?;
                self.filled.kills += 1;
            }
            let before = self.filled.operations;
            self.step(index).with_context(|| format!("{:?}", self.kind))?;
            (before..self.filled.operations).for_each(|_| end.count());
        }
        for process in std::mem::take(&mut self.processes) {
            self.end(process)?;
        }
        Ok(self.filled)
    }

    fn end(&self, process: Process) -> Result<()> {
        let pid = process.actor.pid();
        process.actor.kill()?;
        self.container.ended(pid);
        Ok(())
    }

    fn step(&mut self, index: usize) -> Result<()> {
        if !self.processes[index].has_context {
            let create = Command::ContextCreate { context: CONTEXT };
            let made = self.granted_with(index, Due::charged(self.container.context), &create)?;
            self.processes[index].has_context = made;
            return if made { Ok(()) } else { self.give((index + 1) % self.processes.len()) };
        }
        let full = !self.take(index, self.kind)?;
        if full || self.random.once_in(50) { self.give(index) } else { Ok(()) }
    }

    /// Returns a fresh name.
    pub(super) fn name(&mut self) -> u32 {
        // The first names are those of contexts.
        self.next += 1;
        self.next + CONTEXT
    }

    /// Records what a process has.
    pub(super) fn has(&mut self, index: usize, due: Due, back: impl Into<Vec<Command>>) {
        self.processes[index].holdings.push(Holding { back: back.into(), due });
    }

    /// Frees a part of what a process has.
    fn give(&mut self, index: usize) -> Result<()> {
        let has = self.processes[index].holdings.len() as u64;
        for _ in 0..has.div_ceil(3) {
            let holdings = self.processes[index].holdings.len() as u64;
            let which = usize::try_from(self.random.below(holdings))?;
            let Holding { back, due } = self.processes[index].holdings.swap_remove(which);
            for command in back {
                self.surely(index, &command)?;
            }
            self.less_due(index, due);
        }
        if !self.processes[index].has_context {
            return Ok(());
        }
        if self.kind.has_pools() && self.random.once_in(4) {
            self.surely(index, &Command::Synchronise { context: CONTEXT })?;
        }
        if self.kind.has_graphs() && self.random.once_in(2) {
            self.surely(index, &Command::GraphTrim)?;
        }
        Ok(())
    }

    fn less_due(&self, index: usize, less: Due) {
        self.container.change_due(self.processes[index].actor.pid(), |due| {
            due.charged -= less.charged;
            due.unseen -= less.unseen;
        });
    }

    /// Adds implicit memory of what is about to be created.
    fn more_due(&self, index: usize, more: Due) {
        self.container.change_due(self.processes[index].actor.pid(), |due| {
            due.charged += more.charged;
            due.unseen += more.unseen;
        });
    }

    /// Performs a command that may be refused with out of memory. `due` is its implicit memory.
    pub(super) fn granted_with(
        &mut self,
        index: usize,
        due: Due,
        command: &Command,
    ) -> Result<bool> {
        self.more_due(index, due);
        let granted = self.granted(index, command)?.is_some();
        if !granted {
            self.less_due(index, due);
        }
        Ok(granted)
    }

    /// Performs a command that may be refused with out of memory.
    pub(super) fn granted(
        &mut self,
        index: usize,
        command: &Command,
    ) -> Result<Option<HandleBytes>> {
        let answer = self.perform(index, command)?;
        match answer.code {
            0 => {
                self.filled.granted += 1;
                Ok(Some(answer.handle))
            }
            OUT_OF_MEMORY => {
                self.filled.refused += 1;
                Ok(None)
            }
            code => bail!("{command:?} answered {code}"),
        }
    }

    /// Performs a command that must succeed.
    pub(super) fn surely(&mut self, index: usize, command: &Command) -> Result<HandleBytes> {
        let answer = self.perform(index, command)?;
        ensure!(answer.code == 0, "{command:?} answered {}", answer.code);
        Ok(answer.handle)
    }

    /// Performs a command that must be refused with this code.
    pub(super) fn refused(&mut self, index: usize, command: &Command, code: i32) -> Result<()> {
        let answer = self.perform(index, command)?;
        ensure!(answer.code == code, "{command:?} answered {}", answer.code);
        Ok(())
    }

    pub(super) fn can_open(&self, index: usize) -> bool {
        self.processes[index].has_context
    }

    fn perform(&mut self, index: usize, command: &Command) -> Result<Answer> {
        let _calling = self.container.calling.read();
        self.filled.operations += 1;
        self.processes[index].actor.perform(command)
    }
}
