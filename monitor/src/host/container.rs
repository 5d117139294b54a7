//! A container: its directory, its registration, its limits, its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use cgpu_client::message::Registration;
use cgpu_client::record::{self, read_text};
use cgpu_scheduler::TenantId;
use cgpu_scheduler::policy::Presence;
use cgpu_shm::file::{Error, Fault};
use cgpu_shm::limits::Limits;
use cgpu_shm::paths;
use cgpu_shm::slots::State;
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::closed_page::ClosedPage;
use super::counters::Counters;
use super::doorbell::Doorbell;
use super::file_workers::{FileOutcome, FileRequest, FileResult, FileTask, FileWorkers, Opened};
use super::leased_file::LeasedFile;
use super::lock_queries::{LockQueries, Round};
use super::region::Region;
use super::walls::ContainerWalls;
use crate::memory::exported::ExportedMemory;
use crate::memory::unaccounted::Unaccounted;
use crate::probe::{ContainerIdentity, FoundProcess, SampledContainer, Search, SlotProcess};
use crate::settings::ContainerSettings;
use crate::throttle::Throttle;
use crate::watcher::ProcessId;

/// Processes of a container whose exits are polled for, because descriptors are scarce. Other exits
/// are noticed at the next heartbeat.
const MAX_EXIT_WATCHES: usize = 16;

/// Time from a search to the next one, as a multiple of what the search took: a container whose
/// processes start and exit all the time must not keep the others from their searches.
const SEARCH_RATIO: u64 = 16;

/// Time after which a search is made again that has left out processes of the host.
const AGAIN: Nanos = Nanos::from_millis(500);

/// The identity of no file: inode numbers begin with 1.
const ENDED: (u64, u64) = (0, 0);

#[derive(Debug)]
pub(crate) struct Registrant {
    /// Readable when it has exited.
    pub(crate) pidfd: OwnedFd,
    pub(crate) id: ProcessId,
    /// The control group that was made for it.
    pub(crate) cgroup: Option<PathBuf>,
}

impl Registrant {
    /// Opens the process. None: there is no such process.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let id = ProcessId::of(u32::try_from(pid).ok()?)?;
        let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        // Checked after opening, so that the descriptor is of this process.
        id.lives().then_some(Self { pidfd, id, cgroup: None })
    }
}

/// What an access to a container's files has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Its region was closed, because it has another one.
    pub(super) replaced: bool,
    pub(super) region: bool,
    /// Its region is another one than the last: the container was started again.
    pub(super) restarted: bool,
    /// Processes have exited, or were queried for the first time.
    pub(super) processes: bool,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) tenant: TenantId,
    /// Name of its folder in the control tree.
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
    pub(crate) registration: Option<Registration>,
    /// Living processes that registered it.
    pub(crate) registrants: BTreeMap<i32, Registrant>,
    pub(crate) limits: Limits,
    pub(crate) image: Option<String>,
    /// The weight set in the control tree.
    pub(crate) weight: Option<u32>,
    /// The percentage set in the control tree.
    pub(crate) percent: Option<u32>,
    /// The priority set in the control tree.
    pub(crate) high: Option<bool>,
    pub(crate) region: Option<Region>,
    /// Identity of the region that was opened last; [`ENDED`] once its file was gone. A later file
    /// may have the same identity.
    last_region: Option<(u64, u64)>,
    /// Accesses to its files. What they cost counts although its region was replaced.
    lock_queries: LockQueries,
    /// The reason why its shim refused to start, if it did.
    pub(crate) refusal: Option<String>,
    /// The samples of NVML that it causes.
    pub(super) sampling: Throttle,
    /// What is wrong with it, by kind.
    pub(crate) faults: BTreeMap<&'static str, String>,
    /// Exited processes whose memory may not be released yet, with the time when the exit was
    /// noticed.
    pub(crate) draining: BTreeMap<(SlotIndex, u64), Nanos>,
    /// Host ids of its processes, by slot and generation; none where the search found none.
    pub(crate) host_ids: BTreeMap<(SlotIndex, u64), Option<ProcessId>>,
    /// Processes whose exits are polled for, by slot: the generation, and a descriptor that becomes
    /// readable.
    pub(crate) exits: BTreeMap<SlotIndex, (u64, OwnedFd)>,
    /// Time of its next search at the earliest. There is one at a time, however many slots the
    /// container locks; while it is pending, this is [`Nanos::MAX`].
    next_search: Nanos,
    /// The search that was interrupted.
    unfinished: Option<Search>,
    /// Unaccounted memory of its processes, by slot, generation and GPU.
    pub(crate) unaccounted: BTreeMap<(SlotIndex, u64, DeviceIndex), Unaccounted>,
    pub(crate) exported: BTreeMap<DeviceIndex, ExportedMemory>,
    /// Exited processes whose exported memory has left a GPU, by slot, generation and GPU.
    pub(crate) released: BTreeSet<(SlotIndex, u64, DeviceIndex)>,
    pub(crate) counters: Counters,
    pub(crate) doorbell: Doorbell,
    /// The last one that opened a doorbell. There is one at a time, because the container decides
    /// when it ends.
    doorbell_thread: Option<JoinHandle<()>>,
    /// The file that it holds by a lease, until its region is open.
    leased: Option<LeasedFile>,
    /// Its page while its region cannot be opened.
    pub(super) closed: Option<ClosedPage>,
    /// Whether it arrived while the monitor ran.
    pub(crate) is_fresh: bool,
    /// Whether it may allocate nothing, because it exceeds its limit.
    pub(crate) is_blocked: bool,
    /// By GPU, the limit for its page; zero: its own applies. While it is blocked the page has
    /// another one.
    pub(crate) page_limits: BTreeMap<Uuid, Bytes>,
    pub(crate) walls: ContainerWalls,
}

