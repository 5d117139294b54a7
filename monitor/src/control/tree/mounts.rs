//! What is mounted where, by the kernel's own list: nothing here touches a mount that may not answer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};

/// A place without links, though what is mounted there may not answer.
pub(super) fn place(at: &Path) -> io::Result<PathBuf> {
    let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
        let what = format!("expected a folder to mount the tree on, found {}", at.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    fs::create_dir_all(folder)?;
    Ok(fs::canonicalize(folder)?.join(name))
}

/// The source of what is mounted at a place, on top; none: nothing.
pub(super) fn top(at: &Path) -> io::Result<Option<String>> {
    Ok(find(&fs::read_to_string("/proc/self/mountinfo")?, at))
}

/// The last line counts: it was mounted last.
fn find(list: &str, at: &Path) -> Option<String> {
    all(list, at).next_back()
}

/// The sources of all that is mounted at a place.
fn all<'a>(list: &'a str, at: &'a Path) -> impl DoubleEndedIterator<Item = String> + 'a {
    list.lines().filter_map(move |line| {
        let (before, behind) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?;
        let source = behind.split(' ').nth(1)?;
        (Path::new(&plain(point)) == at).then(|| plain(source))
    })
}

/// Blanks and such are written as `\040`.
fn plain(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind
            .get(..3)
            .filter(|digits| first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let code =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &behind[3..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How many mounts of this source there are at a place.
pub(super) fn count(at: &Path, source: &str) -> io::Result<usize> {
    let list = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(all(&list, at).filter(|found| found == source).count())
}

/// Has what is mounted at `aside` also mounted at a place, beneath what is there: when that is taken away it is there at once.
///
/// A copy, because a mount that lies below a shared one, as all do below `/run`, may not be moved.
///
/// # Errors
/// As the system says: no right to it, or a kernel before Linux 6.5.
pub(super) fn put_beneath(aside: &Path, at: &Path) -> io::Result<()> {
    let copy =
        open_tree(CWD, aside, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    Ok(move_mount(&copy, "", CWD, at, flags)?)
}

/// Takes away what is mounted there, on top, at once; who has a file of it open keeps that.
pub(super) fn detach(at: &Path) -> io::Result<()> {
    match unmount(at, UnmountFlags::DETACH) {
        Err(rustix::io::Errno::PERM) => {
            // Who had the helper mount it must have it take it away.
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
                    32 22 0:42 / /run/a\\040b rw shared:3 master:1 - fuse.cgpu cgpu:/run/a\\040b rw\n";
        assert_eq!(find(list, Path::new("/run/cgpu_km")).as_deref(), Some("cgpu:/other"));
        assert_eq!(find(list, Path::new("/run/a b")).as_deref(), Some("cgpu:/run/a b"));
        assert_eq!(find(list, Path::new("/run/cgpu")), None);
        assert_eq!(plain(r"a\134b\04"), r"a\b\04");
    }

    #[test]
    fn mountinfo_is_read() {
        assert!(top(Path::new("/proc")).unwrap().is_some());
        assert_eq!(top(Path::new("/proc/self/nowhere")).unwrap(), None);
    }
}
