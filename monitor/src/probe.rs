//! What takes time is done here, in a thread of its own: NVML, the search for host process ids, the settings file.
//!
//! The daemon asks over a channel and finds the answers in another whenever it looks. Nothing here is waited for: a scout that hangs
//! in a driver call costs the turns nothing, nor memory: of each kind of errand one is under way at most, of searches one for each container
//! (`host/container.rs`), and a process is ordered to end only after another sample.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_client::health::Health;
use cgpu_client::inventory::Found;
use cgpu_client::number::DeviceId;
use cgpu_inventory::Unknown;
use cgpu_inventory::health::Pulse;
use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::clock::{Clock, Monotonic};
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use nvml_wrapper::Nvml;
use parking_lot::Mutex;

use crate::settings::Settings;
use crate::watcher::{Name, Order};

mod end;
mod errors;
mod groups;
mod health;
mod mapped;
mod nvml;
mod readings;
mod residents;
mod search;
mod stat;

use health::Reports;
use nvml::Library;
pub(crate) use readings::{Ask, ContainerTotals, Taken};
use residents::Census;
pub(crate) use residents::{Kin, Resident};
use search::prove;
pub(crate) use search::{Proved, Suspect, Suspects};

/// What the daemon wants.
#[derive(Debug)]
enum Errand {
    /// NVML's view, soon.
    Sample,
    /// Which host processes are these?
    Find(Suspects),
    /// Whose books to read when NVML is asked, from now on.
    Watch(Vec<Ask>),
    /// How to recognise containers' processes, from now on.
    Recognise(Vec<Kin>),
    /// This process is to be ended.
    End(Order),
    /// Wait until the disk has the settings.
    Sync,
}

/// Errands of which one under way is enough, or one too many.
#[derive(Debug, Default)]
struct UnderWay {
    sample: AtomicBool,
    watch: AtomicBool,
    recognise: AtomicBool,
    sync: AtomicBool,
}

impl UnderWay {
    fn of(&self, errand: &Errand) -> Option<&AtomicBool> {
        match errand {
            Errand::Sample => Some(&self.sample),
            Errand::Watch(_) => Some(&self.watch),
            Errand::Recognise(_) => Some(&self.recognise),
            Errand::Sync => Some(&self.sync),
            Errand::Find(_) | Errand::End(_) => None,
        }
    }
}

/// What the scout has found.
#[derive(Debug)]
pub(crate) enum News {
    /// NVML's view; none: there is no NVML.
    Sampled(Option<Sample>),
    /// Who each suspect is on the host, or none.
    Found(Suspects, Vec<Option<Proved>>),
    /// A process was ended, or why not.
    Ended(Order, Result<(), String>),
}

/// NVML's view at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Before it was asked.
    pub(crate) at: Nanos,
    pub(crate) gpus: Vec<GpuSample>,
    /// All of them, for whoever starts containers; none: one has not answered.
    pub(crate) all: Option<Vec<Found>>,
    /// GPUs that are partitioned into instances, which are among `all` in their place, by NVML's index.
    pub(crate) partitioned: Vec<(u32, Uuid)>,
    /// How all of them answer; none: it is not told how many there are.
    pub(crate) pulses: Option<Vec<Pulse>>,
    /// Containers whose processes had all been searched for before, so that all of theirs on the GPUs are recognised: [`Kin::tenant`].
    pub(crate) sought: BTreeSet<u64>,
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
    pub(crate) residents: Vec<Resident>,
    /// The books of those that are watched.
    pub(crate) readings: Vec<Taken>,
}

impl GpuSample {
    /// It is not told of any more: what it is stays, what it holds and does is not known.
    pub(crate) fn forget(&mut self) {
        let (index, uuid, name, total) = (self.index, self.uuid, std::mem::take(&mut self.name), self.total);
        *self = Self { index, uuid, name, total, ..Self::default() };
    }

    /// Whether this process is on it; none: not told. A later process of its number is another one.
    pub(crate) fn has(&self, name: Name) -> Option<bool> {
        let processes = self.processes.as_ref()?;
        let later = || self.residents.iter().any(|one| one.name.pid == name.pid && one.name != name);
        Some(processes.contains_key(&name.pid) && !later())
    }
}

/// Processes on a GPU, by their ids on the host, with what the driver holds for each, as far as it tells.
pub(crate) type Processes = Option<BTreeMap<u32, Option<Bytes>>>;

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct Scout {
    errands: Sender<Errand>,
    news: Receiver<News>,
    under_way: Arc<UnderWay>,
    reports: Arc<Mutex<Reports>>,
}

/// NVML is asked this often, and where it was missing, looked for.
const PACE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(2);

impl Scout {
    /// Sends a scout out. It ends with its [`Scout`].
    ///
    /// # Errors
    /// When no threads can be made.
    pub(crate) fn send_out(library: String, state: PathBuf) -> io::Result<Self> {
        let (errands, inbox) = channel();
        let (outbox, news) = channel();
        let under_way = Arc::new(UnderWay::default());
        let known = Arc::clone(&under_way);
        let (opened, listened) = channel();
        let reports = errors::listen(library.clone(), listened)?;
        thread::Builder::new()
            .name("scout".into())
            .spawn(move || run(&inbox, &outbox, &library, &opened, &state, &known))?;
        Ok(Self { errands, news, under_way, reports })
    }

    /// False: it has not heard of the last one of its kind yet.
    fn ask(&self, errand: Errand) -> bool {
        if self.under_way.of(&errand).is_some_and(|under_way| under_way.swap(true, Ordering::AcqRel)) {
            return false;
        }
        // A scout that is no more has left its word in the log.
        let _ = self.errands.send(errand);
        true
    }

    /// NVML is to be asked soon.
    pub(crate) fn sample(&self) {
        self.ask(Errand::Sample);
    }