impl Container {
    pub(crate) fn new(tenant: TenantId, id: String, dir: PathBuf) -> Self {
        let limits = read_limits(&dir);
        let mut faults = BTreeMap::new();
        let limits = limits.unwrap_or_else(|message| {
            faults.insert("limits", message);
            Limits::default()
        });
        Self {
            tenant,
            id,
            image: record::image(&dir),
            dir,
            registration: None,
            registrants: BTreeMap::new(),
            limits,
            weight: None,
            percent: None,
            high: None,
            region: None,
            last_region: None,
            lock_queries: LockQueries::default(),
            refusal: None,
            sampling: Throttle::default(),
            faults,
            draining: BTreeMap::new(),
            host_ids: BTreeMap::new(),
            exits: BTreeMap::new(),
            next_search: Nanos::ZERO,
            unfinished: None,
            unaccounted: BTreeMap::new(),
            exported: BTreeMap::new(),
            released: BTreeSet::new(),
            counters: Counters::default(),
            doorbell: Doorbell::default(),
            doorbell_thread: None,
            leased: None,
            closed: None,
            is_fresh: false,
            is_blocked: false,
            page_limits: BTreeMap::new(),
            walls: ContainerWalls::default(),
        }
    }

    /// Begins an access to its files: closes a region that was replaced, opens one if none is open,
    /// or queries the locks. None: an access is pending, or it is too early.
    /// `is_heartbeat`: otherwise it is not checked whether the region was replaced, because a
    /// container can replace it all the time.
    pub(super) fn begin_access(
        &mut self,
        now: Nanos,
        monitor: u64,
        is_heartbeat: bool,
    ) -> Option<FileRequest> {
        if !self.lock_queries.begin(now) {
            return None;
        }
        let replaced = self.region.take_if(|region| is_heartbeat && !region.is_of(&self.dir));
        if replaced.as_ref().is_some_and(|region| !region.has_file(&self.dir)) {
            self.last_region = Some(ENDED);
        }
        let task = match (replaced, &self.region) {
            (Some(region), _) => FileTask::Close(Box::new(region)),
            (None, Some(region)) => {
                let mut processes = region.live.clone();
                self.lock_queries.order(&mut processes);
                FileTask::Query {
                    locks: region.locks(),
                    file: region.identity(),
                    has_new: processes.iter().any(|process| !region.is_queried(process)),
                    processes,
                }
            }
            (None, None) => FileTask::Open { monitor, is_closed: self.closed.is_some() },
        };
        Some(FileRequest { tenant: self.tenant, dir: self.dir.clone(), task })
    }

