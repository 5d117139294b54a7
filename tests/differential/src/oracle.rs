//! What really happened: the container's books as the monitor would read them, and the simulated GPU's own truth.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::{Gpu, Reader, Slot, Snapshot};
use cgpu_sim::timeline::ProcessUse;
use cgpu_sim::{Machine, Settings};

/// Reads both.
#[derive(Debug)]
pub struct Oracle {
    reader: Reader,
    machine: Machine,
    /// Which GPU of the machine it looks at.
    gpu: usize,
}

/// What one living process has, by both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// On the books: what was asked for.
    pub used: u64,
    /// On the books: what came with it.
    pub implicit: u64,
    /// On the GPU, whatever it is for. More than one: of a program that became another, whose death has not been noticed yet.
    pub truths: Vec<u64>,
}

/// What the container has, by the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Of the living and the dead.
    pub all: u64,
    /// Of the dead: to be given back soon.
    pub draining: u64,
}

impl Oracle {
    /// Of a container's directory and a simulated GPU.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn open(container: &Path, state: &Path, gpus: &str) -> Result<Self> {
        let reader = Reader::open(container).context("the container's books")?;
        let get = |name: &str| match name {
            "CGPU_SIM_STATE" => Some(state.to_string_lossy().into_owned()),
            "CGPU_SIM_GPUS" => Some(gpus.to_owned()),
            _ => None,
        };
        let machine = Machine::open(&Settings::read(get)?)?;
        Ok(Self { reader, machine, gpu: 0 })
    }

    /// The same, of another GPU of the machine.
    #[must_use]
    pub fn of_gpu(self, gpu: usize) -> Self {
        Self { gpu, ..self }
    }

    /// What a context costs on the GPU.
    #[must_use]
    pub fn context_cost(&self) -> u64 {
        self.machine.figures().context_memory.0
    }

    /// What a process has on the GPU.
    ///
    /// # Errors
    /// If the books or the GPU cannot be read.
    pub fn process(&mut self, pid: u32) -> Result<Seen> {
        let snapshot = self.reader.read()?;
        let truths =
            self.processes()?.into_iter().filter(|process| process.pid == pid && !process.dying);
        let live = |slot: &Slot| slot.pid == pid && slot.word.state() == Some(State::Live);
        // Two users of one process id: the last program of one that became another may not have been mourned yet, and nobody's
        // lock tells which is which here; the newer one is in use.
        let slot = snapshot
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| live(slot))
            .max_by_key(|(_, slot)| slot.since);
        let cell = slot.and_then(|(place, _)| self.gpu_of(&snapshot)?.cells.get(place));
        Ok(Seen {
            used: cell.map_or(0, |cell| cell.used.0),
            implicit: cell.map_or(0, |cell| cell.implicit.0),
            truths: truths.map(|process| process.memory.0).collect(),
        })
    }

    /// What came with what each process asked for, by the books; of the dead, too, as long as these have them.
    ///
    /// # Errors
    /// If the books cannot be read.
    pub fn implicit(&mut self) -> Result<BTreeMap<u32, u64>> {
        let snapshot = self.reader.read()?;
        let slots = snapshot.slots.iter().enumerate();
        let there =
            slots.filter(|(_, slot)| slot.word.state().is_some_and(|state| state != State::Free));
        let mut implicit = BTreeMap::new();
        for (place, slot) in there {
            let cell = self.gpu_of(&snapshot).and_then(|gpu| gpu.cells.get(place));
            *implicit.entry(slot.pid).or_default() += cell.map_or(0, |cell| cell.implicit.0);
        }
        Ok(implicit)
    }

    /// What the container has on the GPU, by the books.
    ///
    /// # Errors
    /// If the books cannot be read.
    pub fn total(&mut self) -> Result<Total> {
        let snapshot = self.reader.read()?;
        Ok(self.gpu_of(&snapshot).map_or_else(Total::default, |gpu| total(&snapshot, gpu)))
    }

    /// What all processes, the dead among them, have on the GPU.
    ///
    /// # Errors
    /// If the GPU cannot be read.
    pub fn truth(&self) -> Result<u64> {
        Ok(self.processes()?.iter().map(|process| process.memory.0).sum())
    }

    /// What each process has on the GPU, be it dead.
    ///
    /// # Errors
    /// If the GPU cannot be read.
    pub fn held(&self) -> Result<BTreeMap<u32, u64>> {
        let mut held = BTreeMap::new();
        for process in self.processes()? {
            *held.entry(process.pid).or_default() += process.memory.0;
        }
        Ok(held)
    }

    /// Whether the GPU has forgotten all but these processes: what it has, they have.
    ///
    /// # Errors
    /// If the GPU cannot be read.
    pub fn is_settled(&self, living: &[u32]) -> Result<bool> {
        let processes = self.processes()?;
        let once = |pid: u32| processes.iter().filter(|process| process.pid == pid).count() == 1;
        Ok(processes.iter().all(|process| {
            process.memory.0 == 0
                || !process.dying && living.contains(&process.pid) && once(process.pid)
        }))
    }

    /// What dead processes have on the GPU by the books, which is soon gone.
    ///
    /// # Errors
    /// If the books cannot be read.
    pub fn draining(&mut self) -> Result<u64> {
        let snapshot = self.reader.read()?;
        let Some(gpu) = self.gpu_of(&snapshot) else { return Ok(0) };
        let draining = |(_, slot): &(_, &Slot)| slot.word.state() == Some(State::Draining);
        let cells = gpu.cells.iter().zip(&snapshot.slots).filter(draining);
        Ok(cells.map(|(cell, _)| (cell.used + cell.implicit).0).sum())
    }

    /// The GPU in the books: programs may see it at another place.
    fn gpu_of<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Gpu> {
        snapshot.gpus.iter().find(|gpu| usize::try_from(gpu.ordinal) == Ok(self.gpu))
    }

    fn processes(&self) -> Result<Vec<ProcessUse>> {
        Ok(self.machine.processes(self.gpu)?)
    }

    /// Whether the GPU's own state is one that its operations lead to.
    ///
    /// # Errors
    /// With what is wrong.
    pub fn check_gpu(&self) -> Result<()> {
        Ok(self.machine.check()?)
    }
}

fn total(snapshot: &Snapshot, gpu: &Gpu) -> Total {
    let dead = gpu
        .cells
        .iter()
        .zip(&snapshot.slots)
        .filter(|(_, slot)| slot.word.state() != Some(State::Live));
    Total { all: gpu.used().0, draining: dead.map(|(cell, _)| (cell.used + cell.implicit).0).sum() }
}
