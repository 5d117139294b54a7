//! The control group of a container's process, in the hierarchy of version 2.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgpu_client::control_group::{mounts, of_text};

use super::Reason;

/// Least length of an engine's id that a group's name is compared with: a shorter one may be a part
/// of a common name.
const MIN_ID: usize = 3;

/// A process of a container, and how its group is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// The first process of a container that an engine has started with this id.
    OfEngine(u32, String),
    /// A process for which this folder was made.
    Of(u32, PathBuf),
    /// Another process: it may be in a group with others.
    Other(u32),
}

/// Returns the topmost part of a group's path that an engine has named after a container: the
/// container may make groups below it.
fn named(path: &Path, id: &str) -> Option<PathBuf> {
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

/// Returns the folder of the group that is the container's own. `proc` is where the kernel shows
/// processes.
///
/// # Errors
/// The reason why there is none.
pub fn find(proc: &Path, member: &Member) -> Result<PathBuf, Reason> {
    let read = |pid: &str, file: &str| fs::read(proc.join(pid).join(file)).unwrap_or_default();
    let mountinfo = read("self", "mountinfo");
    let mut mounts = mounts(&mountinfo);
    let (Member::OfEngine(pid, _) | Member::Of(pid, _) | Member::Other(pid)) = member;
    let text = read(&pid.to_string(), "cgroup");
    if text.is_empty() {
        return Err(Reason::NotRegistered);
    }
    let path = of_text(&text).ok_or(Reason::Version1)?;
    // On a host with both versions, engines use one of them.
    if path.as_os_str().is_empty() {
        let has_v1 = text
            .split(|byte| *byte == b'\n')
            .any(|line| !line.is_empty() && !line.starts_with(b"0:") && !line.ends_with(b":/"));
        return Err(if has_v1 { Reason::Version1 } else { Reason::NoOwnGroup });
    }
    match member {
        Member::OfEngine(_, id) => {
            let mount = mounts.next().ok_or(Reason::Version1)?;
            named(&path, id).map(|path| mount.join(path)).ok_or(Reason::NoOwnGroup)
        }
        Member::Of(_, folder) => {
            let is_own = |mount: PathBuf| {
                mount.join(&path).starts_with(folder)
                    && folder.starts_with(&mount)
                    && *folder != mount
            };
            mounts.any(is_own).then(|| folder.clone()).ok_or(Reason::NoOwnGroup)
        }
        Member::Other(_) => Err(Reason::NoOwnGroup),
    }
}

/// Returns device and inode of a group's folder: a later group may have the same path.
#[must_use]
pub fn identity(folder: &Path) -> Option<(u64, u64)> {
    let about = fs::metadata(folder).ok().filter(fs::Metadata::is_dir)?;
    Some((about.dev(), about.ino()))
}

/// Whether a group has a process, or one of those below it.
#[must_use]
pub fn is_populated(folder: &Path) -> bool {
    let events = fs::read_to_string(folder.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
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
    fn group_of_a_process_is_found_or_the_reason_is_told() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        let write = |pid: &str, file: &str, text: &str| {
            fs::create_dir_all(proc.join(pid)).unwrap();
            fs::write(proc.join(pid).join(file), text).unwrap();
        };
        let engine = || Member::OfEngine(7, ID.into());
        write("7", "cgroup", &format!("0::/docker/{ID}\n"));
        assert_eq!(find(proc, &engine()), Err(Reason::Version1), "no mount");
        fs::remove_file(proc.join("7/cgroup")).unwrap();
        write("self", "mountinfo", "25 20 0:21 / /cg rw - cgroup2 cgroup2 rw\n");
        assert_eq!(find(proc, &engine()), Err(Reason::NotRegistered), "no process");
        for (text, expected) in [
            (format!("0::/docker/{ID}\n"), Ok(format!("/cg/docker/{ID}").into())),
            (format!("1:cpu:/docker/{ID}\n0::/\n"), Err(Reason::Version1)),
            (format!("1:cpu:/docker/{ID}\n"), Err(Reason::Version1)),
            ("0::/\n".into(), Err(Reason::NoOwnGroup)),
            ("0::/user.slice/x\n".into(), Err(Reason::NoOwnGroup)),
            (format!("0::/../../docker/{ID}\n"), Err(Reason::Version1)),
        ] {
            write("7", "cgroup", &text);
            assert_eq!(find(proc, &engine()), expected, "{text}");
        }
        write("7", "cgroup", "0::/cgpu/job/child\n");
        let made = |folder: &str| find(proc, &Member::Of(7, folder.into()));
        assert_eq!(made("/cg/cgpu/job"), Ok("/cg/cgpu/job".into()));
        assert_eq!(made("/cg/cgpu/other"), Err(Reason::NoOwnGroup), "another's");
        assert_eq!(made("/cg"), Err(Reason::NoOwnGroup), "the root");
        assert_eq!(find(proc, &Member::Other(7)), Err(Reason::NoOwnGroup));
    }
}
