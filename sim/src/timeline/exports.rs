//! Memory beyond contexts: what a process has by itself, and exports: memory that several processes may hold.
//!
//! An export's bytes are on its owner's books, once, however many hold it: on those of its maker as long as that holds it, then of
//! whoever has held it longest. Descriptors that were sent keep it too, held by anybody or not; they cannot be seen from here, so
//! an export that nobody holds *lingers* until somebody who has asked the system buries it ([`Timeline::bury`]).
//!
//! An export can be no memory but a *team* of GPUs, to which memory is bound (`teams`): then it has no bytes, and what is bound to it
//! goes with it.
//!
//! ```text
//!   made -> held by processes -> lingering -> buried          lingering -> held again: imported from a descriptor
//! ```

use std::collections::BTreeMap;

use cgpu_shm::units::Bytes;

use super::domains::Site;
use super::list::List;
use super::pool::Pool;
use super::records::{ContextId, ExportId, GPUS, Global, Gpu, Hold, Holding, Process};
use super::{Timeline, states};
use crate::error::Error;
use crate::words::{Words, index};

states! {
    /// What an export is.
    pub ExportKind {
        /// Physical memory behind a handle, or a chunk of a pool.
        Memory,
        /// An allocation of a context, that others open by a number.
        Allocation,
        /// The name of a pool; no memory.
        Pool,
        /// GPUs that memory is bound to together.
        Team,
        /// A semaphore that is signalled or not.
        Binary,
        /// A semaphore with a value.
        Counting,
    }
}

const EXPORTS: Pool = Pool {
    free: Global(0).free_export(),
    top: Global(0).top_export(),
    count: ExportId::COUNT,
    chain: |export| ExportId(export).next_lingering(),
};

const HOLDS: Pool = Pool {
    free: Global(0).free_hold(),
    top: Global(0).top_hold(),
    count: Hold::COUNT,
    chain: |hold| Hold(hold).next_in_process(),
};

const LINGERING: List = List {
    first: Global(0).first_lingering(),
    last: Global(0).last_lingering(),
    next: |export| ExportId(export).next_lingering(),
    previous: |export| ExportId(export).previous_lingering(),
};

const fn holds_of(process: Process) -> List {
    List {
        first: process.first_hold(),
        last: process.last_hold(),
        next: |hold| Hold(hold).next_in_process(),
        previous: |hold| Hold(hold).previous_in_process(),
    }
}

const fn holders_of(export: ExportId) -> List {
    List {
        first: export.first_hold(),
        last: export.last_hold(),
        next: |hold| Hold(hold).next_of_export(),
        previous: |hold| Hold(hold).previous_of_export(),
    }
}

/// An export that nobody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lingering {
    /// Which.
    pub export: ExportId,
    /// Its serial: another export may have its record by and by.
    pub serial: u64,
    /// Whether a descriptor may keep it.
    pub sent: bool,
}

