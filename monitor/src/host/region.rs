//! A container's two files, as the monitor uses them: `use` is copied and never believed, `grant` is written.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use cgpu_scheduler::report::TenantReport;
use cgpu_scheduler::{Gate, Share};
use cgpu_shm::atomic::Ordering;
use cgpu_shm::devices::Device;
use cgpu_shm::file::{Error, Fault};
use cgpu_shm::grant::{GrantWriter, Turn};
use cgpu_shm::grant_snapshot::Measured;
use cgpu_shm::liveness::{self, Liveness};
use cgpu_shm::slots::{State, Word};
use cgpu_shm::snapshot::{Cell, Reader, Snapshot};
use cgpu_shm::unaccounted::UnaccountedDelta;
use cgpu_shm::units::{Bytes, DeviceIndex, Generation, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::fstat;

use super::device_list::DeviceList;

/// Bytes that one read of a doorbell takes. A notification is one byte, and a container has at most
/// 256 processes: so many unread bytes are a flood.
const DOORBELL_READ: usize = 4096;

/// Both files, open.
#[derive(Debug)]
pub(crate) struct Region {
    reader: Reader,
    grantor: GrantWriter,
    /// The FIFO, where there is one.
    pub(crate) doorbell: Option<fs::File>,
    /// Device and inode of `use`: another file under the name is another region.
    identity: (u64, u64),
    /// The last whole look.
    pub(crate) seen: Snapshot,
    /// Slots whose process lives, by their locks.
    pub(crate) live: Vec<(SlotIndex, u64)>,
    /// Whether that has changed since [`Region::has_moved`] was asked.
    moved: bool,
    /// What is wrong with the file, if anything.
    pub(crate) unreadable: Option<String>,
    /// What the page's `notify_requested` says.
    notify_requested: bool,
    /// The devices that the page tells of.
    published: Vec<Device>,
    cells: Vec<Cell>,
}

impl Region {
    /// Opens them and takes the grant page over for the monitor of this name.
    pub(crate) fn open(directory: &Path, monitor: u64) -> Result<Self, Error> {
        let mut reader = Reader::open(directory)?;
        let grantor = GrantWriter::open(directory)?;
        grantor.adopt(monitor);
        // Of what is open, and not of what is called so by now.
        let about = fstat(reader.file()).map_err(|error| Error {
            path: directory.join("use"),
            fault: Fault::System(error.into()),
        })?;
        let seen = reader.read()?;
        let mut region = Self {
            reader,
            grantor,
            doorbell: open_fifo(&directory.join("doorbell")),
            identity: (about.st_dev, about.st_ino),
            seen,
            live: Vec::new(),
            moved: true,
            unreadable: None,
            notify_requested: false,
            published: Vec::new(),
            cells: Vec::new(),
        };
        region.refresh();
        Ok(region)
    }

    /// Whether the files under these names are still the ones that are open.
    pub(crate) fn is_of(&self, directory: &Path) -> bool {
        // One whose page was lost says why when it is opened anew.
        !self.grantor.is_lost()
            // Not where a link leads: to a file of ours, it would wait for us.
            && fs::symlink_metadata(directory.join("use"))
                .is_ok_and(|about| (about.dev(), about.ino()) == self.identity)
    }

    /// The file's identity, by which a process that maps it can be told.
    pub(crate) const fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Opens the bell if it has come since.
    pub(crate) fn open_doorbell(&mut self, directory: &Path) -> bool {
        if self.doorbell.is_none() {
            self.doorbell = open_fifo(&directory.join("doorbell"));
            return self.doorbell.is_some();
        }
        false
    }

    /// Looks at everything: header, slots, cells, and which processes live.
    pub(crate) fn refresh(&mut self) {
        let before = std::mem::take(&mut self.live);
        match self.reader.read() {
            Ok(seen) => {
                self.seen = seen;
                self.unreadable = None;
                for (index, slot) in self.seen.slots.iter().enumerate() {
                    let Some(index) = SlotIndex::new(index) else { break };
                    let claimed = matches!(slot.word.state(), Some(State::Live));
                    if claimed && self.is_locked(index) {
                        self.live.push((index, slot.word.generation().get()));
                    }
                }
            }
            Err(error) => {
                self.unreadable = Some(error.to_string());
                // What was written over the file does not unlock it.
                self.live =
                    before.iter().copied().filter(|(slot, _)| self.is_locked(*slot)).collect();
            }
        }
        self.moved |= self.live != before;
    }

    /// Whether processes have come or gone since this was asked last.
    pub(crate) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Whether a process holds the slot's byte. What cannot be asked counts as yes.
    pub(crate) fn is_locked(&self, slot: SlotIndex) -> bool {
        liveness::liveness(self.reader.file(), slot).is_ok_and(|life| life == Liveness::Alive)
    }

    /// Reads what the living processes do on one GPU; none when the file is garbled.
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

    /// The GPU's place in the container, by its UUID; the first of that name.
    pub(crate) fn gpu(&self, uuid: Uuid) -> Option<DeviceIndex> {
        self.seen.gpus.iter().position(|gpu| gpu.uuid == uuid).and_then(DeviceIndex::new)
    }

    /// Reads what is in the doorbell, once: its container can write as fast as any number of reads,
    /// and can make the pipe 1 MiB long. Returns whether there was as much as one read takes.
    pub(crate) fn drain_doorbell(&mut self) -> bool {
        let mut bytes = [0; DOORBELL_READ];
        let read = self.doorbell.as_mut().map(|doorbell| doorbell.read(&mut bytes));
        matches!(read, Some(Ok(DOORBELL_READ)))
    }

    /// Writes what a GPU's gate is to say. The gate word is changed by [`Region::turn`].
    pub(crate) fn set_gate(&self, gpu: DeviceIndex, gate: &Gate) {
        self.grantor.gpu(gpu).beside.store(gate.concurrent, Ordering::Relaxed);
        self.grantor.gpu(gpu).bound.store(gate.max_inflight.0, Ordering::Relaxed);
        self.grantor.set_notify_slot(gpu, gate.notify_slot);
        self.grantor.set_turn(gpu, Turn(gate.turn), gate.granted, gate.until);
    }

    /// Changes the gate word; wakes who waits at it if asked to.
    pub(crate) fn turn(&self, wake: bool) {
        if wake {
            self.grantor.wake_gate();
        } else {
            self.grantor.bump_gate();
        }
    }

    /// Asks for the bell, or no longer.
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

    /// Whether a ring was asked for.
    pub(crate) const fn notify_requested(&self) -> bool {
        self.notify_requested
    }

    pub(crate) fn beat(&self) {
        self.grantor.beat();
    }

    /// The memory limit that the page imposes; 0: the one that the container registered.
    pub(crate) fn limit(&self, gpu: DeviceIndex) -> Bytes {
        Bytes(self.grantor.gpu(gpu).limit.load(Ordering::Relaxed))
    }

    pub(crate) fn set_limit(&self, gpu: DeviceIndex, limit: Bytes) {
        self.grantor.gpu(gpu).limit.store(limit.0, Ordering::Relaxed);
    }

    /// What the page says that a slot's user has on a GPU beyond its cell.
    pub(crate) fn growth(&self, gpu: DeviceIndex, slot: SlotIndex) -> UnaccountedDelta {
        self.grantor.unaccounted(gpu, slot)
    }

    /// Says it anew. `risen`: it is more.
    pub(crate) fn set_unaccounted(
        &self,
        gpu: DeviceIndex,
        slot: SlotIndex,
        growth: UnaccountedDelta,
        risen: bool,
    ) {
        self.grantor.set_unaccounted(gpu, slot, growth, risen);
    }

    /// [`GrantWriter::returned`].
    pub(crate) fn returned(&self, gpu: DeviceIndex) -> u64 {
        self.grantor.returned(gpu)
    }

    /// [`GrantWriter::set_returned`].
    pub(crate) fn set_returned(&self, gpu: DeviceIndex, returned: u64) {
        self.grantor.set_returned(gpu, returned);
    }

    /// Says whether NVML has confirmed a slot's implicit memory.
    pub(crate) fn set_confirmed(&self, gpu: DeviceIndex, slot: SlotIndex, confirmed: bool) {
        self.grantor.set_confirmed(gpu, slot, confirmed);
    }

    /// Says which devices the host has, and what of each is free.
    pub(crate) fn publish_devices(&mut self, devices: &DeviceList) {
        if self.published != devices.list {
            self.published.clone_from(&devices.list);
            self.grantor.set_devices(&self.published, devices.pid_namespace);
        }
        self.grantor.set_device_free(devices.free.iter().copied(), devices.sampled);
    }

    /// Says who a slot's user is on the host.
    pub(crate) fn set_host_pid(&self, slot: SlotIndex, generation: u64, pid: Option<u32>) {
        let word = Word::new(Generation::from_bits(generation), State::Live);
        self.grantor.set_host_pid(slot, word, pid);
    }

    /// What people may see in the page.
    pub(crate) fn show(&self, gpu: DeviceIndex, policy: u32, weight: u32, share: &Share<'_>) {
        let fields = self.grantor.gpu(gpu);
        fields.policy.store(policy, Ordering::Relaxed);
        fields.weight.store(weight, Ordering::Relaxed);
        fields.share.store(share.set, Ordering::Relaxed);
        fields.busy.store(share.account.charged.0, Ordering::Relaxed);
        fields.measured.store(Measured::encode(share.second), Ordering::Relaxed);
    }

    /// Says that the memory of a dead process is gone, whether or not its container has noticed that it is dead.
    pub(crate) fn set_reclaimed(&self, slot: SlotIndex, generation: u64) {
        self.grantor
            .set_drained(slot, Word::new(Generation::from_bits(generation), State::Draining));
    }

    /// Says that no process holds what an exited process had exported.
    pub(crate) fn set_exported_reclaimed(&self, slot: SlotIndex, generation: u64) {
        self.grantor.set_drained(slot, Word::new(Generation::from_bits(generation), State::Orphan));
    }

    /// Leaves every gate open, for a time without a monitor.
    pub(crate) fn open_gates(&self) {
        DeviceIndex::all().for_each(|gpu| self.set_open(gpu));
        self.grantor.clear_notification();
        self.grantor.wake_gate();
    }

    /// Leaves a GPU's gate open: the monitor gives no turns on it any more. Threads that wait there
    /// are woken.
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

/// Opens a bell for reading and never waits for a ringer. Anything but a FIFO is none.
fn open_fifo(path: &Path) -> Option<fs::File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    // Also for writing, so that it does not end when the last ringer leaves.
    let open = || -> io::Result<fs::File> {
        // The flags are small positive numbers.
        #[allow(clippy::cast_possible_wrap)]
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)
    };
    open().ok().filter(|file| file.metadata().is_ok_and(|about| about.file_type().is_fifo()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use cgpu_shm::region::RegionSpec;

    use super::*;

    fn region_in(directory: &Path) -> Region {
        cgpu_shm::region::Region::make(
            directory,
            RegionSpec { name: "", created: Nanos(1), time_scale: None },
        )
        .unwrap();
        Region::open(directory, 1).unwrap()
    }

    #[test]
    fn doorbell_drain_is_one_read_however_much_is_written() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut region = region_in(directory.path());
        let mut writer = open_fifo(&directory.path().join("doorbell")).unwrap();
        assert!(!region.drain_doorbell(), "nothing was written");
        writer.write_all(&[1; 3]).unwrap();
        assert!(!region.drain_doorbell(), "an honest container's notifications");
        rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20).unwrap();
        writer.write_all(&vec![1; 1 << 20]).unwrap();
        assert!(region.drain_doorbell(), "a flood");
        let left = rustix::io::ioctl_fionread(&writer).unwrap();
        assert_eq!(left, (1 << 20) - DOORBELL_READ as u64);
    }
}
