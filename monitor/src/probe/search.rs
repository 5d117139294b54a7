//! Finds the host processes of a container's slots: those that have its file mapped, and the id
//! that the slot names in their own PID namespace.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;

use cgpu_shm::clock::thread_cpu;
use cgpu_shm::units::{Nanos, SlotIndex};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::mapped::{Identity, MapsReader};
use crate::watcher::ProcessId;

/// CPU time for the maps of processes after which a search is interrupted, so that NVML and the
/// searches of other containers have their turn. It goes on when its container is due again.
const STEP: Nanos = Nanos::from_millis(50);

/// Most bytes that are read of a process's maps: as many mappings as the kernel allows unless it is
/// told otherwise, with 128 bytes for each.
const MAX_MAPS: u64 = 8 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Search {
    /// The daemon's number for the container, returned as it is.
    pub(crate) tenant: u64,
    /// Device and inode of the container's file, which they have mapped.
    pub(crate) file: (u64, u64),
    /// Those for which it is not over.
    pub(crate) processes: Vec<SlotProcess>,
    /// The first of them whose ids have been tried as ids of the host.
    tried: usize,
    /// Host processes up to this id have been looked at since.
    passed: u32,
}

impl Search {
    pub(crate) const fn new(tenant: u64, file: (u64, u64), processes: Vec<SlotProcess>) -> Self {
        Self { tenant, file, processes, tried: 0, passed: 0 }
    }
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

/// Goes on with a search. Returns the processes for which it is over, and removes them from the
/// search: with the host process, or without one where none has it.
pub(super) fn find(search: &mut Search) -> Vec<(SlotProcess, Option<FoundProcess>)> {
    let found = host_processes(search, STEP).into_iter();
    found.map(|(process, id)| (process, id.and_then(FoundProcess::of))).collect()
}

/// First tries the id that the slot names, in case the container shares the monitor's PID
/// namespace; then searches `/proc` once for all others.
fn host_processes(search: &mut Search, step: Nanos) -> Vec<(SlotProcess, Option<ProcessId>)> {
    let (mut found, mut holders) = (Vec::new(), Holders { file: search.file, used: Nanos::ZERO });
    while let Some(process) = search.processes.get(search.tried) {
        if holders.used > step {
            return found;
        }
        match holders.read(process.pid) {
            Some(id) => found.push((search.processes.remove(search.tried), Some(id))),
            None => search.tried += 1,
        }
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| *pid > search.passed).collect();
    pids.sort_unstable();
    for pid in pids {
        if search.processes.is_empty() {
            break;
        }
        if holders.used > step {
            return found;
        }
        search.passed = pid;
        let Some(inner) = innermost(pid) else { continue };
        if !search.processes.iter().any(|process| process.pid == inner) {
            continue;
        }
        let Some(id) = holders.read(pid) else { continue };
        let of_it = search.processes.extract_if(.., |process| process.pid == inner);
        found.extend(of_it.map(|process| (process, Some(id))));
    }
    found.extend(search.processes.drain(..).map(|process| (process, None)));
    found
}

/// Reads whether processes have a file mapped, which may be slow.
struct Holders {
    file: Identity,
    /// CPU time that it took.
    used: Nanos,
}

impl Holders {
    /// None: it has not, as far as its maps are read, or has exited.
    fn read(&mut self, pid: u32) -> Option<ProcessId> {
        let id = ProcessId::of(pid)?;
        let start = thread_cpu();
        let holds = maps(id, self.file);
        self.used = self.used + (thread_cpu() - start);
        // Checked after reading the maps, so that they are of this process.
        (holds && id.lives()).then_some(id)
    }
}

/// Returns a process's id in its own PID namespace.
fn innermost(pid: u32) -> Option<u32> {
    // The first line has the process's name, which may be any bytes.
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Whether a process has the file mapped, according to the kernel and as far as its maps are read.
fn maps(id: ProcessId, file: Identity) -> bool {
    let Ok(mut reader) = MapsReader::open(id) else { return false };
    reader.read(MAX_MAPS, &BTreeSet::from([file])).is_ok() && reader.mapped.region
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
        let id = ProcessId::of(pid).unwrap();
        assert!(maps(id, own));
        assert!(!maps(id, (own.0, own.1 + 1)));
        assert_eq!(innermost(pid), Some(pid));
        let slot_process = |pid| SlotProcess { slot: SlotIndex(0), generation: 1, pid };
        let processes = [pid, u32::MAX, 1].map(slot_process);
        let expected = [(processes[0], Some(id)), (processes[1], None), (processes[2], None)];
        let mut search = Search::new(0, own, processes.to_vec());
        assert_eq!(host_processes(&mut search.clone(), STEP), expected);
        // Interrupted after each process whose maps are read.
        let (mut found, mut steps) = (Vec::new(), 0);
        while !search.processes.is_empty() {
            found.extend(host_processes(&mut search, Nanos::ZERO));
            steps += 1;
        }
        assert_eq!(found, expected);
        assert!(steps > 1, "one step");
        assert_eq!(host_processes(&mut Search::new(0, own, Vec::new()), STEP), []);
    }
}
