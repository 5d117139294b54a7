//! Reads the maps of the containers' processes that are on a GPU, and remembers what they show.
//!
//! A read of `/proc/PID/maps` waits for the lock of the process's memory. The process decides how
//! long it holds that lock, and nothing but the monitor's end interrupts the wait. So each reading
//! has a thread of its own, and the prober takes what was read. No process is read by two threads.
//! A container has one reading at a time, beside a few whose process holds its lock for long.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cgpu_shm::clock::thread_cpu;
use cgpu_shm::units::Nanos;

use super::mapped::{Identity, Mapped, MapsReader};
use super::renewal::Renewals;
use crate::watcher::ProcessId;

/// Bytes that are read at once, some 5 ms of CPU time: much more than an honest process has.
const PIECE: u64 = 1 << 20;

/// Bytes that are read at once of a process that is to be ended.
const CHECKED: u64 = 8 << 20;

/// Time that a sample waits for the readings that it begins. An honest process takes some 100 us.
pub(super) const GRACE: Duration = Duration::from_millis(20);

/// Time after which a reading no longer keeps its container's other processes waiting.
const HELD: Nanos = Nanos::from_millis(1_000);

/// Time after which a reading is reported, and an order to end the process is refused.
pub(super) const TIMEOUT: Nanos = Nanos::from_millis(5_000);

/// Readings of a container that may wait at a time.
const MAX_OF_CONTAINER: usize = 4;

/// Readings of all containers that may wait at a time, beside the first of each container.
const MAX_READINGS: usize = 256;

/// Size of a reading thread's stack, in bytes.
pub(super) const STACK_SIZE: usize = 128 << 10;

/// Opens a process's maps: [`MapsReader::open`] but in tests.
pub(super) type OpenMaps = fn(ProcessId) -> io::Result<MapsReader>;

pub(super) struct Maps {
    renewals: Renewals,
    /// Readings of long maps, which go on when their containers are due again.
    unfinished: BTreeMap<ProcessId, MapsReader>,
    /// Readings that a thread makes now.
    pending: BTreeMap<ProcessId, Pending>,
    /// Processes that are to be ended and must be read before, each with its container.
    checks: BTreeMap<ProcessId, u64>,
    /// What those have mapped that were read; none: they cannot be.
    checked: BTreeMap<ProcessId, Option<Mapped>>,
    /// The containers' regions.
    regions: Arc<BTreeSet<Identity>>,
    outbox: Sender<Reading>,
    readings: Receiver<Reading>,
    /// Called on a reading's thread when there is a new reading.
    wake: Arc<dyn Fn() + Send + Sync>,
    open: OpenMaps,
    /// Time that [`Maps::renew`] waits for the readings that it begins.
    grace: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    tenant: u64,
    since: Nanos,
}

/// What a thread has read.
struct Reading {
    id: ProcessId,
    tenant: u64,
    /// The regions that were searched for, of a process that is to be ended.
    check: Option<Arc<BTreeSet<Identity>>>,
    /// Whether all has been read, and the reader.
    outcome: io::Result<(bool, MapsReader)>,
    /// CPU time that it took.
    used: Nanos,
}

impl Maps {
    pub(super) fn new(
        open: OpenMaps,
        grace: Duration,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (outbox, readings) = channel();
        Self {
            renewals: Renewals::default(),
            unfinished: BTreeMap::new(),
            pending: BTreeMap::new(),
            checks: BTreeMap::new(),
            checked: BTreeMap::new(),
            regions: Arc::default(),
            outbox,
            readings,
            wake: Arc::new(wake),
            open,
            grace,
        }
    }

    pub(super) fn set_regions(&mut self, regions: BTreeSet<Identity>) {
        if *self.regions != regions {
            self.regions = Arc::new(regions);
        }
    }

