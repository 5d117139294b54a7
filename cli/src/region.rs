//! The shared files of a container, for the process that starts it.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Result;
use cgpu_shm::file::{self, Access, Fault};
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::preamble::Kind;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{Nanos, SlotIndex, TimeScale};

/// Creates the files that are missing.
pub(crate) fn make(folder: &Path, name: &str, time_scale: Option<TimeScale>) -> Result<()> {
    let created =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(Nanos::ZERO, Nanos::from);
    Region::make(folder, RegionSpec { name, created, time_scale })?;
    Ok(())
}

/// Returns whether a process of the container is alive; true if that cannot be found out.
pub(crate) fn is_alive(folder: &Path) -> bool {
    let file = match file::open(folder, Kind::Use, Access::Read) {
        Ok(file) => file,
        Err(error) => return !matches!(error.fault, Fault::Missing),
    };
    // A live process holds the lock on its slot's byte, whatever the file contains.
    SlotIndex::all().any(|slot| {
        liveness::liveness(file.as_fd(), slot).map_or(true, |liveness| liveness == Liveness::Alive)
    })
}
