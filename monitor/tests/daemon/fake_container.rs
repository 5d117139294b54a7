//! A container's process as the monitor sees it: it claims a slot, obeys the gate, publishes and
//! notifies. It simulates a program that always has work, on a GPU of its own that runs in real
//! time.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use cgpu_shm::atomic::Ordering::Relaxed;
use cgpu_shm::atomic::{AtomicBool, AtomicU64};
use cgpu_shm::gpus::Gpu;
use cgpu_shm::grant::TurnState;
use cgpu_shm::layout::Cell;
use cgpu_shm::liveness::LivenessLock;
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::slots::{Claim, SlotOwner};
use cgpu_shm::units::{Bytes, DeviceIndex, Nanos, SlotIndex};
use cgpu_shm::uuid::Uuid;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

pub(crate) const TOTAL: Bytes = Bytes::from_mib(23_028);

pub(crate) fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(
        u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap(),
    )
}

pub(crate) fn make(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    Region::make(dir, RegionSpec { name: "", created: Nanos(1), time_scale: None }).unwrap();
    assert!(dir.join("doorbell").exists(), "a region has a doorbell");
}

/// A process, which lives until this is dropped.
pub(crate) struct Process {
    pub(crate) region: Region,
    pub(crate) slot: SlotIndex,
    pub(crate) gpu: DeviceIndex,
    doorbell: Option<File>,
    _claim: Claim<LivenessLock>,
}

impl Process {
    pub(crate) fn start(dir: &Path, gpu: u8, limit: Bytes) -> Self {
        Self::start_on(dir, uuid(gpu), limit)
    }

    pub(crate) fn start_on(dir: &Path, uuid: Uuid, limit: Bytes) -> Self {
        let region = Region::open(dir).unwrap();
        let owner = SlotOwner { pid: std::process::id(), comm: b"program" };
        let claim = region.claim(owner, now(), false).unwrap().unwrap();
        let gpu = Gpu { uuid, total: TOTAL, limit, ordinal: 0 };
        let gpu = region.register(claim.slot, &gpu).unwrap();
        // Exact: the flags are small positive numbers.
        #[allow(clippy::cast_possible_wrap)]
        let flags = OFlags::NONBLOCK.bits() as i32;
        let doorbell =
            OpenOptions::new().write(true).custom_flags(flags).open(dir.join("doorbell")).ok();
        Self { slot: claim.slot, region, gpu, doorbell, _claim: claim }
    }

    pub(crate) fn cell(&self) -> &Cell {
        self.region.cell(self.gpu, self.slot)
    }

    pub(crate) fn notify(&self) {
        if self.region.grant().notify_requested()
            && let Some(mut doorbell) = self.doorbell.as_ref()
        {
            let _ = doorbell.write(&[1]);
        }
    }

    /// Launches as a gate would allow until `stop` is set. Adds the time for which it had the GPU
    /// to `held`.
    fn run(&self, stop: &AtomicBool, held: &AtomicU64) {
        let granted = self.region.grant();
        let cell = self.cell();
        let (mut seen, mut busy) = (0, 0);
        let mut base = 0;
        while !stop.load(Relaxed) {
            let word = granted.acknowledge();
            let turn = granted.turn(self.gpu);
            let time = now();
            if turn.0 != seen {
                seen = turn.0;
                base = busy;
                cell.spent.store(0, Relaxed);
                cell.turn.store(turn.0, Relaxed);
            }
            let was = cell.active.swap(time.0, Relaxed);
            match turn.state() {
                TurnState::Open => {
                    if time - Nanos(was) > Nanos::from_millis(20) {
                        self.notify();
                    }
                    sleep(Duration::from_micros(500));
                }
                TurnState::Yours if busy - base < granted.budget(self.gpu).0 => {
                    cell.inflight.store(400_000, Relaxed);
                    cell.ends.store(time.0 + 400_000, Relaxed);
                    sleep(Duration::from_micros(400));
                    // On a loaded machine the sleep takes longer than the GPU would.
                    let ran = (now() - time).0.min(600_000);
                    busy += ran;
                    held.fetch_add(ran, Relaxed);
                    cell.busy.store(busy, Relaxed);
                    cell.inflight.store(0, Relaxed);
                    cell.last.store(now().0, Relaxed);
                    cell.spent.store(busy - base, Relaxed);
                }
                TurnState::Yours | TurnState::Wait => {
                    cell.waiting.fetch_add(1, Relaxed);
                    self.notify();
                    granted.wait(word, Nanos::from_millis(50));
                    cell.waiting.fetch_sub(1, Relaxed);
                }
            }
        }
    }
}

pub(crate) struct FakeContainer {
    stop: Arc<AtomicBool>,
    held: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl FakeContainer {
    pub(crate) fn start(process: Process) -> Self {
        let (stop, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let shared = (stop.clone(), held.clone());
        let thread = spawn(move || process.run(&shared.0, &shared.1));
        Self { stop, held, thread: Some(thread) }
    }

    pub(crate) fn held(&self) -> Nanos {
        Nanos(self.held.load(Relaxed))
    }
}

impl Drop for FakeContainer {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
