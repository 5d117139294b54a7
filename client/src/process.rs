//! Processes of a container, as its record names them: by number, start time and PID namespace.
//!
//! An engine that runs in a container shares our folders and counts its processes from 1 anew. A
//! number of its namespace says nothing here.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cgpu_shm::process_stat::ProcessStat;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The initial PID namespace (`PROC_PID_INIT_INO`), whose processes are all there are.
pub const INITIAL: u64 = 0xEFFF_FFFC;

/// A process. Its start time, in clock ticks since boot, tells it from a later one of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Its start time, in clock ticks since boot.
    pub started: u64,
    /// Inode of the PID namespace of the number; 0: unknown.
    #[serde(default)]
    pub namespace: u64,
}

impl Process {
    /// Returns the process with this number in our PID namespace, unless it has ended.
    #[must_use]
    pub fn find(pid: i32) -> Option<Self> {
        let line = read(pid).ok()?;
        let stat = ProcessStat::parse(&line)?;
        Some(Self { pid, started: stat.start_time, namespace: own_namespace() })
    }

    /// Whether the number is of another PID namespace than ours.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        self.namespace != 0 && self.namespace != own_namespace()
    }

    /// Whether it may be alive. One of another namespace may be as long as that namespace may have
    /// a process.
    #[must_use]
    pub fn is_alive(self) -> bool {
        if self.is_elsewhere() {
            return may_have_process(self.namespace, INITIAL, Path::new("/proc"));
        }
        match read(self.pid) {
            Ok(line) => {
                ProcessStat::parse(&line).is_some_and(|stat| stat.start_time == self.started)
            }
            // What cannot be read may be alive.
            Err(error) => !matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)),
        }
    }
}

/// Returns the control groups of a process that are not our own: lines of `/proc/PID/cgroup`.
#[must_use]
pub fn groups_of(pid: i32) -> Vec<String> {
    let lines = |pid: &str| {
        let text = fs::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        // A name in a path may be any bytes.
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let own = lines("self");
    let mut groups = lines(&pid.to_string());
    groups.retain(|line| !line.ends_with(":/") && !own.contains(line));
    groups
}

/// Whether a process may be in one of these groups, or below it.
#[must_use]
pub fn may_have_members(groups: &[String]) -> bool {
    if groups.is_empty() {
        return false;
    }
    let Ok(mut processes) = fs::read_dir("/proc") else { return true };
    let is_below = |line: &str, group: &String| {
        line.strip_prefix(group.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_member = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return true };
        let text = fs::read(entry.path().join("cgroup")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // A process that has ended keeps its group until its parent has read its status.
        let has_ended = || {
            let line = fs::read(entry.path().join("stat")).unwrap_or_default();
            ProcessStat::parse(&line).is_none()
        };
        text.lines().any(|line| groups.iter().any(|group| is_below(line, group))) && !has_ended()
    };
    processes.any(is_member)
}

fn read(pid: i32) -> std::io::Result<Vec<u8>> {
    fs::read(format!("/proc/{pid}/stat"))
}

/// Our PID namespace; 0 if the system does not say.
#[must_use]
pub fn own_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |about| about.ino())
}

/// Whether a PID namespace may have a process.
///
/// A namespace without one has ended for good, with all below it. Only from the initial namespace
/// can this be seen, and only if `hidepid` hides no process from us: then we may read its process
/// 1.
/// A process whose namespace cannot be read may be of any.
#[must_use]
pub fn may_have_process(namespace: u64, initial: u64, proc: &Path) -> bool {
    let Ok(mut processes) = fs::read_dir(proc) else { return true };
    let may_be_of_it = |entry: std::io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return true };
        let is_process = entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_process
            && match namespace_of(&entry.path()) {
                Ok(of) => of == namespace,
                // Not found: the process has ended since.
                Err(error) => error.kind() != ErrorKind::NotFound,
            }
    };
    !sees_all(initial, proc) || processes.any(may_be_of_it)
}

/// Whether `proc` shows all processes of the host.
fn sees_all(initial: u64, proc: &Path) -> bool {
    ["self", "1"].iter().all(|name| namespace_of(&proc.join(name)).is_ok_and(|of| of == initial))
}

fn namespace_of(process: &Path) -> std::io::Result<u64> {
    fs::metadata(process.join("ns/pid")).map(|about| about.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_lives_whatever_it_calls_itself() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", r#"printf '\377) Z 1' > /proc/$$/comm; echo; read -r line"#])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut named = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut named).unwrap();
        let process = Process::find(child.id().cast_signed()).unwrap();
        assert!(process.is_alive());
        assert!(!Process { started: process.started + 1, ..process }.is_alive());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn pid_namespace_may_have_a_process_until_none_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let process = |name: &str, namespace: &Path| {
            fs::create_dir_all(proc.join(name).join("ns")).unwrap();
            std::os::unix::fs::symlink(namespace, proc.join(name).join("ns/pid")).unwrap();
        };
        let namespace = |name: &str| {
            fs::write(proc.join(name), "").unwrap();
            (proc.join(name), fs::metadata(proc.join(name)).unwrap().ino())
        };
        let ((initial_path, initial), (other_path, other)) =
            (namespace("initial"), namespace("other"));
        process("self", &initial_path);
        assert!(may_have_process(other, initial, proc), "process 1 is hidden");
        process("1", &initial_path);
        fs::create_dir(proc.join("7")).unwrap();
        assert!(!may_have_process(other, initial, proc), "7 has ended");
        assert!(may_have_process(other, other, proc), "we are in another than the initial one");
        process("8", &other_path);
        assert!(may_have_process(other, initial, proc));
        fs::remove_dir_all(proc.join("8")).unwrap();
        process("9", &proc.join("9/ns/pid"));
        assert!(may_have_process(other, initial, proc), "the namespace of 9 cannot be read");
        assert!(may_have_process(other, initial, &proc.join("none")));
    }
}
