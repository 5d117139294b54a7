//! Finds the host processes of a container's slots: those that have its file mapped, and the id
//! that the slot names in their own PID namespace.

use std::fs;
use std::os::fd::OwnedFd;

use cgpu_shm::units::SlotIndex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::mapped::{Identity, Mapped};
use crate::watcher::ProcessId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    /// The daemon's number for the container, returned as it is.
    pub(crate) tenant: u64,
    /// Device and inode of the container's file, which they have mapped.
    pub(crate) file: (u64, u64),
    pub(crate) processes: Vec<SlotProcess>,
}

/// A process as its slot describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotProcess {
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u64,
    /// Its id in the container's PID namespace, as the container reports it.
    pub(crate) pid: u32,
}

#[derive(Debug)]
pub(crate) struct FoundProcess {
    pub(crate) id: ProcessId,
    /// Descriptor that becomes readable when it exits. None: no descriptor was left.
    pub(crate) exit: Option<OwnedFd>,
}

impl FoundProcess {
    /// Opens the process. None: it has exited, and its number may belong to another process.
    fn of(id: ProcessId) -> Option<Self> {
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw)?;
        let exit = pidfd_open(pid, PidfdFlags::empty()).ok();
        // Checked after opening, so that the descriptor is of this process.
        id.lives().then_some(Self { id, exit })
    }
}

/// Returns the host process of each slot, where it is found.
pub(super) fn find(search: &Search) -> Vec<Option<FoundProcess>> {
    host_processes(search).into_iter().map(|id| id.and_then(FoundProcess::of)).collect()
}

/// Returns the host id of each slot's process. First tries the id that the slot names, in case the
/// container shares the monitor's PID namespace; then searches `/proc` once for all others.
fn host_processes(search: &Search) -> Vec<Option<ProcessId>> {
    let holder = |pid: u32| {
        let id = ProcessId::of(pid)?;
        // Checked after reading the maps, so that they are of this process.
        (maps(pid, search.file) && id.lives()).then_some(id)
    };
    let mut found: Vec<Option<ProcessId>> =
        search.processes.iter().map(|slot_process| holder(slot_process.pid)).collect();
    if found.iter().all(Option::is_some) {
        return found;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let missing = || search.processes.iter().zip(&found).filter(|(_, found)| found.is_none());
        if missing().next().is_none() {
            break;
        }
        let Some(inner) = innermost(pid) else { continue };
        if !missing().any(|(slot_process, _)| slot_process.pid == inner) {
            continue;
        }
        let Some(id) = holder(pid) else { continue };
        for (slot_process, found) in search.processes.iter().zip(&mut found) {
            if slot_process.pid == inner {
                found.get_or_insert(id);
            }
        }
    }
    found
}

/// Returns a process's id in its own PID namespace.
fn innermost(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Whether a process has the file mapped, according to the kernel.
fn maps(pid: u32, file: Identity) -> bool {
    Mapped::of(pid).is_some_and(|mapped| mapped.files.contains(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn process_is_found_by_its_mapped_region() {
        let about = fs::metadata("/proc/self/exe").unwrap();
        let own = (about.dev(), about.ino());
        let pid = std::process::id();
        assert!(maps(pid, own));
        assert!(!maps(pid, (own.0, own.1 + 1)));
        assert_eq!(innermost(pid), Some(pid));
        let slot_process = |pid| SlotProcess { slot: SlotIndex(0), generation: 1, pid };
        let processes = vec![slot_process(pid), slot_process(u32::MAX), slot_process(1)];
        let search = Search { tenant: 0, file: own, processes };
        assert_eq!(host_processes(&search), [ProcessId::of(pid), None, None]);
        assert_eq!(host_processes(&Search { processes: Vec::new(), ..search }), []);
    }
}
