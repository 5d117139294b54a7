//! The `limits` file: what the starter of the container allows it. It counts before all variables, because the container cannot
//! write it.

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

/// More than any file of 16 GPUs, and little enough to read at a program's start.
const LONGEST: u64 = 1 << 16;

/// Reads the file at `path`. None: there is none, or none that counts, because this process could have written it.
///
/// # Errors
/// The file is there and counts, but cannot be read or understood, or allows more than a GPU has.
pub fn read(path: &Path, inventory: Inventory<'_>) -> Result<Option<Settings>, Refusal> {
    let refused = |problem: String| {
        Refusal::new(format!(
            "{}: {problem}; correct it where the container is started",
            path.display()
        ))
    };
    // Not to wait for a writer of a FIFO.
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
    let read = file.take(LONGEST).read_to_string(&mut text);
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

/// Whether there is a file at `path` that counts, whatever it says.
#[must_use]
pub fn counts(path: &Path) -> bool {
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    match opened {
        Ok(file) => !could_have_been_written(path, &file),
        Err(error) => !is_absent(&error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// All GPUs of the file: one that is not visible now may be later (MIG instances are not NVML's to list). One that was whole when the container was started, and has been
/// cut since, is not what was meant: nothing would hold its instances to anything.
fn gpus(limits: &Limits, inventory: Inventory<'_>) -> Result<Vec<GpuLimit>, String> {
    if limits.gpus.len() > GPUS {
        return Err(format!("expected at most {GPUS} GPUs, found {}", limits.gpus.len()));
    }
    let mut gpus = Vec::new();
    for (&(uuid, limit), ordinal) in limits.gpus.iter().zip(0..) {
        if inventory.partitioned.contains(&uuid) {
            return Err(format!("expected {uuid} whole, found it cut into MIG instances"));
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

/// Whether this process could have written the file, or could make it writable: then it says nothing that the process does not
/// want it to say. Where it cannot be told, it counts.
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

/// Whether the file is this process's to make writable. Not by comparing ids: in a user namespace every owner who has no id there
/// seems to be the same `nobody`, who may be us. But only an owner, or who has an owner's rights, may ask for O_NOATIME.
fn is_ours(path: &CStr) -> bool {
    // SAFETY: the string is NUL-terminated and outlives the call.
    let descriptor =
        unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NOATIME | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return false;
    }
    // SAFETY: just opened, and no other code's.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    true
}

/// Whether the file lies on a read-only mount.
fn is_read_only(file: &File) -> bool {
    let mut about = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the descriptor is open, and the call fills the one record, which outlives it.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return true;
    }
    // SAFETY: the call has succeeded, so it has filled the record.
    unsafe { about.assume_init() }.f_flag & libc::ST_RDONLY != 0
}
