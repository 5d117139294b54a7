//! What takes time is done here, in a thread of its own: NVML, the search for host process ids, the settings file.
//!
//! The daemon asks over a channel and finds the answers in another whenever it looks. Nothing here is waited for: a scout that hangs
//! in a driver call costs the turns nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_proto::atomic::{AtomicBool, Ordering};
use cgpu_proto::units::{Bytes, Nanos};
use cgpu_proto::uuid::Uuid;

use crate::daemon::poll::now;
use crate::settings::Settings;
use crate::watch::Order;

mod end;
mod nvml;
mod readings;
mod residents;

use nvml::Library;
pub(crate) use readings::{Ask, Taken};
use residents::Census;
pub(crate) use residents::{Kin, Resident};

/// What the daemon wants.
#[derive(Debug)]
pub(crate) enum Errand {
    /// NVML's view, soon.
    Sample,
    /// Which host process has this file mapped and this process id in its own namespace?
    Find(Suspect),
    /// Whose books to read when NVML is asked, from now on.
    Watch(Vec<Ask>),
    /// How to recognise containers' processes, from now on.
    Recognise(Vec<Kin>),
    /// This process is to be ended.
    End(Order),
    /// Wait until the disk has the settings.
    Sync,
}

/// A process to be found on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suspect {
    /// Whose it is: the daemon's own words, returned as they are.
    pub(crate) tenant: u64,
    pub(crate) slot: u8,
    pub(crate) generation: u64,
    /// As the container says.
    pub(crate) pid: u32,
    /// Device and inode of the file that it has mapped.
    pub(crate) file: (u64, u64),
}

/// What the scout has found.
#[derive(Debug)]
pub(crate) enum News {
    /// NVML's view; none: there is no NVML.
    Sampled(Option<Sample>),
    /// A process's id on the host, or none.
    Found(Suspect, Option<u32>),
    /// A process was ended, or why not.
    Ended(Order, Result<(), String>),
}

/// NVML's view at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Before it was asked.
    pub(crate) at: Nanos,
    pub(crate) cards: Vec<CardSample>,
}

/// NVML's view of a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardSample {
    pub(crate) index: u32,
    pub(crate) uuid: Uuid,
    pub(crate) name: String,
    pub(crate) total: u64,
    pub(crate) used: Option<u64>,
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

/// Processes on a card, by their ids on the host, with what the driver holds for each, as far as it tells.
pub(crate) type Processes = Option<BTreeMap<u32, Option<Bytes>>>;

/// The daemon's end.
#[derive(Debug)]
pub(crate) struct Scout {
    errands: Sender<Errand>,
    news: Receiver<News>,
    /// One errand of that kind is enough.
    syncs: Arc<AtomicBool>,
}

/// NVML is asked this often, and where it was missing, looked for.
const PACE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(2);

