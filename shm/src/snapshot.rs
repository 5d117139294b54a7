//! A container's `use` file as the monitor sees it: copied, never trusted.
//!
//! A copy does not raise SIGBUS if the container truncates the file. It may be torn between words,
//! and any word may be invalid. Counts are bounded here; the monitor bounds the figures.

use std::collections::BTreeMap;
use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::file::{self, Access, Error, Fault};
use crate::held::Held;
use crate::intervals::Span;
use crate::layout::{
    self, COUNTERS, EXPORT_TABLES, GPUS, Grant, INTERVALS, NAME, SLOTS, UNKNOWN_FUNCTIONS, Use,
    UseHeader,
};
use crate::named_count;
use crate::preamble::{self, InvalidPreamble, Kind};
use crate::quiet_file::QuietFile;
use crate::record::Record;
use crate::slots::{State, Word};
use crate::unaccounted::UnaccountedDelta;
use crate::units::{Bytes, DeviceIndex, Nanos};
use crate::uuid::Uuid;

/// A container's own report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// When its region was created, by `CLOCK_REALTIME`.
    pub created: Nanos,
    /// How often its processes got each of the driver's private tables, by UUID.
    pub export_tables: BTreeMap<String, u64>,
    /// Functions of its driver that allocate, by their names, and that its processes' release of
    /// cgpu does not know.
    pub unknown_functions: BTreeMap<String, u64>,
    /// Its GPUs; at most [`GPUS`].
    pub gpus: Vec<Gpu>,
    /// Its slots up to the high-water mark; at most [`SLOTS`].
    pub slots: Vec<Slot>,
}

/// A registered GPU, and each slot's use of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its memory.
    pub total: Bytes,
    /// The limit at registration; zero: none.
    pub limit: Bytes,
    /// Its index in `NVIDIA_VISIBLE_DEVICES`.
    pub ordinal: u32,
    /// Last measured size of a context; zero: not known.
    pub context: Bytes,
    /// Bytes taken off its ledger since the container began that may have been found to have left
    /// the GPU before.
    pub withdrawn: Bytes,
    /// One per slot of [`Snapshot::slots`].
    pub cells: Vec<Cell>,
}

impl Gpu {
    /// The container's reported use: the sum that it compares with its limit. Saturates.
    #[must_use]
    pub fn used(&self) -> Bytes {
        self.cells.iter().map(Cell::total).sum()
    }

    /// Applies the monitor's `grant.returned`.
    fn take_returned(&mut self, returned: u64) {
        let mut rest = Bytes(returned) - self.withdrawn;
        for cell in &mut self.cells {
            cell.returned = rest.min(cell.exported);
            rest = rest - cell.returned;
        }
    }
}

impl Snapshot {
    /// Returns the cells of a GPU whose memory may be on it, with their slots. The ledger counts
    /// drained slots, too, until a process of the container allocates.
    pub fn present<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = (usize, &'a Cell)> {
        let cells = self.slots.iter().zip(&gpu.cells).enumerate();
        // Other processes may hold what was exported.
        cells
            .filter(|(_, (slot, cell))| !slot.drained || cell.exported > Bytes::ZERO)
            .map(|(index, (_, cell))| (index, cell))
    }

    /// Memory of a GPU that exited processes had exported and others may hold; part of
    /// [`Gpu::used`].
    #[must_use]
    pub fn orphan(&self, gpu: &Gpu) -> Bytes {
        self.orphans(gpu).map(Cell::kept).sum()
    }

    /// The same as charged, without what has been found to have left the GPU.
    #[must_use]
    pub fn orphan_charged(&self, gpu: &Gpu) -> Bytes {
        self.orphans(gpu).map(|cell| cell.used).sum()
    }

