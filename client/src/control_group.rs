//! Where the hierarchy of control groups of version 2 is mounted, and a process's group in it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Returns the folders where the hierarchy of version 2 is mounted as a whole, from the text of
/// `mountinfo`.
pub fn mounts(mountinfo: &[u8]) -> impl Iterator<Item = PathBuf> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let root = fields.nth(3)?;
        let point = fields.next()?;
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        (rest.next()? == b"cgroup2" && root == b"/").then(|| unescaped(point))
    })
}

/// Spaces and the like are octal in `mountinfo`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    Path::new(OsStr::from_bytes(&bytes)).to_owned()
}

/// Returns a process's group below the mount, from the text of its `cgroup`. None: it is in none of
/// version 2, or in one that our view of the hierarchy does not have.
#[must_use]
pub fn of_text(text: &[u8]) -> Option<PathBuf> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::/"))?;
    let path = Path::new(OsStr::from_bytes(line));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !line.ends_with(b" (deleted)")).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_that_of_the_whole_hierarchy() {
        let line = |root: &str, point: &str, kind: &str| {
            format!("25 20 0:21 {root} {point} rw,nosuid shared:4 - {kind} cgroup2 rw\n")
        };
        let of = |lines: &[String]| mounts(lines.concat().as_bytes()).next();
        let whole = line("/", "/sys/fs/cgroup", "cgroup2");
        assert_eq!(of(&[line("/", "/sys", "sysfs"), whole]), Some("/sys/fs/cgroup".into()));
        assert_eq!(of(&[line("/docker/a", "/sys/fs/cgroup", "cgroup2")]), None, "a part");
        assert_eq!(of(&[line("/", "/a\\040b", "cgroup2")]), Some("/a b".into()));
        assert_eq!(mounts(b"").next(), None);
    }

    #[test]
    fn group_outside_of_the_view_is_none() {
        let of = |text: &str| of_text(text.as_bytes());
        assert_eq!(of("1:cpu:/a\n0::/b/c\n"), Some("b/c".into()));
        assert_eq!(of("0::/\n"), Some("".into()));
        for none in ["1:cpu:/a\n", "0::/../a\n", "0::/a (deleted)\n", ""] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
