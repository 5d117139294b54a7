//! Blocking work on a thread of its own: NVML, the search for host process ids, the settings file.
//!
//! The daemon sends requests over one channel and polls another for results. It never waits: a
//! prober that hangs in a driver call costs the turns nothing, nor memory. At most one request of
//! each kind is pending, and one search for each container (`host/container.rs`); a process is
//! ordered to end only after another sample.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::device_id::DeviceId;
use cgpu_client::health::Health;
use cgpu_client::inventory::HostDevice;
use cgpu_inventory::Unknown;
use cgpu_inventory::health::HealthCheck;
use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::Nvml;
use parking_lot::Mutex;

use crate::settings::Settings;
use crate::watcher::{Order, ProcessId};

mod cgroups;
mod end;
mod errors;
mod gpu_processes;
mod health;
mod ledger_samples;
mod mapped;
mod nvml;
mod search;
mod stat;

use gpu_processes::ProcessIndex;
pub(crate) use gpu_processes::{ContainerIdentity, GpuProcess};
use health::Reports;
pub(crate) use ledger_samples::{ContainerTotals, LedgerSample, SampledContainer};
use nvml::Library;
use search::find;
pub(crate) use search::{FoundProcess, Search, SlotProcess};

/// A request of the daemon.
#[derive(Debug)]
enum ProbeRequest {
    /// NVML's view, soon.
    Sample,
    /// Which host processes are these?
    Find(Search),
    /// The containers whose ledgers are sampled with NVML, from now on.
    SampleLedgers(Vec<SampledContainer>),
    /// How to recognise containers' processes, from now on.
    Identify(Vec<ContainerIdentity>),
    /// This process is to be ended.
    End(Order),
    /// Wait until the disk has the settings.
    Sync,
}

/// Which kinds of requests are pending: one of each is enough.
#[derive(Debug, Default)]
struct Pending {
    sample: AtomicBool,
    sample_ledgers: AtomicBool,
    identify: AtomicBool,
    sync: AtomicBool,
}

impl Pending {
    fn of(&self, request: &ProbeRequest) -> Option<&AtomicBool> {
        match request {
            ProbeRequest::Sample => Some(&self.sample),
            ProbeRequest::SampleLedgers(_) => Some(&self.sample_ledgers),
            ProbeRequest::Identify(_) => Some(&self.identify),
            ProbeRequest::Sync => Some(&self.sync),
            ProbeRequest::Find(_) | ProbeRequest::End(_) => None,
        }
    }
}

/// What the prober has found.
#[derive(Debug)]
pub(crate) enum ProbeResult {
    /// NVML's view; none: there is no NVML.
    Sampled(Option<Sample>),
    /// Who each suspect is on the host, or none.
    Found(Search, Vec<Option<FoundProcess>>),
    /// A process was ended, or why not.
    Ended(Order, Result<(), String>),
}

/// NVML's view at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Before it was asked.
    pub(crate) at: Nanos,
    pub(crate) gpus: Vec<GpuSample>,
    /// All devices, for programs that start containers; none: one has not answered.
    pub(crate) all: Option<Vec<HostDevice>>,
    /// GPUs that are partitioned into instances, which are among `all` in their place, by NVML's index.
    pub(crate) partitioned: Vec<(u32, Uuid)>,
    /// How all of them answer; none: it is not told how many there are.
    pub(crate) health_checks: Option<Vec<HealthCheck>>,
    /// Containers whose processes had all been searched for before, so that all of theirs on the GPUs are recognised: [`ContainerIdentity::tenant`].
    pub(crate) searched: BTreeSet<u64>,
}

/// NVML's view of a GPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuSample {
    pub(crate) index: DeviceId,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) used: Option<u64>,
    pub(crate) free: Option<u64>,
    /// What is used and of no process at most, the driver's own included; none: not told.
    pub(crate) unowned: Option<Bytes>,
    /// How much of the time it computes, in percent; none: not told.
    pub(crate) utilization: Option<u32>,
    /// The same for each process that computed lately, by its id on the host; none: not told.
    pub(crate) busy: Option<BTreeMap<u32, u32>>,
    /// Who has a context on it; none: not told.
    pub(crate) processes: Processes,
    /// Who those are.
    pub(crate) gpu_processes: Vec<GpuProcess>,
    /// Ledger samples of the sampled containers.
    pub(crate) samples: Vec<LedgerSample>,
}

