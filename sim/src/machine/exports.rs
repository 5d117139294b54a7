//! The GPU's accounting as this process's memory uses it, and the end of unused exports.

use std::fs::File;
use std::io;

use cgpu_shm::units::Bytes;

use super::{ContextId, Core};
use crate::error::Error;
use crate::memory::{Accounting, Exported};
use crate::timeline::{Bound, ExportId, ExportKind, Lingering, Site};

impl Accounting for Core {
    fn reserve(&self, context: ContextId, size: Bytes) -> Result<(), Error> {
        self.in_group(|timeline, _| {
            self.own_context(timeline, context)?;
            timeline.reserve(context, size)
        })
    }

    fn release(&self, context: ContextId, size: Bytes) -> Result<(), Error> {
        self.with(|timeline, _| {
            timeline.release(context, size);
            Ok(())
        })
    }

    fn take(&self, site: Site, size: Bytes) -> Result<(), Error> {
        self.in_group(|timeline, _| timeline.take_memory(self.segment.process(), site, size))
    }

    fn give(&self, site: Site, size: Bytes) -> Result<(), Error> {
        self.with(|timeline, _| {
            timeline.give_memory(self.segment.process(), site, size);
            Ok(())
        })
    }

    fn create_export(&self, site: Site, size: Bytes) -> Result<Exported, Error> {
        self.make_export(site, ExportKind::Memory, size)
    }

    fn export_of(&self, context: ContextId, size: Bytes) -> Result<Exported, Error> {
        let export = self.with(|timeline, _| {
            self.own_context(timeline, context)?;
            timeline.export_of(context, size)
        })?;
        self.create_file(export, size.0).inspect_err(|_| {
            // Return the memory to the context.
            let _ = self.drop_hold(export).and_then(|()| self.reserve(context, size));
        })
    }

    fn export_own(&self, site: Site, size: Bytes) -> Result<Exported, Error> {
        let export =
            self.with(|timeline, _| timeline.export_own(self.segment.process(), site, size))?;
        self.create_file(export, size.0).inspect_err(|_| {
            // Return the memory to the process.
            let _ = self.drop_hold(export).and_then(|()| self.take(site, size));
        })
    }

    fn bound(&self, team: ExportId) -> Result<Vec<(Bound, File)>, Error> {
        let bound = self.with(|timeline, _| Ok(timeline.bound(team)))?;
        let open = |bound: Bound| match self.files.open(bound.serial) {
            Ok(file) => Ok(Some((bound, file))),
            // Unbound by another process in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::System(format!("cannot open the memory of a team: {error}"))),
        };
        bound.into_iter().filter_map(|bound| open(bound).transpose()).collect()
    }

    fn drop_hold(&self, export: ExportId) -> Result<(), Error> {
        let last = self.with(|timeline, _| timeline.drop_hold(self.segment.process(), export))?;
        if last { self.end_unused_exports() } else { Ok(()) }
    }
}

impl Core {
    /// Creates an export with memory of its own.
    pub(super) fn make_export(
        &self,
        site: Site,
        kind: ExportKind,
        size: Bytes,
    ) -> Result<Exported, Error> {
        let process = self.segment.process();
        let export =
            self.in_group(|timeline, _| timeline.create_export(process, site, kind, size))?;
        self.create_file_or_drop(export, size.0)
    }

    /// Creates the file of a new export; ends the export if that fails.
    pub(super) fn create_file_or_drop(
        &self,
        export: ExportId,
        length: u64,
    ) -> Result<Exported, Error> {
        self.create_file(export, length).inspect_err(|_| {
            // If this fails, too, the export ends with the process.
            let _ = self.drop_hold(export);
        })
    }

    fn create_file(&self, export: ExportId, length: u64) -> Result<Exported, Error> {
        let serial = self.with(|timeline, _| Ok(timeline.serial_of_export(export)))?;
        let (file, inode) = self.files.create(serial, length).map_err(|error| {
            Error::System(format!("cannot create memory for other processes: {error}"))
        })?;
        self.with(|timeline, _| {
            timeline.set_export_file(export, inode);
            Ok(())
        })?;
        Ok(Exported { export, serial, file })
    }

    /// Ends the exports that no process holds and no descriptor keeps.
    pub(super) fn end_unused_exports(&self) -> Result<(), Error> {
        loop {
            let lingering = self.with(|timeline, _| {
                Ok(if timeline.has_lingering() { timeline.lingering() } else { Vec::new() })
            })?;
            let mut ended = false;
            for lingering in lingering {
                ended |= self.end_if_unused(lingering)?;
            }
            // The end of a multicast object releases the memory that was bound to it.
            if !ended {
                return Ok(());
            }
        }
    }

    /// Ends an export unless something keeps it. Returns whether it did.
    fn end_if_unused(&self, lingering: Lingering) -> Result<bool, Error> {
        // A missing file is kept by no descriptor. One that cannot be checked is checked again
        // later.
        let kept = match self.files.is_kept(lingering.serial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => true,
            kept => lingering.sent && kept.unwrap_or(false),
        };
        if kept {
            return Ok(false);
        }
        // Without a descriptor no process can find it any more, so this result stays true.
        self.files.remove(lingering.serial);
        self.with(|timeline, _| {
            timeline.end_export(lingering);
            Ok(true)
        })
    }
}