    /// Returns the pipe of its doorbell, if it is open.
    pub(crate) fn doorbell_file(&self) -> Option<Arc<File>> {
        self.region.as_ref()?.doorbell.as_ref()?.file()
    }

    /// Begins what is due at its doorbell: it is opened, looked for again, or drained.
    pub(super) fn access_doorbell(&mut self, files: &FileWorkers) {
        let Some(region) = &mut self.region else { return };
        if let Some(pipe) = &mut region.doorbell {
            pipe.request_access();
        } else if self.doorbell_thread.as_ref().is_none_or(JoinHandle::is_finished) {
            let (pipe, thread) = files.open_doorbell(&self.dir);
            (region.doorbell, self.doorbell_thread) = (Some(pipe), thread);
        }
    }

    /// Whether an access to its files has begun and not ended.
    pub(super) const fn is_accessed(&self) -> bool {
        self.lock_queries.is_pending
    }

    /// Whether accesses to its files cost so much that they are delayed.
    pub(crate) const fn has_slow_files(&self) -> bool {
        self.lock_queries.is_behind()
    }

    /// Ends an access to its files, and returns what it has found. `sharers` containers have slow
    /// files.
    pub(super) fn end_access(&mut self, now: Nanos, result: FileResult, sharers: u64) -> Found {
        let mut found = Found::default();
        self.refusal = result.refusal;
        match result.outcome {
            FileOutcome::Closed => {
                self.lock_queries.end(now, result.used, &Round::default(), sharers);
                found.replaced = true;
            }
            FileOutcome::Opened(opened) => {
                self.lock_queries.end(now, result.used, &Round::default(), sharers);
                match opened {
                    Ok(opened) => {
                        let identity = opened.region.identity();
                        let last = self.last_region.replace(identity);
                        found.restarted = last.is_some_and(|last| last != identity);
                        self.take_region(*opened);
                        found.region = true;
                    }
                    // A region that does not exist yet is no fault.
                    Err((Error { fault: Fault::Missing, .. }, _)) => {
                        self.closed = None;
                        self.faults.remove("region");
                    }
                    Err((error, closed)) => {
                        self.closed = self.closed.take().or(closed);
                        if error.is_leased() && self.leased.as_ref().is_none_or(LeasedFile::is_over)
                        {
                            self.leased = LeasedFile::open(&error.path);
                        }
                        let effect = self.closed.as_ref().map_or("", |_| ": it gets no compute");
                        self.faults.insert("region", format!("{error}{effect}"));
                    }
                }
            }
            FileOutcome::Queried(file, round) => {
                self.lock_queries.end(now, result.used, &round, sharers);
                let region = self.region.as_mut().filter(|region| region.identity() == file);
                let Some(region) = region else { return found };
                for (process, liveness) in round.answers {
                    found.processes |= region.take_liveness(process, liveness);
                }
            }
        }
        found
    }

    fn take_region(&mut self, opened: Opened) {
        self.faults.remove("region");
        self.leased = None;
        self.closed = None;
        self.draining.clear();
        self.host_ids.clear();
        self.exits.clear();
        self.unaccounted.clear();
        self.exported.clear();
        self.released.clear();
        self.counters.take(Nanos::ZERO, &[]);
        match opened.limits {
            Ok(limits) => {
                self.limits = limits;
                self.faults.remove("limits");
            }
            Err(message) => {
                self.faults.insert("limits", message);
            }
        }
        self.image = opened.image;
        self.region = Some(opened.region);
    }

    pub(crate) fn name(&self) -> String {
        let registered =
            self.registration.as_ref().and_then(|registration| registration.name.clone());
        let own = || {
            self.region
                .as_ref()
                .map(|region| region.seen.name.clone())
                .filter(|name| !name.is_empty())
        };
        registered
            .or_else(|| self.limits.name.clone())
            .or_else(own)
            .unwrap_or_else(|| self.id.clone())
    }