impl GpuSample {
    /// It is not told of any more: what it is stays, what it holds and does is not known.
    pub(crate) fn forget(&mut self) {
        let (index, uuid, name, total) =
            (self.index, self.uuid, std::mem::take(&mut self.name), self.total);
        *self = Self { index, uuid, name, total, ..Self::default() };
    }

    /// Whether this process is on it; none: not told. A later process of its number is another one.
    pub(crate) fn has(&self, id: ProcessId) -> Option<bool> {
        let processes = self.processes.as_ref()?;
        let later = || self.gpu_processes.iter().any(|one| one.id.pid == id.pid && one.id != id);
        Some(processes.contains_key(&id.pid) && !later())
    }
}

/// Processes on a GPU, by their ids on the host, with what the driver holds for each, as far as it tells.
pub(crate) type Processes = Option<BTreeMap<u32, Option<Bytes>>>;

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct Prober {
    requests: Sender<ProbeRequest>,
    results: Receiver<ProbeResult>,
    pending: Arc<Pending>,
    reports: Arc<Mutex<Reports>>,
}

/// NVML is asked this often, and where it was missing, looked for.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const NVML_RETRY_INTERVAL: Duration = Duration::from_secs(2);

impl Prober {
    /// Starts the thread. It ends with its [`Prober`].
    ///
    /// # Errors
    /// When no threads can be made.
    pub(crate) fn start(library: String, state: PathBuf) -> io::Result<Self> {
        let (requests, inbox) = channel();
        let (outbox, results) = channel();
        let pending = Arc::new(Pending::default());
        let known = Arc::clone(&pending);
        let (opened, listened) = channel();
        let reports = errors::listen(library.clone(), listened)?;
        thread::Builder::new()
            .name("prober".into())
            .spawn(move || run(&inbox, &outbox, &library, &opened, &state, &known))?;
        Ok(Self { requests, results, pending, reports })
    }

    /// Sends a request; false: one of its kind is pending.
    fn send(&self, request: ProbeRequest) -> bool {
        if self.pending.of(&request).is_some_and(|pending| pending.swap(true, Ordering::AcqRel)) {
            return false;
        }
        // A prober that has ended has logged why.
        let _ = self.requests.send(request);
        true
    }

    /// NVML is to be asked soon.
    pub(crate) fn sample(&self) {
        self.send(ProbeRequest::Sample);
    }

    /// Sets the containers whose ledgers are sampled; false: a request is pending.
    pub(crate) fn sample_ledgers(&self, containers: Vec<SampledContainer>) -> bool {
        self.send(ProbeRequest::SampleLedgers(containers))
    }

    /// How to recognise containers' processes from now on; false: ask again later.
    pub(crate) fn identify(&self, containers: Vec<ContainerIdentity>) -> bool {
        self.send(ProbeRequest::Identify(containers))
    }

    /// These are to be found. Only one for each container at a time.
    pub(crate) fn find(&self, search: Search) {
        self.send(ProbeRequest::Find(search));
    }

    /// This process is to be ended.
    pub(crate) fn end(&self, order: Order) {
        self.send(ProbeRequest::End(order));
    }

    /// The settings have been saved: the disk is to have them too.
    pub(crate) fn sync(&self) {
        self.send(ProbeRequest::Sync);
    }

    /// How the GPUs are that answered like this `at` that time.
    pub(crate) fn health(&self, health_checks: &[HealthCheck], at: Nanos, now: Nanos) -> Health {
        self.reports.lock().health(health_checks, at, now)
    }

    /// What it finds first; none if that takes too long.
    pub(crate) fn first(&self, timeout: Duration) -> Option<ProbeResult> {
        self.results.recv_timeout(timeout).ok()
    }

    /// What has been found since.
    pub(crate) fn results(&self) -> impl Iterator<Item = ProbeResult> + '_ {
        self.results.try_iter()
    }
}

