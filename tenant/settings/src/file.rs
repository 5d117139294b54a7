//! The `limits` file, by which a container is limited from outside. It precedes all variables,
//! because the container cannot write it.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cgpu_shm::layout::GPUS;
use cgpu_shm::limits::Limits;
use cgpu_shm::units::Bytes;

use super::{GpuLimit, Settings, amounts::mib};
use crate::{Inventory, Refusal};

/// More than any file of 16 GPUs, and small enough to read at a program's start.
const MAX_LENGTH: u64 = 1 << 16;

/// Reads the file at `path`. Returns `None` if there is none, or if this process could have written
/// it.
///
/// # Errors
/// The file is in force, but cannot be read or parsed, or allows more than a GPU has.
pub fn read(path: &Path, inventory: Inventory<'_>) -> Result<Option<Settings>, Refusal> {
    let refused = |problem: String| {
        Refusal::new(format!(
            "{}: {problem}; correct it where the container is started",
            path.display()
        ))
    };
    // A FIFO without a writer must not block.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => {
            return Err(refused(format!("expected a file that can be read, but {error}")));
        }
    };
    if could_have_been_written(path, &file) {
        return Ok(None);
    }
    let mut text = String::new();
    let read = file.take(MAX_LENGTH).read_to_string(&mut text);
    read.map_err(|error| refused(format!("expected text, but {error}")))?;
    let limits: Limits = text.parse().map_err(|problem| refused(format!("{problem}")))?;
    let gpus = gpus(&limits, inventory).map_err(refused)?;
    let name = limits.name;
    Ok(Some(Settings {
        gpus,
        name,
        weight: limits.weight,
        core_percentage: None,
        high_priority: false,
    }))
}

/// Returns whether a file at `path` is in force, whatever it contains.
#[must_use]
pub fn is_in_force(path: &Path) -> bool {
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    match opened {
        Ok(file) => !could_have_been_written(path, &file),
        Err(error) => !is_absent(&error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns all GPUs of the file: an invisible one may become visible (NVML does not list MIG
/// instances). A GPU that has been partitioned since the container was started is refused, because
/// its instances would have no limit.
fn gpus(limits: &Limits, inventory: Inventory<'_>) -> Result<Vec<GpuLimit>, String> {
    if limits.gpus.len() > GPUS {
        return Err(format!("expected at most {GPUS} GPUs, found {}", limits.gpus.len()));
    }
    let mut gpus = Vec::new();
    for (&(uuid, limit), ordinal) in limits.gpus.iter().zip(0..) {
        if inventory.partitioned.contains(&uuid) {
            return Err(format!("expected {uuid} whole, found it partitioned into MIG instances"));
        }
        let visible = inventory.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let total = visible.map_or(Bytes::ZERO, |gpu| gpu.total);
        if visible.is_some() && limit > total {
            return Err(format!(
                "expected at most the {} bytes of {uuid} ({}), found {}",
                total.0,
                mib(total),
                limit.0
            ));
        }
        gpus.push(GpuLimit { uuid, total, limit, ordinal });
    }
    Ok(gpus)
}

/// Returns whether this process could have written the file, or could make it writable: the file
/// then limits nothing. A file that cannot be examined is in force.
fn could_have_been_written(path: &Path, file: &File) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the string is NUL-terminated and outlives the call, which keeps nothing.
    let access =
        unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, libc::AT_EACCESS) };
    if access == 0 {
        return true;
    }
    is_ours(&path) && !is_read_only(file)
}

/// Returns whether this process may change the file's mode. Comparing ids fails in a user
/// namespace, where all owners without an id there appear as the overflow user, which may be this
/// process. But only an owner, or a process with an owner's rights, may open a file with O_NOATIME.
fn is_ours(path: &CStr) -> bool {
    // SAFETY: the string is NUL-terminated and outlives the call.
    let descriptor =
        unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NOATIME | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return false;
    }
    // SAFETY: the descriptor was just opened, and nothing else has it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    true
}

/// Returns whether the file is on a read-only mount.
fn is_read_only(file: &File) -> bool {
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the descriptor is open, and the call fills the one record, which outlives it.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return true;
    }
    // SAFETY: the call has succeeded, so it has filled the record.
    unsafe { about.assume_init() }.f_flag & libc::ST_RDONLY != 0
}
