//! The memory that a container's folder lies in: as much as its files take, and no more.
//!
//! Two files of the folder are the container's to write. Beside other files of `/run` they could be written on until `/run` is full, and with it whatever else the
//! host keeps there; no file of a tmpfs has an end that its writers cannot move. So each folder is a tmpfs of its own, with room for what belongs there and
//! little else: who fills it has filled its own.
//!
//! It is mounted where the host and its monitor see it. An engine that has a mount namespace of its own (in a container, or as another user's) would fill a folder that
//! nobody else finds; there the folder stays what it was. What is mounted for the host such an engine does not see; below lie the limits, so that it knows how much is given.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cgpu_shm::preamble::Kind;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::thread::LinkNameSpaceType;

/// Pages for the small files: limits, what is preloaded, what we note, the sentence of a refusal.
const SMALL_FILE_PAGES: u64 = 32;
/// Files, folders and links; there are about a dozen, and extended attributes count as some.
const MAX_INODES: u32 = 64;
/// `use` takes 529 pages. Given one by one, and taken back one by one, they cost a start 0.9 ms; in one piece of 2 MiB, where the kernel has one, a tenth of that. What is smaller than
/// a piece is given pages as ever. Kernels without huge pages do not know the word.
const HUGE_OPTION: &str = ",huge=within_size";
/// The user namespace that the kernel starts with (`PROC_USER_INIT_INO`).
const INITIAL_USERS: u64 = 0xEFFF_FFFD;
/// The mount namespace that the kernel starts with, where that has a fixed number (`MNT_NS_INIT_INO`, Linux 6.18).
const INITIAL_MOUNTS: u64 = 0xEFFF_FFF8;

/// Mounts one on a folder, if we are where the host sees it; whether that was done.
///
/// # Errors
/// As the system says.
pub fn mount(folder: &Path) -> io::Result<bool> {
    if !is_the_hosts() {
        return Ok(false);
    }
    let page = rustix::param::page_size() as u64;
    let size: u64 = [Kind::Use.size(), Kind::Grant.size(), SMALL_FILE_PAGES * page]
        .iter()
        .map(|size| size.next_multiple_of(page))
        .sum();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mount = |more: &str| {
        let options = CString::new(format!("size={size},nr_inodes={MAX_INODES},mode=0755{more}"))?;
        Ok::<_, io::Error>(rustix::mount::mount("cgpu", folder, "tmpfs", flags, options.as_c_str()))
    };
    let mounted = match mount(HUGE_OPTION)? {
        Err(Errno::INVAL) => mount("")?,
        mounted => mounted,
    };
    match mounted {
        Ok(()) => Ok(true),
        // Root without that right, as in a container that shares the host's namespaces.
        Err(Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether one is there.
#[must_use]
pub fn is_mounted(folder: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|about| about.dev()).ok();
    device(folder) != folder.parent().and_then(device)
}

/// Takes it away, if there is one; whoever has its files open keeps them.
pub fn unmount(folder: &Path) {
    // None is there, or it is not ours to take away: removing the folder says so.
    let _ = rustix::mount::unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Lets a process see it whose mounts are its own since before: a container's first one, in whose mount namespace a hook will look for the files. We are in that
/// namespace afterwards.
///
/// # Errors
/// As the system says; Linux 5.2 is needed.
pub fn show(folder: &Path, pid: i32) -> io::Result<()> {
    let (open, within) = (OpenTreeFlags::OPEN_TREE_CLONE, OpenTreeFlags::OPEN_TREE_CLOEXEC);
    let tree = rustix::mount::open_tree(CWD, folder, open | within)?;
    let theirs = rustix::fs::open(
        format!("/proc/{pid}/ns/mnt"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::thread::move_into_link_name_space(theirs.as_fd(), Some(LinkNameSpaceType::Mount))?;
    // Where the host's mounts are shared, it has come there by itself.
    if is_mounted(folder) {
        return Ok(());
    }
    Ok(rustix::mount::move_mount(&tree, c"", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Whether what we mount is mounted for the host: among all its processes and users, where its first process is.
#[must_use]
pub fn is_the_hosts() -> bool {
    let of =
        |name: &str| std::fs::metadata(Path::new("/proc").join(name)).map(|about| about.ino()).ok();
    of("self/ns/pid") == Some(crate::folder::INITIAL)
        && of("self/ns/user") == Some(INITIAL_USERS)
        // Of the first process it may not be told to whom has fewer rights than that has.
        && of("self/ns/mnt").is_some_and(|own| own == of("1/ns/mnt").unwrap_or(INITIAL_MOUNTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;

    #[test]
    fn tenant_that_fills_its_folder_fills_only_its_own() {
        let folder = tempfile::tempdir().unwrap();
        if !mount(folder.path()).unwrap_or(false) {
            return;
        }
        let outcome = std::panic::catch_unwind(|| {
            let file = folder.path().join("use");
            let written =
                io::copy(&mut io::repeat(1).take(16 << 20), &mut fs::File::create(&file).unwrap());
            let held = fs::metadata(&file).unwrap().blocks() * 512;
            let made = (0..1000)
                .take_while(|n| fs::create_dir(folder.path().join(n.to_string())).is_ok())
                .count();
            (written.is_err(), held, made)
        });
        unmount(folder.path());
        let (is_full, held, made) = outcome.unwrap();
        assert!(is_full && held < 4 << 20, "{held}");
        assert!(made < 100, "{made}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Where none is, nothing is taken away.
        unmount(folder.path());
    }
}