    /// Whose books are to be read from now on; false: ask again later.
    pub(crate) fn watch(&self, whom: Vec<Ask>) -> bool {
        self.ask(Errand::Watch(whom))
    }

    /// How to recognise containers' processes from now on; false: ask again later.
    pub(crate) fn recognise(&self, whom: Vec<Kin>) -> bool {
        self.ask(Errand::Recognise(whom))
    }

    /// These are to be found. Only one for each container at a time.
    pub(crate) fn find(&self, suspects: Suspects) {
        self.ask(Errand::Find(suspects));
    }

    /// This process is to be ended.
    pub(crate) fn end(&self, order: Order) {
        self.ask(Errand::End(order));
    }

    /// The settings have been saved: the disk is to have them too.
    pub(crate) fn sync(&self) {
        self.ask(Errand::Sync);
    }

    /// How the GPUs are that answered like this `at` that time.
    pub(crate) fn health(&self, pulses: &[Pulse], at: Nanos, now: Nanos) -> Health {
        self.reports.lock().health(pulses, at, now)
    }

    /// What it finds first; none if that takes too long.
    pub(crate) fn first(&self, patience: Duration) -> Option<News> {
        self.news.recv_timeout(patience).ok()
    }

    /// What has been found since.
    pub(crate) fn news(&self) -> impl Iterator<Item = News> + '_ {
        self.news.try_iter()
    }
}

fn run(
    errands: &Receiver<Errand>,
    news: &Sender<News>,
    name: &str,
    opened: &Sender<Weak<Nvml>>,
    state: &Path,
    under_way: &UnderWay,
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
    let mut witness = readings::Witness::default();
    let mut kin = Vec::new();
    loop {
        if Instant::now() >= due {
            if library.is_err() && tried.elapsed() >= RETRY {
                library = open();
                tried = Instant::now();
            }
            let at = Monotonic.now();
            let gpus =
                library.as_ref().ok().map(|library| library.sample(|gpu, ask| witness.enclose(gpu, ask)));
            let gpus = match gpus.transpose() {
                Ok(gpus) => gpus,
                // It has lost its GPUs, which is not to say that nobody is on them: it is opened anew, once whoever listens has let go of it as well.
                Err(error) => {
                    tracing::warn!("{name} has stopped telling: {error}");
                    (library, tried) = (Err(Unknown::Count(error)), Instant::now());
                    None
                }
            };
            let all = library.as_ref().ok().and_then(Library::inventory);
            let pulses = library.as_ref().ok().and_then(Library::pulses);
            let partitioned = library.as_ref().map_or_else(|_| Vec::new(), Library::partitioned);
            let sought = sought(&kin);
            let sample = gpus.map(|gpus| Sample { at, gpus, all, partitioned, pulses, sought });
            let sample = sample.map(|sample| recognise(sample, &kin));
            if news.send(News::Sampled(sample)).is_err() {
                return;
            }
            due = Instant::now() + PACE;
        }
        let errand = match errands.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(errand) => errand,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // What comes from now on is another errand.
        if let Some(under_way) = under_way.of(&errand) {
            under_way.store(false, Ordering::Release);
        }
        let told = match errand {
            Errand::Sample => {
                due = Instant::now();
                Ok(())
            }
            Errand::Watch(whom) => {
                witness.watch(whom);
                Ok(())
            }
            Errand::Recognise(whom) => {
                kin = whom;
                Ok(())
            }
            Errand::End(order) => {
                let outcome = end::end(&order, library.as_ref().ok(), &kin);
                news.send(News::Ended(order, outcome))
            }
            Errand::Find(suspects) => {
                let found = prove(&suspects);
                news.send(News::Found(suspects, found))
            }
            Errand::Sync => {
                if let Err(error) = Settings::sync(state) {
                    tracing::warn!("settings may not outlive a power cut in {}: {error}", state.display());
                }
                Ok(())
            }
        };
        if told.is_err() {
            return;
        }
    }
}

/// Of whom all processes can be recognised.
fn sought(kin: &[Kin]) -> BTreeSet<u64> {
    kin.iter().filter(|kin| kin.sought).map(|kin| kin.tenant).collect()
}

/// Adds to a sample who the processes on its GPUs are.
fn recognise(mut sample: Sample, kin: &[Kin]) -> Sample {
    if sample.gpus.iter().all(|gpu| gpu.processes.as_ref().is_none_or(BTreeMap::is_empty)) {
        return sample;
    }
    let census = Census::new(kin);
    for gpu in &mut sample.gpus {
        let pids = gpu.processes.iter().flatten().map(|(pid, _)| *pid);
        gpu.residents = pids.filter_map(|pid| census.resident(pid)).collect();
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errands_do_not_heap_up_where_the_scout_hangs() {
        let (errands, inbox) = channel();
        let (_outbox, news) = channel();
        let scout = Scout { errands, news, under_way: Arc::default(), reports: Arc::default() };
        for _ in 0..100 {
            scout.sample();
            scout.sync();
            scout.watch(Vec::new());
            scout.recognise(Vec::new());
        }
        assert!(!scout.watch(Vec::new()));
        assert_eq!(inbox.try_iter().count(), 4);
    }

    #[test]
    fn without_nvml_the_scout_says_so_and_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let scout = Scout::send_out("libno-such-nvml.so".into(), state.path().join("state")).unwrap();
        let told = scout.news.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(told, News::Sampled(None)));
        Settings::default().save(&state.path().join("state")).unwrap();
        scout.sync();
        scout.sample();
        assert!(matches!(scout.news.recv_timeout(Duration::from_secs(60)).unwrap(), News::Sampled(None)));
        assert!(!scout.under_way.sync.load(Ordering::Acquire));
    }
}
