//! The page of a container whose `use` cannot be read.
//!
//! A container can write anything into its `use`, also while no monitor runs. Without turns of this
//! monitor its gates would stay open, and it would compute beside its neighbours' turns. So its
//! gates are closed until its region can be opened: it gets no compute.

use std::path::Path;

use cgpu_shm::file::Error;
use cgpu_shm::grant::{GrantView, GrantWriter, Turn, TurnState};
use cgpu_shm::units::{DeviceIndex, Nanos};

/// Closes the gates of all entries of a page.
pub(super) fn close_gates(page: &GrantWriter) {
    for gpu in DeviceIndex::all() {
        let epoch = GrantView::new(page.page()).turn(gpu).epoch() + 1;
        page.set_turn(gpu, Turn::new(epoch, TurnState::Wait), Nanos::ZERO, Nanos::ZERO);
    }
    page.bump_gate();
}

/// The page, with all gates closed while the heartbeat goes on.
#[derive(Debug)]
pub(super) struct ClosedPage(GrantWriter);

impl ClosedPage {
    /// Takes the page over for the monitor with this identity, and closes its gates.
    ///
    /// # Errors
    /// The page itself cannot be opened.
    pub(super) fn open(directory: &Path, monitor: u64) -> Result<Self, Error> {
        let page = GrantWriter::open(directory)?;
        page.adopt(monitor);
        close_gates(&page);
        Ok(Self(page))
    }

    pub(super) fn beat(&self) {
        self.0.beat();
    }
}
