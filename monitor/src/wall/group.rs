//! The control group of a container's process, in the hierarchy of version 2.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cgpu_client::control_group::{mounts, named, of_text};

use super::Reason;

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

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

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
