//! Bind mounts into a container before its start. A hook makes them in its mount namespace, where
//! its root is still a folder of the host.
//!
//! The kernel resolves paths with that folder as the root, and mount points are kept open as
//! descriptors. So links in an image, or put into a shared volume meanwhile, lead nowhere outside.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use oci_spec::runtime::Mount;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

/// Makes the mount points that lie in the image itself while it can be written: a read-only root is
/// read-only before the next hook mounts in it.
///
/// # Errors
/// A mount point cannot be made.
pub fn prepare(root: &Path, mounts: &[Mount]) -> Result<()> {
    let root = open(root)?;
    let covered = |mount: &&Mount| {
        let others = mounts.iter().map(Mount::destination);
        others
            .into_iter()
            .any(|other| other != mount.destination() && mount.destination().starts_with(other))
    };
    for mount in mounts.iter().filter(|mount| !covered(mount)) {
        let is_folder = mount.source().as_deref().is_some_and(Path::is_dir);
        mount_point(&root, mount.destination(), is_folder)
            .with_context(|| format!("cannot create {}", mount.destination().display()))?;
    }
    Ok(())
}

/// Makes all mounts, in order.
///
/// # Errors
/// A mount fails; the container must not start.
pub fn mount_all(root: &Path, mounts: &[Mount]) -> Result<()> {
    let root = open(root)?;
    for mount in mounts {
        mount_one(&root, mount)
            .with_context(|| format!("cannot mount {}", mount.destination().display()))?;
    }
    Ok(())
}

fn open(root: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(root, flags, Mode::empty())
        .with_context(|| format!("cannot open {}", root.display()))
}

fn mount_one(root: &OwnedFd, mount: &Mount) -> Result<()> {
    let source = mount.source().as_deref().context("the mount has no source")?;
    let point = mount_point(root, mount.destination(), source.is_dir())?;
    rustix::mount::mount_bind(source, name(&point))?;
    // The descriptor refers to the covered file.
    let mounted = find(root, mount.destination())?;
    let wants = |option: &str| mount.options().iter().flatten().any(|wanted| wanted == option);
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, wants("ro"));
    flags.set(MountFlags::NOEXEC, wants("noexec"));
    rustix::mount::mount_remount(name(&mounted), flags, c"")?;
    Ok(())
}

/// Returns a mount point, which is made if it does not exist.
fn mount_point(root: &OwnedFd, path: &Path, folder: bool) -> Result<OwnedFd> {
    let mut so_far = PathBuf::new();
    let mut parent = root.try_clone()?;
    let parts: Vec<_> =
        path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for (number, part) in parts.iter().enumerate() {
        so_far.push(part);
        let found = match find(root, &so_far) {
            Err(Errno::NOENT) => {
                let part = part.as_os_str();
                if folder || number + 1 < parts.len() {
                    rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755))?;
                } else {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                    rustix::fs::openat(&parent, part, flags, Mode::from_raw_mode(0o644))?;
                }
                find(root, &so_far)?
            }
            found => found?,
        };
        parent = found;
    }
    Ok(parent)
}

fn find(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve)
}

/// Returns a path to a descriptor's file.
fn name(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn mount_points_stay_inside_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).unwrap();
        symlink("../../../..", root.join("up")).unwrap();
        symlink("/elsewhere", root.join("away")).unwrap();
        let open =
            rustix::fs::open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        if matches!(find(&open, Path::new("etc")), Err(Errno::NOSYS)) {
            return;
        }
        mount_point(&open, Path::new("/up/run/cgpu"), true).unwrap();
        mount_point(&open, Path::new("/etc/ld.so.preload"), false).unwrap();
        assert!(root.join("run/cgpu").is_dir() && root.join("etc/ld.so.preload").is_file());
        // A link without a target gets none.
        assert!(mount_point(&open, Path::new("/away/x"), false).is_err());
        assert!(!folder.path().join("run").exists() && !Path::new("/elsewhere").exists());
    }
}