impl Scout {
    /// Sends a scout out. It ends with its [`Scout`].
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn send_out(library: String, state: PathBuf) -> io::Result<Self> {
        let (errands, inbox) = channel();
        let (outbox, news) = channel();
        let syncs = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&syncs);
        thread::Builder::new()
            .name("scout".into())
            .spawn(move || run(&inbox, &outbox, &library, &state, &asked))?;
        Ok(Self { errands, news, syncs })
    }

    pub(crate) fn ask(&self, errand: Errand) {
        // A scout that is no more has left its word in the log.
        let _ = self.errands.send(errand);
    }

    /// The settings have been saved: the disk is to have them too.
    pub(crate) fn sync(&self) {
        if !self.syncs.swap(true, Ordering::AcqRel) {
            self.ask(Errand::Sync);
        }
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

fn run(errands: &Receiver<Errand>, news: &Sender<News>, name: &str, state: &Path, syncs: &AtomicBool) {
    let mut library = Library::open(name);
    let mut tried = Instant::now();
    if let Err(error) = &library {
        tracing::warn!(
            "{name}: {error}; cards are taken from the containers, dead processes' memory by the clock"
        );
    }
    let mut due = Instant::now();
    let mut witness = readings::Witness::default();
    let mut kin = Vec::new();
    loop {
        if Instant::now() >= due {
            if library.is_err() && tried.elapsed() >= RETRY {
                library = Library::open(name);
                tried = Instant::now();
            }
            let at = now();
            let sample = library
                .as_ref()
                .ok()
                .map(|library| Sample { at, cards: library.sample(|card, ask| witness.enclose(card, ask)) })
                .map(|sample| recognise(sample, &kin));
            if news.send(News::Sampled(sample)).is_err() {
                return;
            }
            due = Instant::now() + PACE;
        }
        let told = match errands.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Errand::Sample) => {
                due = Instant::now();
                Ok(())
            }
            Ok(Errand::Watch(whom)) => {
                witness.watch(whom);
                Ok(())
            }
            Ok(Errand::Recognise(whom)) => {
                kin = whom;
                Ok(())
            }
            Ok(Errand::End(order)) => {
                let outcome = end::end(&order, library.as_ref().ok(), &kin);
                news.send(News::Ended(order, outcome))
            }
            Ok(Errand::Find(suspect)) => news.send(News::Found(suspect, find(&suspect))),
            Ok(Errand::Sync) => {
                // What is saved from now on is another errand.
                syncs.store(false, Ordering::Release);
                if let Err(error) = Settings::sync(state) {
                    tracing::warn!("settings may not outlive a power cut in {}: {error}", state.display());
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if told.is_err() {
            return;
        }
    }
}

/// Adds to a sample who the processes on its cards are.
fn recognise(mut sample: Sample, kin: &[Kin]) -> Sample {
    if sample.cards.iter().all(|card| card.processes.as_ref().is_none_or(BTreeMap::is_empty)) {
        return sample;
    }
    let census = Census::new(kin);
    for card in &mut sample.cards {
        let pids = card.processes.iter().flatten().map(|(pid, _)| *pid);
        card.residents = pids.filter_map(|pid| census.resident(pid)).collect();
    }
    sample
}

/// The host process that the suspect is: by the id that it says, if we share its namespace, else by a search.
fn find(suspect: &Suspect) -> Option<u32> {
    if maps(suspect.pid, suspect.file) {
        return Some(suspect.pid);
    }
    let processes = fs::read_dir("/proc").ok()?;
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| innermost(*pid) == Some(suspect.pid)).find(|pid| maps(*pid, suspect.file))
}

/// A process's id in its own namespace.
fn innermost(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

/// Whether a process has the file of this device and inode mapped: what it says of itself does not matter.
fn maps(pid: u32, (device, inode): (u64, u64)) -> bool {
    let Ok(file) = fs::File::open(format!("/proc/{pid}/maps")) else { return false };
    BufReader::new(file).lines().map_while(Result::ok).any(|line| {
        let mut fields = line.split_whitespace().skip(3);
        let at = fields.next().and_then(|at| {
            let (major, minor) = at.split_once(':')?;
            Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
        });
        let found = fields.next().and_then(|found| found.parse::<u64>().ok());
        let wanted = (rustix::fs::major(device), rustix::fs::minor(device));
        at == Some(wanted) && found == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_process_is_known_by_what_it_maps() {
        let about = fs::metadata("/proc/self/exe").unwrap();
        let own = (about.dev(), about.ino());
        let pid = std::process::id();
        assert!(maps(pid, own));
        assert!(!maps(pid, (own.0, own.1 + 1)));
        assert_eq!(innermost(pid), Some(pid));
        let suspect = Suspect { tenant: 0, slot: 0, generation: 1, pid, file: own };
        assert_eq!(find(&suspect), Some(pid));
        assert_eq!(find(&Suspect { pid: u32::MAX, ..suspect }), None);
    }

    #[test]
    fn without_nvml_the_scout_says_so_and_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let scout = Scout::send_out("libno-such-nvml.so".into(), state.path().join("state")).unwrap();
        let told = scout.news.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(matches!(told, News::Sampled(None)));
        Settings::default().save(&state.path().join("state")).unwrap();
        scout.sync();
        scout.ask(Errand::Sample);
        assert!(matches!(scout.news.recv_timeout(Duration::from_secs(60)).unwrap(), News::Sampled(None)));
        assert!(!scout.syncs.load(Ordering::Acquire));
    }
}
