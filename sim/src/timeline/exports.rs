//! Memory outside contexts: a process's own, and exports, which several processes may hold.
//!
//! An export's bytes are charged once, to its owner: first the exporter, and when that no longer
//! holds it, the longest holder. Descriptors that were sent keep it, too, whether or not a process
//! holds it. They are not visible here, so an export that no process holds *lingers* until a
//! process has checked with the system and ends it ([`Timeline::end_export`]).
//!
//! An export can also be a *team* of GPUs, to which memory is bound (`teams`). It has no bytes of
//! its own; the end of the team ends the bindings.
//!
//! ```text
//!   created -> held by processes -> lingering -> ended
//!                      ^---------------'  imported from a descriptor
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
    /// The kind of an export.
    pub ExportKind {
        /// Physical memory behind a handle, or a chunk of a pool.
        Memory,
        /// An allocation of a context, which others open by a number.
        Allocation,
        /// A pool's identity; no memory.
        Pool,
        /// A team of GPUs to which memory is bound.
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

/// An export that no process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lingering {
    /// The export.
    pub export: ExportId,
    /// Its serial: its record may be reused.
    pub serial: u64,
    /// Whether a descriptor may keep it.
    pub sent: bool,
}

impl<W: Words> Timeline<'_, W> {
    /// Creates an export, with a reference of its exporter.
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

    /// Turns memory of a context into an export, which is the process's own.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn export_of(&mut self, context: ContextId, size: Bytes) -> Result<ExportId, Error> {
        let (process, gpu) = (self.process_of(context), Gpu(self.get(context.gpu())));
        self.subtract(context.memory(), size.0);
        self.add(Holding::of(process, gpu).own(), size.0);
        self.new_export(process, Site::of(gpu.0, 0), ExportKind::Allocation, size.0)
    }

    /// Turns a process's own memory into an export.
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
        self.charge_export(process, export);
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

    /// Sets the file of an export's bytes.
    pub fn set_export_file(&mut self, export: ExportId, inode: u64) {
        self.set(export.inode(), inode);
    }

    /// Returns the export whose bytes are in a file. Searches all of them: imports are rare.
    #[must_use]
    pub fn export_in(&self, inode: u64) -> Option<ExportId> {
        let all = 1..=self.get(Global(0).top_export());
        all.map(ExportId).find(|&export| {
            inode != 0
                && self.get(export.inode()) == inode
                && self.is_importable(export, self.serial_of_export(export))
        })
    }

    /// Returns an export's serial; 0 if there is none.
    #[must_use]
    pub fn serial_of_export(&self, export: ExportId) -> u64 {
        if EXPORTS.reaches(self.words, export.0) { self.get(export.serial()) } else { 0 }
    }

    /// Returns the kind of an export.
    #[must_use]
    pub fn kind_of_export(&self, export: ExportId) -> ExportKind {
        ExportKind::of(self.get(export.kind()))
    }

    fn is_importable(&self, export: ExportId, serial: u64) -> bool {
        let there = serial != 0 && self.serial_of_export(export) == serial;
        there && (self.get(export.owner()) != 0 || self.get(export.sent()) != 0)
    }

    /// Returns whether the export of that serial exists and its exporter still holds it.
    #[must_use]
    pub fn is_offered(&self, export: ExportId, serial: u64) -> bool {
        serial != 0 && self.serial_of_export(export) == serial && self.get(export.exporter()) != 0
    }

    /// Returns GPU and size of an export.
    #[must_use]
    pub fn about_export(&self, export: ExportId) -> (usize, Bytes) {
        (index(self.get(export.gpu())), Bytes(self.get(export.size())))
    }

    /// Returns the location of an export's memory.
    #[must_use]
    pub fn site_of_export(&self, export: ExportId) -> Site {
        Site::of(self.get(export.gpu()), self.get(export.domain()))
    }

    /// Adds a process's reference to an export.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if it has ended; [`Error::Full`].
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
            self.enter_owner(process, export);
        }
        Ok(())
    }

    pub(super) fn hold_of(&self, process: Process, export: ExportId) -> Option<Hold> {
        let holders = holders_of(export).members(self.words).into_iter().map(Hold);
        holders.into_iter().find(|hold| self.get(hold.process()) == process.0)
    }

    /// Notes that descriptors of the export may exist from now on.
    pub fn send_export(&mut self, export: ExportId) {
        self.set(export.sent(), 1);
    }

    /// Drops a process's reference to an export. Returns whether it was the last.
    ///
    /// # Errors
    /// [`Error::NoAllocation`] if the process does not hold it.
    pub fn drop_hold(&mut self, process: usize, export: ExportId) -> Result<bool, Error> {
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

    /// Charges an export to the next holder when its owner no longer holds it, or orphans it.
    fn pass_on(&mut self, owner: Process, export: ExportId) {
        let (site, size) = (self.site_of_export(export), self.get(export.size()));
        self.discharge(owner, site, size);
        self.leave_owner(owner, export);
        let next = holders_of(export).first(self.words);
        if next != 0 {
            let next_owner = Process(self.get(Hold(next).process()));
            self.set(export.owner(), next_owner.0 + 1);
            self.charge(next_owner, site, size);
            self.enter_owner(next_owner, export);
            return;
        }
        self.set(export.owner(), 0);
        LINGERING.push(self.words, export.0);
        if self.get(export.sent()) == 0 {
            // Only its file is left.
            self.set(export.size(), 0);
            self.set(export.charged(), 0);
            self.unbind_all(export);
        } else {
            self.orphan(site, size);
        }
    }

    pub(super) fn held_by(&self, process: Process) -> Vec<ExportId> {
        let holds = holds_of(process).members(self.words).into_iter().map(Hold);
        holds.map(|hold| ExportId(self.get(hold.export()))).collect()
    }

    pub(super) fn is_held_by_several(&self, export: ExportId) -> bool {
        holders_of(export).members(self.words).len() > 1
    }

    /// Drops all references and own memory of a process that ends.
    pub(super) fn drop_all_holds(&mut self, process: Process) {
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

    /// Returns whether any export lingers.
    #[must_use]
    pub fn has_lingering(&self) -> bool {
        !LINGERING.is_empty(self.words)
    }

    /// Returns the exports that no process holds.
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

    /// Ends a lingering export, once no descriptor of it is open and its file is removed. Does
    /// nothing if another process was first.
    pub fn end_export(&mut self, lingering: Lingering) {
        let export = lingering.export;
        // A stream that waits for the semaphore ends with its process, and the semaphore after it.
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

    /// Returns the bytes of a GPU that no process holds.
    #[must_use]
    pub fn orphaned(&self, gpu: usize) -> Bytes {
        Bytes(self.get(Gpu(gpu as u64).orphaned()))
    }

    pub(super) fn check_shared(&self) -> Result<(), String> {
        let all = (1..=self.get(Global(0).top_export())).map(ExportId);
        all.filter(|&export| self.get(export.serial()) != 0).try_for_each(|export| {
            match self.kind_of_export(export) {
                ExportKind::Binary | ExportKind::Counting => self.check_semaphore(export),
                _ if self.is_awaited(export) => {
                    Err(format!("{export:?} is awaited, and is not a semaphore"))
                }
                _ => Ok(()),
            }
        })
    }

    pub(super) fn check_exports(&self, process: Process) -> Result<(), String> {
        let mut owned: BTreeMap<Site, u64> = BTreeMap::new();
        for hold in holds_of(process).members(self.words).into_iter().map(Hold) {
            let export = ExportId(self.get(hold.export()));
            if self.get(hold.process()) != process.0 || self.get(hold.count()) == 0 {
                return Err(format!("{hold:?} is listed with {process:?} and is another's"));
            }
            if !holders_of(export).members(self.words).contains(&hold.0) {
                return Err(format!("{export:?} does not list {hold:?}"));
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