    /// Returns the weight: as set, else as registered, else as in the limits file.
    pub(crate) fn weight(&self) -> u32 {
        let registered = self.registration.as_ref().and_then(|registration| registration.weight);
        self.weight.or(registered).unwrap_or(self.limits.weight)
    }

    /// Takes over what was set for it in the control tree; none: nothing.
    pub(super) fn take_settings(&mut self, set: Option<&ContainerSettings>) {
        self.weight = set.and_then(|set| set.weight);
        self.percent = set.and_then(|set| set.percent);
        self.high = set.and_then(|set| set.high);
    }

    /// Returns its share of each GPU in percent, for policy 3: as set, else as registered, else as
    /// in the limits file.
    pub(crate) fn percent(&self) -> Option<u32> {
        let registered = self.registration.as_ref().and_then(|registration| registration.percent);
        self.percent.or(registered).or(self.limits.percent)
    }

    /// Whether it has high priority: as set, else as registered, else as in the limits file.
    pub(crate) fn is_high(&self) -> bool {
        let registered =
            self.registration.as_ref().and_then(|registration| registration.high_priority);
        self.high.or(registered).unwrap_or(self.limits.high_priority)
    }

    /// Returns the GPUs that it may share; none: all that it has.
    fn allowed(&self) -> Option<Vec<Uuid>> {
        let registered: Vec<Uuid> = self
            .registration
            .iter()
            .flat_map(|registration| &registration.limits)
            .filter_map(|limit| limit.uuid.parse().ok())
            .collect();
        if !registered.is_empty() {
            return Some(registered);
        }
        // GPUs that the limits file does not name are native.
        (!self.limits.gpus.is_empty()).then(|| self.limits.gpus.iter().map(|gpu| gpu.0).collect())
    }

    /// Returns the GPUs that it has open or is limited on, and may share, without repetition.
    pub(crate) fn gpus(&self) -> Vec<Uuid> {
        let allowed = self.allowed();
        let own = self.region.iter().flat_map(Region::gpus);
        let mut gpus = Vec::new();
        for uuid in own.chain(allowed.iter().flatten().copied()) {
            let may = allowed.as_ref().is_none_or(|allowed| allowed.contains(&uuid));
            if may && !gpus.contains(&uuid) {
                gpus.push(uuid);
            }
        }
        gpus
    }

    /// Whether it may share the GPU, according to its registration or its limits file; none: they
    /// do not say. What its region says does not count.
    pub(crate) fn may_share(&self, uuid: Uuid) -> Option<bool> {
        self.allowed().map(|allowed| allowed.contains(&uuid))
    }

    /// Whether its region says that it uses other GPUs and not this one.
    pub(crate) fn disowns(&self, uuid: Uuid) -> bool {
        let own: Vec<Uuid> = self.region.iter().flat_map(Region::gpus).collect();
        !own.is_empty() && !own.contains(&uuid)
    }

    pub(crate) fn identity(&self) -> ContainerIdentity {
        let ids = |lives: bool| {
            let live =
                self.region.as_ref().map(|region| region.live.as_slice()).unwrap_or_default();
            let of =
                self.host_ids.iter().filter(move |(process, _)| live.contains(process) == lives);
            of.filter_map(|(_, id)| *id).collect()
        };
        let region = self.region.as_ref();
        let unreadable = region.is_some_and(|region| region.unreadable.is_some());
        let readable = region.filter(|_| !unreadable);
        let unnamed = readable.map(|region| {
            let allowed = self.allowed().into_iter().flatten();
            allowed.filter(|uuid| region.gpu(*uuid).is_none()).collect()
        });
        // A file that cannot be read may still be mapped.
        let file = || {
            let about = self.dir.join("use").symlink_metadata().ok().filter(Metadata::is_file)?;
            Some((about.dev(), about.ino()))
        };
        ContainerIdentity {
            tenant: self.tenant.0,
            dir: self.dir.clone(),
            file: region.map(Region::identity).or_else(file),
            searched: self.is_searched(),
            closed: unreadable || region.is_none() && self.faults.contains_key("region"),
            registrants: self.registrants.values().map(|registrant| registrant.id).collect(),
            verified: ids(true),
            former: ids(false),
            unnamed: unnamed.unwrap_or_default(),
        }
    }

