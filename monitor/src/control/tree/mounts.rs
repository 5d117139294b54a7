//! Finds mounts by the kernel's own list, without touching a mount, which may not answer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

/// Resolves the links in a mount point's parent, but not the mount point, which may not answer.
pub(super) fn resolve(at: &Path) -> io::Result<PathBuf> {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
        let what = format!("expected a folder to mount the tree on, found {}", at.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    fs::create_dir_all(folder)?;
    Ok(fs::canonicalize(folder)?.join(name))
}

/// Returns the source of the topmost mount at a path; none: nothing is mounted there.
pub(super) fn top(at: &Path) -> io::Result<Option<String>> {
    Ok(find(&fs::read_to_string("/proc/self/mountinfo")?, at))
}

/// The last line is the topmost mount.
fn find(list: &str, at: &Path) -> Option<String> {
    all(list, at).next_back()
}

fn all<'a>(list: &'a str, at: &'a Path) -> impl DoubleEndedIterator<Item = String> + 'a {
    list.lines().filter_map(move |line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let source = after.split(' ').nth(1)?;
        (Path::new(&unescape(point)) == at).then(|| unescape(source))
    })
}

/// Decodes octal escapes: a blank is written as `\040`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let code =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn count(at: &Path, source: &str) -> io::Result<usize> {
    let list = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(all(&list, at).filter(|found| found == source).count())
}

/// Mounts a copy of the mount at `aside` beneath the one at `at`, which then hides it. A copy,
/// because a mount below a shared one, as all below `/run` are, may not be moved.
///
/// # Errors
/// No permission, or a kernel before Linux 6.5.
pub(super) fn put_beneath(aside: &Path, at: &Path) -> io::Result<()> {
    let copy =
        open_tree(CWD, aside, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    Ok(move_mount(&copy, "", CWD, at, flags)?)
}

/// Removes the topmost mount at once. Open files stay usable.
pub(super) fn detach(at: &Path) -> io::Result<()> {
    match unmount(at, UnmountFlags::DETACH) {
        Err(rustix::io::Errno::PERM) => {
            // A mount made by the helper must be removed by the helper.
            let mut helper = Command::new("fusermount3");
            helper.arg("-u").arg("-z").arg("--").arg(at).stdin(Stdio::null()).stdout(Stdio::null());
            if helper.status()?.success() {
                Ok(())
            } else {
                Err(io::Error::other("fusermount3 cannot unmount it"))
            }
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_mount_at_a_path_is_found_with_escaped_blanks() {
        let list = "22 1 0:20 / /run rw shared:2 - tmpfs tmpfs rw\n\
                    30 22 0:40 / /run/cgpu_km rw - fuse.cgpu cgpu:/run/cgpu rw\n\
                    31 30 0:41 / /run/cgpu_km rw - fuse.cgpu cgpu:/other rw\n\
                    32 22 0:42 / /run/a\\040b rw shared:3 master:1 - fuse.cgpu \
                    cgpu:/run/a\\040b rw\n";
        assert_eq!(find(list, Path::new("/run/cgpu_km")).as_deref(), Some("cgpu:/other"));
        assert_eq!(find(list, Path::new("/run/a b")).as_deref(), Some("cgpu:/run/a b"));
        assert_eq!(find(list, Path::new("/run/cgpu")), None);
        assert_eq!(unescape(r"a\134b\04"), r"a\b\04");
    }

    #[test]
    fn mountinfo_is_read() {
        assert!(top(Path::new("/proc")).unwrap().is_some());
        assert_eq!(top(Path::new("/proc/self/nowhere")).unwrap(), None);
    }
}