    /// Sets the containers' processes on a GPU, each with its container and whether it is verified,
    /// and reads what is due. Waits for that for a short time.
    pub(super) fn renew(&mut self, now: Nanos, processes: &BTreeMap<ProcessId, (u64, bool)>) {
        self.renewals.set(now, processes);
        self.unfinished.retain(|id, _| processes.contains_key(id));
        self.take_readings(now);
        let deadline = Instant::now() + self.grace;
        while self.pending.values().any(|reading| reading.since == now) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(reading) = self.readings.recv_timeout(left) else { break };
            self.take_reading(now, reading);
            self.read(now);
        }
    }

    /// Takes what was read, and reads what is due.
    pub(super) fn take_readings(&mut self, now: Nanos) {
        while let Ok(reading) = self.readings.try_recv() {
            self.take_reading(now, reading);
        }
        self.read(now);
    }

    /// Returns what the processes that are to be ended have mapped; none: they cannot be read.
    pub(super) fn take_checked(&mut self) -> BTreeMap<ProcessId, Option<Mapped>> {
        std::mem::take(&mut self.checked)
    }

    /// Begins to read a process anew that is to be ended. This is done at once, and charged to its
    /// container. The outcome is remembered like any other, so an order that is refused for it
    /// costs no more than a reading in turn. More mappings than are read here count as the
    /// driver's: no process hides it so.
    pub(super) fn check(&mut self, now: Nanos, id: ProcessId, tenant: u64) {
        self.checks.insert(id, tenant);
        self.read(now);
    }

    /// Gives up the checks of all other processes.
    pub(super) fn keep_checks(&mut self, is_wanted: impl Fn(ProcessId) -> bool) {
        self.checks.retain(|id, _| is_wanted(*id));
    }

    /// Begins the readings that are due.
    fn read(&mut self, now: Nanos) {
        let checks: Vec<_> = self.checks.iter().map(|(id, tenant)| (*id, *tenant)).collect();
        for (id, tenant) in checks {
            if self.may_read(now, id, tenant) {
                self.begin(now, id, tenant, true);
            }
        }
        let due = |maps: &Self| maps.renewals.next(now, |id, of| maps.may_read(now, id, of));
        while let Some((id, tenant)) = due(self) {
            if !self.begin(now, id, tenant, false) {
                break;
            }
        }
    }

    fn may_read(&self, now: Nanos, id: ProcessId, tenant: u64) -> bool {
        let own = || self.pending.values().filter(|reading| reading.tenant == tenant);
        let most = if self.pending.len() < MAX_READINGS { MAX_OF_CONTAINER } else { 1 };
        !self.pending.contains_key(&id)
            && own().count() < most
            && own().all(|reading| now - reading.since >= HELD)
    }

    /// Begins a reading. False: no thread can be created.
    fn begin(&mut self, now: Nanos, id: ProcessId, tenant: u64, is_check: bool) -> bool {
        let begun = if is_check { None } else { self.unfinished.remove(&id) };
        let (open, outbox, wake) = (self.open, self.outbox.clone(), Arc::clone(&self.wake));
        let regions = Arc::clone(&self.regions);
        let read = move || {
            let start = thread_cpu();
            let bytes = if is_check { CHECKED } else { PIECE };
            let reader = begun.map_or_else(|| open(id), Ok);
            let outcome = reader.and_then(|mut reader| Ok((reader.read(bytes, &regions)?, reader)));
            let (check, used) = (is_check.then_some(regions), thread_cpu() - start);
            // The prober may have ended.
            let _ = outbox.send(Reading { id, tenant, check, outcome, used });
            wake();
        };
        let thread = thread::Builder::new().name("maps".into()).stack_size(STACK_SIZE);
        let spawned = thread.spawn(read);
        match &spawned {
            Ok(_) => _ = self.pending.insert(id, Pending { tenant, since: now }),
            Err(error) => tracing::warn!("cannot start a thread that reads maps: {error}"),
        }
        spawned.is_ok()
    }

    fn take_reading(&mut self, now: Nanos, reading: Reading) {
        let Reading { id, tenant, check, outcome, used } = reading;
        self.pending.remove(&id);
        self.renewals.charge(now, tenant, used);
        match (outcome, &check) {
            (Ok((true, reader)), _) => self.take(now, id, tenant, Some(reader.mapped)),
            (Ok((false, reader)), None) => _ = self.unfinished.insert(id, reader),
            (Ok((false, reader)), Some(_)) if reader.mapped.region => {
                self.take(now, id, tenant, Some(Mapped { driver: true, ..reader.mapped }));
            }
            (Ok((false, reader)), Some(_)) => {
                // What was found when all was read stands.
                let mapped = self.mapped(id).or(Some(Mapped { driver: true, ..reader.mapped }));
                self.finish(id, check, mapped);
                return;
            }
            (Err(_), _) => self.take(now, id, tenant, None),
        }
        let mapped = self.mapped(id);
        self.finish(id, check, mapped);
    }

    /// Notes what a process that is to be ended has mapped.
    fn finish(
        &mut self,
        id: ProcessId,
        regions: Option<Arc<BTreeSet<Identity>>>,
        mapped: Option<Mapped>,
    ) {
        // It may have a new region mapped: then it is read again.
        if regions.is_some_and(|regions| regions == self.regions)
            && self.checks.remove(&id).is_some()
        {
            self.checked.insert(id, mapped);
        }
    }

    fn take(&mut self, now: Nanos, id: ProcessId, tenant: u64, mapped: Option<Mapped>) {
        self.unfinished.remove(&id);
        // Checked last, so that the maps are of this process.
        self.renewals.take(now, id, tenant, mapped.filter(|_| id.lives()));
    }

    /// Returns what a process has mapped, as far as it is known.
    pub(super) fn mapped(&self, id: ProcessId) -> Option<Mapped> {
        self.renewals.mapped(id)
    }

    /// Returns the containers of whose processes on a GPU one has not let its maps be read for
    /// long.
    pub(super) fn held(&mut self, now: Nanos) -> BTreeSet<u64> {
        self.take_readings(now);
        let is_held = |(id, reading): &(&ProcessId, &Pending)| {
            now - reading.since >= TIMEOUT && self.renewals.has(**id)
        };
        self.pending.iter().filter(is_held).map(|(_, reading)| reading.tenant).collect()
    }

    /// Returns how many threads read.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }
}
