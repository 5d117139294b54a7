//! Finds the host processes of a container's slots: those that have its file mapped, and the id
//! that the slot names in their own PID namespace. Containers that share a claim have one file and
//! several such namespaces, so a process's mapping also says which slot it has.
//!
//! Such an id says little, so a search reads the maps of processes of other containers, too. A
//! process can make that take as long as it likes (`maps.rs`). So each search has a thread, and
//! waits for each process a bounded time, and last for those in another container's control group.
//! Where it has left one out, it is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_shm::clock::thread_cpu;
use cgpu_shm::units::{Nanos, SlotIndex};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::ProbeResult;
use super::gpu_processes::{ContainerIdentity, ProcessIndex};
use super::mapped::{Identity, Mapped};
use super::maps::{OpenMaps, STACK_SIZE};
use crate::watcher::ProcessId;

/// CPU time for the maps of processes after which a search is interrupted, so that NVML and the
/// searches of other containers have their turn. It goes on when its container is due again.
const STEP: Nanos = Nanos::from_millis(50);

/// Most bytes that are read of a process's maps: as many mappings as the kernel allows unless it is
/// told otherwise, with 128 bytes for each.
const MAX_MAPS: u64 = 8 << 20;

/// Time that a search waits for the maps of a process.
const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// Interval between two tries to read a process that another search reads.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Readings of all searches that may wait at a time.
const MAX_READINGS: usize = 256;

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
    /// Whether the host processes that belong to other containers are looked at, after all others.
    is_last: bool,
    /// Host processes up to this id have been looked at since.
    passed: u32,
    /// Ids, as slots name them, of host processes that were left out.
    pub(crate) left_out: BTreeSet<u32>,
}

impl Search {
    pub(crate) const fn new(tenant: u64, file: (u64, u64), processes: Vec<SlotProcess>) -> Self {
        let left_out = BTreeSet::new();
        Self { tenant, file, processes, tried: 0, is_last: false, passed: 0, left_out }
    }