impl<W: Words> Timeline<'_, W> {
    /// Makes an export, held once by its maker.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Full`].
    pub fn create_export(
        &mut self,
        process: usize,
        site: impl Into<Site>,
        kind: ExportKind,
        size: Bytes,
    ) -> Result<ExportId, Error> {
        let site = site.into();
        self.take_memory(process, site, size)?;
        self.new_export(Process(process as u64), site, kind, size.0)
    }

    /// Makes an export of memory that a context has: from now on it is the process's own.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn export_of(&mut self, context: ContextId, size: Bytes) -> Result<ExportId, Error> {
        let (process, gpu) = (self.process_of(context), Gpu(self.get(context.gpu())));
        self.subtract(context.memory(), size.0);
        self.add(Holding::of(process, gpu).own(), size.0);
        self.new_export(process, Site::of(gpu.0, 0), ExportKind::Allocation, size.0)
    }

    /// Makes an export of memory that the process has by itself.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn export_own(
        &mut self,
        process: usize,
        site: impl Into<Site>,
        size: Bytes,
    ) -> Result<ExportId, Error> {
        self.new_export(Process(process as u64), site.into(), ExportKind::Memory, size.0)
    }

    pub(super) fn new_export(
        &mut self,
        process: Process,
        site: Site,
        kind: ExportKind,
        size: u64,
    ) -> Result<ExportId, Error> {
        let export = ExportId(EXPORTS.take(self.words).ok_or(Error::Full("exports"))?);
        let serial = self.get(Global(0).exports()) + 1;
        self.set(Global(0).exports(), serial);
        for (at, value) in [
            (export.serial(), serial),
            (export.gpu(), site.gpu().0),
            (export.domain(), site.mark()),
            (export.size(), size),
            (export.inode(), 0),
            (export.owner(), process.0 + 1),
            (export.exporter(), process.0 + 1),
            (export.sent(), 0),
            (export.team(), 0),
            (export.kind(), kind.word()),
            (export.value(), 0),
        ] {
            self.set(at, value);
        }
        self.add_hold(process, export)?;
        Ok(export)
    }

    fn add_hold(&mut self, process: Process, export: ExportId) -> Result<(), Error> {
        let hold = Hold(HOLDS.take(self.words).ok_or(Error::Full("holds on exports"))?);
        for (at, value) in
            [(hold.process(), process.0), (hold.export(), export.0), (hold.count(), 1)]
        {
            self.set(at, value);
        }
        holds_of(process).push(self.words, hold.0);
        holders_of(export).push(self.words, hold.0);
        Ok(())
    }

    /// Says in which file an export's bytes lie.
    pub fn place_export(&mut self, export: ExportId, inode: u64) {
        self.set(export.inode(), inode);
    }

    /// The export whose bytes lie in a file. Looks at all of them: imports are rare.
    #[must_use]
    pub fn export_in(&self, inode: u64) -> Option<ExportId> {
        let all = 1..=self.get(Global(0).top_export());
        all.map(ExportId).find(|&export| {
            inode != 0
                && self.get(export.inode()) == inode
                && self.is_importable(export, self.serial_of_export(export))
        })
    }

    /// An export's serial; 0 for one that is not there.
    #[must_use]
    pub fn serial_of_export(&self, export: ExportId) -> u64 {
        if EXPORTS.reaches(self.words, export.0) { self.get(export.serial()) } else { 0 }
    }

    /// What an export is.
    #[must_use]
    pub fn kind_of_export(&self, export: ExportId) -> ExportKind {
        ExportKind::of(self.get(export.kind()))
    }

    fn is_importable(&self, export: ExportId, serial: u64) -> bool {
        let there = serial != 0 && self.serial_of_export(export) == serial;
        there && (self.get(export.owner()) != 0 || self.get(export.sent()) != 0)
    }

    /// Whether the export of that serial is there and its maker still holds it.
    #[must_use]
    pub fn is_offered(&self, export: ExportId, serial: u64) -> bool {
        serial != 0 && self.serial_of_export(export) == serial && self.get(export.exporter()) != 0
    }

    /// GPU and size of an export.
    #[must_use]
    pub fn about_export(&self, export: ExportId) -> (usize, Bytes) {
        (index(self.get(export.gpu())), Bytes(self.get(export.size())))
    }

    /// Where the memory of an export lies.
    #[must_use]
    pub fn site_of_export(&self, export: ExportId) -> Site {
        Site::of(self.get(export.gpu()), self.get(export.domain()))
    }

    /// Holds an export once more.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it is not there any more; [`Error::Full`].
    pub fn hold(&mut self, process: usize, export: ExportId, serial: u64) -> Result<(), Error> {
        let process = Process(process as u64);
        if !self.is_importable(export, serial) {
            return Err(Error::NoAllocation);
        }
        if let Some(hold) = self.hold_of(process, export) {
            self.add(hold.count(), 1);
            return Ok(());
        }
        self.add_hold(process, export)?;
        if self.get(export.owner()) == 0 {
            LINGERING.remove(self.words, export.0);
            let (site, size) = (self.site_of_export(export), self.get(export.size()));
            self.set(export.owner(), process.0 + 1);
            self.unorphan(site, size);
            self.charge(process, site, size);
        }
        Ok(())
    }

    pub(super) fn hold_of(&self, process: Process, export: ExportId) -> Option<Hold> {
        let holders = holders_of(export).members(self.words).into_iter().map(Hold);
        holders.into_iter().find(|hold| self.get(hold.process()) == process.0)
    }

    /// Descriptors of the export may be about from now on.
    pub fn send_export(&mut self, export: ExportId) {
        self.set(export.sent(), 1);
    }

    /// Ends one hold of a process. `true`: nobody holds the export any more.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if the process does not hold it.
    pub fn let_go(&mut self, process: usize, export: ExportId) -> Result<bool, Error> {
        let process = Process(process as u64);
        let hold = self.hold_of(process, export).ok_or(Error::NoAllocation)?;
        self.end_once(process, hold);
        Ok(holders_of(export).is_empty(self.words))
    }

    pub(super) fn end_once(&mut self, process: Process, hold: Hold) {
        self.subtract(hold.count(), 1);
        if self.get(hold.count()) == 0 {
            self.end_hold(process, hold);
        }
    }

    fn end_hold(&mut self, process: Process, hold: Hold) {
        let export = ExportId(self.get(hold.export()));
        holds_of(process).remove(self.words, hold.0);
        holders_of(export).remove(self.words, hold.0);
        HOLDS.give(self.words, hold.0);
        if self.get(export.exporter()) == process.0 + 1 {
            self.set(export.exporter(), 0);
        }
        if self.get(export.owner()) == process.0 + 1 {
            self.pass_on(process, export);
        }
    }

    /// The owner holds it no more: the next one bears it, or nobody.
    fn pass_on(&mut self, owner: Process, export: ExportId) {
        let (site, size) = (self.site_of_export(export), self.get(export.size()));
        self.discharge(owner, site, size);
        let next = holders_of(export).first(self.words);
        if next != 0 {
            let heir = Process(self.get(Hold(next).process()));
            self.set(export.owner(), heir.0 + 1);
            self.charge(heir, site, size);
            return;
        }
        self.set(export.owner(), 0);
        LINGERING.push(self.words, export.0);
        if self.get(export.sent()) == 0 {
            // Nothing but its file is left of it.
            self.set(export.size(), 0);
            self.unbind_all(export);
        } else {
            self.orphan(site, size);
        }
    }

    /// The exports that a process holds.
    pub(super) fn held_by(&self, process: Process) -> Vec<ExportId> {
        let holds = holds_of(process).members(self.words).into_iter().map(Hold);
        holds.map(|hold| ExportId(self.get(hold.export()))).collect()
    }

    /// Whether more than one process holds an export.
    pub(super) fn is_held_by_several(&self, export: ExportId) -> bool {
        holders_of(export).members(self.words).len() > 1
    }

    /// A process ends: it holds nothing, and has no memory of its own.
    pub(super) fn let_all_go(&mut self, process: Process) {
        self.unbind_all_of(process);
        for hold in holds_of(process).members(self.words) {
            self.end_hold(process, Hold(hold));
            self.words.seam();
        }
        for gpu in (0..GPUS).map(Gpu) {
            self.discharge_all(process, gpu);
            self.words.seam();
        }
    }

    /// Whether any export lingers.
    #[must_use]
    pub fn has_lingering(&self) -> bool {
        !LINGERING.is_empty(self.words)
    }

    /// The exports that nobody holds.
    #[must_use]
    pub fn lingering(&self) -> Vec<Lingering> {
        let all = LINGERING.members(self.words).into_iter().map(ExportId);
        all.map(|export| Lingering {
            export,
            serial: self.get(export.serial()),
            sent: self.get(export.sent()) != 0,
        })
        .collect()
    }

    /// No descriptor of a lingering export is open any more, and its file is gone: so is its memory. Does nothing if somebody was
    /// quicker.
    pub fn bury(&mut self, lingering: Lingering) {
        let export = lingering.export;
        // A stream that waits for a semaphore that is gone goes with its process, and the semaphore after it.
        if self.serial_of_export(export) != lingering.serial
            || self.get(export.owner()) != 0
            || self.is_awaited(export)
        {
            return;
        }
        if self.get(export.sent()) != 0 {
            self.unorphan(self.site_of_export(export), self.get(export.size()));
            self.unbind_all(export);
        }
        LINGERING.remove(self.words, export.0);
        self.set(export.serial(), 0);
        EXPORTS.give(self.words, export.0);
    }

    /// Bytes of a GPU that no process has.
    #[must_use]
    pub fn orphaned(&self, gpu: usize) -> Bytes {
        Bytes(self.get(Gpu(gpu as u64).orphaned()))
    }

    /// What always holds for what is shared.
    pub(super) fn check_shared(&self) -> Result<(), String> {
        let all = (1..=self.get(Global(0).top_export())).map(ExportId);
        all.filter(|&export| self.get(export.serial()) != 0).try_for_each(|export| {
            match self.kind_of_export(export) {
                ExportKind::Binary | ExportKind::Counting => self.check_semaphore(export),
                _ if self.is_awaited(export) => {
                    Err(format!("{export:?} is awaited, and no semaphore"))
                }
                _ => Ok(()),
            }
        })
    }

    /// What always holds for a process's holds.
    pub(super) fn check_exports(&self, process: Process) -> Result<(), String> {
        let mut owned: BTreeMap<Site, u64> = BTreeMap::new();
        for hold in holds_of(process).members(self.words).into_iter().map(Hold) {
            let export = ExportId(self.get(hold.export()));
            if self.get(hold.process()) != process.0 || self.get(hold.count()) == 0 {
                return Err(format!("{hold:?} is listed with {process:?} and is not its"));
            }
            if !holders_of(export).members(self.words).contains(&hold.0) {
                return Err(format!("{export:?} does not know of {hold:?}"));
            }
            if self.get(export.owner()) == process.0 + 1 {
                *owned.entry(self.site_of_export(export)).or_default() += self.get(export.size());
            }
        }
        for (site, owned) in owned {
            let own = self.own(process, site);
            if owned > own {
                return Err(format!(
                    "{process:?} owns exports of {owned} bytes at {site:?}, and has {own} by itself"
                ));
            }
        }
        Ok(())
    }
}
