//! The facts to compare with: the container's ledger as the monitor reads it, and the simulated
//! GPU's own state.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use cgpu_shm::slots::State;
use cgpu_shm::snapshot::{Gpu, Reader, Slot, Snapshot};
use cgpu_sim::timeline::ProcessUse;
use cgpu_sim::{Machine, Settings};

/// Reader of both.
#[derive(Debug)]
pub struct Oracle {
    reader: Reader,
    machine: Machine,
    /// Index of the observed GPU.
    gpu: usize,
}

/// Memory of one live process by both sources, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Requested memory, by the ledger.
    pub used: u64,
    /// Implicit memory, by the ledger.
    pub implicit: u64,
    /// All memory on the GPU. There are several entries after an `exec` until the exit of the
    /// former program is noticed.
    pub on_gpu: Vec<u64>,
}

/// Memory of the container by the ledger, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Of live and exited processes.
    pub all: u64,
    /// Of exited processes: about to be returned.
    pub draining: u64,
}

impl Oracle {
    /// Opens a container's directory and a simulated GPU.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn open(container: &Path, state: &Path, gpus: &str) -> Result<Self> {
        let reader = Reader::open(container).context("cannot open the container's region")?;
        let get = |name: &str| match name {
            "CGPU_SIM_STATE" => Some(state.to_string_lossy().into_owned()),
            "CGPU_SIM_GPUS" => Some(gpus.to_owned()),
            _ => None,
        };
        let machine = Machine::open(&Settings::read(get)?)?;
        Ok(Self { reader, machine, gpu: 0 })
    }

    /// Observes another GPU of the machine.
    #[must_use]
    pub fn of_gpu(self, gpu: usize) -> Self {
        Self { gpu, ..self }
    }

    /// Returns the bytes that a context takes on the GPU.
    #[must_use]
    pub fn context_cost(&self) -> u64 {
        self.machine.figures().context_memory.0
    }

    /// Returns the memory of a process.
    ///
    /// # Errors
    /// If the ledger or the GPU cannot be read.
    pub fn process(&mut self, pid: u32) -> Result<ProcessMemory> {
        let snapshot = self.reader.read()?;
        let on_gpu =
            self.processes()?.into_iter().filter(|process| process.pid == pid && !process.dying);
        let live = |slot: &Slot| slot.pid == pid && slot.word.state() == Some(State::Live);
        // After an `exec` two slots can have the same process id until the former program's slot is
        // reclaimed. Its lock cannot be tested from here; the newer slot is the one in use.
        let slot = snapshot
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| live(slot))
            .max_by_key(|(_, slot)| slot.since);
        let cell = slot.and_then(|(place, _)| self.gpu_of(&snapshot)?.cells.get(place));
        Ok(ProcessMemory {
            used: cell.map_or(0, |cell| cell.used.0),
            implicit: cell.map_or(0, |cell| cell.implicit.0),
            on_gpu: on_gpu.map(|process| process.memory.0).collect(),
        })
    }

    /// Returns the implicit memory of each process by the ledger, including exited processes that
    /// it still has.
    ///
    /// # Errors
    /// If the ledger cannot be read.
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

    /// Returns the container's memory on the GPU by the ledger.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn total(&mut self) -> Result<Total> {
        let snapshot = self.reader.read()?;
        Ok(self.gpu_of(&snapshot).map_or_else(Total::default, |gpu| total(&snapshot, gpu)))
    }

    /// Returns the memory of all processes on the GPU, including exited ones.
    ///
    /// # Errors
    /// If the GPU cannot be read.
    pub fn gpu_memory(&self) -> Result<u64> {
        Ok(self.processes()?.iter().map(|process| process.memory.0).sum())
    }

    /// Returns what the driver charges a control group on the GPU.
    ///
    /// # Errors
    /// If the group has no limit or cannot be read.
    pub fn used_by(&self, group: &Path) -> Result<u64> {
        let path = cgpu_sim::control_group::of_folder(group)?;
        Ok(self.machine.group_limit(self.gpu, &path)?.1.0)
    }

    /// Returns the memory of each process on the GPU, including exited ones.
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

    /// Returns whether the GPU has memory of these processes only, once each.
    ///
    /// # Errors
    /// If the GPU cannot be read.
    pub fn holds_only(&self, living: &[u32]) -> Result<bool> {
        let processes = self.processes()?;
        let once = |pid: u32| processes.iter().filter(|process| process.pid == pid).count() == 1;
        Ok(processes.iter().all(|process| {
            process.memory.0 == 0
                || !process.dying && living.contains(&process.pid) && once(process.pid)
        }))
    }

    /// Returns the memory of exited processes by the ledger, which is about to be returned.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn draining(&mut self) -> Result<u64> {
        let snapshot = self.reader.read()?;
        let Some(gpu) = self.gpu_of(&snapshot) else { return Ok(0) };
        let draining = |(_, slot): &(_, &Slot)| slot.word.state() == Some(State::Draining);
        let cells = gpu.cells.iter().zip(&snapshot.slots).filter(draining);
        Ok(cells.map(|(cell, _)| (cell.used + cell.implicit).0).sum())
    }

    /// Finds the GPU by its ordinal on the host: the container's index can differ.
    fn gpu_of<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Gpu> {
        snapshot.gpus.iter().find(|gpu| usize::try_from(gpu.ordinal) == Ok(self.gpu))
    }

    fn processes(&self) -> Result<Vec<ProcessUse>> {
        Ok(self.machine.processes(self.gpu)?)
    }

    /// Checks the invariants of the simulated GPU's state.
    ///
    /// # Errors
    /// Names the invariant that is violated.
    pub fn check_gpu(&self) -> Result<()> {
        Ok(self.machine.check()?)
    }
}

fn total(snapshot: &Snapshot, gpu: &Gpu) -> Total {
    let exited = gpu
        .cells
        .iter()
        .zip(&snapshot.slots)
        .filter(|(_, slot)| slot.word.state() != Some(State::Live));
    Total {
        all: gpu.used().0,
        draining: exited.map(|(cell, _)| (cell.used + cell.implicit).0).sum(),
    }
}