    fn orphans<'a>(&'a self, gpu: &'a Gpu) -> impl Iterator<Item = &'a Cell> {
        let cells = self.slots.iter().zip(&gpu.cells);
        cells.filter(|(slot, _)| slot.word.state() == Some(State::Orphan)).map(|(_, cell)| cell)
    }
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Generation and state.
    pub word: Word,
    /// Process id in the container's PID namespace.
    pub pid: u32,
    /// When it went live, or was found to have exited.
    pub since: Nanos,
    /// The process's name.
    pub comm: String,
    /// The gate word that it acknowledged last.
    pub acked: u64,
    /// Bits of the handles that it exported: `CGPU_EXPORTED_*`.
    pub exported_handles: u64,
    /// How often each counted reason happened.
    pub counters: [u32; COUNTERS],
    /// Whether the monitor has found that it has exited and that its memory has left the GPUs.
    /// Filled only by [`Reader::read`].
    pub drained: bool,
}

/// One process's use of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // include/cgpu.h explains the fields
pub struct Cell {
    pub used: Bytes,
    pub implicit: Bytes,
    /// What the monitor has measured beyond the cell, if it applies to the present process;
    /// negative: less than that. Filled only by [`Reader::read`].
    pub unaccounted: i64,
    /// The part of `exported` that has been found to have left the GPU. It is known for all cells
    /// together and subtracted from the first ones.
    pub returned: Bytes,
    pub peak: Bytes,
    pub waiting: u64,
    pub creating: u32,
    pub implicit_epoch: u32,
    pub charges: u32,
    pub exported: Bytes,
    pub busy: Nanos,
    pub inflight: Nanos,
    pub launches: u64,
    pub active: Nanos,
    pub turn: u64,
    pub first: Nanos,
    pub last: Nanos,
    pub spent: Nanos,
    pub sequence: u64,
    pub intervals: [Span; INTERVALS],
    pub ends: Nanos,
}

impl Cell {
    /// Implicit memory, corrected by what was measured, as the ledger counts it.
    #[must_use]
    pub fn corrected(&self) -> Bytes {
        Bytes(self.implicit.0.saturating_add_signed(self.unaccounted))
    }

    /// Used memory, without exported memory that has left the GPU, as the ledger counts it.
    #[must_use]
    pub fn kept(&self) -> Bytes {
        self.used - self.returned
    }

    /// The sum, as the ledger counts it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.kept() + self.corrected()
    }

    /// Returns the reliable intervals from number `seen` on.
    pub fn spans_since(&self, seen: u64) -> impl Iterator<Item = Span> {
        crate::intervals::since(&self.intervals, self.sequence, seen)
    }
}

/// A reader of one container's file.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: QuietFile,
    /// The monitor's page; `None`: nothing is measured.
    grant: Option<QuietFile>,
    buffer: Vec<u8>,
}

