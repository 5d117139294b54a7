//! The tmpfs of a container's folder, which limits what the container can write.
//!
//! The container can write to two files of the folder. On a shared file system such as `/run` it
//! could fill the space of all processes of the host, since a writable file in a tmpfs has no size
//! limit. So each folder is a tmpfs of its own, with little more space than its files need.
//!
//! It is mounted only where the host and its monitor see it. An engine in a mount namespace of its
//! own (in a container, or of another user) would fill a tmpfs that no other process finds, so
//! there the folder stays as it is. Such an engine does not see tmpfs mounts of the host. The
//! limits lie below the mount, so that it knows which limits are given.

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

/// Pages for a container's small files: limits, preload files, the message of a refusal.
const SMALL_FILE_PAGES: u64 = 32;
/// Files, folders and links of a container: about a dozen, and extended attributes may count as
/// inodes.
const MAX_INODES: u32 = 64;
/// Lets the kernel use a huge page. `use` has 529 pages; to allocate and free them one by one costs
/// a start 0.9 ms, and with one page of 2 MiB a tenth of that. Smaller files use normal pages.
/// Kernels without huge pages refuse the option.
const HUGE_OPTION: &str = ",huge=within_size";
/// Inode of the initial user namespace (`PROC_USER_INIT_INO`).
const INITIAL_USERS: u64 = 0xEFFF_FFFD;
/// Inode of the initial mount namespace, where it is fixed (`MNT_NS_INIT_INO`, Linux 6.18).
const INITIAL_MOUNTS: u64 = 0xEFFF_FFF8;

/// Mounts a tmpfs with files of so many containers on a folder, if it would be mounted for the
/// host; returns whether it did.
///
/// # Errors
/// The system refuses the mount.
pub fn mount(folder: &Path, containers: u32) -> io::Result<bool> {
    if !mounts_for_host() {
        return Ok(false);
    }
    let page = rustix::param::page_size() as u64;
    let small = SMALL_FILE_PAGES * page * u64::from(containers);
    let size: u64 = [Kind::Use.size(), Kind::Grant.size(), small]
        .iter()
        .map(|size| size.next_multiple_of(page))
        .sum();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mount = |more: &str| {
        let inodes = MAX_INODES.saturating_mul(containers);
        let options = CString::new(format!("size={size},nr_inodes={inodes},mode=0755{more}"))?;
        Ok::<_, io::Error>(rustix::mount::mount("cgpu", folder, "tmpfs", flags, options.as_c_str()))
    };
    let mounted = match mount(HUGE_OPTION)? {
        Err(Errno::INVAL) => mount("")?,
        mounted => mounted,
    };
    match mounted {
        Ok(()) => Ok(true),
        // Root without that capability, as in a container that shares the host's namespaces.
        Err(Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a tmpfs is mounted there.
#[must_use]
pub fn is_mounted(folder: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|about| about.dev()).ok();
    device(folder) != folder.parent().and_then(device)
}

/// Unmounts it; processes with open files keep them.
pub fn unmount(folder: &Path) {
    // An error means that nothing is mounted, or that this process may not unmount it. Removing the
    // folder then fails.
    let _ = rustix::mount::unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Mounts the folder in the mount namespace of a container's first process, which exists already,
/// for the hook that runs there next. This process stays in that namespace.
///
/// # Errors
/// The system refuses it; it needs Linux 5.2.
pub fn show(folder: &Path, pid: i32) -> io::Result<()> {
    let (open, within) = (OpenTreeFlags::OPEN_TREE_CLONE, OpenTreeFlags::OPEN_TREE_CLOEXEC);
    let tree = rustix::mount::open_tree(CWD, folder, open | within)?;
    let theirs = rustix::fs::open(
        format!("/proc/{pid}/ns/mnt"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    rustix::thread::move_into_link_name_space(theirs.as_fd(), Some(LinkNameSpaceType::Mount))?;
    // With shared mounts it has propagated already.
    if is_mounted(folder) {
        return Ok(());
    }
    Ok(rustix::mount::move_mount(&tree, c"", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Returns whether a mount here is the host's: in the initial PID and user namespaces, and the
/// mount namespace of the first process.
#[must_use]
pub fn mounts_for_host() -> bool {
    let of =
        |name: &str| std::fs::metadata(Path::new("/proc").join(name)).map(|about| about.ino()).ok();
    of("self/ns/pid") == Some(cgpu_client::process::INITIAL)
        && of("self/ns/user") == Some(INITIAL_USERS)
        // A process with fewer rights than the first one may not read its namespace.
        && of("self/ns/mnt").is_some_and(|own| own == of("1/ns/mnt").unwrap_or(INITIAL_MOUNTS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;

    #[test]
    fn container_cannot_write_beyond_its_tmpfs() {
        let folder = tempfile::tempdir().unwrap();
        if !mount(folder.path(), 1).unwrap_or(false) {
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
        // Unmounting a plain folder does nothing.
        unmount(folder.path());
    }
}