    /// Whether all of its processes with a slot have been searched for on the host.
    fn is_searched(&self) -> bool {
        self.region.as_ref().is_none_or(|region| {
            let known = |process: &(SlotIndex, u64)| self.host_ids.contains_key(process);
            region.live.iter().all(known)
        })
    }

    /// Returns the limit that its registration or its limits file sets for a GPU.
    pub(crate) fn requested_limit(&self, uuid: Uuid) -> Option<Bytes> {
        let limits = self.registration.iter().flat_map(|registration| &registration.limits);
        let limit = limits
            .filter(|limit| limit.uuid.parse() == Ok(uuid))
            .map(|limit| Bytes(limit.bytes))
            .next();
        limit.or_else(|| self.limits.gpus.iter().find(|gpu| gpu.0 == uuid).map(|gpu| gpu.1))
    }

    /// Returns the limit that it was started with on a GPU, by registration or limits file, else by
    /// its region; zero: none.
    pub(crate) fn registered_limit(&self, uuid: Uuid) -> Bytes {
        let own = self
            .region
            .as_ref()
            .and_then(|region| region.seen.gpus.iter().find(|gpu| gpu.uuid == uuid));
        self.requested_limit(uuid).or(own.map(|gpu| gpu.limit)).unwrap_or(Bytes::ZERO)
    }

    /// Returns the index of a GPU in its region. Before its first process, that is the GPU's place
    /// in the limits file: each process registers all GPUs of the file, in its order.
    pub(crate) fn index(&self, uuid: Uuid) -> Option<DeviceIndex> {
        let region = self.region.as_ref()?;
        if region.gpus().next().is_some() {
            return region.gpu(uuid);
        }
        DeviceIndex::new(self.limits.gpus.iter().position(|gpu| gpu.0 == uuid)?)
    }

    /// Returns the limit in force for a GPU, also while it is blocked there; zero: none.
    pub(crate) fn limit(&self, uuid: Uuid) -> Bytes {
        let region = self.region.as_ref();
        let page = || region.and_then(|region| Some(region.limit(self.index(uuid)?)));
        let otherwise = self.page_limits.get(&uuid).copied().filter(|_| self.is_blocked);
        let granted = otherwise.or_else(page);
        granted.filter(|limit| *limit > Bytes::ZERO).unwrap_or_else(|| self.registered_limit(uuid))
    }

    /// Returns its presence on a GPU that it has open or is limited on.
    pub(crate) fn presence(&self, uuid: Uuid) -> Presence {
        let open = self
            .region
            .as_ref()
            .is_some_and(|region| !region.live.is_empty() && region.gpu(uuid).is_some());
        Presence { created: open || !self.registrants.is_empty(), open }
    }

    /// Notes which of its processes have exited since the last call, and drops what was kept of
    /// them.
    pub(crate) fn note_exits(&mut self, now: Nanos) {
        let Some(region) = &self.region else { return };
        if region.unreadable.is_some() {
            return;
        }
        let mut draining = BTreeMap::new();
        for (index, slot) in region.seen.slots.iter().enumerate() {
            let Some(index) = SlotIndex::new(index) else { break };
            let generation = slot.word.generation().get();
            // An orphan's memory is no longer the process's.
            let over = matches!(slot.word.state(), Some(State::Free | State::Orphan) | None);
            if !over && !region.live.contains(&(index, generation)) {
                let since = self.draining.get(&(index, generation)).copied().unwrap_or(now);
                draining.insert((index, generation), since);
            }
        }
        self.draining = draining;
        let live = &region.live;
        self.host_ids
            .retain(|process, _| live.contains(process) || self.draining.contains_key(process));
        self.exits.retain(|slot, (generation, _)| live.contains(&(*slot, *generation)));
        self.unaccounted.retain(|(slot, generation, _), _| live.contains(&(*slot, *generation)));
        let seen = &region.seen;
        self.released.retain(|(slot, generation, _)| {
            seen.slots
                .get(slot.get())
                .is_some_and(|slot| slot.word.generation().get() == *generation)
        });
    }

