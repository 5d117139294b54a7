//! The card's books, as this process's memory asks for them; and the end of exports that nobody holds.

use cgpu_proto::units::Bytes;

use super::{ContextId, Core};
use crate::error::Error;
use crate::memory::{Books, Exported};
use crate::timeline::{ExportId, Lingering};

impl Books for Core {
    fn reserve(&self, context: ContextId, size: Bytes) -> Result<(), Error> {
        self.with(|timeline, _| {
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

    fn take(&self, card: usize, size: Bytes) -> Result<(), Error> {
        self.with(|timeline, _| timeline.take_memory(self.segment.process(), card, size))
    }

    fn give(&self, card: usize, size: Bytes) -> Result<(), Error> {
        self.with(|timeline, _| {
            timeline.give_memory(self.segment.process(), card, size);
            Ok(())
        })
    }

    fn create_export(&self, card: usize, size: Bytes) -> Result<Exported, Error> {
        let export = self.with(|timeline, _| timeline.create_export(self.segment.process(), card, size))?;
        self.place(export, size).inspect_err(|_| {
            // What cannot be told to the books is told by the process's end.
            let _ = self.let_go(export);
        })
    }

    fn export_of(&self, context: ContextId, size: Bytes) -> Result<Exported, Error> {
        let export = self.with(|timeline, _| {
            self.own_context(timeline, context)?;
            timeline.export_of(context, size)
        })?;
        self.place(export, size).inspect_err(|_| {
            // As it was: the context's.
            let _ = self.let_go(export).and_then(|()| self.reserve(context, size));
        })
    }

    fn let_go(&self, export: ExportId) -> Result<(), Error> {
        let last = self.with(|timeline, _| timeline.let_go(self.segment.process(), export))?;
        if last { self.bury_exports() } else { Ok(()) }
    }
}

impl Core {
    /// Makes the file of an export that was just made.
    fn place(&self, export: ExportId, size: Bytes) -> Result<Exported, Error> {
        let serial = self.with(|timeline, _| Ok(timeline.serial_of_export(export)))?;
        let (file, inode) = self
            .files
            .create(serial, size.0)
            .map_err(|error| Error::System(format!("memory for other processes: {error}")))?;
        self.with(|timeline, _| {
            timeline.place_export(export, inode);
            Ok(())
        })?;
        Ok(Exported { export, serial, file })
    }

    /// Ends the exports that nobody holds and no descriptor keeps.
    pub(super) fn bury_exports(&self) -> Result<(), Error> {
        let lingering = self.with(|timeline, _| {
            Ok(if timeline.has_lingering() { timeline.lingering() } else { Vec::new() })
        })?;
        for lingering in lingering {
            self.bury(lingering)?;
        }
        Ok(())
    }

    fn bury(&self, lingering: Lingering) -> Result<(), Error> {
        // A file that is gone is kept by nobody. One that cannot be looked at is looked at again later.
        let kept = match self.files.is_kept(lingering.serial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => true,
            kept => lingering.sent && kept.unwrap_or(false),
        };
        if kept {
            return Ok(());
        }
        // Without a descriptor nobody can find it any more, so what is found true here stays so.
        self.files.remove(lingering.serial);
        self.with(|timeline, _| {
            timeline.bury(lingering);
            Ok(())
        })
    }
}
