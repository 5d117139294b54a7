//! A container's two files as the monitor uses them: `use` is copied and not trusted, `grant` is
//! written.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::{Gate, Share};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::devices::Device;
use cgpu_shm::file::{Error, Fault};
use cgpu_shm::grant::{GrantWriter, Turn};
use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::liveness::Liveness;
use cgpu_shm::slots::{State, Word};
use cgpu_shm::snapshot::{Cell, Reader, Snapshot};
use cgpu_shm::unaccounted::UnaccountedDelta;
use cgpu_shm::units::{Bytes, DeviceIndex, Generation, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::fstat;

use super::closed_page::close_gates;
use super::device_list::DeviceList;
use super::doorbell_pipe::DoorbellPipe;
use super::lock_queries::Process;

#[derive(Debug)]
pub(crate) struct Region {
    reader: Reader,
    grantor: GrantWriter,
    /// None: the one of the region before is not closed yet.
    pub(crate) doorbell: Option<DoorbellPipe>,
    /// Device and inode of `use`. A file with another identity is another region.
    identity: (u64, u64),
    pub(crate) seen: Snapshot,
    /// Where its GPUs are, each from when it was first seen there: a container can erase them.
    named: BTreeMap<Uuid, DeviceIndex>,
    /// Slots whose process lives, as far as is known, with their generations.
    pub(crate) live: Vec<Process>,
    /// What the locks of claimed slots have shown. An exit is final: a generation has one lock.
    liveness: BTreeMap<Process, Liveness>,
    /// `use`, for queries of its locks.
    locks: Arc<OwnedFd>,
    /// Whether `live` has changed since the last [`Region::has_moved`].
    moved: bool,
    /// The fault of the file, if it has one.
    pub(crate) unreadable: Option<String>,
    notify_requested: bool,
    published: Vec<Device>,
    cells: Vec<Cell>,
}

impl Region {
    /// Opens both files and takes over the grant page for the monitor with this identity.
    pub(crate) fn open(directory: &Path, monitor: u64) -> Result<Self, Error> {
        let fail = |error| Error { path: directory.join("use"), fault: Fault::System(error) };
        let mut reader = Reader::open(directory)?;
        let grantor = GrantWriter::open(directory)?;
        grantor.adopt(monitor);
        // A container says in which entry a GPU is, and may say so falsely. An entry that is no
        // GPU's, as far as the monitor has seen, has a closed gate.
        close_gates(&grantor);
        // The identity of the open file: the name may belong to another file by now.
        let about = fstat(reader.file()).map_err(|error| fail(error.into()))?;
        let locks = Arc::new(reader.file().try_clone_to_owned().map_err(fail)?);
        let seen = reader.read()?;
        let mut region = Self {
            reader,
            grantor,
            doorbell: None,
            identity: (about.st_dev, about.st_ino),
            seen,
            named: BTreeMap::new(),
            live: Vec::new(),
            liveness: BTreeMap::new(),
            locks,
            moved: true,
            unreadable: None,
            notify_requested: false,
            published: Vec::new(),
            cells: Vec::new(),
        };
        region.refresh();
        Ok(region)
    }

    /// Whether the files in the directory are still the open ones.
    pub(crate) fn is_of(&self, directory: &Path) -> bool {
        // A lost page is reported when it is opened anew.
        !self.grantor.is_lost() && self.has_file(directory)
    }

    /// Whether `use` in the directory is still the open one.
    pub(super) fn has_file(&self, directory: &Path) -> bool {
        // A link is not followed: it might lead to the monitor's own file.
        fs::symlink_metadata(directory.join("use"))
            .is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }

    /// Returns the identity of `use`, by which processes that map it are found.
    pub(crate) const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Reads everything: header, slots, cells. A process that has claimed a slot counts as alive
    /// until its lock shows otherwise.
    pub(crate) fn refresh(&mut self) {
        match self.reader.read() {
            Ok(seen) => {
                self.seen = seen;
                self.unreadable = None;
                let claimed: Vec<Process> = claimed(&self.seen).collect();
                self.liveness.retain(|process, _| claimed.binary_search(process).is_ok());
                let live =
                    claimed.into_iter().filter(|process| !self.has_exited(process)).collect();
                self.moved |= self.live != live;
                self.live = live;
            }
            // Locks hold, whatever was written into the file.
            Err(error) => self.unreadable = Some(error.to_string()),
        }
    }

    fn has_exited(&self, process: &Process) -> bool {
        self.liveness.get(process) == Some(&Liveness::Exited)
    }

    /// Whether a process's lock was queried.
    pub(super) fn is_queried(&self, process: &Process) -> bool {
        self.liveness.contains_key(process)
    }

    /// Takes what is known of a process. Returns whether that is new.
    pub(super) fn take_liveness(&mut self, process: Process, liveness: Liveness) -> bool {
        // One that has left its slot meanwhile is not kept.
        let Ok(at) = self.live.binary_search(&process) else { return false };
        if liveness == Liveness::Exited {
            self.live.remove(at);
            self.moved = true;
        }
        self.liveness.insert(process, liveness) != Some(liveness)
    }

    /// Returns the file for queries of the locks.
    pub(super) fn locks(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.locks)
    }

    /// Whether processes have started or exited since the last call.
    pub(crate) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Reads the reports of the living processes for one GPU. None: the file is corrupt.
    pub(crate) fn reports(&mut self, gpu: DeviceIndex) -> Option<Vec<TenantReport>> {
        if self.unreadable.is_some() {
            return None;
        }
        let slots = self.live.iter().map(|(slot, _)| slot.get() + 1).max().unwrap_or(0);
        if slots == 0 {
            return Some(Vec::new());
        }
        if let Err(error) = self.reader.read_cells(gpu, slots, &mut self.cells) {
            self.unreadable = Some(error.to_string());
            return None;
        }
        let reports = self.live.iter().filter_map(|&(slot, generation)| {
            let cell = self.cells.get(slot.get())?;
            Some(TenantReport {
                slot,
                generation,
                turn: cell.turn,
                waiting: cell.waiting,
                active: cell.active.0,
                busy: cell.busy.0,
                inflight: cell.inflight.0,
                ends: cell.ends.0,
                spent: cell.spent.0,
                last: cell.last.0,
            })
        });
        Some(reports.collect())
    }

    /// Keeps the index of the GPU with this UUID, whatever the container writes from now on.
    /// Returns whether it was not known before.
    pub(crate) fn keep_gpu(&mut self, uuid: Uuid) -> bool {
        let Some(index) = self.gpu(uuid).filter(|_| !self.named.contains_key(&uuid)) else {
            return false;
        };
        self.named.insert(uuid, index);
        true
    }

    /// Returns the GPUs that the container has named.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = Uuid> {
        self.seen.gpus.iter().map(|gpu| gpu.uuid).chain(self.named.keys().copied())
    }

    /// Returns the container's index of the GPU with this UUID; the first one if there are several.
    pub(crate) fn gpu(&self, uuid: Uuid) -> Option<DeviceIndex> {
        let is_free = |index: &DeviceIndex| !self.named.values().any(|kept| kept == index);
        let seen = || {
            let mut indexes = DeviceIndex::all().zip(&self.seen.gpus);
            let own = indexes.find(|(index, gpu)| gpu.uuid == uuid && is_free(index));
            own.map(|(index, _)| index)
        };
        self.named.get(&uuid).copied().or_else(seen)
    }

    /// Whether a process has reported that something else than cgpu wrote to `use`.
    pub(crate) fn is_tampered(&self) -> bool {
        self.doorbell.as_ref().is_some_and(DoorbellPipe::is_tampered)
    }

    /// Writes the fields of a GPU's gate. [`Region::turn`] changes the gate word.
    pub(crate) fn set_gate(&self, gpu: DeviceIndex, gate: &Gate) {
        self.grantor.gpu(gpu).beside.store(gate.concurrent, Ordering::Relaxed);
        self.grantor.gpu(gpu).bound.store(gate.max_inflight.0, Ordering::Relaxed);
        self.grantor.set_notify_slot(gpu, gate.notify_slot);
        self.grantor.set_turn(gpu, Turn(gate.turn), gate.granted, gate.until);
    }

    /// Changes the gate word, and wakes the threads that wait on it if `wake`.
    pub(crate) fn turn(&self, wake: bool) {
        if wake {
            self.grantor.wake_gate();
        } else {
            self.grantor.bump_gate();
        }
    }

    /// Requests notifications, or withdraws the request.
    pub(crate) fn request_notification(&mut self, notify_requested: bool) {
        if notify_requested != self.notify_requested {
            if notify_requested {
                self.grantor.request_notification();
            } else {
                self.grantor.clear_notification();
            }
            self.notify_requested = notify_requested;
        }
    }

    pub(crate) const fn notify_requested(&self) -> bool {
        self.notify_requested
    }

    pub(crate) fn beat(&self) {
        self.grantor.beat();
    }

    /// Returns the memory limit in the page; 0: the container's own applies.
    pub(crate) fn limit(&self, gpu: DeviceIndex) -> Bytes {
        Bytes(self.grantor.gpu(gpu).limit.load(Ordering::Relaxed))
    }

    pub(crate) fn set_limit(&self, gpu: DeviceIndex, limit: Bytes) {
        self.grantor.gpu(gpu).limit.store(limit.0, Ordering::Relaxed);
    }

    /// Returns the published unaccounted delta of a slot on a GPU.
    pub(crate) fn unaccounted(&self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        self.grantor.unaccounted(gpu, slot)
    }

    /// Publishes an unaccounted delta. `risen`: it is greater than before.
    pub(crate) fn set_unaccounted(
        &self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        delta: UnaccountedDelta,
        risen: bool,
    ) {
        self.grantor.set_unaccounted(gpu, slot, delta, risen);
    }

    pub(crate) fn returned(&self, gpu: DeviceIndex) -> u64 {
        self.grantor.returned(gpu)
    }

    pub(crate) fn set_returned(&self, gpu: DeviceIndex, returned: u64) {
        self.grantor.set_returned(gpu, returned);
    }

    pub(crate) fn set_confirmed(&self, gpu: DeviceIndex, slot: SlotIndex, confirmed: bool) {
        self.grantor.set_confirmed(gpu, slot, confirmed);
    }

    pub(crate) fn publish_devices(&mut self, devices: &DeviceList) {
        if self.published != devices.list {
            self.published.clone_from(&devices.list);
            self.grantor.set_devices(&self.published, devices.pid_namespace);
        }
        self.grantor.set_device_free(devices.free.iter().copied(), devices.sampled);
    }

    pub(crate) fn set_host_pid(&self, slot: SlotIndex, generation: u64, pid: Option<u32>) {
        let word = Word::new(Generation::from_bits(generation), State::Live);
        self.grantor.set_host_pid(slot, word, pid);
    }

    /// Writes the informational fields of the page.
    pub(crate) fn show(&self, gpu: DeviceIndex, policy: u32, weight: u32, share: &Share<'_>) {
        let fields = self.grantor.gpu(gpu);
        fields.policy.store(policy, Ordering::Relaxed);
        fields.weight.store(weight, Ordering::Relaxed);
        fields.share.store(share.set, Ordering::Relaxed);
        fields.busy.store(share.account.charged.0, Ordering::Relaxed);
        fields.measured.store(Measured::encode(share.second), Ordering::Relaxed);
    }

    /// Publishes that the memory of an exited process is released, whether or not its container has
    /// noticed the exit.
    pub(crate) fn set_reclaimed(&self, slot: SlotIndex, generation: u64) {
        self.grantor
            .set_drained(slot, Word::new(Generation::from_bits(generation), State::Draining));
    }

    /// Publishes that no process holds what an exited process had exported.
    pub(crate) fn set_exported_reclaimed(&self, slot: SlotIndex, generation: u64) {
        self.grantor.set_drained(slot, Word::new(Generation::from_bits(generation), State::Orphan));
    }

    /// Opens all gates, for a time without a monitor.
    pub(crate) fn open_gates(&self) {
        DeviceIndex::all().for_each(|gpu| self.set_open(gpu));
        self.grantor.clear_notification();
        self.grantor.wake_gate();
    }

    /// Opens a GPU's gate, because the monitor no longer gives turns on it. Waiting threads are
    /// woken.
    pub(crate) fn open_gate(&self, gpu: DeviceIndex) {
        self.set_open(gpu);
        self.grantor.wake_gate();
    }

    fn set_open(&self, gpu: DeviceIndex) {
        let fields = self.grantor.gpu(gpu);
        let epoch = fields.turn.load(Ordering::Relaxed) >> 8;
        fields.bound.store(0, Ordering::Relaxed);
        self.grantor.set_turn(gpu, Turn((epoch + 1) << 8), Nanos::ZERO, Nanos::ZERO);
    }
}

/// Returns the processes that the slots name.
fn claimed(seen: &Snapshot) -> impl Iterator<Item = Process> + '_ {
    let slots = (0..).map_while(SlotIndex::new).zip(&seen.slots);
    let live = slots.filter(|(_, slot)| matches!(slot.word.state(), Some(State::Live)));
    live.map(|(index, slot)| (index, slot.word.generation().get()))
}