    pub(crate) fn count(&mut self, now: Nanos) {
        if let Some(region) = self.region.as_ref().filter(|region| region.unreadable.is_none()) {
            self.counters.take(now, &region.seen.slots);
        }
    }

    /// Begins a search on the host for its processes that have not been searched for. None: there
    /// are none, or it is too early.
    pub(crate) fn begin_search(&mut self, now: Nanos) -> Option<Search> {
        let region = self.region.as_ref().filter(|_| now >= self.next_search)?;
        let unfinished = self.unfinished.take().filter(|rest| rest.file == region.identity());
        if unfinished.is_some() {
            self.next_search = Nanos::MAX;
            return unfinished;
        }
        let slot_process = |&(slot, generation): &(SlotIndex, u64)| {
            let seen = region.seen.slots.get(slot.get())?;
            // A lock that was not queried yet may be that of a process that exited long ago.
            let is_new = !self.host_ids.contains_key(&(slot, generation))
                && region.is_queried(&(slot, generation))
                && seen.pid != 0;
            is_new.then_some(SlotProcess { slot, generation, pid: seen.pid })
        };
        let processes: Vec<SlotProcess> = region.live.iter().filter_map(slot_process).collect();
        let search = Search::new(self.tenant.0, region.identity(), processes);
        if search.processes.is_empty() {
            return None;
        }
        self.next_search = Nanos::MAX;
        Some(search)
    }

    /// Takes the result of a search, and publishes it to the container. Returns the slots whose
    /// exits are to be polled for. `search` is the rest of it, and `used` the CPU time that it
    /// took.
    pub(crate) fn found(
        &mut self,
        now: Nanos,
        search: Search,
        found: Vec<(SlotProcess, Option<FoundProcess>)>,
        used: Nanos,
    ) -> Vec<SlotIndex> {
        let is_over = search.processes.is_empty();
        let again = if is_over && search.is_partial() { AGAIN } else { Nanos::ZERO };
        self.next_search = now + Nanos(used.0.saturating_mul(SEARCH_RATIO)).max(again);
        let mut polled = Vec::new();
        let Some(region) = self.region.as_ref().filter(|region| region.identity() == search.file)
        else {
            return polled;
        };
        for (SlotProcess { slot, generation, .. }, verified) in found {
            let id = verified.as_ref().map(|verified| verified.id);
            self.host_ids.insert((slot, generation), id);
            if let Some(exit) = verified.and_then(|verified| verified.exit)
                && self.exits.len() < MAX_EXIT_WATCHES
            {
                self.exits.insert(slot, (generation, exit));
                polled.push(slot);
            }
            region.set_host_pid(slot, generation, id.map(|id| id.pid));
        }
        self.unfinished = Some(search).filter(|rest| !rest.processes.is_empty());
        polled
    }

    /// Returns the processes whose ledger is sampled with NVML, if any; none: there is no ledger.
    pub(crate) fn sampled(&self) -> Option<SampledContainer> {
        let region = self.region.as_ref().filter(|region| region.unreadable.is_none())?;
        let found = |&(slot, generation)| {
            Some((slot, generation, (*self.host_ids.get(&(slot, generation))?)?.pid))
        };
        Some(SampledContainer {
            tenant: self.tenant.0,
            dir: self.dir.clone(),
            file: region.identity(),
            gpus: region.seen.gpus.iter().map(|gpu| gpu.uuid).collect(),
            processes: region.live.iter().filter_map(found).collect(),
        })
    }
}

/// Reads a container's limits: the host's copy, else the container's own; none: it has no limits.
pub(super) fn read_limits(dir: &Path) -> Result<Limits, String> {
    let paths = paths::host_limits(dir).into_iter().chain([dir.join("limits")]);
    let mut found = paths.filter_map(|path| Some((read_text(&path)?, path)));
    let Some((text, path)) = found.next() else { return Ok(Limits::default()) };
    text.parse().map_err(|refused| format!("{}: {refused}", path.display()))
}

#[cfg(test)]
mod tests;