impl Reader {
    /// Opens the file of a container's directory.
    ///
    /// # Errors
    /// [`Error`] when it is missing or cannot be used.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let file =
            QuietFile::new(file::open(directory, Kind::Use, Access::Read)?, size_of::<Use>());
        let grant = file::open(directory, Kind::Grant, Access::Read).ok();
        let grant = grant.map(|file| QuietFile::new(file, size_of::<Grant>()));
        Ok(Self { path: directory.join(Kind::Use.name()), file, grant, buffer: Vec::new() })
    }

    /// The file, to check which slots live ([`crate::liveness::liveness`]).
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.file()
    }

    /// Copies the used part of the file, and what the monitor has measured beyond it.
    ///
    /// # Errors
    /// [`Error`] when the file is no longer valid.
    pub fn read(&mut self) -> Result<Snapshot, Error> {
        let mut snapshot = self.read_header()?;
        let slots = snapshot.slots.capacity();
        let bytes = self.read_at(offset_of!(Use, slot), slots * size_of::<layout::Slot>())?;
        snapshot
            .slots
            .extend((0..slots).map(|slot| decode_slot(part::<layout::Slot>(bytes, slot))));
        self.read_drained(&mut snapshot.slots);
        for (index, gpu) in DeviceIndex::all().zip(&mut snapshot.gpus) {
            self.read_cells(index, slots, &mut gpu.cells)?;
            self.read_measured(index, &snapshot.slots, gpu);
        }
        Ok(snapshot)
    }

    /// Reads which slots are drained from the monitor's page. If that fails, none is.
    fn read_drained(&mut self, slots: &mut [Slot]) {
        let Some(grant) = &self.grant else { return };
        self.buffer.resize(slots.len() * size_of::<u64>(), 0);
        if grant.read_exact_at(&mut self.buffer, offset_of!(Grant, drained)).is_err() {
            return;
        }
        for (at, slot) in slots.iter_mut().enumerate() {
            let drained = Word::new(slot.word.generation(), State::Draining);
            slot.drained = Record(&self.buffer).u64(at * size_of::<u64>()) == drained.0;
        }
    }

    /// Reads the measured figures from the monitor's page. If that fails, there are none.
    fn read_measured(&mut self, index: DeviceIndex, slots: &[Slot], gpu: &mut Gpu) {
        let Some(grant) = &self.grant else { return };
        let row = offset_of!(Grant, unaccounted) + index.get() * SLOTS * size_of::<u64>();
        self.buffer.resize(gpu.cells.len() * size_of::<u64>(), 0);
        if grant.read_exact_at(&mut self.buffer, row).is_err() {
            return;
        }
        for (at, (slot, cell)) in slots.iter().zip(&mut gpu.cells).enumerate() {
            let delta = UnaccountedDelta(Record(&self.buffer).u64(at * size_of::<u64>()));
            cell.unaccounted = delta.bytes(slot.word, cell.implicit_epoch);
        }
        let word = offset_of!(Grant, gpu)
            + index.get() * size_of::<layout::GrantGpu>()
            + offset_of!(layout::GrantGpu, returned);
        self.buffer.resize(size_of::<u64>(), 0);
        if grant.read_exact_at(&mut self.buffer, word).is_ok() {
            gpu.take_returned(Record(&self.buffer).u64(0));
        }
    }

    /// Reads the first `slots` cells of one GPU into a reusable list.
    ///
    /// # Errors
    /// [`Error`] when the file is no longer valid.
    pub fn read_cells(
        &mut self,
        gpu: DeviceIndex,
        slots: usize,
        cells: &mut Vec<Cell>,
    ) -> Result<(), Error> {
        let slots = slots.min(SLOTS);
        let row = offset_of!(Use, cell) + gpu.get() * SLOTS * size_of::<layout::Cell>();
        // HB interval: the copy takes the place of an Acquire. It goes upwards, and intervals lie
        // after the sequence that counts them, so a counted one was stored before it is copied.
        let bytes = self.read_at(row, slots * size_of::<layout::Cell>())?;
        cells.clear();
        cells.extend((0..slots).map(|slot| decode_cell(part::<layout::Cell>(bytes, slot))));
        Ok(())
    }

    /// Reads the header, with capacity for the slots in use.
    fn read_header(&mut self) -> Result<Snapshot, Error> {
        let bytes = self.read_at(0, size_of::<UseHeader>())?;
        let checked = preamble::check(
            Kind::Use,
            bytes.u32(offset_of!(UseHeader, version)),
            bytes.u32(offset_of!(UseHeader, magic)),
            bytes.u64(offset_of!(UseHeader, size)),
        );
        let count =
            |offset, most: usize| usize::try_from(bytes.u32(offset)).unwrap_or(most).min(most);
        let gpus = count(offset_of!(UseHeader, gpus), GPUS);
        let slots = count(offset_of!(UseHeader, high_water), SLOTS);
        let snapshot = Snapshot {
            name: bytes.text::<NAME>(offset_of!(UseHeader, name)),
            created: Nanos(bytes.u64(offset_of!(UseHeader, created))),
            export_tables: named_counts::<EXPORT_TABLES>(
                bytes,
                offset_of!(UseHeader, export_table),
            ),
            unknown_functions: named_counts::<UNKNOWN_FUNCTIONS>(
                bytes,
                offset_of!(UseHeader, unknown_function),
            ),
            gpus: (0..gpus)
                .map(|gpu| {
                    decode_gpu(bytes.part(
                        offset_of!(UseHeader, gpu) + gpu * size_of::<layout::Gpu>(),
                        size_of::<layout::Gpu>(),
                    ))
                })
                .collect(),
            slots: Vec::with_capacity(slots),
        };
        match checked {
            Ok(()) => Ok(snapshot),
            Err(invalid) => Err(Error::new(&self.path, Fault::InvalidPreamble(invalid))),
        }
    }

    fn read_at(&mut self, offset: usize, length: usize) -> Result<Record<'_>, Error> {
        self.buffer.resize(length, 0);
        match self.file.read_exact_at(&mut self.buffer, offset) {
            Ok(()) => Ok(Record(&self.buffer)),
            Err(error) => {
                let fault = if error.kind() == io::ErrorKind::UnexpectedEof {
                    let found = self.file.length();
                    Fault::InvalidPreamble(InvalidPreamble::WrongSize {
                        found,
                        expected: Kind::Use.size(),
                    })
                } else {
                    Fault::Unreadable(error)
                };
                Err(Error::new(&self.path, fault))
            }
        }
    }
}