fn run(
    requests: &Receiver<ProbeRequest>,
    results: &Sender<ProbeResult>,
    name: &str,
    opened: &Sender<Weak<Nvml>>,
    state: &Path,
    pending: &Pending,
) {
    let open = || {
        // Who listens may have ended.
        Library::open(name).inspect(|library| _ = opened.send(library.shared()))
    };
    let mut library = open();
    let mut tried = Instant::now();
    if let Err(error) = &library {
        tracing::warn!(
            "no NVML: {error}; GPUs are taken from the containers, dead processes' memory by the clock"
        );
    }
    let mut due = Instant::now();
    let mut sampler = ledger_samples::LedgerSampler::default();
    let mut identities = Vec::new();
    loop {
        if Instant::now() >= due {
            if library.is_err() && tried.elapsed() >= NVML_RETRY_INTERVAL {
                library = open();
                tried = Instant::now();
            }
            let at = Monotonic.now();
            let gpus = library
                .as_ref()
                .ok()
                .map(|library| library.sample(|gpu, ask| sampler.sample_around(gpu, ask)));
            let gpus = match gpus.transpose() {
                Ok(gpus) => gpus,
                // NVML has lost its GPUs, which does not mean that they are unused: it is opened
                // anew, once the thread that listens for errors has released it.
                Err(error) => {
                    tracing::warn!("{name} has stopped telling: {error}");
                    (library, tried) = (Err(Unknown::Count(error)), Instant::now());
                    None
                }
            };
            let all = library.as_ref().ok().and_then(Library::inventory);
            let health_checks = library.as_ref().ok().and_then(Library::health_checks);
            let partitioned = library.as_ref().map_or_else(|_| Vec::new(), Library::partitioned);
            let searched = searched(&identities);
            let sample =
                gpus.map(|gpus| Sample { at, gpus, all, partitioned, health_checks, searched });
            let sample = sample.map(|sample| identify(sample, &identities));
            if results.send(ProbeResult::Sampled(sample)).is_err() {
                return;
            }
            due = Instant::now() + SAMPLE_INTERVAL;
        }
        let request = match requests.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // What comes from now on is another request.
        if let Some(pending) = pending.of(&request) {
            pending.store(false, Ordering::Release);
        }
        let sent = match request {
            ProbeRequest::Sample => {
                due = Instant::now();
                Ok(())
            }
            ProbeRequest::SampleLedgers(containers) => {
                sampler.set_containers(containers);
                Ok(())
            }
            ProbeRequest::Identify(containers) => {
                identities = containers;
                Ok(())
            }
            ProbeRequest::End(order) => {
                let outcome = end::end(&order, library.as_ref().ok(), &identities);
                results.send(ProbeResult::Ended(order, outcome))
            }
            ProbeRequest::Find(search) => {
                let found = find(&search);
                results.send(ProbeResult::Found(search, found))
            }
            ProbeRequest::Sync => {
                if let Err(error) = Settings::sync(state) {
                    tracing::warn!(
                        "settings may not outlive a power cut in {}: {error}",
                        state.display()
                    );
                }
                Ok(())
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Of whom all processes can be recognised.
fn searched(identities: &[ContainerIdentity]) -> BTreeSet<u64> {
    identities.iter().filter(|identity| identity.searched).map(|identity| identity.tenant).collect()
}

/// Adds to a sample who the processes on its GPUs are.
fn identify(mut sample: Sample, identities: &[ContainerIdentity]) -> Sample {
    if sample.gpus.iter().all(|gpu| gpu.processes.as_ref().is_none_or(BTreeMap::is_empty)) {
        return sample;
    }
    let index = ProcessIndex::new(identities);
    for gpu in &mut sample.gpus {
        let pids = gpu.processes.iter().flatten().map(|(pid, _)| *pid);
        gpu.gpu_processes = pids.filter_map(|pid| index.gpu_process(pid)).collect();
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_do_not_pile_up_while_the_prober_hangs() {
        let (requests, inbox) = channel();
        let (_outbox, results) = channel();
        let prober = Prober { requests, results, pending: Arc::default(), reports: Arc::default() };
        for _ in 0..100 {
            prober.sample();
            prober.sync();
            prober.sample_ledgers(Vec::new());
            prober.identify(Vec::new());
        }
        assert!(!prober.sample_ledgers(Vec::new()));
        assert_eq!(inbox.try_iter().count(), 4);
    }

    #[test]
    fn prober_without_nvml_reports_so_and_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let prober =
            Prober::start("libno-such-nvml.so".into(), state.path().join("state")).unwrap();
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
