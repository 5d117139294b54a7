//! Blocking work on a thread of its own: NVML and the settings file.
//!
//! The daemon sends requests over one channel and polls another for results. It never waits, so a
//! prober that hangs in a driver call delays neither turns nor memory. At most one request of each
//! kind is pending, and one search per container (`host/container.rs`). A process is ended only
//! after another sample.
//!
//! What a container can delay is done on further threads: readings of its processes' maps
//! (`maps.rs`) and the searches for their host ids (`search.rs`).

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::board::Board;
use cgpu_client::device_id::DeviceId;
use cgpu_client::health::Health;
use cgpu_client::inventory::HostDevice;
use cgpu_inventory::Unknown;
use cgpu_inventory::health::HealthCheck;
use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::clock::{Clock, Monotonic, thread_cpu};
use cgpu_shm::host_memory::{Exposure, exposures};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::Nvml;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::settings::Settings;
use crate::wall;
use crate::wall::walls::Walls;
use crate::watcher::{Order, ProcessId};

mod cgroups;
mod end;
mod errors;
mod gpu_processes;
mod health;
mod ledger_samples;
mod mapped;
mod maps;
mod nvml;
mod renewal;
mod search;
mod stat;

use end::Orders;
pub(crate) use gpu_processes::{ContainerIdentity, GpuProcess};
use gpu_processes::{ProcessIndex, regions};
use health::Reports;
use ledger_samples::LedgerSampler;
pub(crate) use ledger_samples::{ContainerTotals, LedgerSample, SampledContainer};
use mapped::MapsReader;
use maps::{GRACE, Maps};
use nvml::{Library, WallDriver};
use search::Searches;
pub(crate) use search::{FoundProcess, Search, SlotProcess};

#[derive(Debug)]
enum ProbeRequest {
    /// Sample NVML soon.
    Sample,
    /// Find the host processes of these slots.
    Find(Search),
    /// Sample the ledgers of these containers with NVML from now on.
    SampleLedgers(Vec<SampledContainer>),
    /// Recognise containers' processes by this from now on.
    Identify(Vec<ContainerIdentity>),
    End(Order),
    /// Set the walls of the containers in [`WallOrders`].
    ApplyWalls,
    /// Take what was read of the maps of processes.
    TakeReadings,
    /// Wait until the settings are on the disk.
    Sync,
}

/// The kinds of requests that are pending.
#[derive(Debug, Default)]
struct Pending {
    sample: AtomicBool,
    sample_ledgers: AtomicBool,
    identify: AtomicBool,
    walls: AtomicBool,
    readings: AtomicBool,
    sync: AtomicBool,
}