fn part<T>(bytes: Record<'_>, index: usize) -> Record<'_> {
    bytes.part(index * size_of::<T>(), size_of::<T>())
}

fn named_counts<const N: usize>(header: Record<'_>, offset: usize) -> BTreeMap<String, u64> {
    named_count::read(header.part(offset, size_of::<[layout::NamedCount; N]>()), N)
}

fn decode_gpu(bytes: Record<'_>) -> Gpu {
    use layout::Gpu as At;
    Gpu {
        uuid: Uuid(bytes.array(offset_of!(At, uuid))),
        total: Bytes(bytes.u64(offset_of!(At, total))),
        limit: Bytes(bytes.u64(offset_of!(At, limit))),
        ordinal: bytes.u32(offset_of!(At, ordinal)),
        context: Bytes(bytes.u64(offset_of!(At, context))),
        withdrawn: Bytes(bytes.u64(offset_of!(At, withdrawn))),
        cells: Vec::new(),
    }
}

fn decode_slot(bytes: Record<'_>) -> Slot {
    use layout::Slot as At;
    Slot {
        word: Word(bytes.u64(offset_of!(At, state))),
        pid: bytes.u32(offset_of!(At, pid)),
        since: Nanos(bytes.u64(offset_of!(At, since))),
        comm: bytes.text::<16>(offset_of!(At, comm)),
        acked: bytes.u64(offset_of!(At, acked)),
        exported_handles: bytes.u64(offset_of!(At, exported_handles)),
        counters: core::array::from_fn(|index| {
            bytes.u32(offset_of!(At, counter) + index * size_of::<u32>())
        }),
        drained: false,
    }
}

fn decode_cell(bytes: Record<'_>) -> Cell {
    use layout::Cell as At;
    let time = |offset| Nanos(bytes.u64(offset));
    // Of a checkpointed process only what others may hold is on the GPU.
    let there = bytes.u32(offset_of!(At, checkpointed)) == 0;
    let (held, implicit) =
        (Held(bytes.u64(offset_of!(At, held))), Bytes(bytes.u64(offset_of!(At, implicit))));
    let exported = Bytes(bytes.u64(offset_of!(At, exported)));
    Cell {
        used: if there { held.used() } else { held.left(exported).used() },
        implicit: if there { implicit } else { Bytes::ZERO },
        unaccounted: 0,
        returned: Bytes::ZERO,
        peak: Bytes(bytes.u64(offset_of!(At, peak))),
        waiting: bytes.u64(offset_of!(At, waiting)),
        creating: bytes.u32(offset_of!(At, creating)),
        implicit_epoch: bytes.u32(offset_of!(At, implicit_epoch)),
        charges: bytes.u32(offset_of!(At, charges)),
        exported,
        busy: time(offset_of!(At, busy)),
        inflight: time(offset_of!(At, inflight)),
        launches: bytes.u64(offset_of!(At, launches)),
        active: time(offset_of!(At, active)),
        turn: bytes.u64(offset_of!(At, turn)),
        first: time(offset_of!(At, first)),
        last: time(offset_of!(At, last)),
        spent: time(offset_of!(At, spent)),
        ends: time(offset_of!(At, ends)),
        sequence: bytes.u64(offset_of!(At, sequence)),
        intervals: core::array::from_fn(|index| {
            let at = offset_of!(At, interval) + index * size_of::<layout::Interval>();
            Span {
                start: time(at + offset_of!(layout::Interval, start)),
                end: time(at + offset_of!(layout::Interval, end)),
            }
        }),
    }
}
