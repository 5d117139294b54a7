//! Where the hierarchy of control groups of version 2 is mounted, and a process's group in it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Least length of an engine's id that a group's name is compared with: a shorter one may be a part
/// of a common name.
const MIN_ID: usize = 3;

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

/// Whether a process in a cgroup namespace can enter no group outside of its part of the hierarchy
/// of version 2 (`nsdelegate`), from the text of `mountinfo`; none: it is not mounted.
#[must_use]
pub fn is_delegated(mountinfo: &[u8]) -> Option<bool> {
    mountinfo.split(|byte| *byte == b'\n').find_map(|line| {
        let mut rest = line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-").skip(1);
        // The file system, its source, and its options.
        let options = (rest.next()? == b"cgroup2").then(|| rest.nth(1)).flatten()?;
        Some(options.split(|byte| *byte == b',').any(|option| option == b"nsdelegate"))
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

/// Whether a group has a process, or one of those below it.
#[must_use]
pub fn is_populated(folder: &Path) -> bool {
    let events = fs::read_to_string(folder.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
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

/// Returns the topmost part of a group's path that an engine has named after a container: the
/// container may make groups below it.
#[must_use]
pub fn named(path: &Path, id: &str) -> Option<PathBuf> {
    let is_named = |part: &OsStr| {
        let Some(name) = part.to_str() else { return false };
        let stem = name.strip_suffix(".scope").or_else(|| name.strip_suffix(".service"));
        let stem = stem.unwrap_or(name);
        let before = stem.strip_suffix(id);
        // `docker-ID.scope`, `cri-containerd-ID.scope`, `ID`, and `slice:prefix:ID`.
        !name.ends_with(".slice")
            && before.is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', ':']))
    };
    if id.len() < MIN_ID {
        return None;
    }
    let mut found = PathBuf::new();
    for part in path {
        found.push(part);
        if is_named(part) {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn group_is_the_one_named_after_the_container() {
        let cases = [
            (format!("system.slice/docker-{ID}.scope"), Some(0)),
            (format!("docker/{ID}"), Some(0)),
            (format!("machine.slice/libpod-{ID}.scope/container"), Some(1)),
            (format!("system.slice/docker-{ID}.scope/init.scope"), Some(1)),
            (format!("kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope"), Some(0)),
            (format!("kubepods/burstable/pod1/{ID}"), Some(0)),
            ("kubepods.slice/kubepods-pod1.slice".into(), None),
            (format!("kubepods-{ID}.slice/x"), None),
            (format!("docker/{ID}0"), None),
            ("user.slice/user-0.slice/session-1.scope".into(), None),
        ];
        for (path, above) in cases {
            let path = Path::new(&path);
            let expected = above.map(|above| path.ancestors().nth(above).unwrap().to_owned());
            assert_eq!(named(path, ID), expected, "{path:?}");
        }
        assert_eq!(named(Path::new("system.slice/a-1.scope"), "1"), None, "a short name");
        assert_eq!(named(Path::new("runc/job"), "job"), Some("runc/job".into()));
    }

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
    fn delegation_is_an_option_of_the_hierarchy() {
        let of = |options: &str| {
            let lines = format!(
                "24 1 0:22 / /proc rw - proc proc rw\n25 20 0:21 / /c rw - cgroup2 c {options}\n"
            );
            is_delegated(lines.as_bytes())
        };
        assert_eq!(of("rw,nsdelegate,memory_recursiveprot"), Some(true));
        assert_eq!(of("rw,memory_recursiveprot"), Some(false));
        assert_eq!(is_delegated(b"24 1 0:22 / /proc rw - proc proc rw\n"), None);
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