impl Pending {
    fn of(&self, request: &ProbeRequest) -> Option<&AtomicBool> {
        match request {
            ProbeRequest::Sample => Some(&self.sample),
            ProbeRequest::SampleLedgers(_) => Some(&self.sample_ledgers),
            ProbeRequest::Identify(_) => Some(&self.identify),
            ProbeRequest::ApplyWalls => Some(&self.walls),
            ProbeRequest::TakeReadings => Some(&self.readings),
            ProbeRequest::Sync => Some(&self.sync),
            ProbeRequest::Find(_) | ProbeRequest::End(_) => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum ProbeResult {
    /// NVML's view. None: there is no NVML.
    Sampled(Option<Sample>),
    /// The rest of a search, the slots for which it is over with the host process of each, where
    /// one was found, and the CPU time that it took.
    Found(Search, Vec<(SlotProcess, Option<FoundProcess>)>, Nanos),
    /// A process was ended, or the reason why not.
    Ended(Order, Result<(), String>),
    /// Host memory that can be a GPU's has changed.
    HostMemory(Vec<Exposure>),
    /// What the orders with this number led to, and how many limits were left until then
    /// ([`Walls::left`]).
    Walls(u64, Vec<wall::Outcome>, BTreeMap<Uuid, u64>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Time before NVML was called.
    pub(crate) at: Nanos,
    /// CPU time that it took.
    pub(crate) used: Nanos,
    pub(crate) gpus: Vec<GpuSample>,
    /// All devices, for programs that start containers. None: one has not answered.
    pub(crate) all: Option<Vec<HostDevice>>,
    /// GPUs that are partitioned into instances, by NVML's index. `all` has the instances in their
    /// place.
    pub(crate) partitioned: Vec<(u32, Uuid)>,
    /// How each GPU answers. None: NVML does not say how many there are.
    pub(crate) health_checks: Option<Vec<HealthCheck>>,
    /// Containers ([`ContainerIdentity::tenant`]) whose processes had all been searched for before,
    /// so that each of them on a GPU is recognised.
    pub(crate) searched: BTreeSet<u64>,
    /// Containers of whose processes one has not let its maps be read for long.
    pub(crate) held: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct GpuSample {
    pub(crate) index: DeviceId,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) pci_bus_id: String,
    pub(crate) total: u64,
    pub(crate) used: Option<u64>,
    pub(crate) free: Option<u64>,
    /// Upper bound of the memory used by no process, with the driver's own. None: unknown.
    pub(crate) unowned: Option<Bytes>,
    pub(crate) board: Board,
    /// Whether the driver keeps its state while no program uses it. None: unknown.
    pub(crate) is_persistent: Option<bool>,
    /// Part of the time for which it computes, in percent. None: unknown.
    pub(crate) utilization: Option<u32>,
    /// The same for each process since the sample before. None: unknown.
    pub(crate) busy: Option<BusyProcesses>,
    /// Processes with a context on it. None: unknown.
    pub(crate) processes: Processes,
    /// Those that compute through MPS.
    pub(crate) mps_clients: BTreeSet<u32>,
    /// The same processes, as far as they were identified.
    pub(crate) gpu_processes: Vec<GpuProcess>,
    /// Those of the sample before that are gone. They may have computed since.
    pub(crate) former: Vec<GpuProcess>,
    pub(crate) samples: Vec<LedgerSample>,
}

impl GpuSample {
    /// Clears what is sampled, for a GPU that NVML no longer lists. Its name and size stay.
    pub(crate) fn forget(&mut self) {
        let (index, uuid, name, total) =
            (self.index, self.uuid, std::mem::take(&mut self.name), self.total);
        *self = Self { index, uuid, name, total, ..Self::default() };
    }

    /// Returns the part of the time for which it computed for a container, in percent. None:
    /// unknown.
    pub(crate) fn utilization_of(&self, tenant: u64) -> Option<u32> {
        let busy = self.busy.as_ref()?;
        let all = self.gpu_processes.iter().chain(&self.former);
        let own = all.filter(|one| one.owner == Some(tenant));
        let percents = own.filter_map(|one| busy.percents.get(&one.id.pid));
        Some(percents.fold(0, |sum: u32, percent| sum.saturating_add(*percent)).min(100))
    }

    /// Returns the part of the GPU's time that a container had, in percent, by the same figures.
    /// Processes have the GPU in turns, so together they have at most all of it. Clients of MPS
    /// compute at the same time: together they have at most what the others leave.
    pub(crate) fn measured(&self, tenant: u64) -> u32 {
        let Some(busy) = &self.busy else { return 0 };
        let is_own = |pid: u32| {
            let mut all = self.gpu_processes.iter().chain(&self.former);
            all.any(|one| one.id.pid == pid && one.owner == Some(tenant))
        };
        let sum = |clients: bool, only_own: bool| -> u32 {
            let kind =
                busy.percents.iter().filter(|(pid, _)| self.mps_clients.contains(pid) == clients);
            let counted = kind.filter(|(pid, _)| !only_own || is_own(**pid));
            counted.map(|(_, percent)| *percent.min(&100)).sum()
        };
        let (alone, clients) = (sum(false, false), sum(true, false));
        let left = 100_u32.saturating_sub(alone);
        sum(false, true) * 100 / alone.max(100) + sum(true, true) * left / clients.max(left).max(1)
    }

    /// Whether this process is on it; none: unknown. A later process with the same number does not
    /// count.
    pub(crate) fn has(&self, id: ProcessId) -> Option<bool> {
        let processes = self.processes.as_ref()?;
        let later = || self.gpu_processes.iter().any(|one| one.id.pid == id.pid && one.id != id);
        Some(processes.contains_key(&id.pid) && !later())
    }
}

/// For which part of the time the processes on a GPU computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusyProcesses {
    /// The time. None: unknown.
    pub(crate) span: Option<Nanos>,
    /// Percents of it by host process id, of those that computed at all.
    pub(crate) percents: BTreeMap<u32, u32>,
}

/// Processes on a GPU by host process id, with what the driver holds for each, as far as NVML says.
pub(crate) type Processes = Option<BTreeMap<u32, Option<Bytes>>>;

/// What the prober reads.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The library NVML.
    pub(crate) nvml: String,
    /// The folder of the settings.
    pub(crate) state: PathBuf,
    /// The root of the file system with the kernel's `sys` and `proc`.
    pub(crate) host: PathBuf,
    /// The folder with the records of walls.
    pub(crate) walls: PathBuf,
}

/// The newest orders of walls, which replace all earlier ones.
#[derive(Debug, Default)]
struct WallOrders {
    /// Their number.
    number: u64,
    /// None: the prober has taken them.
    orders: Option<Vec<wall::Order>>,
    /// Whether a client waits for the outcome.
    is_urgent: bool,
}

impl WallOrders {
    fn take(&mut self) -> Self {
        let (orders, is_urgent) = (self.orders.take(), std::mem::take(&mut self.is_urgent));
        Self { number: self.number, orders, is_urgent }
    }
}

/// The daemon's end of the two channels.
#[derive(Debug)]
pub(crate) struct Prober {
    /// The only lasting reference: the thread ends with it.
    requests: Arc<Sender<ProbeRequest>>,
    results: Receiver<ProbeResult>,
    pending: Arc<Pending>,
    reports: Arc<Mutex<Reports>>,
    walls: Arc<Mutex<WallOrders>>,
    /// Readable when there is an urgent result.
    wakeup: Arc<OwnedFd>,
}

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval, for samples that processes cause when they start and exit.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const NVML_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between two checks for host memory that can be a GPU's. It changes when a module is
/// loaded or a GPU is first used.
const HOST_MEMORY_INTERVAL: Duration = Duration::from_secs(60);

impl Prober {
    /// Starts the thread. It ends with this [`Prober`]. `close` closes containers' files.
    ///
    /// # Errors
    /// When no thread can be created.
    pub(crate) fn start(
        paths: Paths,
        close: impl Fn(Box<dyn Any + Send>) + Send + 'static,
    ) -> io::Result<Self> {
        let sampler = LedgerSampler::new(Box::new(close));
        let (requests, inbox) = channel();
        let requests = Arc::new(requests);
        let (outbox, results) = channel();
        let pending = Arc::new(Pending::default());
        let known = Arc::clone(&pending);
        let (readers, readings) = (Arc::downgrade(&requests), Arc::clone(&pending));
        let maps = Maps::new(MapsReader::open, GRACE, move || {
            let Some(requests) = readers.upgrade() else { return };
            send(&requests, &readings, ProbeRequest::TakeReadings);
        });
        let (opened, listened) = channel();
        let walls = Arc::<Mutex<WallOrders>>::default();
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let applied = (Arc::clone(&walls), Arc::clone(&wakeup));
        let reports = errors::listen(paths.nvml.clone(), listened)?;
        thread::Builder::new().name("prober".into()).spawn(move || {
            run(&inbox, &outbox, &paths, &opened, &known, sampler, maps, &applied)
        })?;
        Ok(Self { requests, results, pending, reports, walls, wakeup })
    }

    /// Sends a request. False: one of its kind is pending.
    fn send(&self, request: ProbeRequest) -> bool {
        send(&self.requests, &self.pending, request)
    }

    pub(crate) fn sample(&self) {
        self.send(ProbeRequest::Sample);
    }

    /// Sets the containers whose ledgers are sampled. False: a request is pending; try again later.
    pub(crate) fn sample_ledgers(&self, containers: Vec<SampledContainer>) -> bool {
        self.send(ProbeRequest::SampleLedgers(containers))
    }

    /// Sets how containers' processes are recognised. False: a request is pending; try again later.
    pub(crate) fn identify(&self, containers: Vec<ContainerIdentity>) -> bool {
        self.send(ProbeRequest::Identify(containers))
    }

    /// Requests a search for host processes. Each container has at most one at a time.
    pub(crate) fn find(&self, search: Search) {
        self.send(ProbeRequest::Find(search));
    }

    pub(crate) fn end(&self, order: Order) {
        self.send(ProbeRequest::End(order));
    }

    /// Sets the walls of these containers, and removes those of all others. Returns a number that
    /// the outcome has, or a later one. `is_urgent`: it makes the prober's descriptor readable.
    pub(crate) fn apply_walls(&self, orders: Vec<wall::Order>, is_urgent: bool) -> u64 {
        let mut walls = self.walls.lock();
        walls.number += 1;
        walls.orders = Some(orders);
        walls.is_urgent |= is_urgent;
        let number = walls.number;
        drop(walls);
        self.send(ProbeRequest::ApplyWalls);
        number
    }

    /// Requests that the saved settings be written through to the disk.
    pub(crate) fn sync(&self) {
        self.send(ProbeRequest::Sync);
    }

    /// Returns the health of GPUs that answered like this at time `at`.
    pub(crate) fn health(&self, health_checks: &[HealthCheck], at: Nanos, now: Nanos) -> Health {
        self.reports.lock().health(health_checks, at, now)
    }

    /// Waits for the first result. None: the timeout has passed.
    pub(crate) fn first(&self, timeout: Duration) -> Option<ProbeResult> {
        self.results.recv_timeout(timeout).ok()
    }

    /// Returns the results so far.
    pub(crate) fn results(&self) -> impl Iterator<Item = ProbeResult> + '_ {
        // None of those that are sent from now on is missed.
        let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
        self.results.try_iter()
    }
}

impl AsFd for Prober {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

fn send(requests: &Sender<ProbeRequest>, pending: &Pending, request: ProbeRequest) -> bool {
    if pending.of(&request).is_some_and(|pending| pending.swap(true, Ordering::AcqRel)) {
        return false;
    }
    // A prober that has ended has logged the reason.
    let _ = requests.send(request);
    true
}

#[allow(clippy::too_many_arguments, reason = "the state of one thread")]
fn run(
    requests: &Receiver<ProbeRequest>,
    results: &Sender<ProbeResult>,
    Paths { nvml: name, state, host, walls }: &Paths,
    opened: &Sender<Weak<Nvml>>,
    pending: &Pending,
    mut sampler: LedgerSampler,
    mut maps: Maps,
    (orders_of_walls, wakeup): &(Arc<Mutex<WallOrders>>, Arc<OwnedFd>),
) {
    let mut walls = Walls::new(walls.clone(), host.join("proc"));
    let open = || {
        // The thread that listens for errors may have ended.
        Library::open(name).inspect(|library| _ = opened.send(library.shared()))
    };
    let mut library = open();
    let mut tried = Instant::now();
    if let Err(error) = &library {
        tracing::warn!(
            "no NVML: {error}; GPUs are taken from the containers' files, and memory of exited \
             processes is released by time"
        );
    }
    let (mut sampled, mut due) = (Instant::now(), Instant::now());
    let searches = Searches::new(MapsReader::open);
    let (mut identities, mut orders) = (Arc::<[ContainerIdentity]>::default(), Orders::default());
    let (mut exposed, mut examined) = (Vec::new(), None::<Instant>);
    loop {
        if Instant::now() >= due {
            if library.is_err() && tried.elapsed() >= NVML_RETRY_INTERVAL {
                library = open();
                tried = Instant::now();
            }
            let (at, cpu) = (Monotonic.now(), thread_cpu());
            let gpus = library
                .as_ref()
                .ok()
                .map(|library| library.sample(|gpu, list| sampler.sample_around(gpu, list)));
            let gpus = match gpus.transpose() {
                Ok(gpus) => gpus,
                // NVML has lost its GPUs, which may still be in use. It is opened anew, once the
                // thread that listens for errors has released it.
                Err(error) => {
                    tracing::warn!("{name} no longer lists the GPUs: {error}");
                    (library, tried) = (Err(Unknown::Count(error)), Instant::now());
                    None
                }
            };
            let all = library.as_ref().ok().and_then(Library::inventory);
            let health_checks = library.as_ref().ok().and_then(Library::health_checks);
            let partitioned = library.as_ref().map_or_else(|_| Vec::new(), Library::partitioned);
            let searched = searched(&identities);
            let sample = gpus.map(|gpus| {
                let used = Nanos::ZERO;
                let held = maps.held(at);
                let sample =
                    Sample { at, used, gpus, all, partitioned, health_checks, searched, held };
                let sample = identify(sample, &identities, &mut maps);
                Sample { used: thread_cpu() - cpu, ..sample }
            });
            if results.send(ProbeResult::Sampled(sample)).is_err() {
                return;
            }
            if examined.is_none_or(|at| at.elapsed() >= HOST_MEMORY_INTERVAL) {
                let found = exposures(host);
                if found != exposed && results.send(ProbeResult::HostMemory(found.clone())).is_err()
                {
                    return;
                }
                (exposed, examined) = (found, Some(Instant::now()));
            }
            sampled = Instant::now();
            due = sampled + SAMPLE_INTERVAL;
        }
        for (order, mapped) in orders.ready(Monotonic.now(), &mut maps) {
            let outcome = end::end(&order, library.as_ref().ok(), &identities, mapped);
            if results.send(ProbeResult::Ended(order, outcome)).is_err() {
                return;
            }
        }
        let request = match requests.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // A request that arrives from now on counts as a new one.
        if let Some(pending) = pending.of(&request) {
            pending.store(false, Ordering::Release);
        }
        match request {
            ProbeRequest::Sample => due = due.min(sampled + MIN_SAMPLE_INTERVAL),
            ProbeRequest::SampleLedgers(containers) => sampler.set_containers(containers),
            ProbeRequest::Identify(containers) => {
                identities = containers.into();
                maps.set_regions(regions(&identities));
            }
            ProbeRequest::End(order) => orders.add(Monotonic.now(), order, &mut maps),
            ProbeRequest::ApplyWalls => {
                let WallOrders { number, orders, is_urgent } = orders_of_walls.lock().take();
                let Some(orders) = orders else { continue };
                let outcomes = walls.apply(&orders, &WallDriver(library.as_ref().ok()));
                let left = walls.left().clone();
                if results.send(ProbeResult::Walls(number, outcomes, left)).is_err() {
                    return;
                }
                if is_urgent {
                    // It fails only where it is readable already.
                    let _ = rustix::io::write(&**wakeup, &1_u64.to_ne_bytes());
                }
            }
            ProbeRequest::TakeReadings => maps.take_readings(Monotonic.now()),
            ProbeRequest::Find(search) => {
                searches.start(search, Arc::clone(&identities), results.clone());
            }
            ProbeRequest::Sync => {
                if let Err(error) = Settings::sync(state) {
                    tracing::warn!(
                        "settings may not outlive a power cut in {}: {error}",
                        state.display()
                    );
                }
            }
        }
    }
}

/// Returns the containers whose processes can all be recognised.
fn searched(identities: &[ContainerIdentity]) -> BTreeSet<u64> {
    identities.iter().filter(|identity| identity.searched).map(|identity| identity.tenant).collect()
}

fn identify(mut sample: Sample, identities: &[ContainerIdentity], maps: &mut Maps) -> Sample {
    if sample.gpus.iter().all(|gpu| gpu.processes.as_ref().is_none_or(BTreeMap::is_empty)) {
        return sample;
    }
    let index = ProcessIndex::new(identities);
    let pids: BTreeSet<u32> =
        sample.gpus.iter().flat_map(|gpu| &gpu.processes).flatten().map(|(pid, _)| *pid).collect();
    let processes: BTreeMap<u32, _> =
        pids.into_iter().filter_map(|pid| Some((pid, index.process(pid)?))).collect();
    let known = processes.values().filter_map(|process| Some((process.id, process.membership()?)));
    maps.set_regions(regions(identities));
    maps.renew(sample.at, &known.collect());
    for gpu in &mut sample.gpus {
        let listed = gpu.processes.iter().flatten().filter_map(|(pid, _)| processes.get(pid));
        let found = listed.cloned().map(|process| {
            let mapped = maps.mapped(process.id);
            process.on_gpu(gpu.uuid, mapped)
        });
        gpu.gpu_processes = found.collect();
    }
    sample
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn requests_do_not_pile_up_while_the_prober_hangs() {
        let (requests, inbox) = channel();
        let (_outbox, results) = channel();
        let prober = Prober {
            requests: Arc::new(requests),
            results,
            pending: Arc::default(),
            reports: Arc::default(),
            walls: Arc::default(),
            wakeup: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()),
        };
        for _ in 0..100 {
            prober.sample();
            prober.sync();
            prober.sample_ledgers(Vec::new());
            prober.identify(Vec::new());
            prober.apply_walls(Vec::new(), false);
        }
        assert!(!prober.sample_ledgers(Vec::new()));
        assert_eq!(inbox.try_iter().count(), 5);
    }

