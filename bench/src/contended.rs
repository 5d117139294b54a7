//! A minimal monitor that grants one turn under contention.

use anyhow::{Context, Result};
use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::grant::{GrantWriter, Turn, TurnState};
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{DeviceIndex, Nanos};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between changes of the gate word, as in the real monitor.
const BUMP: Duration = Duration::from_millis(5);
/// Length of the turn, longer than any probe.
const GRANTED: Nanos = Nanos::from_millis(3_600_000);

/// A container whose GPU is contended and in its own turn, until this is dropped.
pub(crate) struct Contended {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Contended {
    /// Creates the region in `directory` and grants its first GPU.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        Region::make(directory, RegionSpec { name: "bench", created: Nanos(0), time_scale: None })?;
        let grantor = GrantWriter::open(directory)?;
        let first = DeviceIndex::new(0).context("a container has at least one GPU")?;
        grantor.adopt(1);
        grantor.set_turn(first, Turn::new(1, TurnState::Yours), GRANTED, Nanos(0));
        grantor.wake_gate();
        let over = Arc::new(AtomicBool::new(false));
        let over_now = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !over_now.load(Ordering::Relaxed) {
                grantor.beat();
                grantor.wake_gate();
                std::thread::sleep(BUMP);
            }
        });
        Ok(Self { over, thread: Some(thread) })
    }
}

impl Drop for Contended {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}