    /// Whether host processes were left out, so that it is to be made again.
    pub(crate) fn is_partial(&self) -> bool {
        !self.left_out.is_empty()
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

impl SlotProcess {
    /// Whether a process may be this one, by the slot whose lock it holds; none: not known.
    fn has(&self, slot: Option<SlotIndex>) -> bool {
        slot.is_none_or(|slot| slot == self.slot)
    }
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

/// What all searches share.
#[derive(Clone, Debug)]
pub(super) struct Searches {
    /// Locked by the search that goes on now: together they take no more than one core.
    active: Arc<Mutex<()>>,
    /// Processes that threads read now, each with the time when that began.
    readings: Arc<Mutex<BTreeMap<ProcessId, Instant>>>,
    open: OpenMaps,
}

impl Searches {
    pub(super) fn new(open: OpenMaps) -> Self {
        Self { active: Arc::default(), readings: Arc::default(), open }
    }

    /// Goes on with a search on a thread of its own, which sends the result.
    pub(super) fn start(
        &self,
        search: Search,
        identities: Arc<[ContainerIdentity]>,
        results: Sender<ProbeResult>,
    ) {
        let (searches, unsearched) = (self.clone(), search.clone());
        let failed = results.clone();
        let find = move || {
            let mut search = search;
            let (found, used) = searches.find(&mut search, &identities);
            // The daemon may have ended.
            let _ = results.send(ProbeResult::Found(search, found, used));
        };
        let thread = thread::Builder::new().name("search".into()).stack_size(STACK_SIZE);
        if let Err(error) = thread.spawn(find) {
            tracing::warn!("cannot start the thread of a search: {error}");
            let _ = failed.send(ProbeResult::Found(unsearched, Vec::new(), Nanos::ZERO));
        }
    }

    /// Goes on with a search. Returns the processes for which it is over, and removes them from the
    /// search: with the host process, or without one where none has it; and the CPU time that it
    /// took.
    fn find(
        &self,
        search: &mut Search,
        identities: &[ContainerIdentity],
    ) -> (Vec<(SlotProcess, Option<FoundProcess>)>, Nanos) {
        let mut holders = Holders::new(self, search.file);
        let start = thread_cpu();
        let (index, tenant) = (ProcessIndex::of_groups(identities), search.tenant);
        let is_other = |pid| index.owner_by_group(pid).is_some_and(|owner| owner != tenant);
        let found = host_processes(search, &mut holders, is_other, STEP).into_iter();
        let found = found.map(|(process, id)| (process, id.and_then(FoundProcess::of))).collect();
        (found, thread_cpu() - start + holders.used)
    }

    /// Notes that a process is read. False: others are read for long, or it is itself.
    fn begin(&self, id: ProcessId, active: &mut MutexGuard<'_, ()>) -> bool {
        loop {
            let mut readings = self.readings.lock();
            match readings.get(&id) {
                None => {
                    let begins = readings.len() < MAX_READINGS;
                    if begins {
                        readings.insert(id, Instant::now());
                    }
                    return begins;
                }
                Some(since) if since.elapsed() >= READ_TIMEOUT => return false,
                Some(_) => {
                    drop(readings);
                    MutexGuard::unlocked(active, || thread::sleep(POLL_INTERVAL));
                }
            }
        }
    }
}

/// First tries the id that the slot names, in case the container shares the monitor's PID
/// namespace; then searches `/proc` for all others. Processes in another container's control group
/// (`is_other`) come last, so that it has to wait for them only where no other fits.
fn host_processes(
    search: &mut Search,
    holders: &mut Holders<'_>,
    is_other: impl Fn(u32) -> bool,
    step: Nanos,
) -> Vec<(SlotProcess, Option<ProcessId>)> {
    let mut found = Vec::new();
    while let Some(process) = search.processes.get(search.tried) {
        if holders.used > step {
            return found;
        }
        let holder = if is_other(process.pid) { Holder::IsNot } else { holders.read(process.pid) };
        match holder {
            Holder::Is(id, slot) if process.has(slot) => {
                found.push((search.processes.remove(search.tried), Some(id)));
            }
            Holder::Is(..) | Holder::IsNot => search.tried += 1,
            Holder::Unknown => {
                search.left_out.insert(process.pid);
                search.tried += 1;
            }
        }
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    loop {
        let first = pids.partition_point(|pid| *pid <= search.passed);
        for &pid in pids.iter().skip(first) {
            if search.processes.is_empty() {
                break;
            }
            if holders.used > step {
                return found;
            }
            search.passed = pid;
            let Some(inner) = innermost(pid) else { continue };
            if !search.processes.iter().any(|process| process.pid == inner)
                || is_other(pid) != search.is_last
            {
                continue;
            }
            match holders.read(pid) {
                Holder::Is(id, slot) => {
                    let is_it = |one: &mut SlotProcess| one.pid == inner && one.has(slot);
                    let of_it = search.processes.extract_if(.., is_it);
                    found.extend(of_it.map(|process| (process, Some(id))));
                }
                Holder::IsNot => {}
                Holder::Unknown => _ = search.left_out.insert(inner),
            }
        }
        if search.is_last || search.processes.is_empty() {
            break;
        }
        (search.is_last, search.passed) = (true, 0);
    }
    // The next search finds the others.
    let left_out = std::mem::take(&mut search.left_out);
    let rest = search.processes.drain(..);
    let (unknown, none): (Vec<_>, Vec<_>) =
        rest.partition(|process| left_out.contains(&process.pid));
    search.left_out.extend(unknown.iter().map(|process| process.pid));
    found.extend(none.into_iter().map(|process| (process, None)));
    found
}

/// Whether a process has a file mapped.
enum Holder {
    /// It has, and the lock of this slot, if its shim shows that.
    Is(ProcessId, Option<SlotIndex>),
    /// It has not, as far as its maps are read, or has exited.
    IsNot,
    /// Its maps cannot be read now.
    Unknown,
}

/// Reads whether processes have a file mapped, which may be slow.
struct Holders<'a> {
    searches: &'a Searches,
    active: MutexGuard<'a, ()>,
    file: Identity,
    /// CPU time that it took.
    used: Nanos,
}

impl<'a> Holders<'a> {
    fn new(searches: &'a Searches, file: Identity) -> Self {
        Self { searches, active: searches.active.lock(), file, used: Nanos::ZERO }
    }

    fn read(&mut self, pid: u32) -> Holder {
        let Some(id) = ProcessId::of(pid) else { return Holder::IsNot };
        if !self.searches.begin(id, &mut self.active) {
            return Holder::Unknown;
        }
        let (outbox, answer) = channel();
        let (readings, open, file) =
            (Arc::clone(&self.searches.readings), self.searches.open, self.file);
        let read = move || {
            let mapped = mapped(open, id, file);
            readings.lock().remove(&id);
            // The search may have gone on.
            let _ = outbox.send((mapped, thread_cpu()));
        };
        let thread = thread::Builder::new().name("search-maps".into()).stack_size(STACK_SIZE);
        if let Err(error) = thread.spawn(read) {
            tracing::warn!("cannot start a thread that reads maps: {error}");
            self.searches.readings.lock().remove(&id);
            return Holder::Unknown;
        }
        let answer = MutexGuard::unlocked(&mut self.active, || answer.recv_timeout(READ_TIMEOUT));
        let Ok((mapped, used)) = answer else { return Holder::Unknown };
        self.used = self.used + used;
        match mapped {
            // Checked after reading the maps, so that they are of this process.
            Some(mapped) if mapped.region && id.lives() => Holder::Is(id, mapped.slot),
            _ => Holder::IsNot,
        }
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

/// Returns what a process has mapped of the file, according to the kernel and as far as its maps
/// are read; none: they cannot be.
fn mapped(open: OpenMaps, id: ProcessId, file: Identity) -> Option<Mapped> {
    let mut reader = open(id).ok()?;
    reader.read(MAX_MAPS, &BTreeSet::from([file])).ok()?;
    Some(reader.mapped)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use cgpu_shm::liveness::LivenessLocks;
    use cgpu_shm::slots::SlotLocks;

    use super::super::gpu_processes::tests::{Holder, Sleeper};
    use super::super::mapped::MapsReader;
    use super::*;

    fn search(search: &mut Search, step: Nanos) -> Vec<(SlotProcess, Option<ProcessId>)> {
        search_in(&Searches::new(MapsReader::open), search, |_| false, step)
    }

    fn search_in(
        searches: &Searches,
        search: &mut Search,
        is_other: impl Fn(u32) -> bool,
        step: Nanos,
    ) -> Vec<(SlotProcess, Option<ProcessId>)> {
        let mut holders = Holders::new(searches, search.file);
        host_processes(search, &mut holders, is_other, step)
    }

    #[test]
    fn process_is_found_by_its_mapped_region() {
        let about = fs::metadata("/proc/self/exe").unwrap();
        let own = (about.dev(), about.ino());
        let pid = std::process::id();
        let id = ProcessId::of(pid).unwrap();
        let maps = |file| mapped(MapsReader::open, id, file).is_some_and(|mapped| mapped.region);
        assert!(maps(own) && !maps((own.0, own.1 + 1)));
        assert_eq!(innermost(pid), Some(pid));
        let slot_process = |pid| SlotProcess { slot: SlotIndex(0), generation: 1, pid };
        let processes = [pid, u32::MAX, 1].map(slot_process);
        let expected = [(processes[0], Some(id)), (processes[1], None), (processes[2], None)];
        let mut one = Search::new(0, own, processes.to_vec());
        assert_eq!(search(&mut one.clone(), STEP), expected);
        // Interrupted after each process whose maps are read.
        let (mut found, mut steps) = (Vec::new(), 0);
        while !one.processes.is_empty() {
            found.extend(search(&mut one, Nanos::ZERO));
            steps += 1;
        }
        assert_eq!(found, expected);
        assert!(steps > 1, "one step");
        assert_eq!(search(&mut Search::new(0, own, Vec::new()), STEP), []);
    }

    /// As of containers with one file, whose PID namespaces have the same ids.
    #[test]
    fn processes_of_one_id_are_told_apart_by_their_slots() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let locks = LivenessLocks::open(file.path()).unwrap();
        let about = file.as_file().metadata().unwrap();
        let pid = std::process::id();
        let _lock = locks.hold(SlotIndex(5)).unwrap().expect("it is free");
        let slots = [3, 5, 7].map(|slot| SlotProcess { slot: SlotIndex(slot), generation: 1, pid });
        let mut one = Search::new(0, (about.dev(), about.ino()), slots.to_vec());
        let found = search(&mut one, STEP);
        let expected = [(slots[1], ProcessId::of(pid)), (slots[0], None), (slots[2], None)];
        assert_eq!(found, expected);
    }

    #[test]
    fn search_leaves_out_a_process_that_keeps_its_maps_from_being_read() {
        let about = fs::metadata("/proc/self/exe").unwrap();
        let own = (about.dev(), about.ino());
        let other = Sleeper::start();
        let processes = [other.0.id(), std::process::id()].map(|pid| SlotProcess {
            slot: SlotIndex(0),
            generation: 1,
            pid,
        });
        let id = ProcessId::of(std::process::id()).unwrap();
        let holder = Holder::new(other.0.id());
        let searches = Searches::new(Holder::open);
        for _ in 0..3 {
            let mut one = Search::new(0, own, processes.to_vec());
            assert_eq!(search_in(&searches, &mut one, |_| false, STEP), [(processes[1], Some(id))]);
            assert!(one.processes.is_empty() && one.is_partial());
            assert_eq!(searches.readings.lock().len(), 1, "one thread waits");
        }
        drop(holder);
        let hangs = Instant::now() + Duration::from_secs(100);
        while !searches.readings.lock().is_empty() {
            assert!(Instant::now() < hangs, "the thread still waits");
            thread::sleep(POLL_INTERVAL);
        }
        let mut one = Search::new(0, own, processes.to_vec());
        let found = search_in(&searches, &mut one, |_| false, STEP);
        assert_eq!(found, [(processes[1], Some(id)), (processes[0], None)]);
        assert!(!one.is_partial());
    }

    #[test]
    fn search_waits_for_processes_of_other_containers_last() {
        let about = fs::metadata("/proc/self/exe").unwrap();
        let pid = std::process::id();
        let own = SlotProcess { slot: SlotIndex(0), generation: 1, pid };
        let searches = Searches::new(MapsReader::open);
        for others in [&[][..], &[pid]] {
            let mut one = Search::new(0, (about.dev(), about.ino()), vec![own]);
            let mut holders = Holders::new(&searches, one.file);
            let found = host_processes(&mut one, &mut holders, |pid| others.contains(&pid), STEP);
            assert_eq!(found, [(own, ProcessId::of(pid))]);
            assert_eq!(one.is_last, !others.is_empty());
        }
    }
}