    fn prober(directory: &Path) -> Prober {
        let paths = Paths {
            nvml: "libno-such-nvml.so".into(),
            state: directory.join("state"),
            host: directory.join("host"),
            walls: directory.join("walls"),
        };
        Prober::start(paths, drop).unwrap()
    }

    #[test]
    fn host_memory_that_can_be_a_gpus_is_reported_after_the_sample() {
        let directory = tempfile::tempdir().unwrap();
        let parameters = directory.path().join("host/sys/module/nvidia_uvm/parameters");
        fs::create_dir_all(&parameters).unwrap();
        fs::write(parameters.join("uvm_disable_hmm"), "N\n").unwrap();
        let prober = prober(directory.path());
        let result = || prober.results.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(result(), ProbeResult::Sampled(None)));
        let ProbeResult::HostMemory(found) = result() else { panic!("no finding") };
        assert_eq!(found, [Exposure::Hmm]);
        // Once: the next result is a sample.
        prober.sample();
        assert!(matches!(result(), ProbeResult::Sampled(None)));
    }

    #[test]
    fn prober_without_nvml_reports_so_and_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let prober = prober(state.path());
        let result = prober.results.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(result, ProbeResult::Sampled(None)));
        Settings::default().save(&state.path().join("state")).unwrap();
        prober.sync();
        prober.sample();
        assert!(matches!(
            prober.results.recv_timeout(Duration::from_secs(60)).unwrap(),
            ProbeResult::Sampled(None)
        ));
        assert!(!prober.pending.sync.load(Ordering::Acquire));
    }
}
