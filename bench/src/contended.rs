//! A monitor that says only one thing: contended, and the turn is yours.

use anyhow::{Context, Result};
use cgpu_shm::atomic::{AtomicBool, Ordering};
use cgpu_shm::grant::{GrantWriter, Turn, TurnState};
use cgpu_shm::region::{Region, RegionSpec};
use cgpu_shm::units::{DeviceIndex, Nanos};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// As often as the real monitor changes the gate word of a turn's holder.
const BUMP: Duration = Duration::from_millis(5);
/// Longer than any probe runs.
const GRANTED: Nanos = Nanos::from_millis(3_600_000);

/// Holds a container's GPU in its own turn until dropped.
pub(crate) struct Contended {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Contended {
    /// Makes the region in `directory` and grants its first GPU.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        Region::make(directory, RegionSpec { name: "bench", created: Nanos(0), time_scale: None })?;
        let grantor = GrantWriter::open(directory)?;
        let first = DeviceIndex::new(0).context("a container has at least one GPU")?;
        grantor.adopt(1);
        grantor.set_turn(first, Turn::new(1, TurnState::Yours), GRANTED, Nanos(0));
        grantor.wake_gate();
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
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
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}
