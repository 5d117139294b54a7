//! Control groups (version 2) as processes find them: identified by the inodes of their folders,
//! which are the same for every process of the system.
//!
//! A process learns its own from the kernel, which no mount hides, and the ancestors from the
//! hierarchy that is mounted where it runs.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The inode of the root group's folder.
const ROOT: u64 = 1;
/// Depth after which a hierarchy is not followed.
const MAX_DEPTH: usize = 64;

/// Returns the ids of this process's group and its visible ancestors, upwards and without the root.
/// `known`: an earlier result, which is returned if the process is still there.
#[must_use]
pub fn own(known: &[u64]) -> Vec<u64> {
    let id = own_id();
    if id.is_some() && id == known.first().copied() {
        return known.to_vec();
    }
    let visible = own_folder().and_then(|folder| of_folder(&folder).ok()).unwrap_or_default();
    match id {
        Some(ROOT) => Vec::new(),
        // A mount can show another part of the hierarchy.
        Some(id) if visible.first() != Some(&id) => vec![id],
        _ => visible,
    }
}

/// Returns the ids of the group of a folder and its visible ancestors, upwards and without the
/// root.
///
/// # Errors
/// Those of the system; `InvalidInput` if it is not a folder of a hierarchy of version 2.
pub fn of_folder(folder: &Path) -> io::Result<Vec<u64>> {
    let mut at = open_folder(folder)?;
    if !is_group(&at) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut path = Vec::new();
    for _ in 0..MAX_DEPTH {
        let id = at.metadata()?.ino();
        if id == ROOT {
            break;
        }
        path.push(id);
        // By descriptors, so that a path through another process's root stays there.
        let above = open_at(&at, c"..")?;
        if !is_group(&above) || above.metadata()?.ino() == id {
            break;
        }
        at = above;
    }
    Ok(path)
}

/// Returns those of `ids` whose groups no longer exist. `folder` is of any group. Finds none
/// without the privilege to open files by handle.
#[must_use]
pub fn deleted(folder: &Path, ids: &[u64]) -> Vec<u64> {
    /// `struct file_handle` with a handle of 8 bytes.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: u64,
    }
    const FILEID_KERNFS: i32 = 0xfe;
    let Ok(mount) = File::open(folder) else { return Vec::new() };
    let is_deleted = |id: u64| {
        let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id };
        // SAFETY: the handle is as long as it says, and outlives the call; the descriptor is open.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw mut handle,
                libc::O_PATH | libc::O_CLOEXEC,
            )
        };
        match libc::c_int::try_from(opened) {
            Ok(descriptor) if descriptor >= 0 => {
                // SAFETY: just opened, so without another owner.
                drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
                false
            }
            _ => io::Error::last_os_error().raw_os_error() == Some(libc::ESTALE),
        }
    };
    ids.iter().copied().filter(|&id| is_deleted(id)).collect()
}

fn open_folder(folder: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)
}

fn open_at(folder: &File, name: &core::ffi::CStr) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open and the name a C string.
    let opened = unsafe { libc::openat(folder.as_raw_fd(), name.as_ptr(), flags) };
    if opened == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, so without another owner.
    Ok(unsafe { File::from_raw_fd(opened) })
}

fn is_group(folder: &File) -> bool {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure is written within the call.
    let answer = unsafe { libc::fstatfs(folder.as_raw_fd(), &raw mut about) };
    answer == 0 && about.f_type == libc::CGROUP2_SUPER_MAGIC
}

/// Asks the kernel for the id of this process's group; `None` before Linux 6.13.
fn own_id() -> Option<u64> {
    /// `struct pidfd_info`, first version.
    #[repr(C)]
    struct Info {
        mask: u64,
        group: u64,
        rest: [u32; 12],
    }
    const { assert!(size_of::<Info>() == 64) };
    /// `PIDFD_INFO_CGROUPID`.
    const GROUP: u64 = 1 << 2;
    /// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
    const GET_INFO: u64 = 3 << 30 | 64 << 16 | 0xff << 8 | 11;
    // SAFETY: takes a process id and flags.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) };
    let descriptor = libc::c_int::try_from(opened).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: just opened, so without another owner.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let mut info = Info { mask: GROUP, group: 0, rest: [0; 12] };
    // SAFETY: the request names the size of the structure, which outlives the call.
    let answer = unsafe { libc::ioctl(process.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (answer == 0 && info.mask & GROUP != 0).then_some(info.group)
}

/// Returns the folder of this process's group where a hierarchy is mounted.
fn own_folder() -> Option<PathBuf> {
    let groups = std::fs::read("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    folder_of(&groups, &mounts)
}

/// Finds the folder from `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn folder_of(groups: &[u8], mounts: &[u8]) -> Option<PathBuf> {
    let mut lines = groups.split(|&byte| byte == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (root, point) = (fields.nth(3)?, fields.next()?);
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        if kind != b"cgroup2" {
            return None;
        }
        let root = unescape(root);
        let below = if root == b"/" { path } else { path.strip_prefix(&root[..])? };
        if !(below.is_empty() || below.starts_with(b"/")) {
            return None;
        }
        let mut folder = unescape(point);
        folder.extend(below);
        Some(std::ffi::OsStr::from_bytes(&folder).into())
    })
}

/// Decodes the kernel's octal escapes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| byte == b'\\');
        let octal = digits
            .and_then(|digits| core::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        decoded.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_found_where_the_hierarchy_is_mounted() {
        let mounts = b"22 1 0:20 / /proc rw - proc proc rw\n\
                       38 31 0:38 / /sys/fs/cgroup/uni\\040fied rw shared:5 - cgroup2 none rw\n";
        let groups = b"9:name=systemd:/x\n0::/pod/leaf\n";
        let folder = |groups: &[u8], mounts: &[u8]| folder_of(groups, mounts);
        assert_eq!(folder(groups, mounts), Some("/sys/fs/cgroup/uni fied/pod/leaf".into()));
        assert_eq!(folder(b"0::/\n", mounts), Some("/sys/fs/cgroup/uni fied/".into()));
        let part = b"38 31 0:38 /pod /mnt rw - cgroup2 none rw\n";
        assert_eq!(folder(groups, part), Some("/mnt/leaf".into()));
        assert_eq!(folder(b"0::/pod\n", part), Some("/mnt".into()));
        assert_eq!(folder(b"0::/podium\n", part), None, "outside of what is mounted");
        assert_eq!(folder(b"1:cpu:/\n", mounts), None, "version 1 alone");
    }

    #[test]
    fn folder_outside_a_hierarchy_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = of_folder(folder.path()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(of_folder(Path::new("/nowhere")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
