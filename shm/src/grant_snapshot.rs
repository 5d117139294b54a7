//! The monitor's page for display, copied.

use std::mem::offset_of;
use std::path::{Path, PathBuf};

use crate::file::{self, Access, Error, Fault};
use crate::grant::Turn;
use crate::layout::{GPUS, Grant, GrantGpu};
use crate::preamble::{self, Kind};
use crate::quiet_file::QuietFile;
use crate::record::Record;
use crate::units::{Bytes, Nanos};

/// A copy of the page, without the words that only gates read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantSnapshot {
    /// Changes at least every 250 ms while a monitor runs ([`crate::grant::STALE`]).
    pub heartbeat: u64,
    /// Identifies the monitor's run; 0: there never was one, and no other field is valid.
    pub monitor: u64,
    /// By index; always [`GPUS`] entries.
    pub gpus: Vec<GpuGrant>,
}

/// The grant on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuGrant {
    /// The present turn.
    pub turn: Turn,
    /// The memory limit in force; zero: as registered.
    pub limit: Bytes,
    /// The GPU's policy, 0..5.
    pub policy: u32,
    /// The container's weight on it.
    pub weight: u32,
    /// Its configured share, in thousandths of a percent.
    pub share: u32,
    /// Its GPU time in the monitor's accounting.
    pub busy: Nanos,
    /// Its share of the last second; `None` while it is not metered.
    pub measured: Option<Measured>,
}

/// `CGPU_ESTIMATE`.
pub const ESTIMATE: u32 = 1 << 31;

/// A measured share of the GPU's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Thousandths of a percent.
    pub share: u32,
    /// False: an estimate, because other containers' work ran at the same time.
    pub exact: bool,
}

impl Measured {
    /// Encodes the page's word.
    #[must_use]
    pub fn encode(measured: Option<Self>) -> u32 {
        measured.map_or(0, |Self { share, exact }| {
            (share.min(100_000) + 1) | if exact { 0 } else { ESTIMATE }
        })
    }

    fn decode(word: u32) -> Option<Self> {
        let share = (word & !ESTIMATE).checked_sub(1)?;
        Some(Self { share: share.min(100_000), exact: word & ESTIMATE == 0 })
    }
}

/// A reader of one container's page.
#[derive(Debug)]
pub struct GrantReader {
    path: PathBuf,
    file: QuietFile,
}

impl GrantReader {
    /// Opens the page of a container's directory.
    ///
    /// # Errors
    /// [`Error`] when it is missing or cannot be used.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let file = file::open(directory, Kind::Grant, Access::Read)?;
        let file = QuietFile::new(file, size_of::<Grant>());
        Ok(Self { path: directory.join(Kind::Grant.name()), file })
    }

    /// Copies the page.
    ///
    /// # Errors
    /// [`Error`] when the file is no longer valid.
    pub fn read(&self) -> Result<GrantSnapshot, Error> {
        let failed = |fault| Error::new(&self.path, fault);
        let mut bytes = vec![0; offset_of!(Grant, drained)];
        self.file.read_exact_at(&mut bytes, 0).map_err(|error| failed(Fault::Unreadable(error)))?;
        let page = Record(&bytes);
        preamble::check(
            Kind::Grant,
            page.u32(offset_of!(Grant, version)),
            page.u32(offset_of!(Grant, magic)),
            page.u64(offset_of!(Grant, size)),
        )
        .map_err(|invalid| failed(Fault::InvalidPreamble(invalid)))?;
        let gpu = |index| {
            page.part(offset_of!(Grant, gpu) + index * size_of::<GrantGpu>(), size_of::<GrantGpu>())
        };
        Ok(GrantSnapshot {
            heartbeat: page.u64(offset_of!(Grant, heartbeat)),
            monitor: page.u64(offset_of!(Grant, monitor)),
            gpus: (0..GPUS).map(|index| decode(gpu(index))).collect(),
        })
    }
}

fn decode(bytes: Record<'_>) -> GpuGrant {
    GpuGrant {
        turn: Turn(bytes.u64(offset_of!(GrantGpu, turn))),
        limit: Bytes(bytes.u64(offset_of!(GrantGpu, limit))),
        policy: bytes.u32(offset_of!(GrantGpu, policy)),
        weight: bytes.u32(offset_of!(GrantGpu, weight)),
        share: bytes.u32(offset_of!(GrantGpu, share)),
        busy: Nanos(bytes.u64(offset_of!(GrantGpu, busy))),
        measured: Measured::decode(bytes.u32(offset_of!(GrantGpu, measured))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Ordering;
    use crate::grant::{GrantWriter, TurnState};
    use crate::region::{Region, RegionSpec};
    use crate::units::DeviceIndex;

    #[test]
    fn snapshot_has_what_the_monitor_wrote() {
        let folder = tempfile::tempdir().unwrap();
        Region::make(
            folder.path(),
            RegionSpec { name: "a", created: Nanos::ZERO, time_scale: None },
        )
        .unwrap();
        let reader = GrantReader::open(folder.path()).unwrap();
        assert_eq!(reader.read().unwrap().monitor, 0);
        let writer = GrantWriter::open(folder.path()).unwrap();
        let gpu = DeviceIndex::new(1).unwrap();
        writer.adopt(7);
        writer.set_turn(gpu, Turn::new(3, TurnState::Wait), Nanos(1), Nanos(2));
        writer.gpu(gpu).share.store(33_333, Ordering::Relaxed);
        writer.gpu(gpu).busy.store(5, Ordering::Relaxed);
        let before = reader.read().unwrap();
        writer.beat();
        let after = reader.read().unwrap();
        assert_ne!(before.heartbeat, after.heartbeat);
        assert_eq!((after.monitor, after.gpus.len()), (7, GPUS));
        let note = after.gpus[1];
        assert_eq!((note.turn.state(), note.share, note.busy), (TurnState::Wait, 33_333, Nanos(5)));
        assert_eq!((after.gpus[0].share, after.gpus[0].measured), (0, None));
        for measured in [
            None,
            Some(Measured { share: 0, exact: true }),
            Some(Measured { share: 100_000, exact: false }),
        ] {
            writer.gpu(gpu).measured.store(Measured::encode(measured), Ordering::Relaxed);
            assert_eq!(reader.read().unwrap().gpus[1].measured, measured);
        }
    }
}
