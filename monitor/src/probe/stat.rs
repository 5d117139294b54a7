//! A process's name, parent and start time, read from `/proc/PID/stat`.

use std::fs;
use std::path::PathBuf;

use cgpu_shm::process_stat::ProcessStat;
use cgpu_text::printable;

use crate::watcher::ProcessId;

/// Bound for the walk to a process's ancestors; no real tree is as deep.
const MAX_DEPTH: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) comm: String,
    parent: u32,
    pub(super) start_time: u64,
    /// Whether its main thread has exited.
    has_exited: bool,
}

/// Returns the folder in `/proc` of a thread of a process that has not exited. Of one that has, the
/// kernel shows neither maps nor root, nor groups of version 1. This reads about each thread that
/// has exited before it: where a container can repeat it, its time must be bounded.
pub(super) fn folder(pid: u32) -> PathBuf {
    let main = PathBuf::from(format!("/proc/{pid}"));
    if Stat::of(pid).is_none_or(|stat| !stat.has_exited) {
        return main;
    }
    let threads = fs::read_dir(main.join("task")).into_iter().flatten().flatten();
    let lives = |folder: &PathBuf| {
        let stat = fs::read(folder.join("stat")).ok().and_then(|line| Stat::parse(&line));
        stat.is_some_and(|stat| !stat.has_exited)
    };
    threads.map(|thread| thread.path()).find(lives).unwrap_or(main)
}

impl Stat {
    pub(super) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let ProcessStat { comm, parent, start_time, has_exited } = ProcessStat::parse(line)?;
        let comm = printable(&String::from_utf8_lossy(comm));
        Some(Self { comm, parent, start_time, has_exited })
    }
}

impl ProcessId {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Stat::of(pid).map(|stat| Self { pid, start_time: stat.start_time })
    }

    /// Whether the process is alive. A later process with the same number does not count.
    pub(crate) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// Returns a process and its ancestors, nearest first.
pub(super) fn ancestry(pid: u32) -> Vec<ProcessId> {
    let mut chain: Vec<ProcessId> = Vec::new();
    let mut next = pid;
    while chain.len() < MAX_DEPTH && chain.iter().all(|id| id.pid != next) {
        let Some(stat) = Stat::of(next) else { break };
        chain.push(ProcessId { pid: next, start_time: stat.start_time });
        next = stat.parent;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_alone_does_not_identify_a_process() {
        let own = ProcessId::of(std::process::id()).unwrap();
        assert!(own.lives());
        assert!(!ProcessId { start_time: own.start_time + 1, ..own }.lives());
        assert_eq!(ProcessId::of(u32::MAX), None);
        let chain = ancestry(own.pid);
        assert_eq!(chain[0], own);
        assert!(chain.len() > 1);
    }
}
